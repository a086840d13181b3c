//! A pool of objects named by index, with lists threaded through them. It grows by doubling and never
//! shrinks, so the steady state allocates nothing.

/// No index.
pub(crate) const NIL: u32 = u32::MAX;

/// Objects by index; freed ones are reused, last freed first.
pub(crate) struct Slab<T> {
    entries: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            entries: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
        }
    }

    /// Puts an object in. The index stays its name until [`Slab::free`].
    #[inline]
    pub(crate) fn insert(&mut self, object: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = object;
                index
            }
            None => self.grow(object),
        }
    }

    #[cold]
    fn grow(&mut self, object: T) -> u32 {
        // 2^32 objects of this size do not fit a machine.
        let index = u32::try_from(self.entries.len()).unwrap_or(NIL);
        self.entries.push(object);
        // A free index always has room.
        self.free.reserve(self.entries.len() - self.free.len());
        index
    }

    /// An index whose object is whatever was there before, or the default: the caller sets what it needs.
    #[inline]
    pub(crate) fn claim(&mut self) -> u32
    where
        T: Default,
    {
        match self.free.pop() {
            Some(index) => index,
            None => self.grow(T::default()),
        }
    }

    /// Gives the index back. The object stays in place until the index is used again.
    #[inline]
    pub(crate) fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Objects in use.
    pub(crate) fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Indices that exist, in use or not.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(NIL)
    }

    /// All objects, also those not in use any more.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.entries[index as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.entries[index as usize]
    }
}

/// Neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

impl Links {
    pub(crate) const NONE: Self = Self { prev: NIL, next: NIL };
}

/// A doubly linked list through a slab; `links` picks which of an object's links it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) head: u32,
    tail: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL };

    #[inline]
    pub(crate) fn push<T>(&mut self, slab: &mut Slab<T>, index: u32, links: impl Fn(&mut T) -> &mut Links) {
        *links(&mut slab[index]) = Links {
            prev: self.tail,
            next: NIL,
        };
        match self.tail {
            NIL => self.head = index,
            tail => links(&mut slab[tail]).next = index,
        }
        self.tail = index;
    }

    #[inline]
    pub(crate) fn remove<T>(&mut self, slab: &mut Slab<T>, index: u32, links: impl Fn(&mut T) -> &mut Links) {
        let Links { prev, next } = *links(&mut slab[index]);
        match prev {
            NIL => self.head = next,
            prev => links(&mut slab[prev]).next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => links(&mut slab[next]).prev = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(list: &List, slab: &Slab<(u8, Links)>) -> Vec<u8> {
        let mut seen = Vec::new();
        let mut at = list.head;
        while at != NIL {
            seen.push(slab[at].0);
            at = slab[at].1.next;
        }
        seen
    }

    #[test]
    fn removal_at_either_end_and_within_keeps_the_order() {
        let mut slab = Slab::with_capacity(4);
        let mut list = List::EMPTY;
        let indices: Vec<u32> = (0..5).map(|n| slab.insert((n, Links::NONE))).collect();
        for index in &indices {
            list.push(&mut slab, *index, |e| &mut e.1);
        }
        for (gone, rest) in [(2, vec![0, 1, 3, 4]), (0, vec![1, 3, 4]), (4, vec![1, 3])] {
            list.remove(&mut slab, indices[gone], |e| &mut e.1);
            assert_eq!(order(&list, &slab), rest);
        }
        list.push(&mut slab, indices[2], |e| &mut e.1);
        assert_eq!(order(&list, &slab), [1, 3, 2]);
    }

    #[test]
    fn freed_indices_are_used_again() {
        let mut slab = Slab::with_capacity(0);
        let a = slab.insert(1);
        slab.free(a);
        assert_eq!((slab.insert(2), slab[a], slab.in_use()), (a, 2, 1));
    }
}
