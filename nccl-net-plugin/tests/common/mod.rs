//! NCCL's side of the ABI, as its threads use it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    dead_code,
    reason = "a test that cannot go on fails, and each test program uses its part"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    non_upper_case_globals,
    reason = "every call here hands the plugin what its contract asks for"
)]

pub(crate) mod process;

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nccl_net_sys::*;
use usb4_nccl::ncclNetPlugin_v12 as NET;

/// What counts as hung.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// Sets the device, once per test program: what it opens is the process's.
pub(crate) fn device() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name =
            std::env::var("USB4_DEVICE").unwrap_or_else(|_| format!("soft:nccl-{}", std::process::id()));
        unsafe { std::env::set_var("USB4_DEVICE", &name) };
        name
    })
}

/// Lets the tests of a program go one by one: there is one log.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
    guard
}

static LOG: Mutex<Vec<(c_int, String)>> = Mutex::new(Vec::new());

// The logger is variadic in C; what the plugin passes behind the format is one string, which on x86-64 comes as a sixth
// argument would.
unsafe extern "C" fn logger(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    line: *const c_char,
) {
    assert_eq!(unsafe { CStr::from_ptr(format) }, c"NET/USB4: %s");
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy().into_owned();
    LOG.lock().unwrap().push((level, line));
}

pub(crate) fn the_logger() -> ncclDebugLogger_t {
    type Fixed = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    unsafe { std::mem::transmute::<Fixed, ncclDebugLogger_t>(logger) }
}

/// The warnings since the last call that contain `about`.
pub(crate) fn warnings(about: &str) -> Vec<String> {
    let mut log = LOG.lock().unwrap();
    let wanted = |(level, line): &(c_int, String)| *level == NCCL_LOG_WARN && line.contains(about);
    let found = log
        .iter()
        .filter(|entry| wanted(entry))
        .map(|(_, line)| line.clone())
        .collect();
    log.retain(|entry| !wanted(entry));
    found
}

/// All there is in the log.
pub(crate) fn log() -> Vec<(c_int, String)> {
    LOG.lock().unwrap().clone()
}

pub(crate) fn ok(result: ncclResult_t) {
    assert_eq!(result, ncclSuccess, "{:?}", log());
}

/// Calls again until there is something.
pub(crate) fn until<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(done) = f() {
            return done;
        }
        assert!(start.elapsed() < HANG, "{what} hangs: {:?}", log());
    }
}

/// A context, as for one NCCL communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

unsafe impl Send for Context {}
unsafe impl Sync for Context {}

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Comm(pub(crate) *mut c_void);

unsafe impl Send for Comm {}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request(pub(crate) *mut c_void);

pub(crate) type Handle = [u8; NCCL_NET_HANDLE_MAXSIZE];

impl Context {
    pub(crate) fn new() -> Self {
        device();
        Self::try_new().unwrap_or_else(|code| panic!("init returns {code}: {:?}", log()))
    }

    pub(crate) fn try_new() -> Result<Self, ncclResult_t> {
        let mut context = null_mut();
        let mut config = ncclNetCommConfig_t { trafficClass: -1 };
        let code = unsafe { (NET.init)(&mut context, 1, &mut config, the_logger(), None) };
        // Linked into the test, the plugin takes its panics, too.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| drop(std::panic::take_hook()));
        if code == ncclSuccess {
            Ok(Self(context))
        } else {
            Err(code)
        }
    }

    pub(crate) fn finalize(self) -> ncclResult_t {
        unsafe { (NET.finalize)(self.0) }
    }

    pub(crate) fn listen(self) -> (Comm, Handle) {
        let (mut listener, mut handle) = (null_mut(), [0xff; NCCL_NET_HANDLE_MAXSIZE]);
        ok(unsafe { (NET.listen)(self.0, 0, handle.as_mut_ptr().cast(), &mut listener) });
        (Comm(listener), handle)
    }

    pub(crate) fn try_connect(self, handle: &mut Handle) -> Result<Option<Comm>, ncclResult_t> {
        let (mut comm, mut device) = (null_mut(), std::ptr::dangling_mut::<c_void>());
        let code = unsafe { (NET.connect)(self.0, 0, handle.as_mut_ptr().cast(), &mut comm, &mut device) };
        assert!(device.is_null());
        if code != ncclSuccess {
            assert!(comm.is_null());
            return Err(code);
        }
        Ok((!comm.is_null()).then_some(Comm(comm)))
    }

    pub(crate) fn connect(self, handle: &mut Handle) -> Comm {
        until("connect", || {
            self.try_connect(handle)
                .unwrap_or_else(|code| panic!("{code}: {:?}", log()))
        })
    }
}

/// Accepts once.
pub(crate) fn try_accept(listener: Comm) -> Option<Comm> {
    let (mut comm, mut device) = (null_mut(), std::ptr::dangling_mut::<c_void>());
    ok(unsafe { (NET.accept)(listener.0, &mut comm, &mut device) });
    assert!(device.is_null());
    (!comm.is_null()).then_some(Comm(comm))
}

/// A connection from one context to another: its sending and its receiving side.
pub(crate) fn pair(from: Context, to: Context) -> (Comm, Comm) {
    let (listener, mut handle) = to.listen();
    let send = from.connect(&mut handle);
    let recv = until("accept", || try_accept(listener));
    ok(unsafe { (NET.closeListen)(listener.0) });
    (send, recv)
}

/// Memory registered for a communicator.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) comm: Comm,
    pub(crate) bytes: Vec<u8>,
    pub(crate) handle: *mut c_void,
}

unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new(comm: Comm, bytes: Vec<u8>) -> Self {
        let mut new = Self {
            comm,
            bytes,
            handle: null_mut(),
        };
        let start = new.bytes.as_mut_ptr().cast();
        ok(unsafe { (NET.regMr)(comm.0, start, new.bytes.len(), NCCL_PTR_HOST, &mut new.handle) });
        new
    }

    pub(crate) fn dereg(self) -> Vec<u8> {
        ok(unsafe { (NET.deregMr)(self.comm.0, self.handle) });
        self.bytes
    }
}

/// Where a request is before the call: something that is not one.
pub(crate) const PRESET: *mut c_void = std::ptr::without_provenance_mut(1);

pub(crate) fn try_send(
    memory: &Memory,
    at: usize,
    len: usize,
    tag: i32,
) -> Result<Option<Request>, ncclResult_t> {
    let mut request = PRESET;
    let data = unsafe { memory.bytes.as_ptr().add(at) }.cast_mut().cast();
    let code = unsafe {
        (NET.isend)(
            memory.comm.0,
            data,
            len,
            tag,
            memory.handle,
            null_mut(),
            &mut request,
        )
    };
    assert_ne!(request, PRESET);
    if code != ncclSuccess {
        return Err(code);
    }
    Ok((!request.is_null()).then_some(Request(request)))
}

pub(crate) fn try_recv(
    memory: &Memory,
    at: usize,
    len: usize,
    tag: i32,
) -> Result<Option<Request>, ncclResult_t> {
    let mut request = PRESET;
    let mut data = unsafe { memory.bytes.as_ptr().add(at) }.cast_mut().cast();
    let (mut len, mut tag, mut handle) = (len, tag, memory.handle);
    let code = unsafe {
        (NET.irecv)(
            memory.comm.0,
            1,
            &mut data,
            &mut len,
            &mut tag,
            &mut handle,
            null_mut(),
            &mut request,
        )
    };
    assert_ne!(request, PRESET);
    if code != ncclSuccess {
        return Err(code);
    }
    Ok((!request.is_null()).then_some(Request(request)))
}

pub(crate) fn send(memory: &Memory, at: usize, len: usize) -> Request {
    until("isend", || {
        try_send(memory, at, len, 0).unwrap_or_else(|code| panic!("{code}: {:?}", log()))
    })
}

pub(crate) fn recv(memory: &Memory, at: usize, len: usize) -> Request {
    until("irecv", || {
        try_recv(memory, at, len, 0).unwrap_or_else(|code| panic!("{code}: {:?}", log()))
    })
}

impl Request {
    /// The size of its message, if it is done.
    pub(crate) fn test(self) -> Result<Option<usize>, ncclResult_t> {
        let (mut done, mut size) = (-1, -1);
        let code = unsafe { (NET.test)(self.0, &mut done, &mut size) };
        match (code, done) {
            (ncclSuccess, 0) => Ok(None),
            (ncclSuccess, 1) => Ok(Some(size as usize)),
            (code, _) => Err(code),
        }
    }
}

/// Tests all until all are done: their sizes.
pub(crate) fn wait_all(requests: &[Request]) -> Vec<usize> {
    let mut sizes = vec![None; requests.len()];
    until("test", || {
        for (request, size) in requests.iter().zip(&mut sizes) {
            if size.is_none() {
                *size = request
                    .test()
                    .unwrap_or_else(|code| panic!("{code}: {:?}", log()));
            }
        }
        sizes.iter().copied().collect()
    })
}

/// Tests until it fails: with what.
pub(crate) fn failure(request: Request) -> ncclResult_t {
    until("a failure", || match request.test() {
        Err(code) => Some(code),
        Ok(None) => None,
        Ok(Some(size)) => panic!("done with {size} bytes"),
    })
}

pub(crate) fn close_send(comm: Comm) {
    ok(unsafe { (NET.closeSend)(comm.0) });
}

pub(crate) fn close_recv(comm: Comm) {
    ok(unsafe { (NET.closeRecv)(comm.0) });
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}
