//! Names for the endpoints that send to us.
//!
//! A receive completion names its sender with 32 bits. The name stays the same while an address keeps sending, and
//! is remembered after its flows are closed, until the place is needed for another address.

use usb4_engine::{EpAddr, Slab};

use crate::DeviceError;
use crate::id::{MAX_OBJECTS, join, next_generation, split};

/// Place of a sending endpoint's address (opaque).
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceSlot {
    addr: EpAddr,
    /// Open flows.
    flows: u32,
    /// Next in the same bucket, plus one; 0 ends the list.
    next: u32,
    generation: u16,
    used: bool,
}

/// The table: slots, and buckets (places of slots, plus one) that find them by address.
#[derive(Debug)]
pub(crate) struct Sources {
    slots: Slab<SourceSlot>,
    buckets: Slab<u32>,
    seed: u64,
    /// Where the search for a place begins.
    hand: usize,
}

impl Sources {
    /// `seed` keeps peers from choosing addresses that share a bucket.
    pub(crate) fn new(slots: Slab<SourceSlot>, buckets: Slab<u32>, seed: u64) -> Result<Self, DeviceError> {
        if slots.len() > MAX_OBJECTS || !buckets.len().is_power_of_two() {
            return Err(DeviceError::Storage);
        }
        Ok(Self {
            slots,
            buckets,
            seed,
            hand: 0,
        })
    }

    /// A flow from `addr` opens. `None` if all places have open flows.
    pub(crate) fn open(&mut self, addr: &EpAddr) -> Option<u32> {
        let index = match self.find(addr) {
            Some(index) => index,
            None => self.place(addr)?,
        };
        let slot = self.slots.get_mut(index)?;
        slot.flows = slot.flows.saturating_add(1);
        Some(join(u16::try_from(index).ok()?, slot.generation))
    }

    /// A flow from that source is closed.
    pub(crate) fn close(&mut self, src: u32) {
        let (index, generation) = split(src);
        if let Some(slot) = self
            .slots
            .get_mut(usize::from(index))
            .filter(|s| s.generation == generation)
        {
            slot.flows = slot.flows.saturating_sub(1);
        }
    }

    /// The address of a source.
    pub(crate) fn get(&self, src: u32) -> Option<EpAddr> {
        let (index, generation) = split(src);
        let slot = self.slots.get(usize::from(index))?;
        (slot.used && slot.generation == generation).then_some(slot.addr)
    }

    fn find(&self, addr: &EpAddr) -> Option<usize> {
        let mut next = *self.buckets.get(self.bucket(addr))?;
        while let Some(index) = (next as usize).checked_sub(1) {
            let slot = self.slots.get(index)?;
            if slot.addr == *addr {
                return Some(index);
            }
            next = slot.next;
        }
        None
    }

    /// Gives `addr` a place without open flows, the longest unchecked first.
    fn place(&mut self, addr: &EpAddr) -> Option<usize> {
        let count = self.slots.len();
        let start = self.hand;
        let index = (start..count)
            .chain(0..start.min(count))
            .find(|index| self.slots.get(*index).is_some_and(|slot| slot.flows == 0))?;
        self.hand = index.saturating_add(1);
        self.forget(index);
        let bucket = self.bucket(addr);
        let first = self.buckets.get_mut(bucket)?;
        let slot = self.slots.get_mut(index)?;
        *slot = SourceSlot {
            addr: *addr,
            flows: 0,
            next: *first,
            generation: next_generation(slot.generation),
            used: true,
        };
        *first = u32::try_from(index).ok()?.saturating_add(1);
        Some(index)
    }

    /// Takes a slot out of its bucket.
    fn forget(&mut self, index: usize) {
        let Some(slot) = self.slots.get(index).copied().filter(|slot| slot.used) else {
            return;
        };
        let bucket = self.bucket(&slot.addr);
        let me = index.saturating_add(1);
        let Some(mut next) = self.buckets.get(bucket).copied() else {
            return;
        };
        if next as usize == me {
            if let Some(first) = self.buckets.get_mut(bucket) {
                *first = slot.next;
            }
        } else {
            while let Some(other) = (next as usize)
                .checked_sub(1)
                .and_then(|at| self.slots.get_mut(at))
            {
                if other.next as usize == me {
                    other.next = slot.next;
                    break;
                }
                next = other.next;
            }
        }
        if let Some(slot) = self.slots.get_mut(index) {
            slot.used = false;
        }
    }

    fn bucket(&self, addr: &EpAddr) -> usize {
        let (low, high) = addr.node.halves();
        let ep = u64::from(addr.ep) | u64::from(addr.incarnation) << 32;
        let mut hash = self.seed;
        for word in [low, high, ep] {
            // The finaliser of SplitMix64.
            hash = (hash ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            hash ^= hash >> 31;
        }
        let mask = (self.buckets.len() as u64).saturating_sub(1);
        usize::try_from(hash & mask).unwrap_or(0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use usb4_engine::NodeId;

    use super::*;

    fn addr(n: u32) -> EpAddr {
        EpAddr {
            node: NodeId(1),
            ep: n,
            incarnation: n ^ 0x55,
        }
    }

    fn sources(slots: usize, buckets: usize) -> Sources {
        Sources::new(Slab::boxed(slots), Slab::boxed(buckets), 99).unwrap()
    }

    #[test]
    fn an_address_keeps_its_name_and_outlives_its_flows() {
        let mut sources = sources(4, 4);
        let name = sources.open(&addr(1)).unwrap();
        assert_eq!(sources.open(&addr(1)), Some(name));
        sources.close(name);
        sources.close(name);
        assert_eq!(sources.get(name), Some(addr(1)));
        assert_eq!(sources.open(&addr(1)), Some(name));
        assert_eq!(sources.get(0), None);
    }

    #[test]
    fn a_full_table_refuses_until_a_flow_closes_and_old_names_do_not_reach_new_addresses() {
        let mut sources = sources(3, 1);
        let names: std::vec::Vec<u32> = (0..3).map(|n| sources.open(&addr(n)).unwrap()).collect();
        assert_eq!(sources.open(&addr(9)), None);
        sources.close(names[1]);
        let new = sources.open(&addr(9)).unwrap();
        assert_eq!(sources.get(names[1]), None);
        assert_eq!(sources.get(new), Some(addr(9)));
        assert_eq!(sources.get(names[0]), Some(addr(0)));
        assert_eq!(sources.get(names[2]), Some(addr(2)));
    }

    #[test]
    fn random_use_agrees_with_a_plain_list() {
        let mut sources = sources(16, 8);
        let mut open: std::vec::Vec<(u32, u32)> = std::vec::Vec::new();
        let mut x = 1u64;
        for _ in 0..(if cfg!(miri) { 200 } else { 20_000 }) {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let n = u32::try_from(x >> 59).unwrap();
            if x & 1 << 40 == 0 && !open.is_empty() {
                let (_, name) = open.swap_remove(n as usize % open.len());
                sources.close(name);
            } else if let Some(name) = sources.open(&addr(n)) {
                open.push((n, name));
            }
            for (n, name) in &open {
                assert_eq!(sources.get(*name), Some(addr(*n)));
            }
        }
    }
}
