//! Runs other programs: output to a log, a hard time-out, and nothing left behind.
//!
//! A job gets its own process group. When it overruns, that group and every descendant it has (MPI launchers
//! put their ranks into groups of their own) are ended by process id, and nothing else is touched.

use crate::interrupt;
use crate::ui::Task;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a job ended.
pub(crate) struct Outcome {
    /// It exited with status 0 within its time.
    pub(crate) ok: bool,
    /// `exit status: 1`, `signal: 11`, `ended after 60 s`.
    pub(crate) how: String,
    /// Standard output and standard error, in the order written.
    pub(crate) text: String,
    pub(crate) wall: Duration,
}

impl Outcome {
    /// The last lines of the output, for an error message.
    pub(crate) fn tail(&self, lines: usize) -> String {
        let all: Vec<&str> = self.text.lines().collect();
        all.get(all.len().saturating_sub(lines)..)
            .unwrap_or_default()
            .join("\n")
    }

    /// The outcome if the job succeeded, else an error that shows how it ended.
    pub(crate) fn require(self, what: &str) -> Result<Outcome> {
        if !self.ok {
            bail!("{what}: {}\n{}", self.how, self.tail(25));
        }
        Ok(self)
    }
}

/// Makes this process the parent of orphaned descendants, so that it can find and end them.
pub(crate) fn adopt_orphans() -> rustix::io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// Runs `command` without standard input, its output in `log`, for at most `limit`.
///
/// # Errors
/// The program cannot be started or the log cannot be written; a failing job is an [`Outcome`].
pub(crate) fn run(
    command: &mut Command,
    limit: Duration,
    log: &Path,
    task: Option<&mut Task>,
) -> Result<Outcome> {
    run_unless(command, limit, log, task, || false)
}

/// As [`run`], but ends the job also when `unwanted` says so.
pub(crate) fn run_unless(
    command: &mut Command,
    limit: Duration,
    log: &Path,
    mut task: Option<&mut Task>,
    unwanted: impl Fn() -> bool,
) -> Result<Outcome> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let out = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let err = out.try_clone().context("share the log")?;
    command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0);
    let started = Instant::now();
    let mut list = jobs();
    let mut child = command
        .spawn()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    let pid = Pid::from_child(&child);
    list.insert(pid.as_raw_nonzero().get());
    drop(list);
    let mut seen = HashSet::new();
    let how = loop {
        if let Some(status) = child.try_wait().context("wait for the job")? {
            break if status.success() {
                Ok(())
            } else {
                Err(status.to_string())
            };
        }
        if started.elapsed() > limit {
            seen.extend(descendants(pid));
            break Err(format!("ended after {} s", limit.as_secs()));
        }
        if unwanted() {
            seen.extend(descendants(pid));
            break Err("ended, as it was no longer wanted".to_string());
        }
        if interrupt::check().is_err() {
            seen.extend(descendants(pid));
            break Err("ended, as this command was interrupted".to_string());
        }
        if let Some(task) = task.as_deref_mut() {
            task.tick();
        }
        std::thread::sleep(Duration::from_millis(if started.elapsed().as_secs() < 2 {
            5
        } else {
            50
        }));
    };
    end(pid, &seen);
    if how.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    jobs().remove(&pid.as_raw_nonzero().get());
    reap();
    let text = String::from_utf8_lossy(&fs::read(log).context("read the log")?).into_owned();
    let (ok, how) = match how {
        Ok(()) => (true, "exit status: 0".to_string()),
        Err(how) => (false, how),
    };
    Ok(Outcome {
        ok,
        how,
        text,
        wall: started.elapsed(),
    })
}

/// Ends what is left of a job: its process group and the descendants seen, politely first.
fn end(leader: Pid, seen: &HashSet<(i32, u64)>) {
    let alive = |(pid, birth): &(i32, u64)| stat(*pid).is_some_and(|s| s.birth == *birth && s.state != 'Z');
    for (signal, patience) in [(Signal::TERM, 20), (Signal::KILL, 40)] {
        if kill_process_group(leader, signal).is_err() && !seen.iter().any(alive) {
            return;
        }
        for one in seen.iter().filter(|one| alive(one)) {
            if let Some(pid) = Pid::from_raw(one.0) {
                let _ = kill_process(pid, signal);
            }
        }
        for _ in 0..patience {
            reap();
            if !group_alive(leader) && !seen.iter().any(alive) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn group_alive(leader: Pid) -> bool {
    let group = leader.as_raw_nonzero().get();
    pids()
        .into_iter()
        .filter_map(stat)
        .any(|s| s.group == group && s.state != 'Z')
}

/// Leaders of the jobs that are running: theirs is [`run`]'s own wait.
fn jobs() -> MutexGuard<'static, BTreeSet<i32>> {
    static JOBS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Collects orphans that ended, so that they do not stay zombies while this process lives.
fn reap() {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let zombie = |pid: &i32| stat(*pid).is_some_and(|s| s.parent == own && s.state == 'Z');
    let zombies: Vec<i32> = pids().into_iter().filter(zombie).collect();
    // A job is started and listed under this lock, so one that is not listed is nobody's.
    let jobs = jobs();
    for pid in zombies
        .into_iter()
        .filter(|pid| !jobs.contains(pid))
        .filter_map(Pid::from_raw)
    {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Every descendant of `root` with its start time, which tells it from a later process of the same id.
fn descendants(root: Pid) -> Vec<(i32, u64)> {
    let all: Vec<(i32, Stat)> = pids()
        .into_iter()
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect();
    let mut found = vec![];
    let mut open = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        for (pid, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
            found.push((*pid, stat.birth));
            open.push(*pid);
        }
    }
    found
}

fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return vec![];
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

struct Stat {
    state: char,
    parent: i32,
    group: i32,
    birth: u64,
}

/// The fields of `/proc/PID/stat` after the command name: state, ppid, pgrp, ... starttime is the 20th.
fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        birth: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("xtask-test-{}-{name}.log", std::process::id()))
    }

    fn sh(script: &str, limit: Duration, name: &str) -> Outcome {
        let path = log(name);
        let outcome = run(Command::new("sh").args(["-c", script]), limit, &path, None).unwrap();
        let _ = fs::remove_file(path);
        outcome
    }

    #[test]
    fn a_failing_job_reports_its_status_and_output() {
        let outcome = sh(
            "echo one; echo two >&2; exit 3",
            Duration::from_secs(20),
            "status",
        );
        assert!(!outcome.ok);
        assert_eq!(outcome.how, "exit status: 3");
        assert_eq!(outcome.tail(9), "one\ntwo");
    }

    #[test]
    fn a_job_that_overruns_is_ended_with_descendants_in_other_groups() {
        let script = "setsid sleep 987 & echo $!; wait";
        let outcome = sh(script, Duration::from_millis(500), "overrun");
        assert!(!outcome.ok);
        let pid: i32 = outcome.text.trim().parse().unwrap();
        assert!(
            stat(pid).is_none_or(|s| s.state == 'Z'),
            "the sleeper in its own session is still there"
        );
    }

    #[test]
    fn a_child_left_in_the_group_of_a_finished_job_is_ended() {
        let outcome = sh("sleep 988 & echo $!", Duration::from_secs(20), "leftover");
        assert!(outcome.ok);
        let pid: i32 = outcome.text.trim().parse().unwrap();
        assert!(stat(pid).is_none_or(|s| s.state == 'Z'));
    }
}
