//! Tables of objects C knows by number: a number is good for one object and never for a later one in its place.

/// Bits of an object's place.
pub(crate) const INDEX_BITS: u32 = 20;

/// Bits of an object's generation.
pub(crate) const GENERATION_BITS: u32 = 28;

/// A place in a table, and which of the objects that have been there is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Key {
    /// As it goes over the cable: 16 bits of each.
    pub(crate) const fn wire(self) -> u32 {
        self.index & 0xffff | self.generation << 16
    }
}

/// Objects.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    max: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    /// For at most `max` objects. Objects of tables with other `first`s have other generations for a long time.
    pub(crate) fn new(max: u32, first: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            max: max.min(1 << INDEX_BITS),
            generation: first,
        }
    }

    /// Takes an object in; gives it back if there is no room.
    pub(crate) fn insert(&mut self, value: T) -> Result<Key, T> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max as usize => {
                self.slots.push(Slot {
                    generation: 0,
                    value: None,
                });
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
            None => return Err(value),
        };
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation & ((1 << GENERATION_BITS) - 1);
        self.slots[index as usize] = Slot {
            generation,
            value: Some(value),
        };
        Ok(Key { index, generation })
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        slot.value.as_ref().filter(|_| slot.generation == key.generation)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        let is_it = slot.generation == key.generation;
        slot.value.as_mut().filter(|_| is_it)
    }

    /// The object a peer means by [`Key::wire`].
    #[inline]
    pub(crate) fn find_wire(&self, wire: u32) -> Option<Key> {
        self.find(wire & 0xffff, wire >> 16, 0xffff)
    }

    /// The object in a place, if these bits of its generation are as said.
    #[inline]
    pub(crate) fn find(&self, index: u32, generation: u32, mask: u32) -> Option<Key> {
        let slot = self.slots.get(index as usize)?;
        (slot.value.is_some() && slot.generation & mask == generation).then_some(Key {
            index,
            generation: slot.generation,
        })
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        self.free.push(key.index);
        self.slots.get_mut(key.index as usize)?.value.take()
    }

    /// All objects.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(index, slot)| {
            let generation = slot.generation;
            slot.value
                .as_mut()
                .map(|value| (Key { index, generation }, value))
        })
    }

    /// Keys of the objects `wanted` accepts.
    pub(crate) fn keys(&mut self, wanted: impl Fn(&T) -> bool) -> Vec<Key> {
        self.iter_mut()
            .filter_map(|(key, value)| wanted(value).then_some(key))
            .collect()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.max as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_an_object_that_is_gone_finds_nothing_even_when_its_place_is_taken() {
        let mut table = Table::new(1, 7);
        let first = table.insert("a").unwrap();
        assert_eq!(table.insert("b"), Err("b"));
        assert_eq!(table.remove(first), Some("a"));
        assert_eq!((table.remove(first), table.get(first)), (None, None));
        let second = table.insert("c").unwrap();
        assert_eq!(second.index, first.index);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&"c")));
        assert_eq!(table.find_wire(first.wire()), None);
        assert_eq!(table.find_wire(second.wire()), Some(second));
    }
}
