//! A guest: a client with memory and eventfds, and the registers of its controller.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use usb4_nhi_model::ControlPacket;

use super::client::{CONFIG, Client, DISABLE, MSIX, SIGNAL, memfd, signals};

pub const MEMORY: u64 = 1 << 20;
pub const TX_RINGS: u64 = 0;
pub const RX_RINGS: u64 = 0x8000;
const TX_OPTIONS: u64 = 0x19800;
const RX_OPTIONS: u64 = 0x29800;
pub const INT_STATUS: u64 = 0x37800;
pub const INT_CLEAR: u64 = 0x37808;
const INT_MASK: u64 = 0x38200;
const INT_VECTOR: u64 = 0x38c40;
const CAPS: u64 = 0x39640;
pub const ENABLE: u32 = 1 << 31;
const RAW: u32 = 1 << 30;
const COMPLETED: u32 = 2 << 20;
const PATH: u32 = 0;
const ADAPTER: u32 = 1;
const ROUTER: u32 = 2;
const SIZE: u32 = 16;
pub const SOF: u8 = 1;
pub const EOF: u8 = 2;
const HOPS: u64 = 12;
/// Adapter of the host interface of a router with one port.
const UPSTREAM: u32 = 3;

pub struct Guest {
    pub client: Client,
    pub memory: OwnedFd,
    pub events: Vec<OwnedFd>,
    /// BAR0 pages that are mapped, and their file.
    pages: (Vec<(u64, u64)>, Option<OwnedFd>),
    received: u32,
    sent: u32,
}

fn ring_at(tx: bool, hop: u64) -> u64 {
    0x1000 + (2 * hop + u64::from(tx)) * 0x400
}

fn buffer_at(tx: bool, hop: u64, index: u32) -> u64 {
    0x20000 + ((2 * hop + u64::from(tx)) % 8) * 0x10000 + u64::from(index % SIZE) * 0x1000
}

impl Guest {
    /// Attaches, with memory and all interrupts, and nothing started.
    pub fn attach(dir: &Path, nhi: usize) -> Self {
        let mut client = Client::greeted(dir, nhi);
        let (areas, fds) = client.pages();
        let memory = memfd(MEMORY);
        client.map(0, MEMORY, 0, &[memory.as_fd()]).unwrap();
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let events: Vec<_> = (0..16).map(|_| eventfd(0, flags).unwrap()).collect();
        let mut guest = Self {
            client,
            memory,
            events,
            pages: (areas, fds.into_iter().next()),
            received: 0,
            sent: 0,
        };
        guest.open_vectors();
        guest.client.write(CONFIG, 4, &[6, 4]).unwrap();
        guest
    }

    /// Attaches and brings the router up as Linux does: ring 0, enumeration, hot plug events.
    pub fn start(dir: &Path, nhi: usize) -> Self {
        let mut guest = Self::attach(dir, nhi);
        guest.ring(false, 0, ENABLE | RAW);
        guest.ring(true, 0, ENABLE | RAW);
        guest.post_rx(0, 0..SIZE - 1);
        guest.write_space(0, ROUTER, 3, &[1 << 31]);
        guest.write_space(1, ADAPTER, 5, &[0]);
        guest
    }

    pub fn open_vectors(&mut self) {
        let fds: Vec<_> = self.events.iter().map(AsFd::as_fd).collect();
        self.client.set_irqs(SIGNAL, MSIX, 0, 16, &fds).unwrap();
    }

    pub fn close_vectors(&mut self) {
        self.client.set_irqs(DISABLE, MSIX, 0, 0, &[]).unwrap();
    }

    /// Waits for an interrupt.
    pub fn wait(&self, vector: usize) {
        let event = &self.events[vector];
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        let timeout = Timespec::try_from(super::PATIENCE).unwrap();
        assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "no interrupt {vector}");
        assert!(signals(event) > 0);
    }

    /// The vector of a ring: the number of its interrupt bit.
    pub fn vector(tx: bool, hop: u64) -> usize {
        (if tx { hop } else { hop + HOPS }) as usize % 16
    }

    // ---- registers and memory ----

    /// Writes a register as the processor would: into a mapped page, or by a message.
    pub fn write(&mut self, at: u64, value: u32) {
        let (areas, file) = &self.pages;
        let mapped = areas
            .iter()
            .any(|&(start, size)| (start..start + size).contains(&at));
        match file {
            Some(file) if mapped => {
                rustix::io::pwrite(file, &value.to_le_bytes(), at).unwrap();
            }
            _ => self.client.post_write(at, value),
        }
    }

    pub fn put32(&mut self, at: u64, value: u32) {
        rustix::io::pwrite(&self.memory, &value.to_le_bytes(), at).unwrap();
    }

    pub fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        rustix::io::pread(&self.memory, &mut bytes, at).unwrap();
        bytes
    }

    pub fn get32(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.get(at))
    }

    // ---- rings ----

    pub fn ring(&mut self, tx: bool, hop: u64, options: u32) {
        let (rings, opts) = if tx {
            (TX_RINGS, TX_OPTIONS)
        } else {
            (RX_RINGS, RX_OPTIONS)
        };
        let registers = rings + 16 * hop;
        let max = if hop == 0 { 256 } else { 0 };
        self.write(registers, ring_at(tx, hop) as u32);
        self.write(registers + 4, 0);
        self.write(registers + 8, 0);
        self.write(registers + 12, max << 16 | SIZE);
        self.write(opts + 32 * hop + 4, 2 << 16 | 4);
        self.write(opts + 32 * hop, options);
        let bit = if tx { hop } else { hop + HOPS };
        let (word, shift) = (INT_VECTOR + 4 * (bit / 8), 4 * (bit % 8));
        let vectors = self.client.read32(word) & !(0xf << shift) | (bit as u32 & 0xf) << shift;
        self.write(word, vectors);
        let mask = self.client.read32(INT_MASK + 4 * (bit / 32)) | 1 << (bit % 32);
        self.write(INT_MASK + 4 * (bit / 32), mask);
    }

    pub fn post_rx(&mut self, hop: u64, indices: std::ops::Range<u32>) {
        for index in indices.clone() {
            let at = ring_at(false, hop) + 16 * u64::from(index % SIZE);
            self.put32(at, buffer_at(false, hop, index) as u32);
            self.put32(at + 8, 0xc << 20);
        }
        self.write(RX_RINGS + 16 * hop + 8, indices.end % SIZE);
    }

    /// Sends a frame whose buffer is at `buffer`.
    pub fn send_from(&mut self, hop: u64, index: u32, buffer: u64, len: u32, sof: u8, eof: u8) {
        let at = ring_at(true, hop) + 16 * u64::from(index % SIZE);
        self.put32(at, buffer as u32);
        self.put32(at + 4, (buffer >> 32) as u32);
        let pdfs = u32::from(eof) << 12 | u32::from(sof) << 16;
        self.put32(at + 8, len & 0xfff | pdfs | 0xc << 20);
        self.write(TX_RINGS + 16 * hop + 8, ((index + 1) % SIZE) << 16);
    }

    pub fn send(&mut self, hop: u64, index: u32, bytes: &[u8], sof: u8, eof: u8) {
        let buffer = buffer_at(true, hop, index);
        rustix::io::pwrite(&self.memory, bytes, buffer).unwrap();
        self.send_from(hop, index, buffer, bytes.len() as u32, sof, eof);
    }

    /// The frame in an RX descriptor, and its last PDF.
    pub fn got(&self, hop: u64, index: u32) -> Option<(Vec<u8>, u8)> {
        let at = ring_at(false, hop) + 16 * u64::from(index % SIZE);
        let word = self.get32(at + 8);
        let mut bytes = vec![0; word as usize & 0xfff];
        rustix::io::pread(&self.memory, &mut bytes, buffer_at(false, hop, index)).unwrap();
        (word & COMPLETED != 0).then_some((bytes, (word >> 12 & 0xf) as u8))
    }

    // ---- control channel ----

    pub fn send_control(&mut self, packet: &ControlPacket) {
        let index = self.sent;
        self.sent += 1;
        self.send(0, index, &packet.encode(), packet.pdf, packet.pdf);
    }

    /// The next control packet, waited for.
    pub fn receive(&mut self) -> ControlPacket {
        while self.got(0, self.received).is_none() {
            self.wait(Self::vector(false, 0));
            self.write(INT_CLEAR, 1 << HOPS);
        }
        let index = self.received;
        self.received += 1;
        let (bytes, eof) = self.got(0, index).unwrap();
        self.post_rx(0, index + SIZE - 1..index + SIZE);
        ControlPacket::decode(eof, &bytes).unwrap()
    }

    /// Waits for a packet of this type; others are thrown away, plug events acknowledged.
    pub fn receive_type(&mut self, pdf: u8) -> ControlPacket {
        loop {
            let packet = self.receive();
            if packet.pdf == 5 {
                let (adapter, unplug) = (packet.words[2] & 0x3f, packet.words[2] >> 31);
                let acknowledge = 7 | adapter << 8 | (2 | unplug) << 30;
                self.send_control(&ControlPacket::new(3, vec![0, 0, acknowledge]));
            }
            if packet.pdf == pdf {
                return packet;
            }
        }
    }

    pub fn write_space(&mut self, adapter: u32, space: u32, at: u32, data: &[u32]) {
        let address = space << 25 | adapter << 19 | (data.len() as u32) << 13 | at;
        let mut words = vec![0, 0, address];
        words.extend(data);
        self.send_control(&ControlPacket::new(2, words));
        self.receive_type(2);
    }

    pub fn read_space(&mut self, adapter: u32, space: u32, at: u32) -> u32 {
        let address = space << 25 | adapter << 19 | 1 << 13 | at;
        self.send_control(&ControlPacket::new(1, vec![0, 0, address]));
        self.receive_type(1).words[3]
    }

    /// Paths between ring 1 and the cable, and ring 1 itself with buffers.
    pub fn connect(&mut self) {
        self.write_space(UPSTREAM, PATH, 2, &[8 | 1 << 11 | 1 << 31, 0]);
        self.write_space(1, PATH, 16, &[1 | UPSTREAM << 11 | 1 << 31, 0]);
        self.ring(true, 1, ENABLE);
        self.ring(false, 1, ENABLE);
        self.post_rx(1, 0..8);
        // Mapped registers are looked at before a trapped one is read: the buffers are seen before the peer sends.
        assert_eq!(u64::from(self.client.read32(CAPS) & 0x3ff), HOPS);
    }
}
