//! Enumerations of `infiniband/verbs.h`, as far as a provider speaks of them.

use core::ffi::{c_int, c_uint};

macro_rules! numbers {
    ($(#[$doc:meta] $prefix:ident: $type:ty { $($name:ident = $value:expr;)* })*) => {$($(
        #[doc = concat!("`", stringify!($prefix), "`.")]
        pub const $name: $type = $value;
    )*)*};
}

numbers! {
    /// How a work request ended.
    ibv_wc_status: c_int {
        IBV_WC_SUCCESS = 0;
        IBV_WC_LOC_LEN_ERR = 1;
        IBV_WC_LOC_QP_OP_ERR = 2;
        IBV_WC_LOC_PROT_ERR = 4;
        IBV_WC_WR_FLUSH_ERR = 5;
        IBV_WC_LOC_ACCESS_ERR = 8;
        IBV_WC_REM_INV_REQ_ERR = 9;
        IBV_WC_REM_ACCESS_ERR = 10;
        IBV_WC_REM_OP_ERR = 11;
        IBV_WC_RETRY_EXC_ERR = 12;
        IBV_WC_RNR_RETRY_EXC_ERR = 13;
        IBV_WC_FATAL_ERR = 19;
        IBV_WC_GENERAL_ERR = 21;
    }
    /// What a work request was.
    ibv_wc_opcode: c_int {
        IBV_WC_SEND = 0;
        IBV_WC_RDMA_WRITE = 1;
        IBV_WC_RDMA_READ = 2;
        IBV_WC_COMP_SWAP = 3;
        IBV_WC_FETCH_ADD = 4;
        IBV_WC_LOCAL_INV = 6;
        IBV_WC_RECV = 128;
        IBV_WC_RECV_RDMA_WITH_IMM = 129;
    }
    /// What there is to know of a receive.
    ibv_wc_flags: c_uint {
        IBV_WC_GRH = 1;
        IBV_WC_WITH_IMM = 2;
        IBV_WC_WITH_INV = 8;
    }
    /// Kinds of queue pairs.
    ibv_qp_type: c_int {
        IBV_QPT_RC = 2;
        IBV_QPT_UC = 3;
        IBV_QPT_UD = 4;
    }
    /// States of queue pairs.
    ibv_qp_state: c_int {
        IBV_QPS_RESET = 0;
        IBV_QPS_INIT = 1;
        IBV_QPS_RTR = 2;
        IBV_QPS_RTS = 3;
        IBV_QPS_SQD = 4;
        IBV_QPS_SQE = 5;
        IBV_QPS_ERR = 6;
    }
    /// Which attributes of a shared receive queue are to change.
    ibv_srq_attr_mask: c_int {
        IBV_SRQ_MAX_WR = 1;
        IBV_SRQ_LIMIT = 2;
    }
    /// What is asked of a send queue.
    ibv_wr_opcode: c_int {
        IBV_WR_RDMA_WRITE = 0;
        IBV_WR_RDMA_WRITE_WITH_IMM = 1;
        IBV_WR_SEND = 2;
        IBV_WR_SEND_WITH_IMM = 3;
        IBV_WR_RDMA_READ = 4;
        IBV_WR_ATOMIC_CMP_AND_SWP = 5;
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6;
        IBV_WR_LOCAL_INV = 7;
        IBV_WR_BIND_MW = 8;
        IBV_WR_SEND_WITH_INV = 9;
        IBV_WR_TSO = 10;
    }
    /// How.
    ibv_send_flags: c_uint {
        IBV_SEND_FENCE = 1;
        IBV_SEND_SIGNALED = 2;
        IBV_SEND_SOLICITED = 4;
        IBV_SEND_INLINE = 8;
    }
    /// What is going to be read of completions.
    ibv_create_cq_wc_flags: u64 {
        IBV_WC_EX_WITH_BYTE_LEN = 1;
        IBV_WC_EX_WITH_IMM = 2;
        IBV_WC_EX_WITH_QP_NUM = 4;
        IBV_WC_EX_WITH_SRC_QP = 8;
        IBV_WC_EX_WITH_SLID = 16;
        IBV_WC_EX_WITH_SL = 32;
        IBV_WC_EX_WITH_DLID_PATH_BITS = 64;
    }
    /// Which fields of [`ibv_cq_init_attr_ex`] count.
    ibv_cq_init_attr_mask: u32 {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1;
        IBV_CQ_INIT_ATTR_MASK_PD = 2;
    }
    /// How a completion queue is used.
    ibv_create_cq_attr_flags: u32 {
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1;
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 2;
    }
    /// Which fields of [`ibv_qp_init_attr_ex`] count.
    ibv_qp_init_attr_mask: u32 {
        IBV_QP_INIT_ATTR_PD = 1;
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64;
    }
    /// Which requests are going to be built.
    ibv_qp_create_send_ops_flags: u64 {
        IBV_QP_EX_WITH_RDMA_WRITE = 1;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 2;
        IBV_QP_EX_WITH_SEND = 4;
        IBV_QP_EX_WITH_SEND_WITH_IMM = 8;
        IBV_QP_EX_WITH_RDMA_READ = 16;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 32;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 64;
        IBV_QP_EX_WITH_LOCAL_INV = 128;
        IBV_QP_EX_WITH_SEND_WITH_INV = 512;
    }
}
