//! A whole life through libibverbs, of this machine and of the systems that `RDMA_CORE_ROOTS` names: objects are made by its
//! functions, work is posted and polled by its inline calls. uverbs is played: what libibverbs writes to its device is
//! answered here, and the queues are pages of a file whose other end is this test's.

#![allow(clippy::expect_used)]

mod common;

use std::ffi::{c_int, c_void};
use std::mem::{self, transmute};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use common::{Verbs, everywhere};
use rdma_core_sys::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use usb4_ring::raw::{ABI_VERSION, Consumer, Cqe, Entry, Op, Producer, QueueMemory, Ring, Rqe, Sqe};

const PAGE: u64 = 4096;
/// Bytes of a queue in the file.
const ROOM: u64 = 16 * PAGE;
const DEPTH: u32 = 16;
/// Bytes behind each send.
const SLOT: u32 = 64;
const QPN: u32 = 0x02_0005;

/// The file with the queues, once uverbs is played.
static FILE: OnceLock<OwnedFd> = OnceLock::new();
/// Where the next queue goes.
static NEXT: AtomicU64 = AtomicU64::new(PAGE);
/// Objects made and not destroyed.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// In place of the C library's, also for libibverbs (`build.rs` exports it).
///
/// # Safety
/// As `write(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    if let Some(file) = FILE.get()
        && is_null_device(fd)
    {
        // SAFETY: the caller's promise; libibverbs writes commands to its device.
        return match unsafe { serve(file, bytes.cast()) } {
            Ok(()) => isize::try_from(len).unwrap_or(-1),
            Err(error) => {
                // SAFETY: this thread's.
                unsafe { *libc::__errno_location() = error };
                -1
            }
        };
    }
    // SAFETY: the caller's promise.
    let written = unsafe { libc::syscall(libc::SYS_write, fd, bytes, len) };
    isize::try_from(written).unwrap_or(-1)
}

fn is_null_device(fd: c_int) -> bool {
    // SAFETY: integers, filled by the call.
    unsafe {
        let mut stat: libc::stat = mem::zeroed();
        libc::fstat(fd, &mut stat) == 0 && stat.st_rdev == libc::makedev(1, 3)
    }
}

fn place() -> u64 {
    NEXT.fetch_add(ROOM, Ordering::Relaxed)
}

/// Answers a command (`rdma/ib_user_verbs.h`).
///
/// # Safety
/// `command` is one, as libibverbs makes it.
unsafe fn serve(file: &OwnedFd, command: *const u32) -> Result<(), c_int> {
    // SAFETY: the caller's promise: a header, and where the answer goes if there is one.
    let (number, room, answer) = unsafe {
        let words = command.add(1).read() >> 16;
        (
            command.read(),
            words as usize * 4,
            command.add(2).cast::<u64>().read_unaligned(),
        )
    };
    // SAFETY: the caller's promise; `word(0)` is what follows the place of the answer.
    let word = |at: usize| unsafe { command.add(4 + at).read() };
    let low = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap_or(0);
    let wide = |number: u64| [low(number), low(number >> 32)];
    let made = |words: Vec<u32>| {
        LEFT.fetch_add(1, Ordering::Relaxed);
        words
    };
    let destroyed = |words: Vec<u32>| {
        LEFT.fetch_sub(1, Ordering::Relaxed);
        words
    };
    let words: Vec<u32> = match number {
        // GET_CONTEXT: events, vectors; ring ABI, descriptor, 0, notice page.
        0 => {
            let events =
                rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map_err(|_| libc::EMFILE)?;
            let ring = file.try_clone().map_err(|_| libc::EMFILE)?;
            let descriptor = |fd: OwnedFd| u32::try_from(fd.into_raw_fd()).unwrap_or(u32::MAX);
            vec![
                descriptor(events),
                1,
                ABI_VERSION,
                descriptor(ring),
                0,
                4096,
                0,
                0,
            ]
        }
        // QUERY_DEVICE: version 1.2.3, and what follows.
        1 => {
            let [low, high] = wide(1 << 32 | 2 << 16 | 3);
            let mut words = vec![low, high];
            words.resize(room / 4, 0);
            words
        }
        // ALLOC_PD, REG_MR.
        3 => made(vec![1]),
        9 => made(vec![1, 11, 12]),
        // DEALLOC_PD, DEREG_MR, DESTROY_AH: there is no answer.
        4 | 8 | 13 => {
            destroyed(vec![]);
            return Ok(());
        }
        // CREATE_AH: the host follows at once.
        5 => made([vec![1], wide(0x55).to_vec(), wide(0x66).to_vec()].concat()),
        // CREATE_CQ.
        18 => {
            let [low, high] = wide(place());
            let [bytes, rest] = wide(ROOM);
            made(vec![1, DEPTH, 3, DEPTH, low, high, bytes, rest])
        }
        // CREATE_QP: sizes as they were asked for, but for the queues.
        24 => {
            let (sq, rq) = (wide(place()), wide(place()));
            let bytes = wide(ROOM);
            assert_eq!((word(8), word(9), word(10)), (1, 1, 16));
            let core = vec![1, QPN, DEPTH, DEPTH, 4, 1, 64, 0];
            let ours = [
                vec![4, DEPTH, DEPTH, SLOT],
                sq.to_vec(),
                bytes.to_vec(),
                rq.to_vec(),
                bytes.to_vec(),
                vec![0, 0],
            ];
            made([core, ours.concat()].concat())
        }
        26 => return Ok(()),
        // DESTROY_CQ, DESTROY_QP: no events.
        20 => destroyed(vec![0, 0]),
        27 => destroyed(vec![0]),
        _ => return Err(libc::EOPNOTSUPP),
    };
    assert_eq!(room, words.len() * 4, "command {number}");
    let to: *mut u32 = ptr::with_exposed_provenance_mut(usize::try_from(answer).map_err(|_| libc::EFAULT)?);
    // SAFETY: libibverbs has as much room as it says.
    unsafe {
        words
            .iter()
            .enumerate()
            .for_each(|(at, word)| to.add(at).write(*word))
    };
    Ok(())
}

#[test]
fn work_is_posted_and_polled_through_libibverbs() {
    everywhere("uverbs", |text| {
        for said in ["posted and polled", "built and read", "all destroyed"] {
            assert!(text.contains(said), "{text}");
        }
    });
}

/// Not a test by itself: it runs in the namespace of one.
#[test]
#[ignore = "runs in the namespace that another test makes"]
fn child() {
    let Some(verbs) = Verbs::load() else { return };
    let Some(device) = verbs.device() else { return };
    let file = memfd_create("queues", MemfdFlags::CLOEXEC).expect("a file");
    ftruncate(&file, PAGE + 16 * ROOM).expect("pages");
    FILE.set(file).expect("set once");
    let context = verbs.open(device).expect("the device opens");
    // SAFETY: libibverbs's functions, called as its header has them.
    unsafe {
        query(&verbs, context);
        let world = World::new(&verbs, context);
        world.post_and_poll();
        println!("posted and polled");
        world.destroy(&verbs);
        build_and_read(&verbs, context);
        println!("built and read");
        type Close = unsafe extern "C" fn(*mut ibv_context) -> c_int;
        assert_eq!(verbs.symbol::<Close>(c"ibv_close_device")(context), 0);
    }
    assert_eq!(LEFT.load(Ordering::Relaxed), 0);
    println!("all destroyed");
}

type Object = unsafe extern "C" fn(*mut c_void) -> c_int;
type AllocPd = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
type RegMr = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
type CreateCq = unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut c_void, c_int) -> *mut ibv_cq;
type CreateQp = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
type ModifyQp = unsafe extern "C" fn(*mut ibv_qp, *mut c_void, c_int) -> c_int;
type CreateAh = unsafe extern "C" fn(*mut ibv_pd, *mut c_void) -> *mut ibv_ah;
type Query = unsafe extern "C" fn(*mut ibv_context, *mut c_void) -> c_int;
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// # Safety
/// `context` is open.
unsafe fn query(verbs: &Verbs, context: *mut ibv_context) {
    // More than `ibv_device_attr`.
    let mut attr = [0u8; 1024];
    // SAFETY: the caller's promise.
    unsafe {
        assert_eq!(
            verbs.symbol::<Query>(c"ibv_query_device")(context, attr.as_mut_ptr().cast()),
            0
        )
    };
    assert!(attr.starts_with(b"1.2.3\0"));
}

/// The queue in the file at `offset`.
fn queue<E: Entry>(offset: u64) -> QueueMemory {
    let file = FILE.get().expect("a file");
    let ring = Ring::new(file.as_fd().try_clone_to_owned().expect("a descriptor"), (0, 0)).expect("a ring");
    ring.map::<E>(DEPTH, offset, ROOM).expect("a queue")
}

/// A completion of the queue pair's.
fn completion(user_data: u64, op: Op) -> Cqe {
    let entry = Cqe {
        user_data,
        op: op.code(),
        ..Cqe::default()
    };
    let mut words = entry.to_words();
    words[3] |= u64::from(QPN) << 32;
    Cqe::from_words(&words)
}

fn attr(cq: *mut ibv_cq) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 16,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    }
}

/// # Safety
/// `qp` is a queue pair.
unsafe fn get_ready(verbs: &Verbs, qp: *mut ibv_qp) {
    // More than `ibv_qp_attr`, with the state in front.
    let mut attr = [0u32; 64];
    attr[0] = IBV_QPS_RTS.unsigned_abs();
    // SAFETY: the caller's promise.
    let modify = unsafe { verbs.symbol::<ModifyQp>(c"ibv_modify_qp") };
    // SAFETY: as above.
    assert_eq!(unsafe { modify(qp, attr.as_mut_ptr().cast(), IBV_QP_STATE) }, 0);
}

struct World {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    ah: *mut ibv_ah,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    cq_at: u64,
}

impl World {
    /// # Safety
    /// `context` is open.
    unsafe fn new(verbs: &Verbs, context: *mut ibv_context) -> Self {
        static BYTES: [u8; 4096] = [0; 4096];
        // SAFETY: the caller's promise.
        unsafe {
            let pd = verbs.symbol::<AllocPd>(c"ibv_alloc_pd")(context);
            let bytes = BYTES.as_ptr().cast_mut().cast();
            let mr = verbs.symbol::<RegMr>(c"ibv_reg_mr")(pd, bytes, 4096, 0);
            assert_eq!(((*mr).lkey, (*mr).rkey, (*mr).length), (11, 12, 4096));
            // More than `ibv_ah_attr`.
            let ah = verbs.symbol::<CreateAh>(c"ibv_create_ah")(pd, [0u64; 16].as_mut_ptr().cast());
            let cq_at = NEXT.load(Ordering::Relaxed);
            let null = ptr::null_mut();
            let cq = verbs.symbol::<CreateCq>(c"ibv_create_cq")(context, 16, null, null, 0);
            let mut attr = attr(cq);
            let qp = verbs.symbol::<CreateQp>(c"ibv_create_qp")(pd, &mut attr);
            assert!(!ah.is_null() && !cq.is_null() && !qp.is_null());
            assert_eq!(((*qp).qp_num, (*cq).cqe), (QPN, 16));
            assert_eq!((attr.cap.max_send_wr, attr.cap.max_inline_data), (DEPTH, SLOT));
            assert_eq!((attr.cap.max_send_sge, attr.cap.max_recv_sge), (4, 1));
            type ToEx = unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex;
            assert!(verbs.symbol::<ToEx>(c"ibv_qp_to_qp_ex")(qp).is_null());
            get_ready(verbs, qp);
            Self {
                context,
                pd,
                mr,
                ah,
                cq,
                qp,
                cq_at,
            }
        }
    }

    /// What an application's `ibv_post_send` and the like do.
    unsafe fn post_and_poll(&self) {
        // SAFETY: objects that are there, and functions of the types that `verbs.h` has for them.
        unsafe {
            let ops = &(*self.context).ops;
            let send: PostSend = transmute(ops.post_send);
            let receive: PostRecv = transmute(ops.post_recv);
            let poll: PollCq = transmute(ops.poll_cq);
            let mut sge = ibv_sge {
                addr: (*self.mr).addr.expose_provenance() as u64,
                length: 100,
                lkey: (*self.mr).lkey,
            };
            let mut wr: ibv_send_wr = mem::zeroed();
            (wr.wr_id, wr.opcode, wr.send_flags) = (1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
            (wr.sg_list, wr.num_sge) = (&mut sge, 1);
            wr.wr.rdma = ibv_send_wr_rdma {
                remote_addr: 0x2000,
                rkey: 12,
            };
            assert_eq!(send(self.qp, &mut wr, &mut ptr::null_mut()), 0);
            let mut recv = ibv_recv_wr {
                wr_id: 2,
                next: ptr::null_mut(),
                sg_list: &mut sge,
                num_sge: 1,
            };
            assert_eq!(receive(self.qp, &mut recv, &mut ptr::null_mut()), 0);
            let mut sq = Consumer::<_, Sqe>::new(queue::<Sqe>(self.cq_at + ROOM), DEPTH).expect("a queue");
            let sqe = sq.pop().expect("sane").expect("an entry");
            assert_eq!((sqe.op, sqe.user_data, sqe.len), (Op::Write.code(), 1, 100));
            assert_eq!((sqe.local_key, sqe.args), (11, [0x2000, 12, 0, 0]));
            let mut rq =
                Consumer::<_, Rqe>::new(queue::<Rqe>(self.cq_at + 2 * ROOM), DEPTH).expect("a queue");
            assert_eq!(rq.pop().expect("sane").expect("an entry").user_data, 2);
            let mut device = Producer::<_, Cqe>::new(queue::<Cqe>(self.cq_at), DEPTH).expect("a queue");
            device.push(&completion(1, Op::Write)).expect("room");
            device.publish();
            let mut wc = [ibv_wc::default(); 2];
            assert_eq!(poll(self.cq, 2, wc.as_mut_ptr()), 1);
            assert_eq!(
                (wc[0].wr_id, wc[0].status, wc[0].opcode, wc[0].qp_num),
                (1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, QPN)
            );
        }
    }

    /// # Safety
    /// Nobody uses the objects any more.
    unsafe fn destroy(self, verbs: &Verbs) {
        // SAFETY: the caller's promise.
        unsafe {
            for (name, object) in [
                (c"ibv_destroy_qp", self.qp.cast::<c_void>()),
                (c"ibv_destroy_cq", self.cq.cast()),
                (c"ibv_destroy_ah", self.ah.cast()),
                (c"ibv_dereg_mr", self.mr.cast()),
                (c"ibv_dealloc_pd", self.pd.cast()),
            ] {
                assert_eq!(verbs.symbol::<Object>(name)(object), 0, "{name:?}");
            }
        }
    }
}

/// The extended calls, which `verbs.h` finds in front of the context (`verbs_context`), as many words from its end in every
/// release.
///
/// # Safety
/// `context` is open.
unsafe fn build_and_read(verbs: &Verbs, context: *mut ibv_context) {
    type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    type CreateCqEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
    type ToEx = unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex;
    // SAFETY: the caller's promise, and functions of the types that `verbs.h` has for them.
    unsafe {
        let words = context.cast::<*mut c_void>();
        let create_qp: CreateQpEx = transmute(words.sub(7).read());
        let create_cq: CreateCqEx = transmute(words.sub(15).read());
        let at = NEXT.load(Ordering::Relaxed);
        let mut init: ibv_cq_init_attr_ex = mem::zeroed();
        init.cqe = 16;
        let cq = create_cq(context, &mut init);
        assert!(!cq.is_null());
        let pd = verbs.symbol::<AllocPd>(c"ibv_alloc_pd")(context);
        let mut init: ibv_qp_init_attr_ex = mem::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq.cast(), cq.cast(), IBV_QPT_RC);
        init.cap = attr(cq.cast()).cap;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = IBV_QP_EX_WITH_SEND;
        init.pd = pd;
        let qp = create_qp(context, &mut init);
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        get_ready(verbs, qp);
        let qp_ex = verbs.symbol::<ToEx>(c"ibv_qp_to_qp_ex")(qp);
        assert_eq!(qp_ex.addr(), qp.addr());
        (*qp_ex).wr_start.expect("set")(qp_ex);
        ((*qp_ex).wr_id, (*qp_ex).wr_flags) = (5, IBV_SEND_SIGNALED);
        (*qp_ex).wr_send.expect("set")(qp_ex);
        (*qp_ex).wr_set_sge.expect("set")(qp_ex, 11, 0x1000, 10);
        assert_eq!((*qp_ex).wr_complete.expect("set")(qp_ex), 0);
        let mut sq = Consumer::<_, Sqe>::new(queue::<Sqe>(at + ROOM), DEPTH).expect("a queue");
        assert_eq!(sq.pop().expect("sane").expect("an entry").user_data, 5);
        let mut device = Producer::<_, Cqe>::new(queue::<Cqe>(at), DEPTH).expect("a queue");
        device.push(&completion(5, Op::Send)).expect("room");
        device.publish();
        let mut poll = ibv_poll_cq_attr { comp_mask: 0 };
        assert_eq!((*cq).start_poll.expect("set")(cq, &mut poll), 0);
        assert_eq!(((*cq).wr_id, (*cq).read_qp_num.expect("set")(cq)), (5, QPN));
        (*cq).end_poll.expect("set")(cq);
        for (name, object) in [
            (c"ibv_destroy_qp", qp.cast::<c_void>()),
            (c"ibv_destroy_cq", cq.cast()),
            (c"ibv_dealloc_pd", pd.cast()),
        ] {
            assert_eq!(verbs.symbol::<Object>(name)(object), 0, "{name:?}");
        }
    }
}
