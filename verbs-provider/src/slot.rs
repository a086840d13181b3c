//! Requests with more than one buffer, or with inline data: what goes into the slots behind a queue's entries.

use std::ffi::c_int;

use rdma_core_sys::*;
use usb4_ring::raw::{MAX_INLINE, MAX_PIECES, Op, PREFIX_MAX, Piece, Rqe, Slots, Sqe};

use crate::send::{Kind, Rules, set_buffer};

/// Flags of an entry that has something in its slot.
pub(crate) mod flag {
    /// The pieces of a list.
    pub(crate) const LIST: u8 = 16;
    /// The data.
    pub(super) const INLINE: u8 = 32;
}

/// Words of the largest slot.
const WORDS: usize = MAX_INLINE as usize / 8;
const _: () = assert!(WORDS * 8 >= MAX_PIECES as usize * 16);

/// What goes into a slot.
#[derive(Debug)]
pub(crate) struct Words {
    words: [u64; WORDS],
    count: usize,
}

impl Words {
    fn new() -> Self {
        Self {
            words: [0; WORDS],
            count: 0,
        }
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.words[..self.count]
    }

    fn put(&mut self, words: &[u64]) -> Result<(), c_int> {
        let end = self.count + words.len();
        let room = self.words.get_mut(self.count..end).ok_or(libc::EINVAL)?;
        room.copy_from_slice(words);
        self.count = end;
        Ok(())
    }
}

/// Whether [`send`] has to be asked for a request's buffers.
#[inline]
pub(crate) fn is_needed(wr: &ibv_send_wr) -> bool {
    let several = wr.send_flags & IBV_SEND_INLINE != 0 || !matches!(wr.num_sge, 0 | 1);
    several && wr.opcode != IBV_WR_LOCAL_INV
}

/// The list at `list`.
///
/// # Errors
/// It is longer than the queue pair's may be.
///
/// # Safety
/// There are `count` elements, which nobody writes to meanwhile.
unsafe fn elements<'a>(list: *const ibv_sge, count: usize, slots: Slots) -> Result<&'a [ibv_sge], c_int> {
    match count {
        0 => Ok(&[]),
        // As other providers say it of sends.
        _ if count > slots.pieces() as usize => Err(libc::ENOMEM),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
    }
}

fn pieces(list: &[ibv_sge], words: &mut Words) -> Result<u64, c_int> {
    let mut sum = 0;
    for sge in list {
        let piece = Piece {
            addr: sge.addr,
            local_key: sge.lkey,
            len: sge.length,
        };
        words.put(&piece.to_words())?;
        sum += u64::from(sge.length);
    }
    Ok(sum)
}

/// Gives a request the buffers of a list, and returns what goes into its slot.
///
/// # Errors
/// There are more than its queue pair's requests may have.
///
/// # Safety
/// `list` has `count` elements.
pub(crate) unsafe fn set_list(
    rules: &Rules,
    sqe: &mut Sqe,
    list: *const ibv_sge,
    count: usize,
) -> Result<Words, c_int> {
    // SAFETY: the caller's promise.
    let list = unsafe { elements(list, count, rules.sends)? };
    let mut words = Words::new();
    match list {
        [] => set_buffer(sqe, 0, 0, 0),
        [only] => set_buffer(sqe, only.addr, only.length, only.lkey),
        list => {
            let sum = pieces(list, &mut words)?;
            // More than fits is longer than any message.
            let len = u32::try_from(sum).unwrap_or(u32::MAX);
            let count = u32::try_from(count).unwrap_or(0);
            (sqe.local_addr, sqe.local_key, sqe.len) = (0, count, len);
            sqe.flags |= flag::LIST;
        }
    }
    Ok(words)
}

/// Inline data, put together.
pub(crate) struct Inline {
    bytes: [u8; MAX_INLINE as usize],
    len: usize,
    most: usize,
}

impl Inline {
    pub(crate) fn new(rules: &Rules) -> Self {
        Self {
            bytes: [0; MAX_INLINE as usize],
            len: 0,
            most: rules.sends.inline() as usize,
        }
    }

    /// Adds `len` bytes at `addr` of this process.
    ///
    /// # Errors
    /// The queue pair's requests have no room for as many.
    ///
    /// # Safety
    /// They are there, and nobody writes to them meanwhile.
    pub(crate) unsafe fn add(&mut self, addr: u64, len: usize) -> Result<(), c_int> {
        if len == 0 {
            return Ok(());
        }
        if len > self.most - self.len {
            return Err(libc::ENOMEM);
        }
        let start = std::ptr::with_exposed_provenance::<u8>(usize::try_from(addr).unwrap_or(0));
        // SAFETY: the caller's promise, and there is room.
        unsafe { std::ptr::copy_nonoverlapping(start, self.bytes[self.len..].as_mut_ptr(), len) };
        self.len += len;
        Ok(())
    }

    /// Gives a request these bytes, and returns what goes into its slot.
    ///
    /// # Errors
    /// The operation takes none.
    pub(crate) fn set(&self, rules: &Rules, sqe: &mut Sqe) -> Result<Words, c_int> {
        let is_send = sqe.op == Op::Send.code();
        if !is_send && sqe.op != Op::Write.code() {
            return Err(libc::EINVAL);
        }
        let mut words = Words::new();
        set_buffer(sqe, 0, 0, 0);
        if self.len == 0 {
            return Ok(words);
        }
        if is_send && rules.kind != Kind::Ud && self.len <= usize::from(PREFIX_MAX) {
            // There is room in the entry.
            sqe.set_prefix(&self.bytes[..self.len])
                .map_err(|_| libc::EINVAL)?;
            return Ok(words);
        }
        sqe.flags |= flag::INLINE;
        sqe.len = u32::try_from(self.len).unwrap_or(0);
        for word in self.bytes.chunks_exact(8).take(self.len.div_ceil(8)) {
            words.put(&[word.try_into().map_or(0, u64::from_le_bytes)])?;
        }
        Ok(words)
    }
}

/// Gives the entry of a work request its buffers, and returns what goes into its slot.
///
/// # Errors
/// It has more than a request of its queue pair may have.
///
/// # Safety
/// As for [`crate::send::entry`].
#[inline(never)]
pub(crate) unsafe fn send(rules: &Rules, sqe: &mut Sqe, wr: &ibv_send_wr) -> Result<Words, c_int> {
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        // SAFETY: the caller's promise.
        return unsafe { set_list(rules, sqe, wr.sg_list, count) };
    }
    let mut inline = Inline::new(rules);
    // SAFETY: the caller's promise.
    for sge in unsafe { elements(wr.sg_list, count, rules.sends)? } {
        // SAFETY: as above.
        unsafe { inline.add(sge.addr, sge.length as usize)? };
    }
    inline.set(rules, sqe)
}

/// Gives the entry of a receive its list, and returns what goes into its slot.
///
/// # Errors
/// It is longer than the queue pair's may be.
///
/// # Safety
/// The list has as many elements as the request says.
#[inline(never)]
pub(crate) unsafe fn receive(slots: Slots, rqe: &mut Rqe, wr: &ibv_recv_wr) -> Result<Words, c_int> {
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    // SAFETY: the caller's promise.
    // Most providers say this, not `ENOMEM`, of a receive.
    let list = unsafe { elements(wr.sg_list, count, slots) }.map_err(|_| libc::EINVAL)?;
    let mut words = Words::new();
    let sum = pieces(list, &mut words)?;
    rqe.len = u32::try_from(sum).map_err(|_| libc::EINVAL)?;
    rqe.reserved = count as u64;
    Ok(words)
}
