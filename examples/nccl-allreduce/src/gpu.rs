//! What is needed of CUDA or of HIP, whose functions differ by their prefix only.

use std::ffi::{c_int, c_void};

use anyhow::{Context, Result, ensure};

use crate::library::Library;

const TO_DEVICE: c_int = 1;
const TO_HOST: c_int = 2;

/// The run time of a GPU.
pub(crate) struct Gpu {
    set_device: unsafe extern "C" fn(c_int) -> c_int,
    device_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    free: unsafe extern "C" fn(*mut c_void) -> c_int,
    memcpy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int) -> c_int,
    stream_create: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    stream_synchronize: unsafe extern "C" fn(*mut c_void) -> c_int,
    name: String,
}

impl Gpu {
    /// Loads HIP for RCCL, else CUDA's run time.
    ///
    /// # Errors
    ///
    /// It does not load.
    pub(crate) fn load(file: Option<&str>, hip: bool) -> Result<Self> {
        let (prefix, names): (_, &[&str]) = if hip {
            ("hip", &["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"])
        } else {
            ("cuda", &["libcudart.so.13", "libcudart.so.12", "libcudart.so"])
        };
        let library = match file {
            Some(file) => Library::load(&[file]),
            None => Library::load(names),
        };
        let library = library.context("load the GPU's run time")?;
        let name = |function| format!("{prefix}{function}");
        // SAFETY: the signatures CUDA and HIP document, the same for both.
        unsafe {
            Ok(Self {
                set_device: library.function(&name("SetDevice"))?,
                device_count: library.function(&name("GetDeviceCount"))?,
                malloc: library.function(&name("Malloc"))?,
                free: library.function(&name("Free"))?,
                memcpy: library.function(&name("Memcpy"))?,
                stream_create: library.function(&name("StreamCreate"))?,
                stream_synchronize: library.function(&name("StreamSynchronize"))?,
                name: library.name,
            })
        }
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        ensure!(code == 0, "{what} gave error {code} of {}", self.name);
        Ok(())
    }

    /// Takes the GPU of this rank.
    pub(crate) fn choose(&self, local: usize) -> Result<()> {
        let mut count = 0;
        // SAFETY: a count is written to.
        self.check("counting GPUs", unsafe { (self.device_count)(&raw mut count) })?;
        let number = c_int::try_from(local).context("a GPU's number")?;
        ensure!(
            number < count,
            "this host has {count} GPUs, and its rank {local} has none of its own"
        );
        // SAFETY: there is such a device.
        self.check("taking the GPU", unsafe { (self.set_device)(number) })
    }

    /// Memory for `elements` numbers of single precision.
    pub(crate) fn alloc(&self, elements: usize) -> Result<Buffer<'_>> {
        let mut at = std::ptr::null_mut();
        let bytes = elements * size_of::<f32>();
        // SAFETY: a pointer is written to.
        self.check("allocating", unsafe { (self.malloc)(&raw mut at, bytes) })?;
        Ok(Buffer {
            gpu: self,
            at,
            elements,
        })
    }

    /// A stream.
    pub(crate) fn stream(&self) -> Result<Stream<'_>> {
        let mut at = std::ptr::null_mut();
        // SAFETY: a pointer is written to.
        self.check("creating a stream", unsafe { (self.stream_create)(&raw mut at) })?;
        Ok(Stream { gpu: self, at })
    }
}

/// Memory of the GPU.
pub(crate) struct Buffer<'a> {
    gpu: &'a Gpu,
    pub(crate) at: *mut c_void,
    pub(crate) elements: usize,
}

impl Buffer<'_> {
    /// Copies `from` to its beginning.
    pub(crate) fn fill(&mut self, from: &[f32]) -> Result<()> {
        ensure!(from.len() <= self.elements, "a buffer is too small");
        // SAFETY: both are as long as that.
        let code = unsafe { (self.gpu.memcpy)(self.at, from.as_ptr().cast(), size_of_val(from), TO_DEVICE) };
        self.gpu.check("copying to the GPU", code)
    }

    /// Copies its beginning to `into`.
    pub(crate) fn read(&self, into: &mut [f32]) -> Result<()> {
        ensure!(into.len() <= self.elements, "a buffer is too small");
        // SAFETY: both are as long as that.
        let code =
            unsafe { (self.gpu.memcpy)(into.as_mut_ptr().cast(), self.at, size_of_val(into), TO_HOST) };
        self.gpu.check("copying from the GPU", code)
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: its own memory, which nothing else refers to.
        let _ = unsafe { (self.gpu.free)(self.at) };
    }
}

/// Work of the GPU in order.
pub(crate) struct Stream<'a> {
    gpu: &'a Gpu,
    pub(crate) at: *mut c_void,
}

impl Stream<'_> {
    /// Until all of it is done.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: a stream of this run time.
        self.gpu.check("waiting for the GPU", unsafe {
            (self.gpu.stream_synchronize)(self.at)
        })
    }
}
