//! The handle `listen` fills, NCCL carries to another rank, and `connect` gets.
//!
//! 128 bytes, little-endian: magic (8), version (2), 0 (2), listener (4), address of the hub (24), nonce (8), CRC32C of
//! these 48 (4), 0 (4), and from byte 56 on what belongs to the connecting side: the communicator it is making (8), 0. Magic,
//! version, the hub's node and the CRC are where they are in every version, so that a host can be named whose plugin is of
//! another.

use nccl_net_sys::NCCL_NET_HANDLE_MAXSIZE;
use usb4_ring::{EP_ADDR_LEN, EpAddr, NodeId};

use super::wire::VERSION;

const MAGIC: [u8; 8] = *b"USB4NCCL";
const CHECKED: usize = 48;
const STATE: usize = 56;

/// A handle as C has it.
pub(crate) type Raw = [u8; NCCL_NET_HANDLE_MAXSIZE];

/// Where a listener is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) hub: EpAddr,
    pub(crate) listener: u32,
    pub(crate) nonce: u64,
}

/// What is wrong with a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadHandle {
    /// Another plugin's, or none.
    #[error(
        "the handle to connect to was not made by the USB4 plugin: do all ranks use the same network (NCCL_NET, NCCL_NET_PLUGIN)?"
    )]
    Foreign,
    /// Another version's: that of this host, if the handle is whole.
    #[error(
        "the handle to connect to is of version {0} of the USB4 plugin's protocol, and this host's of version {VERSION}: install the \
         same plugin on all hosts"
    )]
    Version(u16, Option<NodeId>),
    /// It was damaged on its way.
    #[error("the handle to connect to is damaged: its checksum is wrong")]
    Damaged,
}

impl Address {
    /// A fresh handle.
    pub(crate) fn to_raw(self) -> Raw {
        let mut raw = [0; NCCL_NET_HANDLE_MAXSIZE];
        raw[..8].copy_from_slice(&MAGIC);
        raw[8..10].copy_from_slice(&VERSION.to_le_bytes());
        raw[12..16].copy_from_slice(&self.listener.to_le_bytes());
        raw[16..40].copy_from_slice(&self.hub.to_bytes());
        raw[40..48].copy_from_slice(&self.nonce.to_le_bytes());
        let crc = crc32c::crc32c(&raw[..CHECKED]);
        raw[CHECKED..CHECKED + 4].copy_from_slice(&crc.to_le_bytes());
        raw
    }

    /// What a handle says.
    pub(crate) fn from_raw(raw: &Raw) -> Result<Self, BadHandle> {
        if raw[..8] != MAGIC {
            return Err(BadHandle::Foreign);
        }
        let is_whole = crc32c::crc32c(&raw[..CHECKED]).to_le_bytes() == raw[CHECKED..CHECKED + 4];
        let mut hub = [0; EP_ADDR_LEN];
        hub.copy_from_slice(&raw[16..40]);
        let hub = EpAddr::from_bytes(&hub);
        let version = u16::from_le_bytes([raw[8], raw[9]]);
        if version != VERSION {
            return Err(BadHandle::Version(version, is_whole.then_some(hub.node)));
        }
        if !is_whole {
            return Err(BadHandle::Damaged);
        }
        let (mut listener, mut nonce) = ([0; 4], [0; 8]);
        listener.copy_from_slice(&raw[12..16]);
        nonce.copy_from_slice(&raw[40..48]);
        Ok(Self {
            hub,
            listener: u32::from_le_bytes(listener),
            nonce: u64::from_le_bytes(nonce),
        })
    }
}

/// What `connect` left in the handle at its last call; 0 at first.
pub(crate) fn state(raw: &Raw) -> u64 {
    let mut state = [0; 8];
    state.copy_from_slice(&raw[STATE..STATE + 8]);
    u64::from_le_bytes(state)
}

/// Leaves something for the next call.
pub(crate) fn set_state(raw: &mut Raw, state: u64) {
    raw[STATE..STATE + 8].copy_from_slice(&state.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address = Address {
        hub: EpAddr {
            node: NodeId::from_halves(1, 2),
            ep: 3,
            incarnation: 4,
        },
        listener: 5,
        nonce: 6,
    };

    #[test]
    fn a_handle_says_what_was_put_in_and_keeps_its_state_apart() {
        let mut raw = ADDRESS.to_raw();
        assert_eq!(state(&raw), 0);
        set_state(&mut raw, u64::MAX);
        assert_eq!(state(&raw), u64::MAX);
        assert_eq!(Address::from_raw(&raw), Ok(ADDRESS));
    }

    #[test]
    fn a_handle_of_another_kind_or_version_and_a_damaged_one_are_told_apart() {
        let raw = ADDRESS.to_raw();
        assert_eq!(Address::from_raw(&[0; 128]), Err(BadHandle::Foreign));
        let mut newer = raw;
        newer[8] += 1;
        assert_eq!(
            Address::from_raw(&newer),
            Err(BadHandle::Version(VERSION + 1, None))
        );
        let crc = crc32c::crc32c(&newer[..CHECKED]);
        newer[CHECKED..CHECKED + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            Address::from_raw(&newer),
            Err(BadHandle::Version(VERSION + 1, Some(ADDRESS.hub.node)))
        );
        for at in 10..52 {
            let mut damaged = raw;
            damaged[at] ^= 1;
            assert_eq!(Address::from_raw(&damaged), Err(BadHandle::Damaged), "byte {at}");
        }
    }
}
