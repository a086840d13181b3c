//! What a kernel that looks for mistakes finds once the drivers have gone: memory that nothing points to, and, of itself,
//! DMA mappings of a device whose driver has left, and objects that are active in memory that is freed.

use super::net::SETTLE;
use super::{Check, Outcome, Tag};
use crate::lab::session::{Guest, Lab};
use anyhow::{Result, bail};

/// Is run last in every group, in the guests that are left.
pub(super) const CHECK: Check = Check {
    name: "unloaded",
    tag: Tag::Ci,
    run: unloaded,
};

fn unloaded(lab: &mut Lab) -> Result<Outcome> {
    let mut looked = 0;
    for guest in lab.guests() {
        guest.sh_for(
            "for module in usb4_rdma_ib usb4_rdma thunderbolt_net thunderbolt_stream thunderbolt; do
                 if [ -e /sys/module/$module ]; then rmmod $module; fi || exit
             done",
            SETTLE,
        )?;
        looked += usize::from(nothing_leaked(guest)?);
    }
    let all = lab.guests().len();
    Ok(Outcome::Seen(format!(
        "drivers unloaded in {all} guests; memory of {looked} searched for leaks, none found"
    )))
}

/// Whether leaks were looked for. kmemleak believes in one when it has seen no pointer to a block twice and the block is
/// five seconds old (`MSECS_MIN_AGE` in mm/kmemleak.c).
fn nothing_leaked(guest: &Guest) -> Result<bool> {
    const FILE: &str = "/sys/kernel/debug/kmemleak";
    if !guest.run(&format!("[ -e {FILE} ]"), SETTLE)?.ok() {
        return Ok(false);
    }
    let script = format!("sleep 6; echo scan > {FILE}; echo scan > {FILE}; cat {FILE}");
    let found = guest.sh_for(&script, 2 * SETTLE)?;
    if !found.is_empty() {
        bail!("guest {}: {found}", guest.number);
    }
    Ok(true)
}
