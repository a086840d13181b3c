//! What is owed to peers when a process exits and has closed nothing: confirmations of messages it has received. The
//! device sends them a little later than it could, and with the process they would be gone: a peer would see its
//! message fail although it was received.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use usb4_ring::Device;

use crate::fabric::Shared;

/// How long confirmations may be owed: well above the delay devices allow themselves (tens of microseconds).
pub(crate) const CONFIRM: Duration = Duration::from_millis(1);

/// And how many calls for progress it takes at least until a device has looked at the clock, on a machine so busy that
/// all that time may pass between two of them.
pub(crate) const CONFIRM_CALLS: u32 = 64;

/// The fabrics that are open, and the process that opened them.
static OPEN: Mutex<Vec<(Weak<Shared>, u32)>> = Mutex::new(Vec::new());

/// From now on the fabric's device is looked after at exit.
pub(crate) fn watch(fabric: &Arc<Shared>) {
    let mut open = OPEN.lock();
    open.retain(|(fabric, _)| fabric.strong_count() > 0);
    open.push((Arc::downgrade(fabric), std::process::id()));
}

/// Has the devices of fabrics that are still open send what they owe. Other threads may be anywhere, or, in a child of
/// fork, gone: no lock is waited for, and of the objects only devices are used, which any thread may drive.
pub(crate) fn settle() {
    let Some(open) = OPEN.try_lock() else { return };
    let me = std::process::id();
    for (fabric, owner) in open.iter() {
        if *owner == me
            && let Some(fabric) = fabric.upgrade()
            && let Some(device) = fabric.try_device()
        {
            drive(&device);
        }
    }
}

fn drive(device: &Device) {
    let start = Instant::now();
    let mut calls = 0;
    while calls < CONFIRM_CALLS || start.elapsed() < CONFIRM {
        device.progress();
        calls += 1;
    }
}
