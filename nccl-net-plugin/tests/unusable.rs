//! A host without a usable device: loud, with one line that says what to do. A program of its own: it changes the
//! environment.
#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test that cannot go on fails, and nothing else runs here"
)]

mod common;

use common::*;
use nccl_net_sys::*;

#[test]
fn init_fails_with_one_warning_that_says_what_to_do_and_works_when_that_is_done() {
    let _alone = alone();
    let good = device();
    for (name, value, code, why) in [
        (
            "USB4_DEVICE",
            "/dev/usb4ring-that-is-not-there",
            ncclSystemError,
            "usb4ring-that-is-not-there",
        ),
        ("USB4_DEVICE", "hard:ware", ncclInvalidUsage, "bad device name"),
        (
            "USB4_NCCL_EAGER",
            "many",
            ncclInvalidUsage,
            "USB4_NCCL_EAGER=many is not a number",
        ),
        ("USB4_NCCL_SPEED", "0", ncclInvalidUsage, "USB4_NCCL_SPEED=0"),
    ] {
        unsafe { std::env::set_var(name, value) };
        assert_eq!(Context::try_new().unwrap_err(), code);
        assert_eq!(unsafe { (usb4_nccl::ncclNetPlugin_v8.init)(the_logger()) }, code);
        let told = warnings("");
        assert_eq!(told.len(), 2, "one each: {told:?}");
        assert!(told.iter().all(|line| line.contains(why)), "{told:?}");
        unsafe { std::env::remove_var(name) };
        unsafe { std::env::set_var("USB4_DEVICE", good) };
    }
    let context = Context::new();
    let (tx, rx) = pair(context, context);
    close_send(tx);
    close_recv(rx);
    ok(context.finalize());
}
