//! Applications that use verbs through libraries: Open MPI and UCX's own test over UCX, libfabric's test over its provider
//! `verbs`.

use super::{Outcome, chroot};
use crate::lab::agent::SIGKILL;
use crate::lab::perftest::device_address as address;
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

/// `fi_pingpong -c`, which checks data: endpoints that are connected by rdma_cm, datagrams, and rxm's over connections.
pub(super) fn libfabric(lab: &mut Lab) -> Result<Outcome> {
    addresses(lab)?;
    let (client, server) = (lab.guest(0)?, lab.guest(1)?);
    let to = address(server.number);
    let mut rows = vec![];
    for (options, serve, connect, largest) in [
        ("-p verbs -e msg", format!("-s {to}"), to.clone(), "1m "),
        (
            "-p verbs -e dgram -d usb4_0-dgram",
            String::new(),
            switch::address(server.number),
            "4k ",
        ),
        ("-p 'verbs;ofi_rxm' -e rdm", format!("-s {to}"), to.clone(), "1m "),
    ] {
        // By default rxm wants a completion queue for 256 peers, which is longer than ours are.
        let command = format!("env FI_UNIVERSE_SIZE=8 fi_pingpong -c -I 5 {options}");
        let command = chroot::inside(lab, &command);
        let running =
            server
                .agent()
                .start_without_input(&["sh", "-c", &pingpong(&format!("{command} {serve}"))])?;
        server.listening(LIBFABRIC_PORT)?;
        let output = client.run(&pingpong(&format!("{command} {connect}")), LIMIT)?;
        let served = running.wait(LIMIT)?;
        let text = output.text();
        let row = text.lines().find(|line| line.starts_with(largest));
        match row {
            Some(row) if output.ok() && served.ok() => {
                rows.push(row.split_whitespace().collect::<Vec<_>>().join(" "));
            }
            _ => bail!("{command} {connect}: {output}\nserver: {served}"),
        }
    }
    Ok(Outcome::Seen(rows.join("; ")))
}

/// A script that runs fi_pingpong. In the end one with datagrams waits for a thread that waits for others to ask it for names,
/// and which nothing wakes (`ofi_ns_stop_server` in prov/util/src/util_ns.c of libfabric): so others do.
fn pingpong(command: &str) -> String {
    format!(
        "{command} > /tmp/pingpong 2>&1 < /dev/null & p=$!
         while kill -0 $p 2> /dev/null; do echo | nc -w 1 127.0.0.1 5678 > /dev/null 2>&1; sleep 0.2; done
         wait $p; s=$?; cat /tmp/pingpong; exit $s"
    )
}

/// Where fi_pingpong exchanges what it has to know.
const LIBFABRIC_PORT: u16 = 47592;

/// Gives guests what rdma_cm finds them by.
pub(super) fn addresses(lab: &Lab) -> Result<()> {
    lab.guests().iter().try_for_each(|guest| {
        let address = address(guest.number);
        let script = format!(
            "modprobe rdma_ucm && ip addr replace {address}/24 dev usb4rdma0 && ip link set usb4rdma0 up && ip link set lo up"
        );
        guest.sh(&script).map(drop)
    })
}
