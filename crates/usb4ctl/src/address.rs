//! Endpoint addresses as text: `NODE/EP.INCARNATION`, the way `EpAddr` prints itself.

use anyhow::{Context, Result};
use usb4_ring::EpAddr;

/// Parses what a serving command printed.
///
/// # Errors
///
/// When it is not an address.
pub(crate) fn parse(text: &str) -> Result<EpAddr> {
    parts(text)
        .with_context(|| format!("{text:?} is not an endpoint address; a serving command prints its own"))
}

fn parts(text: &str) -> Option<EpAddr> {
    let (node, rest) = text.trim().split_once('/')?;
    let (ep, incarnation) = rest.split_once('.')?;
    Some(EpAddr {
        node: node.parse().ok()?,
        ep: ep.parse().ok()?,
        incarnation: u32::from_str_radix(incarnation, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_ring::NodeId;

    #[test]
    fn a_printed_address_parses_back() {
        let address = EpAddr {
            node: NodeId(0xabcd << 100 | 7),
            ep: 12,
            incarnation: 0xfe,
        };
        assert_eq!(parse(&address.to_string()).unwrap(), address);
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in ["", "1/2.3", "usb4", "00000000000000000000000000000000/x.1"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
