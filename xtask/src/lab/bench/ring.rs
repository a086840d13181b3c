//! Our module, measured over its ring API by `usb4ctl bench`, which checks what arrives.

use super::Measured;
use super::counts;
use super::rows::{Rdma, Shape};
use crate::interrupt;
use crate::lab::agent::{Output, Running, Said};
use crate::lab::session::Lab;
use crate::lab::suites::rdma::Server;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

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
    let mut client = Client {
        running: client.start(&words)?,
        said: String::new(),
        deadline: Instant::now() + LIMIT,
    };
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

/// `usb4ctl bench --by-step`.
struct Client<'a> {
    running: Running<'a>,
    /// What it has said and nobody has looked at.
    said: String,
    deadline: Instant,
}

impl Client<'_> {
    /// Waits for more of what it says. Its end is an error but for what is returned.
    fn more(&mut self) -> Result<Option<Output>> {
        interrupt::check()?;
        match self.running.said(Duration::from_millis(100))? {
            Said::Output(bytes) => self.said.push_str(&String::from_utf8_lossy(&bytes)),
            Said::End(end) => return Ok(Some(Output::silent(end))),
            Said::Nothing if Instant::now() > self.deadline => {
                bail!("it hangs; it has said {:?}", self.said)
            }
            Said::Nothing => {}
        }
        Ok(None)
    }

    /// Waits for a line that begins so, and returns what comes after that.
    fn until(&mut self, begin: &str) -> Result<String> {
        loop {
            while let Some((line, rest)) = self.said.split_once('\n') {
                let found = line.strip_prefix(begin).map(str::to_string);
                self.said = rest.to_string();
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            if let Some(end) = self.more()? {
                bail!("{end}\n{}", self.said);
            }
        }
    }

    fn go_on(&self) -> Result<()> {
        self.running.write(b"\n")
    }

    /// Waits for its end, before which it prints its report.
    fn report(&mut self) -> Result<Value> {
        let end = loop {
            if let Some(end) = self.more()? {
                break end;
            }
        };
        if !end.ok() {
            bail!("{end}\n{}", self.said);
        }
        let report = self.said.find('{').and_then(|at| self.said.get(at..));
        serde_json::from_str(report.unwrap_or_default()).with_context(|| format!("no report: {}", self.said))
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
