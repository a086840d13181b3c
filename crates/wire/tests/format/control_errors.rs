//! One fixture per way in which a control message can be wrong.

use crate::common::crc;
use usb4_wire::{Control, ControlBody, ControlError, ControlKind, NodeId, Reason};

fn offer() -> Control {
    let body = ControlBody {
        ver_min: 1,
        ver_max: 1,
        node_id: NodeId(5),
        tag: 1,
        nonce: 2,
        ring_size: 256,
        max_ack_delay_us: 20,
        max_flows: 64,
        max_reads: 16,
        ..ControlBody::default()
    };
    Control {
        kind: ControlKind::Offer,
        body,
    }
}

/// The offer with bytes replaced and a CRC that is right again.
fn altered(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut message = offer().emit(crc).to_vec();
    message[at..][..bytes.len()].copy_from_slice(bytes);
    message[8..12].fill(0);
    let sum = crc(0, &message);
    message[8..12].copy_from_slice(&sum.to_le_bytes());
    message
}

#[track_caller]
fn refused(bytes: &[u8], error: ControlError) {
    assert_eq!(Control::parse(bytes, crc), Err(error));
}

#[test]
fn a_message_of_another_length_is_refused() {
    let message = offer().emit(crc);
    for len in 0..96 {
        refused(&message[..len], ControlError::Length);
    }
    refused(&[&message[..], &[0]].concat(), ControlError::Length);
}

#[test]
fn a_message_of_another_protocol_is_refused() {
    refused(&altered(0, b"u"), ControlError::Magic);
}

#[test]
fn another_message_version_is_refused() {
    refused(&altered(4, &[2]), ControlError::Version(2));
}

#[test]
fn a_damaged_message_is_refused() {
    let mut message = offer().emit(crc);
    message[40] ^= 0x80;
    refused(&message, ControlError::Crc);
}

#[test]
fn an_unknown_kind_is_refused() {
    for kind in [0, 9, 255] {
        refused(&altered(5, &[kind]), ControlError::Kind(kind));
    }
}

#[test]
fn non_zero_reserved_bytes_are_refused() {
    for at in 88..96 {
        refused(&altered(at, &[1]), ControlError::Reserved);
    }
}

#[test]
fn an_empty_version_range_is_refused() {
    refused(&altered(6, &[0, 1]), ControlError::VersionRange);
    refused(&altered(6, &[2, 1]), ControlError::VersionRange);
}

#[test]
fn an_offer_of_other_versions_can_be_read() {
    let read = Control::parse(&altered(6, &[7, 9]), crc).unwrap();
    assert_eq!((read.body.ver_min, read.body.ver_max), (7, 9));
}

#[test]
fn an_offer_without_tag_or_nonce_is_refused() {
    refused(&altered(32, &[0]), ControlError::ZeroTag);
    refused(&altered(40, &[0]), ControlError::ZeroTag);
}

#[test]
fn an_acceptance_that_names_no_offer_is_refused() {
    refused(&altered(5, &[2]), ControlError::ZeroTag);
}

#[test]
fn a_ring_no_larger_than_the_reserve_is_refused() {
    refused(&altered(68, &32u32.to_le_bytes()), ControlError::Limits);
    assert!(Control::parse(&altered(68, &33u32.to_le_bytes()), crc).is_ok());
}

#[test]
fn an_acknowledgement_delay_beyond_a_second_is_refused() {
    refused(&altered(72, &1_000_001u32.to_le_bytes()), ControlError::Limits);
    assert!(Control::parse(&altered(72, &1_000_000u32.to_le_bytes()), crc).is_ok());
}

#[test]
fn unknown_features_are_kept() {
    let read = Control::parse(&altered(76, &0x8000_0001u32.to_le_bytes()), crc).unwrap();
    assert_eq!(read.body.features, 0x8000_0001);
}

#[test]
fn farewells_need_no_parameters() {
    for kind in [
        ControlKind::PathsUp,
        ControlKind::PathsUpAck,
        ControlKind::Bye,
        ControlKind::ByeAck,
        ControlKind::Reset,
        ControlKind::Refuse,
    ] {
        let message = Control {
            kind,
            body: ControlBody::default(),
        };
        assert_eq!(Control::parse(&message.emit(crc), crc), Ok(message));
    }
}

#[test]
fn every_error_says_what_is_wrong() {
    let errors = [
        ControlError::Length,
        ControlError::Magic,
        ControlError::Version(2),
        ControlError::Crc,
        ControlError::Kind(9),
        ControlError::Reserved,
        ControlError::VersionRange,
        ControlError::ZeroTag,
        ControlError::Limits,
    ];
    let sentences: std::collections::BTreeSet<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(sentences.len(), errors.len());
    let reasons: Vec<Reason> = (0..6).filter_map(Reason::from_code).collect();
    assert!(reasons.iter().all(|reason| reason.to_string().contains(' ')));
    assert!(reasons.iter().map(|reason| reason.code()).eq(1..=4));
}
