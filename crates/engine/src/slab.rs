//! Memory that is handed over once and never grows.

use core::ops::{Deref, DerefMut};

#[cfg(any(feature = "alloc", test))]
use alloc::{boxed::Box, vec::Vec};

/// A fixed run of elements the engine keeps its state in. The kernel lends memory it has allocated itself; user
/// space lets the slab own a box.
#[derive(Debug)]
pub enum Slab<T: 'static> {
    /// Memory of somebody else, lent for good.
    Lent(&'static mut [T]),
    /// Memory of its own.
    #[cfg(any(feature = "alloc", test))]
    Owned(Box<[T]>),
}

impl<T> Slab<T> {
    /// No elements.
    pub fn empty() -> Self {
        Self::Lent(&mut [])
    }

    /// `len` default elements in memory of its own.
    #[cfg(any(feature = "alloc", test))]
    pub fn boxed(len: usize) -> Self
    where
        T: Default,
    {
        let mut elements = Vec::with_capacity(len);
        elements.resize_with(len, T::default);
        Self::Owned(elements.into_boxed_slice())
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<T> Deref for Slab<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::Lent(elements) => elements,
            #[cfg(any(feature = "alloc", test))]
            Self::Owned(elements) => elements,
        }
    }
}

impl<T> DerefMut for Slab<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Lent(elements) => elements,
            #[cfg(any(feature = "alloc", test))]
            Self::Owned(elements) => elements,
        }
    }
}
