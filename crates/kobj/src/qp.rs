//! Queue pairs: what verbs make of endpoints. Numbers are those of the kernel's `ib_verbs.h`.

use usb4_device::{
    Access, ClientId, CqId, EndpointId, QpAttr as Change, QpConfig, QpEvent, QpInfo, QpKind, QpState,
    SrqConfig,
};
use usb4_engine::NodeId;
use usb4_ring_abi::Slots;

use crate::abi::{EpParams, Node, QpAttr, SrqParams};
use crate::arena::Arena;
use crate::device::Core;
use crate::errno::{EINVAL, errno, outcome};
use crate::home::now;
use crate::objects::{cut_ep, pages};

/// [`EpParams::kind`]: unreliable datagram, with number 0.
pub const QP_SMI: u32 = 0;
/// [`EpParams::kind`]: unreliable datagram, with number 1.
pub const QP_GSI: u32 = 1;
/// [`EpParams::kind`]: reliable connection.
pub const QP_RC: u32 = 2;
/// [`EpParams::kind`]: unreliable connection.
pub const QP_UC: u32 = 3;
/// [`EpParams::kind`]: unreliable datagram.
pub const QP_UD: u32 = 4;

/// [`QpAttr::state`]: see [`QpState`].
pub const QPS_RESET: u32 = 0;
/// See [`QPS_RESET`].
pub const QPS_INIT: u32 = 1;
/// See [`QPS_RESET`].
pub const QPS_RTR: u32 = 2;
/// See [`QPS_RESET`].
pub const QPS_RTS: u32 = 3;
/// See [`QPS_RESET`].
pub const QPS_SQD: u32 = 4;
/// See [`QPS_RESET`].
pub const QPS_SQE: u32 = 5;
/// See [`QPS_RESET`].
pub const QPS_ERR: u32 = 6;

/// [`QpAttr::mask`]: `state`.
pub const QP_STATE: u32 = 1;
/// [`QpAttr::mask`]: `access`.
pub const QP_ACCESS: u32 = 8;
/// [`QpAttr::mask`]: `qkey`.
pub const QP_QKEY: u32 = 64;
/// [`QpAttr::mask`]: `node`; counts together with [`QP_DEST_QPN`].
pub const QP_AV: u32 = 128;
/// [`QpAttr::mask`]: `timeout`.
pub const QP_TIMEOUT: u32 = 512;
/// [`QpAttr::mask`]: `retry_cnt`.
pub const QP_RETRY_CNT: u32 = 1024;
/// [`QpAttr::mask`]: `rnr_retry`.
pub const QP_RNR_RETRY: u32 = 2048;
/// [`QpAttr::mask`]: `max_rd_atomic`.
pub const QP_MAX_RD_ATOMIC: u32 = 8192;
/// [`QpAttr::mask`]: `min_rnr_timer`.
pub const QP_MIN_RNR_TIMER: u32 = 32768;
/// [`QpAttr::mask`]: `max_dest_rd_atomic`.
pub const QP_MAX_DEST_RD_ATOMIC: u32 = 131072;
/// [`QpAttr::mask`]: `dest_qpn`.
pub const QP_DEST_QPN: u32 = 1048576;

/// `usb4_home_qp_event`: see [`QpEvent`].
pub const QP_FATAL: u32 = 1;
/// See [`QP_FATAL`].
pub const QP_REQ_ERR: u32 = 2;
/// See [`QP_FATAL`].
pub const QP_ACCESS_ERR: u32 = 3;
/// See [`QP_FATAL`].
pub const QP_COMM_EST: u32 = 4;
/// See [`QP_FATAL`].
pub const QP_SQ_DRAINED: u32 = 5;
/// Of a shared receive queue: see [`QpEvent`].
pub const SRQ_ERR: u32 = 14;
/// Of a shared receive queue: see [`QpEvent`].
pub const SRQ_LIMIT: u32 = 15;
/// See [`QP_FATAL`].
pub const QP_LAST_WQE: u32 = 16;

/// The number of an event.
pub(crate) fn event(event: QpEvent) -> u32 {
    match event {
        QpEvent::Fatal => QP_FATAL,
        QpEvent::Request => QP_REQ_ERR,
        QpEvent::Access => QP_ACCESS_ERR,
        QpEvent::Established => QP_COMM_EST,
        QpEvent::Drained => QP_SQ_DRAINED,
        QpEvent::Corrupt => SRQ_ERR,
        QpEvent::Limit => SRQ_LIMIT,
        QpEvent::LastReceive => QP_LAST_WQE,
    }
}

/// What it can do, and the number it is to have.
fn kind(number: u32) -> Option<(QpKind, Option<u16>)> {
    match number {
        QP_SMI => Some((QpKind::Ud, Some(0))),
        QP_GSI => Some((QpKind::Ud, Some(1))),
        QP_RC => Some((QpKind::Rc, None)),
        QP_UC => Some((QpKind::Uc, None)),
        QP_UD => Some((QpKind::Ud, None)),
        _ => None,
    }
}

fn state(number: u32) -> Option<QpState> {
    match number {
        QPS_RESET => Some(QpState::Reset),
        QPS_INIT => Some(QpState::Init),
        QPS_RTR => Some(QpState::Rtr),
        QPS_RTS => Some(QpState::Rts),
        QPS_SQD => Some(QpState::Sqd),
        QPS_SQE => Some(QpState::Sqe),
        QPS_ERR => Some(QpState::Err),
        _ => None,
    }
}

fn number(state: QpState) -> u32 {
    match state {
        QpState::Reset => QPS_RESET,
        QpState::Init => QPS_INIT,
        QpState::Rtr => QPS_RTR,
        QpState::Rts => QPS_RTS,
        QpState::Sqd => QPS_SQD,
        QpState::Sqe => QPS_SQE,
        QpState::Err => QPS_ERR,
    }
}

/// What C asks to change; `None` if a number means nothing.
fn attributes(attr: &QpAttr) -> Option<Change> {
    let has = |bit: u32| attr.mask & bit == bit;
    let access = u8::try_from(attr.access).ok().and_then(Access::from_bits);
    Some(Change {
        state: if has(QP_STATE) {
            Some(state(attr.state)?)
        } else {
            None
        },
        peer: has(QP_AV | QP_DEST_QPN).then(|| (attr.node.into(), attr.dest_qpn)),
        qkey: has(QP_QKEY).then_some(attr.qkey),
        access: if has(QP_ACCESS) { Some(access?) } else { None },
        timeout: has(QP_TIMEOUT).then_some(attr.timeout),
        retry_cnt: has(QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(QP_RNR_RETRY).then_some(attr.rnr_retry),
        min_rnr_timer: has(QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        max_rd_atomic: has(QP_MAX_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: has(QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
    })
}

/// See [`usb4_device::Device::create_qp`]; destroyed by `usb4_core_destroy_ep`. The references on its queues are taken in
/// any case.
///
/// # Safety
/// The block of memory is writable, and the queue pair's until it is destroyed, by itself or with its client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_create_qp(
    core: &Core,
    params: &EpParams,
    ep: &mut u32,
    qpn: &mut u32,
) -> i32 {
    let (sq, rq) = (pages(&params.sq), pages(&params.rq));
    let Some((kind, special)) = kind(params.kind) else {
        return EINVAL;
    };
    let (Some(sq_slots), Some(rq_slots)) = (Slots::of(params.sq_slot), Slots::of(params.rq_slot)) else {
        return EINVAL;
    };
    let (for_sq, for_rq) = ((params.sq_depth, sq_slots), (params.rq_depth, rq_slots));
    // SAFETY: the caller gives the block.
    let memory = unsafe { Arena::over(params.memory, params.size) }
        .and_then(|mut arena| cut_ep(&mut arena, params.handles, for_sq, for_rq));
    let Some((handles, sq_lists, rq_lists)) = memory else {
        return EINVAL;
    };
    let config = QpConfig {
        kind,
        special,
        pd: params.pd,
        send_cq: CqId::from_raw(params.send_cq),
        recv_cq: CqId::from_raw(params.recv_cq),
        sq_depth: params.sq_depth,
        sq,
        rq_depth: params.rq_depth,
        rq,
        handles,
        srq: (params.srq != 0).then(|| EndpointId::from_raw(params.srq)),
        sq_slots,
        sq_lists,
        rq_slots,
        rq_lists,
    };
    match core.device.create_qp(ClientId::from_raw(params.client), config) {
        Ok((id, number)) => {
            *ep = id.raw();
            *qpn = number;
            0
        }
        Err(error) => errno(error),
    }
}

/// See [`usb4_device::Device::modify_qp`]. May sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_modify_qp(core: &Core, client: u32, ep: u32, attr: &QpAttr) -> i32 {
    let Some(attr) = attributes(attr) else {
        return EINVAL;
    };
    let (client, qp) = (ClientId::from_raw(client), EndpointId::from_raw(ep));
    outcome(core.device.modify_qp(client, qp, &attr, now()))
}

/// See [`usb4_device::Device::query_qp`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_query_qp(core: &Core, client: u32, ep: u32, attr: &mut QpAttr) -> i32 {
    let (client, qp) = (ClientId::from_raw(client), EndpointId::from_raw(ep));
    let info = match core.device.query_qp(client, qp) {
        Ok(info) => info,
        Err(error) => return errno(error),
    };
    let QpInfo {
        state,
        number: qpn,
        draining,
        attr: told,
    } = info;
    let (node, dest_qpn) = told.peer.unwrap_or_default();
    *attr = QpAttr {
        mask: 0,
        state: number(state),
        node: node.into(),
        dest_qpn,
        qkey: told.qkey.unwrap_or(0),
        access: told.access.unwrap_or_default().bits().into(),
        timeout: told.timeout.unwrap_or(0),
        retry_cnt: told.retry_cnt.unwrap_or(0),
        rnr_retry: told.rnr_retry.unwrap_or(0),
        min_rnr_timer: told.min_rnr_timer.unwrap_or(0),
        max_rd_atomic: told.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: told.max_dest_rd_atomic.unwrap_or(0),
        sq_draining: draining.into(),
        reserved: 0,
        qpn,
        reserved2: 0,
    };
    0
}

/// See [`usb4_device::Device::create_srq`]; destroyed by `usb4_core_destroy_ep`, as which `usb4_core_submit` knows it, too. The
/// reference on its queue is taken in any case.
///
/// # Safety
/// The block of memory is writable, and the queue's until it is destroyed, by itself or with its client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_create_srq(core: &Core, params: &SrqParams, srq: &mut u32) -> i32 {
    let rq = pages(&params.rq);
    let Some(slots) = Slots::of(params.slot) else {
        return EINVAL;
    };
    // SAFETY: the caller gives the block.
    let memory = unsafe { Arena::over(params.memory, params.size) }
        .and_then(|mut arena| cut_ep(&mut arena, 0, (0, Slots::NONE), (params.depth, slots)));
    let Some((_, _, lists)) = memory else {
        return EINVAL;
    };
    let config = SrqConfig {
        pd: params.pd,
        depth: params.depth,
        rq,
        slots,
        lists,
    };
    match core.device.create_srq(ClientId::from_raw(params.client), config) {
        Ok(id) => {
            *srq = id.raw();
            0
        }
        Err(error) => errno(error),
    }
}

/// See [`usb4_device::Device::limit_srq`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_limit_srq(core: &Core, client: u32, srq: u32, limit: u32) -> i32 {
    let (client, srq) = (ClientId::from_raw(client), EndpointId::from_raw(srq));
    outcome(core.device.limit_srq(client, srq, limit))
}

/// See [`usb4_device::Device::srq_limit`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_srq_limit(core: &Core, client: u32, srq: u32, limit: &mut u32) -> i32 {
    let (client, srq) = (ClientId::from_raw(client), EndpointId::from_raw(srq));
    match core.device.srq_limit(client, srq) {
        Ok(now) => {
            *limit = now;
            0
        }
        Err(error) => errno(error),
    }
}

/// See [`NodeId::guid`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_guid(node: &Node) -> u64 {
    NodeId::from(*node).guid()
}
