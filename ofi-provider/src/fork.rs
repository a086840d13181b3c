//! Children of `fork`: what was open before belongs to the parent.

use std::ffi::c_int;

use libfabric_sys::FI_EIO;

/// What calls on a parent's objects return in its child.
pub(crate) const FORKED: c_int = -FI_EIO;
