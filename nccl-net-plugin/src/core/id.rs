//! What C gets in place of pointers: numbers that name an object and stay wrong for ever when it is gone.
//!
//! Never followed, so that a stale or made-up one is an error and no crash. From the top: kind (4 bits), world (4: which
//! of the processes behind this one, see [`super::world`]), hub (8), place (20), generation (28). A request has 12 bits of
//! its communicator's generation, 11 of its own and a slot (5) instead of that last field.

use std::ffi::c_void;

use super::table::{GENERATION_BITS, INDEX_BITS, Key};
use super::wire::{halves, low16};

/// What a number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Context = 1,
    Listen = 2,
    Comm = 3,
    Region = 4,
    Request = 5,
    /// Not for C: work that is about a peer, in its completion.
    Probe = 6,
}

/// A number C holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64);

const KIND_SHIFT: u32 = 60;
const WORLD_SHIFT: u32 = 56;
const HUB_SHIFT: u32 = INDEX_BITS + GENERATION_BITS;
const COMM_GENERATION_SHIFT: u32 = 16;
const REQUEST_GENERATION_SHIFT: u32 = 5;

/// Bits of a communicator's generation in a request.
pub(crate) const COMM_GENERATION_MASK: u32 = 0xfff;
/// Bits of a request's own generation.
pub(crate) const REQUEST_GENERATION_MASK: u16 = 0x7ff;

impl Id {
    /// An object of a hub.
    pub(crate) fn new(kind: Kind, world: u8, hub: u8, key: Key) -> Self {
        Self(
            (kind as u64) << KIND_SHIFT
                | u64::from(world & 0xf) << WORLD_SHIFT
                | u64::from(hub) << HUB_SHIFT
                | u64::from(key.index) << GENERATION_BITS
                | u64::from(key.generation),
        )
    }

    /// The request in `slot` of a communicator.
    #[inline]
    pub(crate) fn request(world: u8, hub: u8, comm: Key, slot: u8, generation: u16) -> Self {
        let generation = u32::from(generation & REQUEST_GENERATION_MASK) << REQUEST_GENERATION_SHIFT
            | (comm.generation & COMM_GENERATION_MASK) << COMM_GENERATION_SHIFT
            | u32::from(slot & 31);
        Self::new(
            Kind::Request,
            world,
            hub,
            Key {
                index: comm.index,
                generation,
            },
        )
    }

    /// For C.
    #[inline]
    pub(crate) fn to_pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(usize::try_from(self.0).unwrap_or(0))
    }

    /// From C.
    #[inline]
    pub(crate) fn from_pointer(pointer: *mut c_void) -> Self {
        Self(pointer.addr() as u64)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    #[inline]
    pub(crate) const fn is(self, kind: Kind) -> bool {
        self.0 >> KIND_SHIFT == kind as u64
    }

    #[inline]
    pub(crate) const fn world(self) -> u8 {
        let [.., top] = self.0.to_le_bytes();
        top & 0xf
    }

    #[inline]
    pub(crate) const fn hub(self) -> u8 {
        let [_, _, _, _, _, _, hub, _] = self.0.to_le_bytes();
        hub
    }

    /// Where the object is.
    #[inline]
    pub(crate) const fn key(self) -> Key {
        let (low, high) = halves(self.0);
        Key {
            index: (low >> GENERATION_BITS | high << (32 - GENERATION_BITS)) & ((1 << INDEX_BITS) - 1),
            generation: low & ((1 << GENERATION_BITS) - 1),
        }
    }

    /// Of a request: the generation of its communicator as far as it is known, its slot and its own generation.
    #[inline]
    pub(crate) const fn request_parts(self) -> (u32, u8, u16) {
        let generation = self.key().generation;
        let [slot, ..] = generation.to_le_bytes();
        (
            generation >> COMM_GENERATION_SHIFT & COMM_GENERATION_MASK,
            slot & 31,
            low16(generation >> REQUEST_GENERATION_SHIFT) & REQUEST_GENERATION_MASK,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key {
        index: 0xabcde,
        generation: 0x9876543,
    };

    #[test]
    fn what_goes_to_c_comes_back() {
        let id = Id::from_pointer(Id::new(Kind::Comm, 0xf, 0xed, KEY).to_pointer());
        assert!(id.is(Kind::Comm) && !id.is(Kind::Request));
        assert_eq!((id.world(), id.hub(), id.key()), (0xf, 0xed, KEY));
    }

    #[test]
    fn a_request_names_its_communicator_and_its_slot() {
        let id = Id::request(3, 2, KEY, 31, 0xfabc);
        assert!(id.is(Kind::Request));
        assert_eq!((id.world(), id.hub(), id.key().index), (3, 2, KEY.index));
        assert_eq!(id.request_parts(), (0x543, 31, 0x2bc));
    }
}
