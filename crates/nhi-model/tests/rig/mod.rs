//! Hosts of a fabric, driven as a driver would: register writes, descriptors in memory, control packets.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "each test uses a part of it; a panic is how a test fails"
)]

pub mod hostile;

use usb4_nhi_model::{
    BAR0_SIZE, Command, CommandError, ControlPacket, Counters, Env, Event, Fabric, Nanos, Nhi, Reply, Stats,
    Topology, VECTORS,
};

pub const MEMORY: usize = 1 << 20;
pub const TX_RINGS: u64 = 0;
pub const RX_RINGS: u64 = 0x8000;
pub const TX_OPTIONS: u64 = 0x19800;
pub const RX_OPTIONS: u64 = 0x29800;
pub const INT_CLEAR: u64 = 0x37808;
pub const INT_MASK: u64 = 0x38200;
pub const INT_THROTTLE: u64 = 0x38c00;
pub const INT_VECTOR: u64 = 0x38c40;
pub const DMA_MISC: u64 = 0x39864;
pub const ENABLE: u32 = 1 << 31;
pub const RAW: u32 = 1 << 30;
pub const E2E: u32 = 1 << 28;
pub const COMPLETED: u32 = 2;
pub const PATH: u32 = 0;
pub const ADAPTER: u32 = 1;
pub const ROUTER: u32 = 2;
/// Descriptors of every ring here.
pub const SIZE: u32 = 16;
/// SOF and EOF PDFs of frames, and the masks that want them.
pub const SOF: u8 = 1;
pub const EOF: u8 = 2;
pub const MASKS: u32 = 2 << 16 | 4;
pub const MS: Nanos = 1_000_000;

/// Guest memory, interrupts, and a log.
pub struct World {
    pub memory: Vec<Vec<u8>>,
    pub interrupts: Vec<Vec<u16>>,
    pub log: Vec<String>,
    /// Keep a log.
    pub record: bool,
    pub accesses: usize,
    /// Bytes of memory that exist; beyond, accesses fail.
    pub limit: usize,
}

impl World {
    fn range(&mut self, addr: u64, len: usize) -> Option<core::ops::Range<usize>> {
        self.accesses += 1;
        let start = usize::try_from(addr).ok()?;
        let end = start.checked_add(len)?;
        (end <= self.limit).then_some(start..end)
    }
}

impl Env for World {
    fn read(&mut self, nhi: Nhi, addr: u64, buf: &mut [u8]) -> bool {
        let Some(range) = self.range(addr, buf.len()) else {
            return false;
        };
        buf.copy_from_slice(&self.memory[nhi.0][range]);
        true
    }

    fn write(&mut self, nhi: Nhi, addr: u64, bytes: &[u8]) -> bool {
        let Some(range) = self.range(addr, bytes.len()) else {
            return false;
        };
        self.memory[nhi.0][range].copy_from_slice(bytes);
        true
    }

    fn interrupt(&mut self, nhi: Nhi, vector: u16) {
        self.interrupts[nhi.0].push(vector);
    }

    fn observe(&mut self, now: Nanos, event: &Event<'_>) {
        if !self.record {
            return;
        }
        self.log.push(match event {
            Event::Frame {
                at, hop, bytes, fate, ..
            } => format!("{now} {at:?} {hop} {} {fate:?}", bytes.len()),
            other => format!("{now} {other:?}"),
        });
    }
}

/// A received descriptor: flags, SOF, EOF and bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Got {
    pub flags: u32,
    pub sof: u8,
    pub eof: u8,
    pub bytes: Vec<u8>,
}

pub struct Rig {
    pub fabric: Fabric,
    pub world: World,
    pub now: Nanos,
    /// Per controller, packets read from ring 0 so far, and posted to it.
    channel: Vec<[u32; 2]>,
}

fn ring_at(tx: bool, hop: u64) -> u64 {
    0x1000 + (2 * hop + u64::from(tx)) * 0x400
}

fn buffer_at(tx: bool, hop: u64, index: u64) -> u64 {
    0x20000 + ((2 * hop + u64::from(tx)) % 8) * 0x10000 + index * 0x1000
}

impl Rig {
    /// Controllers that nobody has touched.
    pub fn cold(topology: Topology) -> Self {
        let count = topology.nhis();
        let fabric = Fabric::new(topology, 1).unwrap();
        let world = World {
            memory: vec![vec![0; MEMORY]; count],
            interrupts: vec![Vec::new(); count],
            log: Vec::new(),
            record: true,
            accesses: 0,
            limit: MEMORY,
        };
        Self {
            fabric,
            world,
            now: 1000,
            channel: vec![[0; 2]; count],
        }
    }

    /// All hosts have started, enumerated their routers and wait for plug events; links are up.
    pub fn new(topology: Topology) -> Self {
        let mut rig = Self::cold(topology);
        for n in 0..rig.channel.len() {
            rig.start(n);
        }
        rig.advance_by(1000 * MS);
        rig
    }

    pub fn parse(text: &str) -> Self {
        Self::new(text.parse().unwrap())
    }

    /// What a driver does first: bus master, interrupts, ring 0, enumeration.
    pub fn start(&mut self, n: usize) {
        self.fabric.connected(Nhi(n), self.now, &mut self.world);
        self.config_write(n, 4, &[6, 4]);
        self.open_vectors(n, true);
        self.start_channel(n);
        self.write_space(n, 0, ROUTER, 3, &[1 << 31]);
        for port in 0..self.fabric.topology().ports as u32 {
            self.write_space(n, 2 * port + 1, ADAPTER, 5, &[0]);
        }
    }

    pub fn start_channel(&mut self, n: usize) {
        self.channel[n] = [0; 2];
        self.ring(n, false, 0, ENABLE | RAW);
        self.ring(n, true, 0, ENABLE | RAW);
        self.post_rx(n, 0, 0..SIZE - 1);
    }

    pub fn open_vectors(&mut self, n: usize, open: bool) {
        for vector in 0..VECTORS as u16 {
            self.fabric
                .set_vector(Nhi(n), vector, open, self.now, &mut self.world);
        }
    }

    pub fn config_write(&mut self, n: usize, at: usize, bytes: &[u8]) {
        self.fabric
            .config_write(Nhi(n), at, bytes, self.now, &mut self.world);
    }

    pub fn config_byte(&self, n: usize, at: usize) -> u8 {
        let mut byte = [0];
        self.fabric.config_read(Nhi(n), at, &mut byte);
        byte[0]
    }

    pub fn write(&mut self, n: usize, at: u64, value: u32) {
        assert!(at < BAR0_SIZE);
        self.fabric
            .bar0_write(Nhi(n), at, value, self.now, &mut self.world);
    }

    pub fn read(&mut self, n: usize, at: u64) -> u32 {
        self.fabric.bar0_read(Nhi(n), at, self.now, &mut self.world)
    }

    /// Lets time pass, and everything that is due happen in its order.
    pub fn advance_by(&mut self, time: Nanos) {
        let end = self.now + time;
        while let Some(at) = self.fabric.deadline().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.fabric.advance(self.now, &mut self.world);
        }
        self.now = end;
        self.fabric.advance(self.now, &mut self.world);
    }

    pub fn command(&mut self, command: Command) -> Reply {
        self.try_command(command).unwrap()
    }

    pub fn try_command(&mut self, command: Command) -> Result<Reply, CommandError> {
        self.fabric.command(self.now, command, &mut self.world)
    }

    pub fn stats(&mut self) -> Stats {
        let Reply::Stats(stats) = self.command(Command::Stats) else {
            panic!("not stats")
        };
        stats
    }

    pub fn counters(&mut self, n: usize) -> Counters {
        self.stats().nhis[n].counters
    }

    // ---- rings ----

    /// Sets up a ring and starts (or stops) it.
    pub fn ring(&mut self, n: usize, tx: bool, hop: u64, options: u32) {
        let (rings, opts) = if tx {
            (TX_RINGS, TX_OPTIONS)
        } else {
            (RX_RINGS, RX_OPTIONS)
        };
        let (regs, at) = (rings + 16 * hop, ring_at(tx, hop));
        if options & ENABLE == 0 {
            self.write(n, opts + 32 * hop, 0);
        }
        let max = if hop == 0 { 256 } else { 0 };
        self.write(n, regs, at as u32);
        self.write(n, regs + 4, 0);
        self.write(n, regs + 8, 0);
        self.write(n, regs + 12, max << 16 | SIZE);
        self.write(n, opts + 32 * hop + 4, MASKS);
        self.write(n, opts + 32 * hop, options);
        // Every ring has the vector of its bit, as far as there are vectors, and is unmasked.
        let bit = if tx {
            hop
        } else {
            hop + u64::from(self.fabric.topology().hops)
        };
        let (word, shift) = (INT_VECTOR + 4 * (bit / 8), 4 * (bit % 8));
        let vectors = self.read(n, word) & !(0xf << shift) | (bit as u32 & 0xf) << shift;
        self.write(n, word, vectors);
        let mask = self.read(n, INT_MASK + 4 * (bit / 32)) | 1 << (bit % 32);
        self.write(n, INT_MASK + 4 * (bit / 32), mask);
    }

    pub fn put32(&mut self, n: usize, at: u64, value: u32) {
        self.world.memory[n][at as usize..][..4].copy_from_slice(&value.to_le_bytes());
    }

    pub fn get32(&self, n: usize, at: u64) -> u32 {
        u32::from_le_bytes(self.world.memory[n][at as usize..][..4].try_into().unwrap())
    }

    /// Gives an RX ring buffers and rings its doorbell.
    pub fn post_rx(&mut self, n: usize, hop: u64, indices: core::ops::Range<u32>) {
        for index in indices.clone() {
            let at = ring_at(false, hop) + 16 * u64::from(index % SIZE);
            self.put32(n, at, buffer_at(false, hop, u64::from(index % SIZE)) as u32);
            self.put32(n, at + 8, 0xc << 20);
        }
        self.write(n, RX_RINGS + 16 * hop + 8, indices.end % SIZE);
    }

    /// Puts a frame into a TX descriptor, without a doorbell.
    pub fn prepare(&mut self, n: usize, hop: u64, index: u32, bytes: &[u8], sof: u8, eof: u8) {
        let index = u64::from(index % SIZE);
        let buffer = buffer_at(true, hop, index);
        self.world.memory[n][buffer as usize..][..bytes.len()].copy_from_slice(bytes);
        let at = ring_at(true, hop) + 16 * index;
        let word = bytes.len() as u32 & 0xfff | u32::from(eof) << 12 | u32::from(sof) << 16 | 0xc << 20;
        self.put32(n, at, buffer as u32);
        self.put32(n, at + 4, 0);
        self.put32(n, at + 8, word);
    }

    pub fn doorbell(&mut self, n: usize, hop: u64, index: u32) {
        self.write(n, TX_RINGS + 16 * hop + 8, (index % SIZE) << 16);
    }

    /// Sends a data frame.
    pub fn send(&mut self, n: usize, hop: u64, index: u32, bytes: &[u8]) {
        self.prepare(n, hop, index, bytes, SOF, EOF);
        self.doorbell(n, hop, index + 1);
    }

    pub fn sent(&self, n: usize, hop: u64, index: u32) -> bool {
        self.get32(n, ring_at(true, hop) + 16 * u64::from(index % SIZE) + 8) >> 20 & COMPLETED != 0
    }

    pub fn got(&self, n: usize, hop: u64, index: u32) -> Option<Got> {
        let at = ring_at(false, hop) + 16 * u64::from(index % SIZE);
        let word = self.get32(n, at + 8);
        if word >> 20 & COMPLETED == 0 {
            return None;
        }
        let len = match word & 0xfff {
            0 => 4096,
            len => len as usize,
        };
        let bytes = self.world.memory[n][self.get32(n, at) as usize..][..len].to_vec();
        Some(Got {
            flags: word >> 20,
            sof: (word >> 16 & 0xf) as u8,
            eof: (word >> 12 & 0xf) as u8,
            bytes,
        })
    }

    // ---- control channel ----

    pub fn send_control(&mut self, n: usize, packet: &ControlPacket) {
        let index = self.channel[n][1];
        self.channel[n][1] += 1;
        self.prepare(n, 0, index, &packet.encode(), packet.pdf, packet.pdf);
        self.doorbell(n, 0, index + 1);
    }

    /// The next packet from ring 0, whose buffer is posted again.
    pub fn receive(&mut self, n: usize) -> Option<ControlPacket> {
        let got = self.receive_raw(n)?;
        Some(ControlPacket::decode(got.eof, &got.bytes).unwrap())
    }

    /// The same, whatever is in it.
    pub fn receive_raw(&mut self, n: usize) -> Option<Got> {
        let index = self.channel[n][0];
        let got = self.got(n, 0, index)?;
        assert_eq!(got.sof, 0, "Linux warns of a SOF on ring 0");
        self.channel[n][0] += 1;
        self.post_rx(n, 0, index + SIZE - 1..index + SIZE);
        Some(got)
    }

    pub fn receive_all(&mut self, n: usize) -> Vec<ControlPacket> {
        core::iter::from_fn(|| self.receive(n)).collect()
    }

    fn address(adapter: u32, space: u32, at: u32, len: usize) -> u32 {
        space << 25 | adapter << 19 | (len as u32) << 13 | at
    }

    /// Writes a configuration space of a controller's own router; the answer must be good.
    pub fn write_space(&mut self, n: usize, adapter: u32, space: u32, at: u32, data: &[u32]) {
        let mut words = vec![0, 0, Self::address(adapter, space, at, data.len())];
        words.extend(data);
        self.send_control(n, &ControlPacket::new(2, words));
        let answers = self.receive_all(n);
        assert!(answers.iter().any(|packet| packet.pdf == 2), "{answers:?}");
    }

    pub fn read_space(&mut self, n: usize, adapter: u32, space: u32, at: u32) -> u32 {
        self.send_control(
            n,
            &ControlPacket::new(1, vec![0, 0, Self::address(adapter, space, at, 1)]),
        );
        let answers = self.receive_all(n);
        answers
            .iter()
            .find(|packet| packet.pdf == 1)
            .unwrap_or_else(|| panic!("{answers:?}"))
            .words[3]
    }

    /// Acknowledges a plug or unplug event as Linux does.
    pub fn acknowledge(&mut self, n: usize, adapter: u32, unplug: bool) {
        let pg = if unplug { 3 } else { 2 };
        self.send_control(n, &ControlPacket::new(3, vec![0, 0, 7 | adapter << 8 | pg << 30]));
    }

    /// Acknowledges plug events until there are no more; other packets are thrown away.
    pub fn acknowledge_all(&mut self, n: usize) {
        while let Some(packet) = self.receive(n) {
            if packet.pdf == 5 {
                self.acknowledge(n, packet.words[2] & 0x3f, packet.words[2] >> 31 != 0);
            }
        }
    }

    // ---- paths ----

    fn upstream(&self) -> u32 {
        2 * self.fabric.topology().ports as u32 + 1
    }

    /// A path from TX ring `ring` of a controller out of a port, with this HopID on the link.
    pub fn open_tx(&mut self, n: usize, ring: u32, port: u32, hop: u32) {
        let upstream = self.upstream();
        self.write_space(
            n,
            upstream,
            PATH,
            2 * ring,
            &[hop | (2 * port + 1) << 11 | 1 << 31, 0],
        );
    }

    /// A path from a port's HopID into RX ring `ring`.
    pub fn open_rx(&mut self, n: usize, ring: u32, port: u32, hop: u32) {
        let upstream = self.upstream();
        self.write_space(
            n,
            2 * port + 1,
            PATH,
            2 * hop,
            &[ring | upstream << 11 | 1 << 31, 0],
        );
    }

    pub fn close_rx(&mut self, n: usize, port: u32, hop: u32) {
        self.write_space(n, 2 * port + 1, PATH, 2 * hop, &[0, 0]);
    }

    /// Ring 1 to ring 1, both ways, between port 0 of controllers 0 and 1.
    pub fn connect(&mut self, tx_options: u32, rx_options: u32) {
        for n in 0..2 {
            self.open_tx(n, 1, 0, 8);
            self.open_rx(n, 1, 0, 8);
            self.ring(n, true, 1, ENABLE | tx_options);
            self.ring(n, false, 1, ENABLE | rx_options);
        }
    }
}
