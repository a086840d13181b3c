//! NCCL's API, as its documentation has it, with errors as values.

use crate::library::{Library, Patched, require};
use crate::runtime::Stream;
use anyhow::Result;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// What the ranks of a communicator find each other by.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

/// An `ncclResult_t` other than success, with what NCCL last said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The number: 6 is a remote error.
    pub code: i32,
    /// The function that failed.
    pub call: &'static str,
    /// `ncclGetLastError`.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: result {} ({})", self.call, self.code, self.text.trim())
    }
}

impl std::error::Error for Failure {}

/// `ncclInProgress`: no error.
const IN_PROGRESS: c_int = 7;

/// Types of elements, with their `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DataType {
    /// Bytes.
    U8 = 1,
    /// 32-bit integers.
    U32 = 3,
    /// 32-bit floating-point numbers.
    F32 = 7,
}

const SUM: c_int = 0;

type Comm = *mut c_void;
type Handle = *mut c_void;
type Collective = unsafe extern "C" fn(*const u8, *mut u8, usize, c_int, c_int, Comm, Handle) -> c_int;
type Gather = unsafe extern "C" fn(*const u8, *mut u8, usize, c_int, Comm, Handle) -> c_int;

/// A loaded NCCL.
#[derive(Clone)]
pub struct Nccl(Arc<Functions>);

struct Functions {
    patched: Patched,
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    comm_destroy: unsafe extern "C" fn(Comm) -> c_int,
    comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    send: unsafe extern "C" fn(*const u8, usize, c_int, c_int, Comm, Handle) -> c_int,
    recv: unsafe extern "C" fn(*mut u8, usize, c_int, c_int, Comm, Handle) -> c_int,
    all_reduce: Collective,
    reduce_scatter: Collective,
    all_gather: Gather,
    broadcast: Collective,
}

impl Nccl {
    /// Loads the `libnccl.so.2` at `path`. Once per process.
    ///
    /// # Errors
    /// There is no such library, or it is stripped.
    pub fn load(path: &Path) -> Result<Nccl> {
        require(path)?;
        let (library, patched) = Library::load(path)?;
        Ok(Nccl(Arc::new(Functions {
            patched,
            get_version: library.symbol(c"ncclGetVersion")?,
            get_unique_id: library.symbol(c"ncclGetUniqueId")?,
            comm_init_rank: library.symbol(c"ncclCommInitRank")?,
            comm_destroy: library.symbol(c"ncclCommDestroy")?,
            comm_abort: library.symbol(c"ncclCommAbort")?,
            async_error: library.symbol(c"ncclCommGetAsyncError")?,
            last_error: library.symbol(c"ncclGetLastError")?,
            group_start: library.symbol(c"ncclGroupStart")?,
            group_end: library.symbol(c"ncclGroupEnd")?,
            send: library.symbol(c"ncclSend")?,
            recv: library.symbol(c"ncclRecv")?,
            all_reduce: library.symbol(c"ncclAllReduce")?,
            reduce_scatter: library.symbol(c"ncclReduceScatter")?,
            all_gather: library.symbol(c"ncclAllGather")?,
            broadcast: library.symbol(c"ncclBroadcast")?,
        })))
    }

    /// What was done to the library.
    #[must_use]
    pub fn patched(&self) -> Patched {
        self.0.patched
    }

    /// The release, as `2.30.7` is 23007.
    #[must_use]
    pub fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: NCCL's function with its documented signature.
        unsafe { (self.0.get_version)(&raw mut version) };
        version
    }

    /// A new id, for one rank to tell the others.
    ///
    /// # Errors
    /// NCCL finds no network interface.
    pub fn unique_id(&self) -> Result<UniqueId, Failure> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: NCCL's function with its documented signature.
        let rc = unsafe { (self.0.get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", rc, ptr::null_mut())?;
        Ok(id)
    }

    /// Joins the communicator `id` as `rank` of `ranks`; returns when all have.
    ///
    /// # Errors
    /// Whatever stops NCCL, a net plugin that does not come up among it.
    pub fn init(&self, ranks: usize, id: UniqueId, rank: usize) -> Result<Communicator, Failure> {
        let mut comm = MaybeUninit::new(ptr::null_mut());
        // SAFETY: NCCL's function with its documented signature.
        let rc = unsafe { (self.0.comm_init_rank)(comm.as_mut_ptr(), number(ranks), id, number(rank)) };
        self.check("ncclCommInitRank", rc, ptr::null_mut())?;
        Ok(Communicator {
            nccl: self.clone(),
            // SAFETY: initialised above, by NCCL on success.
            comm: unsafe { comm.assume_init() },
            stream: Box::new(Stream::new()),
        })
    }

    fn check(&self, call: &'static str, rc: c_int, comm: Comm) -> Result<(), Failure> {
        if rc == 0 || rc == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: NCCL's function with its documented signature; it returns a C string.
        let text = unsafe { CStr::from_ptr((self.0.last_error)(comm)) };
        Err(Failure {
            code: rc,
            call,
            text: text.to_string_lossy().into_owned(),
        })
    }
}

/// A communicator, with a stream of its own that its operations go to.
///
/// Buffers are named by address. Who starts an operation keeps them until [`Communicator::stream`] is idle.
pub struct Communicator {
    nccl: Nccl,
    comm: Comm,
    /// Boxed: NCCL has its address for a handle.
    stream: Box<Stream>,
}

impl Communicator {
    /// The stream of its operations.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sends `len` bytes.
    ///
    /// # Safety
    /// The bytes stay as they are until the stream is idle.
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn send(&self, from: *const u8, len: usize, peer: usize) -> Result<(), Failure> {
        let function = self.nccl.0.send;
        // SAFETY: NCCL's function with its documented signature; the buffer is the caller's.
        let rc = unsafe {
            function(
                from,
                len,
                DataType::U8 as c_int,
                number(peer),
                self.comm,
                self.handle(),
            )
        };
        self.check("ncclSend", rc)
    }

    /// Receives `len` bytes.
    ///
    /// # Safety
    /// Nobody else uses the buffer until the stream is idle.
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn recv(&self, to: *mut u8, len: usize, peer: usize) -> Result<(), Failure> {
        let function = self.nccl.0.recv;
        // SAFETY: NCCL's function with its documented signature; the buffer is the caller's.
        let rc = unsafe {
            function(
                to,
                len,
                DataType::U8 as c_int,
                number(peer),
                self.comm,
                self.handle(),
            )
        };
        self.check("ncclRecv", rc)
    }

    /// Sums `count` elements of all ranks.
    ///
    /// # Safety
    /// The buffers are valid for that many and left alone until the stream is idle.
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn all_reduce(
        &self,
        from: *const u8,
        to: *mut u8,
        count: usize,
        of: DataType,
    ) -> Result<(), Failure> {
        let function = self.nccl.0.all_reduce;
        // SAFETY: NCCL's function with its documented signature; the buffers are the caller's.
        let rc = unsafe { function(from, to, count, of as c_int, SUM, self.comm, self.handle()) };
        self.check("ncclAllReduce", rc)
    }

    /// Sums and leaves `count` elements with each rank.
    ///
    /// # Safety
    /// The buffers are valid, `from` for `count` elements per rank, and left alone until the stream is idle.
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn reduce_scatter(
        &self,
        from: *const u8,
        to: *mut u8,
        count: usize,
        of: DataType,
    ) -> Result<(), Failure> {
        let function = self.nccl.0.reduce_scatter;
        // SAFETY: NCCL's function with its documented signature; the buffers are the caller's.
        let rc = unsafe { function(from, to, count, of as c_int, SUM, self.comm, self.handle()) };
        self.check("ncclReduceScatter", rc)
    }

    /// Collects `count` elements of each rank.
    ///
    /// # Safety
    /// The buffers are valid, `to` for `count` elements per rank, and left alone until the stream is idle.
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn all_gather(
        &self,
        from: *const u8,
        to: *mut u8,
        count: usize,
        of: DataType,
    ) -> Result<(), Failure> {
        let function = self.nccl.0.all_gather;
        // SAFETY: NCCL's function with its documented signature; the buffers are the caller's.
        let rc = unsafe { function(from, to, count, of as c_int, self.comm, self.handle()) };
        self.check("ncclAllGather", rc)
    }

    /// Copies `count` elements of `root` to every rank.
    ///
    /// # Safety
    /// The buffers are valid for that many and left alone until the stream is idle.
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn broadcast(
        &self,
        from: *const u8,
        to: *mut u8,
        count: usize,
        of: DataType,
        root: usize,
    ) -> Result<(), Failure> {
        let function = self.nccl.0.broadcast;
        // SAFETY: NCCL's function with its documented signature; the buffers are the caller's.
        let rc = unsafe {
            function(
                from,
                to,
                count,
                of as c_int,
                number(root),
                self.comm,
                self.handle(),
            )
        };
        self.check("ncclBroadcast", rc)
    }

    /// Runs the operations that `what` starts as one group.
    ///
    /// # Errors
    /// An operation's, or the group's.
    pub fn group(&self, what: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        // SAFETY: NCCL's function with its documented signature.
        let rc = unsafe { (self.nccl.0.group_start)() };
        self.check("ncclGroupStart", rc)?;
        let done = what();
        // SAFETY: as above.
        let rc = unsafe { (self.nccl.0.group_end)() };
        done?;
        self.check("ncclGroupEnd", rc)
    }

    /// What went wrong behind the caller's back.
    ///
    /// # Errors
    /// That.
    pub fn async_error(&self) -> Result<(), Failure> {
        let mut code = 0;
        // SAFETY: NCCL's function with its documented signature, on a live communicator.
        let rc = unsafe { (self.nccl.0.async_error)(self.comm, &raw mut code) };
        self.check("ncclCommGetAsyncError", rc)?;
        self.check("an operation", code)
    }

    /// Waits for what was started and gives the communicator up.
    ///
    /// # Errors
    /// NCCL's.
    pub fn destroy(self) -> Result<(), Failure> {
        self.stream.synchronize();
        // SAFETY: NCCL's function with its documented signature; the communicator is not used again.
        let rc = unsafe { (self.nccl.0.comm_destroy)(self.comm) };
        self.stream.close();
        self.nccl.check("ncclCommDestroy", rc, ptr::null_mut())
    }

    /// Ends what was started as it is and gives the communicator up.
    ///
    /// # Errors
    /// NCCL's.
    pub fn abort(self) -> Result<(), Failure> {
        // SAFETY: NCCL's function with its documented signature; the communicator is not used again.
        let rc = unsafe { (self.nccl.0.comm_abort)(self.comm) };
        self.stream.close();
        self.nccl.check("ncclCommAbort", rc, ptr::null_mut())
    }

    fn check(&self, call: &'static str, rc: c_int) -> Result<(), Failure> {
        self.nccl.check(call, rc, self.comm)
    }

    fn handle(&self) -> Handle {
        ptr::from_ref::<Stream>(&self.stream).cast_mut().cast()
    }
}

/// A number of ranks, which NCCL has as an int.
fn number(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}
