//! Endpoints that wait for something no entry or frame will announce.

use usb4_engine::{Nanos, Slab};

use crate::endpoint::{BARRIER, DRAINS, EndpointSlot, FAILED, HUNGRY, QUEUED, RETRY, STARVED, SWEEP, TOLD};
use crate::sync::Ordering;
use crate::{Device, DeviceError, EndpointId, Home};

/// Most endpoints one turn of `service` looks at.
const PER_TURN: usize = 16;

/// Places of endpoints to look at, first in, first out; each is on it once (the endpoint's `QUEUED` bit).
#[derive(Debug)]
pub(crate) struct Attention {
    ring: Slab<u16>,
    first: usize,
    len: usize,
}

impl Attention {
    /// `ring` has a place for each endpoint.
    pub(crate) fn new(ring: Slab<u16>, endpoints: usize) -> Result<Self, DeviceError> {
        if ring.len() < endpoints {
            Err(DeviceError::Storage)
        } else {
            Ok(Self {
                ring,
                first: 0,
                len: 0,
            })
        }
    }

    fn push(&mut self, index: u16) {
        let at = self
            .first
            .saturating_add(self.len)
            .checked_rem(self.ring.len())
            .unwrap_or(0);
        if let Some(place) = self.ring.get_mut(at).filter(|_| self.len < usize::MAX) {
            *place = index;
            self.len = self.len.saturating_add(1);
        }
    }

    fn pop(&mut self) -> Option<u16> {
        self.len = self.len.checked_sub(1)?;
        let index = self.ring.get(self.first).copied();
        self.first = self
            .first
            .saturating_add(1)
            .checked_rem(self.ring.len())
            .unwrap_or(0);
        index
    }
}

impl<H: Home> Device<H> {
    /// Puts an endpoint on the attention list.
    pub(crate) fn attend(&self, slot: &EndpointSlot<H>, ep: EndpointId, why: u32) {
        if slot.attention.fetch_or(why | QUEUED, Ordering::AcqRel) & QUEUED != 0 {
            return;
        }
        if let Ok(index) = u16::try_from(ep.index()) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.attention.lock().push(index);
        }
    }

    /// Whether endpoints wait.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Looks at endpoints that wait, each at most once. Returns whether any got on. No lock may be held. The turn of any link
    /// does this; it is for homes to call that have no link now.
    pub fn serve_waiting(&self, now: Nanos) -> bool {
        let mut progress = false;
        let count = PER_TURN.min(self.waiting.load(Ordering::Relaxed) as usize);
        for _ in 0..count {
            let Some(index) = self.attention.lock().pop() else {
                break;
            };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let Some(slot) = self.endpoints.get(usize::from(index)) else {
                continue;
            };
            // The rest says what others are to look for.
            let rest = HUNGRY | DRAINS | BARRIER | TOLD;
            let why = slot.attention.fetch_and(rest, Ordering::AcqRel);
            let Some(ep) = slot.id() else { continue };
            if why & FAILED != 0 {
                progress |= self.flush(slot, ep, now);
            }
            if why & SWEEP != 0 {
                self.sweep(slot, ep, now);
            }
            if why & RETRY != 0 {
                progress |= self.drain_sq(slot, ep, now).any;
            }
            if why & STARVED != 0 {
                progress |= self.feed(slot, ep, now);
            }
        }
        progress
    }
}
