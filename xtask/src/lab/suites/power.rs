//! System sleep of a guest.

use crate::lab::session::Guest;
use anyhow::{Result, bail};

/// As far as devices, as far as the platform, and real suspend-to-idle, woken up by the serial port.
pub(super) const LEVELS: [&str; 3] = ["devices", "platform", SLEEP];

const SLEEP: &str = "suspend-to-idle";

/// Has a guest sleep, and waits until it is awake again.
pub(super) fn sleep(guest: &Guest, level: &str) -> Result<()> {
    if level != SLEEP {
        let script = format!(
            "echo 1 > /sys/module/suspend/parameters/pm_test_delay
             echo {level} > /sys/power/pm_test && echo freeze > /sys/power/state"
        );
        return guest.sh(&script).map(drop);
    }
    guest.sh("echo none > /sys/power/pm_test && echo enabled > /sys/class/tty/ttyS0/power/wakeup")?;
    let asleep = guest.start(&["sh", "-c", "echo freeze > /sys/power/state"])?;
    let slept = guest.wake(asleep)?;
    if !slept.ok() {
        bail!("{SLEEP}: {slept}");
    }
    Ok(())
}
