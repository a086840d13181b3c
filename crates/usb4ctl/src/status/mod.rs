//! `usb4ctl status`: links, rails, cables and counters.
//!
//! Of the kernel module it reads sysfs alone (`gather.rs`), so it needs no rights and does not disturb; `text.rs` says
//! what was found. A software device shows nothing there, and is asked instead.

mod facts;
mod gather;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use anyhow::Result;
use usb4_ring::KERNEL_DEVICE;

use crate::devices;
use crate::output::line;

/// Shows links and rails, what they wait for, cables, controllers and counters.
///
/// Of a software device it shows what `usb4ctl devices` does: it has no cables.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Where sysfs is.
    #[arg(long, hide = true, default_value = "/sys")]
    sysfs: PathBuf,
}

pub(crate) fn run(device: Option<&str>, arguments: &Arguments) -> Result<()> {
    if device.is_some_and(|device| device != KERNEL_DEVICE) {
        return devices::show(device, arguments.json);
    }
    let facts = gather::facts(&arguments.sysfs);
    if arguments.json {
        return line(serde_json::to_string_pretty(&facts)?);
    }
    text::lines(&facts).into_iter().try_for_each(line)
}
