//! Work requests and the buffers they name.

use std::num::NonZeroU32;

use usb4_ring_abi::sync::{AtomicU64, Ordering};
use usb4_ring_abi::{Entry, Op, PREFIX_MAX, SQE_WORDS, Sqe, sqe_flags};

/// Longest prefix of a send, in bytes.
pub const MAX_PREFIX: usize = PREFIX_MAX as usize;

// Where fields are in word 0 of a submission entry: see `Sqe`.
const FLAG_IMM: u64 = (sqe_flags::IMM as u64) << 8;
const FLAG_UNSIGNALED: u64 = (sqe_flags::UNSIGNALED as u64) << 8;
const PREFIX_LEN_SHIFT: u32 = 16;
const HANDLE_SHIFT: u32 = 32;

/// An endpoint's handle of a peer's endpoint: see [`crate::Endpoint::address_handle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressHandle(pub(crate) u32);

impl AddressHandle {
    /// As it stands in an entry.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// From [`AddressHandle::raw`]. A number that is no handle of the endpoint completes its requests with
    /// [`crate::Status::Invalid`].
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

/// A range of local memory: part of a [`crate::MemoryRegion`] (see [`crate::MemoryRegion::buffer`]) or, where
/// the device can reach the process itself, plain memory ([`Buffer::process`]).
///
/// It is a plain value: the device checks it when the request is submitted, and a buffer of a region that
/// has been dropped completes with [`crate::Status::Invalid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub(crate) addr: u64,
    pub(crate) key: u32,
    pub(crate) len: u32,
}

impl Buffer {
    /// No bytes.
    pub const EMPTY: Self = Self {
        addr: 0,
        key: 0,
        len: 0,
    };

    /// Part of the region whose local key that is: see [`crate::MemoryRegion::local_key`].
    #[inline]
    pub const fn of_key(addr: u64, key: NonZeroU32, len: u32) -> Self {
        Self {
            addr,
            key: key.get(),
            len,
        }
    }

    /// Plain memory of this process, unregistered. Only where [`crate::DeviceInfo::process_memory`] is true;
    /// else the request completes with [`crate::Status::Invalid`].
    ///
    /// # Safety
    ///
    /// From post to completion the memory stays mapped and, if the request writes to it, is written by
    /// nobody else and read by nobody.
    #[inline]
    pub const unsafe fn process(addr: u64, len: u32) -> Self {
        Self { addr, key: 0, len }
    }

    /// Its address.
    #[inline]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// The local key of its region; `None` for plain memory, and for no bytes.
    #[inline]
    pub const fn local_key(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.key)
    }

    /// Its length in bytes.
    #[inline]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A place in a peer's memory, as the peer told us: [`crate::MemoryRegion::addr`] plus an offset, and
/// [`crate::MemoryRegion::remote_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Remote key.
    pub key: u64,
}

/// A work request. Built once, it can be posted many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    words: [u64; SQE_WORDS],
}

impl WorkRequest {
    #[inline]
    const fn new(op: Op, to: AddressHandle, local: Buffer) -> Self {
        let words = [
            op as u64 | (to.0 as u64) << HANDLE_SHIFT,
            0,
            local.addr,
            local.key as u64 | (local.len as u64) << 32,
            0,
            0,
            0,
            0,
        ];
        Self { words }
    }

    #[inline]
    const fn remote(mut self, remote: Remote) -> Self {
        self.words[4] = remote.addr;
        self.words[5] = remote.key;
        self
    }

    /// A message into the peer's next receive.
    #[inline]
    pub const fn send(to: AddressHandle, local: Buffer) -> Self {
        Self::new(Op::Send, to, local)
    }

    /// RDMA write of `local` to `remote`.
    #[inline]
    pub const fn write(to: AddressHandle, local: Buffer, remote: Remote) -> Self {
        Self::new(Op::Write, to, local).remote(remote)
    }

    /// RDMA read of `remote` into `local`.
    #[inline]
    pub const fn read(to: AddressHandle, local: Buffer, remote: Remote) -> Self {
        Self::new(Op::Read, to, local).remote(remote)
    }

    /// Adds to 8 aligned bytes at `remote`. The old value is in the completion and, unless `local` is empty,
    /// in its 8 bytes.
    #[inline]
    pub const fn fetch_add(to: AddressHandle, local: Buffer, remote: Remote, add: u64) -> Self {
        let mut new = Self::new(Op::FetchAdd, to, local).remote(remote);
        new.words[6] = add;
        new
    }

    /// Replaces 8 aligned bytes at `remote` by `swap` if they equal `compare`. The old value is in the
    /// completion and, unless `local` is empty, in its 8 bytes.
    #[inline]
    pub const fn compare_swap(
        to: AddressHandle,
        local: Buffer,
        remote: Remote,
        compare: u64,
        swap: u64,
    ) -> Self {
        let mut new = Self::new(Op::CompareSwap, to, local).remote(remote);
        new.words[6] = swap;
        new.words[7] = compare;
        new
    }

    /// With immediate data. Sends and writes only; on others the request completes with
    /// [`crate::Status::Invalid`].
    #[inline]
    pub const fn imm(mut self, imm: u64) -> Self {
        self.words[0] |= FLAG_IMM;
        self.words[7] = imm;
        self
    }

    /// Sends only: bytes that go in front of the local buffer.
    ///
    /// # Panics
    ///
    /// If `prefix` is longer than [`MAX_PREFIX`].
    #[inline]
    pub fn prefix(mut self, prefix: &[u8]) -> Self {
        let mut bytes = [0; MAX_PREFIX];
        bytes[..prefix.len()].copy_from_slice(prefix);
        self.words[0] &= !(0xff << PREFIX_LEN_SHIFT);
        self.words[0] |= (prefix.len() as u64) << PREFIX_LEN_SHIFT;
        for (word, chunk) in self.words[4..7].iter_mut().zip(bytes.chunks_exact(8)) {
            let mut le = [0; 8];
            le.copy_from_slice(chunk);
            *word = u64::from_le_bytes(le);
        }
        self
    }

    /// Sends only: the 24 bytes of three little-endian words, in front of the local buffer.
    #[inline]
    pub const fn prefix_words(mut self, prefix: [u64; 3]) -> Self {
        self.words[0] &= !(0xff << PREFIX_LEN_SHIFT);
        self.words[0] |= (MAX_PREFIX as u64) << PREFIX_LEN_SHIFT;
        [self.words[4], self.words[5], self.words[6]] = prefix;
        self
    }

    /// What the completion carries.
    #[inline]
    pub const fn user_data(mut self, user_data: u64) -> Self {
        self.words[1] = user_data;
        self
    }

    /// No completion unless it fails.
    #[inline]
    pub const fn unsignaled(mut self) -> Self {
        self.words[0] |= FLAG_UNSIGNALED;
        self
    }
}

impl WorkRequest {
    /// Any entry at all; the device checks it. Whoever posts it vouches for plain memory it names.
    pub(crate) fn from_entry(entry: &Sqe) -> Self {
        Self {
            words: entry.to_words(),
        }
    }

    /// The entry it is, for [`crate::Endpoint::post_raw`] somewhere else.
    pub fn to_entry(&self) -> Sqe {
        Sqe::from_words(&self.words)
    }
}

impl Entry for WorkRequest {
    const WORDS: usize = SQE_WORDS;

    #[inline]
    fn store(&self, words: &[AtomicU64]) -> Option<()> {
        let words = words.first_chunk::<SQE_WORDS>()?;
        for (word, value) in words.iter().zip(self.words) {
            word.store(value, Ordering::Relaxed);
        }
        Some(())
    }

    #[inline]
    fn load(words: &[AtomicU64]) -> Option<Self> {
        let words = words.first_chunk::<SQE_WORDS>()?;
        let mut new = Self {
            words: [0; SQE_WORDS],
        };
        for (value, word) in new.words.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: AddressHandle = AddressHandle(0x1234_5678);
    const LOCAL: Buffer = Buffer {
        addr: 0x1000,
        key: 7,
        len: 8,
    };
    const REMOTE: Remote = Remote { addr: 0x2000, key: 9 };

    fn entry(request: WorkRequest) -> Sqe {
        Sqe::from_words(&request.words)
    }

    #[test]
    fn every_request_is_an_entry_the_device_accepts() {
        let all = [
            (WorkRequest::send(TO, LOCAL).prefix(b"prefix").imm(5), Op::Send),
            (WorkRequest::write(TO, LOCAL, REMOTE).imm(5), Op::Write),
            (WorkRequest::read(TO, LOCAL, REMOTE), Op::Read),
            (WorkRequest::fetch_add(TO, LOCAL, REMOTE, 1), Op::FetchAdd),
            (
                WorkRequest::compare_swap(TO, LOCAL, REMOTE, 1, 2),
                Op::CompareSwap,
            ),
        ];
        for (request, op) in all {
            let entry = entry(request.user_data(3).unsignaled());
            assert_eq!(entry.check(), Ok(op));
            assert_eq!((entry.ah, entry.user_data), (TO.0, 3));
            assert_eq!(
                (entry.local_addr, entry.local_key, entry.len),
                (LOCAL.addr, LOCAL.key, LOCAL.len)
            );
        }
    }

    #[test]
    fn arguments_are_where_the_device_looks_for_them() {
        let send = entry(
            WorkRequest::send(TO, LOCAL)
                .prefix(b"a prefix of 21 bytes.")
                .imm(5),
        );
        assert_eq!(
            &send.prefix()[..usize::from(send.prefix_len)],
            b"a prefix of 21 bytes."
        );
        assert_eq!((send.args[3], send.flags), (5, sqe_flags::IMM));
        let swap = entry(WorkRequest::compare_swap(TO, LOCAL, REMOTE, 1, 2));
        assert_eq!(swap.args, [REMOTE.addr, REMOTE.key, 2, 1]);
        let add = entry(WorkRequest::fetch_add(TO, LOCAL, REMOTE, 3));
        assert_eq!(add.args, [REMOTE.addr, REMOTE.key, 3, 0]);
    }

    #[test]
    fn words_are_the_prefix_of_their_bytes() {
        let words = [0x0102_0304_0506_0708, 9, u64::MAX];
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        assert_eq!(
            WorkRequest::send(TO, LOCAL).prefix(b"short").prefix_words(words),
            WorkRequest::send(TO, LOCAL).prefix(&bytes)
        );
    }

    #[test]
    fn a_prefix_replaces_the_one_before() {
        let send = WorkRequest::send(TO, LOCAL)
            .prefix(&[0xff; MAX_PREFIX])
            .prefix(&[1]);
        assert_eq!(
            entry(send).prefix(),
            entry(WorkRequest::send(TO, LOCAL).prefix(&[1])).prefix()
        );
    }
}
