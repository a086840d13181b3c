//! Cables that lose and damage frames, controllers that overlook doorbells and forget interrupts and completions: no byte
//! is wrong, nothing hangs, and what no frame can mend is started anew.

use super::{check, seen};
use crate::lab::emulator::Emulator;
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::load::{Load, MOVING};
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Group, Outcome, rails, rdma};
use anyhow::{Context, Result, bail};
use std::time::Duration;

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "bad-cable",
        topology: "pair,lanes=1",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("all-at-once", Ci, all_at_once),
            check("loss", Full, loss),
            check("corruption", Full, corruption),
            check("lost-interrupts", Full, lost_interrupts),
            check("overlooked-doorbells", Full, overlooked_doorbells),
            check("no-doorbell-for-long", Ci, no_doorbell_for_long),
            check("no-interrupt-at-all", Ci, no_interrupt_at_all),
            check("stranded-transmission", Ci, stranded_transmission),
            check("stranded-reception", Ci, stranded_reception),
        ],
    },
    // A Strix Halo's two data rings.
    Group {
        name: "bad-cable-three-hops",
        topology: "pair,lanes=1,hops=strix,wedge=on",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[check("all-at-once", Full, all_at_once)],
    },
    Group {
        name: "bad-cable-bounce-buffers",
        topology: "pair,lanes=1",
        plan: |plan| plan.parameters = "swiotlb=force".to_string(),
        prepare: rdma::prepare,
        checks: &[check("all-at-once", Full, all_at_once)],
    },
    Group {
        name: "narrow-cable",
        topology: "pair,lanes=2",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("narrowed-under-load", Full, narrowed_under_load),
            check("conformance", Full, narrow),
        ],
    },
];

/// A request to the emulator, the one that takes it back, and what it counts.
type Fault = (&'static str, &'static str, &'static str);

const LOSS: Fault = ("loss 0 1000", "loss 0 0", "lost");
const CORRUPTION: Fault = ("corrupt 0 1000", "corrupt 0 0", "corrupted");
const INTERRUPTS: [Fault; 2] = [
    ("interrupt-loss 0 10000", "interrupt-loss 0 0", "lost_interrupts"),
    ("interrupt-loss 1 10000", "interrupt-loss 1 0", "lost_interrupts"),
];
const DOORBELLS: [Fault; 2] = [
    ("doorbell-loss 0 10000", "doorbell-loss 0 0", "ignored_doorbells"),
    ("doorbell-loss 1 10000", "doorbell-loss 1 0", "ignored_doorbells"),
];

fn all_at_once(lab: &mut Lab) -> Result<Outcome> {
    with_all(lab, conformance)
}

fn loss(lab: &mut Lab) -> Result<Outcome> {
    with(lab, &[LOSS], conformance)
}

fn corruption(lab: &mut Lab) -> Result<Outcome> {
    with(lab, &[CORRUPTION], conformance)
}

fn lost_interrupts(lab: &mut Lab) -> Result<Outcome> {
    with(lab, &INTERRUPTS, conformance)
}

fn overlooked_doorbells(lab: &mut Lab) -> Result<Outcome> {
    with(lab, &DOORBELLS, conformance)
}

fn conformance(lab: &Lab) -> Result<String> {
    rdma::conformance_pair(lab.guest(0)?, lab.guest(1)?)
}

/// Does something while there are all faults of cable and controllers.
pub(in crate::lab::suites) fn with_all(
    lab: &mut Lab,
    what: impl FnOnce(&Lab) -> Result<String>,
) -> Result<Outcome> {
    let [interrupts, doorbells] = [INTERRUPTS, DOORBELLS];
    let faults = [
        LOSS,
        CORRUPTION,
        interrupts[0],
        interrupts[1],
        doorbells[0],
        doorbells[1],
    ];
    with(lab, &faults, what)
}

/// Does something while there are these faults, each of which has to strike.
fn with(lab: &mut Lab, faults: &[Fault], what: impl FnOnce(&Lab) -> Result<String>) -> Result<Outcome> {
    lab.control("clear")?;
    for (begin, ..) in faults {
        lab.control(begin)?;
    }
    let words = what(lab);
    for (_, end, _) in faults {
        lab.control(end)?;
    }
    let words = words?;
    let mut struck = vec![];
    for (.., name) in faults {
        let count = counted(lab.parts().1, name)?;
        if count == 0 {
            bail!("{name}: none; {words}");
        }
        let part = format!("{count} {name}");
        if !struck.contains(&part) {
            struck.push(part);
        }
    }
    seen(format!("{words}; {}", struck.join(", ")))
}

/// What the emulator has counted under a name, on all cables and controllers.
fn counted(emulator: &mut Emulator, name: &str) -> Result<u64> {
    let answer = emulator.ask("stats")?;
    let stats = &answer["stats"];
    let cables = stats["cables"].as_array().context("no cables")?;
    let nhis = stats["nhis"].as_array().context("no controllers")?;
    let ways = cables.iter().flat_map(|cable| [&cable["forth"], &cable["back"]]);
    let all = ways.chain(nhis.iter().map(|nhi| &nhi["counters"]));
    Ok(all.filter_map(|counters| counters[name].as_u64()).sum())
}

/// Guest 0's rings of the link, the first after the control channel's.
const TX_RING: &str = "0 tx 1";
const RX_RING: &str = "0 rx 1";

/// So many doorbells are overlooked that as many descriptors are posted as may be (`TX_DEPTH` in crates/kobj, 192) and
/// nothing more can be, which would ring it again; and some of those that are rung for that reason.
fn no_doorbell_for_long(lab: &mut Lab) -> Result<Outcome> {
    const MORE_THAN_ARE_POSTED: u32 = 230;
    under_load(lab, |_, emulator| {
        emulator.ask("clear")?;
        emulator.ask(&format!("ignore-doorbell {TX_RING} {MORE_THAN_ARE_POSTED}"))?;
        rails::moves(emulator, 0, 3000)?;
        match counted(emulator, "ignored_doorbells")? {
            0 => bail!("none was overlooked"),
            count => Ok(format!(
                "{count} overlooked in a row, and the client has not noticed"
            )),
        }
    })
}

/// Every interrupt of data rings is lost: timers see to it that frames are found.
fn no_interrupt_at_all(lab: &mut Lab) -> Result<Outcome> {
    for nhi in 0..2 {
        lab.control(&format!("interrupt-loss {nhi} 1000000"))?;
    }
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 50);
    for nhi in 0..2 {
        lab.control(&format!("interrupt-loss {nhi} 0"))?;
    }
    seen(answered?)
}

/// A completion that never comes hides all that come after it, so that the ring looks as if it stood still.
fn stranded_transmission(lab: &mut Lab) -> Result<Outcome> {
    begun_anew(lab, TX_RING, "transmit ring")
}

/// The same on the other side: nothing the peer says is heard, though it is there.
fn stranded_reception(lab: &mut Lab) -> Result<Outcome> {
    begun_anew(lab, RX_RING, "not on this rail")
}

/// Strands a completion of a ring under load: a kernel says `words`, what was under way fails, and the link comes back
/// without help.
fn begun_anew(lab: &mut Lab, ring: &str, words: &str) -> Result<Outcome> {
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let from: Vec<usize> = guests.iter().map(|guest| guest.console.len()).collect();
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    emulator.ask(&format!("strand-completion {ring} 1"))?;
    let said = load.fails(SETTLE)?;
    let mut told = false;
    for (guest, from) in guests.iter().zip(&from) {
        let down = guest.console.wait(rdma::DOWN, *from, SETTLE)?;
        guest.console.wait(rdma::UP, down, SETTLE)?;
        told |= guest.console.wait(words, *from, Duration::ZERO).is_ok();
    }
    if !told {
        bail!("no kernel says {words:?}");
    }
    let answered = rdma::ping(one, other, 20)?;
    seen(format!("{said:?}; then {answered}"))
}

/// The link loses a lane, and gets it back, while messages cross it.
fn narrowed_under_load(lab: &mut Lab) -> Result<Outcome> {
    under_load(lab, |_, emulator| {
        for _ in 0..3 {
            for lanes in [1, 2] {
                emulator.ask(&format!("narrow 0 {lanes}"))?;
                rails::moves(emulator, 0, 1000)?;
            }
        }
        Ok("three times; the client has not noticed".to_string())
    })
}

fn narrow(lab: &mut Lab) -> Result<Outcome> {
    lab.control("narrow 0 1")?;
    let words = conformance(lab);
    lab.control("narrow 0 2")?;
    seen(words?)
}

/// Does something while messages cross the link, which must neither end nor complain.
fn under_load(
    lab: &mut Lab,
    what: impl FnOnce(&[Guest], &mut Emulator) -> Result<String>,
) -> Result<Outcome> {
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    let words = what(guests, emulator)?;
    load.end()?;
    seen(words)
}
