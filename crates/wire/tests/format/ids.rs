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
fn nak_codes_survive_a_round_trip() {
    for code in 0..10 {
        match NakCode::from_code(code) {
            Some(nak) => assert_eq!(nak.code(), code),
            None => assert!(code == 0 || code > 7),
        }
    }
}
