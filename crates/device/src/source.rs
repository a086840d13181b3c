//! Names for the endpoints that send to us.
//!
//! A receive completion names its sender with 32 bits. The name stays the same while an address keeps sending to a
//! client, and is remembered after its flows are closed, until the place is needed for another address. It is good for
//! that client only: whoever knows an endpoint's address can send to it.

use usb4_engine::{EpAddr, Slab};

use crate::id::{MAX_OBJECTS, join, next_generation, split};
use crate::{ClientId, DeviceError};

/// Place of a sending endpoint's address (opaque).
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceSlot {
    addr: EpAddr,
    /// Raw [`ClientId`] of the client it sends to.
    client: u32,
    /// Open flows.
    flows: u32,
    /// Next in the same bucket, plus one; 0 ends the list.
    next: u32,
    generation: u16,
    used: bool,
}

/// The table: slots, and buckets (places of slots, plus one) that find them by address and client.
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

    /// A flow from `addr` to an endpoint of a client's opens. `None` if all places have open flows.
    pub(crate) fn open(&mut self, client: ClientId, addr: &EpAddr) -> Option<u32> {
        let index = match self.find(client, addr) {
            Some(index) => index,
            None => self.place(client, addr)?,
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

    /// The address of a source of that client's.
    pub(crate) fn get(&self, client: ClientId, src: u32) -> Option<EpAddr> {
        let (index, generation) = split(src);
        let slot = self.slots.get(usize::from(index))?;
        let named = slot.used && slot.generation == generation && slot.client == client.0;
        named.then_some(slot.addr)
    }

    fn find(&self, client: ClientId, addr: &EpAddr) -> Option<usize> {
        let mut next = *self.buckets.get(self.bucket(client.0, addr))?;
        while let Some(index) = (next as usize).checked_sub(1) {
            let slot = self.slots.get(index)?;
            if slot.addr == *addr && slot.client == client.0 {
                return Some(index);
            }
            next = slot.next;
        }
        None
    }

    /// Gives `addr` a place without open flows, the longest unchecked first.
    fn place(&mut self, client: ClientId, addr: &EpAddr) -> Option<usize> {
        let count = self.slots.len();
        let start = self.hand;
        let index = (start..count)
            .chain(0..start.min(count))
            .find(|index| self.slots.get(*index).is_some_and(|slot| slot.flows == 0))?;
        self.hand = index.saturating_add(1);
        self.forget(index);
        let bucket = self.bucket(client.0, addr);
        let first = self.buckets.get_mut(bucket)?;
        let slot = self.slots.get_mut(index)?;
        *slot = SourceSlot {
            addr: *addr,
            client: client.0,
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
        let bucket = self.bucket(slot.client, &slot.addr);
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

    fn bucket(&self, client: u32, addr: &EpAddr) -> usize {
        let (low, high) = addr.node.halves();
        let ep = u64::from(addr.ep) | u64::from(addr.incarnation) << 32;
        let mut hash = self.seed;
        for word in [low, high, ep, u64::from(client)] {
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

    const ME: ClientId = ClientId(0x1_0000);
    const ANOTHER: ClientId = ClientId(0x1_0001);

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
        let name = sources.open(ME, &addr(1)).unwrap();
        assert_eq!(sources.open(ME, &addr(1)), Some(name));
        sources.close(name);
        sources.close(name);
        assert_eq!(sources.get(ME, name), Some(addr(1)));
        assert_eq!(sources.open(ME, &addr(1)), Some(name));
        assert_eq!(sources.get(ME, 0), None);
    }

    #[test]
    fn a_name_is_good_for_the_client_it_was_given_to() {
        let mut sources = sources(4, 1);
        let mine = sources.open(ME, &addr(1)).unwrap();
        assert_eq!(sources.get(ANOTHER, mine), None);
        let theirs = sources.open(ANOTHER, &addr(1)).unwrap();
        assert_ne!(theirs, mine);
        assert_eq!(sources.get(ME, theirs), None);
        sources.close(mine);
        assert_eq!(sources.get(ANOTHER, theirs), Some(addr(1)));
        assert_eq!(sources.open(ANOTHER, &addr(1)), Some(theirs));
    }

    #[test]
    fn a_full_table_refuses_until_a_flow_closes_and_old_names_do_not_reach_new_addresses() {
        let mut sources = sources(3, 1);
        let names: std::vec::Vec<u32> = (0..3).map(|n| sources.open(ME, &addr(n)).unwrap()).collect();
        assert_eq!(sources.open(ME, &addr(9)), None);
        sources.close(names[1]);
        let new = sources.open(ME, &addr(9)).unwrap();
        assert_eq!(sources.get(ME, names[1]), None);
        assert_eq!(sources.get(ME, new), Some(addr(9)));
        assert_eq!(sources.get(ME, names[0]), Some(addr(0)));
        assert_eq!(sources.get(ME, names[2]), Some(addr(2)));
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
            } else if let Some(name) = sources.open(ME, &addr(n)) {
                open.push((n, name));
            }
            for (n, name) in &open {
                assert_eq!(sources.get(ME, *name), Some(addr(*n)));
            }
        }
    }
}
