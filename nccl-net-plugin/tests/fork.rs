//! Children of `fork`, as PyTorch's data loaders are.
#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test that cannot go on fails, and every call hands the plugin what its contract asks for"
)]

mod common;

use std::time::Duration;

use common::*;
use nccl_net_sys::*;
use usb4_nccl::ncclNetPlugin_v12 as NET;

/// Runs something in a child, which has a few seconds for it.
fn in_child(what: impl FnOnce() -> bool) {
    match unsafe { libc::fork() } {
        0 => {
            let good = what();
            unsafe { libc::_exit(i32::from(!good)) }
        }
        child => {
            let start = std::time::Instant::now();
            loop {
                let mut status = 0;
                match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
                    0 if start.elapsed() < HANG => std::thread::sleep(Duration::from_millis(1)),
                    0 => {
                        unsafe { libc::kill(child, libc::SIGKILL) };
                        panic!("the child hangs");
                    }
                    _ => {
                        assert!(
                            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
                            "{status:#x}"
                        );
                        return;
                    }
                }
            }
        }
    }
}

#[test]
fn a_child_may_call_anything_it_fails_politely_and_can_begin_anew_while_its_parent_goes_on() {
    let _alone = alone();
    let context = Context::new();
    let (tx, rx) = pair(context, context);
    let (source, target) = (Memory::new(tx, pattern(5000, 1)), Memory::new(rx, vec![0; 5000]));
    let pending = recv(&target, 0, 5000);
    let (_, mut handle) = context.listen();
    // Another thread is in the middle of calls.
    let busy = Context::new();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (tx, rx) = pair(busy, busy);
            let (source, target) = (Memory::new(tx, pattern(5000, 1)), Memory::new(rx, vec![0; 5000]));
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                wait_all(&[send(&source, 0, 100), recv(&target, 0, 5000)]);
            }
        });
        for _ in 0..20 {
            in_child(|| {
                let failed = |code| code == ncclSystemError;
                let mut count = 0;
                failed(unsafe { (NET.devices)(&mut count) })
                    && pending.test().is_err_and(failed)
                    && try_send(&source, 0, 100, 0).is_err_and(failed)
                    && try_recv(&target, 0, 100, 0).is_err_and(failed)
                    && context.try_connect(&mut handle).is_err_and(failed)
                    && failed(unsafe { (NET.deregMr)(tx.0, source.handle) })
                    && failed(unsafe { (NET.closeSend)(tx.0) })
                    && failed(context.finalize())
            });
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    in_child(|| {
        let new = Context::new();
        let (tx, rx) = pair(new, new);
        let (mine, target) = (Memory::new(tx, pattern(5000, 1)), Memory::new(rx, vec![0; 5000]));
        let sizes = wait_all(&[send(&mine, 0, 100), recv(&target, 0, 5000)]);
        // What was inherited stays wrong.
        let inherited = try_send(&source, 0, 100, 0);
        sizes == [100, 100] && inherited == Err(ncclSystemError) && new.finalize() == ncclSuccess
    });
    assert_eq!(wait_all(&[send(&source, 0, 100), pending]), [100, 100]);
    ok(context.finalize());
    ok(busy.finalize());
}
