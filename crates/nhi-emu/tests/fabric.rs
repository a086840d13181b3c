//! Guests on emulated controllers, as their drivers see them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod rig;

use rig::client::{Client, signals};
use rig::guest::{EOF, Guest, SOF};
use rig::{Folder, Running};
use usb4_nhi_emu::Map;

/// Two guests with ring 1 of each joined to that of the other.
fn joined(running: &Running) -> [Guest; 2] {
    let mut guests = [0, 1].map(|nhi| Guest::start(running.dir(), nhi));
    for guest in &mut guests {
        let plug = guest.receive_type(5);
        assert_eq!(plug.words[2] >> 31, 0);
        guest.connect();
    }
    guests
}

fn ping_pong(running: &Running, rounds: u32) {
    let [mut a, mut b] = joined(running);
    for round in 0..rounds {
        let payload = format!("ping {round}");
        a.send(1, round, payload.as_bytes(), SOF, EOF);
        b.wait(Guest::vector(false, 1));
        b.write(rig::guest::INT_CLEAR, 1 << 13);
        assert_eq!(b.got(1, round), Some((payload.clone().into_bytes(), EOF)));
        b.post_rx(1, round + 8..round + 9);
        b.send(1, round, payload.as_bytes(), SOF, EOF);
        a.wait(Guest::vector(false, 1));
        a.write(rig::guest::INT_CLEAR, 1 << 13);
        assert_eq!(a.got(1, round), Some((payload.into_bytes(), EOF)));
        a.post_rx(1, round + 8..round + 9);
    }
    assert_eq!(running.counter(1, "rx_frames"), u64::from(rounds));
}

#[test]
fn frames_cross_between_guests_by_trapped_doorbells() {
    ping_pong(&Running::start("pair", Map::Nothing), 100);
}

#[test]
fn frames_cross_between_guests_by_mapped_doorbells() {
    let running = Running::start("pair", Map::Doorbells);
    ping_pong(&running, 100);
}

#[test]
fn frames_cross_between_guests_when_nothing_traps() {
    let running = Running::start("pair,pci=8086:ff01", Map::DoorbellsAndInterrupts);
    ping_pong(&running, 100);
}

#[test]
fn what_happens_while_a_guest_has_no_eventfds_is_signalled_once_it_has() {
    let running = Running::start("pair", Map::Nothing);
    let [mut a, mut b] = joined(&running);
    b.close_vectors();
    for event in &b.events {
        signals(event);
    }
    a.send(1, 0, b"hello", SOF, EOF);
    running.wait("the frame", |running| running.counter(1, "rx_frames") == 1);
    assert!(b.events.iter().all(|event| signals(event) == 0));
    b.open_vectors();
    b.wait(Guest::vector(false, 1));
    assert_eq!(b.got(1, 0), Some((b"hello".to_vec(), EOF)));
}

#[test]
fn a_buffer_outside_memory_is_a_fault_and_nothing_more() {
    let running = Running::start("pair", Map::Nothing);
    let [mut a, b] = joined(&running);
    a.send_from(1, 0, rig::guest::MEMORY - 2, 4, SOF, EOF);
    a.send_from(1, 1, u64::MAX - 1, 4, SOF, EOF);
    a.send(1, 2, b"hello", SOF, EOF);
    b.wait(Guest::vector(false, 1));
    assert!(b.got(1, 0).is_some());
    assert!(running.counter(0, "dma_faults") >= 2);
}

#[test]
fn memory_that_is_unmapped_is_not_touched_again() {
    let running = Running::start("pair", Map::Nothing);
    let [mut a, mut b] = joined(&running);
    b.client.unmap(0, rig::guest::MEMORY).unwrap();
    a.send(1, 0, b"hello", SOF, EOF);
    running.wait("the fault", |running| running.counter(1, "dma_faults") > 0);
    assert_eq!(b.got(1, 0), None);
}

#[test]
fn a_guest_that_goes_is_unplugged_for_its_peer_and_another_may_come() {
    let running = Running::start("pair", Map::Nothing);
    let [mut a, b] = joined(&running);
    drop(b);
    let unplug = loop {
        let packet = a.receive_type(5);
        if packet.words[2] >> 31 == 1 {
            break packet;
        }
    };
    assert_eq!(unplug.words[2] & 0x3f, 1);
    let mut b = Guest::start(running.dir(), 1);
    assert_eq!(b.receive_type(5).words[2] >> 31, 0);
    assert_eq!(a.receive_type(5).words[2] >> 31, 0);
}

#[test]
fn a_second_client_waits_until_the_first_is_gone() {
    let running = Running::start("pair", Map::Nothing);
    let first = Client::greeted(running.dir(), 0);
    let mut second = Client::connect(running.dir(), 0);
    second.raw(&rig::client::header(1, rig::client::VERSION, 20, 0));
    second.raw(&[0; 4]);
    let running_first = running.ask("stats").unwrap();
    assert_eq!(running_first["nhis"][0]["connected"], true);
    drop(first);
    let mut reply = [0; 16];
    std::io::Read::read_exact(&mut second.socket, &mut reply).unwrap();
    assert_eq!(reply[8], 1, "answered once its turn came");
}

#[test]
fn a_cable_is_pulled_and_put_back_by_the_control_socket() {
    let running = Running::start("pair", Map::Nothing);
    let [mut a, _b] = joined(&running);
    assert_eq!(running.ask("stats").unwrap()["cables"][0]["link"], "up");
    running.ask("unplug 0").unwrap();
    assert_eq!(a.receive_type(5).words[2] >> 31, 1);
    assert_eq!(running.ask("stats").unwrap()["cables"][0]["link"], "down");
    running.ask("plug 0").unwrap();
    assert_eq!(a.receive_type(5).words[2] >> 31, 0);
}

#[test]
fn requests_are_carried_out_or_refused_with_a_reason() {
    let running = Running::start("pair", Map::Nothing);
    let [_a, b] = joined(&running);
    for line in [
        "loss 0 1000 --way forth",
        "loss 0 1000 --control",
        "corrupt 0 1000 --silent",
        "duplicate 0 5",
        "delay 0 50us",
        "heal 0",
        "lose-frames 0 back 2",
        "lose-control 0 host 1",
        "lose-interrupt 1 2 --vector 3",
        "strand-completion 0 tx 1",
        "ignore-doorbell 1 rx 1",
        "inject frame 1 1 1 2 0102",
        "mark a.b",
        "clear",
        "narrow 0",
        "reset-peer 0",
    ] {
        assert!(running.ask(line).is_ok(), "{line}");
    }
    assert_eq!(b.got(1, 0), Some((vec![1, 2], EOF)));
    for (line, reason) in [
        ("plug 1", "there is no cable 1"),
        ("loss 1 5", "there is no cable 1"),
        (
            "loss 0 1000001",
            "1000001 is more than a million parts per million",
        ),
        ("narrow 0 3", "a link has 1 or 2 lanes, not 3"),
        ("reset-peer 2", "there is no controller 2"),
        ("lose-interrupt 0 1 --vector 16", "there is no vector 16"),
        ("strand-completion 0 tx 12", "there is no ring 12"),
        (
            "inject control 0 5 00",
            "a control packet is whole doublewords, not 1 bytes",
        ),
        ("capture stop", "no capture is running"),
    ] {
        assert_eq!(running.ask(line).unwrap_err(), reason, "{line}");
    }
}

#[test]
fn a_capture_shows_what_crossed_and_what_was_lost() {
    let running = Running::start("pair", Map::Nothing);
    let [mut a, b] = joined(&running);
    let file = running.dir().join("a.pcapng");
    let start = format!("capture start {}", file.display());
    running.ask(&start).unwrap();
    assert_eq!(
        running.ask(&start).unwrap_err(),
        "a capture is running: stop it first"
    );
    running.ask("lose-frames 0 forth 1").unwrap();
    a.send(1, 0, b"lost", SOF, EOF);
    a.send(1, 1, b"found", SOF, EOF);
    b.wait(Guest::vector(false, 1));
    running.ask("capture stop").unwrap();
    let reader = usb4_nhi_control::capture::Reader::new(std::fs::File::open(&file).unwrap()).unwrap();
    let lines: Vec<_> = reader.map(|record| record.unwrap().to_string()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("0.0>1.0 frame") && lines[0].contains("4 bytes [dropped"),
        "{lines:?}"
    );
    assert!(lines[1].ends_with("5 bytes"), "{lines:?}");
}

#[test]
fn the_socket_for_marks_takes_marks_and_answers_nothing() {
    use std::io::{Read, Write};
    let running = Running::start("pair", Map::Nothing);
    let _guests = joined(&running);
    assert!(running.counter(0, "writes") > 0);
    let path = running.dir().join(usb4_nhi_control::MARK_SOCKET);
    let mut socket = std::os::unix::net::UnixStream::connect(path).unwrap();
    socket.write_all(b"unplug 0\nstats\nmark x\r\n").unwrap();
    running.wait("the mark", |running| running.counter(0, "writes") == 0);
    assert_eq!(running.ask("stats").unwrap()["cables"][0]["plugged"], true);
    socket.set_nonblocking(true).unwrap();
    assert!(socket.read(&mut [0]).is_err(), "something was answered");
}

#[test]
fn a_folder_that_is_in_use_is_refused_and_one_left_behind_is_taken() {
    let running = Running::start("pair", Map::Nothing);
    let options = |dir: &std::path::Path| usb4_nhi_emu::Options {
        dir: dir.to_owned(),
        topology: "pair".parse().unwrap(),
        seed: 1,
        map: Map::Nothing,
        spin: std::time::Duration::ZERO,
    };
    let error = usb4_nhi_emu::Emulator::new(options(running.dir())).unwrap_err();
    assert!(
        error.to_string().starts_with("another process listens at"),
        "{error}"
    );
    assert!(
        running.ask("stats").is_ok(),
        "and the first still has its sockets"
    );

    let folder = Folder::new();
    drop(std::os::unix::net::UnixListener::bind(folder.0.join("nhi0.sock")).unwrap());
    let emulator = usb4_nhi_emu::Emulator::new(options(&folder.0)).unwrap();
    assert_eq!(
        folder.names(),
        ["ctl.sock", "mark.sock", "nhi0.sock", "nhi1.sock"]
    );
    drop(emulator);
    assert!(folder.names().is_empty());
}
