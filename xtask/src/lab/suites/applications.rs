//! Applications that use verbs through libraries: Open MPI and UCX's own test over UCX, libfabric's test over its provider
//! `verbs`.

use super::{Outcome, chroot};
use crate::lab::agent::SIGKILL;
use crate::lab::session::Lab;
use crate::lab::switch;
use anyhow::{Context, Result, bail};
use std::time::Duration;

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Open MPI over UCX, with every byte checked.
pub(super) fn mpi(lab: &mut Lab) -> Result<Outcome> {
    let connected = crate::mpi::ucx_in_guests(lab, "rc_v", &[2, 4])?;
    let datagrams = crate::mpi::ucx_in_guests(lab, "ud_v", &[2])?;
    Ok(Outcome::Seen(format!(
        "rc_verbs, {connected}; ud_verbs, {datagrams}"
    )))
}

/// Tests of UCX by transport. They look at no data.
const UCX: &[(&str, &str)] = &[
    ("rc_v", "tag_lat -s 8"),
    ("rc_v", "tag_bw -s 65536"),
    ("rc_v", "ucp_put_bw -s 65536"),
    ("rc_v", "ucp_get -s 65536"),
    ("rc_v", "ucp_am_bw -s 4096"),
    ("rc_v", "ucp_cswap -s 8"),
    ("ud_v", "tag_lat -s 8"),
    ("ud_v", "tag_bw -s 65536"),
    ("ud_v", "ucp_am_lat -s 64"),
];

/// Where the programs exchange what they have to know.
const UCX_PORT: u16 = 13337;

/// `ucx_perftest`. Debian's does not come to an end after its result, on any transport (it is linked to an MPI, and started
/// without): it is ended when it has said that.
pub(super) fn ucx(lab: &mut Lab) -> Result<Outcome> {
    let (client, server) = (lab.guest(0)?, lab.guest(1)?);
    let mut rows = vec![];
    for (transports, test) in UCX {
        let command = format!(
            "env UCX_VFS_ENABLE=n UCX_NET_DEVICES=usb4_0:1 UCX_TLS={transports} ucx_perftest -P 0 -n 50 -w 5 -t {test}"
        );
        let command = chroot::inside(lab, &command);
        let running = server
            .agent()
            .start_without_input(&["sh", "-c", &format!("exec {command}")])?;
        server.listening(UCX_PORT)?;
        let script = format!(
            "{command} {} > /tmp/ucx 2>&1 & p=$!
             until grep -q Final: /tmp/ucx || ! kill -0 $p; do sleep 0.1; done
             kill -9 $p; cat /tmp/ucx",
            switch::address(server.number)
        );
        let said = client.run(&script, LIMIT);
        running.signal(SIGKILL)?;
        let served = running.wait(LIMIT)?;
        let said = said?.text();
        let row = said.lines().find_map(|line| line.trim().strip_prefix("Final:"));
        let row = row.with_context(|| format!("{command}: {said}\nserver: {served}"))?;
        let count = row.split_whitespace().next();
        if count != Some("50") {
            bail!("{command}: {said}");
        }
        rows.push(format!("{transports} {test}"));
    }
    Ok(Outcome::Seen(rows.join(", ")))
}

/// `fi_pingpong -c`, which checks data: endpoints that are connected by rdma_cm, and datagrams.
pub(super) fn libfabric(lab: &mut Lab) -> Result<Outcome> {
    let (client, server) = (lab.guest(0)?, lab.guest(1)?);
    for guest in [client, server] {
        let address = address(guest.number);
        guest.sh(&format!(
            "modprobe rdma_ucm && ip addr add {address}/24 dev usb4rdma0 && ip link set usb4rdma0 up"
        ))?;
    }
    let to = address(server.number);
    let mut rows = vec![];
    for (serve, connect, largest) in [
        (format!("-e msg -s {to}"), format!("-e msg {to}"), "1m "),
        (
            "-e dgram -d usb4_0-dgram".to_string(),
            format!("-e dgram -d usb4_0-dgram {}", switch::address(server.number)),
            "4k ",
        ),
    ] {
        let command = chroot::inside(lab, "fi_pingpong -p verbs -c -I 5");
        let running =
            server
                .agent()
                .start_without_input(&["sh", "-c", &format!("exec {command} {serve}")])?;
        server.listening(LIBFABRIC_PORT)?;
        let output = client.run(&format!("{command} {connect}"), LIMIT);
        running.signal(SIGKILL)?;
        let served = running.wait(LIMIT)?;
        let output = output?;
        let text = output.text();
        let row = text.lines().find(|line| line.starts_with(largest));
        match row {
            Some(row) if output.ok() => rows.push(row.split_whitespace().collect::<Vec<_>>().join(" ")),
            _ => bail!("{command} {connect}: {output}\nserver: {served}"),
        }
    }
    Ok(Outcome::Seen(rows.join("; ")))
}

/// Where fi_pingpong exchanges what it has to know.
const LIBFABRIC_PORT: u16 = 47592;

/// A guest's address on the device's network.
fn address(guest: usize) -> String {
    format!("10.77.0.{}", guest + 1)
}
