//! What of libibverbs the example calls, found when it runs, and the structures that `rdma-core-sys`, which is for providers,
//! has no need of (`infiniband/verbs.h`).

use std::ffi::{CStr, c_char, c_int, c_void};

use anyhow::{Context, Result, bail};
use rdma_core_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr,
};

/// `IBV_QPT_RC`.
pub(crate) const RC: c_int = 2;
/// `IBV_WR_SEND`.
pub(crate) const SEND: c_int = 2;
/// `IBV_SEND_SIGNALED`.
pub(crate) const SIGNALED: u32 = 2;
/// `IBV_WC_RECV`: of a receive's opcode.
pub(crate) const RECV: c_int = 1 << 7;
/// `IBV_ACCESS_LOCAL_WRITE`.
pub(crate) const LOCAL_WRITE: c_int = 1;
/// `IBV_MTU_4096`.
pub(crate) const MTU_4096: c_int = 5;
/// States of a queue pair.
pub(crate) const INIT: c_int = 1;
pub(crate) const RTR: c_int = 2;
pub(crate) const RTS: c_int = 3;

/// What a transition says (`enum ibv_qp_attr_mask`), in the order in which the fields are named: state, P_Key index, port,
/// access flags.
pub(crate) const TO_INIT: c_int = 1 | 1 << 4 | 1 << 5 | 1 << 3;
/// State, address, path MTU, peer's number, first packet, reads and atomics served, RNR timer.
pub(crate) const TO_RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15;
/// State, timeout, retries, RNR retries, first packet, reads and atomics outstanding.
pub(crate) const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13;

/// `union ibv_gid`.
pub(crate) type Gid = [u8; 16];

/// `struct ibv_ah_attr`, its global route first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Address {
    pub(crate) gid: GidWords,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// A GID, aligned as the union is.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(crate) struct GidWords(pub(crate) Gid);

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) address: Address,
    pub(crate) alternate: Address,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

// As a C compiler has them on x86-64 and arm64.
const _: () = assert!(size_of::<Address>() == 32 && std::mem::offset_of!(Address, is_global) == 29);
const _: () = assert!(size_of::<QpAttr>() == 144 && std::mem::offset_of!(QpAttr, pkey_index) == 120);
const _: () = assert!(std::mem::offset_of!(QpAttr, timeout) == 130);

macro_rules! functions {
    ($($name:ident $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of libibverbs.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Verbs {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Verbs {
            /// Loads libibverbs, and finds them all.
            pub(crate) fn load() -> Result<Self> {
                // SAFETY: a C string; loading it runs its constructors, as for any program linked with it.
                let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    bail!("no libibverbs.so.1 here (Debian: apt-get install libibverbs1)");
                }
                $(
                    // SAFETY: a handle of `dlopen` and a C string.
                    let $name = unsafe { libc::dlsym(handle, $symbol.as_ptr()) };
                    if $name.is_null() {
                        bail!("libibverbs has no {}", name($symbol));
                    }
                )*
                Ok(Self {
                    // SAFETY: functions of these types (`infiniband/verbs.h`), in a library that is never unloaded.
                    $($name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>($name)
                    },)*
                })
            }
        }
    };
}

fn name(symbol: &CStr) -> String {
    symbol.to_string_lossy().into_owned()
}

functions! {
    get_device_list c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list c"ibv_free_device_list": fn(*mut *mut ibv_device);
    open_device c"ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
    close_device c"ibv_close_device": fn(*mut ibv_context) -> c_int;
    query_gid c"ibv_query_gid": fn(*mut ibv_context, u8, c_int, *mut GidWords) -> c_int;
    alloc_pd c"ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd c"ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    reg_mr c"ibv_reg_mr": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr c"ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
    create_cq c"ibv_create_cq": fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq c"ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
    create_qp c"ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp c"ibv_modify_qp": fn(*mut ibv_qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp c"ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
    wc_status_str c"ibv_wc_status_str": fn(c_int) -> *const c_char;
}

/// A pointer that a call has returned, which says by null that it failed, and by `errno` why.
pub(crate) fn made<T>(pointer: *mut T, what: &'static str) -> Result<*mut T> {
    if pointer.is_null() {
        return Err(std::io::Error::last_os_error()).context(what);
    }
    Ok(pointer)
}

/// The result of a call that returns an `errno` value.
pub(crate) fn done(error: c_int, what: &'static str) -> Result<()> {
    if error != 0 {
        return Err(std::io::Error::from_raw_os_error(error.abs())).context(what);
    }
    Ok(())
}
