//! A libibverbs and a kernel for tests: objects are made in a file, whose pages are the queues; the device's end of them is
//! the test's.
//!
//! The file knows no `ENTER`: a call that is made where none should be fails.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, const_mutex};
use rdma_core_sys::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use usb4_ring::raw::{ABI_VERSION, Consumer, Cqe, Entry, Producer, QueueMemory, Ring, Rqe, Slots, Sqe};

use crate::abi::{AhResponse, CqResponse, QpResponse, SrqResponse, usb4_ib_alloc_ucontext_resp};
use crate::context;

const PAGE: u64 = 4096;
/// Bytes of a queue in the file.
const ROOM: u64 = 16 * PAGE;
/// The file: a notice page, and queues.
const FILE: u64 = PAGE + 64 * ROOM;

/// Zeroed memory of a queue of `depth` entries.
pub(crate) fn memory<E: Entry>(depth: u32) -> QueueMemory {
    ring(&file()).map::<E>(depth, PAGE, ROOM).unwrap()
}

/// `entry`, of queue pair `qpn`.
pub(crate) fn of(qpn: u32, entry: &Cqe) -> Cqe {
    let mut words = entry.to_words();
    words[3] = words[3] & 0xffff_ffff | u64::from(qpn) << 32;
    Cqe::from_words(&words)
}

fn file() -> OwnedFd {
    let file = memfd_create("queues", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, FILE).unwrap();
    file
}

fn ring(file: &OwnedFd) -> Ring {
    Ring::new(file.as_fd().try_clone_to_owned().unwrap(), (0, 0)).unwrap()
}

/// What was made for one context.
struct Kernel {
    file: OwnedFd,
    next: u64,
    /// By the address of what libibverbs knows.
    queues: HashMap<usize, Vec<(u32, u64)>>,
    /// Slots of queue pairs, of sends and receives.
    slots: HashMap<usize, (Slots, Slots)>,
}

static KERNELS: Mutex<Option<HashMap<usize, Kernel>>> = const_mutex(None);
static NUMBER: AtomicU32 = AtomicU32::new(2);

fn with<T>(context: *mut ibv_context, f: impl FnOnce(&mut Kernel) -> T) -> T {
    let mut kernels = KERNELS.lock();
    f(kernels
        .get_or_insert_default()
        .get_mut(&context.addr())
        .expect("an open context"))
}

impl Kernel {
    fn place(&mut self, depth: u32) -> (u32, u64) {
        let at = self.next;
        self.next += ROOM;
        (depth, at)
    }
}

/// How a test's library differs from a plain one.
#[derive(Clone, Copy)]
pub(crate) struct Quirks {
    /// The layout it says it has.
    pub(crate) layout: Layout,
    /// The layout it has.
    pub(crate) real: Layout,
}

/// A library of `layout`.
pub(crate) fn library(layout: Layout) -> &'static Library {
    odd_library(Quirks { layout, real: layout })
}

pub(crate) fn odd_library(quirks: Quirks) -> &'static Library {
    // A function of C has nothing to tell it which library it is of: one for each layout.
    macro_rules! of_layout {
        ($name:ident) => {
            match quirks.real {
                Layout::Abi34 => $name::<0>,
                Layout::Abi57 => $name::<1>,
                Layout::Abi59 => $name::<2>,
                Layout::Abi59Dmabuf => $name::<3>,
                Layout::Abi64 => $name::<4>,
                Layout::Abi65 => $name::<5>,
            }
        };
    }
    Box::leak(Box::new(Library {
        layout: quirks.layout,
        register_driver,
        get_context: if quirks.layout.takes_descriptors() {
            GetContext::WithDescriptors(of_layout!(get_context_57))
        } else {
            GetContext::Plain(of_layout!(get_context_34))
        },
        log: None,
        init_and_alloc_context: of_layout!(init_and_alloc_context),
        uninit_context: of_layout!(uninit_context),
        set_ops: of_layout!(set_ops),
        query_device_any,
        query_port,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        reg_dmabuf_mr,
        dereg_mr,
        create_cq,
        destroy_cq,
        create_qp,
        create_qp_ex: match quirks.layout {
            // Each of the three places there have been.
            Layout::Abi34 => create_qp_ex::<0>,
            Layout::Abi57 => create_qp_ex::<1>,
            _ => create_qp_ex::<2>,
        },
        modify_qp,
        query_qp,
        destroy_qp,
        create_srq,
        modify_srq,
        query_srq,
        destroy_srq,
        create_ah,
        destroy_ah,
    }))
}

/// An open context.
pub(crate) struct Open(pub(crate) *mut ibv_context);

impl Open {
    pub(crate) fn new(library: &'static Library) -> Self {
        // SAFETY: the fake does not look at the device.
        let verbs = unsafe { context::open(library, ptr::null_mut(), -1) }.unwrap();
        // SAFETY: a context of this library's.
        Self(unsafe { context_of(verbs, library.layout) })
    }

    /// What applications call.
    pub(crate) fn ops(&self) -> &ibv_context_ops {
        // SAFETY: an open context.
        unsafe { &(*self.0).ops }
    }

    fn memory<E: Entry>(&self, object: usize, at: usize) -> (u32, QueueMemory) {
        with(self.0, |kernel| {
            let (depth, offset) = kernel.queues[&object][at];
            let (sends, receives) = kernel.slots.get(&object).copied().unwrap_or_default();
            let slots = if at == 0 { sends } else { receives };
            let ring = ring(&kernel.file);
            (depth, ring.map_with::<E>(depth, slots, offset, ROOM).unwrap())
        })
    }

    /// The device's end of a completion queue.
    pub(crate) fn cq(&self, cq: *mut ibv_cq) -> Producer<QueueMemory, Cqe> {
        let (depth, memory) = self.memory::<Cqe>(cq.addr(), 0);
        Producer::new(memory, depth).unwrap()
    }

    /// A send queue's memory.
    pub(crate) fn sq_memory(&self, qp: *mut ibv_qp) -> QueueMemory {
        self.memory::<Sqe>(qp.addr(), 0).1
    }

    /// A completion queue's memory.
    pub(crate) fn cq_memory(&self, cq: *mut ibv_cq) -> QueueMemory {
        self.memory::<Cqe>(cq.addr(), 0).1
    }

    /// The device's end of a send queue.
    pub(crate) fn sq(&self, qp: *mut ibv_qp) -> Consumer<QueueMemory, Sqe> {
        let (depth, memory) = self.memory::<Sqe>(qp.addr(), 0);
        Consumer::new(memory, depth).unwrap()
    }

    /// The device's end of a shared receive queue.
    pub(crate) fn srq(&self, srq: *mut ibv_srq) -> Consumer<QueueMemory, Rqe> {
        let (depth, memory) = self.memory::<Rqe>(srq.addr(), 0);
        Consumer::new(memory, depth).unwrap()
    }

    /// The slot of the entry that the device has peeked last.
    pub(crate) fn slot<E: Slotted, T>(&self, queue: &Consumer<QueueMemory, E>, of: *mut T) -> Vec<u64> {
        let (sends, receives) = with(self.0, |kernel| kernel.slots[&of.addr()]);
        let slot = queue.slot(if E::SENDS { sends } else { receives }).unwrap();
        slot.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// The device's end of a receive queue.
    pub(crate) fn rq(&self, qp: *mut ibv_qp) -> Consumer<QueueMemory, Rqe> {
        let (depth, memory) = self.memory::<Rqe>(qp.addr(), 1);
        Consumer::new(memory, depth).unwrap()
    }
}

/// Entries of queues that may have slots.
pub(crate) trait Slotted: Entry {
    /// Of a submission queue.
    const SENDS: bool;
}

impl Slotted for Sqe {
    const SENDS: bool = true;
}

impl Slotted for Rqe {
    const SENDS: bool = false;
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        unsafe { context::free_context(self.0) };
    }
}

const fn layout(at: usize) -> Layout {
    Layout::ALL[at]
}

unsafe extern "C" fn register_driver(_: *const verbs_device_ops) {}

unsafe extern "C" fn init_and_alloc_context<const L: usize>(
    _: *mut ibv_device,
    _: c_int,
    size: usize,
    _: *mut verbs_context,
    _: u32,
) -> *mut c_void {
    // SAFETY: zeroed memory, with room for the context.
    unsafe {
        let verbs = libc::calloc(1, size);
        let context = context_of(verbs.cast(), layout(L));
        context.cast::<usize>().sub(1).write(layout(L).context_size());
        verbs
    }
}

unsafe extern "C" fn uninit_context<const L: usize>(verbs: *mut verbs_context) {
    // SAFETY: one of the above.
    let context = unsafe { context_of(verbs, layout(L)) };
    if let Some(kernels) = KERNELS.lock().as_mut() {
        kernels.remove(&context.addr());
    }
}

unsafe extern "C" fn set_ops<const L: usize>(verbs: *mut verbs_context, table: *const c_void) {
    // SAFETY: a context of the above, and a table of this layout.
    unsafe {
        let context = context_of(verbs, layout(L));
        let slot = |op: Op| {
            let at = op.index(layout(L)).unwrap();
            table.cast::<*mut c_void>().add(at).read()
        };
        let ops = &mut (*context).ops;
        ops.poll_cq = slot(Op::PollCq);
        ops.post_recv = slot(Op::PostRecv);
        ops.post_send = slot(Op::PostSend);
        ops.req_notify_cq = slot(Op::ReqNotifyCq);
    }
}

unsafe extern "C" fn get_context_57<const L: usize>(
    verbs: *mut verbs_context,
    cmd: *mut ibv_get_context,
    cmd_size: usize,
    descriptors: *mut ibv_fd_arr,
    resp: *mut ib_uverbs_get_context_resp,
    resp_size: usize,
) -> c_int {
    assert!(descriptors.is_null());
    // SAFETY: as for the caller.
    unsafe { get_context_34::<L>(verbs, cmd, cmd_size, resp, resp_size) }
}

unsafe extern "C" fn get_context_34<const L: usize>(
    verbs: *mut verbs_context,
    _: *mut ibv_get_context,
    cmd_size: usize,
    resp: *mut ib_uverbs_get_context_resp,
    resp_size: usize,
) -> c_int {
    assert_eq!((cmd_size, resp_size), (16, 8 + 24));
    let file = file();
    // SAFETY: a context of the above; what is ours follows the response.
    unsafe {
        resp.add(1)
            .cast::<usb4_ib_alloc_ucontext_resp>()
            .write(usb4_ib_alloc_ucontext_resp {
                ring_abi: RING_ABI.get(),
                ring_fd: file.try_clone().unwrap().into_raw_fd(),
                caps: 0,
                notice_bytes: 4096,
                notice_offset: 0,
            });
        let kernel = Kernel {
            file,
            next: PAGE,
            queues: HashMap::new(),
            slots: HashMap::new(),
        };
        let context = context_of(verbs, layout(L));
        KERNELS
            .lock()
            .get_or_insert_default()
            .insert(context.addr(), kernel);
    }
    0
}

thread_local! {
    /// The version of the ring interface the kernel says it speaks to this thread.
    pub(crate) static RING_ABI: Cell<u32> = const { Cell::new(ABI_VERSION) };
}

unsafe extern "C" fn query_device_any(
    _: *mut ibv_context,
    _: *const c_void,
    _: *mut ibv_device_attr_ex,
    _: usize,
    resp: *mut ib_uverbs_ex_query_device_resp,
    size: *mut usize,
) -> c_int {
    // SAFETY: the caller's memory.
    unsafe {
        assert!(*size >= 8);
        (*resp).fw_ver = 1 << 32 | 2 << 16 | 3;
    }
    0
}

unsafe extern "C" fn query_port(
    _: *mut ibv_context,
    _: u8,
    _: *mut ibv_port_attr,
    _: *mut ibv_query_port,
    _: usize,
) -> c_int {
    libc::EINVAL
}

unsafe extern "C" fn alloc_pd(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    _: *mut ibv_alloc_pd,
    _: usize,
    _: *mut ib_uverbs_alloc_pd_resp,
    _: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    unsafe { (*pd).context = context };
    0
}

unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    _: usize,
    _: u64,
    _: c_int,
    mr: *mut verbs_mr,
    _: *mut ibv_reg_mr,
    _: usize,
    _: *mut ib_uverbs_reg_mr_resp,
    _: usize,
) -> c_int {
    if addr.is_null() {
        return libc::EFAULT;
    }
    // SAFETY: the caller's memory.
    unsafe {
        (*mr).ibv_mr.context = (*pd).context;
        ((*mr).ibv_mr.lkey, (*mr).ibv_mr.rkey) = (11, 12);
    }
    0
}

unsafe extern "C" fn reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
    _: *mut verbs_mr,
    driver: *mut ibv_command_buffer,
) -> c_int {
    assert!(driver.is_null());
    libc::EOPNOTSUPP
}

unsafe extern "C" fn dereg_mr(_: *mut verbs_mr) -> c_int {
    0
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    _: *mut ibv_comp_channel,
    _: c_int,
    cq: *mut ibv_cq,
    _: *mut ibv_create_cq,
    _: usize,
    resp: *mut ib_uverbs_create_cq_resp,
    resp_size: usize,
) -> c_int {
    assert_eq!(resp_size, size_of::<CqResponse>());
    let Ok(depth) = u32::try_from(cqe) else {
        return libc::EINVAL;
    };
    let (depth, offset) = with(context, |kernel| {
        let place = kernel.place(depth.next_power_of_two());
        kernel.queues.insert(cq.addr(), vec![place]);
        place
    });
    // SAFETY: the caller's memory.
    unsafe {
        (*cq).context = context;
        let ours = &mut (*resp.cast::<CqResponse>()).ours;
        (ours.depth, ours.offset, ours.bytes) = (depth, offset, ROOM);
    }
    0
}

unsafe extern "C" fn destroy_cq(_: *mut ibv_cq) -> c_int {
    0
}

/// # Safety
/// As for the functions below.
unsafe fn make(
    context: *mut ibv_context,
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_init_attr,
    resp: *mut QpResponse,
) {
    // SAFETY: the caller's memory.
    let (cap, send_cq, recv_cq) = unsafe { ((*attr).cap, (*attr).send_cq, (*attr).recv_cq) };
    // SAFETY: as above.
    let has_srq = !unsafe { (*attr).srq }.is_null();
    let (Some(sends), Some(receives)) = (
        Slots::holding(cap.max_send_sge, cap.max_inline_data),
        Slots::holding(if has_srq { 0 } else { cap.max_recv_sge }, 0),
    ) else {
        panic!("the kernel refuses that");
    };
    let depth = |wanted: u32| wanted.max(1).next_power_of_two();
    let (sq, rq) = with(context, |kernel| {
        let sq = kernel.place(depth(cap.max_send_wr));
        kernel.slots.insert(qp.addr(), (sends, receives));
        if has_srq {
            kernel.queues.insert(qp.addr(), vec![sq]);
            return (sq, (0, 0));
        }
        let rq = kernel.place(depth(cap.max_recv_wr));
        kernel.queues.insert(qp.addr(), vec![sq, rq]);
        (sq, rq)
    });
    // SAFETY: the caller's memory.
    unsafe {
        (*qp).context = context;
        (*qp).qp_num = NUMBER.fetch_add(1, Ordering::Relaxed);
        ((*qp).send_cq, (*qp).recv_cq) = (send_cq, recv_cq);
        let ours = &mut (*resp).ours;
        (ours.ep, ours.sq_depth, ours.rq_depth) = (1, sq.0, rq.0);
        (ours.sq_offset, ours.sq_bytes, ours.rq_offset, ours.rq_bytes) = (sq.1, ROOM, rq.1, ROOM);
        (ours.sq_slot, ours.rq_slot) = (sends.bytes(), receives.bytes());
        let cap = &mut (*attr).cap;
        (cap.max_send_sge, cap.max_recv_sge) = (sends.pieces(), receives.pieces());
        cap.max_inline_data = sends.inline();
    }
}

unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_init_attr,
    _: *mut ibv_create_qp,
    _: usize,
    resp: *mut ib_uverbs_create_qp_resp,
    resp_size: usize,
) -> c_int {
    assert_eq!(resp_size, size_of::<QpResponse>());
    // SAFETY: the caller's memory.
    unsafe { make((*pd).context, qp, attr, resp.cast()) };
    0
}

unsafe extern "C" fn create_qp_ex<const PLACE: usize>(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    _: *mut ibv_create_qp,
    _: usize,
    resp: *mut ib_uverbs_create_qp_resp,
    _: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    unsafe {
        make(context, qp.cast(), ibv_qp_init_attr_ex::base(attr), resp.cast());
        qp.byte_add(QP_COMP_MASK[PLACE]).cast::<u32>().write(0);
    }
    0
}

unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    _: *mut ibv_modify_qp,
    _: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    unsafe {
        if mask & IBV_QP_STATE != 0 {
            (*qp).state = (*attr).qp_state;
        }
    }
    0
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    _: *mut ibv_qp_init_attr,
    _: *mut ibv_query_qp,
    _: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    unsafe { (*attr).qp_state = (*qp).state };
    0
}

unsafe extern "C" fn destroy_qp(_: *mut ibv_qp) -> c_int {
    0
}

unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_init_attr,
    _: *mut ibv_create_srq,
    _: usize,
    resp: *mut ib_uverbs_create_srq_resp,
    resp_size: usize,
) -> c_int {
    assert_eq!(resp_size, size_of::<SrqResponse>());
    // SAFETY: the caller's memory.
    unsafe {
        let context = (*pd).context;
        let wanted = (*attr).attr.max_wr;
        let slots = Slots::holding((*attr).attr.max_sge, 0).expect("the kernel refuses that");
        if wanted == 0 {
            return libc::EINVAL;
        }
        let (depth, offset) = with(context, |kernel| {
            let place = kernel.place(wanted.next_power_of_two());
            kernel.queues.insert(srq.addr(), vec![place]);
            // The only queue there is.
            kernel.slots.insert(srq.addr(), (slots, slots));
            place
        });
        (*srq).context = context;
        ((*attr).attr.max_wr, (*attr).attr.max_sge) = (depth, slots.pieces());
        let ours = &mut (*resp.cast::<SrqResponse>()).ours;
        (ours.srq, ours.depth, ours.offset, ours.bytes) = (9, depth, offset, ROOM);
        ours.slot = slots.bytes();
    }
    0
}

unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
    _: *mut ibv_modify_srq,
    _: usize,
) -> c_int {
    if mask != IBV_SRQ_LIMIT {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the caller's memory; nobody else uses the number.
    unsafe { (*srq).handle = (*attr).srq_limit };
    0
}

unsafe extern "C" fn query_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    _: *mut ibv_query_srq,
    _: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    unsafe { (*attr).srq_limit = (*srq).handle };
    0
}

unsafe extern "C" fn destroy_srq(_: *mut ibv_srq) -> c_int {
    0
}

unsafe extern "C" fn create_ah(
    pd: *mut ibv_pd,
    ah: *mut ibv_ah,
    _: *mut ibv_ah_attr,
    resp: *mut ib_uverbs_create_ah_resp,
    resp_size: usize,
) -> c_int {
    assert_eq!(resp_size, 4 + 16);
    // SAFETY: the caller's memory.
    unsafe {
        (*ah).context = (*pd).context;
        (*resp.cast::<AhResponse>()).ours = crate::abi::usb4_ib_create_ah_resp {
            node_low: 5,
            node_high: 6,
        };
    }
    0
}

unsafe extern "C" fn destroy_ah(_: *mut ibv_ah) -> c_int {
    0
}
