//! The functions of HIP that RCCL calls to set itself up: memory, streams and events of the process, one device.
//!
//! Signatures and constants are those of HIP's documentation, 5.7.

#![allow(non_snake_case, reason = "HIP's names")]
#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "C's signatures; RCCL passes pointers to its own variables"
)]

use crate::put;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::slice;
use std::sync::OnceLock;
use usb4_nccl_host::runtime::{Event, Kind, Stream, allocate, find, free};

/// A `hipError_t`.
pub type Status = c_int;

const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 1;
const OUT_OF_MEMORY: Status = 2;
const INVALID_DEVICE: Status = 101;
const PEER_ACCESS_UNSUPPORTED: Status = 217;
const NOT_READY: Status = 600;
const NOT_SUPPORTED: Status = 801;

const BUS_ID: &CStr = c"0000:fe:00.0";

/// Declares functions that only say that they went well, or did not.
macro_rules! answers {
    ($($name:ident($($argument:ident: $kind:ty),*) = $answer:expr;)*) => {
        $(
            /// See HIP.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $kind),*) -> Status {
                $(let _ = $argument;)*
                $answer
            }
        )*
    };
}

answers! {
    __hipPopCallConfiguration(grid: *mut c_void, block: *mut c_void, memory: *mut c_void, stream: *mut c_void) =
        NOT_SUPPORTED;
    __hipRegisterFunction(module: *mut c_void, function: *const c_void) = SUCCESS;
    __hipUnregisterFatBinary(module: *mut c_void) = SUCCESS;
    hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) = PEER_ACCESS_UNSUPPORTED;
    hipFuncSetAttribute(function: *const c_void, attribute: c_int, value: c_int) = SUCCESS;
    hipGetLastError() = SUCCESS;
    hipHostRegister(memory: *mut c_void, len: usize, flags: c_uint) = SUCCESS;
    hipHostUnregister(memory: *mut c_void) = SUCCESS;
    hipIpcCloseMemHandle(memory: *mut c_void) = SUCCESS;
    hipIpcGetMemHandle(handle: *mut c_void, memory: *mut c_void) = NOT_SUPPORTED;
    hipIpcOpenMemHandle(memory: *mut c_void) = NOT_SUPPORTED;
    hipSetDevice(device: c_int) = if device == 0 { SUCCESS } else { INVALID_DEVICE };
    hipThreadExchangeStreamCaptureMode(mode: *mut c_int) = SUCCESS;
    hipLaunchKernel() = launch();
    hipExtLaunchKernel() = launch();
}

fn launch() -> Status {
    eprintln!("fake-gpu: RCCL's kernels cannot be run");
    NOT_SUPPORTED
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn __hipRegisterFatBinary(_data: *const c_void) -> *mut *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| Box::leak(Box::new(ptr::null_mut::<c_void>())) as *mut _ as usize);
    ptr::with_exposed_provenance_mut(*handle)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(_error: Status) -> *const c_char {
    c"an error of fake-gpu".as_ptr()
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetDevice(device: *mut c_int) -> Status {
    put(device, 0)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetDeviceCount(count: *mut c_int) -> Status {
    put(count, 1)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceCanAccessPeer(can: *mut c_int, _device: c_int, _peer: c_int) -> Status {
    put(can, 0)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> Status {
    // hipDeviceAttribute_t: compute capability, multiprocessors, shared memory per block.
    let has = match attribute {
        23 => 9,
        63 => 60,
        74 => 64 << 10,
        _ => 0,
    };
    put(value, has)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceGetPCIBusId(text: *mut c_char, len: c_int, _device: c_int) -> Status {
    let id = BUS_ID.to_bytes_with_nul();
    if !usize::try_from(len).is_ok_and(|len| len >= id.len()) {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's buffer has `len` bytes.
    unsafe { ptr::copy_nonoverlapping(id.as_ptr(), text.cast(), id.len()) };
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) -> Status {
    // SAFETY: a C string of the caller's.
    let id = unsafe { CStr::from_ptr(id) };
    if id.to_bytes().eq_ignore_ascii_case(BUS_ID.to_bytes()) {
        return put(device, 0);
    }
    INVALID_VALUE
}

/// `hipDeviceProp_t` of HIP 5.7: its size and the fields that are not zero.
const PROPERTIES: usize = 792;
const PROPERTY_INTS: &[(usize, c_int)] = &[
    (276, 64),   // warpSize
    (280, 1024), // maxThreadsPerBlock
    (328, 9),    // major
    (336, 60),   // multiProcessorCount
    (368, 0xfe), // pciBusID
    (388, 1),    // canMapHostMemory
    (392, 906),  // gcnArch
];
const TOTAL_MEMORY: usize = 256;
const ARCHITECTURE: usize = 396;

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetDeviceProperties(properties: *mut u8, _device: c_int) -> Status {
    let text = |at: usize, text: &CStr| {
        // SAFETY: the text fits its field, which has 256 bytes.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), properties.add(at), text.count_bytes()) };
    };
    // SAFETY: the caller's structure has PROPERTIES bytes, and every field lies in it.
    unsafe {
        ptr::write_bytes(properties, 0, PROPERTIES);
        properties
            .add(TOTAL_MEMORY)
            .cast::<usize>()
            .write_unaligned(8 << 30);
        for &(offset, value) in PROPERTY_INTS {
            properties.add(offset).cast::<c_int>().write_unaligned(value);
        }
    }
    text(0, c"Host memory");
    text(ARCHITECTURE, c"gfx906");
    SUCCESS
}

/// `hipFuncAttributes`: 56 bytes.
#[repr(C)]
pub struct FunctionAttributes([u64; 7]);

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipFuncGetAttributes(
    attributes: *mut FunctionAttributes,
    _function: *const c_void,
) -> Status {
    put(attributes, FunctionAttributes([0; 7]))
}

fn give(at: *mut *mut u8, len: usize, kind: Kind) -> Status {
    let memory = allocate(len, kind);
    if memory.is_null() {
        return OUT_OF_MEMORY;
    }
    put(at, memory)
}

fn take(memory: *mut u8) -> Status {
    // SAFETY: by HIP's rules who frees memory has stopped using it.
    if memory.is_null() || unsafe { free(memory) } {
        SUCCESS
    } else {
        INVALID_VALUE
    }
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipMalloc(at: *mut *mut u8, len: usize) -> Status {
    give(at, len, Kind::Device(0))
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipExtMallocWithFlags(at: *mut *mut u8, len: usize, _flags: c_uint) -> Status {
    give(at, len, Kind::Device(0))
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipHostMalloc(at: *mut *mut u8, len: usize, _flags: c_uint) -> Status {
    give(at, len, Kind::Host)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipFree(memory: *mut u8) -> Status {
    take(memory)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipHostFree(memory: *mut u8) -> Status {
    take(memory)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipHostGetDevicePointer(device: *mut *mut u8, host: *mut u8, _flags: c_uint) -> Status {
    put(device, host)
}

/// `hipPointerAttribute_t`.
#[repr(C)]
pub struct PointerAttribute {
    kind: c_int,
    device: c_int,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
    managed: c_int,
    flags: c_uint,
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipPointerGetAttributes(attributes: *mut PointerAttribute, memory: *mut c_void) -> Status {
    let Some(found) = find(memory.addr()) else {
        return INVALID_VALUE;
    };
    let host = found.kind == Kind::Host;
    put(
        attributes,
        PointerAttribute {
            // hipMemoryType: 0 host, 1 device.
            kind: c_int::from(!host),
            device: 0,
            device_pointer: memory,
            host_pointer: if host { memory } else { ptr::null_mut() },
            managed: 0,
            flags: 0,
        },
    )
}

/// The stream behind a `hipStream_t`; null is the default stream.
fn stream(handle: *mut c_void) -> Stream {
    static DEFAULT: OnceLock<Stream> = OnceLock::new();
    if handle.is_null() {
        return DEFAULT.get_or_init(Stream::new).clone();
    }
    // SAFETY: handles are boxed streams that live until they are destroyed, which ends their use.
    unsafe { &*handle.cast::<Stream>() }.clone()
}

fn event(handle: *mut c_void) -> Event {
    // SAFETY: handles are boxed events that live until they are destroyed, which ends their use.
    unsafe { &*handle.cast::<Event>() }.clone()
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipMemcpy(to: *mut u8, from: *const u8, len: usize, _kind: c_int) -> Status {
    stream(ptr::null_mut()).synchronize();
    // SAFETY: the caller's memory.
    unsafe { ptr::copy(from, to, len) };
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipMemcpyAsync(
    to: *mut u8,
    from: *const u8,
    len: usize,
    _kind: c_int,
    on: *mut c_void,
) -> Status {
    // RCCL copies what is ready; its kernels, which would change it, are not run.
    // SAFETY: the caller's memory.
    let bytes = unsafe { slice::from_raw_parts(from, len) }.to_vec();
    let to = to.expose_provenance();
    stream(on).push(move || {
        // SAFETY: by HIP's rules the target stays until the stream has come here.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::with_exposed_provenance_mut(to), len) };
    });
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipMemsetAsync(at: *mut u8, value: c_int, len: usize, on: *mut c_void) -> Status {
    let at = at.expose_provenance();
    stream(on).push(move || {
        // SAFETY: by HIP's rules the target stays until the stream has come here.
        unsafe {
            ptr::write_bytes(
                ptr::with_exposed_provenance_mut::<u8>(at),
                value.to_le_bytes()[0],
                len,
            );
        }
    });
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamCreateWithFlags(handle: *mut *mut c_void, _flags: c_uint) -> Status {
    put(handle, Box::into_raw(Box::new(Stream::new())).cast())
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamDestroy(handle: *mut c_void) -> Status {
    if !handle.is_null() {
        // SAFETY: a boxed stream, whose use ends here.
        unsafe { Box::from_raw(handle.cast::<Stream>()) }.close();
    }
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamSynchronize(handle: *mut c_void) -> Status {
    stream(handle).synchronize();
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamWaitEvent(on: *mut c_void, handle: *mut c_void, _flags: c_uint) -> Status {
    event(handle).hold_up(&stream(on));
    SUCCESS
}

/// A `hipStreamCallback_t`.
pub type Callback = extern "C" fn(*mut c_void, Status, *mut c_void);

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamAddCallback(
    on: *mut c_void,
    callback: Callback,
    data: *mut c_void,
    _flags: c_uint,
) -> Status {
    let (handle, data) = (on.expose_provenance(), data.expose_provenance());
    stream(on).push(move || {
        callback(
            ptr::with_exposed_provenance_mut(handle),
            SUCCESS,
            ptr::with_exposed_provenance_mut(data),
        );
    });
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventCreate(handle: *mut *mut c_void) -> Status {
    put(handle, Box::into_raw(Box::new(Event::new())).cast())
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventCreateWithFlags(handle: *mut *mut c_void, _flags: c_uint) -> Status {
    hipEventCreate(handle)
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventDestroy(handle: *mut c_void) -> Status {
    // SAFETY: a boxed event, whose use ends here; what is pushed has clones.
    drop(unsafe { Box::from_raw(handle.cast::<Event>()) });
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventRecord(handle: *mut c_void, on: *mut c_void) -> Status {
    event(handle).record(&stream(on));
    SUCCESS
}

/// See HIP.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventQuery(handle: *mut c_void) -> Status {
    if event(handle).is_done() {
        SUCCESS
    } else {
        NOT_READY
    }
}
