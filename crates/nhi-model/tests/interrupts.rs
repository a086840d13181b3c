//! Interrupts as drivers use them: no event is lost, whatever is on its way to the controller meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

mod rig;

use rig::{DMA_MISC, INT_CLEAR, INT_MASK, INT_THROTTLE, INT_VECTOR, MS, Rig, SIZE};
use usb4_nhi_model::{Command, CommandError, MappedPage, Nanos, Nhi};

/// Identities of PCI: Intel's driver path clears by itself, every other by INT_CLEAR.
const IDENTITIES: [&str; 2] = ["8086:ff01", "1b36:0040"];
/// Ring bit of RX ring 1 with 12 hops, and the vector the rig gives it.
const BIT: u32 = 13;
const VECTOR: u16 = 13;

/// A driver of one RX ring by callback, without NAPI: on an interrupt it issues INT_CLEAR (a posted write, which
/// takes its time to arrive) and then scans the ring.
struct Driver {
    auto_clear: bool,
    /// Frames it has seen.
    seen: u32,
    /// INT_CLEAR writes under way, oldest first.
    posted: Vec<Nanos>,
}

impl Driver {
    fn new(rig: &mut Rig, identity: &str) -> Self {
        let auto_clear = identity.starts_with("8086");
        rig.write(1, DMA_MISC, if auto_clear { 1 << 2 } else { 1 << 17 });
        Self {
            auto_clear,
            seen: 0,
            posted: Vec::new(),
        }
    }

    fn interrupt(&mut self, rig: &mut Rig, flight_time: Nanos) {
        if !self.auto_clear {
            self.posted.push(rig.now + flight_time);
        }
        while rig.got(1, 1, self.seen).is_some() {
            self.seen += 1;
            rig.post_rx(1, 1, self.seen + SIZE - 2..self.seen + SIZE - 1);
        }
    }

    fn arrive(&mut self, rig: &mut Rig) {
        while self.posted.first().is_some_and(|&at| at <= rig.now) {
            self.posted.remove(0);
            rig.write(1, INT_CLEAR, 1 << BIT);
        }
    }
}

#[test]
fn a_ring_without_napi_never_loses_an_interrupt() {
    for identity in IDENTITIES {
        for throttle in [0, 500] {
            let mut rig = Rig::parse(&format!("pair,pci={identity}"));
            rig.connect(0, 0);
            rig.post_rx(1, 1, 0..SIZE - 1);
            rig.write(1, INT_THROTTLE + 4 * u64::from(VECTOR), throttle);
            let mut driver = Driver::new(&mut rig, identity);
            // A frame every 1.0 to 1.9 us, interrupts served after 0.7 us, clears that take 0.9 us: every order occurs.
            let (mut next, mut serve) = (rig.now, None);
            for i in 0..500u32 {
                let target = next + Nanos::from(i * 37 % 10) * 100;
                next = target + 1000;
                while rig.now < target {
                    rig.advance_by(100);
                    driver.arrive(&mut rig);
                    if rig.world.interrupts[1].drain(..).any(|vector| vector == VECTOR) && serve.is_none() {
                        serve = Some(rig.now + 700);
                    }
                    if serve.is_some_and(|at| at <= rig.now) {
                        serve = None;
                        driver.interrupt(&mut rig, 900);
                    }
                }
                if i - driver.seen < SIZE - 2 {
                    rig.send(0, 1, i, &i.to_le_bytes());
                } else {
                    panic!(
                        "{identity}, throttle {throttle}: stuck after {} of {i} frames",
                        driver.seen
                    );
                }
                // Ping-pong, as one that waits for its peer would: the next frame only after this one was seen.
                let deadline = rig.now + MS;
                while driver.seen <= i {
                    assert!(
                        rig.now < deadline,
                        "{identity}, throttle {throttle}: frame {i} is never seen"
                    );
                    rig.advance_by(100);
                    driver.arrive(&mut rig);
                    if rig.world.interrupts[1].drain(..).any(|vector| vector == VECTOR) {
                        driver.interrupt(&mut rig, 900);
                    }
                }
            }
        }
    }
}

#[test]
fn a_clear_that_arrives_behind_a_new_frame_does_not_hide_it() {
    for identity in IDENTITIES {
        let mut rig = Rig::parse(&format!("pair,pci={identity}"));
        rig.connect(0, 0);
        rig.post_rx(1, 1, 0..8);
        Driver::new(&mut rig, identity);
        rig.world.interrupts[1].clear();
        rig.send(0, 1, 0, b"first");
        assert_eq!(rig.world.interrupts[1], [VECTOR], "{identity}");
        // The driver has issued its clear and scanned; the second frame is there before the clear is.
        rig.send(0, 1, 1, b"second");
        rig.write(1, INT_CLEAR, 1 << BIT);
        assert_eq!(rig.world.interrupts[1], [VECTOR, VECTOR], "{identity}");
    }
}

#[test]
fn napi_hears_of_what_came_while_it_was_masked() {
    let mut rig = Rig::parse("pair");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..8);
    rig.send(0, 1, 0, b"wakes");
    let mask = rig.read(1, INT_MASK);
    rig.write(1, INT_MASK, mask & !(1 << BIT));
    rig.world.interrupts[1].clear();
    rig.send(0, 1, 1, b"masked");
    assert_eq!(rig.world.interrupts[1], []);
    rig.write(1, INT_MASK, mask);
    assert_eq!(rig.world.interrupts[1], [VECTOR]);
}

#[test]
fn moderation_spaces_messages_by_256_ns_ticks() {
    let mut rig = Rig::parse("pair");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..15);
    rig.write(1, INT_THROTTLE + 4 * u64::from(VECTOR), 500);
    rig.world.interrupts[1].clear();
    for i in 0..8 {
        rig.send(0, 1, i, b"x");
        rig.advance_by(16_000);
    }
    assert_eq!(rig.world.interrupts[1].len(), 2, "at once, and after 128 us");
    assert_eq!(rig.counters(1).moderated, 1);
    let mut rig = Rig::parse("pair,moderation=off");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..15);
    rig.write(1, INT_THROTTLE + 4 * u64::from(VECTOR), 500);
    rig.world.interrupts[1].clear();
    (0..8).for_each(|i| rig.send(0, 1, i, b"x"));
    assert_eq!(rig.world.interrupts[1].len(), 8);
}

#[test]
fn vectors_taken_away_for_a_moment_lose_nothing() {
    let mut rig = Rig::parse("pair");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..8);
    rig.open_vectors(1, false);
    rig.world.interrupts[1].clear();
    rig.send(0, 1, 0, b"x");
    assert_eq!(rig.fabric.bar2_read(Nhi(1), 0x800), 1 << VECTOR);
    rig.open_vectors(1, true);
    assert_eq!(rig.world.interrupts[1], [VECTOR]);
    assert_eq!(rig.fabric.bar2_read(Nhi(1), 0x800), 0);
}

#[test]
fn an_unmask_in_a_mapped_page_is_noticed_by_polling() {
    let mut rig = Rig::parse("pair,pci=8086:ff01");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..8);
    let mut page: Vec<u32> = (0..0x400).map(|i| rig.read(1, 0x38000 + 4 * i)).collect();
    let at = |offset: u64| ((offset - 0x38000) / 4) as usize;
    let mask = page[at(INT_MASK)];
    for (masked, expected) in [(mask & !(1 << BIT), 0), (mask, 1)] {
        page[at(INT_MASK)] = masked;
        page[at(INT_VECTOR)] = rig.read(1, INT_VECTOR);
        let (now, world) = (rig.now, &mut rig.world);
        world.interrupts[1].clear();
        let mut word = |offset: u64| page[at(offset)];
        assert!(
            rig.fabric
                .poll(Nhi(1), MappedPage::Interrupts, &mut word, now, world)
        );
        assert_eq!(rig.world.interrupts[1].len(), expected);
        if expected == 0 {
            rig.send(0, 1, 0, b"x");
        }
    }
}

#[test]
fn a_lost_interrupt_is_lost_and_the_next_is_not() {
    let mut rig = Rig::parse("pair");
    (0..2).for_each(|n| rig.acknowledge_all(n));
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..8);
    rig.world.interrupts[1].clear();
    rig.command(Command::LoseInterrupts {
        nhi: Nhi(1),
        vector: Some(VECTOR),
        count: 1,
    });
    rig.send(0, 1, 0, b"x");
    rig.advance_by(1000 * MS);
    assert_eq!(rig.world.interrupts[1], []);
    rig.send(0, 1, 1, b"x");
    assert_eq!(rig.world.interrupts[1], [VECTOR]);
    assert_eq!(rig.counters(1).lost_interrupts, 1);
}

#[test]
fn interrupts_are_lost_at_random() {
    const FRAMES: u32 = 100;
    let mut rig = Rig::parse("pair");
    (0..2).for_each(|n| rig.acknowledge_all(n));
    rig.connect(0, 0);
    rig.world.interrupts[1].clear();
    let loss = |ppm| Command::InterruptLoss { nhi: Nhi(1), ppm };
    assert_eq!(
        rig.try_command(loss(1_000_001)),
        Err(CommandError::BadRate(1_000_001))
    );
    rig.command(loss(300_000));
    for frame in 0..FRAMES {
        rig.post_rx(1, 1, frame..frame + 1);
        rig.send(0, 1, frame, b"x");
        rig.advance_by(1000 * MS);
    }
    let came = rig.world.interrupts[1].len() as u32;
    assert!((50..90).contains(&came), "{came}");
    assert_eq!(rig.counters(1).lost_interrupts, u64::from(FRAMES - came));
}
