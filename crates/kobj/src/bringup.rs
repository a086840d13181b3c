//! Rail bring-up: control messages in and out.

use crate::home::{crc32c, random};
use usb4_engine::{Action, LocalInfo, RailFsm};
use usb4_wire::Control;

/// A new machine in `fsm`.
///
/// # Safety
/// `fsm` points to uninitialised memory for a [`RailFsm`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_rail_new(fsm: *mut RailFsm, now: u64, local: &LocalInfo) {
    // SAFETY: the caller promises room for it.
    unsafe { fsm.write(RailFsm::new(now, *local, &mut random)) }
}

/// A control message has come: `len` bytes. False if it is malformed.
///
/// # Safety
/// `message` is valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_rail_control(
    fsm: &mut RailFsm,
    now: u64,
    message: *const u8,
    len: usize,
) -> bool {
    // SAFETY: the caller promises `len` readable bytes.
    let bytes = unsafe { core::slice::from_raw_parts(message, len) };
    let Ok(message) = Control::parse(bytes, crc32c) else {
        return false;
    };
    fsm.on_control(now, &message, &mut random);
    true
}

/// What to do next; a message to send is written to `message`.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_next(
    fsm: &mut RailFsm,
    action: &mut Option<Action>,
    message: &mut [u8; 96],
) -> bool {
    *action = fsm.poll_output();
    if let Some(Action::Send(control)) = action {
        *message = control.emit(crc32c);
    }
    action.is_some()
}

/// Events other than messages.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_event(fsm: &mut RailFsm, now: u64, what: u32, value: u64) {
    match what {
        0 => fsm.on_timer(now),
        1 => fsm.paths_enabled(now),
        2 => fsm.paths_disabled(now),
        3 => fsm.set_join(now, value, &mut random),
        4 => fsm.unknown_tag(now, value),
        5 => fsm.close(now),
        _ => fsm.abort(now),
    }
}

/// When to call `usb4_core_rail_event` with 0 at the latest; 0 for never.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_deadline(fsm: &RailFsm) -> u64 {
    fsm.deadline().unwrap_or(0)
}

/// Whether the machine may be dropped.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_is_closed(fsm: &RailFsm) -> bool {
    fsm.is_closed()
}
