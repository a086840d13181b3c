//! Control messages: what parses re-emits to the same bytes.

use usb4_wire::{CONTROL_LEN, Control, ControlBody, ControlKind, NodeId};

/// Parses the input as a control message; its CRC counts as right, so that the rest is reached.
pub fn run(data: &[u8]) {
    let _ = Control::parse(data, crc32c::crc32c_append);
    let stored = data
        .get(8..12)
        .map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")));
    if let Ok(message) = Control::parse(data, |_, _| stored) {
        assert_eq!(message.emit(|_, _| stored)[..], *data);
        assert_eq!(data.len(), CONTROL_LEN);
    }
}

/// One message of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    messages()
        .iter()
        .map(|message| message.emit(crc32c::crc32c_append).to_vec())
        .collect()
}

/// One message of each kind, as of a host with nonce 2 that answers nonce 4.
pub fn messages() -> Vec<Control> {
    let body = ControlBody {
        ver_min: 1,
        ver_max: 1,
        node_id: NodeId(3),
        tag: 1,
        nonce: 2,
        echo: 4,
        join: 0,
        tx_hop: 8,
        ring_size: 256,
        max_ack_delay_us: 20,
        features: 0,
        max_flows: 64,
        max_reads: 16,
        reason: 0,
    };
    (1..=8)
        .filter_map(ControlKind::from_code)
        .map(|kind| Control { kind, body })
        .collect()
}
