//! XDomain packets: how hosts on one cable talk before any path exists.
//!
//! Layouts are those of `drivers/thunderbolt/tb_msgs.h`, `drivers/net/thunderbolt/main.c` and, for our own,
//! `kmod/service.c` and `docs/spec/wire.md`. A driver sees a packet's doublewords in host order, so the bytes of its
//! structures are those of the words, little endian.

use std::fmt::{self, Write};

use usb4_nhi_model::ControlPacket;
use usb4_wire::{CONTROL_LEN, Control};

use super::{XDOMAIN_RESPONSE, crc32c};

/// The discovery protocol (`tb_xdp_uuid` in `drivers/thunderbolt/xdomain.c`).
const DISCOVERY: [u8; 16] = 0xb638_d70e_42ff_40bb_97c2_90e2_c0b2_ff07_u128.to_be_bytes();
/// `tbnet_svc_uuid` in `drivers/net/thunderbolt/main.c`.
const NETWORK: [u8; 16] = 0x798f_589e_3616_8a47_97c6_5664_a920_c8dd_u128.to_be_bytes();
/// `protocol_uuid` in `kmod/service.c`.
const RDMA: [u8; 16] = 0xfeba_2201_275d_47af_b0a0_24b2_a80f_88c9_u128.to_be_bytes();

/// Words before the protocol's UUID: route and length.
const HEADER: usize = 3;

/// A packet in words.
pub(super) fn text(packet: &ControlPacket) -> String {
    let bytes: Vec<u8> = packet
        .words
        .iter()
        .skip(HEADER)
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let body = Body(&bytes);
    let way = if packet.pdf == XDOMAIN_RESPONSE {
        "response"
    } else {
        "request"
    };
    let mut text = format!("xdomain {way} route {:x} ", packet.route());
    let what = match body.uuid(0).map(|uuid| uuid.0) {
        Some(DISCOVERY) => discovery(body),
        Some(NETWORK) => network(body),
        Some(RDMA) => rdma(body),
        Some(other) => Some(format!("of protocol {}, {} bytes", Uuid(other), bytes.len())),
        None => None,
    };
    text.push_str(what.as_deref().unwrap_or("cut short"));
    text
}

/// `enum tb_xdp_type` and the structures beside it.
fn discovery(body: Body<'_>) -> Option<String> {
    /// Behind UUID and type.
    const OWN: usize = 20;
    let mut text = String::new();
    match body.u32(16)? {
        1 => text.push_str("uuid? (old)"),
        2 => write!(text, "uuid {}", body.uuid(OWN)?).ok()?,
        3 => write!(
            text,
            "properties? from {} to {} offset {}",
            body.uuid(OWN)?,
            body.uuid(OWN + 16)?,
            body.u16(OWN + 32)?
        )
        .ok()?,
        4 => write!(
            text,
            "properties of {}, generation {}, offset {} of {} words",
            body.uuid(OWN)?,
            body.u32(OWN + 36)?,
            body.u16(OWN + 32)?,
            body.u16(OWN + 34)?
        )
        .ok()?,
        5 => write!(text, "properties of {} changed", body.uuid(OWN)?).ok()?,
        6 => text.push_str("properties changed: noted"),
        7 => write!(text, "error {}", error_name(body.u32(OWN)?)).ok()?,
        12 => text.push_str("uuid?"),
        15 => text.push_str("link state?"),
        16 => {
            let [slw, tlw, sls, tls] = body.array(OWN + 4)?;
            write!(
                text,
                "link state: width {tlw:#x} of {slw:#x}, speed {tls:#x} of {sls:#x}"
            )
            .ok()?;
        }
        17 => {
            let [tlw, tls] = body.array(OWN)?;
            write!(text, "change link to width {tlw:#x} speed {tls:#x}").ok()?;
        }
        18 => write!(text, "link change: status {}", body.u32(OWN)?).ok()?,
        other => write!(text, "discovery type {other}").ok()?,
    }
    Some(text)
}

/// `enum tb_xdp_error`.
fn error_name(code: u32) -> String {
    match code {
        0 => "success".to_owned(),
        1 => "unknown packet".to_owned(),
        2 => "unknown domain".to_owned(),
        3 => "not supported".to_owned(),
        4 => "not ready".to_owned(),
        other => other.to_string(),
    }
}

/// `enum thunderbolt_ip_type` and `struct thunderbolt_ip_header`: UUID, initiator, target, type, command id.
fn network(body: Body<'_>) -> Option<String> {
    const TYPE: usize = 48;
    const OWN: usize = 56;
    let id = body.u32(TYPE + 4)?;
    Some(match body.u32(TYPE)? {
        0 => format!("network login {id}, transmit path {}", body.u32(OWN + 4)?),
        1 => format!("network login response {id}, status {}", body.u32(OWN)?),
        2 => format!("network logout {id}"),
        3 => format!("network status {id}: {}", body.u32(OWN)?),
        other => format!("network type {other}"),
    })
}

/// UUID, type, initiator, target, and the control message of the wire protocol.
fn rdma(body: Body<'_>) -> Option<String> {
    const MESSAGE: usize = 52;
    let message = body.0.get(MESSAGE..)?.get(..CONTROL_LEN)?;
    Some(match Control::parse(message, crc32c) {
        Ok(control) => control_text(&control),
        Err(error) => format!("rdma message: {error}"),
    })
}

fn control_text(control: &Control) -> String {
    let body = &control.body;
    format!(
        "rdma {:?} node {} tag {:x} nonce {:x} echo {:x} join {:x} versions {}-{} hop {} ring {} ack delay {} us \
         features {:x} flows {} reads {} reason {}",
        control.kind,
        body.node_id,
        body.tag,
        body.nonce,
        body.echo,
        body.join,
        body.ver_min,
        body.ver_max,
        body.tx_hop,
        body.ring_size,
        body.max_ack_delay_us,
        body.features,
        body.max_flows,
        body.max_reads,
        body.reason
    )
}

/// What follows route and length, as the driver's structures have it.
#[derive(Clone, Copy)]
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn uuid(self, at: usize) -> Option<Uuid> {
        self.array(at).map(Uuid)
    }
}

/// As the kernel prints it: the bytes in order (`%pUb`).
#[derive(Clone, Copy)]
struct Uuid([u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(at, byte)| {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_wire::{ControlBody, ControlKind, NodeId};

    /// A packet of route 1 with these bytes behind its length.
    fn packet(pdf: u8, bytes: &[u8]) -> ControlPacket {
        let words = bytes
            .chunks(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        ControlPacket::new(pdf, [0x8000_0000, 1, 0].into_iter().chain(words).collect())
    }

    #[test]
    fn discovery_is_named() {
        let request = [&DISCOVERY[..], &12u32.to_le_bytes()].concat();
        assert_eq!(text(&packet(6, &request)), "xdomain request route 1 uuid?");
        let uuid = [
            2, 0, 0, 0, 0, 0x4c, 0xe0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ];
        let response = [&DISCOVERY[..], &2u32.to_le_bytes(), &uuid].concat();
        assert_eq!(
            text(&packet(7, &response)),
            "xdomain response route 1 uuid 02000000-004c-e000-ffff-ffffffffffff"
        );
        let error = [&DISCOVERY[..], &7u32.to_le_bytes(), &4u32.to_le_bytes()].concat();
        assert!(text(&packet(7, &error)).ends_with("error not ready"));
    }

    #[test]
    fn our_own_messages_are_read() {
        let control = Control {
            kind: ControlKind::Offer,
            body: ControlBody {
                ver_min: 1,
                ver_max: 1,
                node_id: NodeId(7),
                tag: 0xabc,
                nonce: 0xdef,
                ring_size: 256,
                max_ack_delay_us: 100,
                max_flows: 4,
                ..ControlBody::default()
            },
        };
        let bytes = [&RDMA[..], &[0; 36], &control.emit(crc32c)].concat();
        let told = text(&packet(6, &bytes));
        assert!(
            told.contains("rdma Offer node ") && told.contains("tag abc nonce def"),
            "{told}"
        );
        let mut damaged = bytes;
        damaged[60] ^= 1;
        assert!(text(&packet(6, &damaged)).contains("rdma message: "));
    }

    #[test]
    fn whatever_is_cut_short_is_told_as_such() {
        for uuid in [DISCOVERY, NETWORK, RDMA] {
            for kind in 0..20u32 {
                let whole = [&uuid[..], &kind.to_le_bytes(), &[0; 140]].concat();
                for cut in (0..whole.len()).step_by(4) {
                    assert!(text(&packet(6, &whole[..cut])).starts_with("xdomain request"));
                }
            }
        }
        assert_eq!(text(&packet(6, &[])), "xdomain request route 1 cut short");
    }
}
