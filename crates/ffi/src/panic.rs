//! No panic ever unwinds into C.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::log::has_sink;
use crate::{Level, log};

/// What a function returns to C after a panic, where its type alone says so.
pub trait PanicValue {
    /// The value.
    fn panic_value() -> Self;
}

impl PanicValue for () {
    fn panic_value() -> Self {}
}

impl<T> PanicValue for *const T {
    fn panic_value() -> Self {
        std::ptr::null()
    }
}

impl<T> PanicValue for *mut T {
    fn panic_value() -> Self {
        std::ptr::null_mut()
    }
}

impl<T> PanicValue for Option<T> {
    fn panic_value() -> Self {
        None
    }
}

/// Runs the body of an exported function; after a panic its type's [`PanicValue`] goes to C.
#[inline]
pub fn boundary<T: PanicValue>(body: impl FnOnce() -> T) -> T {
    caught(body).unwrap_or_else(T::panic_value)
}

/// Runs the body of an exported function; after a panic `on_panic` goes to C.
#[inline(always)]
pub fn boundary_or<T>(on_panic: T, body: impl FnOnce() -> T) -> T {
    caught(body).unwrap_or(on_panic)
}

#[inline(always)]
fn caught<T>(body: impl FnOnce() -> T) -> Option<T> {
    // The state behind a caught panic is that of the failed call; the plugins' locks do not poison, and each
    // call leaves its state valid before it calls anything that may panic.
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Sends panic messages of this library to the log sink instead of standard error, which belongs to the
/// application; without a sink they go where they went before. A plugin has its own copy of the standard
/// library, so this touches no panic of its host.
pub fn log_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if has_sink() {
                log(Level::Error, format_args!("internal error: {info}"));
            } else {
                before(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_value_of_its_type() {
        assert!(boundary(|| -> *mut u8 { panic!("pointer") }).is_null());
        assert_eq!(boundary(|| -> Option<u8> { panic!("option") }), None);
        boundary(|| -> () { panic!("unit") });
    }

    #[test]
    fn a_panic_becomes_the_value_given() {
        assert_eq!(boundary_or(-5, || panic!("number")), -5);
    }

    #[test]
    fn without_a_panic_the_body_decides() {
        assert_eq!(boundary_or(-5, || 7), 7);
    }
}
