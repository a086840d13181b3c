//! Objects of verbs: a structure of libibverbs, to which applications and the library have pointers, and ours behind it.

use std::cell::UnsafeCell;
use std::mem;

use rdma_core_sys::{ibv_ah, ibv_pd, ibv_srq, verbs_cq, verbs_device, verbs_mr, verbs_qp};

/// A structure of C's that may be all zeros.
///
/// # Safety
/// It may.
pub(crate) unsafe trait Zeroed {}

// SAFETY: integers, pointers and nullable function pointers.
unsafe impl Zeroed for ibv_ah {}
// SAFETY: as above.
unsafe impl Zeroed for ibv_pd {}
// SAFETY: as above.
unsafe impl Zeroed for ibv_srq {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_cq {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_device {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_mr {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_qp {}

/// `C`, as libibverbs knows the object by a pointer to it, and `P`, once the object is made.
#[repr(C)]
pub(crate) struct Object<C, P> {
    /// The library and applications read and write it.
    verbs: UnsafeCell<C>,
    parts: Option<P>,
}

impl<C: Zeroed, P> Object<C, P> {
    /// A new one, which stays where it is until [`Object::free`].
    pub(crate) fn alloc() -> *mut Self {
        Box::into_raw(Box::new(Self {
            // SAFETY: by the trait's contract.
            verbs: UnsafeCell::new(unsafe { mem::zeroed() }),
            parts: None,
        }))
    }

    /// The library's part.
    ///
    /// # Safety
    /// `object` is one of [`Object::alloc`], not freed.
    pub(crate) unsafe fn verbs(object: *mut Self) -> *mut C {
        // SAFETY: the caller's promise; no reference is made.
        unsafe { UnsafeCell::raw_get(&raw const (*object).verbs) }
    }

    /// Gives it our part.
    ///
    /// # Safety
    /// As [`Object::verbs`], and nobody has a reference to its parts.
    pub(crate) unsafe fn complete(object: *mut Self, parts: P) {
        // SAFETY: the caller's promise.
        unsafe { (*object).parts = Some(parts) };
    }

    /// Our part of the object that libibverbs knows as `verbs`; none of one that was not made to its end, or of null.
    ///
    /// # Safety
    /// `verbs` is null or a pointer that [`Object::verbs`] has returned, to `C` or the structure it begins with, and the
    /// object is not freed as long as the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn parts<'a, V>(verbs: *mut V) -> Option<&'a P> {
        let object = verbs.cast::<Self>();
        if object.is_null() {
            return None;
        }
        // SAFETY: the caller's promise: `verbs` is the first field.
        let parts: &'a Option<P> = unsafe { &(*object).parts };
        parts.as_ref()
    }

    /// Frees it.
    ///
    /// # Safety
    /// As [`Object::parts`], not null, and nobody uses it any more.
    pub(crate) unsafe fn free<V>(verbs: *mut V) {
        // SAFETY: the caller's promise: it is the box that `alloc` has leaked.
        drop(unsafe { Box::from_raw(verbs.cast::<Self>()) });
    }
}
