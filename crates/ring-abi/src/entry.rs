//! Submission, receive and completion entries.

use core::fmt;

use crate::CqeStatus;
use crate::sync::{AtomicU64, Ordering};

/// Words of a submission entry (64 bytes).
pub const SQE_WORDS: usize = 8;
/// Words of a receive entry (32 bytes).
pub const RQE_WORDS: usize = 4;
/// Words of a completion entry (32 bytes).
pub const CQE_WORDS: usize = 4;
/// Local key of the posting process's own address space, where the device can reach it.
pub const LOCAL_PROCESS: u32 = 0;
/// Most bytes that can stand in front of a SEND's buffer.
pub const PREFIX_MAX: u8 = 24;
/// Longest message, read or write, in bytes (the wire's limit).
pub const MAX_MESSAGE: u32 = 1 << 30;

/// Flag bits of a submission entry.
pub mod sqe_flags {
    /// SEND and WRITE: `args[3]` is immediate data.
    pub const IMM: u8 = 1;
    /// Complete only if it fails.
    pub const UNSIGNALED: u8 = 2;
    /// Queue pairs: do not start before all reads and atomics posted before it on the queue pair are complete.
    pub const FENCE: u8 = 4;
    /// Queue pairs: the completion of the receive that a SEND, or WRITE with immediate, takes at the peer is solicited.
    pub const SOLICITED: u8 = 8;
    /// Queue pairs, SEND, WRITE and READ: the buffer is a list of [`crate::Piece`]s in the entry's slot. `local_key` says how
    /// many, `len` their bytes together, `local_addr` is 0.
    pub const LIST: u8 = 16;
    /// Queue pairs, SEND and WRITE: the `len` bytes themselves are in the entry's slot. `local_key` and `local_addr` are 0.
    pub const INLINE: u8 = 32;
    /// Queue pairs, SEND without [`IMM`]: `args[3]` is the remote key of a region of the peer's, which no peer may use any more.
    pub const INVALIDATE: u8 = 128;
}

/// Operation code of queue pairs' submission entries that are no message: peers may not use the region any more whose remote
/// key is `args[1]`. Done once everything before it on the queue pair has completed. It has no buffer.
pub const OP_INVALIDATE: u8 = 6;

/// Flag bits of a completion entry.
pub mod cqe_flags {
    /// `value` is immediate data.
    pub const IMM: u16 = 1;
    /// This completes a receive, not a submission.
    pub const RECV: u16 = 2;
    /// With [`RECV`]: the receive was taken by a WRITE with immediate; `len` bytes were written elsewhere.
    pub const WRITE_IMM: u16 = 4;
    /// Queue pairs, with [`RECV`]: the sender asked for a solicited completion.
    pub const SOLICITED: u16 = 8;
    /// Queue pairs, with [`RECV`]: the sender had a region of the receiver's invalidated, whose remote key is `value`.
    pub const INVALIDATED: u16 = 16;
}

/// Operation codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// A message into the peer's next receive. `args[0..3]` = prefix, `args[3]` = immediate.
    Send = 1,
    /// Local buffer to remote memory. `args` = remote address, remote key, 0, immediate.
    Write = 2,
    /// Remote memory to local buffer. `args` = remote address, remote key, 0, 0.
    Read = 3,
    /// Fetch-add on 8 aligned bytes. `args` = remote address, remote key, addend, 0.
    FetchAdd = 4,
    /// Compare-swap on 8 aligned bytes. `args` = remote address, remote key, swap, compare.
    CompareSwap = 5,
}

impl Op {
    /// The operation with this code, if there is one.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Send),
            2 => Some(Self::Write),
            3 => Some(Self::Read),
            4 => Some(Self::FetchAdd),
            5 => Some(Self::CompareSwap),
            _ => None,
        }
    }

    /// The code as it stands in an entry.
    #[inline]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// Something a queue holds: a fixed number of words, each written and read once.
pub trait Entry: Sized {
    /// Words per entry.
    const WORDS: usize;
    /// Writes the entry to its place; `None` if `words` is shorter than [`Self::WORDS`].
    fn store(&self, words: &[AtomicU64]) -> Option<()>;
    /// Reads every word of the entry exactly once; `None` if `words` is shorter than [`Self::WORDS`].
    fn load(words: &[AtomicU64]) -> Option<Self>;
}

/// Submission entry, 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sqe {
    /// [`Op`] code.
    pub op: u8,
    /// [`sqe_flags`].
    pub flags: u8,
    /// SEND: bytes of the prefix in `args[0..3]`, 0 to [`PREFIX_MAX`]. Else 0.
    pub prefix_len: u8,
    /// 0.
    pub reserved: u8,
    /// Address handle of the endpoint (0 on a connected endpoint).
    pub ah: u32,
    /// Handed back in the completion.
    pub user_data: u64,
    /// Address of the local buffer, in the address space of its region.
    pub local_addr: u64,
    /// Local key of the buffer's region, or [`LOCAL_PROCESS`].
    pub local_key: u32,
    /// Bytes of the local buffer. Atomics: 8, or 0 if the old value is wanted in the completion only.
    pub len: u32,
    /// By operation, see [`Op`].
    pub args: [u64; 4],
}

impl Sqe {
    /// The entry as words.
    #[inline]
    pub fn to_words(&self) -> [u64; SQE_WORDS] {
        let [a0, a1, a2, a3] = self.ah.to_le_bytes();
        let [g0, g1, g2, g3] = self.args;
        [
            u64::from_le_bytes([
                self.op,
                self.flags,
                self.prefix_len,
                self.reserved,
                a0,
                a1,
                a2,
                a3,
            ]),
            self.user_data,
            self.local_addr,
            pair(self.local_key, self.len),
            g0,
            g1,
            g2,
            g3,
        ]
    }

    /// The entry in `words`. Nothing is checked; see [`Self::check`].
    #[inline]
    pub fn from_words(words: &[u64; SQE_WORDS]) -> Self {
        let [w0, user_data, local_addr, w3, g0, g1, g2, g3] = *words;
        let [op, flags, prefix_len, reserved, a0, a1, a2, a3] = w0.to_le_bytes();
        let (local_key, len) = split(w3);
        Self {
            op,
            flags,
            prefix_len,
            reserved,
            ah: u32::from_le_bytes([a0, a1, a2, a3]),
            user_data,
            local_addr,
            local_key,
            len,
            args: [g0, g1, g2, g3],
        }
    }

    /// Checks what can be checked without knowing the endpoint: operation, flags, lengths and reserved fields.
    ///
    /// # Errors
    /// The first field found wrong.
    #[inline]
    pub fn check(&self) -> Result<Op, InvalidEntry> {
        let op = Op::from_code(self.op).ok_or(InvalidEntry::Operation)?;
        let imm_allowed = matches!(op, Op::Send | Op::Write);
        let known = sqe_flags::UNSIGNALED | if imm_allowed { sqe_flags::IMM } else { 0 };
        if self.flags & !known != 0 {
            return Err(InvalidEntry::Flags);
        }
        if self.reserved != 0 {
            return Err(InvalidEntry::Reserved);
        }
        let [_, _, g2, g3] = self.args;
        let no_imm = self.flags & sqe_flags::IMM == 0;
        let reserved_clear = match op {
            Op::Send => !no_imm || g3 == 0,
            Op::Write => g2 == 0 && (!no_imm || g3 == 0),
            Op::Read => g2 == 0 && g3 == 0,
            Op::FetchAdd => g3 == 0,
            Op::CompareSwap => true,
        };
        if !reserved_clear {
            return Err(InvalidEntry::Reserved);
        }
        let length_fits = match op {
            Op::Send => {
                self.prefix_len <= PREFIX_MAX
                    && self.len <= MAX_MESSAGE.saturating_sub(u32::from(self.prefix_len))
            }
            Op::Write | Op::Read => self.prefix_len == 0 && self.len <= MAX_MESSAGE,
            Op::FetchAdd | Op::CompareSwap => self.prefix_len == 0 && matches!(self.len, 0 | 8),
        };
        if !length_fits {
            return Err(InvalidEntry::Length);
        }
        Ok(op)
    }

    /// As [`Self::check`], for entries of queue pairs, which have five flags more; SOLICITED where it has no meaning is
    /// ignored. For messages only: not for [`OP_INVALIDATE`].
    ///
    /// # Errors
    /// The first field found wrong.
    pub fn check_verbs(&self) -> Result<Op, InvalidEntry> {
        use sqe_flags::{FENCE, INLINE, LIST, SOLICITED};
        let mut plain = *self;
        plain.flags &= !(FENCE | SOLICITED | LIST | INLINE);
        if self.flags & sqe_flags::INVALIDATE != 0 {
            if self.op != Op::Send.code() || self.flags & sqe_flags::IMM != 0 {
                return Err(InvalidEntry::Flags);
            }
            plain.flags &= !sqe_flags::INVALIDATE;
            let [.., key] = &mut plain.args;
            *key = 0;
        }
        let op = plain.check()?;
        let allowed = match op {
            Op::Send | Op::Write => LIST | INLINE,
            Op::Read => LIST,
            Op::FetchAdd | Op::CompareSwap => 0,
        };
        let elsewhere = self.flags & (LIST | INLINE);
        if elsewhere & !allowed != 0 || elsewhere == LIST | INLINE {
            return Err(InvalidEntry::Flags);
        }
        let unused =
            self.prefix_len != 0 || self.local_addr != 0 || self.local_key != 0 && elsewhere == INLINE;
        if elsewhere != 0 && unused {
            return Err(InvalidEntry::Reserved);
        }
        Ok(op)
    }

    /// The prefix of a SEND; the first [`Self::prefix_len`] bytes count.
    #[inline]
    pub fn prefix(&self) -> [u8; 24] {
        let [g0, g1, g2, _] = self.args;
        let mut bytes = [0; 24];
        for (to, from) in bytes.chunks_exact_mut(8).zip([g0, g1, g2]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        bytes
    }

    /// Puts up to [`PREFIX_MAX`] bytes in front of a SEND's buffer; the rest of the field is zeroed.
    ///
    /// # Errors
    /// `prefix` is longer than [`PREFIX_MAX`].
    pub fn set_prefix(&mut self, prefix: &[u8]) -> Result<(), InvalidEntry> {
        let len = u8::try_from(prefix.len()).map_err(|_| InvalidEntry::Length)?;
        let mut bytes = [0u8; 24];
        bytes
            .get_mut(..prefix.len())
            .ok_or(InvalidEntry::Length)?
            .copy_from_slice(prefix);
        for (to, from) in self.args.iter_mut().zip(bytes.chunks_exact(8)) {
            *to = from.try_into().map_or(0, u64::from_le_bytes);
        }
        self.prefix_len = len;
        Ok(())
    }
}

impl Entry for Sqe {
    const WORDS: usize = SQE_WORDS;

    #[inline]
    fn store(&self, words: &[AtomicU64]) -> Option<()> {
        store(words, &self.to_words())
    }

    #[inline]
    fn load(words: &[AtomicU64]) -> Option<Self> {
        load(words).map(|words| Self::from_words(&words))
    }
}

/// Receive entry, 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rqe {
    /// Handed back in the completion.
    pub user_data: u64,
    /// Address of the buffer, in the address space of its region.
    pub addr: u64,
    /// Local key of the buffer's region, or [`LOCAL_PROCESS`].
    pub local_key: u32,
    /// Bytes of the buffer.
    pub len: u32,
    /// 0; queue pairs: how many [`crate::Piece`]s in the entry's slot are the buffer, if it is a list. `len` is then their
    /// bytes together, `addr` and `local_key` are 0.
    pub reserved: u64,
}

impl Rqe {
    /// Of a queue pair: how many pieces the buffer has; 0 if it is not a list.
    #[inline]
    pub fn pieces(&self) -> u64 {
        self.reserved
    }

    /// The entry as words.
    #[inline]
    pub fn to_words(&self) -> [u64; RQE_WORDS] {
        [
            self.user_data,
            self.addr,
            pair(self.local_key, self.len),
            self.reserved,
        ]
    }

    /// The entry in `words`. Nothing is checked; see [`Self::check`].
    #[inline]
    pub fn from_words(words: &[u64; RQE_WORDS]) -> Self {
        let [user_data, addr, w2, reserved] = *words;
        let (local_key, len) = split(w2);
        Self {
            user_data,
            addr,
            local_key,
            len,
            reserved,
        }
    }

    /// Checks the reserved field. One of a queue pair may have a list there: see [`Self::pieces`].
    ///
    /// # Errors
    /// It is not zero.
    #[inline]
    pub fn check(&self) -> Result<(), InvalidEntry> {
        if self.reserved == 0 {
            Ok(())
        } else {
            Err(InvalidEntry::Reserved)
        }
    }
}

impl Entry for Rqe {
    const WORDS: usize = RQE_WORDS;

    #[inline]
    fn store(&self, words: &[AtomicU64]) -> Option<()> {
        store(words, &self.to_words())
    }

    #[inline]
    fn load(words: &[AtomicU64]) -> Option<Self> {
        load(words).map(|words| Self::from_words(&words))
    }
}

/// Completion entry, 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cqe {
    /// Of the submission or receive this completes.
    pub user_data: u64,
    /// [`Op`] code; for receives the operation that took it (SEND or WRITE).
    pub op: u8,
    /// [`CqeStatus`] code.
    pub status: u8,
    /// [`cqe_flags`].
    pub flags: u16,
    /// Bytes received, written, read or sent.
    pub len: u32,
    /// Immediate data, or the old value of an atomic. Else 0.
    pub value: u64,
    /// Receives: the device's name for the sending endpoint; of a datagram queue pair: the sending queue pair's number.
    /// Else 0.
    pub src: u32,
    /// Queue pairs: the number of the one whose entry this completes. Else 0.
    pub ep: u32,
}

impl Cqe {
    /// The entry as words.
    #[inline]
    pub fn to_words(&self) -> [u64; CQE_WORDS] {
        let [f0, f1] = self.flags.to_le_bytes();
        let [l0, l1, l2, l3] = self.len.to_le_bytes();
        [
            self.user_data,
            u64::from_le_bytes([self.op, self.status, f0, f1, l0, l1, l2, l3]),
            self.value,
            pair(self.src, self.ep),
        ]
    }

    /// The entry in `words`.
    #[inline]
    pub fn from_words(words: &[u64; CQE_WORDS]) -> Self {
        let [user_data, w1, value, w3] = *words;
        let [op, status, f0, f1, l0, l1, l2, l3] = w1.to_le_bytes();
        let (src, ep) = split(w3);
        Self {
            user_data,
            op,
            status,
            flags: u16::from_le_bytes([f0, f1]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            value,
            src,
            ep,
        }
    }

    /// The status, if the code is known.
    pub fn status(&self) -> Option<CqeStatus> {
        CqeStatus::from_code(self.status)
    }
}

impl Entry for Cqe {
    const WORDS: usize = CQE_WORDS;

    #[inline]
    fn store(&self, words: &[AtomicU64]) -> Option<()> {
        store(words, &self.to_words())
    }

    #[inline]
    fn load(words: &[AtomicU64]) -> Option<Self> {
        load(words).map(|words| Self::from_words(&words))
    }
}

/// What is wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidEntry {
    /// Unknown operation.
    Operation,
    /// A flag that is unknown or has no meaning for the operation.
    Flags,
    /// A reserved or unused field is not zero.
    Reserved,
    /// A length beyond its limit.
    Length,
}

impl fmt::Display for InvalidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operation => "unknown operation",
            Self::Flags => "unknown flag, or one this operation does not have",
            Self::Reserved => "a reserved field is not zero",
            Self::Length => "a length is beyond its limit",
        })
    }
}

impl core::error::Error for InvalidEntry {}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline]
fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

#[inline]
fn store<const N: usize>(words: &[AtomicU64], values: &[u64; N]) -> Option<()> {
    let words = words.first_chunk::<N>()?;
    for (word, value) in words.iter().zip(values) {
        word.store(*value, Ordering::Relaxed);
    }
    Some(())
}

#[inline]
fn load<const N: usize>(words: &[AtomicU64]) -> Option<[u64; N]> {
    let words = words.first_chunk::<N>()?;
    let mut values = [0; N];
    for (value, word) in values.iter_mut().zip(words) {
        *value = word.load(Ordering::Relaxed);
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send() -> Sqe {
        Sqe {
            op: Op::Send.code(),
            len: 64,
            ..Sqe::default()
        }
    }

    #[test]
    fn entries_survive_their_words() {
        let mut sqe = Sqe {
            op: 1,
            flags: 3,
            prefix_len: 0,
            reserved: 0,
            ah: 0xdead_beef,
            user_data: u64::MAX,
            local_addr: 0x1122_3344_5566_7788,
            local_key: 7,
            len: 9,
            args: [1, 2, 3, 4],
        };
        sqe.set_prefix(b"a prefix of 21 bytes.").unwrap();
        assert_eq!(Sqe::from_words(&sqe.to_words()), sqe);
        assert_eq!(&sqe.prefix()[..21], b"a prefix of 21 bytes.");
        let rqe = Rqe {
            user_data: 1,
            addr: 2,
            local_key: 3,
            len: 4,
            reserved: 5,
        };
        assert_eq!(Rqe::from_words(&rqe.to_words()), rqe);
        let cqe = Cqe {
            user_data: 1,
            op: 2,
            status: 3,
            flags: 4,
            len: 5,
            value: 6,
            src: 7,
            ep: 8,
        };
        assert_eq!(Cqe::from_words(&cqe.to_words()), cqe);
    }

    #[test]
    fn an_unknown_operation_is_invalid() {
        for op in [0, 6, 255] {
            assert_eq!(Sqe { op, ..send() }.check(), Err(InvalidEntry::Operation));
        }
    }

    #[test]
    fn unknown_flags_and_an_immediate_on_a_read_are_invalid() {
        assert_eq!(Sqe { flags: 4, ..send() }.check(), Err(InvalidEntry::Flags));
        let read = Sqe {
            op: Op::Read.code(),
            flags: sqe_flags::IMM,
            ..send()
        };
        assert_eq!(read.check(), Err(InvalidEntry::Flags));
    }

    #[test]
    fn flags_of_queue_pairs_are_invalid_on_others() {
        for flags in [sqe_flags::FENCE, sqe_flags::SOLICITED, 12, 14] {
            let entry = Sqe { flags, ..send() };
            assert_eq!(entry.check(), Err(InvalidEntry::Flags));
            assert_eq!(entry.check_verbs(), Ok(Op::Send));
        }
        let entry = Sqe { flags: 64, ..send() };
        assert_eq!(entry.check_verbs(), Err(InvalidEntry::Flags));
        let long = Sqe {
            len: MAX_MESSAGE + 1,
            ..send()
        };
        assert_eq!(long.check_verbs(), Err(InvalidEntry::Length));
    }

    #[test]
    fn only_a_message_of_a_queue_pair_without_immediate_data_invalidates() {
        let entry = Sqe {
            flags: sqe_flags::INVALIDATE,
            args: [0, 0, 0, 0x1234],
            ..send()
        };
        assert_eq!(entry.check(), Err(InvalidEntry::Flags));
        assert_eq!(entry.check_verbs(), Ok(Op::Send));
        let flags = sqe_flags::INVALIDATE | sqe_flags::IMM;
        let both = Sqe { flags, ..entry };
        assert_eq!(both.check_verbs(), Err(InvalidEntry::Flags));
        let op = Op::Write.code();
        assert_eq!(Sqe { op, ..entry }.check_verbs(), Err(InvalidEntry::Flags));
        let op = OP_INVALIDATE;
        assert_eq!(Sqe { op, ..send() }.check(), Err(InvalidEntry::Operation));
    }

    #[test]
    fn a_list_or_inline_data_is_for_queue_pairs_and_for_what_has_a_buffer() {
        use sqe_flags::{INLINE, LIST};
        let of = |op: Op, flags| Sqe {
            op: op.code(),
            flags,
            len: 8,
            ..Sqe::default()
        };
        for flags in [LIST, INLINE] {
            assert_eq!(of(Op::Send, flags).check(), Err(InvalidEntry::Flags));
            assert_eq!(of(Op::Send, flags).check_verbs(), Ok(Op::Send));
            assert_eq!(of(Op::Write, flags).check_verbs(), Ok(Op::Write));
            assert_eq!(of(Op::FetchAdd, flags).check_verbs(), Err(InvalidEntry::Flags));
        }
        assert_eq!(of(Op::Read, LIST).check_verbs(), Ok(Op::Read));
        assert_eq!(of(Op::Read, INLINE).check_verbs(), Err(InvalidEntry::Flags));
        assert_eq!(
            of(Op::Send, LIST | INLINE).check_verbs(),
            Err(InvalidEntry::Flags)
        );
        let list = Sqe {
            local_key: 3,
            ..of(Op::Send, LIST)
        };
        assert_eq!(list.check_verbs(), Ok(Op::Send));
        let wrong = [
            Sqe {
                prefix_len: 1,
                ..list
            },
            Sqe {
                local_addr: 1,
                ..list
            },
            Sqe {
                flags: INLINE,
                ..list
            },
        ];
        for entry in wrong {
            assert_eq!(entry.check_verbs(), Err(InvalidEntry::Reserved));
        }
    }

    #[test]
    fn reserved_fields_that_are_set_are_invalid() {
        assert_eq!(
            Sqe {
                reserved: 1,
                ..send()
            }
            .check(),
            Err(InvalidEntry::Reserved)
        );
        assert_eq!(
            Sqe {
                args: [0, 0, 0, 1],
                ..send()
            }
            .check(),
            Err(InvalidEntry::Reserved)
        );
        let write = Sqe {
            op: Op::Write.code(),
            args: [0, 0, 1, 0],
            ..send()
        };
        assert_eq!(write.check(), Err(InvalidEntry::Reserved));
        assert_eq!(
            Rqe {
                reserved: 1,
                ..Rqe::default()
            }
            .check(),
            Err(InvalidEntry::Reserved)
        );
    }

    #[test]
    fn lengths_beyond_the_limit_are_invalid() {
        assert_eq!(
            Sqe {
                len: MAX_MESSAGE + 1,
                ..send()
            }
            .check(),
            Err(InvalidEntry::Length)
        );
        assert_eq!(
            Sqe {
                prefix_len: 25,
                ..send()
            }
            .check(),
            Err(InvalidEntry::Length)
        );
        assert_eq!(
            Sqe {
                prefix_len: 1,
                len: MAX_MESSAGE,
                ..send()
            }
            .check(),
            Err(InvalidEntry::Length)
        );
        let atomic = Sqe {
            op: Op::FetchAdd.code(),
            len: 4,
            ..send()
        };
        assert_eq!(atomic.check(), Err(InvalidEntry::Length));
        assert_eq!(send().set_prefix(&[0; 25]), Err(InvalidEntry::Length));
    }
}
