//! Addresses: 32 bytes, an endpoint's 24 and 8 of zero; as text `usb4://<node>:<endpoint>:<incarnation>`.

use usb4_ring::{EpAddr, NodeId};

/// Bytes of an address.
pub(crate) const ADDR_LEN: usize = 32;

const EP_ADDR_LEN: usize = 24;

/// `addr_format`: a value of this provider's own ("U4").
pub(crate) const ADDR_FORMAT: u32 = libfabric_sys::FI_PROV_SPECIFIC | 0x5534;

/// The bytes of an address.
pub(crate) fn to_bytes(addr: &EpAddr) -> [u8; ADDR_LEN] {
    let mut bytes = [0; ADDR_LEN];
    bytes[..EP_ADDR_LEN].copy_from_slice(&addr.to_bytes());
    bytes
}

/// The address in bytes; `None` if the last eight are not zero.
pub(crate) fn from_bytes(bytes: &[u8; ADDR_LEN]) -> Option<EpAddr> {
    let (address, rest) = bytes.split_first_chunk::<EP_ADDR_LEN>()?;
    (rest == [0; ADDR_LEN - EP_ADDR_LEN]).then(|| EpAddr::from_bytes(address))
}

/// The address as text.
pub(crate) fn to_text(addr: &EpAddr) -> String {
    format!("usb4://{}:{}:{:08x}", addr.node, addr.ep, addr.incarnation)
}

/// The address in a text.
pub(crate) fn from_text(text: &str) -> Option<EpAddr> {
    let mut parts = text.strip_prefix("usb4://")?.split(':');
    let (node, ep, incarnation) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || node.len() != 32 {
        return None;
    }
    Some(EpAddr {
        node: NodeId(u128::from_str_radix(node, 16).ok()?),
        ep: ep.parse().ok()?,
        incarnation: u32::from_str_radix(incarnation, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> EpAddr {
        EpAddr {
            node: NodeId(0x1234 << 100 | 7),
            ep: 9,
            incarnation: 0xdead_0001,
        }
    }

    #[test]
    fn addresses_survive_bytes_and_text() {
        assert_eq!(from_bytes(&to_bytes(&address())), Some(address()));
        assert_eq!(from_text(&to_text(&address())), Some(address()));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let mut bytes = to_bytes(&address());
        bytes[31] = 1;
        assert_eq!(from_bytes(&bytes), None);
        for text in ["", "usb4://", "usb4://12:1:1", "10.0.0.1", "usb4://zz:1:1"] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
