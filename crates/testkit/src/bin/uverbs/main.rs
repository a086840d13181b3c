//! `usb4-uverbs`: speaks to `/dev/infiniband/uverbsN` itself, without libibverbs: what the device usb4_0 is, what it refuses,
//! and that queue pairs move the bytes they are given, on one host or between two. The exit status is the verdict.

mod chaos;
mod command;
mod context;
mod datagrams;
mod endure;
mod lists;
mod map;
mod objects;
mod party;
mod peer;
mod shared;
mod states;
mod traffic;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;

use party::Party;
use peer::Peer;

/// Checks the verbs of the kernel's device, without libibverbs.
#[derive(Parser)]
struct Arguments {
    /// The device.
    #[arg(long, default_value = "usb4_0")]
    device: String,
    /// Runs only checks whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Is the other side, at this address, until it is ended.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    listen: Option<String>,
    /// Instead of the checks, makes one of every object and keeps them until the device goes.
    #[arg(long)]
    hold: bool,
    /// Instead of the checks, reads back what it writes to the other side until it is ended, and connects anew whenever
    /// its queue pair is lost.
    #[arg(long, requires = "connect")]
    endure: bool,
    /// Instead of the checks, starts processes that mean it ill for SECONDS, and kills them at random.
    #[arg(long, value_name = "SECONDS", conflicts_with = "connect")]
    chaos: Option<u64>,
    /// What their deeds follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Is one of them.
    #[arg(long, hide = true)]
    hostile: bool,
    /// Has another host for its other side; else it is its own.
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<String>,
}

/// A check of one host.
type Alone = fn(&str) -> Result<()>;

/// A check of two queue pairs.
type Together = fn(&mut Party, &mut Peer) -> Result<()>;

/// Checks, by name.
type Checks<T> = &'static [(&'static str, T)];

macro_rules! checks {
    ($what:ty: $($module:ident :: $name:ident),* $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), $module::$name as $what)),*]
    };
}

/// Of one host.
fn alone() -> Checks<Alone> {
    checks![Alone:
        objects::the_device_says_what_a_client_may_have,
        objects::the_port_is_what_the_links_are,
        objects::queues_have_limits,
        objects::shared_queues_have_limits_and_are_not_destroyed_in_use,
        objects::what_there_is_not_is_refused,
        objects::protection_domains_have_a_limit,
        objects::queue_pairs_have_a_limit,
        objects::transitions_are_checked,
        objects::memory_that_is_not_there_is_refused,
        objects::the_ring_descriptor_makes_nothing,
        objects::the_ring_descriptor_may_outlive_its_context,
        objects::other_versions_are_told_apart,
        objects::contexts_leave_nothing,
    ]
}

/// Of two queue pairs, wherever they are.
fn together() -> Checks<Together> {
    checks![Together:
        traffic::rc_sends_arrive_whole,
        traffic::rc_sends_come_back,
        traffic::rc_immediates_arrive,
        traffic::rc_writes_arrive_whole,
        traffic::rc_reads_arrive_whole,
        traffic::rc_atomics_give_the_old_value,
        traffic::rc_access_is_checked,
        traffic::rc_keys_are_of_one_domain,
        traffic::rc_waits_for_a_peer_that_is_not_ready,
        traffic::rc_loses_patience,
        traffic::rc_finds_nobody,
        traffic::rc_can_be_reset,
        traffic::rc_completions_wake_who_sleeps,
        traffic::uc_sends_and_writes_arrive,
        traffic::uc_drops_what_nobody_wants,
        datagrams::ud_datagrams_arrive_with_their_sender,
        datagrams::ud_keys_are_checked,
        traffic::rc_sends_invalidate,
        traffic::rc_owners_invalidate,
        traffic::rc_corrupt_completion_queues_are_told,
        shared::rc_receives_are_shared,
        shared::rc_waits_for_a_shared_receive,
        shared::rc_limits_are_told,
        shared::rc_last_receives_are_told,
        shared::rc_corrupt_queues_are_told,
        datagrams::ud_does_not_speak_for_the_kernel,
        lists::rc_sends_gather_and_receives_scatter,
        lists::rc_writes_gather_and_reads_scatter,
        lists::rc_keys_of_all_pieces_are_checked,
        lists::rc_inline_data_arrives,
        lists::uc_lists_and_inline_data_arrive,
        lists::ud_headers_lie_across_pieces,
        lists::ud_datagrams_that_are_too_long_are_so_here,
        lists::rc_shared_receives_scatter,
        lists::ud_shared_receives_scatter,
    ]
}

/// Of two queue pairs of this process.
fn here() -> Checks<Together> {
    checks![Together: traffic::rc_solicited_completions_wake]
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4-uverbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How checks went.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
}

impl Tally {
    fn note(&mut self, name: &str, result: Result<()>) -> Result<()> {
        let mut out = std::io::stdout();
        match result {
            Ok(()) => {
                self.passed += 1;
                writeln!(out, "ok    {name}")?;
            }
            Err(error) => {
                self.failed += 1;
                writeln!(out, "FAIL  {name}: {error:#}")?;
            }
        }
        Ok(())
    }
}

/// A check with new sides, as one that fails leaves them in any state.
fn one(arguments: &Arguments, check: Together) -> Result<()> {
    let device = &arguments.device;
    let mut peer = match &arguments.connect {
        Some(address) => Peer::connect(address)?,
        None => Peer::Here(Box::new(Party::new(device)?)),
    };
    check(&mut Party::new(device)?, &mut peer)
}

/// Has the device while it is there, and its descriptors until it is ended.
fn hold(device: &str) -> Result<()> {
    let mut out = std::io::stdout();
    let mut party = Party::new(device)?;
    party.make(states::Kind::Rc, states::ALL)?;
    writeln!(out, "holding")?;
    out.flush()?;
    party.outlive()?;
    writeln!(out, "let go")?;
    out.flush()?;
    loop {
        std::thread::park();
    }
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(address) = &arguments.listen {
        return peer::serve(&arguments.device, address);
    }
    if arguments.hold {
        return hold(&arguments.device);
    }
    if let (true, Some(address)) = (arguments.endure, &arguments.connect) {
        return endure::run(&arguments.device, address);
    }
    if arguments.hostile {
        return chaos::be_hostile(&arguments.device, arguments.seed);
    }
    if let Some(seconds) = arguments.chaos {
        let count = chaos::run(&arguments.device, Duration::from_secs(seconds), arguments.seed)?;
        let line = format!("{count} hostile processes in {seconds} s, and every message beside them arrived");
        return Ok(writeln!(std::io::stdout(), "{line}")?);
    }
    let wanted = |name: &str| name.contains(&arguments.filter);
    let mut tally = Tally::default();
    if arguments.connect.is_none() {
        for (name, check) in alone().iter().filter(|(name, _)| wanted(name)) {
            tally.note(name, check(&arguments.device))?;
        }
    }
    let more = if arguments.connect.is_none() { here() } else { &[] };
    for (name, check) in together().iter().chain(more).filter(|(name, _)| wanted(name)) {
        tally.note(name, one(&arguments, *check))?;
    }
    let Tally { passed, failed } = tally;
    let device = &arguments.device;
    writeln!(
        std::io::stdout(),
        "uverbs {device}: {passed} passed, {failed} failed"
    )?;
    ensure!(passed + failed > 0, "no check matches {:?}", arguments.filter);
    ensure!(failed == 0, "{failed} checks failed");
    Ok(())
}
