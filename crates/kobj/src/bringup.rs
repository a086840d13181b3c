//! Rail bring-up: control messages in, orders out.

use usb4_engine::{Action, DownReason, RailFsm, RailState};
use usb4_wire::Control;

use crate::abi::{
    Node, ORDER_DISABLE, ORDER_DOWN, ORDER_ENABLE, ORDER_NONE, ORDER_SEND, ORDER_UP, Order, Peer,
};
use crate::arena::Arena;
use crate::device::Core;
use crate::home::{crc32c, now, random};
use crate::links::local_info;

/// [`usb4_core_rail_event`]: the deadline has passed.
pub const RAIL_TIMER: u32 = 0;
/// [`usb4_core_rail_event`]: the paths are enabled.
pub const RAIL_PATHS_ENABLED: u32 = 1;
/// [`usb4_core_rail_event`]: the paths are disabled, or could not be enabled.
pub const RAIL_PATHS_DISABLED: u32 = 2;
/// [`usb4_core_rail_event`]: a frame with an unknown tag, `value`, has arrived.
pub const RAIL_STRANGE: u32 = 3;
/// [`usb4_core_rail_event`]: say BYE and end.
pub const RAIL_CLOSE: u32 = 4;
/// [`usb4_core_rail_event`]: the cable is gone.
pub const RAIL_ABORT: u32 = 5;

/// [`usb4_core_rail_event`]: show the join nonce `value` from now on (`usb4_home_rail_show`).
pub const RAIL_SHOW: u32 = 6;

/// [`usb4_core_rail_event`]: the peer answers nothing on the rail; again and again while that goes on.
pub const RAIL_SILENT: u32 = 7;

/// Bytes of memory a rail's state machine takes.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_size() -> usize {
    Arena::measure(|arena| arena.room::<RailFsm>())
}

/// A state machine that begins to offer, in the `size` bytes at `memory`; null if they are too few. `tx_hop` is the HopID
/// of this side's frames.
///
/// # Safety
/// They are writable, and the machine's until it is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_rail_new(
    core: &Core,
    memory: *mut u8,
    size: usize,
    tx_hop: u32,
) -> *mut RailFsm {
    // SAFETY: the caller gives the block.
    let room = unsafe { Arena::over(memory, size) }.and_then(|mut arena| arena.room::<RailFsm>());
    let Some(fsm) = room else {
        return core::ptr::null_mut();
    };
    let local = local_info(core.device.node(), tx_hop);
    // SAFETY: there is room for it.
    unsafe { fsm.write(RailFsm::new(now(), local, &mut random)) };
    fsm
}

/// Who says a control message. False if it is malformed.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_speaker(message: &[u8; 96], node: &mut Node) -> bool {
    let Ok(message) = Control::parse(message, crc32c) else {
        return false;
    };
    *node = message.body.node_id.into();
    true
}

/// A control message has come, from a host that is let in or is not ([`RailFsm::admit`]). False if it is malformed.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_control(fsm: &mut RailFsm, message: &[u8; 96], admitted: bool) -> bool {
    let Ok(message) = Control::parse(message, crc32c) else {
        return false;
    };
    fsm.admit(admitted);
    fsm.on_control(now(), &message, &mut random);
    true
}

/// Something else has happened.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_event(fsm: &mut RailFsm, what: u32, value: u64) {
    let now = now();
    match what {
        RAIL_TIMER => fsm.on_timer(now),
        RAIL_PATHS_ENABLED => fsm.paths_enabled(now),
        RAIL_PATHS_DISABLED => fsm.paths_disabled(now),
        RAIL_STRANGE => fsm.unknown_tag(now, value),
        RAIL_CLOSE => fsm.close(now),
        RAIL_ABORT => fsm.abort(now),
        RAIL_SILENT => fsm.silent(now),
        RAIL_SHOW => fsm.set_join(now, value, &mut random),
        _ => {}
    }
}

/// What to do next. Asked again until it is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_next(fsm: &mut RailFsm, order: &mut Order) {
    order.value = 0;
    order.kind = match fsm.poll_output() {
        None => ORDER_NONE,
        Some(Action::Send(control)) => {
            order.message = control.emit(crc32c);
            ORDER_SEND
        }
        Some(Action::EnablePaths { peer_hop }) => {
            order.value = peer_hop;
            ORDER_ENABLE
        }
        Some(Action::DisablePaths) => ORDER_DISABLE,
        Some(Action::Up(info)) => {
            order.peer = Peer::from(&info);
            ORDER_UP
        }
        Some(Action::Down(reason)) => {
            order.value = match reason {
                DownReason::Replaced => 1,
                DownReason::PeerClosed => 2,
                DownReason::PeerReset => 3,
                DownReason::Closed => 4,
            };
            ORDER_DOWN
        }
    };
}

/// When to call `usb4_core_rail_event` with [`RAIL_TIMER`], on the kernel's monotonic clock; `u64::MAX` for never.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_deadline(fsm: &RailFsm) -> u64 {
    fsm.deadline().unwrap_or(u64::MAX)
}

/// Whether the session is up.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_is_up(fsm: &RailFsm) -> bool {
    fsm.state() == RailState::Up
}

/// Whether the machine has ended, its paths are off, and it may be forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_is_closed(fsm: &RailFsm) -> bool {
    fsm.is_closed()
}

/// The lowest and the highest frame version that whoever refuses, or is refused, speaks.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_versions(fsm: &RailFsm, lowest: &mut u32, highest: &mut u32) {
    let (low, high) = fsm.refused_versions();
    (*lowest, *highest) = (low.into(), high.into());
}

/// Why this side or the peer refuses a session, as in `docs/spec/wire.md`; 0 if neither does.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_refused(fsm: &RailFsm) -> u32 {
    match fsm.state() {
        RailState::Refused(reason) => reason.code(),
        _ => 0,
    }
}
