//! Tables in Markdown.

use super::counts::Counts;
use super::rows::{Rdma, Row, Shape};
use super::{Measured, Ours};
use anyhow::Result;
use std::fmt::Write;

/// A test, and what came of each time it was run.
pub(super) struct Test {
    pub(super) row: Row,
    /// With what the stock kernel has.
    pub(super) stock: Vec<Result<Measured>>,
    /// With our module.
    pub(super) ours: Vec<Result<Measured>>,
}

impl Test {
    pub(super) fn new(row: Row) -> Test {
        Test {
            row,
            stock: vec![],
            ours: vec![],
        }
    }
}

/// How our times and bandwidths, and what a message costs, compare with what is wanted.
pub(super) struct Budgets {
    pub(super) text: String,
    pub(super) missed: usize,
    pub(super) all: usize,
}

/// What is to be kept to.
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    fn is_kept(&self, value: f64) -> bool {
        match self {
            Limit::AtMost(most) => value <= *most,
            Limit::AtLeast(least) => value >= *least,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::AtMost(most) => write!(f, "at most {most}"),
            Limit::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

/// What share, or how many times, of RXE's figure ours is to be. None where it is measured for what it says only.
fn ratio_limit(rdma: &Rdma, ours: Ours) -> Option<Limit> {
    if ours == Ours::Verbs {
        return match (rdma.operation, rdma.shape, rdma.bytes) {
            ("write" | "send", Shape::Latency, 64) => Some(Limit::AtMost(0.3)),
            (_, Shape::Bandwidth { .. }, 1024) => Some(Limit::AtLeast(2.0)),
            (_, Shape::Bandwidth { .. }, 4096) => Some(Limit::AtLeast(2.5)),
            (_, Shape::Bandwidth { .. }, 65536 | 0x10_0000) => Some(Limit::AtLeast(4.0)),
            _ => None,
        };
    }
    match (rdma.operation, rdma.shape, rdma.bytes) {
        ("write", Shape::Latency, 64) => Some(Limit::AtMost(0.25)),
        ("write", Shape::Bandwidth { .. }, 1024) => Some(Limit::AtLeast(2.5)),
        ("write", Shape::Bandwidth { .. }, 4096) => Some(Limit::AtLeast(3.0)),
        ("write", Shape::Bandwidth { .. }, 65536 | 0x10_0000) => Some(Limit::AtLeast(4.5)),
        _ => None,
    }
}

type Count = fn(&Counts) -> f64;

/// What a message may cost.
fn count_limits(rdma: &Rdma, ours: Ours) -> &'static [(&'static str, Count, Limit)] {
    if ours == Ours::Verbs {
        return &[];
    }
    match (rdma.operation, rdma.shape, rdma.bytes) {
        ("write", Shape::Latency, 64) => &[
            ("frames", Counts::frames, Limit::AtMost(2.0)),
            ("interrupts", |counts| counts.interrupts, Limit::AtMost(2.0)),
        ],
        ("write", Shape::Bandwidth { flows: 1 }, 65536) => &[
            ("data frames", |counts| counts.frames_there, Limit::AtMost(17.0)),
            ("frames back", |counts| counts.frames_back, Limit::AtMost(2.0)),
            ("interrupts", |counts| counts.interrupts, Limit::AtMost(4.0)),
        ],
        _ => &[],
    }
}

/// Compares ours with RXE, and counts with what they may be.
pub(super) fn budgets(tests: &[Test], ours: Ours) -> Budgets {
    let name = ours.name();
    let mut budgets = Budgets {
        text: format!("| test | RXE | {name} | ratio | wanted | |\n|---|---|---|---|---|---|\n"),
        missed: 0,
        all: 0,
    };
    for (test, rdma) in rdma(tests) {
        let (stock, own) = (middle(&test.stock, value), middle(&test.ours, value));
        let ratio = stock.zip(own).map(|(stock, own)| own / stock);
        let (wanted, verdict) = budgets.judge(ratio_limit(rdma, ours).as_ref(), ratio);
        let cells = [stock, own].map(|value| number(value, 1)).join(" | ");
        let ratio = number(ratio, 2);
        let name = test.row.name();
        let _ = writeln!(
            budgets.text,
            "| {name} | {cells} | {ratio} | {wanted} | {verdict} |"
        );
    }
    let _ = write!(
        budgets.text,
        "\n| per message | RXE | {name} | wanted | |\n|---|---|---|---|---|\n"
    );
    for (test, rdma) in rdma(tests) {
        for (what, count, limit) in count_limits(rdma, ours) {
            let of = |measured: &Measured| measured.counts.as_ref().map(count);
            let (stock, own) = (middle(&test.stock, of), middle(&test.ours, of));
            let (wanted, verdict) = budgets.judge(Some(limit), own);
            let cells = [stock, own].map(|value| number(value, 2)).join(" | ");
            let name = test.row.name();
            let _ = writeln!(
                budgets.text,
                "| {name}: {what} | {cells} | {wanted} | {verdict} |"
            );
        }
    }
    budgets.text.push('\n');
    budgets
}

fn rdma(tests: &[Test]) -> impl Iterator<Item = (&Test, &Rdma)> {
    tests.iter().filter_map(|test| match &test.row {
        Row::Rdma(rdma) => Some((test, rdma)),
        _ => None,
    })
}

impl Budgets {
    /// In words: what is wanted, and whether it is so.
    fn judge(&mut self, limit: Option<&Limit>, value: Option<f64>) -> (String, &'static str) {
        let Some(limit) = limit else {
            return (String::new(), "");
        };
        self.all += 1;
        // As exactly as it is shown.
        let kept = value.is_some_and(|value| limit.is_kept((100.0 * value).round() / 100.0));
        if !kept {
            self.missed += 1;
        }
        (limit.to_string(), if kept { "kept" } else { "MISSED" })
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.digits$}"))
}

fn value(measured: &Measured) -> Option<f64> {
    Some(measured.value)
}

/// The results as a table: medians, and the range where there are several.
pub(super) fn counted(tests: &[Test], results: fn(&Test) -> &Vec<Result<Measured>>) -> String {
    const COLUMNS: [Count; 7] = [
        |counts| counts.frames_there,
        |counts| counts.frames_back,
        |counts| counts.bytes,
        |counts| counts.doorbells,
        |counts| counts.interrupts,
        |counts| counts.reads,
        |counts| counts.writes,
    ];
    let mut text = String::from(
        "| test | result | frames there/msg | back/msg | bytes/msg | doorbells/msg | interrupts/msg | reads/msg | writes/msg |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for test in tests {
        let results = results(test);
        let cells = COLUMNS.map(|count| {
            let of = |measured: &Measured| measured.counts.as_ref().map(count);
            number(middle(results, of), 2)
        });
        let name = test.row.name();
        let _ = writeln!(text, "| {name} | {} | {} |", outcome(results), cells.join(" | "));
    }
    text.push('\n');
    text
}

fn outcome(results: &[Result<Measured>]) -> String {
    let values = sorted(results, value);
    let mut text = number(median(&values), 1);
    if let ([least, .., most], true) = (&values[..], values.len() > 1) {
        let _ = write!(text, " ({least:.1}-{most:.1})");
    }
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        let line = format!("{error:#}").replace('\n', " ");
        let _ = write!(text, " FAILED: {line}");
    }
    text
}

fn middle(results: &[Result<Measured>], of: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
    median(&sorted(results, of))
}

fn sorted(results: &[Result<Measured>], of: impl Fn(&Measured) -> Option<f64>) -> Vec<f64> {
    let mut values: Vec<f64> = results.iter().flatten().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(value: f64) -> Result<Measured> {
        Ok(Measured {
            value,
            counts: Some(Counts::default()),
        })
    }

    fn test(row: Row, stock: Vec<Result<Measured>>, ours: Vec<Result<Measured>>) -> Test {
        Test { row, stock, ours }
    }

    #[test]
    fn a_table_shows_the_median_and_what_failed() {
        let three = [3.0, 1.0, 2.0].map(measured).into();
        let tests = [
            test(Row::Ping { flood: true }, three, vec![]),
            test(
                Row::Tcp { reverse: false },
                vec![Err(anyhow::anyhow!("no\nway"))],
                vec![],
            ),
        ];
        let text = counted(&tests, |test| &test.stock);
        assert!(
            text.contains("| flood ping, us | 2.0 (1.0-3.0) | 0.00 |"),
            "{text}"
        );
        assert!(text.contains("FAILED: no way"), "{text}");
    }

    #[test]
    fn a_budget_is_kept_missed_or_not_there_and_a_failure_misses_it() {
        let write = |bytes, shape| {
            Row::Rdma(Rdma {
                operation: "write",
                bytes,
                shape,
            })
        };
        let tests = [
            test(
                write(64, Shape::Latency),
                vec![measured(100.0)],
                vec![measured(25.0)],
            ),
            test(
                write(1024, Shape::Bandwidth { flows: 1 }),
                vec![measured(2.0)],
                vec![measured(4.9)],
            ),
            test(
                write(4096, Shape::Bandwidth { flows: 4 }),
                vec![measured(2.0)],
                vec![Err(anyhow::anyhow!("no"))],
            ),
            test(
                write(128, Shape::Latency),
                vec![measured(1.0)],
                vec![measured(9.0)],
            ),
        ];
        let ring = budgets(&tests, Ours::Ring);
        let verbs = budgets(&tests, Ours::Verbs);
        // Write latency at 64 B, and bandwidths; the counts are the ring API's.
        assert_eq!((verbs.missed, verbs.all), (1, 3), "{}", verbs.text);
        let budgets = ring;
        // Of the first one, the counts as well.
        assert_eq!((budgets.missed, budgets.all), (2, 5), "{}", budgets.text);
        assert!(
            budgets
                .text
                .contains("| 100.0 | 25.0 | 0.25 | at most 0.25 | kept |"),
            "{}",
            budgets.text
        );
        assert!(
            budgets
                .text
                .contains("| 2.0 | 4.9 | 2.45 | at least 2.5 | MISSED |"),
            "{}",
            budgets.text
        );
        assert!(
            budgets
                .text
                .contains("us: frames | 0.00 | 0.00 | at most 2 | kept |"),
            "{}",
            budgets.text
        );
    }
}
