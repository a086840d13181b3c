//! Which rails belong to one link: [`usb4_engine::Joins`], with the C side's numbers of rails and links.
//!
//! The C side calls these from process context, one at a time, and makes and ends no link meanwhile.

use core::sync::atomic::Ordering;

use usb4_engine::{JoinOrder, Joins, Place};

use crate::abi::Peer;
use crate::device::Core;
use crate::home;
use crate::links::Link;

/// [`usb4_core_rail_place`]: the rail begins a link of its own.
pub const PLACE_OWN: i32 = -1;
/// [`usb4_core_rail_place`]: it belongs to no link, and another session follows.
pub const PLACE_NOWHERE: i32 = -2;

impl Core {
    /// Changes what is known of rails and links, and does what follows. Rails are told what to show under the lock, lest
    /// two orders for one overtake each other.
    fn sort(&self, change: impl FnOnce(&mut Joins)) {
        let mut joins = self.joins.lock();
        change(&mut joins);
        while let Some(order) = joins.next_order() {
            match order {
                JoinOrder::Offer { link, nonce } => {
                    if let Some(link) = self.at(link) {
                        self.device.offer_join(link.id, nonce);
                    }
                }
                JoinOrder::Show { rail, nonce } => {
                    home::rail_show(u32::try_from(rail).unwrap_or(u32::MAX), nonce);
                }
            }
        }
        for number in 0..self.links.len() {
            let Some(link) = self.at(number).filter(|_| joins.is_chosen(number)) else {
                continue;
            };
            if self.device.choose(link.id) {
                link.port.chosen();
            }
        }
        drop(joins);
        self.serve_touched(home::now());
    }

    fn at(&self, number: usize) -> Option<&Link> {
        let link = self.links.get(number)?.load(Ordering::Acquire);
        // SAFETY: the C side ends no link meanwhile.
        unsafe { link.as_ref() }
    }
}

/// A session has come up on a rail. Returns the number of the link it belongs to, [`PLACE_OWN`] (make a link, then call
/// [`usb4_core_rail_began`]) or [`PLACE_NOWHERE`]. If it cannot be done, call [`usb4_core_rail_gone`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_place(core: &Core, rail: u32, peer: &Peer) -> i32 {
    let mut place = Place::Nowhere;
    core.sort(|joins| place = joins.up(rail as usize, &peer.into()));
    match place {
        Place::Own => PLACE_OWN,
        Place::With(link) => i32::try_from(link).unwrap_or(PLACE_NOWHERE),
        Place::Nowhere => PLACE_NOWHERE,
    }
}

/// A rail has begun a link of its own, to which it is attached.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_began(core: &Core, rail: u32, link: &Link, peer: &Peer) {
    let nonce = home::random().max(1);
    core.sort(|joins| joins.began(rail as usize, link.id.index(), &peer.into(), nonce));
}

/// A rail's session has ended, and it is detached. True if it was its link's last: that is to be ended.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_gone(core: &Core, rail: u32) -> bool {
    let mut last = false;
    core.sort(|joins| last = joins.down(rail as usize).is_some());
    last
}

/// A rail's state machine has ended.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_rail_closed(core: &Core, rail: u32) {
    core.sort(|joins| joins.closed(rail as usize));
}

/// The peer has given a nonce over a link.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_joined(core: &Core, link: &Link) {
    if let Some(nonce) = core.device.take_join(link.id) {
        core.sort(|joins| joins.came(link.id.index(), nonce));
    }
}
