//! What an idle connection costs in memory, and that the data path allocates nothing: counted by the allocator.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

#[allow(dead_code, reason = "shared with the other tests")]
#[path = "device/home.rs"]
mod home;
#[allow(dead_code, reason = "shared with the other tests")]
#[path = "device/world.rs"]
mod world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use home::{Memory, TestHome};
use usb4_device::{
    Access, Device, DeviceConfig, DeviceStorage, EndpointConfig, EndpointKind, Quota, Scratch,
};
use usb4_engine::{EpAddr, LinkConfig, LinkStorage, NodeId, Slab};
use usb4_ring_abi::{Cqe, Rqe, Sqe};
use world::{World, cq_config, send, words};

/// Design budget: NCCL opens six connections per communicator.
const BUDGET: usize = 4096;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: it is the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A device with room for `count` connections and `count` connected endpoints, all with queues of 16 entries and a
/// completion queue of their own; returns the bytes it takes.
fn connections(count: usize) -> usize {
    let before = HELD.load(Ordering::Relaxed);
    let config = DeviceConfig {
        max_clients: 1,
        max_endpoints: count,
        max_cqs: count,
        max_regions: 1,
        max_links: 1,
        // A power of two, so that the table of buckets grows in proportion.
        max_sources: count,
        ..DeviceConfig::new(NodeId(1))
    };
    let home = TestHome::new(1);
    let device = Device::new(home, &config, DeviceStorage::boxed(&config)).unwrap();
    let flows = u32::try_from(count).unwrap();
    let config = LinkConfig {
        max_tx_flows: flows,
        max_rx_flows: flows,
        ..LinkConfig::new(NodeId(1), NodeId(2))
    };
    device.add_link(config, LinkStorage::boxed(&config)).unwrap();
    let client = device.add_client(Quota::UNLIMITED, None).unwrap();
    let wakes = Arc::new(AtomicU32::new(0));
    for n in 0..count {
        let cq = device
            .create_cq(client, cq_config(16, &words::<Cqe>(16), &wakes))
            .unwrap();
        let config = EndpointConfig {
            kind: EndpointKind::Connected,
            send_cq: cq,
            recv_cq: cq,
            sq_depth: 16,
            sq: words::<Sqe>(16),
            rq_depth: 16,
            rq: words::<Rqe>(16),
            handles: Slab::boxed(1),
        };
        let (ep, _) = device.create_endpoint(client, config).unwrap();
        let peer = EpAddr {
            node: NodeId(2),
            ep: u32::try_from(n).unwrap(),
            incarnation: 1,
        };
        device.connect(client, ep, &peer).unwrap();
    }
    HELD.load(Ordering::Relaxed) - before
}

/// One test, so that no other thread allocates meanwhile.
#[test]
fn an_idle_connection_fits_its_budget_and_messages_allocate_nothing() {
    let (few, many) = (connections(64), connections(64 + 128));
    let each = (many - few) / 128;
    println!("bytes per idle connection: {each}");
    assert!(each <= BUDGET, "{each} bytes per idle connection");

    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let memory = Memory::zeroed(64);
    let (from, to) = (
        world.register(&a, &memory, Access::LOCAL),
        world.register(&b, &memory, Access::LOCAL),
    );
    // The test home allocates for every frame; the device alone is counted around it.
    let mut scratch = Scratch::boxed();
    for n in 0..100 {
        b.receive(n, to, 0x10_0000, 64);
        a.post(send(n, from, 0x10_0000, 64));
        a.sq.publish();
        b.rq.publish();
        let before = CALLS.load(Ordering::Relaxed);
        world.sides[1].device.submit(b.ep, world.now);
        world.sides[0].device.submit(a.ep, world.now);
        let submitted = CALLS.load(Ordering::Relaxed);
        assert_eq!(submitted, before, "submitting allocates");
        world.settle();
        assert_eq!(b.poll().len(), 1);
        assert_eq!(a.poll().len(), 1);
        // A turn without frames to hand to the test home.
        let side = &world.sides[0];
        let before = CALLS.load(Ordering::Relaxed);
        side.device
            .service(side.link, &side.port, world.now, &mut scratch);
        assert_eq!(CALLS.load(Ordering::Relaxed), before, "a turn allocates");
    }
}
