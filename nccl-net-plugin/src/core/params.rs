//! The environment. Each variable is read when NCCL initialises the plugin.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `USB4_DEVICE` | the device, as for the ring API: `/dev/usb4ring`, `soft:NAME` | `/dev/usb4ring` |
//! | `USB4_NCCL_EAGER` | longest message, in bytes, sent before its receive is known: 0 to 65536 | 2048 |
//! | `USB4_NCCL_SPEED` | Mb/s told to NCCL, for its choice of algorithms: 1 to 10000000 | the links' rate |
//! | `USB4_NCCL_LATENCY` | microseconds told to NCCL, for the same: 0 to 10000 | 2 (soft), 10 |

use std::env;

use super::fault::{Blame, Fault};

/// What the environment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    pub(crate) eager: u32,
    pub(crate) speed: Option<i32>,
    pub(crate) latency: Option<u16>,
}

impl Params {
    /// Reads it.
    pub(crate) fn from_env() -> Result<Self, Fault> {
        Ok(Self {
            eager: number("USB4_NCCL_EAGER", 0, 65536)?.unwrap_or(2048),
            speed: number("USB4_NCCL_SPEED", 1, 10_000_000)?,
            latency: number("USB4_NCCL_LATENCY", 0, 10_000)?,
        })
    }
}

/// A number within bounds; `None` where the variable is not set, or empty.
fn number<T: TryFrom<u32>>(name: &str, least: u32, most: u32) -> Result<Option<T>, Fault> {
    let Some(text) = env::var_os(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    let parsed = text.trim().parse().ok();
    let number = parsed.filter(|number| (least..=most).contains(number));
    match number.and_then(|number| T::try_from(number).ok()) {
        Some(number) => Ok(Some(number)),
        None => Err(Fault::new(
            Blame::Usage,
            format_args!("{name}={text} is not a number from {least} to {most}"),
        )),
    }
}
