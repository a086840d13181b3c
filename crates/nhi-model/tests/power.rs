//! Sleep, wake, and functions that are off.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

mod rig;

use rig::{ADAPTER, ENABLE, MS, ROUTER, Rig};
use usb4_nhi_model::{Cable, Command, Nhi, Topology};

/// PMCSR's upper byte: PME_Status.
const PME_STATUS: u8 = 0x80;
const PMCSR: usize = 0x44;

/// Host 0 with nobody at the other end suspends as Linux does: router to sleep with wake on connect, ring 0 off, D3hot.
fn suspend(rig: &mut Rig) {
    rig.write_space(0, 1, ADAPTER, 0x28 + 19, &[1 << 16]);
    rig.write_space(0, 0, ROUTER, 5, &[1]);
    assert_eq!(
        rig.read_space(0, 0, ROUTER, 6) & 1,
        1,
        "the router says it sleeps"
    );
    rig.ring(0, true, 0, 0);
    rig.ring(0, false, 0, 0);
    rig.config_write(0, PMCSR, &[3, 1]);
}

#[test]
fn a_cable_wakes_a_host_that_sleeps() {
    let mut rig = Rig::cold(Topology::pair());
    rig.start(0);
    suspend(&mut rig);
    rig.start(1);
    assert_eq!(rig.config_byte(0, PMCSR + 1) & PME_STATUS, 0);
    rig.advance_by(1000 * MS);
    assert_eq!(rig.config_byte(0, PMCSR + 1) & PME_STATUS, PME_STATUS);
    // The kernel polls PME_Status, resumes, and gets the plug event it could not hear.
    rig.config_write(0, PMCSR, &[0, PME_STATUS | 1]);
    rig.config_write(0, 4, &[6, 4]);
    rig.start_channel(0);
    assert!(
        rig.receive_all(0)
            .iter()
            .any(|packet| packet.pdf == 5 && packet.words[2] == 1)
    );
    assert_eq!(rig.read_space(0, 0, ROUTER, 6) & 1, 0, "awake again");
}

#[test]
fn without_wake_on_connect_it_sleeps_on() {
    let mut rig = Rig::cold(Topology::pair());
    rig.start(0);
    suspend(&mut rig);
    rig.config_write(0, PMCSR, &[0, 0]);
    rig.start_channel(0);
    rig.write_space(0, 1, ADAPTER, 0x28 + 19, &[0]);
    rig.write_space(0, 0, ROUTER, 5, &[1]);
    rig.ring(0, false, 0, 0);
    rig.start(1);
    rig.advance_by(1000 * MS);
    assert_eq!(rig.config_byte(0, PMCSR + 1) & PME_STATUS, 0);
}

#[test]
fn registers_do_not_answer_in_d3hot_and_come_back_as_they_were() {
    let mut rig = Rig::new(Topology::pair());
    rig.config_write(0, PMCSR, &[3]);
    assert_eq!(rig.read(0, 0x39640), u32::MAX);
    rig.write(0, rig::TX_OPTIONS, 0);
    assert_eq!(rig.fabric.bar2_read(Nhi(0), 0), u32::MAX);
    rig.config_write(0, PMCSR, &[0]);
    assert_eq!(rig.read(0, rig::TX_OPTIONS) & ENABLE, ENABLE);
}

#[test]
fn a_function_that_is_no_bus_master_waits_and_then_goes_on() {
    let mut rig = Rig::new(Topology::pair());
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..4);
    rig.config_write(0, 4, &[2, 4]);
    let before = rig.world.accesses;
    rig.send(0, 1, 0, b"x");
    assert_eq!(rig.world.accesses, before);
    rig.config_write(0, 4, &[6, 4]);
    assert!(rig.sent(0, 1, 0) && rig.got(1, 1, 0).is_some());
}

#[test]
fn a_host_switched_off_is_an_unplug_for_its_peer_and_plugs_again_when_it_is_back() {
    let mut rig = Rig::new(Topology::pair());
    (0..2).for_each(|n| rig.acknowledge_all(n));
    rig.fabric.disconnected(Nhi(1), rig.now, &mut rig.world);
    assert_eq!(rig.receive_all(0)[0].words[2], 1 | 1 << 31);
    rig.acknowledge(0, 1, true);
    assert!(!rig.stats().nhis[1].connected);
    rig.start(1);
    rig.advance_by(1000 * MS);
    assert_eq!(rig.receive_all(0)[0].words[2], 1);
}

#[test]
fn a_port_reset_takes_the_link_down_and_up() {
    let mut rig = Rig::new(Topology::pair());
    (0..2).for_each(|n| rig.acknowledge_all(n));
    rig.write_space(0, 1, ADAPTER, 0x28 + 19, &[1]);
    rig.advance_by(10 * MS);
    rig.write_space(0, 1, ADAPTER, 0x28 + 19, &[0]);
    rig.acknowledge(1, 1, true);
    rig.advance_by(1000 * MS);
    let events: Vec<u32> = rig.receive_all(1).iter().map(|packet| packet.words[2]).collect();
    assert_eq!(events[..2], [1 | 1 << 31, 1]);
}

#[test]
fn a_cable_of_a_lonely_host_can_be_pulled_and_put_back() {
    let mut rig = Rig::cold(Topology::pair());
    rig.start(0);
    rig.command(Command::Unplug(Cable(0)));
    rig.command(Command::Plug(Cable(0)));
    rig.advance_by(1000 * MS);
    assert_eq!(rig.receive_all(0), []);
}
