//! The application's side, as far as programs of this workspace are applications: functions of libibverbs, found when a
//! program runs, and structures that a provider has no need of (`infiniband/verbs.h`).

use core::ffi::{CStr, c_char, c_int, c_void};
use std::{fmt, io, mem};

use crate::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_cap,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_srq_init_attr, ibv_wc,
};

/// `enum ibv_access_flags`.
pub const LOCAL_WRITE: c_int = 1;
/// `enum ibv_access_flags`.
pub const REMOTE_WRITE: c_int = 2;
/// `enum ibv_access_flags`.
pub const REMOTE_READ: c_int = 4;
/// `enum ibv_access_flags`.
pub const REMOTE_ATOMIC: c_int = 8;
/// `IBV_MTU_4096`.
pub const MTU_4096: c_int = 5;

/// What transitions of a queue pair say (`enum ibv_qp_attr_mask`).
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    /// RESET to INIT.
    pub init: c_int,
    /// INIT to RTR.
    pub rtr: c_int,
    /// RTR to RTS.
    pub rts: c_int,
}

/// State, P_Key index, port; access flags.
const INIT: c_int = 1 | 1 << 4 | 1 << 5;
const ACCESS: c_int = 1 << 3;
/// State, address, path MTU, peer's number, first packet; reads and atomics served, RNR timer.
const RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12;
const SERVES: c_int = 1 << 17 | 1 << 15;
/// State, first packet; timeout, retries, RNR retries, reads and atomics outstanding.
const RTS: c_int = 1 | 1 << 16;
const PATIENCE: c_int = 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13;

/// Of reliable connections.
pub const RC: Masks = Masks {
    init: INIT | ACCESS,
    rtr: RTR | SERVES,
    rts: RTS | PATIENCE,
};
/// Of unreliable connections.
pub const UC: Masks = Masks {
    init: INIT | ACCESS,
    rtr: RTR,
    rts: RTS,
};
/// Of datagrams, which have a Q_Key.
pub const UD: Masks = Masks {
    init: INIT | 1 << 6,
    rtr: 1,
    rts: RTS,
};

/// `union ibv_gid`.
pub type Gid = [u8; 16];

/// `struct ibv_ah_attr`, its global route first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are rdma-core's")]
pub struct Address {
    pub gid: GidWords,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// A GID, aligned as the union is.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub struct GidWords(pub Gid);

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are rdma-core's")]
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: ibv_qp_cap,
    pub address: Address,
    pub alternate: Address,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

// As a C compiler has them on x86-64 and arm64.
const _: () = assert!(size_of::<Address>() == 32 && mem::offset_of!(Address, is_global) == 29);
const _: () = assert!(size_of::<QpAttr>() == 144 && mem::offset_of!(QpAttr, pkey_index) == 120);
const _: () = assert!(mem::offset_of!(QpAttr, timeout) == 130);

const LIBRARY: &CStr = c"libibverbs.so.1";

/// A library, or one of its functions, that is not there.
#[derive(Clone, Copy, Debug)]
pub struct Missing(&'static CStr);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.to_string_lossy();
        if self.0 == LIBRARY {
            write!(f, "no {name} here (Debian: apt-get install libibverbs1)")
        } else {
            write!(f, "libibverbs has no {name}")
        }
    }
}

impl std::error::Error for Missing {}

macro_rules! functions {
    ($($name:ident $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of libibverbs.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "the names are rdma-core's")]
        pub struct Verbs {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Verbs {
            /// Loads libibverbs, and finds them all.
            ///
            /// # Errors
            /// There is none here, or it lacks one of them.
            pub fn load() -> Result<Self, Missing> {
                // SAFETY: a C string; loading it runs its constructors, as for any program linked with it.
                let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    return Err(Missing(LIBRARY));
                }
                $(
                    // SAFETY: a handle of `dlopen` and a C string.
                    let $name = unsafe { libc::dlsym(handle, $symbol.as_ptr()) };
                    if $name.is_null() {
                        return Err(Missing($symbol));
                    }
                )*
                Ok(Self {
                    // SAFETY: functions of these types (`infiniband/verbs.h`), in a library that is never unloaded.
                    $($name: unsafe {
                        mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>($name)
                    },)*
                })
            }
        }
    };
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
    create_srq c"ibv_create_srq": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    destroy_srq c"ibv_destroy_srq": fn(*mut ibv_srq) -> c_int;
    create_ah c"ibv_create_ah": fn(*mut ibv_pd, *mut Address) -> *mut ibv_ah;
    destroy_ah c"ibv_destroy_ah": fn(*mut ibv_ah) -> c_int;
    create_qp c"ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp c"ibv_modify_qp": fn(*mut ibv_qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp c"ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
    wc_status_str c"ibv_wc_status_str": fn(c_int) -> *const c_char;
}

/// What an application calls without the library: an open device's own functions (`struct ibv_context_ops`).
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are rdma-core's")]
pub struct DataPath {
    pub post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub post_srq_recv: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
}

impl DataPath {
    /// Those of an open device, if its provider has filled them in.
    ///
    /// # Safety
    /// `context` is one that libibverbs has opened and not closed.
    pub unsafe fn of(context: *mut ibv_context) -> Option<Self> {
        // SAFETY: an open device's operations; `Option` of a function pointer is null or a function, of these types.
        unsafe {
            let ops = &(*context).ops;
            Some(Self {
                post_send: mem::transmute::<*mut c_void, Option<_>>(ops.post_send)?,
                post_recv: mem::transmute::<*mut c_void, Option<_>>(ops.post_recv)?,
                post_srq_recv: mem::transmute::<*mut c_void, Option<_>>(ops.post_srq_recv)?,
                poll_cq: mem::transmute::<*mut c_void, Option<_>>(ops.poll_cq)?,
            })
        }
    }
}

/// A call that failed, and why.
#[derive(Debug)]
pub struct Failed {
    what: &'static str,
    why: io::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

impl std::error::Error for Failed {}

/// A pointer that a call has returned, which says by null that it failed, and by `errno` why.
///
/// # Errors
/// It is null.
pub fn made<T>(pointer: *mut T, what: &'static str) -> Result<*mut T, Failed> {
    if pointer.is_null() {
        let why = io::Error::last_os_error();
        return Err(Failed { what, why });
    }
    Ok(pointer)
}

/// The result of a call that returns an `errno` value.
///
/// # Errors
/// It is not 0.
pub fn done(error: c_int, what: &'static str) -> Result<(), Failed> {
    if error != 0 {
        let why = io::Error::from_raw_os_error(error.abs());
        return Err(Failed { what, why });
    }
    Ok(())
}
