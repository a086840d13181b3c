//! The two queues of matching: receives that wait for a message, messages that wait for a receive.
//!
//! MPI's rule decides: a message takes the receive posted first among those it matches; a receive takes the
//! message that arrived first among those it matches. Receives that name a sender are listed by sender, the
//! others in one list, and their sequence numbers tell which of two candidates is older; messages are listed
//! by sender and in one list of all. So a search walks only what one sender, or nobody in particular, has
//! outstanding.

use crate::slab::{Links, List, NIL, Slab};
use crate::{Class, Envelope, PeerId};

/// What a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Space.
    pub class: Class,
    /// The only sender, or any.
    pub from: Option<PeerId>,
    /// Tag.
    pub tag: u64,
    /// Bits of the tag that do not count.
    pub ignore: u64,
}

impl Pattern {
    #[inline]
    fn tag_fits(&self, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
    }
}

/// An object with a place in the posted queue.
pub(crate) trait Posted {
    fn pattern(&self) -> &Pattern;
    fn sequence(&mut self) -> &mut u64;
    fn links(&mut self) -> &mut Links;
}

/// Receives of one class that wait.
pub(crate) struct PostedQueue {
    any: List,
    by_peer: Vec<List>,
    next_sequence: u64,
}

impl PostedQueue {
    pub(crate) fn new() -> Self {
        Self {
            any: List::EMPTY,
            by_peer: Vec::new(),
            next_sequence: 0,
        }
    }

    #[inline]
    pub(crate) fn push<R: Posted>(&mut self, slab: &mut Slab<R>, index: u32) {
        *slab[index].sequence() = self.next_sequence;
        self.next_sequence += 1;
        let from = slab[index].pattern().from;
        self.list(from).push(slab, index, R::links);
    }

    #[inline]
    pub(crate) fn remove<R: Posted>(&mut self, slab: &mut Slab<R>, index: u32) {
        let from = slab[index].pattern().from;
        self.list(from).remove(slab, index, R::links);
    }

    /// The receive a message takes; it stays in the queue.
    #[inline]
    pub(crate) fn find<R: Posted>(&self, slab: &mut Slab<R>, from: PeerId, tag: u64) -> Option<u32> {
        let directed = match self.by_peer.get(from.0 as usize) {
            Some(list) => first_fit(slab, list.head, tag, u64::MAX),
            None => NIL,
        };
        let bound = if directed == NIL {
            u64::MAX
        } else {
            *slab[directed].sequence()
        };
        let any = first_fit(slab, self.any.head, tag, bound);
        match if any == NIL { directed } else { any } {
            NIL => None,
            index => Some(index),
        }
    }

    /// The first receive for which `wanted` says so, senders in no particular order.
    pub(crate) fn find_by<R: Posted>(&self, slab: &mut Slab<R>, wanted: impl Fn(&R) -> bool) -> Option<u32> {
        std::iter::once(&self.any).chain(&self.by_peer).find_map(|list| {
            let mut at = list.head;
            while at != NIL {
                if wanted(&slab[at]) {
                    return Some(at);
                }
                at = slab[at].links().next;
            }
            None
        })
    }

    #[inline]
    fn list(&mut self, from: Option<PeerId>) -> &mut List {
        match from {
            None => &mut self.any,
            Some(PeerId(peer)) => per_peer(&mut self.by_peer, peer),
        }
    }
}

/// The first receive from `at` on that takes `tag` and is older than `bound`.
#[inline]
fn first_fit<R: Posted>(slab: &mut Slab<R>, mut at: u32, tag: u64, bound: u64) -> u32 {
    while at != NIL {
        let entry = &mut slab[at];
        if *entry.sequence() >= bound {
            return NIL;
        }
        if entry.pattern().tag_fits(tag) {
            return at;
        }
        at = entry.links().next;
    }
    NIL
}

/// An object with a place in the unexpected queue.
pub(crate) trait Unexpected {
    fn envelope(&self) -> &Envelope;
    fn sender(&self) -> PeerId;
    fn all_links(&mut self) -> &mut Links;
    fn peer_links(&mut self) -> &mut Links;
}

/// Messages of one class that wait.
pub(crate) struct UnexpectedQueue {
    all: List,
    by_peer: Vec<List>,
}

impl UnexpectedQueue {
    pub(crate) fn new() -> Self {
        Self {
            all: List::EMPTY,
            by_peer: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.head == NIL
    }

    pub(crate) fn push<M: Unexpected>(&mut self, slab: &mut Slab<M>, index: u32) {
        let PeerId(peer) = slab[index].sender();
        self.all.push(slab, index, M::all_links);
        per_peer(&mut self.by_peer, peer).push(slab, index, M::peer_links);
    }

    pub(crate) fn remove<M: Unexpected>(&mut self, slab: &mut Slab<M>, index: u32) {
        let PeerId(peer) = slab[index].sender();
        self.all.remove(slab, index, M::all_links);
        per_peer(&mut self.by_peer, peer).remove(slab, index, M::peer_links);
    }

    /// The message a receive takes; it stays in the queue.
    pub(crate) fn find<M: Unexpected>(&self, slab: &mut Slab<M>, pattern: &Pattern) -> Option<u32> {
        let (mut at, links): (u32, fn(&mut M) -> &mut Links) = match pattern.from {
            None => (self.all.head, M::all_links),
            Some(PeerId(peer)) => (
                self.by_peer.get(peer as usize).map_or(NIL, |list| list.head),
                M::peer_links,
            ),
        };
        while at != NIL {
            if pattern.tag_fits(slab[at].envelope().tag) {
                return Some(at);
            }
            at = links(&mut slab[at]).next;
        }
        None
    }
}

#[inline]
fn per_peer(lists: &mut Vec<List>, peer: u32) -> &mut List {
    let index = peer as usize;
    if lists.len() <= index {
        grow(lists, index);
    }
    &mut lists[index]
}

#[cold]
fn grow(lists: &mut Vec<List>, index: usize) {
    lists.resize(index + 1, List::EMPTY);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Entry {
        pattern: Pattern,
        sequence: u64,
        links: Links,
    }

    impl Posted for Entry {
        fn pattern(&self) -> &Pattern {
            &self.pattern
        }
        fn sequence(&mut self) -> &mut u64 {
            &mut self.sequence
        }
        fn links(&mut self) -> &mut Links {
            &mut self.links
        }
    }

    struct Waiting {
        envelope: Envelope,
        sender: PeerId,
        links: [Links; 2],
    }

    impl Unexpected for Waiting {
        fn envelope(&self) -> &Envelope {
            &self.envelope
        }
        fn sender(&self) -> PeerId {
            self.sender
        }
        fn all_links(&mut self) -> &mut Links {
            &mut self.links[0]
        }
        fn peer_links(&mut self) -> &mut Links {
            &mut self.links[1]
        }
    }

    fn pattern(from: Option<u32>, tag: u64, ignore: u64) -> Pattern {
        Pattern {
            class: Class::Tagged,
            from: from.map(PeerId),
            tag,
            ignore,
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Post(Option<u32>, u64, u64),
        Arrive(u32, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let peer = 0u32..3;
        let ignore = prop_oneof![Just(0u64), Just(1), Just(7)];
        prop_oneof![
            (proptest::option::of(peer.clone()), 0u64..4, ignore).prop_map(|(p, t, i)| Step::Post(p, t, i)),
            (peer, 0u64..4).prop_map(|(p, t)| Step::Arrive(p, t)),
        ]
    }

    proptest! {
        /// Both queues against plain vectors that are searched from the front.
        #[test]
        fn matching_is_that_of_two_plain_lists(steps in proptest::collection::vec(step(), 0..200)) {
            let (mut receives, mut posted) = (Slab::with_capacity(0), PostedQueue::new());
            let (mut messages, mut unexpected) = (Slab::with_capacity(0), UnexpectedQueue::new());
            let mut plain_receives: Vec<(Pattern, u32)> = Vec::new();
            let mut plain_messages: Vec<(PeerId, u64, u32)> = Vec::new();
            for step in steps {
                match step {
                    Step::Post(from, tag, ignore) => {
                        let pattern = pattern(from, tag, ignore);
                        let fits = |m: &(PeerId, u64, u32)| {
                            pattern.from.is_none_or(|p| p == m.0) && pattern.tag_fits(m.1)
                        };
                        let expected = plain_messages.iter().position(fits);
                        let found = unexpected.find(&mut messages, &pattern);
                        prop_assert_eq!(found, expected.map(|at| plain_messages[at].2));
                        if let (Some(at), Some(index)) = (expected, found) {
                            plain_messages.remove(at);
                            unexpected.remove(&mut messages, index);
                            messages.free(index);
                        } else {
                            let entry = Entry { pattern, sequence: 0, links: Links::NONE };
                            let index = receives.insert(entry);
                            posted.push(&mut receives, index);
                            plain_receives.push((pattern, index));
                        }
                    }
                    Step::Arrive(from, tag) => {
                        let from = PeerId(from);
                        let fits = |r: &(Pattern, u32)| {
                            r.0.from.is_none_or(|p| p == from) && r.0.tag_fits(tag)
                        };
                        let expected = plain_receives.iter().position(fits);
                        let found = posted.find(&mut receives, from, tag);
                        prop_assert_eq!(found, expected.map(|at| plain_receives[at].1));
                        if let (Some(at), Some(index)) = (expected, found) {
                            plain_receives.remove(at);
                            posted.remove(&mut receives, index);
                            receives.free(index);
                        } else {
                            let envelope = Envelope { class: Class::Tagged, tag, data: None };
                            let index = messages.insert(Waiting {
                                envelope,
                                sender: from,
                                links: [Links::NONE; 2],
                            });
                            unexpected.push(&mut messages, index);
                            plain_messages.push((from, tag, index));
                        }
                    }
                }
            }
            prop_assert_eq!(unexpected.is_empty(), plain_messages.is_empty());
        }
    }
}
