//! The device, and the links C has given memory for.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use usb4_device::{DeviceConfig, DeviceStorage, LinkId, Lock, Quota};
use usb4_engine::{Joins, LinkConfig};
use usb4_ring_abi::{ABI_VERSION, MAX_DEPTH, MAX_MESSAGE};
use usb4_wire::FRAME_VERSION;

use crate::Device;
use crate::abi::{Limits, Node};
use crate::arena::Arena;
use crate::home::{KernelHome, KernelLock};
use crate::links::{LINK_RAILS, Link, RX_RING, RX_TOKENS, TX_RING, TX_SLOTS};

/// Links: the loopback link and fifteen peers.
pub(crate) const MAX_LINKS: usize = 16;

/// Rails of all links together: cables, by numbers the C side gives them.
const MAX_RAILS: u32 = 64;

/// What a client may have. Each number is a share of the device's tables that lets all [`MAX_CLIENTS`] have something
/// and one large job most of it.
pub(crate) const QUOTA: Quota = Quota {
    endpoints: 512,
    cqs: 512,
    cq_entries: 1 << 20,
    regions: 4096,
    // `RLIMIT_MEMLOCK` bounds what is pinned.
    region_bytes: 1 << 46,
    handles: 65536,
};

/// What all clients of one user may have together: half of the device's tables, so that nobody takes all of them.
pub(crate) const USER_QUOTA: Quota = Quota {
    endpoints: 1024,
    cqs: 1024,
    cq_entries: 1 << 22,
    regions: 8192,
    region_bytes: 1 << 48,
    handles: 1 << 18,
};

/// Clients: opened `/dev/usb4ring`s.
const MAX_CLIENTS: usize = 256;

/// Address handles of an endpoint whose creator did not say.
const DEFAULT_HANDLES: u32 = 64;

/// The device and where its links are.
pub struct Core {
    pub(crate) device: Device,
    /// By [`LinkId::index`]. Who has taken the owner word of a link after it was put here may use it.
    pub(crate) links: [AtomicPtr<Link>; MAX_LINKS],
    /// How many of them nobody drives at this moment, or one more: a word of the page that clients look at.
    pub(crate) undriven: &'static AtomicU64,
    /// Not 0 while somebody traces what a turn counts; another number each time somebody begins to.
    pub(crate) tracing: &'static AtomicU32,
    /// Which rail belongs to which of them.
    pub(crate) joins: Lock<KernelLock, Joins>,
}

impl Core {
    /// Where a link is put.
    #[inline]
    pub(crate) fn place(&self, id: LinkId) -> Option<&AtomicPtr<Link>> {
        self.links.get(id.index())
    }
}

fn config(node: Node) -> DeviceConfig {
    DeviceConfig {
        node: node.into(),
        max_clients: MAX_CLIENTS,
        max_endpoints: 2048,
        max_cqs: 2048,
        max_regions: 16384,
        max_links: MAX_LINKS,
        max_sources: 4096,
    }
}

fn cut(arena: &mut Arena, config: &DeviceConfig) -> Option<(*mut Core, Joins, DeviceStorage<KernelHome>)> {
    let core = arena.room()?;
    let joins = Joins::new(
        config.node,
        arena.slab(MAX_LINKS)?,
        arena.slab(MAX_RAILS as usize)?,
    );
    let storage = DeviceStorage {
        clients: arena.slab(config.max_clients)?,
        endpoints: arena.slab(config.max_endpoints)?,
        attention: arena.slab(config.max_endpoints)?,
        lists: arena.slab(config.max_endpoints)?,
        cqs: arena.slab(config.max_cqs)?,
        regions: arena.slab(config.max_regions)?,
        free_regions: arena.slab(config.max_regions)?,
        links: arena.slab(config.max_links)?,
        sources: arena.slab(config.max_sources)?,
        source_buckets: arena.slab(config.max_sources.next_power_of_two())?,
    };
    Some((core, joins, storage))
}

/// What the C side has to know.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_limits(limits: &mut Limits) {
    *limits = Limits {
        #[expect(clippy::cast_possible_truncation, reason = "16")]
        max_links: MAX_LINKS as u32,
        rx_ring: RX_RING,
        tx_ring: TX_RING,
        tx_slots: u32::from(TX_SLOTS),
        rx_tokens: RX_TOKENS,
        max_depth: MAX_DEPTH,
        max_message: MAX_MESSAGE,
        max_cqs: QUOTA.cqs,
        max_cq_entries: QUOTA.cq_entries,
        max_eps: QUOTA.endpoints,
        max_ahs: QUOTA.handles,
        max_mrs: QUOTA.regions,
        default_ahs: DEFAULT_HANDLES,
        max_mr_bytes: QUOTA.region_bytes,
        max_rails: MAX_RAILS,
        link_rails: u32::from(LINK_RAILS),
        frame_version: u32::from(FRAME_VERSION),
        abi_version: ABI_VERSION,
    };
}

/// Bytes of memory the device takes.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_size() -> usize {
    Arena::measure(|arena| cut(arena, &config(Node::default())))
}

/// Makes the device in the `size` bytes at `memory`; null if they are too few. `undriven` is the word of that name of the
/// notice page (`usb4_ring_abi::uapi`). `tracing` is not 0 while `usb4_home_trace_turn` is to be called, and another
/// number each time that begins.
///
/// # Safety
/// All are writable, and the device's until nobody uses it any more: then they may be freed, after all clients and
/// links are gone. `undriven` is 0, and nobody else writes to it; `tracing` is only written to as one word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_new(
    memory: *mut u8,
    size: usize,
    node: &Node,
    undriven: *mut u64,
    tracing: *mut u32,
) -> *mut Core {
    let config = config(*node);
    // SAFETY: the caller gives the block.
    let cut = unsafe { Arena::over(memory, size) }.and_then(|mut arena| cut(&mut arena, &config));
    let Some((core, joins, storage)) = cut else {
        return null_mut();
    };
    let Ok(device) = Device::new(KernelHome, &config, storage) else {
        return null_mut();
    };
    for index in 0..MAX_LINKS {
        // Nobody drives a link that is not there.
        let place = u32::try_from(index).unwrap_or(0);
        if let Some(owner) = device.owner(LinkId::from_raw(place)) {
            let _ = owner.try_thread();
        }
    }
    let made = Core {
        device,
        links: [const { AtomicPtr::new(null_mut()) }; MAX_LINKS],
        // SAFETY: the caller gives the word.
        undriven: unsafe { AtomicU64::from_ptr(undriven) },
        // SAFETY: as above.
        tracing: unsafe { AtomicU32::from_ptr(tracing) },
        joins: Lock::new(joins),
    };
    // SAFETY: `cut` has found room for it.
    unsafe { core.write(made) };
    core
}

/// A device has places for all incoming flows of all its links.
const _: () = {
    let link = LinkConfig::new(usb4_engine::NodeId(0), usb4_engine::NodeId(0));
    assert!(4096 >= MAX_LINKS * link.max_rx_flows as usize);
};

/// No user takes all there is.
const _: () = assert!(
    USER_QUOTA.endpoints <= 2048 / 2 && USER_QUOTA.cqs <= 2048 / 2 && USER_QUOTA.regions <= 16384 / 2
);
