//! How the device's errors look to a user of `/dev/usb4ring`; `usb4_ring_abi::uapi` says what each means.

use usb4_device::DeviceError;

/// `include/uapi/asm-generic/errno-base.h` and `errno.h`, negative as the kernel returns them.
pub(crate) const ENOENT: i32 = -2;
const EIO: i32 = -5;
const ENOMEM: i32 = -12;
const EBUSY: i32 = -16;
const EEXIST: i32 = -17;
const ENODEV: i32 = -19;
pub(crate) const EINVAL: i32 = -22;
const ENOSPC: i32 = -28;
const EISCONN: i32 = -106;
const EHOSTUNREACH: i32 = -113;
const EDQUOT: i32 = -122;

/// The error number of a refusal.
pub(crate) fn errno(error: DeviceError) -> i32 {
    match error {
        DeviceError::NoClient => ENODEV,
        DeviceError::NoCq
        | DeviceError::NoEndpoint
        | DeviceError::NoRegion
        | DeviceError::NoHandle
        | DeviceError::NoLink => ENOENT,
        DeviceError::Unreachable => EHOSTUNREACH,
        DeviceError::Quota(_) => EDQUOT,
        DeviceError::Full(_) => ENOSPC,
        DeviceError::Busy => EBUSY,
        DeviceError::State => EISCONN,
        DeviceError::Exists => EEXIST,
        DeviceError::Range | DeviceError::Queue(_) | DeviceError::Attribute => EINVAL,
        DeviceError::Rail(_) => EIO,
        DeviceError::Storage => ENOMEM,
    }
}

/// 0, or the error number of a refusal.
pub(crate) fn outcome<T>(result: Result<T, DeviceError>) -> i32 {
    result.map_or_else(errno, |_| 0)
}
