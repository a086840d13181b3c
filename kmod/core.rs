//! Root of the kernel object: `usb4-kobj` and the panic hook.
//!
//! The hook's only callee is never defined. What could panic would therefore not link, which is how the gate
//! and Kbuild see it.
#![no_std]

pub use usb4_kobj::*;

unsafe extern "C" {
    fn usb4_core_may_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never linked, so never called.
    unsafe { usb4_core_may_panic() }
}
