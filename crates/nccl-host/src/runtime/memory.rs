//! Device and pinned memory: anonymous pages, and a table of what is where.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ptr;

/// What an allocation stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory of this GPU.
    Device(i32),
    /// Pinned host memory.
    Host,
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// Its first byte.
    pub start: usize,
    /// Bytes, a multiple of the page size.
    pub len: usize,
    /// What it stands for.
    pub kind: Kind,
}

const PAGE: usize = 4096;

static ALLOCATIONS: Mutex<BTreeMap<usize, Allocation>> = Mutex::new(BTreeMap::new());

/// `len` bytes of zeroes, at least a page; null if there is no memory.
#[must_use]
pub fn allocate(len: usize, kind: Kind) -> *mut u8 {
    let Some(len) = len.max(1).checked_next_multiple_of(PAGE) else {
        return ptr::null_mut();
    };
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    let address = start.addr();
    ALLOCATIONS.lock().insert(
        address,
        Allocation {
            start: address,
            len,
            kind,
        },
    );
    start.cast()
}

/// Gives back what [`allocate`] returned; anything else is left alone, and `false` is returned.
///
/// # Safety
/// Nobody uses the memory any more.
pub unsafe fn free(start: *mut u8) -> bool {
    let Some(allocation) = ALLOCATIONS.lock().remove(&start.addr()) else {
        return false;
    };
    // SAFETY: the pages are a mapping of ours that the table just gave up, and the caller vouches that they are unused.
    unsafe { libc::munmap(start.cast(), allocation.len) == 0 }
}

/// The allocation that holds `address`.
#[must_use]
pub fn find(address: usize) -> Option<Allocation> {
    let table = ALLOCATIONS.lock();
    let (_, last) = table.range(..=address).next_back()?;
    (address - last.start < last.len).then_some(*last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_inside_an_allocation_is_found_and_one_behind_it_is_not() {
        let start = allocate(5000, Kind::Device(0));
        let found = find(start.addr() + 8191).unwrap();
        assert_eq!((found.start, found.len), (start.addr(), 8192));
        assert_eq!(found.kind, Kind::Device(0));
        assert!(find(start.addr() + 8192).is_none_or(|other| other.start != start.addr()));
        // SAFETY: only this test knows the memory.
        assert!(unsafe { free(start) });
        assert!(find(start.addr()).is_none_or(|other| other.start != start.addr()));
    }

    #[test]
    fn what_was_never_allocated_is_not_freed() {
        let mut word = 0u64;
        // SAFETY: the address is not in the table, so nothing is given back.
        assert!(!unsafe { free(ptr::from_mut(&mut word).cast()) });
    }

    #[test]
    fn an_absurd_length_is_refused() {
        assert!(allocate(usize::MAX - 3, Kind::Host).is_null());
    }
}
