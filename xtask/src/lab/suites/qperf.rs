//! qperf, whose queue pairs rdma_cm connects (`-cm 1`).
//!
//! Without that it addresses by LID alone, which no RoCE device takes (EINVAL, over RXE as well), and it has `-cm` for reliable
//! connections only: its tests of UC and UD do not run here.

use super::applications::addresses;
use super::{Outcome, chroot};
use crate::lab::agent::SIGKILL;
use crate::lab::perftest::device_address as address;
use crate::lab::session::Lab;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How long programs may take to be told apart from those that are stuck.
const SETTLE: Duration = Duration::from_secs(30);

/// Where the server waits.
const PORT: u16 = 19765;

/// Tests, and what their result is called.
const TESTS: &[(&str, &str)] = &[
    ("rc_lat", "latency"),
    ("rc_bw", "bw"),
    ("rc_bi_bw", "bw"),
    ("rc_rdma_read_lat", "latency"),
    ("rc_rdma_read_bw", "bw"),
    ("rc_rdma_write_lat", "latency"),
    ("rc_rdma_write_poll_lat", "latency"),
    ("rc_rdma_write_bw", "bw"),
    ("rc_compare_swap_mr", "msg_rate"),
    ("rc_fetch_add_mr", "msg_rate"),
    ("ver_rc_compare_swap", "msg_rate"),
    ("ver_rc_fetch_add", "msg_rate"),
];

/// Each for a second. The server's process of a test ends with SIGSEGV as rdma_cm tells it that the client has gone, over RXE as
/// well; the client has its result by then.
pub(super) fn qperf(lab: &mut Lab) -> Result<Outcome> {
    addresses(lab)?;
    let (client, server) = (lab.guest(0)?, lab.guest(1)?);
    let command = chroot::inside(lab, "qperf");
    let running = server
        .agent()
        .start_without_input(&["sh", "-c", &format!("exec {command}")])?;
    server.listening(PORT)?;
    let mut rows = vec![];
    for (test, result) in TESTS {
        let script = format!("{command} -cm 1 -t 1 {} {test}", address(server.number));
        let deadline = Instant::now() + SETTLE;
        let output = loop {
            let output = client.run(&script, LIMIT)?;
            // rdma_cm says LISTEN before ib_cm listens.
            let early = output.to_string().contains("Event rejected");
            if output.ok() || !early || Instant::now() > deadline {
                break output;
            }
        };
        let text = output.text();
        let value = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(result)?.trim().strip_prefix('='));
        let value = value.map(str::trim).filter(|value| !value.starts_with("0 "));
        match value {
            Some(value) if output.ok() => rows.push(format!("{test} {value}")),
            _ => bail!("{script}: {output}"),
        }
    }
    running.signal(SIGKILL)?;
    running.wait(SETTLE).context("the server")?;
    Ok(Outcome::Seen(rows.join(", ")))
}
