//! Plans on their way to the home and back, first in, first out.

use crate::{MemRef, Plan, ReceiveDone, RxToken, Slab};

/// What follows once a plan is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// A request chunk of an incoming flow has taken effect.
    Executed { flow: u32 },
    /// A WRITE chunk has; its reference is returned.
    Written { flow: u32, mem: MemRef },
    /// A receive completes. `written`: the reference of a WRITE chunk; `mem`: the receive's; `counts`: it is
    /// the effect of a request chunk (else something follows that counts).
    Received {
        flow: u32,
        written: Option<MemRef>,
        mem: Option<MemRef>,
        done: ReceiveDone,
        counts: bool,
    },
    /// A read may be streamed.
    Streamed { flow: u32, stream: u32 },
    /// An atomic has been executed; its result is the plan's old value.
    Atomic { flow: u32, stream: u32, mem: MemRef },
    /// An incoming flow is closed.
    Closed { flow: u32 },
    /// Response bytes of operation `op` are in local memory.
    Landed { op: u32 },
}

impl Then {
    /// The incoming flow it belongs to.
    #[inline]
    pub(crate) fn flow(&self) -> Option<u32> {
        match *self {
            Self::Executed { flow }
            | Self::Written { flow, .. }
            | Self::Received { flow, .. }
            | Self::Streamed { flow, .. }
            | Self::Atomic { flow, .. }
            | Self::Closed { flow } => Some(flow),
            Self::Landed { .. } => None,
        }
    }
}

/// A plan and what follows.
#[derive(Clone, Copy, Debug)]
pub struct PlanEntry {
    pub(crate) plan: Plan,
    pub(crate) then: Then,
}

impl Default for PlanEntry {
    fn default() -> Self {
        Self {
            plan: Plan::Nothing,
            then: Then::Executed { flow: 0 },
        }
    }
}

/// The queue of plans.
#[derive(Debug)]
pub(crate) struct Plans {
    slab: Slab<PlanEntry>,
    mask: u32,
    limit: u32,
    /// Numbers of the oldest plan that is not done, the next to be taken and the next to be queued.
    done: u32,
    taken: u32,
    queued: u32,
}

impl Plans {
    /// At most `limit` plans, in a slab of a power of two.
    pub(crate) fn new(slab: Slab<PlanEntry>, limit: u32) -> Self {
        let len = u32::try_from(slab.len()).unwrap_or(0);
        let (mask, limit) = if len.is_power_of_two() {
            (len.wrapping_sub(1), limit.min(len))
        } else {
            (0, 0)
        };
        Self {
            slab,
            mask,
            limit,
            done: 0,
            taken: 0,
            queued: 0,
        }
    }

    pub(crate) fn into_slab(self) -> Slab<PlanEntry> {
        self.slab
    }

    /// Plans that can be queued.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.limit.wrapping_sub(self.queued.wrapping_sub(self.done))
    }

    /// Plans the home is running.
    #[inline]
    pub(crate) fn running(&self) -> u32 {
        self.taken.wrapping_sub(self.done)
    }

    /// Plans not done.
    pub(crate) fn len(&self) -> u32 {
        self.queued.wrapping_sub(self.done)
    }

    /// Appends a plan; the caller has made sure of the room.
    #[inline(always)]
    pub(crate) fn push(&mut self, plan: Plan, then: Then) {
        if let Some(entry) = self.slab.get_mut((self.queued & self.mask) as usize) {
            entry.plan = plan;
            entry.then = then;
            self.queued = self.queued.wrapping_add(1);
        }
    }

    /// The plan [`Plans::take`] yields next.
    #[inline]
    pub(crate) fn front(&self) -> Option<&Plan> {
        if self.taken == self.queued {
            return None;
        }
        let entry = self.slab.get((self.taken & self.mask) as usize)?;
        Some(&entry.plan)
    }

    /// The next plan to run.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Plan> {
        if self.taken == self.queued {
            return None;
        }
        let entry = self.slab.get((self.taken & self.mask) as usize)?;
        self.taken = self.taken.wrapping_add(1);
        Some(entry.plan)
    }

    /// The oldest running plan, if there is one.
    #[inline(always)]
    pub(crate) fn oldest(&self) -> Option<&PlanEntry> {
        if self.done == self.taken {
            return None;
        }
        self.slab.get((self.done & self.mask) as usize)
    }

    /// The plan [`Plans::oldest`] tells is done.
    #[inline(always)]
    pub(crate) fn end_oldest(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// The oldest running plan is done: what follows, and the frame it copied from.
    #[inline]
    pub(crate) fn finish(&mut self) -> Option<(Option<RxToken>, Then)> {
        if self.done == self.taken {
            return None;
        }
        let entry = self.slab.get((self.done & self.mask) as usize)?;
        self.done = self.done.wrapping_add(1);
        let from = match entry.plan {
            Plan::Copy { from, .. } => Some(from),
            _ => None,
        };
        Some((from, entry.then))
    }

    /// Keeps the plans nobody has taken from placing response bytes of the operations `gone` names. They stay in
    /// the queue: what follows them still does.
    pub(crate) fn keep_from_landing(&mut self, gone: impl Fn(u32) -> bool) {
        let mut number = self.taken;
        while number != self.queued {
            let entry = self.slab.get_mut((number & self.mask) as usize);
            if let Some(PlanEntry {
                plan,
                then: Then::Landed { op },
            }) = entry
            {
                if gone(*op) {
                    match plan {
                        // It still names the frame, to be given back.
                        Plan::Copy { len, .. } => *len = 0,
                        other => *other = Plan::Nothing,
                    }
                }
            }
            number = number.wrapping_add(1);
        }
    }

    /// Takes a plan back that nobody has run; only when none is running.
    pub(crate) fn cancel(&mut self) -> Option<(Option<RxToken>, Then)> {
        self.take()?;
        self.finish()
    }
}
