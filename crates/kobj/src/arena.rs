//! Blocks of memory from C, cut into what Rust keeps in them.

use usb4_engine::Slab;

/// Alignment of a block's start, and the largest of what is cut from it: a cache line. `kvzalloc` promises 8 only.
const ALIGN: usize = 64;

/// Cuts a block from its start. Without a block it only measures: the same cuts, made first without one, say how large
/// the block must be.
pub(crate) struct Arena {
    /// Null while measuring.
    base: *mut u8,
    size: usize,
    used: usize,
}

impl Arena {
    /// Measures.
    fn measuring() -> Self {
        Self {
            base: core::ptr::null_mut(),
            size: usize::MAX,
            used: 0,
        }
    }

    /// Cuts the `size` bytes at `base`.
    ///
    /// # Safety
    /// They are writable and nobody else's until all that is cut from them has been dropped or forgotten.
    pub(crate) unsafe fn over(base: *mut u8, size: usize) -> Option<Self> {
        let skip = base.align_offset(ALIGN);
        let size = size.checked_sub(skip)?;
        Some(Self {
            base: base.wrapping_add(skip),
            size,
            used: 0,
        })
    }

    /// Bytes a block needs for what `cut` cuts; 0 if no block will do.
    pub(crate) fn measure<T>(cut: impl FnOnce(&mut Self) -> Option<T>) -> usize {
        let mut arena = Self::measuring();
        match cut(&mut arena) {
            Some(_) => arena.used.saturating_add(ALIGN),
            None => 0,
        }
    }

    /// Elements, each a default. `None` if there is no room. Nothing but empty slabs while measuring.
    pub(crate) fn slab<T: Default>(&mut self, count: usize) -> Option<Slab<T>> {
        let at = self.cut(size_of::<T>().checked_mul(count)?, align_of::<T>())?;
        if self.base.is_null() {
            return Some(Slab::empty());
        }
        let first = at.cast::<T>();
        for index in 0..count {
            // SAFETY: `cut` has found room for `count` elements here; nobody else uses the block.
            unsafe { first.add(index).write(T::default()) };
        }
        // SAFETY: just initialised; by the contract of `over` they stay until dropped or forgotten.
        Some(Slab::Lent(unsafe {
            core::slice::from_raw_parts_mut(first, count)
        }))
    }

    /// Room for one value, not initialised. Null while measuring.
    pub(crate) fn room<T>(&mut self) -> Option<*mut T> {
        Some(self.cut(size_of::<T>(), align_of::<T>())?.cast())
    }

    fn cut(&mut self, bytes: usize, align: usize) -> Option<*mut u8> {
        if align > ALIGN {
            return None;
        }
        let at = self.used.checked_next_multiple_of(align)?;
        let end = at.checked_add(bytes)?;
        if end > self.size {
            return None;
        }
        self.used = end;
        Some(if self.base.is_null() {
            self.base
        } else {
            self.base.wrapping_add(at)
        })
    }
}
