//! What a benchmark prints.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;
use usb4_ring::DeviceInfo;

use super::bandwidth::Bandwidth;
use super::latency::Latency;
use super::protocol::Operation;
use crate::session::backend;

/// All of a benchmark.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) device: String,
    pub(super) backend: &'static str,
    /// What the backend is, for people.
    #[serde(skip)]
    place: &'static str,
    /// `software`, or `usb4` for the kernel's device: its cables, which may be emulated.
    pub(super) medium: &'static str,
    pub(super) op: Operation,
    pub(super) rows: Vec<Row>,
}

/// One message size.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) bytes: u64,
    #[serde(flatten)]
    pub(super) latency: Option<Times>,
    #[serde(flatten)]
    pub(super) bandwidth: Option<Rates>,
}

#[derive(Serialize)]
pub(super) struct Times {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

#[derive(Serialize)]
pub(super) struct Rates {
    pub(super) gigabits_per_second: f64,
    pub(super) messages_per_second: f64,
}

impl Row {
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    pub(super) fn new(bytes: u64, latency: Option<&Latency>, bandwidth: Option<&Bandwidth>) -> Self {
        Self {
            bytes,
            latency: latency.map(|latency| Times {
                p50_us: latency.percentile(0.5),
                p99_us: latency.percentile(0.99),
                p999_us: latency.percentile(0.999),
            }),
            bandwidth: bandwidth.map(|bandwidth| {
                let seconds = bandwidth.time.as_secs_f64();
                Rates {
                    gigabits_per_second: bandwidth.bytes as f64 * 8e-9 / seconds,
                    messages_per_second: bandwidth.count as f64 / seconds,
                }
            }),
        }
    }
}

impl Report {
    pub(super) fn new(info: &DeviceInfo, op: Operation) -> Self {
        let medium = match info.backend {
            usb4_ring::Backend::Kernel => "usb4",
            _ => "software",
        };
        let (backend, place) = backend(info.backend);
        Self {
            device: info.name.clone(),
            backend,
            place,
            medium,
            op,
            rows: Vec::new(),
        }
    }

    /// What stands above the rows of the table.
    pub(super) fn header(&self) -> String {
        let what = match self.op {
            Operation::Send => "half round trip; every message checked at the receiver",
            Operation::Write => "half round trip; the last of each flow checked at the receiver",
            Operation::Read => "one operation; what the reads returned is checked",
        };
        format!(
            "{} ({}), {:?}: {what}\n{:>10} {:>10} {:>10} {:>10} {:>10} {:>12}",
            self.device, self.place, self.op, "bytes", "p50 us", "p99 us", "p99.9 us", "Gb/s", "messages/s"
        )
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10}", self.bytes)?;
        match &self.latency {
            Some(times) => write!(
                f,
                " {:>10.2} {:>10.2} {:>10.2}",
                times.p50_us, times.p99_us, times.p999_us
            )?,
            None => write!(f, " {:>10} {:>10} {:>10}", "-", "-", "-")?,
        }
        match &self.bandwidth {
            Some(rates) => write!(
                f,
                " {:>10.2} {:>12.0}",
                rates.gigabits_per_second, rates.messages_per_second
            ),
            None => write!(f, " {:>10} {:>12}", "-", "-"),
        }
    }
}
