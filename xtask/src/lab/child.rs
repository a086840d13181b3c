//! Long-running programs of a run: QEMU and the emulator. They never outlive it, however it ends.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpgid};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running program. Dropping it ends it.
pub(crate) struct Child {
    process: process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts `command` with its output in `log`, for at most `limit`.
    ///
    /// It is a process group of its own, so that Ctrl-C at the terminal reaches only us, and we end it in order.
    /// If we are killed, the kernel signals `timeout`, and that, or its end, ends the program.
    pub(crate) fn start(command: &Command, limit: Duration, log: &Path) -> Result<Child> {
        let out = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let err = out.try_clone().context("share the log")?;
        let mut wrapped = Command::new("setpriv");
        wrapped
            .args(["--pdeathsig", "TERM", "timeout", "--foreground", "--kill-after=2"])
            .arg(limit.as_secs().to_string())
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        let process = wrapped
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .context("start setpriv, of util-linux")?;
        let log = log.to_path_buf();
        Ok(Child { process, log })
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Stops it, with all of its threads, or lets it go on.
    pub(crate) fn stop(&self, stopped: bool) -> Result<()> {
        let signal = if stopped { Signal::STOP } else { Signal::CONT };
        kill_process_group(Pid::from_child(&self.process), signal).context("stop a program")
    }

    /// How long its threads have waited for a processor while they could have run, all together.
    pub(crate) fn waited(&self) -> Duration {
        let group = Pid::from_child(&self.process).as_raw_nonzero().get();
        let mut total = 0;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            // The group is the third word after the name, which is in parentheses (proc_pid_stat(5)).
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
            if after.split_whitespace().nth(2).and_then(|word| word.parse().ok()) != Some(group) {
                continue;
            }
            let tasks = std::fs::read_dir(entry.path().join("task"));
            for task in tasks.into_iter().flatten().flatten() {
                total += waited_ns(&task.path());
            }
        }
        Duration::from_nanos(total)
    }

    /// The end of what it wrote, for an error message.
    pub(crate) fn words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(10)..)
            .unwrap_or_default()
            .join("\n")
    }
}

/// The second word of `schedstat` (the kernel's Documentation/scheduler/sched-stats.rst): nanoseconds on a run queue.
fn waited_ns(task: &Path) -> u64 {
    let text = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let word = text.split_whitespace().nth(1);
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        }
        let _ = self.process.wait();
        // What it had started is ours now (see `process::adopt_orphans`). When this returns it is gone, too.
        while waitpgid(Pid::from_child(&self.process), WaitOptions::empty()).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_is_dropped_is_gone_with_what_it_started() {
        let log = std::env::temp_dir().join(format!("xtask-child-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 987 & echo $!; wait"]);
        let mut child = Child::start(&command, Duration::from_secs(60), &log).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while child.words().is_empty() {
            assert!(child.ended().is_none() && std::time::Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid: i32 = child.words().trim().parse().unwrap();
        drop(child);
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat"));
        while state().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(std::time::Instant::now() < deadline, "sleep outlived its group");
        }
        std::fs::remove_file(log).unwrap();
    }
}
