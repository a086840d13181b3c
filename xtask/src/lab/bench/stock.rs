//! What the stock kernel has: the network over the cable, and RXE over that.

use super::Measured;
use super::counts;
use super::rows::{Rdma, Row, Shape};
use crate::lab::perftest::{Device, RXE, Server};
use crate::lab::session::Lab;
use crate::lab::suites::net;
use anyhow::Result;

pub(super) fn measure(lab: &mut Lab, row: &Row) -> Result<Measured> {
    match row {
        Row::Ping { flood } => ping(lab, *flood),
        Row::Tcp { reverse } => Ok(Measured {
            value: net::iperf3(lab.guest(0)?, lab.guest(1)?, *reverse, 3)?,
            counts: None,
        }),
        Row::Rdma(rdma) => perftest(lab, RXE, rdma),
    }
}

fn ping(lab: &mut Lab, flood: bool) -> Result<Measured> {
    let (count, pace) = if flood { (1000, "-f") } else { (300, "-i 0.003") };
    lab.control("clear")?;
    let ping = net::ping(lab.guest(0)?, &net::address(1), &format!("{pace} -c {count}"))?;
    let counts = counts::per_message(&lab.control("stats")?, 2 * count)?;
    Ok(Measured {
        value: 1000.0 * ping.average_ms,
        counts: Some(counts),
    })
}

/// RDMA by perftest, whose handshake goes beside the cable.
pub(super) fn perftest(lab: &mut Lab, device: Device, rdma: &Rdma) -> Result<Measured> {
    let test = rdma.perftest();
    lab.control("clear")?;
    let (client, server) = (lab.guest(0)?, lab.guest(1)?);
    let result = Server::start(server, device, &test)?.run(client)?;
    let value = match rdma.shape {
        Shape::Latency => result.typical_us()?,
        Shape::Bandwidth { .. } => result.mib_per_second()?,
    };
    Ok(Measured {
        value,
        counts: Some(counts::per_message(&lab.control("stats")?, test.messages)?),
    })
}
