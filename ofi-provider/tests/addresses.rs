//! Endpoints that come across more addresses than they have handles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands valid objects to the provider"
)]

mod common;

use std::sync::{Mutex, MutexGuard};

use common::*;
use libfabric_sys::*;

/// More than the handles and flows of an endpoint and the device.
const MANY: u32 = 2500;

fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    soft("fi-addresses");
    guard
}

fn remove(world: &Opened, mut address: fi_addr_t) {
    let rc = unsafe { ((*(*world.av).ops).remove)(world.av, &mut address, 1, 0) };
    assert_eq!(rc, 0);
}

/// A message to an endpoint that is not there; the send waits for its turn if it must.
fn send_to_nobody(world: &Opened, from: &Endpoint, number: u32, stays: bool) {
    let mut name = from.name();
    name[16..20].copy_from_slice(&(0x10_0000 + number).to_le_bytes());
    let address = world.insert(&name);
    let nobody = Endpoint { address, ..*from };
    while from.tsend(&nobody, &[1; 8], 1, 0) == -(FI_EAGAIN as isize) {
        from.drive();
    }
    assert_eq!(from.next_or_error(&[]).err(), Some(-(FI_EAVAIL as isize)));
    assert_eq!(from.error().err, FI_ECONNRESET, "address {number}");
    if !stays {
        remove(world, address);
    }
}

#[test]
fn more_addresses_than_handles_are_sent_to_whether_they_stay_or_are_removed() {
    let _alone = alone();
    for stays in [true, false] {
        let mut world = Opened::new();
        let (a, b) = (world.endpoint(), world.endpoint());
        for number in 0..MANY {
            send_to_nobody(&world, &a, number, stays);
        }
        let mut buffer = [0; 8];
        b.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 7);
        assert_eq!(a.tsend(&b, &[5; 8], 1, 8), 0);
        assert_eq!(b.next(&[&a]).op_context as usize, 7);
        a.next(&[&b]);
        assert_eq!(buffer, [5; 8]);
        a.close();
        b.close();
    }
}

#[test]
fn a_server_whose_clients_come_and_go_works_for_ever() {
    let _alone = alone();
    let mut world = Opened::new();
    let server = world.endpoint();
    for round in 0..600 {
        let client = world.endpoint();
        let (mut there, mut back) = ([0; 8], [0; 8]);
        server.trecv(FI_ADDR_UNSPEC, &mut there, 1, 0, 1);
        client.trecv(FI_ADDR_UNSPEC, &mut back, 2, 0, 2);
        assert_eq!(client.tsend(&server, &[round as u8; 8], 1, 3), 0, "round {round}");
        server.next(&[&client]);
        assert_eq!(server.tsend(&client, &[round as u8; 8], 2, 4), 0, "round {round}");
        server.next(&[&client]);
        client.next(&[&server]);
        client.next(&[&server]);
        assert_eq!((there, back), ([round as u8; 8], [round as u8; 8]));
        client.close();
        close(client.cq.cast());
        if round % 2 == 0 {
            remove(&world, client.address);
        }
    }
}
