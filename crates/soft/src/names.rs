//! Names of fabrics and sockets.

use std::io;

use usb4_wire::NodeId;

use crate::{Error, socket};

/// Longest fabric or host name: the longest socket name has to fit in `sun_path` (108 bytes).
pub const MAX_NAME: usize = 32;

/// A fabric: the soft devices of one user that opened the same name find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fabric {
    name: String,
    uid: u32,
}

impl Fabric {
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        check(name)?;
        Ok(Self {
            name: name.into(),
            uid: rustix::process::geteuid().as_raw(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The user it belongs to.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Where the device with this node id listens for its peers.
    pub(crate) fn device_socket(&self, node: NodeId) -> String {
        format!("{}{node}", self.device_prefix())
    }

    /// Where the detached device of `host` listens for its clients.
    pub(crate) fn server_socket(&self, host: &str) -> Result<String, Error> {
        check(host)?;
        Ok(format!("usb4-softd/{}/{}/{host}", self.uid, self.name))
    }

    /// The devices that listen now, in order.
    pub(crate) fn nodes(&self) -> io::Result<Vec<NodeId>> {
        let prefix = self.device_prefix();
        let names = socket::listening(&prefix)?;
        let mut nodes: Vec<NodeId> = names
            .iter()
            .filter_map(|name| name.strip_prefix(&prefix)?.parse().ok())
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }

    fn device_prefix(&self) -> String {
        format!("usb4-soft/{}/{}/", self.uid, self.name)
    }
}

/// Names go into socket names and `/proc/net/unix` lines: no separators, no blanks.
fn check(name: &str) -> Result<(), Error> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(fits) {
        return Err(Error::BadName(name.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_names_fit_in_a_socket_name() {
        let fabric = Fabric {
            name: "n".repeat(MAX_NAME),
            uid: u32::MAX,
        };
        // One byte for the leading zero of an abstract name.
        assert!(fabric.device_socket(NodeId(u128::MAX)).len() < 108);
        assert!(fabric.server_socket(&"h".repeat(MAX_NAME)).unwrap().len() < 108);
    }

    #[test]
    fn a_name_that_would_escape_its_socket_is_refused() {
        for bad in ["", "a/b", "a b", "a\0", "a\n", "ä", &"n".repeat(MAX_NAME + 1)] {
            assert!(matches!(Fabric::new(bad), Err(Error::BadName(_))), "{bad:?}");
            assert!(Fabric::new("ok").unwrap().server_socket(bad).is_err());
        }
    }

    #[test]
    fn devices_of_a_fabric_are_found_and_others_are_not() {
        let name = format!("test.{}", std::process::id());
        let (ours, other) = (
            Fabric::new(&name).unwrap(),
            Fabric::new(&format!("{name}x")).unwrap(),
        );
        let _a = socket::listen(&ours.device_socket(NodeId(7))).unwrap();
        let _b = socket::listen(&ours.device_socket(NodeId(5))).unwrap();
        let _c = socket::listen(&other.device_socket(NodeId(6))).unwrap();
        let _d = socket::listen(&format!("{}stranger", ours.device_prefix())).unwrap();
        assert_eq!(ours.nodes().unwrap(), [NodeId(5), NodeId(7)]);
    }
}
