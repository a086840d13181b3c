//! What each control message does.

use usb4_wire::{Control, ControlBody, ControlKind, MAX_ACK_DELAY_LIMIT_US, RING_RESERVE, Reason};

use super::{DownReason, Identity, PeerInfo, Phase, RailFsm, Session, retry};
use crate::Nanos;

/// What makes a session begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The peer has accepted our offer.
    Accepted,
    /// The peer has accepted us, and its paths are up.
    Followed,
}

impl RailFsm {
    pub(super) fn handle(&mut self, now: Nanos, message: &Control, rng: &mut impl FnMut() -> u64) {
        let body = &message.body;
        if self.is_own(body) || (message.kind == ControlKind::Offer && body.nonce == 0) {
            return;
        }
        match (self.phase, message.kind) {
            (_, ControlKind::Bye) => self.on_bye(now, body, rng),
            (Phase::Farewell { .. }, ControlKind::ByeAck) => self.on_bye_ack(body),
            (Phase::Running, ControlKind::Offer) => self.on_offer(now, body),
            (Phase::Running, ControlKind::Accept) => self.on_accept(now, body, rng),
            (Phase::Running, ControlKind::PathsUp) => self.on_paths_up(now, body, rng),
            (Phase::Running, ControlKind::PathsUpAck) => self.on_paths_up_ack(body),
            (Phase::Running, ControlKind::Reset) => self.on_reset(now, body),
            (Phase::Running, ControlKind::Refuse) => self.on_refuse(now, body),
            // While it says farewell a side agrees to nothing new, nor does it confirm what it had.
            (Phase::Farewell { .. } | Phase::Over, _) | (Phase::Running, ControlKind::ByeAck) => {}
        }
    }

    /// One of our own messages, come back.
    fn is_own(&self, body: &ControlBody) -> bool {
        let own = |identity: Identity| identity.nonce == body.nonce;
        own(self.next) || self.session.is_some_and(|session| own(session.mine))
    }

    /// Whether a message belongs to the session: only its two ends know both nonces.
    fn in_session(&self, body: &ControlBody) -> bool {
        self.session
            .is_some_and(|session| session.mine.nonce == body.echo && session.peer_nonce == body.nonce)
    }

    /// Answers an offer. It may be old: nothing else happens, apart from our own offer coming sooner.
    fn on_offer(&mut self, now: Nanos, body: &ControlBody) {
        let identity = match &self.session {
            Some(session) if session.peer_nonce == body.nonce => session.mine,
            _ => self.next,
        };
        if let Some(reason) = self.objection(body) {
            return self.refuse(now, body, identity, reason);
        }
        self.push(ControlKind::Accept, identity, body.nonce, None);
        if self.session.is_none() {
            self.offer.hurry(now);
        }
    }

    /// Why there can be no session with whoever says this: the home does not want it; or two hosts of one name could not
    /// tell their endpoints apart, and what is for this host itself would go to the other one.
    fn objection(&self, body: &ControlBody) -> Option<Reason> {
        if self.barred || body.node_id == self.local.node {
            return Some(Reason::NotAllowed);
        }
        self.common_version(body).is_none().then_some(Reason::Version)
    }

    fn refuse(&mut self, now: Nanos, body: &ControlBody, identity: Identity, reason: Reason) {
        self.push(ControlKind::Refuse, identity, body.nonce, Some(reason));
        if self.session.is_none() {
            self.note_refusal(body, reason);
            self.offer.rest(now);
        }
    }

    fn note_refusal(&mut self, body: &ControlBody, reason: Reason) {
        self.refused = Some(reason);
        self.refused_versions = (body.ver_min, body.ver_max);
    }

    fn on_accept(&mut self, now: Nanos, body: &ControlBody, rng: &mut impl FnMut() -> u64) {
        if self.offer.is_on() && body.echo == self.next.nonce {
            if let Some(reason) = self.objection(body) {
                return self.refuse(now, body, self.next, reason);
            }
            self.begin(body, Cause::Accepted, rng);
        }
    }

    fn on_paths_up(&mut self, now: Nanos, body: &ControlBody, rng: &mut impl FnMut() -> u64) {
        if !self.in_session(body) && !self.follow(now, body, rng) {
            return;
        }
        let Some(session) = &mut self.session else {
            return;
        };
        session.peer_up = true;
        self.withdrawn = 0;
        let (mine, peer) = (session.mine, session.peer_nonce);
        self.push(ControlKind::PathsUpAck, mine, peer, None);
        // The peer may be waiting for nothing but ours.
        self.announce.hurry(now);
    }

    /// A PATHS_UP from outside the session: it may begin a new one, or show that this one cannot be. True if a new
    /// one has begun.
    fn follow(&mut self, now: Nanos, body: &ControlBody, rng: &mut impl FnMut() -> u64) -> bool {
        if body.echo == self.next.nonce {
            return self.begin(body, Cause::Followed, rng);
        }
        // The identity we have paired with is in a session with another one of ours, from an earlier attempt; each
        // is in one session only.
        if self
            .session
            .is_some_and(|session| !session.peer_up && session.peer_nonce == body.nonce)
        {
            self.abandon(now);
        }
        false
    }

    fn on_paths_up_ack(&mut self, body: &ControlBody) {
        if self.in_session(body) {
            if let Some(session) = &mut self.session {
                session.acked = true;
            }
            self.announce.stop();
        }
    }

    /// The peer leaves. It is told that we have stopped once our paths are off, so that nothing of ours meets a
    /// path that is gone. It is the peer if it echoes a nonce of ours: that of the session, or the next one, when
    /// it has left our session for another that we had no time to follow. A BYE of anyone else, such as an earlier
    /// life of the peer, is acknowledged at once to let it go.
    fn on_bye(&mut self, now: Nanos, body: &ControlBody, rng: &mut impl FnMut() -> u64) {
        let next = body.echo == self.next.nonce || (body.echo == self.withdrawn && self.withdrawn != 0);
        let current = self
            .session
            .is_some_and(|session| session.mine.nonce == body.echo);
        if next {
            // Once only: it must not end the next session when it is repeated.
            self.next = Identity::draw(self.join, rng);
            self.withdrawn = 0;
        }
        match self.phase {
            Phase::Running if next || current => {
                self.drop_session(DownReason::PeerClosed);
                self.offer.start(now.saturating_add(retry::FIRST));
                self.bye_from = Some(body.nonce);
            }
            Phase::Farewell { .. } if next || current => {
                // Both leave; neither sends any more.
                self.push(ControlKind::ByeAck, Identity::default(), body.nonce, None);
                self.end_farewell();
            }
            _ if self.session.is_none() => self.bye_from = Some(body.nonce),
            _ => self.push(ControlKind::ByeAck, Identity::default(), body.nonce, None),
        }
    }

    fn on_bye_ack(&mut self, body: &ControlBody) {
        if self
            .session
            .is_some_and(|session| session.mine.nonce == body.echo)
        {
            self.end_farewell();
        }
    }

    /// The peer says that it does not know the tag our frames carry. Only the peer of a session that is up has
    /// seen that tag on frames, and it says so only after it has lost the session.
    fn on_reset(&mut self, now: Nanos, body: &ControlBody) {
        let ours = |session: &Session| session.up && session.info.tx_tag == body.tag;
        if self.session.as_ref().is_some_and(ours) {
            self.drop_session(DownReason::PeerReset);
            self.offer.start(now);
        }
    }

    fn on_refuse(&mut self, now: Nanos, body: &ControlBody) {
        if self.offer.is_on() && body.echo == self.next.nonce {
            self.note_refusal(body, Reason::from_code(body.reason).unwrap_or(Reason::NotAllowed));
            self.offer.rest(now);
        }
    }

    /// Begins the session our next identity was drawn for. False if the peer's parameters allow none.
    fn begin(&mut self, body: &ControlBody, cause: Cause, rng: &mut impl FnMut() -> u64) -> bool {
        let mine = self.next;
        let Some(info) = self.peer_info(body, mine) else {
            return false;
        };
        self.session_down(DownReason::Replaced);
        self.session = Some(Session {
            mine,
            peer_nonce: body.nonce,
            info,
            peer_up: false,
            acked: false,
            up: false,
            silence: None,
        });
        self.next = Identity::draw(self.join, rng);
        self.refused = None;
        self.offer.stop();
        self.announce.stop();
        // A peer that made us follow has left the old session and sends nothing, so the paths can go off and on,
        // which also clears what its restart may have wedged. A peer that has merely accepted our offer may still
        // be sending in the old session, and must not meet a path that is off.
        self.paths.want_on(info.tx_hop, cause == Cause::Followed);
        true
    }

    fn peer_info(&self, body: &ControlBody, mine: Identity) -> Option<PeerInfo> {
        let possible = body.tag != 0
            && body.nonce != 0
            && body.ring_size > RING_RESERVE
            && body.max_ack_delay_us <= MAX_ACK_DELAY_LIMIT_US;
        if !possible || self.objection(body).is_some() {
            return None;
        }
        Some(PeerInfo {
            node: body.node_id,
            version: self.common_version(body)?,
            tx_tag: body.tag,
            rx_tag: mine.tag,
            tx_hop: body.tx_hop,
            ring_size: u16::try_from(body.ring_size).unwrap_or(u16::MAX),
            max_ack_delay: Nanos::from(body.max_ack_delay_us).saturating_mul(1_000),
            features: body.features & self.local.features,
            max_flows: body.max_flows,
            max_reads: body.max_reads,
            join: body.join,
            shown: mine.join,
        })
    }

    /// The highest version both sides speak.
    fn common_version(&self, body: &ControlBody) -> Option<u8> {
        let lowest = body.ver_min.max(self.local.ver_min);
        let highest = body.ver_max.min(self.local.ver_max);
        (lowest <= highest).then_some(highest)
    }
}
