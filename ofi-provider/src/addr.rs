//! Addresses: 32 bytes, the 24 of the ring endpoint for messages and 8 that name the one of the control lane on the same
//! node (number, then incarnation); as text `usb4://<node>:<endpoint>:<incarnation>:<lane>`.

use usb4_ring::{EpAddr, NodeId};

/// Bytes of an address.
pub(crate) const ADDR_LEN: usize = 32;

const EP_ADDR_LEN: usize = 24;

/// `addr_format`: a value of this provider's own ("U4").
pub(crate) const ADDR_FORMAT: u32 = libfabric_sys::FI_PROV_SPECIFIC | 0x5534;

/// An address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Where messages go.
    pub(crate) address: EpAddr,
    /// The name of the control lane, never 0.
    pub(crate) lane: u64,
}

/// The name of the control lane at an address, for those who know its node.
pub(crate) fn lane_name(address: &EpAddr) -> u64 {
    u64::from(address.incarnation) << 32 | u64::from(address.ep)
}

/// The address of the control lane of this name.
pub(crate) fn lane_address(node: NodeId, lane: u64) -> EpAddr {
    let [a, b, c, d, e, f, g, h] = lane.to_le_bytes();
    EpAddr {
        node,
        ep: u32::from_le_bytes([a, b, c, d]),
        incarnation: u32::from_le_bytes([e, f, g, h]),
    }
}

/// The bytes of an address.
pub(crate) fn to_bytes(name: &Name) -> [u8; ADDR_LEN] {
    let mut bytes = [0; ADDR_LEN];
    bytes[..EP_ADDR_LEN].copy_from_slice(&name.address.to_bytes());
    bytes[EP_ADDR_LEN..].copy_from_slice(&name.lane.to_le_bytes());
    bytes
}

/// The address in bytes; `None` if it names no control lane.
pub(crate) fn from_bytes(bytes: &[u8; ADDR_LEN]) -> Option<Name> {
    let (address, lane) = bytes.split_first_chunk::<EP_ADDR_LEN>()?;
    let lane = u64::from_le_bytes(*lane.first_chunk()?);
    (lane != 0).then(|| Name {
        address: EpAddr::from_bytes(address),
        lane,
    })
}

/// The address as text.
pub(crate) fn to_text(name: &Name) -> String {
    let Name { address, lane } = name;
    format!(
        "usb4://{}:{}:{:08x}:{lane:016x}",
        address.node, address.ep, address.incarnation
    )
}

/// The address in a text.
pub(crate) fn from_text(text: &str) -> Option<Name> {
    let mut parts = text.strip_prefix("usb4://")?.split(':');
    let (node, ep, incarnation, lane) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || node.len() != 32 {
        return None;
    }
    let address = EpAddr {
        node: NodeId(u128::from_str_radix(node, 16).ok()?),
        ep: ep.parse().ok()?,
        incarnation: u32::from_str_radix(incarnation, 16).ok()?,
    };
    let lane = u64::from_str_radix(lane, 16).ok().filter(|lane| *lane != 0)?;
    Some(Name { address, lane })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Name {
        Name {
            address: EpAddr {
                node: NodeId(0x1234 << 100 | 7),
                ep: 9,
                incarnation: 0xdead_0001,
            },
            lane: 0xbeef_0002_0000_000a,
        }
    }

    #[test]
    fn the_name_of_a_lane_and_its_node_are_its_address() {
        let EpAddr { node, .. } = address().address;
        let lane = lane_address(node, address().lane);
        assert_eq!((lane.ep, lane.incarnation), (10, 0xbeef_0002));
        assert_eq!(lane_name(&lane), address().lane);
    }

    #[test]
    fn addresses_survive_bytes_and_text() {
        assert_eq!(from_bytes(&to_bytes(&address())), Some(address()));
        assert_eq!(from_text(&to_text(&address())), Some(address()));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let mut bytes = to_bytes(&address());
        bytes[EP_ADDR_LEN..].fill(0);
        assert_eq!(from_bytes(&bytes), None);
        let text = to_text(&address());
        let (without_lane, _) = text.rsplit_once(':').unwrap();
        for text in ["", "usb4://", "usb4://12:1:1:1", "10.0.0.1", without_lane] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
