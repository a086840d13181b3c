//! Who may say which hosts are let in, and what may be said.

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use usb4_ring_abi::uapi;

use crate::Rig;
use crate::acts::{self, Act};
use crate::client::{Client, refused};

/// A host that is nowhere.
const NOBODY: u64 = 0x1234_5678;

fn argument(policy: u32, rules: &[uapi::Rule]) -> Result<uapi::Rules> {
    Ok(uapi::Rules {
        policy,
        count: u32::try_from(rules.len())?,
        stride: u32::try_from(size_of::<uapi::Rule>())?,
        rules: rules.as_ptr().addr() as u64,
        ..uapi::Rules::new()
    })
}

fn read(client: &Client) -> Result<(u32, Vec<uapi::Rule>)> {
    let mut rules = vec![uapi::Rule::default(); uapi::MAX_RULES];
    let mut list = argument(7, &rules)?;
    list.rules = rules.as_mut_ptr().addr() as u64;
    client.call(uapi::IOC_RULES, &mut list).context("RULES")?;
    rules.truncate(list.count as usize);
    Ok((list.policy, rules))
}

pub(crate) fn rules_are_kept_as_they_are_said(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    let (policy, before) = read(&client)?;
    let one = uapi::Rule {
        node_low: NOBODY,
        node_high: 1,
        router: [3; 16],
    };
    let any = uapi::Rule {
        node_low: NOBODY,
        node_high: 2,
        router: [0; 16],
    };
    let mut said = before.clone();
    said.extend([one, any]);
    client.call(uapi::IOC_SET_RULES, &mut argument(policy, &said)?)?;
    ensure!(read(&client)? == (policy, said), "other rules than were set");
    let bad = [
        (
            "a policy",
            uapi::Rules {
                policy: 2,
                ..argument(0, &[])?
            },
            Errno::INVAL,
        ),
        (
            "a reserved field",
            uapi::Rules {
                reserved: 1,
                ..argument(0, &[])?
            },
            Errno::INVAL,
        ),
        (
            "half a rule",
            uapi::Rules {
                stride: 16,
                ..argument(0, &[one])?
            },
            Errno::INVAL,
        ),
        (
            "too many",
            argument(0, &[one; uapi::MAX_RULES + 1])?,
            Errno::INVAL,
        ),
        (
            "no memory",
            uapi::Rules {
                rules: u64::MAX - 4095,
                ..argument(0, &[one])?
            },
            Errno::FAULT,
        ),
        // Two, taken for one with more to it than the kernel knows.
        (
            "a longer rule",
            uapi::Rules {
                count: 1,
                stride: 64,
                ..argument(0, &[one, one])?
            },
            Errno::TOOBIG,
        ),
    ];
    for (what, mut rules, want) in bad {
        refused(what, client.call(uapi::IOC_SET_RULES, &mut rules), want)?;
    }
    client.call(uapi::IOC_SET_RULES, &mut argument(policy, &before)?)?;
    ensure!(read(&client)? == (policy, before), "other rules than before");
    Ok(())
}

pub(crate) fn rules_are_the_administrator_s(rig: &Rig) -> Result<()> {
    acts::run(rig, Act::SetRules)
}

/// The unprivileged process of [`rules_are_the_administrator_s`].
pub(crate) fn set_without_privilege(rig: &Rig) -> Result<()> {
    acts::drop_privilege()?;
    let client = Client::open(rig)?;
    let said = client.call(uapi::IOC_SET_RULES, &mut argument(uapi::POLICY_OPEN, &[])?);
    refused("SET_RULES", said, Errno::PERM)?;
    read(&client).context("which may be read").map(drop)
}

pub(crate) fn cables_are_listed(rig: &Rig) -> Result<()> {
    let client = Client::open(rig)?;
    let mut cables = [uapi::Cable::default(); 64];
    let mut list = uapi::Cables {
        count: 64,
        stride: u32::try_from(size_of::<uapi::Cable>())?,
        cables: cables.as_mut_ptr().addr() as u64,
        ..uapi::Cables::new()
    };
    client.call(uapi::IOC_CABLES, &mut list)?;
    let there = cables.get(..list.count as usize).context("more than 64 cables")?;
    for cable in there {
        ensure!(
            cable.router != [0; 16] && cable.state != 0,
            "a cable that is none: {cable:?}"
        );
    }
    list.stride = 0;
    refused(
        "no stride",
        client.call(uapi::IOC_CABLES, &mut list),
        Errno::INVAL,
    )
}
