//! What is needed of NCCL or RCCL, whose functions have the same names.

use std::ffi::{CStr, c_char, c_int, c_void};

use anyhow::{Context, Result, bail, ensure};

use crate::gpu::{Buffer, Stream};
use crate::library::Library;

/// `ncclUniqueId`.
pub(crate) type Id = [u8; 128];

/// As C passes it by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId(Id);

const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// A loaded NCCL.
pub(crate) struct Nccl {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut *mut c_void, c_int, UniqueId, c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        *mut c_void,
        *mut c_void,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    name: String,
}

impl Nccl {
    /// Loads it.
    ///
    /// # Errors
    ///
    /// It does not load.
    pub(crate) fn load(file: Option<&str>) -> Result<Self> {
        let library = match file {
            Some(file) => Library::load(&[file]),
            None => Library::load(&["librccl.so.1", "libnccl.so.2"]),
        };
        let library = library.context("load NCCL")?;
        // SAFETY: the signatures NCCL documents, which RCCL has too.
        unsafe {
            Ok(Self {
                get_version: library.function("ncclGetVersion")?,
                get_unique_id: library.function("ncclGetUniqueId")?,
                init_rank: library.function("ncclCommInitRank")?,
                all_reduce: library.function("ncclAllReduce")?,
                destroy: library.function("ncclCommDestroy")?,
                error_string: library.function("ncclGetErrorString")?,
                last_error: library.function("ncclGetLastError")?,
                name: library.name,
            })
        }
    }

    /// Whether it is AMD's.
    pub(crate) fn is_rccl(&self) -> bool {
        self.name.contains("rccl")
    }

    /// The file it is.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its version, as it says it: 23007 is 2.30.7.
    pub(crate) fn version(&self) -> c_int {
        let mut version = 0;
        // SAFETY: a number is written to.
        let _ = unsafe { (self.get_version)(&raw mut version) };
        version
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: it gives C strings that stay; the last error is that of the process.
        let words = unsafe { [(self.error_string)(code), (self.last_error)(std::ptr::null_mut())] };
        let [error, last] = words.map(|word| {
            if word.is_null() {
                return String::new();
            }
            // SAFETY: not null, so one of these strings.
            unsafe { CStr::from_ptr(word) }
                .to_string_lossy()
                .trim()
                .to_string()
        });
        bail!("{what}: {error}; {last} (NCCL_DEBUG=INFO tells more, and so does usb4ctl doctor)")
    }

    /// A fresh id of a communicator.
    pub(crate) fn unique_id(&self) -> Result<Id> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: an id is written to.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&raw mut id) })?;
        Ok(id.0)
    }

    /// Joins the communicator; waits for all ranks.
    pub(crate) fn init(&self, ranks: usize, id: Id, rank: usize) -> Result<Communicator<'_>> {
        let (ranks, rank) = (c_int::try_from(ranks)?, c_int::try_from(rank)?);
        let mut at = std::ptr::null_mut();
        // SAFETY: a pointer is written to.
        let code = unsafe { (self.init_rank)(&raw mut at, ranks, UniqueId(id), rank) };
        self.check("ncclCommInitRank", code)?;
        Ok(Communicator { nccl: self, at })
    }
}

/// The ranks, joined.
pub(crate) struct Communicator<'a> {
    nccl: &'a Nccl,
    at: *mut c_void,
}

impl Communicator<'_> {
    /// Sums `elements` numbers over all ranks, on the stream.
    pub(crate) fn all_reduce(
        &self,
        send: &Buffer<'_>,
        receive: &Buffer<'_>,
        elements: usize,
        stream: &Stream<'_>,
    ) -> Result<()> {
        ensure!(
            elements <= send.elements && elements <= receive.elements,
            "a buffer is too small"
        );
        // SAFETY: buffers of the GPU as long as that, which outlive the stream's work: `measure` waits for it.
        let code = unsafe {
            (self.nccl.all_reduce)(send.at, receive.at, elements, FLOAT32, SUM, self.at, stream.at)
        };
        self.nccl.check("ncclAllReduce", code)
    }

    /// Leaves.
    pub(crate) fn destroy(self) -> Result<()> {
        // SAFETY: its own communicator, which is not used again.
        self.nccl
            .check("ncclCommDestroy", unsafe { (self.nccl.destroy)(self.at) })
    }
}
