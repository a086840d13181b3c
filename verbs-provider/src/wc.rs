//! From a completion entry of the ring API to a completion of verbs.

use std::ffi::c_int;

use rdma_core_sys::*;
use usb4_ring::raw::{Cqe, OP_INVALIDATE, Op, cqe_flags};

/// Bytes an atomic reads.
const ATOMIC_BYTES: u32 = 8;

/// The completion an entry tells of.
#[inline]
pub(crate) fn completion(entry: &Cqe) -> ibv_wc {
    let receive = entry.flags & cqe_flags::RECV != 0;
    let mut wc = ibv_wc {
        wr_id: entry.user_data,
        status: status(entry.status, receive),
        opcode: opcode(entry, receive),
        byte_len: entry.len,
        qp_num: qpn(entry),
        ..ibv_wc::default()
    };
    if wc.status != IBV_WC_SUCCESS {
        wc.vendor_err = u32::from(entry.status);
        return wc;
    }
    if entry.flags & cqe_flags::IMM != 0 {
        wc.wc_flags |= IBV_WC_WITH_IMM;
        wc.imm_data = immediate(entry.value);
    }
    if entry.flags & cqe_flags::INVALIDATED != 0 {
        // The key stands where others have immediate data, as a number of this host's.
        wc.wc_flags |= IBV_WC_WITH_INV;
        wc.imm_data = low(entry.value);
    }
    if receive && entry.src != 0 {
        // Only datagrams say who has sent them, and have a header in front.
        wc.src_qp = entry.src;
        wc.wc_flags |= IBV_WC_GRH;
    }
    if matches!(wc.opcode, IBV_WC_COMP_SWAP | IBV_WC_FETCH_ADD) {
        wc.byte_len = ATOMIC_BYTES;
    }
    wc
}

/// The queue pair an entry is of: the upper half of its last word.
#[inline]
fn qpn(entry: &Cqe) -> u32 {
    let [.., last] = entry.to_words();
    let [.., a, b, c, d] = last.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Immediate data in network order, from the number that is carried.
#[inline]
fn immediate(value: u64) -> u32 {
    low(value).to_be()
}

#[inline]
fn low(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The number that is carried for immediate data in network order.
#[inline]
pub(crate) fn carried(imm_data: u32) -> u64 {
    u64::from(u32::from_be(imm_data))
}

#[inline]
fn opcode(entry: &Cqe, receive: bool) -> c_int {
    let op = Op::from_code(entry.op);
    if receive {
        return match op {
            Some(Op::Write) => IBV_WC_RECV_RDMA_WITH_IMM,
            _ => IBV_WC_RECV,
        };
    }
    match op {
        Some(Op::Write) => IBV_WC_RDMA_WRITE,
        Some(Op::Read) => IBV_WC_RDMA_READ,
        Some(Op::FetchAdd) => IBV_WC_FETCH_ADD,
        Some(Op::CompareSwap) => IBV_WC_COMP_SWAP,
        None if entry.op == OP_INVALIDATE => IBV_WC_LOCAL_INV,
        Some(Op::Send) | None => IBV_WC_SEND,
    }
}

/// Codes of `CqeStatus` that only verbs kinds of endpoints get.
mod code {
    pub(super) const RETRY_EXCEEDED: u8 = 11;
    pub(super) const RNR_RETRY_EXCEEDED: u8 = 12;
    pub(super) const PROTECTION: u8 = 13;
    pub(super) const TOO_LONG: u8 = 14;
}

/// What verbs calls the status with this code.
#[inline]
fn status(code: u8, receive: bool) -> c_int {
    if code == usb4_ring::raw::CqeStatus::Ok.code() {
        return IBV_WC_SUCCESS;
    }
    failure(code, receive)
}

#[cold]
fn failure(code: u8, receive: bool) -> c_int {
    use usb4_ring::raw::CqeStatus as Status;
    match (Status::from_code(code), code) {
        (Some(Status::Flushed), _) => IBV_WC_WR_FLUSH_ERR,
        (_, code::PROTECTION) => IBV_WC_LOC_PROT_ERR,
        (_, code::TOO_LONG) => IBV_WC_LOC_LEN_ERR,
        (_, code::RETRY_EXCEEDED) => IBV_WC_RETRY_EXC_ERR,
        (_, code::RNR_RETRY_EXCEEDED) => IBV_WC_RNR_RETRY_EXC_ERR,
        (Some(Status::Length), _) if receive => IBV_WC_LOC_LEN_ERR,
        (Some(Status::Invalid), _) if receive => IBV_WC_LOC_PROT_ERR,
        (Some(Status::Invalid), _) => IBV_WC_LOC_QP_OP_ERR,
        (Some(Status::Access), _) if receive => IBV_WC_LOC_ACCESS_ERR,
        (Some(Status::Access), _) => IBV_WC_REM_ACCESS_ERR,
        (Some(Status::Length | Status::Unsupported), _) => IBV_WC_REM_INV_REQ_ERR,
        (Some(Status::Resource), _) => IBV_WC_REM_OP_ERR,
        (Some(Status::Rnr), _) => IBV_WC_RNR_RETRY_EXC_ERR,
        (Some(Status::Gone | Status::LinkDown | Status::Unreachable), _) => IBV_WC_RETRY_EXC_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}

#[cfg(test)]
mod tests {
    use usb4_ring::raw::CqeStatus;

    use super::*;
    use crate::fake::of;

    const RECV: u16 = cqe_flags::RECV;

    fn entry(op: Op, flags: u16) -> Cqe {
        let entry = Cqe {
            user_data: 9,
            op: op.code(),
            flags,
            len: 100,
            ..Cqe::default()
        };
        of(0x12_3456, &entry)
    }

    #[test]
    fn each_operation_has_its_name_in_verbs() {
        for (op, flags, opcode) in [
            (Op::Send, 0, IBV_WC_SEND),
            (Op::Write, 0, IBV_WC_RDMA_WRITE),
            (Op::Read, 0, IBV_WC_RDMA_READ),
            (Op::FetchAdd, 0, IBV_WC_FETCH_ADD),
            (Op::CompareSwap, 0, IBV_WC_COMP_SWAP),
            (Op::Send, RECV, IBV_WC_RECV),
            (Op::Write, RECV | cqe_flags::WRITE_IMM, IBV_WC_RECV_RDMA_WITH_IMM),
        ] {
            let wc = completion(&entry(op, flags));
            assert_eq!((wc.opcode, wc.status), (opcode, IBV_WC_SUCCESS), "{op:?}");
            assert_eq!((wc.wr_id, wc.qp_num), (9, 0x12_3456));
        }
        let invalidated = Cqe {
            op: OP_INVALIDATE,
            ..entry(Op::Send, 0)
        };
        assert_eq!(completion(&invalidated).opcode, IBV_WC_LOCAL_INV);
        let by_peer = Cqe {
            value: 0x0102_0304,
            ..entry(Op::Send, RECV | cqe_flags::INVALIDATED)
        };
        let wc = completion(&by_peer);
        let key = (wc.opcode, wc.wc_flags, wc.imm_data);
        assert_eq!(key, (IBV_WC_RECV, IBV_WC_WITH_INV, 0x0102_0304));
        assert_eq!(completion(&entry(Op::Read, 0)).byte_len, 100);
        assert_eq!(completion(&entry(Op::FetchAdd, 0)).byte_len, 8);
    }

    #[test]
    fn each_status_has_its_name_in_verbs() {
        use CqeStatus as S;
        // Sender, receiver.
        let all = [
            (S::Ok.code(), IBV_WC_SUCCESS, IBV_WC_SUCCESS),
            (S::Rnr.code(), IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR),
            (S::Access.code(), IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR),
            (S::Length.code(), IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR),
            (
                S::Unsupported.code(),
                IBV_WC_REM_INV_REQ_ERR,
                IBV_WC_REM_INV_REQ_ERR,
            ),
            (S::Resource.code(), IBV_WC_REM_OP_ERR, IBV_WC_REM_OP_ERR),
            (S::Gone.code(), IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR),
            (S::LinkDown.code(), IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR),
            (S::Flushed.code(), IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR),
            (S::Invalid.code(), IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR),
            (S::Unreachable.code(), IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR),
            (11, IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR),
            (12, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR),
            (13, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR),
            (200, IBV_WC_GENERAL_ERR, IBV_WC_GENERAL_ERR),
        ];
        for (code, sender, receiver) in all {
            for (flags, expected) in [(0, sender), (RECV, receiver)] {
                let wc = completion(&Cqe {
                    status: code,
                    ..entry(Op::Send, flags)
                });
                assert_eq!(wc.status, expected, "{code} {flags}");
                assert_eq!(wc.vendor_err, u32::from(code));
            }
        }
    }

    #[test]
    fn immediate_data_arrives_as_it_was_given() {
        let given = 0x1234_5678_u32.to_be();
        let wc = completion(&Cqe {
            value: carried(given),
            ..entry(Op::Send, RECV | cqe_flags::IMM)
        });
        assert_eq!((wc.imm_data, wc.wc_flags), (given, IBV_WC_WITH_IMM));
        assert_eq!(carried(given), 0x1234_5678);
    }

    #[test]
    fn a_datagram_tells_its_sender_and_has_a_header() {
        let wc = completion(&Cqe {
            src: 77,
            ..entry(Op::Send, RECV)
        });
        assert_eq!((wc.src_qp, wc.wc_flags), (77, IBV_WC_GRH));
        assert_eq!(completion(&entry(Op::Send, RECV)).wc_flags, 0);
    }

    #[test]
    fn a_failure_tells_nothing_else() {
        let wc = completion(&Cqe {
            status: CqeStatus::Flushed.code(),
            src: 77,
            value: 5,
            ..entry(Op::Send, RECV | cqe_flags::IMM)
        });
        assert_eq!((wc.src_qp, wc.imm_data, wc.wc_flags), (0, 0, 0));
    }
}
