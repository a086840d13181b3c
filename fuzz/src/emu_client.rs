//! A vfio-user client of the emulator that says anything at all: whole messages, parts of them, with descriptors that do
//! not belong; and lines on the control socket. Answers stay well formed, memory it never announced stays as it was.

use usb4_nhi_emu::Map;
use usb4_nhi_emu::fuzz::Client;

use crate::input::{Input, Rng};

/// Messages QEMU sends.
const COMMANDS: [u16; 12] = [1, 2, 3, 4, 5, 7, 8, 9, 10, 13, 15, 6];
/// Registers of the host interface worth writing to.
const REGISTERS: [u64; 12] = [
    0x00000, 0x00010, 0x08000, 0x08010, 0x19800, 0x19820, 0x29800, 0x29820, 0x37808, 0x38200, 0x38c40,
    0x39898,
];
/// Beginnings of lines on the control socket.
const WORDS: [&str; 20] = [
    "plug",
    "unplug",
    "narrow",
    "loss",
    "corrupt",
    "duplicate",
    "delay",
    "heal",
    "lose-frames",
    "lose-control",
    "lose-interrupt",
    "strand-completion",
    "ignore-doorbell",
    "reset-peer",
    "inject frame",
    "inject control",
    "stats",
    "clear",
    "mark a",
    "",
];

/// Interprets the input as what the client does.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let maps = [Map::Nothing, Map::Doorbells];
    let Ok(mut client) = Client::new(maps[input.below(2)]) else {
        return;
    };
    if input.byte() & 1 == 0 {
        attach(&mut client);
    }
    while !input.is_empty() {
        act(&mut client, &mut input);
    }
    client.check();
}

/// Versions, memory at address 0, eventfds, bus master.
fn attach(client: &mut Client) {
    client.message(1, false, &[0; 4], 0, false);
    client.message(2, false, &map(0, 0, 8), 0, true);
    client.message(8, false, &words(&[20, 0x24, 2, 0, 16]), 16, false);
    write(client, 7, 4, 6, false);
}

fn act(client: &mut Client, input: &mut Input<'_>) {
    match input.below(9) {
        0 => {
            let command = COMMANDS[input.below(COMMANDS.len())];
            let (quiet, events) = (input.byte() & 1 != 0, input.below(18));
            let (memory, length) = (input.byte() & 1 != 0, input.below(64));
            let body = input.bytes(length);
            client.message(command, quiet, body, events, memory);
        }
        1 => {
            let (length, events) = (input.below(256), input.below(4));
            let bytes = input.bytes(length);
            client.send(bytes, events, false);
        }
        2 | 3 => {
            let offset = REGISTERS[input.below(REGISTERS.len())] + 4 * input.below(16) as u64;
            write(client, 0, offset, input.u32(), true);
        }
        4 => {
            let body = [
                longs(&[u64::from(input.u16()) * 4]),
                words(&[input.below(9) as u32, 4]),
            ]
            .concat();
            client.message(9, false, &body, 0, false);
        }
        5 => {
            let (page, offset) = (u64::from(input.byte()), u64::from(input.byte() % 16));
            client.message(
                2,
                false,
                &map(page, offset, u64::from(input.byte() % 16)),
                0,
                true,
            );
        }
        6 => {
            let at = u64::from(input.u16());
            let length = input.below(40);
            client.poke(at, input.bytes(length));
        }
        7 => {
            let offset = [0, 0x8000][input.below(2)] + 4 * u64::from(input.byte());
            client.poke_page(offset, input.u32());
        }
        _ => match input.byte() {
            time if time < 128 => client.wait(u64::from(time) * 1_000_000),
            word => {
                let word = WORDS[usize::from(word) % WORDS.len()];
                let numbers: Vec<_> = (0..input.below(6)).map(|_| input.byte().to_string()).collect();
                client.line(&format!("{word} {}", numbers.join(" ")));
            }
        },
    }
}

/// A register write.
fn write(client: &mut Client, region: u32, offset: u64, value: u32, quiet: bool) {
    let body = [longs(&[offset]), words(&[region, 4, value])].concat();
    client.message(10, quiet, &body, 0, false);
}

/// Arguments of DMA_MAP, in pages.
fn map(page: u64, offset: u64, pages: u64) -> Vec<u8> {
    const PAGE: u64 = 4096;
    let longs = longs(&[offset * PAGE, page * PAGE, pages * PAGE]);
    [words(&[32, 3]), longs].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

/// An orderly client, ring 0 started and written to; one in pieces; and noise.
pub fn seeds() -> Vec<Vec<u8>> {
    let ring = |register: u8, word: u8, value: u32| [&[2, register, word][..], &value.to_le_bytes()].concat();
    let start = [
        ring(0, 0, 0x1000),
        ring(0, 3, 16),
        ring(2, 0, 0x2000),
        ring(2, 3, 256 << 16 | 16),
        ring(4, 0, 3 << 30),
        ring(6, 0, 3 << 30),
        // A descriptor of 16 bytes at 0x1000, a packet that reads the router, its doorbell.
        vec![6, 0, 0x10, 12, 0, 0x30, 0, 0, 0, 0, 0, 0, 16, 0x10, 0xc1, 0],
        ring(0, 2, 1 << 16),
        vec![8, 20, 8, 128, 1, 0, 8, 145, 0],
    ];
    let mut rng = Rng::new(1);
    let mut noise = || -> Vec<u8> { (0..40).flat_map(|_| rng.next().to_le_bytes()).collect() };
    vec![
        [vec![0, 0], start.concat()].concat(),
        [vec![1, 0], start.concat()].concat(),
        vec![
            0, 1, 1, 20, 0, 7, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
        [vec![0, 0], noise()].concat(),
        [vec![1, 0], noise()].concat(),
    ]
}
