//! Node ids as text, sequence numbers across their wrap.

use usb4_wire::{NakCode, NodeId, ParseNodeIdError, csn_before};

#[test]
fn a_node_id_that_is_not_32_hex_digits_is_refused() {
    for text in [
        "",
        "1",
        &"0".repeat(31),
        &"0".repeat(33),
        &"g".repeat(32),
        &format!("+{}", "0".repeat(31)),
        &"é".repeat(16),
    ] {
        assert_eq!(text.parse::<NodeId>(), Err(ParseNodeIdError), "{text}");
    }
    let node: NodeId = "0123456789abcdefFEDCBA9876543210".parse().unwrap();
    assert_eq!(node.0, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
    assert_eq!(format!("{node:?}"), "NodeId(0123456789abcdeffedcba9876543210)");
}

#[test]
fn sequence_numbers_compare_across_their_wrap() {
    assert!(csn_before(0, 1) && !csn_before(1, 0));
    assert!(!csn_before(7, 7));
    assert!(csn_before(u32::MAX, 0) && !csn_before(0, u32::MAX));
    assert!(csn_before(0xffff_fff0, 0x10) && !csn_before(0x10, 0xffff_fff0));
    assert!(csn_before(5, 5 + 0x7fff_ffff));
    // Half the circle away, neither comes first.
    assert!(!csn_before(5, 5 + 0x8000_0000) && !csn_before(5 + 0x8000_0000, 5));
}

#[test]
fn a_gid_is_link_local_and_tells_hosts_apart() {
    let node = NodeId::from_halves(0xfedc_ba98_7654_3210, 0x0123_4567_89ab_cdef);
    assert_eq!(node.mac(), [0xaa, 0x7e, 0xa7, 0xd7, 0x88, 0xc6]);
    assert_eq!(node.guid(), 0xa87e_a7ff_fed7_88c6);
    let gid = node.gid();
    assert_eq!(gid[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    assert_eq!(gid[8..], node.guid().to_be_bytes());
    let swapped = NodeId::from_halves(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
    let next = NodeId(node.0 + 1);
    assert!(node.guid() != swapped.guid() && node.guid() != next.guid());
}

#[test]
fn nak_codes_survive_a_round_trip() {
    for code in 0..10 {
        match NakCode::from_code(code) {
            Some(nak) => assert_eq!(nak.code(), code),
            None => assert!(code == 0 || code > 7),
        }
    }
}
