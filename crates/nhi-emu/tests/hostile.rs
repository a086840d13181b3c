//! Clients that do not keep to the protocol.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod rig;

use std::io::Write;
use std::os::fd::AsFd;

use rig::Running;
use rig::client::{
    BAR0, CONFIG, Client, DEVICE_INFO, DISABLE, DMA_UNMAP, EINVAL, IRQ_INFO, MSIX, READ, REGION_INFO, RESET,
    SIGNAL, VERSION, WRITE, WRITE_MULTI, header, longs, memfd, words,
};
use rustix::event::{EventfdFlags, eventfd};
use usb4_nhi_emu::Map;

fn running() -> Running {
    Running::start("pair", Map::Nothing)
}

/// Somebody else is still served.
fn assert_alive(running: &Running) {
    let mut other = Client::greeted(running.dir(), 1);
    assert_eq!(other.read(CONFIG, 0, 4), Ok(vec![0x36, 0x1b, 0x40, 0]));
    assert_eq!(
        other.ask(DEVICE_INFO, &words(&[16, 0, 0, 0]), &[]).0,
        Ok(words(&[16, 3, 9, 5]))
    );
}

#[test]
fn a_message_of_an_impossible_size_ends_the_connection() {
    let running = running();
    for size in [0, 15, 8193, u32::MAX as usize] {
        let mut client = Client::greeted(running.dir(), 0);
        client.raw(&header(1, READ, size, 0));
        assert!(client.is_dropped(), "{size}");
    }
    let mut client = Client::greeted(running.dir(), 0);
    client.raw(&header(1, READ, 16, 1));
    assert!(client.is_dropped(), "a reply to nothing");
    assert_alive(&running);
}

#[test]
fn a_message_cut_short_is_refused_and_the_next_is_heard() {
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    for command in [
        DMA_UNMAP,
        DEVICE_INFO,
        REGION_INFO,
        IRQ_INFO,
        READ,
        WRITE,
        WRITE_MULTI,
    ] {
        for size in [0, 4, 7, 8, 11] {
            assert_eq!(
                client.ask(command, &vec![1; size], &[]).0,
                Err(EINVAL),
                "{command} {size}"
            );
        }
    }
    assert!(client.read(CONFIG, 0, 256).is_ok());
    assert_alive(&running);
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_message_holds_up_nobody() {
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    client.raw(&header(1, WRITE, 8000, 0));
    client.raw(&[0; 1000]);
    assert_alive(&running);
}

#[test]
fn nothing_is_heard_before_versions_and_no_second_version_after() {
    const EPROTO: u32 = 71;
    let running = running();
    let mut client = Client::connect(running.dir(), 0);
    assert_eq!(client.read(CONFIG, 0, 4), Err(EPROTO));
    assert_eq!(client.ask(RESET, &[], &[]).0, Err(EPROTO));
    let stats = running.ask("stats").unwrap();
    assert_eq!(stats["nhis"][0]["connected"], false);
    for body in [&[1, 0, 0, 0][..], &[0, 0, 0, 0, b'{', 0], &[0, 0, 0, 0, b'7', 0]] {
        assert_eq!(client.ask(VERSION, body, &[]).0, Err(EINVAL), "{body:?}");
    }
    assert!(client.ask(VERSION, &[0; 4], &[]).0.is_ok());
    assert_eq!(client.ask(VERSION, &[0; 4], &[]).0, Err(EPROTO));
    assert!(client.read(CONFIG, 0, 4).is_ok());
}

#[test]
fn unknown_commands_regions_and_interrupts_are_refused() {
    const ENOTSUP: u32 = 95;
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    for command in [0, 6, 11, 12, 14, 16, 0xffff] {
        assert_eq!(client.ask(command, &[0; 64], &[]).0, Err(ENOTSUP), "{command}");
    }
    let region = |index| [words(&[32, 0, index, 0]), longs(&[0, 0])].concat();
    for index in [9, u32::MAX] {
        assert_eq!(client.ask(REGION_INFO, &region(index), &[]).0, Err(EINVAL));
        assert_eq!(
            client.ask(IRQ_INFO, &words(&[16, 0, index, 0]), &[]).0,
            Err(EINVAL)
        );
        assert_eq!(client.read(index, 0, 4), Err(EINVAL));
        assert_eq!(client.write(index, 0, &[0; 4]), Err(EINVAL));
    }
    assert_eq!(
        client.ask(IRQ_INFO, &words(&[16, 0, MSIX, 0]), &[]).0,
        Ok(words(&[16, 9, MSIX, 16]))
    );
}

#[test]
fn accesses_past_the_end_of_a_region_are_refused() {
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    for (region, offset, count) in [
        (BAR0, 0x3fffd, 4),
        (BAR0, u64::MAX, 4),
        (BAR0, u64::MAX - 3, 4),
        (BAR0, 0, 4097),
        (CONFIG, 255, 2),
        (1, 0, 4),
    ] {
        assert_eq!(client.read(region, offset, count), Err(EINVAL), "{offset:#x}");
        if count <= 4 {
            assert_eq!(
                client.write(region, offset, &vec![0; count as usize]),
                Err(EINVAL)
            );
        }
    }
    assert_eq!(client.read(BAR0, 0x3fffc, 4).map(|bytes| bytes.len()), Ok(4));
    assert_eq!(client.read(BAR0, 1, 6).map(|bytes| bytes.len()), Ok(6));
    assert_eq!(client.read(BAR0, 0, 0), Ok(vec![]));
}

#[test]
fn file_descriptors_that_do_not_belong_end_the_connection() {
    let running = running();
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    for count in [1, 16, 17, 60] {
        let mut client = Client::greeted(running.dir(), 0);
        client.send(&header(1, RESET, 16, 0), &vec![event.as_fd(); count]);
        assert!(client.is_dropped(), "{count}");
    }
    assert_alive(&running);
}

#[test]
fn interrupts_need_a_descriptor_each_and_vectors_that_exist() {
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    let some = |count| vec![event.as_fd(); count];
    assert_eq!(client.set_irqs(SIGNAL, MSIX, 0, 16, &some(16)), Ok(()));
    assert_eq!(client.set_irqs(SIGNAL, MSIX, 3, 2, &[]), Ok(()));
    assert_eq!(client.set_irqs(DISABLE, MSIX, 0, 0, &[]), Ok(()));
    for (index, start, count, fds) in [
        (MSIX, 0, 2, 1),
        (MSIX, 0, 1, 2),
        (MSIX, 16, 1, 1),
        (MSIX, 1, 16, 0),
        (MSIX, u32::MAX, 2, 0),
        (0, 0, 1, 1),
        (9, 0, 0, 0),
    ] {
        assert_eq!(
            client.set_irqs(SIGNAL, index, start, count, &some(fds)),
            Err(EINVAL),
            "{index} {start}+{count}"
        );
    }
    assert_eq!(client.set_irqs(0x08, MSIX, 0, 1, &[]), Err(EINVAL), "masking");
}

#[test]
fn memory_that_cannot_be_is_refused() {
    const EEXIST: u32 = 17;
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    let memory = memfd(0x2000);
    let fd = [memory.as_fd()];
    assert_eq!(client.map(0x1000, 0x3000, 0, &fd), Err(EINVAL), "past its file");
    assert_eq!(client.map(0x1000, 0x800, 0, &fd), Err(EINVAL), "half a page");
    assert_eq!(
        client.map(!0xfff, 0x2000, 0, &fd),
        Err(EINVAL),
        "past the end of addresses"
    );
    assert_eq!(
        client.map(0x1000, 0x1000, 0, &[fd[0], fd[0]]),
        Err(EINVAL),
        "two files"
    );
    assert_eq!(client.map(0x1000, 0x2000, 0, &fd), Ok(()));
    assert_eq!(client.map(0x2000, 0x1000, 0, &fd), Err(EEXIST), "overlaps");
    assert_eq!(client.unmap(0x1000, 0x1000), Err(EINVAL), "half of it");
    assert_eq!(client.unmap(0x8000, 0x1000), Err(EINVAL), "nothing");
    assert_eq!(client.unmap(0x1000, 0x2000), Ok(()));
    let pipe = rustix::pipe::pipe().unwrap();
    assert!(
        client.map(0x1000, 0x1000, 0, &[pipe.0.as_fd()]).is_err(),
        "no memory"
    );
    assert_alive(&running);
}

#[test]
fn a_client_that_reads_no_replies_holds_up_nobody() {
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    client.socket.set_nonblocking(true).unwrap();
    let body = [longs(&[0]), words(&[CONFIG, 256])].concat();
    let message = [header(1, READ, 32, 0), body].concat();
    // Until neither side takes any more.
    while client.socket.write_all(&message).is_ok() {}
    assert_alive(&running);
    // It is not lost either: what fits has been answered.
    let mut reply = [0; 288];
    client.socket.set_nonblocking(false).unwrap();
    std::io::Read::read_exact(&mut client.socket, &mut reply).unwrap();
    assert_eq!(reply[32..36], [0x36, 0x1b, 0x40, 0]);
}

#[test]
fn a_client_that_asks_for_more_than_it_reads_gets_all_of_it_in_order() {
    const COUNT: usize = 20_000;
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    let mut writer = client.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for index in 0..COUNT {
            let id = u16::try_from(index % 65536).unwrap();
            let body = [longs(&[0]), words(&[CONFIG, 256])].concat();
            let message = [header(id, READ, 32, 0), body].concat();
            writer.write_all(&message).unwrap();
        }
    });
    let mut reply = [0; 288];
    for index in 0..COUNT {
        std::io::Read::read_exact(&mut client.socket, &mut reply).unwrap();
        assert_eq!(
            usize::from(u16::from_le_bytes([reply[0], reply[1]])),
            index % 65536
        );
    }
    sender.join().unwrap();
}

#[test]
fn a_guest_that_does_nothing_but_write_registers_leaves_the_others_their_turn() {
    let running = running();
    let mut client = Client::greeted(running.dir(), 0);
    client.socket.set_nonblocking(true).unwrap();
    let entry = [longs(&[0x18]), words(&[BAR0, 4, 1 << 16, 0])].concat();
    let body = [longs(&[200]), entry.repeat(200)].concat();
    let message = [header(0, WRITE_MULTI, 16 + body.len(), 1 << 4), body].concat();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flood = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut rest = &message[..];
                while !rest.is_empty() {
                    match client.socket.write(rest) {
                        Ok(count) => rest = &rest[count..],
                        Err(_) => std::thread::yield_now(),
                    }
                }
            }
        }
    });
    for _ in 0..20 {
        assert_alive(&running);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    flood.join().unwrap();
}
