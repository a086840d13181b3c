//! What the ranks of a job reported.

use serde_json::Value;

/// The lines of one rank that are reports.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Value>);

/// AllReduce of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timed {
    pub(crate) bytes: u64,
    pub(crate) micros: f64,
    /// Of these, the emulated kernel's.
    pub(crate) busy: f64,
}

impl Report {
    pub(crate) fn read(text: &str) -> Report {
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|value| value.get("event").is_some());
        Report(events.collect())
    }

    fn of<'a>(&'a self, event: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0
            .iter()
            .filter(move |value| value.get("event").and_then(Value::as_str) == Some(event))
    }

    /// Everything was as it should be, as the rank sees it.
    pub(crate) fn is_done(&self) -> bool {
        self.of("done").count() == 1
    }

    /// What was not.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.of("failed").find_map(|value| value.get("text")?.as_str())
    }

    /// Operations whose data was checked, and their bytes.
    pub(crate) fn checked(&self) -> (u64, u64) {
        let sum = |field| {
            self.of("done")
                .filter_map(|value| value.get(field)?.as_u64())
                .sum()
        };
        (sum("operations"), sum("bytes"))
    }

    /// Communicators that came up.
    pub(crate) fn communicators(&self) -> usize {
        self.of("communicator").count()
    }

    /// The error that was meant to be seen: seconds until it was, NCCL's number and words.
    pub(crate) fn error(&self) -> Option<(f64, i64, &str)> {
        let error = self.of("error").next()?;
        Some((
            error.get("seconds")?.as_f64()?,
            error.get("code")?.as_i64()?,
            error.get("text")?.as_str()?,
        ))
    }

    /// Seconds the longest abort took.
    pub(crate) fn abort(&self) -> Option<f64> {
        self.of("aborted")
            .filter_map(|value| value.get("seconds")?.as_f64())
            .reduce(f64::max)
    }

    /// What was timed.
    pub(crate) fn timed(&self) -> Vec<Timed> {
        self.of("timed")
            .filter_map(|value| {
                Some(Timed {
                    bytes: value.get("bytes")?.as_u64()?,
                    micros: value.get("micros")?.as_f64()?,
                    busy: value.get("busy")?.as_f64()?,
                })
            })
            .collect()
    }
}

/// Networks that NCCL's log says its connections go through: the words after `via NET/`.
pub(crate) fn networks(log: &str) -> Vec<&str> {
    let mut found: Vec<&str> = log
        .split("via NET/")
        .skip(1)
        .filter_map(|rest| rest.split(['/', ' ', '\n']).next())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Warnings in NCCL's log, without the place in NCCL that prints them.
pub(crate) fn warnings(log: &str) -> Vec<&str> {
    log.lines()
        .filter_map(|line| line.split_once("NCCL WARN "))
        .map(|(_, text)| text.trim())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_told_from_other_output() {
        let text = concat!(
            "{\"event\":\"communicator\",\"ranks\":2,\"seconds\":0.5}\n",
            "nccl-host: cudaGraphLaunch is not implemented\n",
            "{\"event\":\"timed\",\"what\":\"AllReduce\",\"bytes\":8,\"runs\":2,\"micros\":9.5,\"busy\":1.5}\n",
            "{\"event\":\"done\",\"operations\":3,\"bytes\":24}\n",
        );
        let report = Report::read(text);
        assert!(report.is_done());
        assert_eq!(report.checked(), (3, 24));
        assert_eq!(report.communicators(), 1);
        let timed = Timed {
            bytes: 8,
            micros: 9.5,
            busy: 1.5,
        };
        assert_eq!(report.timed(), [timed]);
        assert_eq!(report.error(), None);
    }

    #[test]
    fn a_rank_that_broke_off_is_not_done() {
        assert!(!Report::read("{\"event\":\"failed\",\"text\":\"no\"}\n").is_done());
        assert!(!Report::read("").is_done());
    }

    #[test]
    fn the_network_is_the_one_that_connections_go_through() {
        let log = "vm:1:2 [0] NCCL INFO Using network USB4\n\
             vm:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/USB4/0\n\
             vm:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/USB4/0/Shared\n";
        assert_eq!(networks(log), ["USB4"]);
        assert_eq!(networks("NCCL INFO Using network Socket"), [""; 0]);
    }

    #[test]
    fn warnings_are_what_nccl_calls_so() {
        let log = "[2026] vm:1:2 [0] core/a.rs:12 NCCL WARN peer is gone\nvm:1:2 [0] NCCL INFO fine\n";
        assert_eq!(warnings(log), ["peer is gone"]);
    }
}
