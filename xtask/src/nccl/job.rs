//! Runs the ranks of one job, each in a process of its own.

use super::Net;
use super::build::Built;
use super::release::Release;
use super::report::{Report, networks};
use crate::lab::shared::Place;
use crate::process::Outcome;
use crate::ui::Task;
use crate::workspace::work;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

/// One run of some ranks.
pub(crate) struct Job<'a> {
    pub(crate) release: &'a Release,
    pub(crate) built: &'a Built,
    pub(crate) place: &'a Place<'a>,
    pub(crate) net: Net,
    /// `USB4_DEVICE`.
    pub(crate) device: &'a str,
    pub(crate) ranks: u8,
    /// `NCCL_PROTO`.
    pub(crate) protocol: &'a str,
    /// `NCCL_BUFFSIZE`, if not NCCL's own choice.
    pub(crate) buffer: Option<u32>,
    /// Arguments of `usb4-nccl-rank` after those about the job.
    pub(crate) scenario: &'a [&'a str],
    /// What is to go wrong on the soft cable: `USB4_SOFT_FAULTS`.
    pub(crate) faults: Option<&'a str>,
    /// What keeps a release from losing the plugin that does.
    pub(crate) cure: Cure,
    pub(crate) limit: Duration,
}

/// Cures of NVIDIA/nccl issue 1978 (docs/nccl.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cure {
    /// `NCCL_NET_PLUGIN_REF_COUNT=1`.
    Count,
    /// The plugin has the default plugin's name as well.
    Name,
}

/// What [`Place::run`] says of a process that it has ended because it was told to.
const UNWANTED: &str = "no longer wanted";

/// How a rank ended.
pub(crate) struct Rank {
    pub(crate) report: Report,
    /// NCCL's log.
    pub(crate) log: String,
}

impl Job<'_> {
    /// Runs the job; returns the ranks that were meant to end by themselves.
    ///
    /// # Errors
    /// A rank did not end as it should, or not over the network wanted.
    pub(crate) fn run(&self, task: &mut Task) -> Result<Vec<Rank>> {
        let folder = self.folder();
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("meet")).with_context(|| format!("create {}", folder.display()))?;
        let failed = AtomicBool::new(false);
        let ended = AtomicU8::new(0);
        let outcomes: Vec<Result<Outcome>> = thread::scope(|scope| {
            let one = |rank| {
                let (folder, failed, ended) = (&folder, &failed, &ended);
                move || {
                    let mut command = self.command(rank, folder);
                    let log = folder.join(format!("rank.{rank}"));
                    let last =
                        || self.waits_for_ever(rank) && ended.load(Ordering::Relaxed) + 1 == self.ranks;
                    let unwanted = || failed.load(Ordering::Relaxed) || last();
                    let (place, number) = (self.place, usize::from(rank));
                    let outcome = place.run(number, &mut command, self.limit, &log, None, unwanted);
                    if !self.as_meant(rank, &outcome) {
                        failed.store(true, Ordering::Relaxed);
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                    outcome
                }
            };
            let ranks: Vec<_> = (0..self.ranks).map(|rank| scope.spawn(one(rank))).collect();
            while !ranks.iter().all(thread::ScopedJoinHandle::is_finished) {
                task.tick();
                thread::sleep(Duration::from_millis(20));
            }
            ranks
                .into_iter()
                .map(|rank| {
                    rank.join()
                        .unwrap_or_else(|_| bail!("a thread of the runner panicked"))
                })
                .collect()
        });
        let mut ranks = vec![];
        // Who was ended because another failed says least.
        let mut wrong = vec![];
        for (rank, outcome) in (0..self.ranks).zip(outcomes) {
            let meant = self.as_meant(rank, &outcome);
            let outcome = outcome?;
            let log = fs::read_to_string(folder.join(format!("nccl.{rank}"))).unwrap_or_default();
            let report = Report::read(&outcome.text);
            if !meant {
                let told = report.failure().map_or_else(|| outcome.tail(5), str::to_string);
                wrong.push((
                    outcome.how.contains(UNWANTED),
                    format!("rank {rank}: {}: {told}", outcome.how),
                ));
            } else if !self.is_killed(rank) && !self.waits_for_ever(rank) {
                ranks.push(Rank { report, log });
            }
        }
        wrong.sort();
        if let Some((_, text)) = wrong.first() {
            bail!("{text} (logs: {})", folder.display());
        }
        // Ranks that cannot connect have no connections for NCCL to tell of.
        if !matches!(self.scenario(), "mixed" | "apart") {
            self.check_network(&ranks)?;
        }
        Ok(ranks)
    }

    /// The logs of the job.
    fn folder(&self) -> PathBuf {
        let place = match self.place {
            Place::Here => "",
            Place::Guests(_) => "lab-",
        };
        let mut name = format!(
            "{place}{}-{}-{}-{}-{}",
            self.release.version,
            self.net.name(),
            self.scenario(),
            self.ranks,
            self.protocol.trim_start_matches('^')
        );
        if self.faults.is_some() {
            name.push_str("-faults");
        }
        if self.cure == Cure::Name {
            name.push_str("-default-name");
        }
        work().join("nccl").join(name)
    }

    /// The scenario's name.
    fn scenario(&self) -> &str {
        self.scenario.first().copied().unwrap_or("job")
    }

    fn is_killed(&self, rank: u8) -> bool {
        self.scenario() == "kill" && self.is_last(rank)
    }

    /// NCCL keeps a rank waiting for one that cannot connect to it, and of which no network can tell it: launchers end it.
    fn waits_for_ever(&self, rank: u8) -> bool {
        self.scenario() == "apart" && rank == 0
    }

    fn is_last(&self, rank: u8) -> bool {
        rank + 1 == self.ranks
    }

    fn as_meant(&self, rank: u8, outcome: &Result<Outcome>) -> bool {
        let Ok(outcome) = outcome else { return false };
        if self.waits_for_ever(rank) {
            return outcome.how.contains(UNWANTED);
        }
        if self.is_killed(rank) {
            return outcome.how.starts_with("signal: 9");
        }
        outcome.ok && Report::read(&outcome.text).is_done()
    }

    fn command(&self, rank: u8, folder: &Path) -> Command {
        let built = self.built;
        let plugin = match self.scenario() {
            "mixed" if self.is_last(rank) => &built.next_plugin,
            _ if self.cure == Cure::Name => &built.default_plugin,
            _ => &built.plugin,
        };
        let libraries = format!("{}:{}", built.gpu.display(), plugin.display());
        let mut command = match self.release.loader() {
            None => Command::new(&built.rank),
            Some((loader, with)) => {
                let mut command = Command::new(loader);
                command.arg("--library-path");
                command
                    .arg(format!("{}:{libraries}", with.display()))
                    .arg(&built.rank);
                command
            }
        };
        command.env_clear().env("PATH", "/usr/bin:/bin");
        for name in ["HOME", "TMPDIR", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if self.release.libraries.is_none() {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        let topology = match self.release.is_rccl() {
            true => &built.rccl_topology,
            false => &built.topology,
        };
        command
            .env("NCCL_TOPO_FILE", topology)
            .env("NCCL_HOSTID", format!("host-{rank}"))
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV")
            .env("NCCL_DEBUG_FILE", folder.join(format!("nccl.{rank}")))
            .env("NCCL_SOCKET_IFNAME", self.place.interface())
            // What the host does not emulate (docs/spec/nccl-host.md).
            .env("NCCL_ALGO", "Ring")
            .env("NCCL_PROTO", self.protocol)
            .env("NCCL_P2P_DISABLE", "1")
            .env("NCCL_SHM_DISABLE", "1")
            .env("NCCL_CUMEM_ENABLE", "0")
            .env("NCCL_CUMEM_HOST_ENABLE", "0")
            .env("NCCL_RAS_ENABLE", "0");
        if self.scenario.first() == Some(&"apart") {
            // A rank that has ended refuses connections, which NCCL by itself tries for a minute to make.
            command.env("NCCL_SOCKET_RETRY_CNT", "5");
        }
        if let Some(bytes) = self.buffer {
            command.env("NCCL_BUFFSIZE", bytes.to_string());
        }
        match self.net {
            Net::Socket => {
                command.env("NCCL_NET", "Socket");
            }
            Net::Usb4 => {
                command
                    .env("NCCL_NET_PLUGIN", "usb4")
                    .env("NCCL_NET", "usb4")
                    .env("USB4_DEVICE", self.device);
                if let Some(faults) = self.faults {
                    command.env("USB4_SOFT_FAULTS", faults);
                }
                if self.release.reloads() && self.cure == Cure::Count {
                    command.env("NCCL_NET_PLUGIN_REF_COUNT", "1");
                }
            }
        }
        command
            .arg("--library")
            .arg(&self.release.library)
            .arg("--meet")
            .arg(folder.join("meet"))
            .args(["--rank", &rank.to_string(), "--ranks", &self.ranks.to_string()])
            .args(self.scenario);
        command
    }

    /// NCCL says of every rank that its connections went over the network wanted and no other.
    fn check_network(&self, ranks: &[Rank]) -> Result<()> {
        for (at, rank) in ranks.iter().enumerate() {
            let used = networks(&rank.log);
            if !matches!(used.as_slice(), [one] if one.eq_ignore_ascii_case(self.net.name())) {
                bail!(
                    "rank {at}: NCCL says its connections went over {used:?}, not {} (logs: {})",
                    self.net.name(),
                    self.folder().display()
                );
            }
        }
        Ok(())
    }
}
