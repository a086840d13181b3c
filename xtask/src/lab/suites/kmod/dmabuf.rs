//! Memory of other drivers: the kernel's udmabuf makes dma-bufs without a device.

use super::limits::uapi;
use crate::lab::session::Lab;
use crate::lab::suites::Outcome;
use crate::lab::suites::net::SETTLE;
use anyhow::Result;

pub(super) fn dma_buf(lab: &mut Lab) -> Result<Outcome> {
    if !lab
        .guest(0)?
        .run("modprobe -q udmabuf; [ -e /dev/udmabuf ]", SETTLE)?
        .ok()
    {
        return Ok(Outcome::Skipped("this kernel has no udmabuf".into()));
    }
    uapi(lab, "dmabuf::")
}
