//! Every version's table does the same.
#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test that cannot go on fails, and every call hands the plugin what its contract asks for"
)]

mod common;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use common::*;
use nccl_net_sys::*;
use usb4_nccl as plugin;

type Pointer = *mut c_void;

/// A message or a buffer: data, size, tag, memory handle.
type Piece = (Pointer, u16, c_int, Pointer);

/// A table, less what differs between versions.
trait Table {
    fn name(&self) -> *const c_char;
    fn init(&self) -> Pointer;
    fn finalize(&self, context: Pointer);
    fn devices(&self) -> c_int;
    /// ptrSupport, speed, maxComms, maxRecvs.
    fn properties(&self) -> [c_int; 4];
    fn listen(&self, context: Pointer, handle: Pointer) -> Pointer;
    fn connect(&self, context: Pointer, handle: Pointer) -> Pointer;
    fn accept(&self, listener: Pointer) -> Pointer;
    fn reg_mr(&self, comm: Pointer, bytes: &mut [u8]) -> Pointer;
    fn send(&self, comm: Pointer, piece: Piece) -> Pointer;
    fn recv(&self, comm: Pointer, piece: Piece) -> Pointer;
    fn flush(&self, comm: Pointer) -> Pointer;
    fn test(&self, request: Pointer) -> Option<c_int>;
    fn close(&self, listener: Pointer, sides: [(Pointer, Pointer); 2]);
}

/// Calls a member that returns a result through its last argument but for those after it.
macro_rules! get {
    ($net:ident.$member:ident($($before:expr),*; $preset:expr; $($after:expr),*)) => {{
        let mut result = $preset;
        ok(unsafe { ($net.$member)($($before,)* &mut result $(, $after)*) });
        result
    }};
}

/// What is the same in all.
macro_rules! common {
    ($properties:ty, $mr_size:ty) => {
        fn name(&self) -> *const c_char {
            self.name
        }
        fn devices(&self) -> c_int {
            get!(self.devices(; -1; ))
        }
        fn properties(&self) -> [c_int; 4] {
            let zero: $properties = unsafe { std::mem::zeroed() };
            let seen = get!(self.getProperties(0; zero; ));
            [seen.ptrSupport, seen.speed, seen.maxComms, seen.maxRecvs]
        }
        fn reg_mr(&self, comm: Pointer, bytes: &mut [u8]) -> Pointer {
            let size = <$mr_size>::try_from(bytes.len()).unwrap();
            get!(self.regMr(comm, bytes.as_mut_ptr().cast(), size, NCCL_PTR_HOST; PRESET; ))
        }
        fn flush(&self, comm: Pointer) -> Pointer {
            get!(self.iflush(comm, 1, null_mut(), null_mut(), null_mut(); PRESET; ))
        }
        fn test(&self, request: Pointer) -> Option<c_int> {
            let mut size = -1;
            let done = get!(self.test(request; -1; &mut size));
            (done == 1).then_some(size)
        }
        fn close(&self, listener: Pointer, [(tx, tx_mr), (rx, rx_mr)]: [(Pointer, Pointer); 2]) {
            unsafe {
                ok((self.closeListen)(listener));
                ok((self.deregMr)(tx, tx_mr));
                ok((self.deregMr)(rx, rx_mr));
                ok((self.closeSend)(tx));
                ok((self.closeRecv)(rx));
            }
        }
    };
}

/// Before v11.
macro_rules! without_context {
    ($($profiler:expr)?) => {
        fn init(&self) -> Pointer {
            ok(unsafe { (self.init)(the_logger() $(, $profiler)?) });
            null_mut()
        }
        fn finalize(&self, _: Pointer) {}
        fn listen(&self, _: Pointer, handle: Pointer) -> Pointer {
            get!(self.listen(0, handle; PRESET; ))
        }
    };
}

/// From v11 on.
macro_rules! with_context {
    () => {
        fn init(&self) -> Pointer {
            let mut context = PRESET;
            ok(unsafe { (self.init)(&mut context, 7, null_mut(), the_logger(), None) });
            context
        }
        fn finalize(&self, context: Pointer) {
            ok(unsafe { (self.finalize)(context) });
        }
        fn listen(&self, context: Pointer, handle: Pointer) -> Pointer {
            get!(self.listen(context, 0, handle; PRESET; ))
        }
        fn connect(&self, context: Pointer, handle: Pointer) -> Pointer {
            get!(self.connect(context, 0, handle; PRESET; null_mut()))
        }
    };
}

/// From v7 on.
macro_rules! accept {
    () => {
        fn accept(&self, listener: Pointer) -> Pointer {
            let mut device = PRESET;
            let comm = get!(self.accept(listener; PRESET; &mut device));
            assert!(device.is_null());
            comm
        }
    };
}

/// With the sizes of a version, and what it has before the request.
macro_rules! transfers {
    ($size:ty $(, $profiler:expr)?) => {
        fn send(&self, comm: Pointer, (data, size, tag, mr): Piece) -> Pointer {
            get!(self.isend(comm, data, <$size>::from(size), tag, mr $(, $profiler)?; PRESET; ))
        }
        fn recv(&self, comm: Pointer, (mut data, size, mut tag, mut mr): Piece) -> Pointer {
            let mut size = <$size>::from(size);
            get!(self.irecv(comm, 1, &mut data, &mut size, &mut tag, &mut mr $(, $profiler)?; PRESET; ))
        }
    };
}

/// Of v7 to v9.
macro_rules! connect {
    ($($configuration:expr)?) => {
        fn connect(&self, _: Pointer, handle: Pointer) -> Pointer {
            get!(self.connect(0, $($configuration,)? handle; PRESET; null_mut()))
        }
    };
}

impl Table for ncclNet_v6_t {
    common!(ncclNetProperties_v6_t, c_int);
    without_context!();
    fn connect(&self, _: Pointer, handle: Pointer) -> Pointer {
        get!(self.connect(0, handle; PRESET; ))
    }
    fn accept(&self, listener: Pointer) -> Pointer {
        get!(self.accept(listener; PRESET; ))
    }
    transfers!(c_int);
}

impl Table for ncclNet_v7_t {
    common!(ncclNetProperties_v7_t, c_int);
    without_context!();
    connect!();
    accept!();
    transfers!(c_int);
}

impl Table for ncclNet_v8_t {
    common!(ncclNetProperties_v8_t, usize);
    without_context!();
    connect!();
    accept!();
    transfers!(c_int);
}

impl Table for ncclNet_v9_t {
    common!(ncclNetProperties_v9_t, usize);
    without_context!();
    connect!();
    accept!();
    transfers!(usize);
}

impl Table for ncclNet_v10_t {
    common!(ncclNetProperties_v10_t, usize);
    without_context!(None);
    connect!(null_mut());
    accept!();
    transfers!(usize, null_mut());
}

impl Table for ncclNet_v11_t {
    common!(ncclNetProperties_v11_t, usize);
    with_context!();
    accept!();
    transfers!(usize, null_mut());
}

impl Table for ncclNet_v12_t {
    common!(ncclNetProperties_v12_t, usize);
    with_context!();
    accept!();
    transfers!(usize, null_mut());
}

/// Two messages, one short, one long, from this process to itself.
fn exchange(net: &impl Table) {
    let _alone = alone();
    device();
    assert_eq!(unsafe { CStr::from_ptr(net.name()) }, c"USB4");
    let context = net.init();
    assert_eq!(net.devices(), 1);
    let [memory, speed, comms, recvs] = net.properties();
    assert_eq!([memory, comms, recvs], [NCCL_PTR_HOST, 65536, 1]);
    assert!(speed > 0);
    let mut handle: Handle = [0xff; 128];
    let raw = handle.as_mut_ptr().cast();
    let listener = net.listen(context, raw);
    let some = |pointer: Pointer| (!pointer.is_null()).then_some(pointer);
    let tx = until("connect", || some(net.connect(context, raw)));
    let rx = until("accept", || some(net.accept(listener)));
    let (mut source, mut target) = (pattern(5000, 1), vec![0_u8; 5000]);
    let (tx_mr, rx_mr) = (net.reg_mr(tx, &mut source), net.reg_mr(rx, &mut target));
    for len in [0, 5, 5000] {
        let from = net.recv(rx, (target.as_mut_ptr().cast(), len, 3, rx_mr));
        let to = net.send(tx, (source.as_mut_ptr().cast(), len, 3, tx_mr));
        for request in [to, from] {
            assert_eq!(until("test", || net.test(request)), c_int::from(len));
        }
    }
    assert!(source == target);
    assert!(net.flush(rx).is_null());
    net.close(listener, [(tx, tx_mr), (rx, rx_mr)]);
    net.finalize(context);
    assert_eq!(warnings(""), Vec::<String>::new());
}

#[test]
fn version_6_works() {
    exchange(&plugin::ncclNetPlugin_v6);
}

#[test]
fn version_7_works() {
    exchange(&plugin::ncclNetPlugin_v7);
}

#[test]
fn version_8_works() {
    exchange(&plugin::ncclNetPlugin_v8);
}

#[test]
fn version_9_works() {
    exchange(&plugin::ncclNetPlugin_v9);
}

#[test]
fn version_10_works() {
    exchange(&plugin::ncclNetPlugin_v10);
}

#[test]
fn version_11_works() {
    exchange(&plugin::ncclNetPlugin_v11);
}

#[test]
fn version_12_works() {
    exchange(&plugin::ncclNetPlugin_v12);
}

#[test]
fn a_negative_size_of_the_older_versions_is_refused() {
    let _alone = alone();
    device();
    let net = &plugin::ncclNetPlugin_v6;
    net.init();
    let nothing = null_mut();
    let mut request = PRESET;
    let code = unsafe { (net.isend)(nothing, nothing, -1, 0, nothing, &mut request) };
    assert_eq!((code, request), (ncclInternalError, nothing));
    let mut memory = PRESET;
    let code = unsafe { (net.regMr)(nothing, nothing, -1, NCCL_PTR_HOST, &mut memory) };
    assert_eq!(code, ncclInternalError);
    let (mut data, mut size, mut tag) = (nothing, -1, 0);
    let mut request = PRESET;
    let code = unsafe {
        (net.irecv)(
            nothing,
            1,
            &mut data,
            &mut size,
            &mut tag,
            &mut memory,
            &mut request,
        )
    };
    assert_eq!((code, request), (ncclInternalError, nothing));
    assert_eq!(warnings("-1 bytes").len(), 3);
}

#[test]
fn before_contexts_a_thread_may_go_on_with_a_connection_that_another_has_begun() {
    let _alone = alone();
    device();
    let net = &plugin::ncclNetPlugin_v10;
    ok(unsafe { (net.init)(the_logger(), None) });
    let mut handle = [0; NCCL_NET_HANDLE_MAXSIZE];
    let mut listener = null_mut();
    ok(unsafe { (net.listen)(0, handle.as_mut_ptr().cast(), &mut listener) });
    // One call on each of many threads, of which each has its hub.
    let mut tx = None;
    for _ in 0..10_000 {
        let call = move || {
            let (mut comm, mut device) = (null_mut::<c_void>(), null_mut());
            let code =
                unsafe { (net.connect)(0, null_mut(), handle.as_mut_ptr().cast(), &mut comm, &mut device) };
            (code, handle, comm.addr())
        };
        let (code, left, comm) = std::thread::spawn(call).join().unwrap();
        ok(code);
        handle = left;
        if comm != 0 {
            tx = Some(std::ptr::without_provenance_mut(comm));
            break;
        }
    }
    let tx = tx.unwrap_or_else(|| panic!("{:?}", log()));
    let rx = until("accept", || {
        let (mut comm, mut device) = (null_mut(), null_mut());
        ok(unsafe { (net.accept)(listener, &mut comm, &mut device) });
        (!comm.is_null()).then_some(comm)
    });
    ok(unsafe { (net.closeSend)(tx) });
    ok(unsafe { (net.closeRecv)(rx) });
    ok(unsafe { (net.closeListen)(listener) });
}
