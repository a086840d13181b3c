//! Arguments: size, flags, reserved fields, memory.

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use usb4_ring_abi::uapi;

use crate::Rig;
use crate::client::{ALL, Client, NOTHING, refused};

/// An argument of zeros that says it has `size` bytes.
fn zeros(size: u32) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    if let Some(place) = bytes.first_chunk_mut() {
        *place = size.to_ne_bytes();
    }
    bytes
}

pub(crate) fn a_longer_argument_is_taken_if_the_rest_is_zero(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    let mut longer = zeros(2048);
    client
        .call_bytes(uapi::IOC_INFO, &mut longer)
        .context("INFO with more room")?;
    ensure!(
        longer[uapi::Info::SIZE as usize..].iter().all(|byte| *byte == 0),
        "INFO wrote beyond what it knows"
    );
    for call in ALL {
        let mut longer = zeros(call.size + 8);
        longer[call.size as usize + 7] = 1;
        let said = client.call_bytes(call.number, &mut longer);
        refused(call.name, said, Errno::TOOBIG)?;
    }
    Ok(())
}

pub(crate) fn a_shorter_argument_is_refused(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    for call in ALL {
        for short in [0, 4, 8, call.least - 8, call.least - 1] {
            let mut bytes = zeros(call.size);
            bytes[..4].copy_from_slice(&short.to_ne_bytes());
            let what = format!("{} of {short} bytes", call.name);
            refused(&what, client.call_bytes(call.number, &mut bytes), Errno::INVAL)?;
        }
    }
    Ok(())
}

/// A program of before dma-bufs could be registered: its REG_MR is shorter, and means what it meant.
pub(crate) fn an_older_argument_means_what_it_meant(rig: &Rig) -> Result<()> {
    const OLDER: usize = 56;
    let client = Client::open(rig)?;
    let mut memory = vec![0_u8; 4096];
    let mr = uapi::RegMr {
        addr: memory.as_mut_ptr().addr() as u64,
        len: 4096,
        ..uapi::RegMr::new()
    };
    let mut bytes = zeros(u32::try_from(OLDER)?);
    bytes[8..16].copy_from_slice(&mr.addr.to_ne_bytes());
    bytes[16..24].copy_from_slice(&mr.len.to_ne_bytes());
    // What is behind it is the caller's.
    bytes.extend([0xa5; 64]);
    client.call_bytes(uapi::IOC_REG_MR, &mut bytes)?;
    ensure!(bytes[28..32] != [0; 4], "no local key");
    ensure!(
        bytes[OLDER..].iter().all(|byte| *byte == 0xa5),
        "REG_MR wrote beyond its argument"
    );
    Ok(())
}

pub(crate) fn memory_that_is_not_there_is_a_fault(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    for call in ALL {
        refused(call.name, client.call_nowhere(call.number), Errno::FAULT)?;
    }
    Ok(())
}

pub(crate) fn unknown_flags_and_reserved_fields_are_refused(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    for call in ALL {
        let mut bytes = zeros(call.size);
        bytes[4..8].copy_from_slice(&0x8000_0000_u32.to_ne_bytes());
        let said = client.call_bytes(call.number, &mut bytes);
        refused(call.name, said, Errno::OPNOTSUPP)?;
    }
    let cq = client.cq(8)?.cq;
    let mut create = uapi::CreateCq {
        depth: 8,
        event_fd: -1,
        reserved: 1,
        ..uapi::CreateCq::new()
    };
    refused(
        "CREATE_CQ",
        client.call(uapi::IOC_CREATE_CQ, &mut create),
        Errno::INVAL,
    )?;
    let mut destroy = uapi::Destroy {
        id: cq,
        reserved: 1,
        ..uapi::Destroy::new()
    };
    refused(
        "DESTROY_CQ",
        client.call(uapi::IOC_DESTROY_CQ, &mut destroy),
        Errno::INVAL,
    )?;
    let mut ep = uapi::CreateEp {
        send_cq: cq,
        recv_cq: cq,
        sq_depth: 8,
        rq_depth: 8,
        reserved: 1,
        ..uapi::CreateEp::new()
    };
    refused(
        "CREATE_EP",
        client.call(uapi::IOC_CREATE_EP, &mut ep),
        Errno::INVAL,
    )?;
    let mut source = uapi::Source {
        reserved: 1,
        ..uapi::Source::new()
    };
    refused("SOURCE", client.call(uapi::IOC_SOURCE, &mut source), Errno::INVAL)?;
    source.reserved = 0;
    source.src = NOTHING;
    refused(
        "SOURCE of nobody",
        client.call(uapi::IOC_SOURCE, &mut source),
        Errno::NOENT,
    )
}

pub(crate) fn unknown_ioctls_are_refused(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    let kinds = u32::from(uapi::IOC_TYPE) << 8;
    for number in [kinds | 0x0f, kinds | 0x1f, kinds | 0xff, 0xd300, 0xc010_d400] {
        let said = client.call_bytes(number, &mut zeros(64));
        refused(&format!("ioctl {number:#x}"), said, Errno::NOTTY)?;
    }
    Ok(())
}
