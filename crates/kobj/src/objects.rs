//! Clients and what they own. What can be refused returns 0, or a name, or a negative error number.

use usb4_device::{
    Access, AhSlot, ClientId, CqConfig, CqId, EndpointConfig, EndpointId, EndpointKind, ListWord, Quota,
    RegionConfig, User, list_words,
};
use usb4_engine::Slab;
use usb4_ring_abi::sync::AtomicU64;
use usb4_ring_abi::{Cqe, Entry, QueueGeometry, Rqe, Slots, Sqe};

use crate::abi::{Addr, CqParams, EpParams, MrParams, Queue};
use crate::arena::Arena;
use crate::device::{Core, QUOTA, USER_QUOTA};
use crate::errno::{EINVAL, ENOENT, errno, outcome};
use crate::home::now;
use crate::{Pinned, QueuePages};

/// [`usb4_core_queue_size`]: submission queue.
pub const QUEUE_SQ: u32 = 0;
/// [`usb4_core_queue_size`]: receive queue.
pub const QUEUE_RQ: u32 = 1;
/// [`usb4_core_queue_size`]: completion queue.
pub const QUEUE_CQ: u32 = 2;

/// Bytes of a queue's memory, with slots of `slot` bytes behind its entries; 0 if there is no such queue, or none of that
/// depth, or no such slots.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_queue_size(what: u32, depth: u32, slot: u32) -> usize {
    fn bytes<E: Entry>(depth: u32, slots: Slots) -> usize {
        QueueGeometry::of::<E>(depth).map_or(0, |queue| queue.with_slots(slots).bytes())
    }
    let Some(slots) = Slots::of(slot) else { return 0 };
    match what {
        QUEUE_SQ => bytes::<Sqe>(depth, slots),
        QUEUE_RQ => bytes::<Rqe>(depth, slots),
        QUEUE_CQ => bytes::<Cqe>(depth, slots),
        _ => 0,
    }
}

/// See [`usb4_device::Device::add_client_of`]. The client, or an error. It counts towards what the user may have; if it is
/// `exempt`, it may exceed that.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_add_client(core: &Core, user: u32, exempt: bool, client: &mut u32) -> i32 {
    let quota = if exempt { Quota::UNLIMITED } else { USER_QUOTA };
    let user = User { id: user, quota };
    match core.device.add_client_of(Some(user), QUOTA, None) {
        Ok(id) => {
            *client = id.raw();
            0
        }
        Err(error) => errno(error),
    }
}

/// See [`usb4_device::Device::remove_client`]. May sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_remove_client(core: &Core, client: u32) -> i32 {
    outcome(core.device.remove_client(ClientId::from_raw(client), now()))
}

/// Bytes of memory a completion queue takes, beside its words.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_cq_size(depth: u32) -> usize {
    Arena::measure(|arena| arena.slab::<usb4_device::OpSlot>(depth as usize))
}

/// See [`usb4_device::Device::create_cq`]. The reference on its queue is taken in any case.
///
/// # Safety
/// The block of memory is writable, and the queue's until it is destroyed, by itself or with its client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_create_cq(core: &Core, params: &CqParams, cq: &mut u32) -> i32 {
    let memory = pages(&params.queue);
    // SAFETY: the caller gives the block.
    let ops = unsafe { Arena::over(params.memory, params.size) }
        .and_then(|mut arena| arena.slab(params.depth as usize));
    let Some(ops) = ops else { return EINVAL };
    let config = CqConfig {
        depth: params.depth,
        memory,
        ops,
        waker: params.waker,
    };
    match core.device.create_cq(ClientId::from_raw(params.client), config) {
        Ok(id) => {
            *cq = id.raw();
            0
        }
        Err(error) => errno(error),
    }
}

/// See [`usb4_device::Device::destroy_cq`]. May sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_destroy_cq(core: &Core, client: u32, cq: u32) -> i32 {
    outcome(
        core.device
            .destroy_cq(ClientId::from_raw(client), CqId::from_raw(cq)),
    )
}

/// Room for address handles, and for the lists of both queues.
pub(crate) type EpMemory = (Slab<AhSlot>, Slab<ListWord>, Slab<ListWord>);

pub(crate) fn cut_ep(
    arena: &mut Arena,
    handles: u32,
    sq: (u32, Slots),
    rq: (u32, Slots),
) -> Option<EpMemory> {
    Some((
        arena.slab(handles as usize)?,
        arena.slab(list_words(sq.0, sq.1))?,
        arena.slab(list_words(rq.0, rq.1))?,
    ))
}

/// Bytes of memory an endpoint with that many address handles takes, beside its queues; of a queue pair, with lists for
/// slots of so many bytes. 0 if there are no such slots.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_ep_size(
    handles: u32,
    sq_depth: u32,
    sq_slot: u32,
    rq_depth: u32,
    rq_slot: u32,
) -> usize {
    match (Slots::of(sq_slot), Slots::of(rq_slot)) {
        (Some(sq), Some(rq)) => {
            Arena::measure(|arena| cut_ep(arena, handles, (sq_depth, sq), (rq_depth, rq)))
        }
        _ => 0,
    }
}

/// See [`usb4_device::Device::create_endpoint`]. The references on its queues are taken in any case.
///
/// # Safety
/// The block of memory is writable, and the endpoint's until it is destroyed, by itself or with its client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_create_ep(
    core: &Core,
    params: &EpParams,
    ep: &mut u32,
    addr: &mut Addr,
) -> i32 {
    let (sq, rq) = (pages(&params.sq), pages(&params.rq));
    let Some(kind) = kind(params.kind) else {
        return EINVAL;
    };
    // SAFETY: the caller gives the block.
    let handles = unsafe { Arena::over(params.memory, params.size) }
        .and_then(|mut arena| arena.slab(params.handles as usize));
    let Some(handles) = handles else { return EINVAL };
    let config = EndpointConfig {
        kind,
        send_cq: CqId::from_raw(params.send_cq),
        recv_cq: CqId::from_raw(params.recv_cq),
        sq_depth: params.sq_depth,
        sq,
        rq_depth: params.rq_depth,
        rq,
        handles,
    };
    match core
        .device
        .create_endpoint(ClientId::from_raw(params.client), config)
    {
        Ok((id, at)) => {
            *ep = id.raw();
            *addr = at.into();
            0
        }
        Err(error) => errno(error),
    }
}

/// See [`usb4_device::Device::destroy_endpoint`]. May sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_destroy_ep(core: &Core, client: u32, ep: u32) -> i32 {
    outcome(
        core.device
            .destroy_endpoint(ClientId::from_raw(client), EndpointId::from_raw(ep), now()),
    )
}

/// Makes an address handle of a datagram endpoint, or connects a connected one, whose handle is 0.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_create_ah(
    core: &Core,
    client: u32,
    ep: u32,
    connected: bool,
    dst: &Addr,
    ah: &mut u32,
) -> i32 {
    let (client, ep, dst) = (
        ClientId::from_raw(client),
        EndpointId::from_raw(ep),
        (*dst).into(),
    );
    let made = if connected {
        core.device.connect(client, ep, &dst).map(|()| 0)
    } else {
        core.device.create_ah(client, ep, &dst)
    };
    match made {
        Ok(handle) => {
            *ah = handle;
            0
        }
        Err(error) => errno(error),
    }
}

/// See [`usb4_device::Device::destroy_ah`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_destroy_ah(core: &Core, client: u32, ep: u32, ah: u32) -> i32 {
    outcome(
        core.device
            .destroy_ah(ClientId::from_raw(client), EndpointId::from_raw(ep), ah, now()),
    )
}

/// See [`usb4_device::Device::source`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_source(core: &Core, client: u32, src: u32, addr: &mut Addr) -> i32 {
    match core.device.source(ClientId::from_raw(client), src) {
        Some(at) => {
            *addr = at.into();
            0
        }
        None => ENOENT,
    }
}

/// See [`usb4_device::Device::register`], and for queue pairs [`usb4_device::Device::register_in_pd`]. The handle of the memory is taken in any case.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_register(core: &Core, params: &mut MrParams) -> i32 {
    let mem = Pinned(params.mem);
    let access = u8::try_from(params.access).ok().and_then(Access::from_bits);
    let Some(access) = access else { return EINVAL };
    let config = RegionConfig {
        addr: params.addr,
        len: params.len,
        access,
        peer: (params.bound != 0).then(|| params.peer.into()),
        mem,
    };
    let client = ClientId::from_raw(params.client);
    let registered = if params.narrow == 0 {
        core.device.register(client, config)
    } else {
        core.device.register_in_pd(client, params.pd, config)
    };
    match registered {
        Ok(keys) => {
            params.local_key = keys.local;
            params.remote_key = keys.remote;
            0
        }
        Err(error) => errno(error),
    }
}

/// See [`usb4_device::Device::deregister`]. 1: gone, 0: still in use, or an error. May sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_deregister(core: &Core, client: u32, key: u32) -> i32 {
    core.device
        .deregister(ClientId::from_raw(client), key)
        .map_or_else(errno, i32::from)
}

/// See [`usb4_device::Device::reclaim`]. 1: gone, 0: still in use, or an error. May sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_reclaim(core: &Core, client: u32, key: u32, force: bool) -> i32 {
    core.device
        .reclaim(ClientId::from_raw(client), key, force)
        .map_or_else(errno, i32::from)
}

fn kind(kind: u32) -> Option<EndpointKind> {
    match kind {
        0 => Some(EndpointKind::Datagram),
        1 => Some(EndpointKind::Connected),
        _ => None,
    }
}

pub(crate) fn pages(queue: &Queue) -> QueuePages {
    // SAFETY: the C side keeps the words for as long as the reference that goes with them.
    unsafe { QueuePages::new(queue.words.cast::<AtomicU64>(), queue.count, queue.handle) }
}
