//! A record in words.
//!
//! * `xdomain.rs`: messages between the hosts' connection managers and services, ours among them.
//! * `frame.rs`: our data frames, and those of `thunderbolt_net`.

mod frame;
mod xdomain;

use std::fmt;

use usb4_nhi_model::{ControlPacket, LinkState, Place};

use crate::capture::{Fate, Kind, Record};

/// CRC32C as `usb4-wire` wants it: continued from its first argument.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// Packet types of XDomain requests and responses (`enum tb_cfg_pkg_type` in `include/linux/thunderbolt.h`).
const XDOMAIN_REQUEST: u8 = 6;
const XDOMAIN_RESPONSE: u8 = 7;

impl Record {
    /// Where it was seen, as in `0.0>1.0`, `host 0>` or `>host 0`.
    #[must_use]
    pub fn place(&self) -> String {
        match &self.kind {
            Kind::Control { at, .. } | Kind::Frame { at, .. } => match at {
                Place::FromHost(nhi) => format!("host {}>", nhi.0),
                Place::ToHost(nhi) => format!(">host {}", nhi.0),
                Place::Cable { from, to, .. } => format!("{from}>{to}"),
            },
            Kind::Link { cable, .. } => format!("cable {}", cable.0),
            Kind::Interrupt { nhi, .. } | Kind::Note { nhi, .. } => nhi.to_string(),
        }
    }

    /// What kind of thing it was, in one word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Control { .. } => "control",
            Kind::Frame { .. } => "frame",
            Kind::Link { .. } => "link",
            Kind::Interrupt { .. } => "interrupt",
            Kind::Note { .. } => "note",
        }
    }

    /// What it was, in words.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.kind {
            Kind::Control { pdf, .. } => control(*pdf, &self.bytes),
            Kind::Frame { hop, sof, eof, .. } => {
                format!("hop {hop} {}", frame::text(*sof, *eof, &self.bytes))
            }
            Kind::Link { state, .. } => match state {
                LinkState::Down => "down".to_owned(),
                LinkState::Training => "training".to_owned(),
                LinkState::Recovery => "recovery".to_owned(),
                LinkState::Up { lanes } => format!("up, lanes: {lanes}"),
            },
            Kind::Interrupt { vector, .. } => format!("vector {vector}"),
            Kind::Note { text, .. } => text.clone(),
        }
    }
}

fn control(pdf: u8, bytes: &[u8]) -> String {
    match ControlPacket::decode(pdf, bytes) {
        Ok(packet) => match pdf {
            XDOMAIN_REQUEST | XDOMAIN_RESPONSE => xdomain::text(&packet),
            _ => packet.to_string(),
        },
        Err(error) => format!("type {pdf}: {error}"),
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Corrupted => f.write_str("corrupted"),
            Self::CorruptedSilently => f.write_str("corrupted silently"),
            Self::Duplicated => f.write_str("doubled"),
            Self::Dropped(why) => write!(f, "dropped: {why}"),
        }
    }
}

/// One line: seconds, place, kind, text, and what became of it unless it simply passed.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND: u64 = 1_000_000_000;
        let (seconds, nanos) = (self.time / SECOND, self.time % SECOND);
        let (place, name, text) = (self.place(), self.name(), self.text());
        write!(f, "{seconds:5}.{nanos:09} {place:>8} {name:<9} {text}")?;
        match &self.fate {
            Fate::Passed => Ok(()),
            fate => write!(f, " [{fate}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_nhi_model::{Cable, Nhi, Port};

    #[test]
    fn a_line_says_when_where_what_and_what_became_of_it() {
        let port = |nhi| Port {
            nhi: Nhi(nhi),
            port: 0,
        };
        let record = Record {
            time: 12_000_000_345,
            kind: Kind::Frame {
                at: Place::Cable {
                    cable: Cable(0),
                    from: port(0),
                    to: port(1),
                },
                hop: 8,
                sof: 1,
                eof: 3,
            },
            fate: Fate::Dropped("a fault".into()),
            bytes: vec![0; 7],
        };
        assert_eq!(
            record.to_string(),
            "   12.000000345  0.0>1.0 frame     hop 8 sof 1 eof 3, 7 bytes [dropped: a fault]"
        );
    }

    #[test]
    fn a_damaged_control_packet_is_told_as_such() {
        assert_eq!(
            control(5, &[0; 16]),
            "type 5: the CRC of a control packet does not match"
        );
        assert_eq!(control(5, &[0; 3]), "type 5: a control packet of 3 bytes");
    }
}
