//! A guest that does anything at all, next to two that behave.
//!
//! Whatever it does, no call does more than a bounded amount of work, the fabric does not touch memory of a guest that
//! is gone, and the other two still reach each other and their routers.

use super::{ADAPTER, ENABLE, MEMORY, MS, PATH, ROUTER, Rig, SIZE};
use usb4_nhi_model::{
    Cable, CableFaults, Command, ControlPacket, Direction, MappedPage, Nanos, Nhi, Ring, RingKind, Towards,
};

/// Where the input comes from; None at its end.
pub type Source<'a> = &'a mut dyn FnMut() -> Option<u8>;

const GUEST: usize = 0;
/// Accesses to memory one call may make: a burst of 256 frames, six accesses each, and a queue of control packets for
/// every controller.
const ACCESSES_MAX: usize = 256 * 6 + 3 * 64 * 3;
/// Calls of `advance` after which an idle fabric must be idle, or waiting.
const ROUNDS_MAX: usize = 2000;

const TOPOLOGIES: [&str; 4] = [
    "triangle",
    "triangle,hops=strix,usb4=2,pci=8086:ff01,wedge=on",
    "triangle,rate=10000,latency=500,lanes=1,hops=16",
    "triangle,latency=20000,train=1,moderation=off",
];

/// Registers worth writing to.
const REGISTERS: [u64; 16] = [
    0x00000, 0x00010, 0x00020, 0x08000, 0x08010, 0x08020, 0x19800, 0x19820, 0x29800, 0x29820, 0x37800,
    0x38200, 0x38c00, 0x38c40, 0x39840, 0x39880,
];

struct Choices<'a>(Source<'a>, bool);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let byte = (self.0)();
        self.1 |= byte.is_none();
        byte.unwrap_or(0)
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    /// A register's value: small, large, or a flag.
    fn value(&mut self) -> u32 {
        match self.byte() % 4 {
            0 => u32::from(self.byte()),
            1 => u32::from(self.byte()) << 16,
            2 => 1 << (self.byte() % 32),
            _ => self.u32(),
        }
    }
}

/// Interprets the source as what the hostile guest does.
pub fn run(source: Source<'_>) {
    let mut choices = Choices(source, false);
    let mut rig = Rig::parse(TOPOLOGIES[choices.below(TOPOLOGIES.len())]);
    rig.world.record = false;
    connect_honest(&mut rig);
    while !choices.1 {
        event(&mut rig, &mut choices);
        drain(&mut rig);
    }
    settle(&mut rig, MS);
    check_honest(&mut rig);
}

/// Host 1's port 1 leads to host 2's port 0.
fn connect_honest(rig: &mut Rig) {
    rig.open_tx(1, 1, 1, 8);
    rig.open_rx(2, 1, 0, 8);
    rig.ring(1, true, 1, ENABLE);
    rig.ring(2, false, 1, ENABLE);
    rig.post_rx(2, 1, 0..SIZE - 1);
}

fn check_honest(rig: &mut Rig) {
    rig.send(1, 1, 0, b"still here");
    settle(rig, MS);
    assert_eq!(
        rig.got(2, 1, 0).map(|got| got.bytes),
        Some(b"still here".to_vec())
    );
    drain(rig);
    rig.send_control(1, &ControlPacket::new(1, vec![0, 0, ROUTER << 25 | 1 << 13 | 7]));
    let mut answered = false;
    while let Some(got) = rig.receive_raw(1) {
        answered |= got.eof == 1;
    }
    assert!(answered, "host 1's router does not answer");
}

/// The honest hosts take their control packets.
fn drain(rig: &mut Rig) {
    for n in 1..3 {
        while rig.receive_raw(n).is_some() {}
    }
}

/// Lets time pass; must end.
fn settle(rig: &mut Rig, time: Nanos) {
    let end = rig.now + time;
    for _ in 0..ROUNDS_MAX {
        let Some(at) = rig.fabric.deadline().filter(|&at| at <= end) else {
            rig.now = end;
            return;
        };
        rig.now = rig.now.max(at);
        bounded(rig, |rig| rig.fabric.advance(rig.now, &mut rig.world));
        drain(rig);
    }
    // A guest may keep itself busy (a ring of 65535 frames, plug events never acknowledged), but time must be able to
    // go on.
    rig.now = end;
    bounded(rig, |rig| rig.fabric.advance(rig.now, &mut rig.world));
}

fn bounded(rig: &mut Rig, call: impl FnOnce(&mut Rig)) {
    let before = rig.world.accesses;
    call(rig);
    let made = rig.world.accesses - before;
    assert!(made <= ACCESSES_MAX, "one call made {made} accesses");
}

fn event(rig: &mut Rig, choices: &mut Choices<'_>) {
    match choices.byte() % 12 {
        0 | 1 => {
            let base = REGISTERS[choices.below(REGISTERS.len())];
            let (at, value) = (base + 4 * u64::from(choices.byte() % 16), choices.value());
            bounded(rig, |rig| rig.write(GUEST, at, value));
        }
        2 => {
            let (at, value) = (u64::from(choices.u32() % 0x40100), choices.value());
            let (now, guest) = (rig.now, Nhi(GUEST));
            bounded(rig, |rig| {
                rig.fabric.bar0_write(guest, at, value, now, &mut rig.world)
            });
            bounded(rig, |rig| {
                let _ = rig.fabric.bar0_read(guest, at, now, &mut rig.world);
            });
        }
        3 => {
            let (at, byte) = (usize::from(choices.byte()), choices.byte());
            bounded(rig, |rig| rig.config_write(GUEST, at, &[byte]));
        }
        4 | 5 => {
            // Descriptors and buffers.
            let at = (choices.u32() as usize % (MEMORY / 16)) * 16;
            let words = [choices.value(), 0, choices.value(), 0];
            for (i, word) in words.into_iter().enumerate() {
                rig.put32(GUEST, (at + 4 * i) as u64, word);
            }
        }
        6 => control(rig, choices),
        7 => {
            let time = Nanos::from(choices.byte()) << (choices.byte() % 24);
            settle(rig, time);
        }
        8 => {
            let (now, vector, open) = (rig.now, u16::from(choices.byte() % 20), choices.byte() % 2 == 0);
            bounded(rig, |rig| {
                rig.fabric
                    .set_vector(Nhi(GUEST), vector, open, now, &mut rig.world)
            });
        }
        9 => attach(rig, choices),
        10 => {
            let pages = [MappedPage::TxRings, MappedPage::RxRings, MappedPage::Interrupts];
            let page = pages[choices.below(3)];
            let now = rig.now;
            bounded(rig, |rig| {
                rig.fabric
                    .poll(Nhi(GUEST), page, &mut |_| choices.value(), now, &mut rig.world);
            });
        }
        _ => command(rig, choices),
    }
}

/// A control packet with a good CRC, so that it gets further.
fn control(rig: &mut Rig, choices: &mut Choices<'_>) {
    let pdf = choices.byte() % 9;
    let adapter = u32::from(choices.byte() % 8);
    let space = [PATH, ADAPTER, ROUTER, 3][choices.below(4)];
    let (offset, len) = (u32::from(choices.byte()) % 0x48, u32::from(choices.byte() % 8));
    let mut words = vec![
        0,
        u32::from(choices.byte() % 4),
        space << 25 | adapter << 19 | len << 13 | offset,
    ];
    if choices.byte() % 4 == 0 {
        words[2] = choices.u32();
    }
    words.extend((0..len).map(|_| choices.value()));
    bounded(rig, |rig| {
        rig.send_control(GUEST, &ControlPacket::new(pdf, words))
    });
}

fn attach(rig: &mut Rig, choices: &mut Choices<'_>) {
    let now = rig.now;
    match choices.byte() % 8 {
        0 => {
            rig.fabric.disconnected(Nhi(GUEST), now, &mut rig.world);
            let before = rig.world.memory[GUEST].clone();
            settle(rig, MS);
            assert_eq!(rig.world.memory[GUEST], before, "memory of a guest that is gone");
            rig.fabric.connected(Nhi(GUEST), rig.now, &mut rig.world);
        }
        1 => rig.fabric.reset(Nhi(GUEST), now, &mut rig.world),
        _ => {
            rig.config_write(GUEST, 4, &[6, 4]);
            rig.open_vectors(GUEST, true);
            rig.start_channel(GUEST);
        }
    }
}

/// Commands that harm nobody but the hostile guest and its cables, 0 and 2.
fn command(rig: &mut Rig, choices: &mut Choices<'_>) {
    let cable = Cable(2 * choices.below(2));
    let direction = [Direction::Forth, Direction::Back][choices.below(2)];
    let nhi = Nhi(GUEST);
    let kind = [RingKind::Tx, RingKind::Rx][choices.below(2)];
    let ring = Ring {
        kind,
        hop: choices.below(4),
    };
    let count = u32::from(choices.byte() % 4);
    let mut rate = || u32::from(choices.byte()) * 3000;
    let command = match rate() / 3000 % 12 {
        0 => Command::Plug(cable),
        1 => Command::Unplug(cable),
        2 => Command::Retrain {
            cable,
            lanes: 1 + (count % 2) as u8,
        },
        3 => {
            let faults = CableFaults {
                loss: rate(),
                corrupt: rate(),
                corrupt_silently: rate(),
                duplicate: rate(),
                control_loss: rate(),
                control_corrupt: rate(),
                control_duplicate: rate(),
                delay: u64::from(rate()),
                control_delay: u64::from(rate()),
            };
            Command::Faults {
                cable,
                direction: Some(direction),
                faults,
            }
        }
        4 => Command::LoseFrames {
            cable,
            direction,
            count,
        },
        5 => Command::LoseControl {
            nhi,
            towards: Towards::Host,
            count,
        },
        6 => Command::LoseInterrupts {
            nhi,
            vector: None,
            count,
        },
        7 => Command::StrandCompletions { nhi, ring, count },
        8 => Command::IgnoreDoorbells { nhi, ring, count },
        9 => Command::ResetPeer(nhi),
        10 => {
            let bytes = vec![7; 1 + rate() as usize % 5000];
            Command::InjectFrame {
                nhi,
                hop: ring.hop,
                sof: 1,
                eof: 2,
                bytes,
                crc_error: false,
            }
        }
        _ => Command::InjectControl {
            nhi,
            pdf: count as u8,
            bytes: vec![1; rate() as usize % 300],
        },
    };
    // Some are refused, which is as good.
    bounded(rig, |rig| drop(rig.try_command(command)));
}
