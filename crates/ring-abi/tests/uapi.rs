//! `usb4_ring.h` says what the Rust types are: a C compiler is asked for every constant, size and offset.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use usb4_ring_abi::{
    ABI_VERSION, ARMED, ARMED_SOLICITED, CONSUMER_WORD, Cqe, CqeStatus, ENTRIES_WORD, FLAGS_WORD,
    LOCAL_PROCESS, MAX_DEPTH, MAX_INLINE, MAX_MESSAGE, MAX_PIECES, NEED_WAKEUP, OP_INVALIDATE, Op,
    PREFIX_MAX, PRODUCER_WORD, Piece, Rqe, SLOT_ALIGN, Sqe, cqe_flags, sqe_flags, uapi,
};

/// What C must print for each expression.
fn expected() -> BTreeMap<String, u64> {
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    let mut constant = |name: &str, value: u64| {
        expected.insert(format!("USB4_RING_{name}"), value);
    };
    constant("ABI_VERSION", ABI_VERSION.into());
    constant("PRODUCER_WORD", PRODUCER_WORD as u64);
    constant("CONSUMER_WORD", CONSUMER_WORD as u64);
    constant("FLAGS_WORD", FLAGS_WORD as u64);
    constant("ENTRIES_WORD", ENTRIES_WORD as u64);
    constant("MAX_DEPTH", MAX_DEPTH.into());
    constant("NEED_WAKEUP", NEED_WAKEUP);
    constant("ARMED", ARMED);
    constant("ARMED_SOLICITED", ARMED_SOLICITED);
    constant("LOCAL_PROCESS", LOCAL_PROCESS.into());
    constant("PREFIX_MAX", PREFIX_MAX.into());
    constant("MAX_MESSAGE", MAX_MESSAGE.into());
    constant("OP_SEND", Op::Send.code().into());
    constant("OP_WRITE", Op::Write.code().into());
    constant("OP_READ", Op::Read.code().into());
    constant("OP_FETCH_ADD", Op::FetchAdd.code().into());
    constant("OP_COMPARE_SWAP", Op::CompareSwap.code().into());
    constant("SQE_IMM", sqe_flags::IMM.into());
    constant("SQE_UNSIGNALED", sqe_flags::UNSIGNALED.into());
    constant("SQE_FENCE", sqe_flags::FENCE.into());
    constant("SQE_SOLICITED", sqe_flags::SOLICITED.into());
    constant("SQE_INVALIDATE", sqe_flags::INVALIDATE.into());
    constant("OP_INVALIDATE", OP_INVALIDATE.into());
    constant("SQE_LIST", sqe_flags::LIST.into());
    constant("SQE_INLINE", sqe_flags::INLINE.into());
    constant("MAX_PIECES", MAX_PIECES.into());
    constant("MAX_INLINE", MAX_INLINE.into());
    constant("SLOT_ALIGN", SLOT_ALIGN.into());
    constant("CQE_IMM", cqe_flags::IMM.into());
    constant("CQE_RECV", cqe_flags::RECV.into());
    constant("CQE_WRITE_IMM", cqe_flags::WRITE_IMM.into());
    constant("CQE_SOLICITED", cqe_flags::SOLICITED.into());
    constant("CQE_INVALIDATED", cqe_flags::INVALIDATED.into());
    for status in CqeStatus::ALL {
        let mut name = String::from("STATUS");
        for c in format!("{status:?}").chars() {
            if c.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(c.to_ascii_uppercase());
        }
        constant(&name, status.code().into());
    }
    ioctls(&mut constant);
    macro_rules! layout {
        ($rust:ty, $c:literal, $($field:ident)*) => {
            expected.insert(concat!("sizeof(struct ", $c, ")").into(), size_of::<$rust>() as u64);
            $(expected.insert(
                concat!("offsetof(struct ", $c, ", ", stringify!($field), ")").into(),
                offset_of!($rust, $field) as u64,
            );)*
        };
    }
    layout!(Sqe, "usb4_ring_sqe", op flags prefix_len reserved ah user_data local_addr local_key len args);
    layout!(Rqe, "usb4_ring_rqe", user_data addr local_key len reserved);
    layout!(Piece, "usb4_ring_piece", addr local_key len);
    layout!(Cqe, "usb4_ring_cqe", user_data op status flags len value src ep);
    layout!(uapi::Addr, "usb4_ring_addr", node_low node_high ep incarnation);
    layout!(uapi::Info, "usb4_ring_info", size flags abi_version caps node_low node_high release max_message
        max_depth max_cqs max_cq_entries max_eps max_ahs max_mrs notice_bytes max_mr_bytes notice_offset);
    layout!(uapi::CreateCq, "usb4_ring_create_cq", size flags depth event_fd cq reserved offset bytes);
    layout!(uapi::Destroy, "usb4_ring_destroy", size flags id reserved);
    layout!(uapi::CreateEp, "usb4_ring_create_ep", size flags kind send_cq recv_cq sq_depth rq_depth max_ahs
        ep reserved addr sq_offset sq_bytes rq_offset rq_bytes);
    layout!(uapi::CreateAh, "usb4_ring_create_ah", size flags ep ah addr timeout_ns);
    layout!(uapi::DestroyAh, "usb4_ring_destroy_ah", size flags ep ah);
    layout!(uapi::RegMr, "usb4_ring_reg_mr", size flags addr len access local_key remote_key node_low node_high
        dmabuf_offset dmabuf_fd reserved);
    layout!(uapi::DeregMr, "usb4_ring_dereg_mr", size flags local_key reserved);
    layout!(uapi::Source, "usb4_ring_source", size flags src reserved addr);
    layout!(uapi::Peer, "usb4_ring_peer", node_low node_high state rails rate_mbps reserved);
    layout!(uapi::Peers, "usb4_ring_peers", size flags count stride peers);
    layout!(uapi::Cable, "usb4_ring_cable", router node_low node_high state reason);
    layout!(uapi::Cables, "usb4_ring_cables", size flags count stride cables);
    layout!(uapi::Rule, "usb4_ring_rule", node_low node_high router);
    layout!(uapi::Rules, "usb4_ring_rules", size flags policy count stride reserved rules);
    layout!(uapi::Enter, "usb4_ring_enter", size flags ep cq timeout_ns);
    expected
}

/// The constants of the ioctls.
fn ioctls(constant: &mut impl FnMut(&str, u64)) {
    constant("IOC_TYPE", uapi::IOC_TYPE.into());
    constant("IOC_INFO", uapi::IOC_INFO.into());
    constant("IOC_CREATE_CQ", uapi::IOC_CREATE_CQ.into());
    constant("IOC_DESTROY_CQ", uapi::IOC_DESTROY_CQ.into());
    constant("IOC_CREATE_EP", uapi::IOC_CREATE_EP.into());
    constant("IOC_DESTROY_EP", uapi::IOC_DESTROY_EP.into());
    constant("IOC_CREATE_AH", uapi::IOC_CREATE_AH.into());
    constant("IOC_DESTROY_AH", uapi::IOC_DESTROY_AH.into());
    constant("IOC_REG_MR", uapi::IOC_REG_MR.into());
    constant("IOC_DEREG_MR", uapi::IOC_DEREG_MR.into());
    constant("IOC_SOURCE", uapi::IOC_SOURCE.into());
    constant("IOC_PEERS", uapi::IOC_PEERS.into());
    constant("IOC_ENTER", uapi::IOC_ENTER.into());
    constant("IOC_CABLES", uapi::IOC_CABLES.into());
    constant("IOC_RULES", uapi::IOC_RULES.into());
    constant("IOC_SET_RULES", uapi::IOC_SET_RULES.into());
    constant("CABLE_CONNECTING", uapi::CABLE_CONNECTING.into());
    constant("CABLE_UP", uapi::CABLE_UP.into());
    constant("CABLE_REFUSED", uapi::CABLE_REFUSED.into());
    constant("REFUSED_VERSION", uapi::REFUSED_VERSION.into());
    constant("REFUSED_NOT_ALLOWED", uapi::REFUSED_NOT_ALLOWED.into());
    constant("REFUSED_RESOURCES", uapi::REFUSED_RESOURCES.into());
    constant("REFUSED_SHUTDOWN", uapi::REFUSED_SHUTDOWN.into());
    constant("REFUSED_BY_RULES", uapi::REFUSED_BY_RULES.into());
    constant("POLICY_OPEN", uapi::POLICY_OPEN.into());
    constant("POLICY_LISTED", uapi::POLICY_LISTED.into());
    constant("MAX_RULES", uapi::MAX_RULES as u64);
    constant("REG_MR_DMABUF", uapi::REG_MR_DMABUF.into());
    constant("CAP_PROCESS_MEMORY", uapi::CAP_PROCESS_MEMORY.into());
    constant("NOTICE_UNDRIVEN_WORD", uapi::NOTICE_UNDRIVEN_WORD as u64);
    constant("EP_DATAGRAM", uapi::EP_DATAGRAM.into());
    constant("EP_CONNECTED", uapi::EP_CONNECTED.into());
    constant("ACCESS_REMOTE_READ", uapi::ACCESS_REMOTE_READ.into());
    constant("ACCESS_REMOTE_WRITE", uapi::ACCESS_REMOTE_WRITE.into());
    constant("ACCESS_REMOTE_ATOMIC", uapi::ACCESS_REMOTE_ATOMIC.into());
    constant("ACCESS_READ_ONLY", uapi::ACCESS_READ_ONLY.into());
    constant("REG_MR_PEER", uapi::REG_MR_PEER.into());
    constant("DEREG_MR_LINGER", uapi::DEREG_MR_LINGER.into());
    constant("PEER_CONNECTING", uapi::PEER_CONNECTING.into());
    constant("PEER_UP", uapi::PEER_UP.into());
    constant("ENTER_SUBMIT", uapi::ENTER_SUBMIT.into());
    constant("ENTER_PROGRESS", uapi::ENTER_PROGRESS.into());
    constant("ENTER_WAIT", uapi::ENTER_WAIT.into());
    constant("ENTERED_PROGRESS", uapi::ENTERED_PROGRESS.unsigned_abs().into());
    constant("ENTERED_READY", uapi::ENTERED_READY.unsigned_abs().into());
    constant("FOREVER", uapi::FOREVER);
}

#[test]
#[cfg_attr(miri, ignore = "runs a compiler")]
fn the_c_header_and_the_rust_types_agree() {
    let expected = expected();
    let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\n#include \"usb4_ring.h\"\n");
    source.push_str("int main(void)\n{\n");
    for expression in expected.keys() {
        writeln!(
            source,
            "\tprintf(\"%s=%llu\\n\", \"{expression}\", (unsigned long long)({expression}));"
        )
        .unwrap();
    }
    source.push_str("\treturn 0;\n}\n");

    let dir = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (c, probe) = (dir.join("uapi.c"), dir.join("uapi"));
    std::fs::write(&c, source).unwrap();
    let status = Command::new("cc")
        .args([
            "-Wall",
            "-Wextra",
            "-Wpadded",
            "-Werror",
            "-std=gnu11",
            "-I",
            env!("CARGO_MANIFEST_DIR"),
        ])
        .args([c.as_os_str(), "-o".as_ref(), probe.as_os_str()])
        .status()
        .unwrap();
    assert!(status.success(), "the header does not compile");
    let output = String::from_utf8(Command::new(&probe).output().unwrap().stdout).unwrap();
    let found: BTreeMap<String, u64> = output
        .lines()
        .map(|line| line.split_once('=').unwrap())
        .map(|(expression, value)| (expression.to_owned(), value.parse().unwrap()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn the_header_defines_nothing_the_comparison_leaves_out() {
    let header = include_str!("../usb4_ring.h");
    let expected = expected();
    for line in header.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["#define", name, _, ..] => assert!(expected.contains_key(*name), "{name}"),
            [name, "=", ..] => assert!(expected.contains_key(*name), "{name}"),
            [kind, field, ..] if kind.starts_with("__u") || kind.starts_with("__s") => {
                let field = field.trim_end_matches(';').split('[').next().unwrap();
                let suffix = format!(", {field})");
                assert!(expected.keys().any(|key| key.ends_with(&suffix)), "{field}");
            }
            _ => {}
        }
    }
}

#[test]
fn arguments_say_their_size_and_every_number_has_one() {
    fn of<T: uapi::Argument>(numbers: &mut Vec<u32>) {
        numbers.extend(T::NUMBERS);
    }
    let mut numbers = Vec::new();
    of::<uapi::Info>(&mut numbers);
    of::<uapi::CreateCq>(&mut numbers);
    of::<uapi::Destroy>(&mut numbers);
    of::<uapi::CreateEp>(&mut numbers);
    of::<uapi::CreateAh>(&mut numbers);
    of::<uapi::DestroyAh>(&mut numbers);
    of::<uapi::RegMr>(&mut numbers);
    of::<uapi::DeregMr>(&mut numbers);
    of::<uapi::Source>(&mut numbers);
    of::<uapi::Peers>(&mut numbers);
    of::<uapi::Enter>(&mut numbers);
    of::<uapi::Cables>(&mut numbers);
    of::<uapi::Rules>(&mut numbers);
    numbers.sort_unstable();
    assert_eq!(numbers, (0xd400..=0xd40e).collect::<Vec<u32>>());
    assert_eq!((uapi::Info::new().size, uapi::Enter::new().size), (112, 24));
}

#[test]
fn words_and_fields_are_the_same_bytes() {
    // On the little-endian machines this runs on, the C view of an entry is its words.
    let sqe = Sqe {
        op: 1,
        flags: 2,
        prefix_len: 3,
        reserved: 4,
        ah: 5,
        user_data: 6,
        local_addr: 7,
        local_key: 8,
        len: 9,
        args: [10, 11, 12, 13],
    };
    let bytes: Vec<u8> = sqe
        .to_words()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(bytes[offset_of!(Sqe, prefix_len)], 3);
    assert_eq!(bytes[offset_of!(Sqe, ah)..][..4], 5_u32.to_le_bytes());
    assert_eq!(bytes[offset_of!(Sqe, len)..][..4], 9_u32.to_le_bytes());
    assert_eq!(bytes[offset_of!(Sqe, args) + 24..][..8], 13_u64.to_le_bytes());
    let cqe = Cqe {
        user_data: 1,
        op: 2,
        status: 3,
        flags: 4,
        len: 5,
        value: 6,
        src: 7,
        ep: 8,
    };
    let bytes: Vec<u8> = cqe
        .to_words()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(bytes[offset_of!(Cqe, status)], 3);
    assert_eq!(bytes[offset_of!(Cqe, flags)..][..2], 4_u16.to_le_bytes());
    assert_eq!(bytes[offset_of!(Cqe, len)..][..4], 5_u32.to_le_bytes());
    assert_eq!(bytes[offset_of!(Cqe, src)..][..4], 7_u32.to_le_bytes());
}
