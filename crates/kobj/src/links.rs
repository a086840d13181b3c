//! Links: their limits, their making and their end.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use usb4_device::{DeviceError, Grace, Habit, LinkId, Scratch};
use usb4_engine::elements::Rail;
use usb4_engine::{Counters, LinkConfig, LinkStorage, LocalInfo, Nanos, NodeId, RailConfig, RailId, Slab};
use usb4_wire::FRAME_VERSION;

use crate::abi::{Arrived, BATCH, LinkStatus, Node, Peer, RailStatus};
use crate::arena::Arena;
use crate::device::Core;
use crate::errno::{EINVAL, errno, outcome};
use crate::home::{self, KernelPort};

/// Descriptors of a receive ring: 4 MiB of frames, as many as the peer may have under way.
pub(crate) const RX_RING: u32 = 1024;

/// Descriptors of a transmit ring.
pub(crate) const TX_RING: u32 = 256;

/// Descriptors posted and not yet consumed: from about 96 on a Strix Halo's ring is at its best, and a ring of n holds
/// n - 1.
const TX_DEPTH: u16 = 192;

/// Transmit frame buffers: what can be on its way to the peer, and as much again as may be staged.
pub(crate) const TX_SLOTS: u16 = 1024;

/// Rails of a link: two cables and room for two more.
pub(crate) const LINK_RAILS: u8 = 4;

/// Receive frame buffers of a rail: the ring's, and what may be parked or wait to be copied, should all of it have come on
/// this one.
pub(crate) const RX_TOKENS: u32 = {
    let config = LinkConfig::new(NodeId(0), NodeId(0));
    RX_RING
        .saturating_add(config.max_parked)
        .saturating_add(config.max_plans)
};

/// What an empty rail takes to deliver, until that is measured.
const LATENCY: Nanos = 5_000;

/// What a rail carries, until that is measured, if nothing is known about it.
const RATE_MBPS: u32 = 10_000;

/// A link and its port.
pub struct Link {
    pub(crate) id: LinkId,
    pub(crate) port: KernelPort,
    /// When the engine wants to be called; `Nanos::MAX` for never. Written by the owner.
    pub(crate) deadline: AtomicU64,
    /// The owner word is the thread's: the timer has taken it, or the thread itself.
    pub(crate) threads: AtomicBool,
    /// What the hand-over timer runs for.
    pub(crate) grace: Grace,
    driven: UnsafeCell<Driven>,
}

/// What the owner works with.
pub(crate) struct Driven {
    pub(crate) scratch: Scratch,
    pub(crate) arrived: Arrived,
    /// When a frame was last received.
    pub(crate) heard: Nanos,
    /// When to look for silent rails again.
    pub(crate) watch_at: Nanos,
    /// The C side has been told that the link is down.
    pub(crate) told_down: bool,
    /// When the thread last found something to do.
    pub(crate) busy: Nanos,
    /// Whether clients come back.
    pub(crate) habit: Habit,
    /// The value of [`Core::tracing`] that `traced` is of.
    pub(crate) tracing: u32,
    /// What had been counted when that was last traced.
    pub(crate) traced: Counters,
}

impl Link {
    /// What the owner works with.
    ///
    /// # Safety
    /// The caller has taken the link's owner word, and uses the result, of which there is one at a time, only until it
    /// gives the word back.
    #[expect(clippy::mut_from_ref, reason = "the owner word is the lock")]
    pub(crate) unsafe fn driven(&self) -> &mut Driven {
        // SAFETY: the owner is the only one here.
        unsafe { &mut *self.driven.get() }
    }
}

fn config(local: NodeId, peer: &Peer) -> LinkConfig {
    let mut config = LinkConfig::new(local, peer.node.into());
    config.tx_slots = TX_SLOTS;
    config.rx_tokens = RX_TOKENS.saturating_mul(u32::from(LINK_RAILS));
    config.max_tx_flows = config.max_tx_flows.min(peer.max_flows);
    config.peer_max_reads = peer.max_reads;
    config.max_rails = LINK_RAILS;
    config
}

/// What this side brings into a session.
pub(crate) fn local_info(node: NodeId, tx_hop: u32) -> LocalInfo {
    let config = LinkConfig::new(node, node);
    LocalInfo {
        node,
        ver_min: FRAME_VERSION,
        ver_max: FRAME_VERSION,
        tx_hop,
        ring_size: RX_RING,
        max_ack_delay_us: u32::try_from(config.max_ack_delay / 1000).unwrap_or(u32::MAX),
        features: 0,
        max_flows: config.max_rx_flows,
        max_reads: config.max_reads,
    }
}

struct Parts {
    link: *mut Link,
    arrived: Arrived,
    storage: LinkStorage,
    scratch: Scratch,
}

fn cut(arena: &mut Arena, config: &LinkConfig) -> Option<Parts> {
    let link = arena.room()?;
    let scratch = Scratch::new(arena.slab(64)?, arena.slab(4)?);
    let arrived = Arrived::new(arena.slab(BATCH)?, arena.slab(BATCH)?);
    let mut rails: Slab<Rail> = arena.slab(usize::from(config.max_rails))?;
    for rail in rails.iter_mut() {
        *rail = Rail::new(arena.slab(usize::from(config.rail_window))?);
    }
    if rails.is_empty() {
        // Measuring: there is no rail to put them in.
        for _ in 0..config.max_rails {
            measure(arena, Rail::new, usize::from(config.rail_window))?;
        }
    }
    let storage = LinkStorage {
        ops: arena.slab(config.max_ops as usize)?,
        tx_flows: arena.slab(config.max_tx_flows as usize)?,
        rx_flows: arena.slab(config.max_rx_flows as usize)?,
        slots: arena.slab(usize::from(config.tx_slots))?,
        tokens: arena.slab(config.rx_tokens as usize)?,
        parked: arena.slab(config.max_parked as usize)?,
        plans: arena.slab(config.max_plans.next_power_of_two() as usize)?,
        streams: arena.slab(config.max_reads as usize)?,
        rails,
    };
    Some(Parts {
        link,
        arrived,
        storage,
        scratch,
    })
}

/// Cuts elements of the type `make` takes.
fn measure<T: Default + 'static, U>(arena: &mut Arena, make: fn(Slab<T>) -> U, count: usize) -> Option<()> {
    make(arena.slab(count)?);
    Some(())
}

/// Bytes of memory a link to `peer` takes.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_size(core: &Core, peer: &Peer) -> usize {
    Arena::measure(|arena| cut(arena, &config(core.device.node(), peer)))
}

/// Makes a link to `peer` in the `size` bytes at `memory`, without rails. `port` is what the `usb4_home_port_*` functions
/// are called with. The link's thread owns it: until [`crate::drive::usb4_core_link_run`] is called, nobody drives it.
/// Clients get it once it is chosen ([`crate::joins`]); that to this host itself at once. Null, and why in `error`, if
/// that cannot be.
///
/// # Safety
/// The bytes are writable, and the link's until [`usb4_core_link_end`] has returned and nobody can be inside of
/// `usb4_core_enter` or `usb4_core_link_*` for it any more; so is what `port` names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_link_new(
    core: &Core,
    memory: *mut u8,
    size: usize,
    port: usize,
    peer: &Peer,
    error: &mut i32,
) -> *mut Link {
    *error = EINVAL;
    let config = config(core.device.node(), peer);
    // SAFETY: the caller gives the block.
    let cut = unsafe { Arena::over(memory, size) }.and_then(|mut arena| cut(&mut arena, &config));
    let Some(Parts {
        link,
        arrived,
        storage,
        scratch,
    }) = cut
    else {
        return null_mut();
    };
    let id = match add(core, &config, storage) {
        Ok(id) => id,
        Err(why) => {
            *error = errno(why);
            return null_mut();
        }
    };
    let made = Link {
        id,
        port: KernelPort(port),
        deadline: AtomicU64::new(0),
        threads: AtomicBool::new(true),
        grace: Grace::new(),
        driven: UnsafeCell::new(Driven {
            scratch,
            arrived,
            heard: home::now(),
            watch_at: 0,
            told_down: false,
            busy: 0,
            habit: Habit::default(),
            tracing: 0,
            traced: Counters::default(),
        }),
    };
    // SAFETY: `cut` has found room for it.
    unsafe { link.write(made) };
    if config.peer == config.local {
        core.device.choose(id);
    }
    *error = 0;
    if let Some(place) = core.place(id) {
        place.store(link, Ordering::Release);
    }
    link
}

/// Apart from its caller, whose stack frame would be too large with this in it.
#[inline(never)]
fn add(core: &Core, config: &LinkConfig, storage: LinkStorage) -> Result<LinkId, DeviceError> {
    core.device.add_candidate(*config, storage)
}

/// Adds a rail that is up, with a session of `peer`'s, to a link; below `link_rails`, and not in use.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_attach(core: &Core, link: &Link, rail: u8, peer: &Peer) -> i32 {
    outcome(
        core.device
            .attach_rail(link.id, home::now(), RailId(rail), &rail_config(peer)),
    )
}

/// Removes a rail: what it has not delivered goes over the others. Nothing posted to it leaves any more, and nobody
/// polls it. Without another rail the link fails.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_detach(core: &Core, link: &Link, rail: u8) -> i32 {
    let detached = core
        .device
        .detach_rail(link.id, &link.port, home::now(), RailId(rail));
    core.serve_touched(home::now());
    outcome(detached)
}

/// A link's number, below `max_links`.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_index(link: &Link) -> u32 {
    u32::try_from(link.id.index()).unwrap_or(u32::MAX)
}

fn rail_config(peer: &Peer) -> RailConfig {
    let mbps = if peer.rate_mbps == 0 {
        RATE_MBPS
    } else {
        peer.rate_mbps
    };
    RailConfig {
        tx_tag: peer.tx_tag,
        rx_tag: peer.rx_tag,
        peer_ring: u16::try_from(peer.ring).unwrap_or(u16::MAX),
        tx_depth: TX_DEPTH,
        peer_max_ack_delay: peer.max_ack_delay,
        rate_bps: u64::from(mbps).saturating_mul(1_000_000),
        latency: LATENCY,
    }
}

/// Ends a link: all its work completes. Waits for whoever drives it; the link's thread must have ended. Afterwards nobody
/// drives it any more; a spinner that was about to may still look at it.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_end(core: &Core, link: &Link) -> i32 {
    if let Some(place) = core.place(link.id) {
        place.store(null_mut(), Ordering::Release);
    }
    if let Some(owner) = core.device.owner(link.id) {
        while !link.threads.load(Ordering::Acquire) && !core.try_thread(owner) {
            home::relax();
        }
    }
    outcome(core.device.remove_link(link.id, &link.port, home::now()))
}

/// Whether there is a link to that host, and it is up.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_is_up(core: &Core, node: &Node) -> bool {
    core.device
        .link_to((*node).into())
        .is_some_and(|link| core.device.is_up(link))
}

/// What has happened on a link. False if there is no such link.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_status(core: &Core, link: &Link, status: &mut LinkStatus) -> bool {
    let Some(counters) = core.device.counters(link.id) else {
        return false;
    };
    *status = LinkStatus::from(&counters);
    true
}

/// How a rail of a link fares. False if it has no such rail.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_rail(core: &Core, link: &Link, rail: u8, status: &mut RailStatus) -> bool {
    let Some(seen) = core.device.rail_status(link.id, RailId(rail)) else {
        return false;
    };
    *status = RailStatus {
        rtt: seen.rtt,
        rate: seen.rate_bps,
        lost: seen.lost,
        in_flight: seen.in_flight,
    };
    true
}
