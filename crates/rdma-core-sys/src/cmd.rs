//! Commands to uverbs, as far as a provider provides their memory (`libibverbs/kern-abi.h`, `rdma/ib_user_verbs.h`).
//!
//! The library fills requests in; what a driver's module answers follows the response.

/// In front of every request.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ib_uverbs_cmd_hdr {
    /// The library's.
    pub command: u32,
    /// The library's.
    pub in_words: u16,
    /// The library's.
    pub out_words: u16,
}

macro_rules! requests {
    ($($name:ident $bytes:literal)*) => {$(
        #[doc = concat!("Room for a request, `struct ", stringify!($name), "`.")]
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            /// The header.
            pub hdr: ib_uverbs_cmd_hdr,
            /// The rest.
            pub payload: [u64; ($bytes - 8) / 8],
        }

        impl Default for $name {
            fn default() -> Self {
                Self { hdr: ib_uverbs_cmd_hdr::default(), payload: [0; ($bytes - 8) / 8] }
            }
        }

        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

requests! {
    ibv_get_context 16
    ibv_query_port 24
    ibv_alloc_pd 16
    ibv_reg_mr 48
    ibv_create_cq 40
    ibv_create_qp 64
    ibv_query_qp 24
    ibv_modify_qp 120
    ibv_create_srq 40
    ibv_modify_srq 24
    ibv_query_srq 24
}

/// Answer to `GET_CONTEXT`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ib_uverbs_get_context_resp {
    /// Descriptor of asynchronous events.
    pub async_fd: u32,
    /// Completion vectors.
    pub num_comp_vectors: u32,
}

/// Answer to `ALLOC_PD`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ib_uverbs_alloc_pd_resp {
    /// Its number.
    pub pd_handle: u32,
}

/// Answer to `REG_MR`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ib_uverbs_reg_mr_resp {
    /// Its number.
    pub mr_handle: u32,
    /// Key for its owner.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

/// Answer to `CREATE_CQ`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ib_uverbs_create_cq_resp {
    /// Its number.
    pub cq_handle: u32,
    /// Entries.
    pub cqe: u32,
}

/// Answer to `CREATE_QP`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ib_uverbs_create_qp_resp {
    /// Its number.
    pub qp_handle: u32,
    /// Its number for peers.
    pub qpn: u32,
    /// Sends.
    pub max_send_wr: u32,
    /// Receives.
    pub max_recv_wr: u32,
    /// Buffers of a send.
    pub max_send_sge: u32,
    /// Buffers of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
    /// 0.
    pub reserved: u32,
}

/// Answer to `CREATE_SRQ`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ib_uverbs_create_srq_resp {
    /// Its number.
    pub srq_handle: u32,
    /// Receives.
    pub max_wr: u32,
    /// Buffers of a receive.
    pub max_sge: u32,
    /// Its number for peers; of other kinds.
    pub srqn: u32,
}

/// Answer to `CREATE_AH`. What a driver answers begins 4 bytes after it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ib_uverbs_create_ah_resp {
    /// Its number.
    pub ah_handle: u32,
}

/// Answer to `QUERY_DEVICE`, with room for what later kernels say.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ib_uverbs_ex_query_device_resp {
    /// Version of the firmware.
    pub fw_ver: u64,
    /// What the library looks at.
    pub rest: [u64; 63],
}

impl Default for ib_uverbs_ex_query_device_resp {
    fn default() -> Self {
        Self {
            fw_ver: 0,
            rest: [0; 63],
        }
    }
}
