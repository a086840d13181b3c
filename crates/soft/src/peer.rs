//! Peers, as a device sees them.

use usb4_wire::NodeId;

/// How a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerState {
    /// Seen on the fabric, no link.
    Seen,
    /// The link is coming up.
    Connecting,
    /// The link is up.
    Up,
}

/// A device on the same fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its node id.
    pub node: NodeId,
    /// How it stands.
    pub state: PeerState,
    /// Its process, where known.
    pub pid: Option<u32>,
}
