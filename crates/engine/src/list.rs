//! First-in-first-out lists threaded through the elements of a slab.

/// No element.
pub(crate) const NONE: u32 = u32::MAX;

/// The link of an element that is in no list.
pub(crate) const OUT: u32 = u32::MAX - 1;

/// An element that can be in one list per `L`. A new element's links are [`OUT`].
pub(crate) trait Linked<const L: usize> {
    /// The link of list `L`: the next element, [`NONE`] in the last one, [`OUT`] outside.
    fn link(&mut self) -> &mut u32;
}

/// The element at `index`.
#[inline]
pub(crate) fn at<T>(slab: &[T], index: u32) -> Option<&T> {
    slab.get(index as usize)
}

/// The element at `index`.
#[inline]
pub(crate) fn at_mut<T>(slab: &mut [T], index: u32) -> Option<&mut T> {
    slab.get_mut(index as usize)
}

/// A list through the elements of one slab, which every call must be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<const L: usize> {
    head: u32,
    tail: u32,
}

impl<const L: usize> Default for List<L> {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
        }
    }
}

impl<const L: usize> List<L> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// All ones exactly if it is empty: the bits of several lists are asked with one question.
    #[inline(always)]
    pub(crate) fn bits(&self) -> u32 {
        self.head
    }

    /// The first element.
    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The last element.
    #[inline]
    pub(crate) fn back(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    /// The element that is alone in the list.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<u32> {
        (self.head != NONE && self.head == self.tail).then_some(self.head)
    }

    /// Appends an element, unless it is in such a list already.
    #[inline]
    pub(crate) fn push<T: Linked<L>>(&mut self, slab: &mut [T], index: u32) {
        let Some(link) = at_mut(slab, index).map(Linked::link) else {
            return;
        };
        if *link != OUT {
            return;
        }
        *link = NONE;
        match at_mut(slab, self.tail) {
            Some(tail) => *tail.link() = index,
            None => self.head = index,
        }
        self.tail = index;
    }

    /// Puts an element first (free lists: what was used last is still in the cache).
    #[inline]
    pub(crate) fn push_front<T: Linked<L>>(&mut self, slab: &mut [T], index: u32) {
        let Some(link) = at_mut(slab, index).map(Linked::link) else {
            return;
        };
        if *link != OUT {
            return;
        }
        *link = self.head;
        if self.head == NONE {
            self.tail = index;
        }
        self.head = index;
    }

    /// Takes the element off that [`List::only`] has told.
    #[inline(always)]
    pub(crate) fn pop_only<T: Linked<L>>(&mut self, item: &mut T) {
        *item.link() = OUT;
        *self = Self::default();
    }

    /// Moves the first element to the front of another list of this kind, and returns it.
    #[inline(always)]
    pub(crate) fn pop_to<'a, T: Linked<L>>(
        &mut self,
        other: &mut Self,
        slab: &'a mut [T],
    ) -> Option<&'a mut T> {
        let index = self.head;
        let item = at_mut(slab, index)?;
        self.head = core::mem::replace(item.link(), other.head);
        if self.head == NONE {
            self.tail = NONE;
        }
        if other.head == NONE {
            other.tail = index;
        }
        other.head = index;
        Some(item)
    }

    /// Takes the first element off.
    #[inline]
    pub(crate) fn pop<T: Linked<L>>(&mut self, slab: &mut [T]) -> Option<u32> {
        let index = self.head;
        let item = at_mut(slab, index)?;
        self.head = core::mem::replace(item.link(), OUT);
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(index)
    }
}
