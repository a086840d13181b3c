//! perftest between two guests: its handshake on the out-of-band network, so that only what is measured crosses the cable.

use super::agent::{Running, SIGKILL};
use super::session::Guest;
use super::switch;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// How long one test may take.
const LIMIT: Duration = Duration::from_secs(60);
/// perftest's default port.
const PORT: u16 = 18515;

/// The RDMA device that both ends use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    name: &'static str,
    gid: u8,
    /// rdma_cm connects the queue pairs, by the addresses on the device's network.
    rdma_cm: bool,
}

/// Soft-RoCE; GID 1 is the IPv4 address (RoCE v2).
pub(crate) const RXE: Device = Device {
    name: "rxe0",
    gid: 1,
    rdma_cm: false,
};
/// Our module's; GID 0 is made of the node id.
pub(crate) const USB4: Device = Device {
    name: "usb4_0",
    gid: 0,
    rdma_cm: false,
};
/// The same, with rdma_cm.
pub(crate) const USB4_BY_RDMA_CM: Device = Device {
    rdma_cm: true,
    ..USB4
};

/// A test to be run.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    /// `ib_send_lat`.
    program: String,
    arguments: String,
    /// Messages that cross the cable for its result.
    pub(crate) messages: u32,
}

impl Test {
    /// `operation` is send, write or read.
    pub(crate) fn latency(operation: &str, bytes: u32, count: u32) -> Test {
        Test {
            program: format!("ib_{operation}_lat"),
            arguments: format!("-s {bytes} -n {count}"),
            // A read is one operation; send and write are answered by another.
            messages: if operation == "read" { count } else { 2 * count },
        }
    }

    /// `count` messages on each of `queues` queue pairs.
    pub(crate) fn bandwidth(operation: &str, bytes: u32, queues: u32, count: u32) -> Test {
        Test {
            program: format!("ib_{operation}_bw"),
            arguments: format!("-s {bytes} -q {queues} -n {count}"),
            messages: count * queues,
        }
    }

    /// Any test: `words` are the program and its arguments.
    pub(crate) fn words(words: &str) -> Test {
        let (program, arguments) = words.split_once(' ').unwrap_or((words, ""));
        let mut test = Test {
            program: program.to_string(),
            arguments: arguments.to_string(),
            messages: 0,
        };
        test.messages = test.iterations();
        test
    }

    /// What its row has to say of iterations: those of all queue pairs.
    fn iterations(&self) -> u32 {
        let words: Vec<&str> = self.arguments.split(' ').collect();
        let number = |option: &str| {
            let found = words.windows(2).find(|pair| pair.first() == Some(&option));
            found.and_then(|pair| pair.get(1)?.parse::<u32>().ok())
        };
        number("-n").unwrap_or(0) * number("-q").unwrap_or(1)
    }

    /// Both ends' command; -F: the clock frequency may vary.
    fn command(&self, device: Device) -> String {
        let Device { name, gid, rdma_cm } = device;
        let how = if rdma_cm {
            "-R".to_string()
        } else {
            format!("-x {gid}")
        };
        format!("{} -d {name} {how} -F -p {PORT} {}", self.program, self.arguments)
    }
}

/// A perftest server that listens.
pub(crate) struct Server<'a> {
    running: Running<'a>,
    command: String,
    iterations: u32,
    /// What clients call the guest.
    address: String,
}

/// A program waits for connections.
pub(crate) const LISTENS: &str = "rdma resource show cm_id | grep -q 'state LISTEN'";

impl<'a> Server<'a> {
    pub(crate) fn start(guest: &'a Guest, device: Device, test: &Test) -> Result<Server<'a>> {
        let command = test.command(device);
        let running = guest
            .agent()
            .start_without_input(&["sh", "-c", &format!("exec {command}")])?;
        let (listening, address) = if device.rdma_cm {
            (guest.until(LISTENS, LIMIT), device_address(guest.number))
        } else {
            (guest.listening(PORT), switch::address(guest.number))
        };
        if let Err(error) = listening {
            let server = running.wait(Duration::ZERO);
            let server = server.map_or_else(|error| format!("{error:#}"), |output| output.to_string());
            return Err(error.context(format!("{command}, server: {server}")));
        }
        Ok(Server {
            address,
            running,
            command,
            iterations: test.iterations(),
        })
    }

    /// Runs the client in another guest. Without rdma_cm: see [`row_between`].
    pub(crate) fn run(self, client: &Guest) -> Result<Row> {
        let row = self.attempt(client)?;
        row.context("the client came before the server listened")
    }

    /// As [`Self::run`]; none if the client [`came_early`].
    fn attempt(self, client: &Guest) -> Result<Option<Row>> {
        let command = format!("{} {}", self.command, self.address);
        let output = client.run(&command, LIMIT)?;
        if came_early(&output.to_string()) {
            self.running.signal(SIGKILL)?;
            self.running.wait(LIMIT)?;
            return Ok(None);
        }
        if !output.ok() {
            let server = self.running.wait(Duration::from_secs(5));
            let server = server.map_or_else(|error| format!("{error:#}"), |output| output.to_string());
            bail!("{command}: {output}\nserver: {server}");
        }
        let server = self.running.wait(LIMIT)?;
        if !server.ok() {
            bail!("{command}, server: {server}");
        }
        let text = output.text();
        let rows = rows(&text);
        let Some(row) = rows.first() else {
            bail!("{command}: no result in\n{text}");
        };
        for row in &rows {
            let done = row.get("#iterations")?;
            if done != f64::from(self.iterations) {
                bail!(
                    "{command}: {done} iterations instead of {}:\n{text}",
                    self.iterations
                );
            }
        }
        Ok(Some(row.clone()))
    }
}

/// Runs a test from one guest to another, and again if its client [`came_early`].
pub(crate) fn row_between(client: &Guest, server: &Guest, device: Device, test: &Test) -> Result<Row> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(row) = Server::start(server, device, test)?.attempt(client)? {
            return Ok(row);
        }
    }
    bail!(
        "{}: the client always came before the server listened",
        test.command(device)
    );
}

/// Whether a client came when nobody listened, and was told that there is no such service. rdma_cm says LISTEN before ib_cm
/// listens. And perftest makes two connections, one after the other, for each of which the server listens anew: there the
/// server has got the first and waits for the second, so that only another server serves the next client.
pub(crate) fn came_early(said: &str) -> bool {
    // IB_CM_REJ_INVALID_SERVICE_ID, IB_SIDR_UNSUPPORTED; the first as perftest has it for its first connection.
    let told = [
        ["RDMA_CM_EVENT_REJECTED", "error: 8"],
        ["RDMA_CM_EVENT_UNREACHABLE", "error: 1."],
        ["Unexpected CM event", " 8\n"],
    ];
    told.iter()
        .any(|words| words.iter().all(|word| said.contains(word)))
}

/// A guest's IPv4 address on the network of usb4_0.
pub(crate) fn device_address(guest: usize) -> String {
    format!("10.77.0.{}", guest + 1)
}

/// A row of numbers of a result, with the names above them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    columns: Vec<(String, f64)>,
}

impl Row {
    /// The value in the column whose title begins with `name`.
    pub(crate) fn get(&self, name: &str) -> Result<f64> {
        let found = self.columns.iter().find(|(title, _)| title.starts_with(name));
        found
            .map(|(_, value)| *value)
            .with_context(|| format!("perftest has no column {name}"))
    }

    /// Median latency: half a round trip for send and write, a whole one for read.
    pub(crate) fn typical_us(&self) -> Result<f64> {
        self.get("t_typical")
    }

    pub(crate) fn mib_per_second(&self) -> Result<f64> {
        self.get("BW average")
    }
}

/// All of them: one for each size of message.
fn rows(text: &str) -> Vec<Row> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let titles = titles(lines.next().unwrap_or_default());
    let values = lines.map(|line| {
        line.split_whitespace()
            .map(str::parse::<f64>)
            .collect::<Result<Vec<_>, _>>()
    });
    let rows = values.flatten().filter(|values| values.len() == titles.len());
    let row = |values: Vec<f64>| Row {
        columns: titles.iter().cloned().zip(values).collect(),
    };
    rows.filter(|values| !values.is_empty()).map(row).collect()
}

/// Titles have single spaces in them (`BW average[MiB/sec]`) and several, or a tab, between them. The unit ends one too
/// (`99% percentile[usec]   99.9% percentile[usec]`).
fn titles(line: &str) -> Vec<String> {
    let line = line.replace('\t', "  ").replace(']', "]  ");
    let line = line
        .replacen("#iterations", "  #iterations  ", 1)
        .replacen("#bytes", "#bytes  ", 1);
    line.split("  ")
        .map(str::trim)
        .filter(|title| !title.is_empty())
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_table_is_read_by_its_titles() {
        let text = " local address: LID 0000\n---\n \
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
64      200          741.21         1937.00      1580.10     \t       1601.00      \t80.10\t\t1800.00\t\t1937.00\n---\n";
        let row = rows(text).remove(0);
        assert_eq!(row.typical_us().unwrap(), 1580.10);
        assert_eq!(row.get("99%").unwrap(), 1800.0);
        assert_eq!(row.get("99.9%").unwrap(), 1937.0);
    }

    #[test]
    fn a_bandwidth_table_is_read_by_its_titles() {
        let text = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
65536      100              13.42              13.30                \t     0.000213\n";
        assert_eq!(rows(text)[0].mib_per_second().unwrap(), 13.30);
        assert_eq!(rows("nothing"), []);
        let two = format!(
            "{text}131072     100              13.42              13.30                \t     0.000213\n"
        );
        assert_eq!(rows(&two)[1].get("#bytes").unwrap(), 131072.0);
    }

    #[test]
    fn a_message_that_is_answered_counts_twice() {
        assert_eq!(Test::latency("send", 64, 100).messages, 200);
        assert_eq!(Test::latency("read", 64, 100).messages, 100);
        let test = Test::bandwidth("write", 1024, 4, 100);
        assert_eq!((test.messages, test.iterations()), (400, 400));
        assert_eq!(Test::words("ib_send_lat -n 7 -c UD").iterations(), 7);
        assert!(
            test.command(RXE)
                .starts_with("ib_write_bw -d rxe0 -x 1 -F -p 18515 -s 1024 -q 4 -n 100")
        );
        assert!(
            test.command(USB4_BY_RDMA_CM)
                .starts_with("ib_write_bw -d usb4_0 -R -F")
        );
    }
}
