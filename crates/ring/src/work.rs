//! Work requests and the buffers they name.

/// Longest prefix of a send, in bytes.
pub const MAX_PREFIX: usize = 24;

const OP_SEND: u64 = 1;
const OP_WRITE: u64 = 2;
const OP_READ: u64 = 3;
const OP_FETCH_ADD: u64 = 4;
const OP_COMPARE_SWAP: u64 = 5;

const FLAG_IMM: u64 = 1 << 8;
const FLAG_UNSIGNALED: u64 = 2 << 8;
const PREFIX_LEN_SHIFT: u32 = 16;

/// An endpoint's handle of a peer's endpoint: see [`crate::Endpoint::address_handle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressHandle(pub(crate) u32);

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
    pub(crate) words: [u64; 8],
}

impl WorkRequest {
    #[inline]
    const fn new(op: u64, to: AddressHandle, local: Buffer) -> Self {
        let words = [
            op | (to.0 as u64) << 32,
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
        Self::new(OP_SEND, to, local)
    }

    /// RDMA write of `local` to `remote`.
    #[inline]
    pub const fn write(to: AddressHandle, local: Buffer, remote: Remote) -> Self {
        Self::new(OP_WRITE, to, local).remote(remote)
    }

    /// RDMA read of `remote` into `local`.
    #[inline]
    pub const fn read(to: AddressHandle, local: Buffer, remote: Remote) -> Self {
        Self::new(OP_READ, to, local).remote(remote)
    }

    /// Adds to 8 aligned bytes at `remote`. The old value is in the completion and, unless `local` is empty,
    /// in its 8 bytes.
    #[inline]
    pub const fn fetch_add(to: AddressHandle, local: Buffer, remote: Remote, add: u64) -> Self {
        let mut new = Self::new(OP_FETCH_ADD, to, local).remote(remote);
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
        let mut new = Self::new(OP_COMPARE_SWAP, to, local).remote(remote);
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
