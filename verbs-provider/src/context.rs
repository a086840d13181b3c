//! Opening the device.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};
use usb4_ring::raw::{ABI_VERSION, Ring};

use crate::abi::{self, ContextResponse};
use crate::init::complain;
use crate::{ah, cq, cq_ex, device, errno, host, mr, pd, qp, qp_ex, qp_post, srq};

/// What objects of an open device hold on to.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) library: &'static Library,
    /// The descriptor of the ring API that came with the context.
    pub(crate) ring: Ring,
    /// Sends that came to nothing because of their link.
    pub(crate) failures: Arc<AtomicU32>,
}

/// The end of the allocation that is a context: what libibverbs knows, and ours. In front of it are the pointers of
/// `verbs_context`, of which each release has its own number.
#[repr(C)]
struct Context {
    ibv: ibv_context,
    shared: *const Shared,
}

/// Bytes more than are needed: a libibverbs whose structure is longer than we think is found out after it has written
/// to it.
const SLACK: usize = 1024;

/// What an open context's calls go to.
///
/// # Safety
/// `context` is null or a context of ours.
pub(crate) unsafe fn shared(context: *mut ibv_context) -> Result<Arc<Shared>, c_int> {
    if context.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise; the pointer is null until the context is open.
    unsafe {
        let shared = (*context.cast::<Context>()).shared;
        if shared.is_null() {
            return Err(libc::EINVAL);
        }
        Arc::increment_strong_count(shared);
        Ok(Arc::from_raw(shared))
    }
}

pub(crate) unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private: *mut c_void,
) -> *mut verbs_context {
    boundary(|| {
        let Some(library) = host::library() else {
            // SAFETY: the descriptor was given to us.
            drop(unsafe { OwnedFd::from_raw_fd(cmd_fd) });
            return errno::pointer(Err(libc::ENOSYS));
        };
        // SAFETY: libibverbs gives a device of ours and a descriptor that is now ours.
        errno::pointer(unsafe { open(library, device, cmd_fd) })
    })
}

/// # Safety
/// `device` is one of this library's; the descriptor is given away.
pub(crate) unsafe fn open(
    library: &'static Library,
    device: *mut ibv_device,
    cmd_fd: c_int,
) -> Result<*mut verbs_context, c_int> {
    let front = library.layout.context_front();
    let size = front + size_of::<Context>() + SLACK;
    // SAFETY: the library allocates `size` zeroed bytes, which begin with its structure, and closes the descriptor if it
    // cannot.
    let verbs =
        unsafe { (library.init_and_alloc_context)(device, cmd_fd, size, ptr::null_mut(), abi::DRIVER_ID) };
    if verbs.is_null() {
        return Err(errno::last());
    }
    let verbs: *mut verbs_context = verbs.cast();
    // SAFETY: a context just made.
    unsafe {
        match connect(library, verbs) {
            Ok(shared) => {
                let context: *mut Context = context_of(verbs, library.layout).cast();
                (*context).shared = Arc::into_raw(Arc::new(shared));
                Ok(verbs)
            }
            Err(error) => {
                (library.uninit_context)(verbs);
                libc::free(verbs.cast());
                Err(error)
            }
        }
    }
}

/// # Safety
/// `verbs` is a context of the library's, not connected yet.
unsafe fn connect(library: &'static Library, verbs: *mut verbs_context) -> Result<Shared, c_int> {
    let layout = library.layout;
    // SAFETY: within the allocation.
    let context = unsafe { context_of(verbs, layout) };
    // The size of the whole stands right in front of it (`verbs_context.sz`).
    // SAFETY: as above.
    if unsafe { context.cast::<usize>().sub(1).read() } != layout.context_size() {
        return Err(stranger(layout));
    }
    let ops = operations(layout);
    // SAFETY: the table is of the library's layout, and has functions of the types it has there.
    unsafe { (library.set_ops)(verbs, ops.as_ptr()) };
    // What the library has made of the table: had it another order, the wrong functions would be called.
    // SAFETY: the context is ours.
    let set = unsafe { &(*context).ops };
    let as_given = [
        (set.poll_cq.cast_const(), Op::PollCq),
        (set.post_recv.cast_const(), Op::PostRecv),
        (set.post_send.cast_const(), Op::PostSend),
        (set.req_notify_cq.cast_const(), Op::ReqNotifyCq),
    ];
    if as_given.iter().any(|(function, op)| *function != ops.get(*op)) {
        return Err(stranger(layout));
    }
    let mut cmd = ibv_get_context::default();
    let mut resp = ContextResponse::default();
    // Whatever is not answered is no descriptor.
    resp.ours.ring_fd = -1;
    resp.core.async_fd = u32::MAX;
    // SAFETY: memory of this function's.
    errno::check(unsafe {
        library.get_context.call(
            verbs,
            &mut cmd,
            (&raw mut resp).cast(),
            size_of::<ContextResponse>(),
        )
    })?;
    let ours = resp.ours;
    if ours.ring_fd < 0 {
        return Err(libc::EPROTO);
    }
    // SAFETY: the kernel has made it for this process, and told nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(ours.ring_fd) };
    if ours.ring_abi != ABI_VERSION {
        complain(format_args!(
            "the module usb4_rdma speaks version {} of the ring interface and this provider version {ABI_VERSION}: use \
             both of the same release",
            ours.ring_abi
        ));
        return Err(libc::EPROTONOSUPPORT);
    }
    let ring = Ring::new(fd, (ours.notice_offset, ours.notice_bytes)).map_err(|error| errno::of(&error))?;
    Ok(Shared {
        library,
        ring,
        failures: Arc::default(),
    })
}

/// A library that has the symbols of a layout and is not of it.
fn stranger(layout: Layout) -> c_int {
    complain(format_args!(
        "this libibverbs has private ABI {} but other structures than rdma-core's releases of that number",
        layout.number()
    ));
    libc::ENOSYS
}

/// What this provider does; the rest libibverbs refuses.
fn operations(layout: Layout) -> OpsTable {
    let mut table = OpsTable::new(layout);
    macro_rules! set {
        ($($op:ident: $function:path as fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {$({
            let function: unsafe extern "C" fn($($arg),*) $(-> $ret)? = $function;
            // SAFETY: the type is that of the operation in `driver.h`; the tests of rdma-core-sys compare these.
            unsafe { table.set(Op::$op, function as *const c_void) };
        })*};
    }
    set! {
        AllocPd: pd::alloc_pd as fn(*mut ibv_context) -> *mut ibv_pd;
        CreateAh: ah::create_ah as fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        CreateCq: cq::create_cq as fn(*mut ibv_context, c_int, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        CreateCqEx: cq_ex::create_cq_ex as fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
        CreateQp: qp::create_qp as fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        CreateQpEx: qp_ex::create_qp_ex as fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
        CreateSrq: srq::create_srq as fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        DeallocPd: pd::dealloc_pd as fn(*mut ibv_pd) -> c_int;
        DeregMr: mr::dereg_mr as fn(*mut verbs_mr) -> c_int;
        DestroyAh: ah::destroy_ah as fn(*mut ibv_ah) -> c_int;
        DestroyCq: cq::destroy_cq as fn(*mut ibv_cq) -> c_int;
        DestroyQp: qp::destroy_qp as fn(*mut ibv_qp) -> c_int;
        DestroySrq: srq::destroy_srq as fn(*mut ibv_srq) -> c_int;
        FreeContext: free_context as fn(*mut ibv_context);
        ModifyQp: qp::modify_qp as fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ModifySrq: srq::modify_srq as fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
        PollCq: cq::poll_cq as fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
        PostRecv: qp_post::post_recv as fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
        PostSend: qp_post::post_send as fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
        PostSrqRecv: srq::post_srq_recv as
            fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
        QueryDeviceEx: device::query_device_ex as
            fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int;
        QueryPort: device::query_port as fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        QueryQp: qp::query_qp as fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        QuerySrq: srq::query_srq as fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
        RegDmabufMr: mr::reg_dmabuf_mr as fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        RegMr: mr::reg_mr as fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
        ReqNotifyCq: cq::req_notify_cq as fn(*mut ibv_cq, c_int) -> c_int;
    }
    table
}

pub(crate) unsafe extern "C" fn free_context(context: *mut ibv_context) {
    boundary_or((), || {
        // SAFETY: libibverbs gives back what `open` has made. Objects that are left keep what they need.
        unsafe {
            let shared = Arc::from_raw((*context.cast::<Context>()).shared);
            let library = shared.library;
            drop(shared);
            let verbs: *mut verbs_context = context.byte_sub(library.layout.context_front()).cast();
            (library.uninit_context)(verbs);
            libc::free(verbs.cast());
        }
    });
}
