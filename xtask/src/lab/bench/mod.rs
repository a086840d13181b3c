//! `cargo xtask lab bench`: RDMA between two guests, with what it costs on the emulated host routers.
//!
//! Times are those of an emulated processor: only ratios within one run, and counts, mean anything. perftest's handshake
//! goes beside the cable and the emulator's counters are cleared before each test, so the counts are the test's own.

use super::perftest::{Server, Test};
use super::session::{Lab, Plan};
use super::suites::net;
use crate::interrupt;
use crate::load::Load;
use crate::ui::{Task, Verdict};
use crate::workspace::work;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

const OPERATIONS: [&str; 3] = ["write", "send", "read"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure what the stock kernel has: soft-RoCE over thunderbolt_net.
    #[arg(long, required = true)]
    stock: bool,
    /// Times each test is run, in turns; the median counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Only a few sizes: to see that the bench works.
    #[arg(long)]
    quick: bool,
    /// Kernel: `newest`, or a version such as 7.2 or 7.2.12.
    #[arg(long, default_value = "newest")]
    kernel: String,
}

/// The interrupt throttle: as the driver sets it, or none, so that each event is an interrupt at once.
const MODES: [(&str, &str); 2] = [("throttled", "on"), ("unthrottled", "off")];

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let began = Load::now()?;
    let plan = tests(args.quick);
    let mut report = String::new();
    let mut complaints = 0;
    for (mode, moderation) in MODES {
        let fabric = format!("pair,lanes=1,pci=8086:ff01,moderation={moderation}");
        let mut lab_plan = Plan::new(&format!("bench/{mode}"), &fabric)?;
        lab_plan.kernel.clone_from(&args.kernel);
        lab_plan.memory_mib = 768;
        lab_plan.limit = Duration::from_secs(3600);
        let mut lab = Lab::start(&lab_plan)?;
        prepare(&mut lab)?;
        let title = format!("## {mode}: kernel {}, topology {fabric}\n\n", lab.kernel.release);
        report.push_str(&title);
        let steps = u64::from(args.repeat) * plan.len() as u64;
        let mut task = Task::start(format!("measure {mode}"), Some(steps));
        let mut results: Vec<Vec<Result<Measured>>> = plan.iter().map(|_| vec![]).collect();
        for round in 0..args.repeat {
            for (at, (test, result)) in plan.iter().zip(&mut results).enumerate() {
                task.tick();
                result.push(measure(&mut lab, test));
                interrupt::check()?;
                task.set(u64::from(round) * plan.len() as u64 + at as u64 + 1);
            }
        }
        task.done(&format!("{steps} tests"));
        report.push_str(&table(&plan, &results));
        let found = lab.complaints()?;
        found.iter().for_each(|line| say!("{line}"));
        complaints += found.len();
        let failed = results.iter().flatten().filter(|result| result.is_err()).count();
        complaints += failed;
    }
    say!("{report}");
    let file = work().join("lab/bench-stock.md");
    std::fs::write(&file, &report).with_context(|| format!("write {}", file.display()))?;
    let busy = began.warn()?.map_or(String::new(), |busy| format!(" ({busy})"));
    let line = format!(
        "{complaints} failures or complaints by kernels; tables in {}{busy}",
        file.display()
    );
    Ok(Verdict::new(complaints == 0, line))
}

fn prepare(lab: &mut Lab) -> Result<()> {
    net::up(lab)?;
    for guest in lab.guests() {
        guest.network()?;
        guest.sh(
            "modprobe rdma_rxe && modprobe ib_uverbs && rdma link add rxe0 type rxe netdev thunderbolt0",
        )?;
    }
    Ok(())
}

/// One line of the table.
enum Row {
    Ping { flood: bool },
    Tcp { reverse: bool },
    Perftest { name: String, test: Test, latency: bool },
}

impl Row {
    fn name(&self) -> String {
        match self {
            Row::Ping { flood: false } => "ping, 3 ms apart, us".to_string(),
            Row::Ping { flood: true } => "flood ping, us".to_string(),
            Row::Tcp { reverse: false } => "TCP there, Mbit/s".to_string(),
            Row::Tcp { reverse: true } => "TCP back, Mbit/s".to_string(),
            Row::Perftest {
                name, latency: true, ..
            } => format!("{name}, us"),
            Row::Perftest { name, .. } => format!("{name}, MiB/s"),
        }
    }
}

fn tests(quick: bool) -> Vec<Row> {
    let mut rows = vec![
        Row::Ping { flood: false },
        Row::Ping { flood: true },
        Row::Tcp { reverse: false },
        Row::Tcp { reverse: true },
    ];
    let latencies: &[(u32, u32)] = if quick {
        &[(64, 200)]
    } else {
        &[(64, 300), (1024, 300), (4096, 300), (65536, 100)]
    };
    for operation in OPERATIONS {
        for (bytes, count) in latencies {
            rows.push(Row::Perftest {
                name: format!("{operation} latency, {bytes} B"),
                test: Test::latency(operation, *bytes, *count),
                latency: true,
            });
        }
    }
    let bandwidths: &[(u32, u32)] = if quick {
        &[(65536, 100)]
    } else {
        &[(1024, 1600), (4096, 1600), (65536, 320), (1 << 20, 24)]
    };
    for operation in OPERATIONS {
        for (bytes, count) in bandwidths {
            for queues in if quick { &[1][..] } else { &[1, 4] } {
                rows.push(Row::Perftest {
                    name: format!("{operation} bandwidth, {bytes} B, {queues} QP"),
                    test: Test::bandwidth(operation, *bytes, *queues, count / queues),
                    latency: false,
                });
            }
        }
    }
    rows
}

/// What one run of a test gave.
struct Measured {
    value: f64,
    /// Of both controllers together, per message; none where messages are not counted.
    counts: Option<Counts>,
}

/// Per message.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Counts {
    frames: f64,
    bytes: f64,
    doorbells: f64,
    interrupts: f64,
    reads: f64,
    writes: f64,
}

fn measure(lab: &mut Lab, row: &Row) -> Result<Measured> {
    match row {
        Row::Ping { flood } => {
            let count = if *flood { 1000 } else { 300 };
            let pace = if *flood { "-f" } else { "-i 0.003" };
            lab.control("clear")?;
            let ping = net::ping(lab.guest(0)?, &net::address(1), &format!("{pace} -c {count}"))?;
            let counts = counts(lab, 2 * count)?;
            Ok(Measured {
                value: 1000.0 * ping.average_ms,
                counts: Some(counts),
            })
        }
        Row::Tcp { reverse } => Ok(Measured {
            value: net::iperf3(lab.guest(0)?, lab.guest(1)?, *reverse, 3)?,
            counts: None,
        }),
        Row::Perftest { test, latency, .. } => {
            lab.control("clear")?;
            let (client, server) = (lab.guest(0)?, lab.guest(1)?);
            let result = Server::start(server, "rxe0", test)?.run(client)?;
            let value = if *latency {
                result.typical_us()?
            } else {
                result.mib_per_second()?
            };
            Ok(Measured {
                value,
                counts: Some(counts(lab, test.messages)?),
            })
        }
    }
}

fn counts(lab: &mut Lab, messages: u32) -> Result<Counts> {
    per_message(&lab.control("stats")?, messages)
}

fn per_message(stats: &Value, messages: u32) -> Result<Counts> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let controllers = stats.pointer("/stats/nhis").and_then(Value::as_array);
    let Some(controllers) = controllers.filter(|list| !list.is_empty()) else {
        bail!("the emulator's counters are not what they were: {stats}");
    };
    for counter in controllers
        .iter()
        .filter_map(|nhi| nhi.get("counters")?.as_object())
        .flatten()
    {
        *sums.entry(counter.0).or_default() += counter.1.as_u64().unwrap_or(0);
    }
    let of = |names: &[&str]| -> Result<f64> {
        let mut sum = 0;
        for name in names {
            sum += sums
                .get(name)
                .with_context(|| format!("the emulator does not count {name}"))?;
        }
        Ok(sum as f64 / f64::from(messages))
    };
    Ok(Counts {
        frames: of(&["tx_frames"])?,
        bytes: of(&["tx_bytes"])?,
        doorbells: of(&["tx_doorbells", "rx_doorbells"])?,
        interrupts: of(&["interrupts"])?,
        reads: of(&["reads"])?,
        writes: of(&["writes"])?,
    })
}

/// The results as a table in Markdown: medians, and the range where there are several.
fn table(rows: &[Row], results: &[Vec<Result<Measured>>]) -> String {
    let mut text = String::from(
        "| test | result | frames/msg | bytes/msg | doorbells/msg | interrupts/msg | reads/msg | writes/msg |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (row, results) in rows.iter().zip(results) {
        let good: Vec<&Measured> = results.iter().flatten().collect();
        let mut values: Vec<f64> = good.iter().map(|measured| measured.value).collect();
        values.sort_by(f64::total_cmp);
        let mut result = match (values.first(), median(&values), values.last()) {
            (Some(least), Some(middle), Some(most)) if values.len() > 1 => {
                format!("{middle:.1} ({least:.1}-{most:.1})")
            }
            (_, Some(middle), _) => format!("{middle:.1}"),
            _ => String::new(),
        };
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            let line = format!("{error:#}").replace('\n', " ");
            let _ = write!(result, " FAILED: {line}");
        }
        let column = |of: fn(&Counts) -> f64| {
            let mut values: Vec<f64> = good
                .iter()
                .filter_map(|measured| measured.counts.as_ref().map(of))
                .collect();
            values.sort_by(f64::total_cmp);
            median(&values).map_or(String::new(), |value| format!("{value:.2}"))
        };
        let columns: [fn(&Counts) -> f64; 6] = [
            |c| c.frames,
            |c| c.bytes,
            |c| c.doorbells,
            |c| c.interrupts,
            |c| c.reads,
            |c| c.writes,
        ];
        let cells = columns.map(column).join(" | ");
        let _ = writeln!(text, "| {} | {result} | {cells} |", row.name());
    }
    text.push('\n');
    text
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_controllers_are_shared_out_among_messages() {
        let nhi = |frames: u64| {
            serde_json::json!({"counters": {"tx_frames": frames, "tx_bytes": 2240, "tx_doorbells": 10, "rx_doorbells": 10,
                "interrupts": 20, "reads": 0, "writes": 40}})
        };
        let stats = serde_json::json!({"ok": true, "stats": {"nhis": [nhi(10), nhi(30)], "cables": []}});
        let counts = per_message(&stats, 20).unwrap();
        assert_eq!((counts.frames, counts.bytes, counts.doorbells), (2.0, 224.0, 2.0));
        assert_eq!((counts.interrupts, counts.reads, counts.writes), (2.0, 0.0, 4.0));
        assert!(per_message(&serde_json::json!({"ok": true}), 1).is_err());
    }

    #[test]
    fn a_table_shows_the_median_and_what_failed() {
        let measured = |value| {
            Ok(Measured {
                value,
                counts: Some(Counts::default()),
            })
        };
        let results = vec![
            vec![measured(3.0), measured(1.0), measured(2.0)],
            vec![Err(anyhow::anyhow!("no\nway"))],
        ];
        let text = table(
            &[Row::Ping { flood: true }, Row::Tcp { reverse: false }],
            &results,
        );
        assert!(
            text.contains("| flood ping, us | 2.0 (1.0-3.0) | 0.00 |"),
            "{text}"
        );
        assert!(text.contains("FAILED: no way"), "{text}");
    }

    #[test]
    fn each_test_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<String> = tests(false).iter().map(Row::name).collect();
        assert_eq!(names.len(), tests(false).len());
        assert!(tests(true).len() < names.len());
    }
}
