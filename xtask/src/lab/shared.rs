//! Guests as the hosts of jobs that could as well run on this machine: they have its folders where this machine has them,
//! so the same command lines do.
//!
//! The folders come by 9p, which QEMU and Debian's kernels have: a library of 400 MB takes no memory of a guest but for the
//! pages that are used, and what jobs write is here at once.

use super::agent::{Agent, Said};
use super::qemu::{Share, share_name};
use super::session::{Guest, Lab, Plan};
use super::suites::rdma;
use super::switch;
use crate::cache;
use crate::interrupt;
use crate::process::{self, Outcome};
use crate::ui::Task;
use crate::workspace::{target, work};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use usb4_lab_agent::End;

/// What starts a command in another guest, for launchers: `HOST COMMAND...`.
pub(crate) const RSH: &str = "/usr/bin/lab-rsh";
pub(super) const RSH_SCRIPT: &str = include_str!("rsh.sh");
/// Where each guest runs what [`RSH`] sends.
const RSH_PORT: u16 = 2222;

/// The device in a guest.
pub(crate) const DEVICE: &str = "/dev/usb4ring";

/// Two ranks of NCCL with two communicators at once, which have up to 400 MB of buffers each.
const MEMORY_MIB: u32 = 1536;

/// How long a killed process may take to go, and a network to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Boots two guests for jobs; `name` is that of the folder for logs.
pub(crate) fn start(name: &str) -> Result<Lab> {
    let mut two = Plan::new(name, "pair,lanes=1")?;
    two.module = true;
    plan(&mut two);
    let mut lab = Lab::start(&two)?;
    prepare(&mut lab)?;
    Ok(lab)
}

/// Gives the guests of a plan what jobs need besides our module.
pub(super) fn plan(plan: &mut Plan) {
    plan.shared = true;
    plan.memory_mib = MEMORY_MIB;
    // Of huge pages jobs need more, and the thread that makes them, of lowest priority, gets no processor beside ranks that
    // poll: then the kernel complains that it holds up RCU.
    plan.parameters.push_str(" transparent_hugepage=never");
}

/// The folders of this machine that guests have: what is fetched, what is built, and in the latter what runs leave behind.
pub(super) fn folders() -> Result<Vec<Share>> {
    fs::create_dir_all(work()).context("create the work folder")?;
    let share = |folder, writable| Share { folder, writable };
    Ok(vec![
        share(cache::dir()?, false),
        share(target(), false),
        share(work(), true),
    ])
}

/// Mounts shared folders where this machine has them.
pub(super) fn mount(guest: &Guest, shares: &[Share]) -> Result<()> {
    for (place, share) in shares.iter().enumerate() {
        // Who only reads may keep what was read.
        let how = if share.writable { "rw" } else { "ro,cache=loose" };
        guest.sh(&format!(
            "modprobe -a 9pnet_virtio 9p && mkdir -p '{path}' && \
             mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,{how} {name} '{path}'",
            path = share.folder.display(),
            name = share_name(place),
        ))?;
    }
    Ok(())
}

/// Loads our module; then guests are ready for jobs.
pub(super) fn prepare(lab: &mut Lab) -> Result<()> {
    rdma::prepare(lab)?;
    meet(lab)
}

/// Guests know each other by name and run what others send.
pub(super) fn meet(lab: &Lab) -> Result<()> {
    let names: Vec<String> = lab
        .guests()
        .iter()
        .map(|guest| format!("{} {}", switch::address(guest.number), host(guest.number)))
        .collect();
    for guest in lab.guests() {
        rdma::network(guest)?;
        guest.sh(&format!(
            "echo '{}' >> /etc/hosts; setsid nc -ll -p {RSH_PORT} -e /bin/sh </dev/null >/dev/null 2>&1 &",
            names.join("\n")
        ))?;
    }
    for guest in lab.guests() {
        guest.listening(RSH_PORT)?;
        // NCCL takes no interface that is not running, which it is a moment after it is told to be up.
        guest.until("grep -qE 'up|unknown' /sys/class/net/eth0/operstate", PATIENCE)?;
    }
    Ok(())
}

/// The name of a guest (init.sh).
fn host(guest: usize) -> String {
    format!("guest{guest}")
}

/// Where the processes of a job run.
#[derive(Clone)]
pub(crate) enum Place<'a> {
    /// On this machine.
    Here,
    /// In guests that [`start`] has booted, dealt out in turn.
    Guests(Vec<&'a Agent>),
}

impl<'a> Place<'a> {
    pub(crate) fn guests(lab: &'a Lab) -> Place<'a> {
        Place::Guests(lab.guests().iter().map(Guest::agent).collect())
    }

    /// Names of hosts for a launcher, which runs on the first; none where there is only this machine.
    pub(crate) fn hosts(&self) -> Vec<String> {
        match self {
            Place::Here => vec![],
            Place::Guests(guests) => (0..guests.len()).map(host).collect(),
        }
    }

    /// The network interface by which processes find each other.
    pub(crate) fn interface(&self) -> &'static str {
        match self {
            Place::Here => "lo",
            Place::Guests(_) => "eth0",
        }
    }

    /// Runs the process of a rank, as [`process::run_unless`] does.
    pub(crate) fn run(
        &self,
        rank: usize,
        command: &mut Command,
        limit: Duration,
        log: &Path,
        task: Option<&mut Task>,
        unwanted: impl Fn() -> bool,
    ) -> Result<Outcome> {
        match self {
            Place::Here => process::run_unless(command, limit, log, task, unwanted),
            Place::Guests(guests) => {
                let turn = rank.checked_rem(guests.len()).unwrap_or(0);
                let agent = guests.get(turn).context("there are no guests")?;
                run(agent, command, limit, log, task, unwanted)
            }
        }
    }
}

fn run(
    agent: &Agent,
    command: &Command,
    limit: Duration,
    log: &Path,
    mut task: Option<&mut Task>,
    unwanted: impl Fn() -> bool,
) -> Result<Outcome> {
    let argv = argv(command);
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let began = Instant::now();
    let mut running = agent.start(&argv, None)?;
    running.close_stdin()?;
    let mut text = vec![];
    // Why it is being ended, and since when.
    let mut ending: Option<(String, Instant)> = None;
    let end = loop {
        interrupt::check()?;
        match running.said(Duration::from_millis(100))? {
            Said::Output(bytes) => text.extend(bytes),
            Said::End(end) => break end,
            Said::Nothing => {}
        }
        if let Some(task) = task.as_deref_mut() {
            task.tick();
        }
        match &ending {
            Some((_, since)) if since.elapsed() > PATIENCE => {
                break End::NotStarted("it cannot even be killed".into());
            }
            Some(_) => {}
            None => {
                let why = if began.elapsed() > limit {
                    format!("ended after {} s", limit.as_secs())
                } else if unwanted() {
                    "ended, as it was no longer wanted".to_string()
                } else {
                    continue;
                };
                ending = Some((why, Instant::now()));
                running.signal(super::agent::SIGKILL)?;
            }
        }
    };
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    fs::write(log, &text).with_context(|| format!("write {}", log.display()))?;
    let how = match (ending, &end) {
        (Some((why, _)), _) => why,
        (None, End::Status(status)) => format!("exit status: {status}"),
        (None, End::Signal(signal)) => format!("signal: {signal}"),
        (None, End::NotStarted(why)) => format!("not started: {why}"),
    };
    Ok(Outcome {
        ok: how == "exit status: 0",
        how,
        text: String::from_utf8_lossy(&text).into_owned(),
        wall: began.elapsed(),
    })
}

/// The words of a command with an environment of its own.
fn argv(command: &Command) -> Vec<String> {
    // Temporary files of a guest are its own.
    let variables = command.get_envs().filter(|(name, _)| *name != "TMPDIR");
    let variables = variables
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), value?.to_string_lossy())));
    let words = [command.get_program()].into_iter().chain(command.get_args());
    ["env".to_string(), "-i".to_string()]
        .into_iter()
        .chain(variables)
        .chain(words.map(|word| word.to_string_lossy().into_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_keeps_its_environment_and_no_other() {
        let mut command = Command::new("/a/b");
        command
            .env_clear()
            .env("X", "1 2")
            .env("TMPDIR", "/here")
            .arg("-n");
        command.env("Y", "3").env_remove("Y");
        assert_eq!(argv(&command), ["env", "-i", "X=1 2", "/a/b", "-n"]);
    }

    #[test]
    fn both_ends_of_the_remote_shell_know_the_port() {
        assert!(RSH_SCRIPT.contains(&format!(" {RSH_PORT}\n")));
    }
}
