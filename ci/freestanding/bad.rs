//! A crate with everything that the freestanding gate must find.
#![no_std]

unsafe extern "C" {
    fn usb4_core_may_panic() -> !;
    fn usb4_home_fill(at: *mut u8);
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never linked, so never called.
    unsafe { usb4_core_may_panic() }
}

#[unsafe(no_mangle)]
pub extern "C" fn indexes(table: &[u8; 4], at: usize) -> u8 {
    table[at]
}

#[unsafe(no_mangle)]
pub extern "C" fn multiplies_floats(a: &mut f64) {
    *a *= 1.5;
}

#[unsafe(no_mangle)]
pub extern "C" fn divides_128_bits(a: &mut u128, b: &u128) {
    *a = a.checked_div(*b).unwrap_or(0);
}

#[unsafe(no_mangle)]
pub extern "C" fn takes_much_stack() -> u8 {
    let mut block = [0_u8; 1100];
    // SAFETY: never linked, so never called.
    unsafe { usb4_home_fill(block.as_mut_ptr()) };
    block[7]
}

#[unsafe(no_mangle)]
pub extern "C" fn recurses(n: u64) -> u64 {
    let mut block = [0_u8; 16];
    // SAFETY: never linked, so never called.
    unsafe { usb4_home_fill(block.as_mut_ptr()) };
    if n == 0 { 1 } else { recurses(n ^ u64::from(block[3])) ^ n }
}

#[unsafe(no_mangle)]
pub extern "C" fn branches_indirectly(f: extern "C" fn(), g: extern "C" fn()) {
    f();
    g();
}
