//! What the program does as another process of its own: with fewer rights, or to be ended.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::{Rig, limits, queue_memory, rules};

/// What another process does.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Act {
    /// See [`rules::rules_are_the_administrator_s`].
    SetRules,
    /// See [`limits::pinned_memory_has_the_limit_of_its_process`].
    PinToTheLimit,
    /// See [`limits::all_clients_of_a_user_have_a_quota_together`].
    UseUpTheQuota,
    /// See [`limits::who_may_exceed_a_user_s_quota_counts_all_the_same`].
    BeRefusedAQueue,
    /// See [`limits::a_process_that_becomes_another_keeps_nothing_pinned`].
    PinAndExec,
    /// See [`limits::a_process_that_dies_keeps_nothing_pinned`].
    PinAndFork,
    /// Waits to be ended.
    Wait,
    /// Says what its queues cost its memory cgroup.
    Charge,
    /// See [`queue_memory::exhaust`].
    ExhaustQueueMemory,
    /// See [`queue_memory::take_all`].
    TakeQueueMemory,
    /// See [`queue_memory::greet`].
    GreetItself,
}

/// Another user, by its number; of root's group, which may open the device.
#[derive(Clone, Copy)]
pub(crate) struct User(pub(crate) u32);

/// Does it.
pub(crate) fn act(rig: &Rig, act: Act) -> Result<()> {
    match act {
        Act::SetRules => rules::set_without_privilege(rig),
        Act::PinToTheLimit => limits::pin_to_the_limit(rig),
        Act::UseUpTheQuota => limits::use_up_the_quota(rig),
        Act::BeRefusedAQueue => limits::be_refused_a_queue(rig),
        Act::PinAndExec => limits::pin_and_exec(rig),
        Act::PinAndFork => limits::pin_and_fork(rig),
        Act::Wait => wait("waiting"),
        Act::Charge => limits::charge(rig),
        Act::ExhaustQueueMemory => queue_memory::exhaust(rig),
        Act::TakeQueueMemory => queue_memory::take_all(rig),
        Act::GreetItself => queue_memory::greet(rig),
    }
}

/// This program, to do that.
pub(crate) fn command(rig: &Rig, act: Act) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let name = clap::ValueEnum::to_possible_value(&act).context("an act without a name")?;
    command.args(["--device", &rig.device, "--act", name.get_name()]);
    Ok(command)
}

/// Has it done by another process.
pub(crate) fn run(rig: &Rig, act: Act) -> Result<()> {
    finish(command(rig, act)?)
}

/// Has it done by another process of that user.
pub(crate) fn run_as(user: User, rig: &Rig, act: Act) -> Result<()> {
    let mut command = command(rig, act)?;
    command.uid(user.0);
    finish(command)
}

fn finish(mut command: Command) -> Result<()> {
    let child = command.output().context("starting another process")?;
    ensure!(
        child.status.success(),
        "{}",
        String::from_utf8_lossy(&child.stderr).trim_end()
    );
    Ok(())
}

/// Becomes another process that does that.
pub(crate) fn become_another(rig: &Rig, act: Act) -> Result<()> {
    Err(command(rig, act)?.exec()).context("exec")
}

/// Gives up every capability, and so what root may more than others.
pub(crate) fn drop_privilege() -> Result<()> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).context("giving up capabilities")
}

/// Another process, spoken to.
pub(crate) struct Other(Child);

impl Other {
    pub(crate) fn start(rig: &Rig, act: Act) -> Result<Self> {
        Self::spawn(command(rig, act)?)
    }

    pub(crate) fn start_as(user: User, rig: &Rig, act: Act) -> Result<Self> {
        let mut command = command(rig, act)?;
        command.uid(user.0);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self(command.spawn().context("starting another process")?))
    }

    /// Waits until it has said `word`.
    pub(crate) fn hear(&mut self, word: &str) -> Result<()> {
        let out = self.0.stdout.as_mut().context("it has no output")?;
        let mut said = vec![0; word.len()];
        out.read_exact(&mut said)
            .with_context(|| format!("it ended before it said {word:?}"))?;
        ensure!(
            said == word.as_bytes(),
            "it says {:?}",
            String::from_utf8_lossy(&said)
        );
        Ok(())
    }

    /// Lets it go on.
    pub(crate) fn tell(&mut self) -> Result<()> {
        let to = self.0.stdin.as_mut().context("it has no input")?;
        Ok(to.write_all(b"\n")?)
    }

    /// Kills it, and leaves whoever has its input alone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Says `word` and waits for a line, or the end of the input.
pub(crate) fn wait(word: &str) -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(word.as_bytes())?;
    out.flush()?;
    // Not by lines: the rest is for whoever this process becomes.
    let _ = std::io::stdin().lock().read(&mut [0; 1])?;
    Ok(())
}
