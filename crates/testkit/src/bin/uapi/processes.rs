//! Several threads and processes.

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::mm::MapFlags;
use usb4_ring_abi::uapi;

use crate::Rig;
use crate::client::{ALL, Client, refused};
use crate::party::Party;

pub(crate) fn two_that_sleep_by_turns_miss_no_wake_up(rig: &Rig) -> Result<()> {
    const ROUNDS: u64 = 3000;
    let mut parties = [Party::new(rig)?, Party::new(rig)?];
    let [one, two] = &mut parties;
    one.address(two.ep.addr)?;
    two.address(one.ep.addr)?;
    one.receive();
    two.receive();
    // The one polls, and so does the other half of the time: it may take a message, and fall asleep, while whoever
    // delivered it has not come to the waking yet.
    let answer = |party: &mut Party, sleeps: bool, first: bool| -> Result<()> {
        for round in 0..ROUNDS {
            if !first || round > 0 {
                let sleeps = sleeps && round % 2 == 0;
                let got = if sleeps { party.sleep() } else { party.poll() };
                got.with_context(|| format!("round {round}"))?;
                party.receive();
            }
            party.send()?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| answer(two, true, false));
        answer(one, false, true)?;
        other
            .join()
            .map_err(|_| anyhow::anyhow!("the other thread panicked"))?
    })
}

pub(crate) fn a_descriptor_is_of_one_process(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    let cq = client.cq(8)?;
    client.share()?;
    let child = Command::new(std::env::current_exe()?)
        .args(["--inherited", &client.raw_fd().to_string()])
        .output()
        .context("starting another process")?;
    ensure!(
        child.status.success(),
        "{}",
        String::from_utf8_lossy(&child.stderr).trim_end()
    );
    // The end of the other has ended nothing here.
    client.map(cq.offset, cq.bytes, MapFlags::SHARED)?;
    client.ep(uapi::EP_DATAGRAM, cq.cq)?;
    Ok(())
}

/// The other process of [`a_descriptor_is_of_one_process`].
pub(crate) fn use_inherited(fd: i32) -> Result<()> {
    // SAFETY: the parent has left it open for us, and nobody else here knows it.
    let client = Client::from_fd(unsafe { OwnedFd::from_raw_fd(fd) });
    for call in ALL {
        let mut bytes = vec![0; call.size as usize];
        bytes[..4].copy_from_slice(&call.size.to_ne_bytes());
        let said = client.call_bytes(call.number, &mut bytes);
        refused(call.name, said, Errno::PERM)?;
    }
    let map = client.map(1 << 32, 4096, MapFlags::SHARED);
    refused("mmap", map.map(drop), Errno::PERM)
}

pub(crate) fn a_child_does_not_inherit_queues(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    let cq = client.cq(8)?;
    let map = client.map(cq.offset, cq.bytes, MapFlags::SHARED)?;
    let flags = vm_flags(map.start())?;
    // dc: not copied on fork; de: cannot grow. See show_smap_vma_flags() in the kernel's fs/proc/task_mmu.c.
    for flag in ["dc", "de"] {
        ensure!(
            flags.split_whitespace().any(|other| other == flag),
            "a queue's mapping has the flags {flags:?}, not {flag}"
        );
    }
    Ok(())
}

/// Flags of the mapping that begins at `start`.
fn vm_flags(start: usize) -> Result<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let head = format!("{start:08x}-");
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
    match lines.find_map(|line| line.strip_prefix("VmFlags:")) {
        Some(flags) => Ok(flags.trim().to_owned()),
        None => bail!("no mapping begins at {start:#x}"),
    }
}
