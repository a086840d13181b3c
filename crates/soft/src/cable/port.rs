//! The cable as the device sees it: TX slots are slots of our region, RX tokens slots of the neighbour's.

use std::ptr;

use usb4_device::Port;
use usb4_engine::{Post, RxToken, TxSlot};

use super::{Cable, SLOT};
use crate::crc::crc32c;
use crate::home::Memory;

// The device calls a port from `service`, `receive_frames`, `remove_link` and their like, and those only whoever
// drives the device calls (see `core.rs` and `keeper`); it lets go of one half before it borrows another.
impl Port<Memory> for Cable {
    #[inline]
    fn write(&self, slot: TxSlot, at: u16, bytes: &[u8]) {
        let Some(to) = self.outgoing(slot.0, usize::from(at), bytes.len()) else {
            return;
        };
        // SAFETY: within our slot, which the engine does not touch while it is being filled by this thread.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    #[inline]
    fn gather(&self, slot: TxSlot, at: u16, len: u16, mem: &Memory, offset: u64) {
        let Some(to) = self.outgoing(slot.0, usize::from(at), usize::from(len)) else {
            return;
        };
        // SAFETY: as in `write`; the source is `len` bytes within a region (checked by the device), which is
        // never part of a cable.
        unsafe { ptr::copy_nonoverlapping(mem.at(offset), to.as_ptr(), usize::from(len)) };
    }

    fn seal(&self, slot: TxSlot, from: u16, to: u16) {
        let (from, to) = (usize::from(from), usize::from(to));
        let Some(payload) = self.outgoing(slot.0, from, to.saturating_sub(from)) else {
            return;
        };
        // SAFETY: within our slot, to which only this thread writes at the moment; the neighbour cannot.
        let payload = unsafe { std::slice::from_raw_parts(payload.as_ptr(), to.saturating_sub(from)) };
        let crc = crc32c(0, payload);
        if let Ok(at) = u16::try_from(to) {
            self.write(slot, at, &crc.to_le_bytes());
        }
    }

    #[inline]
    fn post(&self, post: &Post, header: &[u8; 40]) {
        self.write(post.slot, 0, header);
        // SAFETY: see `impl Port for Cable`.
        unsafe { self.sender() }.send(post.slot.0, post.len);
    }

    #[inline]
    fn scatter(&self, token: RxToken, at: u16, len: u16, mem: &Memory, offset: u64) {
        let Ok(slot) = u16::try_from(token.0) else { return };
        let Some(from) = self.arrived(slot, usize::from(at), usize::from(len)) else {
            return;
        };
        // SAFETY: the source is within the neighbour's region, which it cannot shrink; the destination is `len`
        // bytes within a region (checked by the device), which is never part of a cable.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), mem.at(offset), usize::from(len)) };
    }

    #[inline]
    fn must_kick(&self) -> bool {
        // SAFETY: see `impl Port for Cable`.
        unsafe { self.has_news() }
    }

    #[inline]
    fn kick(&self) {
        self.ring_sleeper();
    }

    #[inline]
    fn release(&self, token: RxToken) {
        if let Ok(slot) = u16::try_from(token.0) {
            // SAFETY: see `impl Port for Cable`.
            unsafe { self.receiver() }.release(slot);
        }
    }
}

impl Cable {
    /// The address of `len` bytes at `at` in our slot `slot`.
    #[inline]
    fn outgoing(&self, slot: u16, at: usize, len: usize) -> Option<ptr::NonNull<u8>> {
        if at.checked_add(len)? > SLOT {
            return None;
        }
        let start = self.slot(slot)?;
        // SAFETY: within the slot.
        Some(unsafe { start.add(at) })
    }
}
