//! The requests of a communicator: a slab of as many as NCCL may have in flight, and the order they were made in.

use super::id::REQUEST_GENERATION_MASK;

/// Requests of a communicator at a time: [`nccl_net_sys::NCCL_NET_MAX_REQUESTS`].
pub(crate) const WINDOW: usize = nccl_net_sys::NCCL_NET_MAX_REQUESTS;
const _: () = assert!(
    WINDOW == 32,
    "a request's slot has five bits, and `used` a bit per slot"
);

/// Requests in flight. Their places never move, and their names are not used again for a long time.
#[derive(Debug)]
pub(crate) struct Requests<T> {
    used: u32,
    generations: [u16; WINDOW],
    entries: [T; WINDOW],
}

impl<T: Copy + Default> Requests<T> {
    pub(crate) fn new() -> Self {
        Self {
            used: 0,
            generations: [0; WINDOW],
            entries: [T::default(); WINDOW],
        }
    }

    /// Its slot and generation; `None` if all are in flight.
    #[inline]
    pub(crate) fn insert(&mut self, request: T) -> Option<(u8, u16)> {
        let slot = self.used.trailing_ones();
        let entry = self.entries.get_mut(slot as usize)?;
        *entry = request;
        self.used |= 1 << slot;
        let slot = slot.to_le_bytes()[0];
        Some((slot, self.generations[usize::from(slot)]))
    }

    /// The request in a slot, if it is the one of that generation.
    #[inline]
    pub(crate) fn find(&mut self, slot: u8, generation: u16) -> Option<&mut T> {
        let there = self.used >> (slot & 31) & 1 == 1;
        let is_it = there && self.generations.get(usize::from(slot)) == Some(&generation);
        self.entries.get_mut(usize::from(slot)).filter(|_| is_it)
    }

    /// The request in a slot that is in use.
    #[inline]
    pub(crate) fn at(&mut self, slot: u8) -> &mut T {
        &mut self.entries[usize::from(slot) % WINDOW]
    }

    #[inline]
    pub(crate) fn generation(&self, slot: u8) -> u16 {
        self.generations[usize::from(slot) % WINDOW]
    }

    /// The request is no more.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u8) {
        self.used &= !(1 << (slot & 31));
        let generation = &mut self.generations[usize::from(slot) % WINDOW];
        *generation = generation.wrapping_add(1) & REQUEST_GENERATION_MASK;
    }

    /// All in flight.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let used = self.used;
        let there = move |slot: usize| used >> slot & 1 == 1;
        self.entries
            .iter()
            .enumerate()
            .filter_map(move |(slot, entry)| there(slot).then_some(entry))
    }
}

/// Slots in the order their requests were made.
#[derive(Debug, Default)]
pub(crate) struct Order {
    slots: [u8; WINDOW],
    first: u8,
    len: u8,
}

impl Order {
    #[inline]
    pub(crate) fn push(&mut self, slot: u8) {
        let at = usize::from(self.first) + usize::from(self.len);
        self.slots[at % WINDOW] = slot;
        self.len += 1;
    }

    /// The slot `ahead` places behind the first.
    #[inline]
    pub(crate) fn get(&self, ahead: u32) -> Option<u8> {
        let at = usize::from(self.first) + ahead as usize;
        (ahead < u32::from(self.len)).then(|| self.slots[at % WINDOW])
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u8> {
        let slot = self.get(0)?;
        self.first = (self.first + 1) % 32;
        self.len -= 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_done_is_not_the_next_one_in_its_slot() {
        let mut requests = Requests::new();
        let (slot, generation) = requests.insert(1).unwrap();
        requests.remove(slot);
        assert_eq!(requests.find(slot, generation), None);
        let (again, next) = requests.insert(2).unwrap();
        assert_eq!(again, slot);
        assert_eq!(requests.find(slot, generation), None);
        assert_eq!(requests.find(slot, next), Some(&mut 2));
    }

    #[test]
    fn the_thirty_third_request_is_not_taken() {
        let mut requests = Requests::new();
        for i in 0..32 {
            assert!(requests.insert(i).is_some());
        }
        assert_eq!(requests.insert(32), None);
        requests.remove(7);
        assert_eq!(requests.insert(33).unwrap().0, 7);
        assert_eq!(requests.iter().count(), 32);
    }

    #[test]
    fn slots_come_out_in_the_order_they_went_in() {
        let mut order = Order::default();
        for round in 0..50_u8 {
            for slot in 0..32 {
                order.push(slot ^ round & 31);
            }
            assert_eq!(order.get(31), Some(31 ^ round & 31));
            assert_eq!(order.get(32), None);
            for slot in 0..32 {
                assert_eq!(order.pop(), Some(slot ^ round & 31));
            }
            assert_eq!(order.pop(), None);
            order.push(0);
            order.pop();
        }
    }
}
