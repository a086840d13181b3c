//! `usb4-uapi`: holds a kernel to what `usb4_ring_abi::uapi` says of `/dev/usb4ring`, with arguments no well-meaning
//! client makes. The exit status is the verdict.
//!
//! What queues and messages do is the conformance suite's.

mod acts;
mod arguments;
mod chaos;
mod client;
mod dmabuf;
mod hostile;
mod limits;
mod memory;
mod objects;
mod party;
mod processes;
mod queue_memory;
mod read_only;
mod rules;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;

/// Checks the ioctls of the kernel's device: errors, limits, and what hostile clients get.
#[derive(Parser)]
struct Arguments {
    /// The device.
    #[arg(long, default_value = usb4_ring_abi::uapi::DEVICE_PATH)]
    device: String,
    /// Runs only checks whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Seed of what hostile clients write.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead of the checks, starts so many hostile processes, each of which is killed at some moment.
    #[arg(long, default_value_t = 0)]
    chaos: u32,
    /// Is one of them: how the program calls itself.
    #[arg(long, hide = true)]
    hostile: bool,
    /// Uses an open device of its parent's and says what happened: how the program calls itself.
    #[arg(long, hide = true)]
    inherited: Option<i32>,
    /// Does what another process is to do: how the program calls itself.
    #[arg(long, hide = true)]
    act: Option<acts::Act>,
}

/// What checks are given.
struct Rig {
    device: String,
    seed: u64,
}

type Check = (&'static str, fn(&Rig) -> Result<()>);

macro_rules! checks {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), $module::$name as fn(&Rig) -> Result<()>)),*]
    };
}

/// All of them, in the order to read them.
fn checks() -> impl Iterator<Item = Check> {
    checks![
        arguments::a_longer_argument_is_taken_if_the_rest_is_zero,
        arguments::a_shorter_argument_is_refused,
        arguments::an_older_argument_means_what_it_meant,
        arguments::memory_that_is_not_there_is_a_fault,
        arguments::unknown_flags_and_reserved_fields_are_refused,
        arguments::unknown_ioctls_are_refused,
        objects::depths_and_descriptors_of_completion_queues_are_checked,
        objects::a_completion_queue_in_use_is_busy,
        objects::endpoints_are_checked,
        objects::queues_map_only_as_they_are,
        objects::the_notice_page_is_for_reading_only,
        objects::memory_that_cannot_be_pinned_is_refused,
        read_only::memory_that_is_only_read_need_not_be_writable,
        memory::bytes_are_found_wherever_a_region_begins,
        memory::atomics_find_words_at_the_ends_of_pages,
        objects::keys_are_good_once,
        objects::address_handles_are_checked,
        objects::what_another_client_has_is_not_there,
        objects::a_quota_is_what_info_says,
        objects::lists_fit_their_room,
        objects::a_wait_ends_in_time_by_a_signal_or_with_its_queue,
        processes::two_that_sleep_by_turns_miss_no_wake_up,
        processes::a_descriptor_is_of_one_process,
        processes::a_child_does_not_inherit_queues,
        limits::pinned_memory_has_the_limit_of_its_process,
        limits::all_clients_of_a_user_have_a_quota_together,
        limits::queue_memory_counts_until_it_is_unmapped,
        limits::room_for_address_handles_counts,
        limits::who_may_exceed_a_user_s_quota_counts_all_the_same,
        limits::a_process_that_becomes_another_keeps_nothing_pinned,
        limits::a_process_that_dies_keeps_nothing_pinned,
        rules::rules_are_kept_as_they_are_said,
        rules::rules_are_the_administrator_s,
        rules::cables_are_listed,
        dmabuf::memory_of_a_dma_buf_is_written_read_and_counted_on,
        dmabuf::what_is_open_for_reading_is_only_read,
        dmabuf::the_c_library_registers_one,
        dmabuf::what_is_no_dma_buf_or_not_within_it_is_refused,
        hostile::garbage_in_queues_harms_nobody_else,
        hostile::a_client_that_vanishes_leaves_nothing,
    ]
    .into_iter()
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4-uapi: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(fd) = arguments.inherited {
        return processes::use_inherited(fd);
    }
    let rig = Rig {
        device: arguments.device,
        seed: arguments.seed,
    };
    if let Some(act) = arguments.act {
        return acts::act(&rig, act);
    }
    if arguments.hostile {
        return chaos::be_hostile(&rig);
    }
    let mut out = std::io::stdout();
    if arguments.chaos != 0 {
        chaos::run(&rig, arguments.chaos)?;
        writeln!(out, "{} hostile processes, nobody harmed", arguments.chaos)?;
        return Ok(());
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, check) in checks().filter(|(name, _)| name.contains(&arguments.filter)) {
        match check(&rig) {
            Ok(()) => {
                passed += 1;
                writeln!(out, "ok    {name}")?;
            }
            Err(error) => {
                failed += 1;
                writeln!(out, "FAIL  {name}: {error:#}")?;
            }
        }
    }
    writeln!(out, "uapi {}: {passed} passed, {failed} failed", rig.device)?;
    ensure!(passed + failed > 0, "no check matches {:?}", arguments.filter);
    ensure!(failed == 0, "{failed} checks failed");
    Ok(())
}
