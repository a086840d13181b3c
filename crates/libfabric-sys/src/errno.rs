//! Error numbers: the host's `errno` values, and libfabric's own from 256 (`rdma/fi_errno.h`).

use core::ffi::c_int;

macro_rules! from_libc {
    ($($(#[$doc:meta])* $name:ident = $errno:ident;)*) => {
        $($(#[$doc])* pub const $name: c_int = libc::$errno;)*
    };
}

/// The call succeeded.
pub const FI_SUCCESS: c_int = 0;

from_libc! {
    /// No such entry.
    FI_ENOENT = ENOENT;
    /// Input or output error.
    FI_EIO = EIO;
    /// Argument list too long.
    FI_E2BIG = E2BIG;
    /// Try again.
    FI_EAGAIN = EAGAIN;
    /// Out of memory.
    FI_ENOMEM = ENOMEM;
    /// Permission denied.
    FI_EACCES = EACCES;
    /// Device or resource busy.
    FI_EBUSY = EBUSY;
    /// No such device.
    FI_ENODEV = ENODEV;
    /// Invalid argument.
    FI_EINVAL = EINVAL;
    /// No space left.
    FI_ENOSPC = ENOSPC;
    /// Function not implemented.
    FI_ENOSYS = ENOSYS;
    /// No message of the desired kind.
    FI_ENOMSG = ENOMSG;
    /// No data available: no provider matches.
    FI_ENODATA = ENODATA;
    /// Protocol error.
    FI_EPROTO = EPROTO;
    /// Message too long.
    FI_EMSGSIZE = EMSGSIZE;
    /// Protocol option not available.
    FI_ENOPROTOOPT = ENOPROTOOPT;
    /// Operation not supported.
    FI_EOPNOTSUPP = EOPNOTSUPP;
    /// Address not available.
    FI_EADDRNOTAVAIL = EADDRNOTAVAIL;
    /// Connection reset by the peer.
    FI_ECONNRESET = ECONNRESET;
    /// Connection aborted.
    FI_ECONNABORTED = ECONNABORTED;
    /// Connection refused.
    FI_ECONNREFUSED = ECONNREFUSED;
    /// No buffer space available.
    FI_ENOBUFS = ENOBUFS;
    /// Timed out.
    FI_ETIMEDOUT = ETIMEDOUT;
    /// Host unreachable.
    FI_EHOSTUNREACH = EHOSTUNREACH;
    /// Host is down.
    FI_EHOSTDOWN = EHOSTDOWN;
    /// Remote input or output error.
    FI_EREMOTEIO = EREMOTEIO;
    /// Operation cancelled.
    FI_ECANCELED = ECANCELED;
}

/// Unspecified error.
pub const FI_EOTHER: c_int = 256;
/// The buffer is too small.
pub const FI_ETOOSMALL: c_int = 257;
/// Operation not permitted in the current state.
pub const FI_EOPBADSTATE: c_int = 258;
/// An error entry is waiting.
pub const FI_EAVAIL: c_int = 259;
/// Flags not supported.
pub const FI_EBADFLAGS: c_int = 260;
/// Missing event queue.
pub const FI_ENOEQ: c_int = 261;
/// Invalid domain.
pub const FI_EDOMAIN: c_int = 262;
/// Missing completion queue.
pub const FI_ENOCQ: c_int = 263;
/// CRC error.
pub const FI_ECRC: c_int = 264;
/// The message was longer than the receive buffer.
pub const FI_ETRUNC: c_int = 265;
/// The key is not valid.
pub const FI_ENOKEY: c_int = 266;
/// Missing address vector.
pub const FI_ENOAV: c_int = 267;
/// A queue was overrun.
pub const FI_EOVERRUN: c_int = 268;
/// The receiver has no buffer.
pub const FI_ENORX: c_int = 269;
