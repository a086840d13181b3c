//! Packets of the control channel, as ring 0 carries them.
//!
//! An array of big-endian doublewords, then the CRC32C of those bytes, big-endian. The packet type is not among them:
//! it is the PDF, which ring 0 carries in the descriptor's EOF field (USB4 specification 1.0 section 6.4;
//! `drivers/thunderbolt/tb_msgs.h`, `ctl.c`).

use core::fmt;

/// Most bytes of a control packet, CRC included (`TB_FRAME_SIZE` in `drivers/thunderbolt/ctl.c`).
pub(crate) const CONTROL_MAX: usize = 256;
/// Doublewords before the packet's own: the route.
const HEADER: usize = 2;
/// Bytes of a doubleword.
const WORD: usize = size_of::<u32>();
/// Bit 31 of the first doubleword: set on everything that travels towards the connection manager.
const CM_BIT: u32 = 1 << 31;
/// Bits of the route string's upper half (`struct tb_cfg_header`).
const ROUTE_HIGH: u32 = 0x003f_ffff;

/// Packet types (`enum tb_cfg_pkg_type` in `include/linux/thunderbolt.h`).
pub(crate) mod pdf {
    pub(crate) const READ: u8 = 1;
    pub(crate) const WRITE: u8 = 2;
    /// Errors, and the host's acknowledgement of hot plug events.
    pub(crate) const NOTIFY: u8 = 3;
    pub(crate) const NOTIFY_ACK: u8 = 4;
    pub(crate) const HOT_PLUG: u8 = 5;
    pub(crate) const XDOMAIN_REQUEST: u8 = 6;
    pub(crate) const XDOMAIN_RESPONSE: u8 = 7;
}

/// Event codes of notification packets (USB4 1.0 table 6-10; `enum tb_cfg_error`).
pub(crate) mod notify {
    pub(crate) const NOT_CONNECTED: u32 = 0;
    pub(crate) const BAD_ADDRESS: u32 = 2;
    pub(crate) const NO_SUCH_ADAPTER: u32 = 4;
    pub(crate) const HOT_PLUG_ACK: u32 = 7;
    /// The port leads to another domain.
    pub(crate) const ENUMERATED: u32 = 8;
    pub(crate) const LOCKED: u32 = 15;
}

/// One control packet: its type and its doublewords, without the CRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPacket {
    /// Packet type: 1 read, 2 write, 3 notification, 4 its acknowledgement, 5 hot plug, 6 XDomain request, 7 XDomain
    /// response.
    pub pdf: u8,
    /// Doublewords in host order: two of route, then the packet's own.
    pub words: Vec<u32>,
}

/// Why bytes are not a control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Not whole doublewords, or too few or too many.
    #[error("a control packet of {0} bytes")]
    Length(usize),
    /// The CRC does not match.
    #[error("the CRC of a control packet does not match")]
    Crc,
}

impl ControlPacket {
    /// A packet of `words` (the two of its route first).
    #[must_use]
    pub fn new(pdf: u8, words: Vec<u32>) -> Self {
        Self { pdf, words }
    }

    /// Reads what ring 0 carried.
    pub fn decode(pdf: u8, bytes: &[u8]) -> Result<Self, ControlError> {
        let mut words: Vec<u32> = bytes.chunks_exact(WORD).map(big_endian).collect();
        let whole = bytes.chunks_exact(WORD).remainder().is_empty() && bytes.len() <= CONTROL_MAX;
        let (Some(crc), true, true) = (words.pop(), whole, words.len() > HEADER.saturating_sub(1)) else {
            return Err(ControlError::Length(bytes.len()));
        };
        let body = bytes.get(..bytes.len().saturating_sub(WORD)).unwrap_or_default();
        if crc != crc32c::crc32c(body) {
            return Err(ControlError::Crc);
        }
        Ok(Self { pdf, words })
    }

    /// The bytes ring 0 carries, with a good CRC.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
        bytes
    }

    /// The word at `index`, 0 past the end.
    #[must_use]
    pub fn word(&self, index: usize) -> u32 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// The route string.
    #[must_use]
    pub fn route(&self) -> u64 {
        u64::from(self.word(0) & ROUTE_HIGH) << 32 | u64::from(self.word(1))
    }

    /// Whether it travels towards the connection manager.
    #[must_use]
    pub fn to_manager(&self) -> bool {
        self.word(0) & CM_BIT != 0
    }

    /// Makes it travel to the connection manager, from the router or adapter at `route`.
    pub(crate) fn route_to_manager(&mut self, route: u64) {
        let [high, low] = halves(route);
        if let [first, second, ..] = &mut self.words[..] {
            (*first, *second) = (high & ROUTE_HIGH | CM_BIT, low);
        }
    }

    /// What a router tells its connection manager about `adapter`.
    pub(crate) fn notification(route: u64, adapter: u32, code: u32) -> Self {
        Self::upward(pdf::NOTIFY, route, code | (adapter & 0x3f) << 8)
    }

    /// A plug or unplug event of a lane adapter of the host router.
    pub(crate) fn hot_plug(adapter: u32, unplug: bool) -> Self {
        Self::upward(pdf::HOT_PLUG, 0, adapter & 0x3f | u32::from(unplug) << 31)
    }

    fn upward(pdf: u8, route: u64, word: u32) -> Self {
        let mut packet = Self::new(pdf, vec![0, 0, word]);
        packet.route_to_manager(route);
        packet
    }
}

fn big_endian(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

fn halves(value: u64) -> [u32; 2] {
    [value >> 32, value & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(0))
}

/// The address doubleword of reads and writes (`struct tb_cfg_address`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) u32);

impl Address {
    pub(crate) fn offset(self) -> usize {
        field(self.0, 0, 13)
    }

    /// In doublewords.
    pub(crate) fn length(self) -> usize {
        field(self.0, 13, 6)
    }

    pub(crate) fn adapter(self) -> u32 {
        self.0 >> 19 & 0x3f
    }

    /// 0 path, 1 adapter, 2 router, 3 counters (`enum tb_cfg_space`).
    pub(crate) fn space(self) -> u32 {
        self.0 >> 25 & 3
    }

    pub(crate) fn with_adapter(self, adapter: u32) -> u32 {
        self.0 & !(0x3f << 19) | (adapter & 0x3f) << 19
    }
}

fn field(word: u32, low: u32, bits: u32) -> usize {
    usize::try_from(word >> low & !(u32::MAX << bits)).unwrap_or(0)
}

impl fmt::Display for ControlPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let route = self.route();
        let address = Address(self.word(HEADER));
        let data = self.words.get(HEADER.saturating_add(1)..).unwrap_or_default();
        match self.pdf {
            pdf::READ | pdf::WRITE => {
                let what = if self.pdf == pdf::READ { "read" } else { "write" };
                let which = if self.to_manager() { " reply" } else { "" };
                let space = ["path", "adapter", "router", "counters"];
                let space = space
                    .get(field(self.word(HEADER), 25, 2))
                    .copied()
                    .unwrap_or_default();
                let (offset, length, adapter) = (address.offset(), address.length(), address.adapter());
                write!(
                    f,
                    "{what}{which} route {route:x} adapter {adapter} {space} {offset:#x}+{length} {data:08x?}"
                )
            }
            pdf::NOTIFY => {
                let (code, adapter) = (self.word(HEADER) & 0xff, self.word(HEADER) >> 8 & 0x3f);
                let name = match code {
                    notify::NOT_CONNECTED => "not connected",
                    notify::BAD_ADDRESS => "bad address",
                    notify::NO_SUCH_ADAPTER => "no such adapter",
                    notify::HOT_PLUG_ACK => "hot plug acknowledged",
                    notify::ENUMERATED => "port leads to another domain",
                    notify::LOCKED => "locked",
                    _ => "notification",
                };
                write!(f, "{name} ({code}) route {route:x} adapter {adapter}")
            }
            pdf::NOTIFY_ACK => write!(f, "notification acknowledged route {route:x}"),
            pdf::HOT_PLUG => {
                let what = if self.word(HEADER) >> 31 == 0 {
                    "plug"
                } else {
                    "unplug"
                };
                write!(f, "{what} route {route:x} adapter {}", self.word(HEADER) & 0x3f)
            }
            pdf::XDOMAIN_REQUEST => write!(f, "xdomain request route {route:x} {:08x?}", self.own()),
            pdf::XDOMAIN_RESPONSE => write!(f, "xdomain response route {route:x} {:08x?}", self.own()),
            other => write!(f, "type {other} route {route:x} {:08x?}", self.own()),
        }
    }
}

impl ControlPacket {
    /// The words after the route.
    fn own(&self) -> &[u32] {
        self.words.get(HEADER..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_a_round_trip_and_damage_does_not() {
        let packet = ControlPacket::hot_plug(3, true);
        let mut bytes = packet.encode();
        assert_eq!(bytes[..12], [0x80, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 3]);
        assert_eq!(ControlPacket::decode(pdf::HOT_PLUG, &bytes), Ok(packet));
        bytes[8] ^= 1;
        assert_eq!(
            ControlPacket::decode(pdf::HOT_PLUG, &bytes),
            Err(ControlError::Crc)
        );
    }

    #[test]
    fn too_short_too_long_and_ragged_packets_are_refused() {
        for len in [0, 4, 8, 13, 260] {
            assert_eq!(
                ControlPacket::decode(1, &vec![0; len]),
                Err(ControlError::Length(len))
            );
        }
    }

    #[test]
    fn the_crc_is_castagnolis() {
        // The check value of RFC 3720 appendix B.4.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_route_is_masked_and_marked_on_its_way_up() {
        let mut packet = ControlPacket::new(pdf::XDOMAIN_REQUEST, vec![0xffff_ffff, 7, 9]);
        assert_eq!(packet.route(), 0x3f_ffff_0000_0007);
        packet.route_to_manager(1);
        assert_eq!(packet.words, [CM_BIT, 1, 9]);
    }

    #[test]
    fn packets_print_what_they_say() {
        let read = ControlPacket::new(pdf::READ, vec![0, 0, 1 << 25 | 2 << 19 | 3 << 13 | 0x20]);
        assert_eq!(read.to_string(), "read route 0 adapter 2 adapter 0x20+3 []");
        assert_eq!(
            ControlPacket::hot_plug(1, false).to_string(),
            "plug route 0 adapter 1"
        );
    }
}
