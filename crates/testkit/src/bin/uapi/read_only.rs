//! Memory that nobody is to write.

use std::fs::File;

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use usb4_ring_abi::{Op, Sqe, uapi};

use crate::Rig;
use crate::client::refused;
use crate::party::Party;

/// Pages of this program, mapped to be read.
pub(crate) fn memory_that_is_only_read_need_not_be_writable(rig: &Rig) -> Result<()> {
    const LEN: usize = 5 * 4096;
    let file = File::open(std::env::current_exe()?)?;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe {
        mmap(
            std::ptr::null_mut(),
            LEN,
            ProtFlags::READ,
            MapFlags::PRIVATE,
            &file,
            0,
        )?
    };
    // SAFETY: just mapped; the file does not change.
    let there = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), LEN) };
    let at = start.addr() as u64;
    let mut party = Party::new(rig)?;
    party.address(party.ep.addr)?;
    for access in [0, uapi::ACCESS_REMOTE_READ] {
        let said = party.client.reg(at, LEN as u64, access);
        refused("to write it", said, Errno::FAULT)?;
    }
    let access = uapi::ACCESS_READ_ONLY | uapi::ACCESS_REMOTE_READ;
    let region = party.client.reg(at, LEN as u64, access).context("to read it")?;
    only_reads(&mut party, &region, there)?;
    party.client.dereg(region.local_key)?;
    // SAFETY: our mapping, which nothing uses any more.
    unsafe { munmap(start, LEN)? };
    Ok(())
}

/// Whether a read-only region with these bytes is read by its owner and by peers, and written by nobody.
pub(crate) fn only_reads(party: &mut Party, region: &uapi::RegMr, bytes: &[u8]) -> Result<()> {
    let mut copy = vec![0x5a_u8; bytes.len()];
    let start = copy.as_mut_ptr();
    let all = uapi::ACCESS_REMOTE_READ | uapi::ACCESS_REMOTE_WRITE | uapi::ACCESS_REMOTE_ATOMIC;
    let mine = party.client.reg(start.addr() as u64, bytes.len() as u64, all)?;
    let between = |op: Op, local: &uapi::RegMr, remote: &uapi::RegMr, len: usize| -> Result<Sqe> {
        Ok(Sqe {
            op: op.code(),
            local_addr: local.addr,
            local_key: local.local_key,
            len: u32::try_from(len)?,
            args: [remote.addr, remote.remote_key, 0, 0],
            ..Sqe::default()
        })
    };
    let is = |bytes: &[u8]| {
        (0..bytes.len()).all(|at| {
            // SAFETY: ours, as long as `bytes`; the device has completed what it did there.
            unsafe { start.add(at).read_volatile() == bytes[at] }
        })
    };
    let whole = bytes.len();
    for (what, entry) in [
        ("READ by a peer", between(Op::Read, &mine, region, whole)?),
        ("WRITE of it", between(Op::Write, region, &mine, whole)?),
    ] {
        // SAFETY: as above.
        (0..whole).for_each(|at| unsafe { start.add(at).write_volatile(0x5a) });
        let status = party.status_of(&entry)?;
        ensure!(
            status == 0 && is(bytes),
            "{what}: status {status}, same bytes: {}",
            is(bytes)
        );
    }
    for (what, entry) in [
        ("READ into it", between(Op::Read, region, &mine, whole)?),
        ("FETCH_ADD into it", between(Op::FetchAdd, region, &mine, 8)?),
        ("WRITE by a peer", between(Op::Write, &mine, region, whole)?),
        ("FETCH_ADD by a peer", between(Op::FetchAdd, &mine, region, 8)?),
    ] {
        ensure!(party.status_of(&entry)? != 0, "{what} succeeded");
    }
    party.client.dereg(mine.local_key)?;
    Ok(())
}
