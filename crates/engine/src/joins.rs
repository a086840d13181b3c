//! Which rails belong to one link, as far as a host can tell.
//!
//! A peer's node id proves nothing: a neighbour on another cable may claim it. A rail joins a link only if each side has
//! shown the other a nonce that it got over a rail of that link.
//!
//! Rails that come up at once each begin a link, and both sides must keep the same one. The side with the smaller node
//! id leads: it sends its nonce over its oldest link to the peer. The other side answers over the link on which the nonce
//! came, unless it has answered on another that lives. Both then pass the nonce they got on over their other links to
//! the same node: whoever gets his own nonce back over one knows that it leads to the same peer, and only then has its
//! rail join. So a neighbour who claims another's node id can end no session but his own.

use usb4_wire::NodeId;

use crate::{PeerInfo, Slab};

/// Where a rail goes that has come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It begins a link of its own: make one, then call [`Joins::began`].
    Own,
    /// To this link, with its others. If it cannot be attached, call [`Joins::down`].
    With(usize),
    /// To no link: the nonces shown prove none there is. Another session follows.
    Nowhere,
}

/// What the home has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinOrder {
    /// [`crate::Link::offer_join`]: give the peer this nonce over a link.
    Offer {
        /// The link.
        link: usize,
        /// The nonce.
        nonce: u64,
    },
    /// [`crate::RailFsm::set_join`]: have a rail show this nonce, 0 for none.
    Show {
        /// The rail.
        rail: usize,
        /// The nonce.
        nonce: u64,
    },
}

/// The rails of a host, by numbers its home gives them, and the links they belong to. After each call that changes
/// something, carry out what [`Joins::next_order`] yields, until it yields nothing.
#[derive(Debug)]
pub struct Joins {
    local: NodeId,
    links: Slab<JoinLink>,
    rails: Slab<JoinRail>,
    /// Links begun so far.
    begun: u64,
}

/// Place of a link (opaque).
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinLink(Option<Member>);

/// A link. Nonces are not 0: that is none.
#[derive(Clone, Copy, Debug)]
struct Member {
    peer: NodeId,
    /// Links begun before it.
    age: u64,
    /// What this side gives over it, and expects back from a rail that wants to join.
    nonce: u64,
    /// It has been given.
    given: bool,
    /// What the peer has given: the first, since an honest peer has one per link.
    peers: u64,
    /// The peer's nonce of another link that was passed on to this one's peer, to see whether it knows it.
    asked: u64,
    /// The nonce given over another link which this one's peer has shown: both peers are one.
    proved: u64,
}

/// Place of a rail (opaque).
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinRail {
    link: Option<usize>,
    /// What the rail was last told to show.
    shows: u64,
    /// That proves nothing any more: it must not be shown.
    stale: bool,
}

impl Joins {
    /// No rails, no links; numbers of both are below the lengths of the slabs.
    pub fn new(local: NodeId, links: Slab<JoinLink>, rails: Slab<JoinRail>) -> Self {
        Self {
            local,
            links,
            rails,
            begun: 0,
        }
    }

    /// A rail has come up.
    pub fn up(&mut self, rail: usize, info: &PeerInfo) -> Place {
        if info.shown == 0 || info.join == 0 {
            return Place::Own;
        }
        let proved = |member: &Member| {
            member.peer == info.node
                && member.given
                && member.nonce == info.join
                && member.peers == info.shown
        };
        let link = self.find(proved);
        // The peer may take the proof for good, so the rail belongs nowhere until another session shows something
        // better. If ours is the stale nonce, that is for us to begin.
        let fresh = self.find(|member| member.peers == info.shown).is_some();
        if let Some(rail) = self.rails.get_mut(rail) {
            rail.link = link;
            rail.stale = link.is_none() && !fresh && rail.shows == info.shown;
        }
        link.map_or(Place::Nowhere, Place::With)
    }

    /// A rail has begun a link of its own. `nonce` is random and not 0.
    pub fn began(&mut self, rail: usize, link: usize, info: &PeerInfo, nonce: u64) {
        let proved = self.given_elsewhere(link, info.node, info.join);
        if let Some(place) = self.links.get_mut(link) {
            place.0 = Some(Member {
                peer: info.node,
                age: self.begun,
                nonce,
                given: false,
                peers: 0,
                asked: 0,
                proved: if proved { info.join } else { 0 },
            });
            self.begun = self.begun.wrapping_add(1);
        }
        if let Some(rail) = self.rails.get_mut(rail) {
            rail.link = Some(link);
        }
    }

    /// A rail has gone down. Returns its link if that was the last one: it is forgotten.
    pub fn down(&mut self, rail: usize) -> Option<usize> {
        let link = self.rails.get_mut(rail)?.link.take()?;
        if self.rails.iter().any(|rail| rail.link == Some(link)) {
            return None;
        }
        self.failed(link);
        Some(link)
    }

    /// A link has failed: no rail joins it any more, whatever it still has.
    pub fn failed(&mut self, link: usize) {
        if let Some(place) = self.links.get_mut(link) {
            place.0 = None;
        }
    }

    /// A rail's state machine has ended, and with it what that was told to show.
    pub fn closed(&mut self, rail: usize) {
        if let Some(rail) = self.rails.get_mut(rail) {
            rail.shows = 0;
            rail.stale = false;
        }
    }

    /// The peer has given a nonce over a link ([`crate::Link::take_join`]): its own, or ours back.
    pub fn came(&mut self, link: usize, nonce: u64) {
        let Some(peer) = self.member(link).map(|member| member.peer) else {
            return;
        };
        let ours = self.given_elsewhere(link, peer, nonce);
        let Some(member) = self.member_mut(link) else {
            return;
        };
        if ours {
            member.proved = nonce;
        } else if member.peers == 0 {
            member.peers = nonce;
        }
    }

    /// What is to be done next.
    pub fn next_order(&mut self) -> Option<JoinOrder> {
        if let Some(rail) = self.rails.iter().position(|rail| rail.stale) {
            self.rails.get_mut(rail)?.stale = false;
            return Some(JoinOrder::Show { rail, nonce: 0 });
        }
        (0..self.links.len()).find_map(|link| self.give(link).or_else(|| self.pass_on(link)))
    }

    /// Whether both sides use this link, of those to its peer, once there is but one.
    pub fn is_chosen(&self, link: usize) -> bool {
        self.member(link).is_some_and(|member| {
            if self.leads(member) {
                self.oldest(member.peer) == Some(link)
            } else {
                member.given
            }
        })
    }

    /// The oldest link to whoever calls itself `node`.
    pub fn oldest(&self, node: NodeId) -> Option<usize> {
        let links = self.links.iter().enumerate();
        let of_peer = |(link, place): (usize, &JoinLink)| {
            let member = place.0.as_ref().filter(|member| member.peer == node)?;
            Some((member.age, link))
        };
        links.filter_map(of_peer).min().map(|(_, link)| link)
    }

    /// Gives this side's nonce over a link, if the others are to join that.
    fn give(&mut self, link: usize) -> Option<JoinOrder> {
        let member = self.member(link)?;
        let wanted = if self.leads(member) {
            self.oldest(member.peer) == Some(link)
        } else {
            member.peers != 0 && self.common(member.peer).is_none()
        };
        if member.given || !wanted {
            return None;
        }
        let member = self.member_mut(link)?;
        member.given = true;
        Some(JoinOrder::Offer {
            link,
            nonce: member.nonce,
        })
    }

    /// Once nonces have been exchanged over another link to its peer: finds out whether this link leads there as well,
    /// and has its rails join that one.
    fn pass_on(&mut self, link: usize) -> Option<JoinOrder> {
        let peer = self.member(link)?.peer;
        let common = self.common(peer).filter(|common| *common != link)?;
        let Member { nonce, peers, .. } = *self.member(common)?;
        let member = self.member_mut(link).filter(|_| peers != 0)?;
        if member.asked != peers {
            member.asked = peers;
            return Some(JoinOrder::Offer { link, nonce: peers });
        }
        if member.proved != nonce {
            return None;
        }
        let joins = |rail: &JoinRail| rail.link == Some(link) && rail.shows != peers;
        let rail = self.rails.iter().position(joins)?;
        self.rails.get_mut(rail)?.shows = peers;
        Some(JoinOrder::Show { rail, nonce: peers })
    }

    /// The link to a peer over which this side has given its nonce: there is one at most.
    fn common(&self, peer: NodeId) -> Option<usize> {
        self.find(|member| member.given && member.peer == peer)
    }

    /// Whether this side gave that nonce over another living link to the same node.
    fn given_elsewhere(&self, link: usize, peer: NodeId, nonce: u64) -> bool {
        let common = self.common(peer).filter(|common| *common != link);
        common
            .and_then(|common| self.member(common))
            .is_some_and(|member| member.nonce == nonce)
    }

    /// Whether this side chooses the link that others join.
    fn leads(&self, member: &Member) -> bool {
        self.local < member.peer
    }

    fn member(&self, link: usize) -> Option<&Member> {
        self.links.get(link)?.0.as_ref()
    }

    fn member_mut(&mut self, link: usize) -> Option<&mut Member> {
        self.links.get_mut(link)?.0.as_mut()
    }

    fn find(&self, mut test: impl FnMut(&Member) -> bool) -> Option<usize> {
        self.links
            .iter()
            .position(|place| place.0.as_ref().is_some_and(&mut test))
    }
}

#[cfg(test)]
#[path = "joins_tests.rs"]
mod tests;
