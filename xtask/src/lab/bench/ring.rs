//! Our module, measured over its ring API by `usb4ctl bench`, which checks what arrives.

use super::Measured;
use super::counts;
use super::rows::{Rdma, Shape};
use crate::lab::session::Lab;
use crate::lab::stepped::Stepped;
use crate::lab::suites::rdma::Server;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::Duration;

/// How long a test may take.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn measure(lab: &mut Lab, rdma: &Rdma) -> Result<Measured> {
    let (guests, emulator) = lab.parts();
    let [client, server, ..] = guests else {
        bail!("two guests are wanted");
    };
    let server = Server::start(server, "bench")?;
    let command = format!(
        "usb4ctl bench --json --by-step {} {}",
        arguments(rdma),
        server.address
    );
    let words: Vec<&str> = command.split(' ').collect();
    let mut client = Stepped::start(client, &words, LIMIT)?;
    let mut steps = || -> Result<Measured> {
        client.until("ready")?;
        emulator.ask("clear")?;
        client.go_on()?;
        let messages = client.until("done ")?;
        let messages = messages
            .parse()
            .with_context(|| format!("{messages:?} messages"))?;
        let stats = emulator.ask("stats")?;
        client.go_on()?;
        Ok(Measured {
            value: value(rdma, &client.report()?)?,
            counts: Some(counts::per_message(&stats, messages)?),
        })
    };
    let measured = steps().context(command)?;
    server.end()?;
    Ok(measured)
}

/// So much that it takes about a second.
fn arguments(rdma: &Rdma) -> String {
    let Rdma { operation, bytes, .. } = rdma;
    let part = match rdma.shape {
        Shape::Latency => {
            let iterations = if *bytes > 16384 { 200 } else { 1000 };
            format!("--only latency --iterations {iterations}")
        }
        Shape::Bandwidth { flows } => {
            let megabytes = match bytes {
                ..=1024 => 8,
                1025..=4096 => 16,
                _ => 64,
            };
            format!("--only bandwidth --flows {flows} --megabytes {megabytes}")
        }
    };
    format!("--op {operation} --min {bytes} --max {bytes} {part}")
}

/// Microseconds, or mebibytes per second.
fn value(rdma: &Rdma, report: &Value) -> Result<f64> {
    let get = |name: &str| {
        let value = report.pointer(&format!("/rows/0/{name}")).and_then(Value::as_f64);
        value.with_context(|| format!("usb4ctl bench does not say {name}: {report}"))
    };
    match rdma.shape {
        Shape::Latency => get("p50_us"),
        Shape::Bandwidth { .. } => {
            Ok(get("messages_per_second")? * f64::from(rdma.bytes) / f64::from(1 << 20))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_the_units_of_perftest() {
        let mut rdma = Rdma {
            operation: "write",
            bytes: 1 << 19,
            shape: Shape::Bandwidth { flows: 4 },
        };
        let report =
            serde_json::json!({"rows": [{"bytes": 1 << 19, "messages_per_second": 8.0, "p50_us": 3.5}]});
        assert_eq!(value(&rdma, &report).unwrap(), 4.0);
        assert!(
            arguments(&rdma).starts_with("--op write --min 524288 --max 524288 --only bandwidth --flows 4 ")
        );
        rdma.shape = Shape::Latency;
        assert_eq!(value(&rdma, &report).unwrap(), 3.5);
        assert!(value(&rdma, &serde_json::json!({"rows": []})).is_err());
    }
}
