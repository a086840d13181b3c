//! The libibverbs that loaded a provider: found at run time, because linking to one would tie the provider to its private
//! ABI.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use core::mem::transmute_copy;

use crate::*;

/// `ibv_cmd_get_context` of private ABI 34.
pub type get_context_34_fn = unsafe extern "C" fn(
    *mut verbs_context,
    *mut ibv_get_context,
    usize,
    *mut ib_uverbs_get_context_resp,
    usize,
) -> c_int;

/// `ibv_cmd_get_context` since private ABI 57.
pub type get_context_57_fn = unsafe extern "C" fn(
    *mut verbs_context,
    *mut ibv_get_context,
    usize,
    *mut ibv_fd_arr,
    *mut ib_uverbs_get_context_resp,
    usize,
) -> c_int;

/// The two of them.
#[derive(Clone, Copy, Debug)]
pub enum GetContext {
    /// Of private ABI 34.
    Plain(get_context_34_fn),
    /// Since private ABI 57.
    WithDescriptors(get_context_57_fn),
}

impl GetContext {
    /// Calls it, without descriptors.
    ///
    /// # Safety
    /// As `ibv_cmd_get_context`.
    pub unsafe fn call(
        self,
        context: *mut verbs_context,
        cmd: &mut ibv_get_context,
        resp: *mut ib_uverbs_get_context_resp,
        resp_size: usize,
    ) -> c_int {
        let size = size_of::<ibv_get_context>();
        // SAFETY: the caller's promise; without descriptors there is no array.
        unsafe {
            match self {
                Self::Plain(call) => call(context, cmd, size, resp, resp_size),
                Self::WithDescriptors(call) => {
                    call(context, cmd, size, core::ptr::null_mut(), resp, resp_size)
                }
            }
        }
    }
}

/// `__verbs_log`: its text goes where `VERBS_LOG_FILE` says, if `VERBS_LOG_LEVEL` asks for it.
pub type verbs_log_fn = unsafe extern "C" fn(*mut verbs_context, u32, *const c_char, ...);

macro_rules! library {
    ($($(#[$doc:meta])* $field:ident $symbol:literal: fn($($arg:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        /// Functions of libibverbs that a provider calls, and which libibverbs it is.
        #[derive(Clone, Copy, Debug)]
        pub struct Library {
            /// What it shares with providers.
            pub layout: Layout,
            /// `verbs_register_driver_NN`.
            pub register_driver: verbs_register_driver_fn,
            /// `ibv_cmd_get_context`.
            pub get_context: GetContext,
            /// `__verbs_log`, since rdma-core 37.
            pub log: Option<verbs_log_fn>,
            $(
                $(#[$doc])*
                #[doc = concat!("`", $symbol, "`.")]
                pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,
            )*
        }

        impl Library {
            /// # Safety
            /// `handle` is that of a libibverbs of this layout, which stays loaded.
            unsafe fn resolve(handle: *mut c_void, layout: Layout) -> Result<Self, NotFound> {
                let symbol = |name: &'static CStr| {
                    let found = private(handle, layout, name);
                    if found.is_null() { Err(NotFound::Symbol(name)) } else { Ok(found) }
                };
                let get_context = symbol(c"ibv_cmd_get_context")?;
                // SAFETY: a function pointer has the size of a data pointer here. The types are those of this layout's
                // `driver.h`: `tests/layout.rs` has a C compiler compare them.
                unsafe {
                    Ok(Self {
                        layout,
                        register_driver: transmute_copy(&symbol(layout.register_driver())?),
                        get_context: if layout.takes_descriptors() {
                            GetContext::WithDescriptors(transmute_copy(&get_context))
                        } else {
                            GetContext::Plain(transmute_copy(&get_context))
                        },
                        log: symbol(c"__verbs_log").ok().map(|log| transmute_copy(&log)),
                        $($field: transmute_copy(&symbol(
                            // A literal of ours, with a zero put behind it.
                            const { name(concat!($symbol, "\0")) },
                        )?),)*
                    })
                }
            }
        }
    };
}

library! {
    /// Allocates with `calloc` and closes the descriptor if it fails.
    init_and_alloc_context "_verbs_init_and_alloc_context":
        fn(*mut ibv_device, c_int, usize, *mut verbs_context, u32) -> *mut c_void;
    uninit_context "verbs_uninit_context": fn(*mut verbs_context);
    set_ops "verbs_set_ops": fn(*mut verbs_context, *const c_void);
    query_device_any "ibv_cmd_query_device_any": fn(
        *mut ibv_context,
        *const c_void,
        *mut ibv_device_attr_ex,
        usize,
        *mut ib_uverbs_ex_query_device_resp,
        *mut usize,
    ) -> c_int;
    query_port "ibv_cmd_query_port":
        fn(*mut ibv_context, u8, *mut ibv_port_attr, *mut ibv_query_port, usize) -> c_int;
    alloc_pd "ibv_cmd_alloc_pd": fn(
        *mut ibv_context,
        *mut ibv_pd,
        *mut ibv_alloc_pd,
        usize,
        *mut ib_uverbs_alloc_pd_resp,
        usize,
    ) -> c_int;
    dealloc_pd "ibv_cmd_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    reg_mr "ibv_cmd_reg_mr": fn(
        *mut ibv_pd,
        *mut c_void,
        usize,
        u64,
        c_int,
        *mut verbs_mr,
        *mut ibv_reg_mr,
        usize,
        *mut ib_uverbs_reg_mr_resp,
        usize,
    ) -> c_int;
    /// The last argument came with rdma-core 54; an older one does not look where it is.
    reg_dmabuf_mr "ibv_cmd_reg_dmabuf_mr": fn(
        *mut ibv_pd,
        u64,
        usize,
        u64,
        c_int,
        c_int,
        *mut verbs_mr,
        *mut ibv_command_buffer,
    ) -> c_int;
    dereg_mr "ibv_cmd_dereg_mr": fn(*mut verbs_mr) -> c_int;
    create_cq "ibv_cmd_create_cq": fn(
        *mut ibv_context,
        c_int,
        *mut ibv_comp_channel,
        c_int,
        *mut ibv_cq,
        *mut ibv_create_cq,
        usize,
        *mut ib_uverbs_create_cq_resp,
        usize,
    ) -> c_int;
    destroy_cq "ibv_cmd_destroy_cq": fn(*mut ibv_cq) -> c_int;
    create_qp "ibv_cmd_create_qp": fn(
        *mut ibv_pd,
        *mut ibv_qp,
        *mut ibv_qp_init_attr,
        *mut ibv_create_qp,
        usize,
        *mut ib_uverbs_create_qp_resp,
        usize,
    ) -> c_int;
    create_qp_ex "ibv_cmd_create_qp_ex": fn(
        *mut ibv_context,
        *mut verbs_qp,
        *mut ibv_qp_init_attr_ex,
        *mut ibv_create_qp,
        usize,
        *mut ib_uverbs_create_qp_resp,
        usize,
    ) -> c_int;
    modify_qp "ibv_cmd_modify_qp":
        fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_modify_qp, usize) -> c_int;
    query_qp "ibv_cmd_query_qp": fn(
        *mut ibv_qp,
        *mut ibv_qp_attr,
        c_int,
        *mut ibv_qp_init_attr,
        *mut ibv_query_qp,
        usize,
    ) -> c_int;
    destroy_qp "ibv_cmd_destroy_qp": fn(*mut ibv_qp) -> c_int;
    create_srq "ibv_cmd_create_srq": fn(
        *mut ibv_pd,
        *mut ibv_srq,
        *mut ibv_srq_init_attr,
        *mut ibv_create_srq,
        usize,
        *mut ib_uverbs_create_srq_resp,
        usize,
    ) -> c_int;
    modify_srq "ibv_cmd_modify_srq":
        fn(*mut ibv_srq, *mut ibv_srq_attr, c_int, *mut ibv_modify_srq, usize) -> c_int;
    query_srq "ibv_cmd_query_srq": fn(*mut ibv_srq, *mut ibv_srq_attr, *mut ibv_query_srq, usize) -> c_int;
    destroy_srq "ibv_cmd_destroy_srq": fn(*mut ibv_srq) -> c_int;
    create_ah "ibv_cmd_create_ah": fn(
        *mut ibv_pd,
        *mut ibv_ah,
        *mut ibv_ah_attr,
        *mut ib_uverbs_create_ah_resp,
        usize,
    ) -> c_int;
    destroy_ah "ibv_cmd_destroy_ah": fn(*mut ibv_ah) -> c_int;
}

impl Library {
    /// The libibverbs that is loaded in this process.
    ///
    /// # Errors
    /// There is none, or none of a layout known here.
    pub fn find() -> Result<Self, NotFound> {
        // SAFETY: the name is a C string; `RTLD_NOLOAD` only finds what is loaded. The handle is never closed, so the
        // symbols stay valid.
        let handle =
            unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return Err(NotFound::Library);
        }
        let layout = layout(handle)?;
        // SAFETY: its symbols say that it is of this layout.
        unsafe { Self::resolve(handle, layout) }
    }
}

/// The layout of the library behind `handle`: the last one whose symbol version and witness it has.
fn layout(handle: *mut c_void) -> Result<Layout, NotFound> {
    let is = |layout: &Layout| {
        let registers = !private(handle, *layout, layout.register_driver()).is_null();
        registers
            && layout
                .witness()
                .is_none_or(|name| !public(handle, name).is_null())
    };
    Layout::ALL.into_iter().rev().find(is).ok_or(NotFound::Layout)
}

/// A function of the private ABI.
fn private(handle: *mut c_void, layout: Layout, name: &CStr) -> *mut c_void {
    // SAFETY: a handle of `dlopen`, and C strings.
    unsafe { libc::dlvsym(handle, name.as_ptr(), layout.version().as_ptr()) }
}

/// A function for applications, of whatever version.
fn public(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: as above.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// The C string in a literal that ends with a zero and has no other.
const fn name(literal: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(literal.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has no zero in it"),
    }
}

/// Why there is no [`Library`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFound {
    /// None is loaded.
    Library,
    /// It is of a private ABI that is not known here.
    Layout,
    /// It lacks a function.
    Symbol(&'static CStr),
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library => f.write_str("libibverbs.so.1 is not loaded"),
            Self::Layout => f.write_str(
                "this libibverbs has none of the private ABIs 34 (rdma-core 36 to 56), 57, 59, 64 and 65: \
                 a newer release of the provider may know it",
            ),
            Self::Symbol(name) => write!(f, "this libibverbs has no {}", name.to_string_lossy()),
        }
    }
}

impl core::error::Error for NotFound {}
