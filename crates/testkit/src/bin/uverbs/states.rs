//! States of a queue pair: what each transition must say (`ib_modify_qp_is_ok` in drivers/infiniband/core/verbs.c).

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::command::{Command, Number};
use crate::context::{Context, Gid, PORT};

/// `enum ib_qp_state`.
pub(crate) const RESET: u8 = 0;
pub(crate) const INIT: u8 = 1;
pub(crate) const RTR: u8 = 2;
pub(crate) const RTS: u8 = 3;
pub(crate) const ERR: u8 = 6;

/// `enum ib_access_flags`.
pub(crate) const LOCAL_WRITE: u32 = 1;
pub(crate) const REMOTE_WRITE: u32 = 2;
pub(crate) const REMOTE_READ: u32 = 4;
pub(crate) const REMOTE_ATOMIC: u32 = 8;

/// All of them.
pub(crate) const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// `enum ib_qp_attr_mask`.
pub(crate) const STATE: u32 = 1;
const ACCESS_FLAGS: u32 = 1 << 3;
const PKEY_INDEX: u32 = 1 << 4;
const PORT_NUMBER: u32 = 1 << 5;
const QKEY_GIVEN: u32 = 1 << 6;
const AV: u32 = 1 << 7;
const PATH_MTU: u32 = 1 << 8;
const TIMEOUT: u32 = 1 << 9;
const RETRY_CNT: u32 = 1 << 10;
const RNR_RETRY: u32 = 1 << 11;
const RQ_PSN: u32 = 1 << 12;
const MAX_RD_ATOMIC: u32 = 1 << 13;
const MIN_RNR_TIMER: u32 = 1 << 15;
const SQ_PSN: u32 = 1 << 16;
const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
const DEST_QPN: u32 = 1 << 20;

/// Q_Key of UD queue pairs here.
pub(crate) const QKEY: u32 = 0x1234_5678;

/// `enum ib_uverbs_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[repr(u8)]
pub(crate) enum Kind {
    Rc = 2,
    Uc = 3,
    Ud = 4,
}

/// Where a queue pair is connected to.
#[derive(Clone, Copy)]
pub(crate) struct To {
    pub(crate) gid: Gid,
    pub(crate) number: u32,
}

/// How patient an RC queue pair is.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
}

/// About a second for a peer to be ready, for ever for a receive.
pub(crate) const PATIENT: Patience = Patience {
    timeout: 15,
    retries: 7,
    rnr_retries: 7,
};

/// What `MODIFY_QP` is told.
pub(crate) struct Change {
    pub(crate) mask: u32,
    pub(crate) state: u8,
    pub(crate) to: To,
    pub(crate) access: u32,
    pub(crate) patience: Patience,
    pub(crate) reads: u8,
    pub(crate) qkey: u32,
}

impl Change {
    /// To a state, and nothing else.
    pub(crate) fn to(state: u8) -> Self {
        Self {
            mask: STATE,
            state,
            to: To {
                gid: [0; 16],
                number: 0,
            },
            access: 0,
            patience: PATIENT,
            reads: 16,
            qkey: QKEY,
        }
    }

    /// RESET to INIT.
    pub(crate) fn init(kind: Kind, access: u32) -> Self {
        let more = if kind == Kind::Ud {
            QKEY_GIVEN
        } else {
            ACCESS_FLAGS
        };
        let mut change = Self::to(INIT);
        change.mask |= PKEY_INDEX | PORT_NUMBER | more;
        change.access = access;
        change
    }

    /// Another Q_Key for what it sends and takes.
    pub(crate) fn key(qkey: u32) -> Self {
        let mut change = Self::to(RTS);
        change.mask |= QKEY_GIVEN;
        change.qkey = qkey;
        change
    }

    /// INIT to RTR.
    pub(crate) fn rtr(kind: Kind, to: To) -> Self {
        let mut change = Self::to(RTR);
        change.mask |= match kind {
            Kind::Rc => AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            Kind::Uc => AV | PATH_MTU | DEST_QPN | RQ_PSN,
            Kind::Ud => 0,
        };
        change.to = to;
        change
    }

    /// RTR to RTS.
    pub(crate) fn rts(kind: Kind, patience: Patience) -> Self {
        let mut change = Self::to(RTS);
        change.mask |= match kind {
            Kind::Rc => SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD_ATOMIC,
            Kind::Uc | Kind::Ud => SQ_PSN,
        };
        change.patience = patience;
        change
    }
}

/// Changes a queue pair.
pub(crate) fn modify(context: &Context, qp: u32, change: &Change) -> Result<(), Errno> {
    // struct ib_uverbs_qp_dest, twice; the second path is none.
    let command = Command::plain(Number::ModifyQp).raw(&change.to.gid);
    // Flow label; LID; reserved; index of the GID here, hop limit, traffic class, service level.
    let command = command.u32(0).u16(0).u16(0).u8(0).u8(1).u8(0).u8(0);
    // Path bits, rate, GRH, port.
    let command = command.u8(0).u8(0).u8(1).u8(PORT).zeros(32);
    let command = command.u32(qp).u32(change.mask).u32(change.qkey).u32(0).u32(0);
    let command = command.u32(change.to.number).u32(change.access).u16(0).u16(0);
    // State now is not said; 4096 bytes; migrated.
    let command = command.u8(change.state).u8(0).u8(5).u8(0);
    // No event when drained; reads; RNR timer of 0.64 ms; port.
    let command = command.u8(0).u8(change.reads).u8(change.reads).u8(12).u8(PORT);
    let patience = &change.patience;
    let command = command
        .u8(patience.timeout)
        .u8(patience.retries)
        .u8(patience.rnr_retries);
    command.zeros(4).run(&context.uverbs).map(drop)
}

/// Where `struct ib_uverbs_query_qp_resp` has the state.
const STATE_AT: usize = 108;

/// The state a queue pair is in.
pub(crate) fn state(context: &Context, qp: u32) -> Result<u8, Errno> {
    Ok(context.query_qp(qp)?.u8(STATE_AT))
}
