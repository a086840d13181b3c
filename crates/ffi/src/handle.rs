//! Handles C holds: a typed way out and back.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// A boxed `T` that C knows as a pointer to `C`, where `C` is the first field of `T` (a libfabric `fid`), or
/// any opaque type.
///
/// # Safety
/// A type that names itself here as `Handle<Self, C>` and hands out pointers made by [`Handle::into_raw`]
/// must, if C looks behind the pointer, be `repr(C)` with a `C` as its first field.
pub struct Handle<T, C>(PhantomData<(*const T, *const C)>);

impl<T, C> Handle<T, C> {
    /// Gives a boxed object to C.
    pub fn into_raw(object: Box<T>) -> *mut C {
        Box::into_raw(object).cast()
    }

    /// The object behind a pointer from C; `None` for NULL.
    ///
    /// # Safety
    /// A pointer that is not NULL came from [`Handle::into_raw`] of this `T` and was not given to
    /// [`Handle::free`]; it stays valid for `'a`.
    #[inline]
    pub unsafe fn get<'a>(raw: *mut C) -> Option<&'a T> {
        // SAFETY: promised by the caller.
        NonNull::new(raw.cast::<T>()).map(|p| unsafe { p.as_ref() })
    }

    /// Takes the object back from C; `None` for NULL.
    ///
    /// # Safety
    /// As [`Handle::get`], and nobody uses the object any more.
    pub unsafe fn free(raw: *mut C) -> Option<Box<T>> {
        // SAFETY: promised by the caller: it is the pointer of a box that was leaked by `into_raw`.
        NonNull::new(raw.cast::<T>()).map(|p| unsafe { Box::from_raw(p.as_ptr()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Object {
        head: u64,
        tail: String,
    }

    #[test]
    fn an_object_goes_to_c_and_comes_back() {
        let raw: *mut u64 = Handle::<Object, u64>::into_raw(Box::new(Object {
            head: 7,
            tail: "x".into(),
        }));
        // SAFETY: `raw` was just made by `into_raw` and is freed once, at the end.
        unsafe {
            assert_eq!(*raw, 7);
            assert_eq!(
                Handle::<Object, u64>::get(raw).map(|o| o.tail.as_str()),
                Some("x")
            );
            assert_eq!(Handle::<Object, u64>::free(raw).map(|o| o.head), Some(7));
        }
    }

    #[test]
    fn null_is_nothing() {
        // SAFETY: NULL is allowed.
        unsafe {
            assert!(Handle::<Object, u64>::get(std::ptr::null_mut()).is_none());
            assert!(Handle::<Object, u64>::free(std::ptr::null_mut()).is_none());
        }
    }
}
