//! The tests there are.

use crate::lab::perftest;

/// One line of a table.
#[derive(Clone, Debug)]
pub(super) enum Row {
    Ping { flood: bool },
    Tcp { reverse: bool },
    Rdma(Rdma),
}

/// RDMA between the guests.
#[derive(Clone, Debug)]
pub(super) struct Rdma {
    /// send, write or read.
    pub(super) operation: &'static str,
    pub(super) bytes: u32,
    pub(super) shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// One message after the other; half a round trip of send and write, a whole read.
    Latency,
    /// One way, as many messages as there is room for.
    Bandwidth {
        /// Queue pairs of RXE's, endpoints of ours.
        flows: u32,
    },
}

const OPERATIONS: [&str; 3] = ["write", "send", "read"];

impl Row {
    pub(super) fn name(&self) -> String {
        match self {
            Row::Ping { flood: false } => "ping, 3 ms apart, us".to_string(),
            Row::Ping { flood: true } => "flood ping, us".to_string(),
            Row::Tcp { reverse: false } => "TCP there, Mbit/s".to_string(),
            Row::Tcp { reverse: true } => "TCP back, Mbit/s".to_string(),
            Row::Rdma(rdma) => rdma.name(),
        }
    }
}

impl Rdma {
    fn name(&self) -> String {
        let Rdma { operation, bytes, .. } = self;
        match self.shape {
            Shape::Latency => format!("{operation} latency, {bytes} B, us"),
            Shape::Bandwidth { flows } => {
                let many = if flows == 1 { "flow" } else { "flows" };
                format!("{operation} bandwidth, {bytes} B, {flows} {many}, MiB/s")
            }
        }
    }

    /// As RXE is measured: so many messages that it takes about a second.
    pub(super) fn perftest(&self) -> perftest::Test {
        match self.shape {
            Shape::Latency => {
                let count = if self.bytes > 16384 { 100 } else { 300 };
                perftest::Test::latency(self.operation, self.bytes, count)
            }
            Shape::Bandwidth { flows } => {
                let count = match self.bytes {
                    ..=4096 => 1600,
                    4097..=65536 => 320,
                    _ => 24,
                };
                perftest::Test::bandwidth(self.operation, self.bytes, flows, count / flows)
            }
        }
    }
}

/// All tests, or a few; without the network's where only RDMA can be compared.
pub(super) fn all(quick: bool, network: bool) -> Vec<Row> {
    let mut rows = vec![];
    if network {
        rows.extend([false, true].map(|flood| Row::Ping { flood }));
        rows.extend([false, true].map(|reverse| Row::Tcp { reverse }));
    }
    let latencies: &[u32] = if quick { &[64] } else { &[64, 1024, 4096, 65536] };
    let bandwidths: &[u32] = if quick {
        &[65536]
    } else {
        &[1024, 4096, 65536, 1 << 20]
    };
    let flows: &[u32] = if quick { &[1] } else { &[1, 4] };
    let rdma = |operation, bytes, shape| {
        Row::Rdma(Rdma {
            operation,
            bytes,
            shape,
        })
    };
    for operation in OPERATIONS {
        rows.extend(
            latencies
                .iter()
                .map(|&bytes| rdma(operation, bytes, Shape::Latency)),
        );
    }
    for operation in OPERATIONS {
        for &bytes in bandwidths {
            let shapes = flows.iter().map(|&flows| Shape::Bandwidth { flows });
            rows.extend(shapes.map(|shape| rdma(operation, bytes, shape)));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<String> = all(false, true).iter().map(Row::name).collect();
        assert_eq!(names.len(), all(false, true).len());
        assert_eq!(names.len(), 4 + 12 + 24);
        assert!(all(true, true).len() < names.len());
    }
}
