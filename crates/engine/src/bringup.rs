//! Bringing a rail up and down: the state machine behind the control channel.
//!
//! Both sides run the same machine. Each draws a tag (which the peer's frames must carry) and a nonce for the
//! session to come, its *next identity*, and offers it until there is a session:
//!
//! ```text
//!   A                                    B
//!   OFFER(a)            ---------------->          a, b: nonces; every message has the sender's
//!       <----------------  ACCEPT(b, echo a)       tag, HopID, ring size and limits
//!   enable paths to B's HopID
//!   PATHS_UP(a, echo b) ---------------->          until acknowledged
//!       <------------  PATHS_UP_ACK(b, echo a)
//!                                        enable paths to A's HopID
//!       <-------------  PATHS_UP(b, echo a)        A: up
//!   PATHS_UP_ACK(a, echo b) ------------>          B: up since its own paths are
//! ```
//!
//! A session is a pair of identities. It begins in one of two ways only: by an ACCEPT that echoes the nonce of
//! our running offer, or by a PATHS_UP that echoes our next nonce. Both prove that the sender has seen a nonce
//! which we drew after the last session began, so nothing recorded earlier can begin or replace a session. An
//! OFFER proves nothing and changes nothing: it is answered with the current identity if it comes from the
//! session's peer, with the next identity otherwise. That is how a peer that has restarted takes over.
//!
//! A side sends data only while [`Action::Up`] holds: its own paths are on and the peer's PATHS_UP for this very
//! session has come.
//!
//! Whoever loses its session offers; the other follows when the echo comes. A session the peer does not confirm
//! ([`ControlKind::PathsUp`] unanswered) is given up, and offering begins anew. Nothing is ever given up for good.

mod handshake;
mod outbox;
mod paths;
mod retry;

use usb4_wire::{Control, ControlBody, ControlKind, NodeId, Reason};

use crate::Nanos;
use outbox::{Message, Outbox};
use paths::{PathOrder, PathResult, Paths};
use retry::Retry;

/// Interval between BYEs, and how many there are (design, section 7: 3 x 300 ms).
const BYE_INTERVAL: Nanos = 300_000_000;
const BYES: u8 = 3;

/// Unanswered PATHS_UPs after which the peer is taken to have another session in mind; about 3 s.
const PATHS_UP_TRIES: u8 = 5;

/// Longest time between two calls of [`RailFsm::silent`] that are about the same silence.
const SAME_SILENCE: Nanos = 5_000_000_000;

/// How long a peer that is there may stay silent. It may have been stopped, so that it answers here first.
const SILENT_PATIENCE: Nanos = 5_000_000_000;

/// Least time between two RESETs.
const RESET_INTERVAL: Nanos = 100_000_000;

/// What this side brings into a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalInfo {
    /// This host.
    pub node: NodeId,
    /// Lowest frame version spoken.
    pub ver_min: u8,
    /// Highest frame version spoken.
    pub ver_max: u8,
    /// HopID on which this side's frames leave.
    pub tx_hop: u32,
    /// Slots of the receive ring; more than [`usb4_wire::RING_RESERVE`].
    pub ring_size: u32,
    /// Longest time this side holds an acknowledgement back, in microseconds.
    pub max_ack_delay_us: u32,
    /// Features wanted.
    pub features: u32,
    /// Incoming flows this side can hold.
    pub max_flows: u32,
    /// Reads and atomics this side answers at a time.
    pub max_reads: u32,
}

/// What a session was agreed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The peer, as it calls itself: nothing proves it.
    pub node: NodeId,
    /// Frame version of the session.
    pub version: u8,
    /// The peer's tag, for frames sent.
    pub tx_tag: u64,
    /// This side's tag, for frames received.
    pub rx_tag: u64,
    /// HopID on which the peer's frames leave.
    pub tx_hop: u32,
    /// Slots of the peer's receive ring.
    pub ring_size: u16,
    /// Longest time the peer holds an acknowledgement back.
    pub max_ack_delay: Nanos,
    /// Features in force: wanted by both.
    pub features: u32,
    /// Incoming flows the peer can hold.
    pub max_flows: u32,
    /// Reads and atomics the peer answers at a time.
    pub max_reads: u32,
    /// The nonce the peer says it has received on another rail, 0 if none. It proves that this rail belongs to
    /// the same link if, and only if, this side has sent that nonce there.
    pub join: u64,
    /// The nonce this side has shown in return ([`RailFsm::set_join`]), 0 if none. Both are fixed for the session,
    /// so that both sides attach the rail to the same link: to one of its own unless both nonces are shown; else
    /// to the link over which they were exchanged. Whoever finds that link dead, or the peer's nonce wrong, does
    /// not attach the rail but withdraws: `set_join(0)` begins another session.
    pub shown: u64,
}

/// Why a rail went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DownReason {
    /// A new session takes this one's place: the peer has restarted, or one side joins another link.
    Replaced,
    /// The peer said BYE.
    PeerClosed,
    /// The peer does not know the session any more.
    PeerReset,
    /// [`RailFsm::close`] or [`RailFsm::abort`] was called.
    Closed,
}

/// What the home has to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a control message to the peer.
    Send(Control),
    /// Reserve the peer's HopID, start rings, prime the receive ring, enable the paths; then call
    /// [`RailFsm::paths_enabled`], or [`RailFsm::paths_disabled`] if that cannot be done now.
    EnablePaths {
        /// HopID on which the peer's frames leave.
        peer_hop: u32,
    },
    /// Let the TX ring run dry (bounded), disable the paths while the receive ring is still replenished, stop the
    /// rings, then call [`RailFsm::paths_disabled`].
    DisablePaths,
    /// Data may be sent: attach the rail.
    Up(PeerInfo),
    /// No frame may be posted any more: detach the rail, let the TX ring run dry (bounded). The receive ring is
    /// replenished as before, until the paths are disabled: the peer may not know yet.
    Down(DownReason),
}

/// How far a rail has come, for status tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailState {
    /// Offering a session; nobody has accepted.
    Offering,
    /// The peer, or this side, refuses: offered again from time to time.
    Refused(Reason),
    /// A session is agreed; the home enables the paths.
    Enabling,
    /// The paths are on; waiting for the peer's.
    WaitingForPeer,
    /// Data may flow.
    Up,
    /// Saying BYE.
    Closing,
    /// Over.
    Closed,
}

/// What one side is known by in one session.
#[derive(Clone, Copy, Debug, Default)]
struct Identity {
    tag: u64,
    nonce: u64,
    /// The join nonce shown in all of its messages.
    join: u64,
}

impl Identity {
    fn draw(join: u64, rng: &mut impl FnMut() -> u64) -> Self {
        Self {
            // 0 means "none" on the wire.
            tag: rng().max(1),
            nonce: rng().max(1),
            join,
        }
    }
}

/// A session, agreed and perhaps up.
#[derive(Clone, Copy, Debug)]
struct Session {
    mine: Identity,
    peer_nonce: u64,
    info: PeerInfo,
    /// The peer's PATHS_UP has come.
    peer_up: bool,
    /// The peer has acknowledged ours.
    acked: bool,
    /// The home has been told.
    up: bool,
    /// The peer does not answer on the rail.
    silence: Option<Silence>,
}

/// A peer that does not answer on a rail that is up, and what it says over the control channel.
#[derive(Clone, Copy, Debug)]
struct Silence {
    /// When the home last said so.
    told: Nanos,
    /// When the peer had answered here, as far as was seen.
    answered: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// BYEs are being sent.
    Farewell {
        sent: u8,
        next: Nanos,
    },
    Over,
}

/// The bring-up state machine of one rail. Feed it control messages, the home's answers and the time; after each
/// call, carry out what [`RailFsm::poll_output`] yields, until it yields nothing.
#[derive(Debug)]
pub struct RailFsm {
    local: LocalInfo,
    join: u64,
    phase: Phase,
    /// Identity of the next session; has been in no session yet.
    next: Identity,
    /// Nonce of the last identity that was withdrawn; the peer may have begun a session with it.
    withdrawn: u64,
    session: Option<Session>,
    offer: Retry,
    announce: Retry,
    refused: Option<Reason>,
    /// Lowest and highest version that whoever was refused, or refuses, has said it speaks.
    refused_versions: (u8, u8),
    /// The home does not let in whoever says the messages to come.
    barred: bool,
    paths: Paths,
    /// Nonce of the peer's BYE, to be acknowledged once our paths are off.
    bye_from: Option<u64>,
    reset_at: Option<Nanos>,
    down: Option<DownReason>,
    /// The home has not been told yet that the session is up.
    tell_up: bool,
    outbox: Outbox,
}

impl RailFsm {
    /// Begins to offer. `rng` yields unpredictable 64-bit values.
    // Inlined it would be on its caller's stack twice, more than a kernel stack frame may take.
    #[inline(never)]
    pub fn new(now: Nanos, local: LocalInfo, rng: &mut impl FnMut() -> u64) -> Self {
        let mut fsm = Self {
            local,
            join: 0,
            phase: Phase::Running,
            next: Identity::draw(0, rng),
            withdrawn: 0,
            session: None,
            offer: Retry::default(),
            announce: Retry::default(),
            refused: None,
            refused_versions: (0, 0),
            barred: false,
            paths: Paths::default(),
            bye_from: None,
            reset_at: None,
            down: None,
            tell_up: false,
            outbox: Outbox::default(),
        };
        fsm.offer.start(now);
        fsm.settle(now);
        fsm
    }

    /// What to do next. Messages come before path orders, [`Action::Down`] before everything.
    pub fn poll_output(&mut self) -> Option<Action> {
        if let Some(reason) = self.down.take() {
            return Some(Action::Down(reason));
        }
        if let Some(message) = self.outbox.pop() {
            return Some(Action::Send(self.control(message)));
        }
        if let Some(order) = self.paths.take_order() {
            return Some(match order {
                PathOrder::Enable(peer_hop) => Action::EnablePaths { peer_hop },
                PathOrder::Disable => Action::DisablePaths,
            });
        }
        let tell_up = core::mem::take(&mut self.tell_up);
        let session = self.session.as_ref().filter(|_| tell_up)?;
        Some(Action::Up(session.info))
    }

    /// A control message has come from the peer. Messages that make no sense now are ignored.
    pub fn on_control(&mut self, now: Nanos, message: &Control, rng: &mut impl FnMut() -> u64) {
        self.handle(now, message, rng);
        self.settle(now);
    }

    /// Whether the home lets in the host that says the messages to come; it does at first. While it does not, no session
    /// begins: offers are refused as not allowed. One that there is stays: [`RailFsm::close`] ends it.
    pub fn admit(&mut self, admitted: bool) {
        self.barred = !admitted;
    }

    /// When [`RailFsm::on_timer`] is to be called.
    pub fn deadline(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Running => match (self.offer.deadline(), self.announce.deadline()) {
                (Some(offer), Some(announce)) => Some(offer.min(announce)),
                (offer, announce) => offer.or(announce),
            },
            Phase::Farewell { next, .. } => Some(next),
            Phase::Over => None,
        }
    }

    /// Time has passed.
    pub fn on_timer(&mut self, now: Nanos) {
        self.settle(now);
    }

    /// The home has carried out [`Action::EnablePaths`].
    pub fn paths_enabled(&mut self, now: Nanos) {
        self.paths.on_enabled();
        self.settle(now);
    }

    /// The home has carried out [`Action::DisablePaths`]; or it could not carry out [`Action::EnablePaths`], and
    /// the session is offered again later.
    pub fn paths_disabled(&mut self, now: Nanos) {
        if self.paths.on_disabled() == PathResult::Failed && self.phase == Phase::Running {
            self.drop_session(DownReason::Replaced);
            self.offer.start(now.saturating_add(retry::FIRST));
        }
        self.settle(now);
    }

    /// The join nonce received on an established rail (0: none any more): a session that shows it is offered. One
    /// that is up stays so until the peer has accepted.
    pub fn set_join(&mut self, now: Nanos, nonce: u64, rng: &mut impl FnMut() -> u64) {
        if self.phase != Phase::Running || self.join == nonce {
            return;
        }
        self.join = nonce;
        // What an identity shows never changes, so that both sides agree on what a session has shown.
        self.withdrawn = self.next.nonce;
        self.next = Identity::draw(nonce, rng);
        if self.session.is_some() {
            self.offer.start(now);
        } else {
            self.offer.hurry(now);
        }
        self.settle(now);
    }

    /// A frame with an unknown tag has arrived: tells the peer, at most ten times a second, that the session it
    /// believes in is over.
    pub fn unknown_tag(&mut self, now: Nanos, tag: u64) {
        let current = self.session.is_some_and(|session| session.mine.tag == tag);
        let recent = self
            .reset_at
            .is_some_and(|at| now < at.saturating_add(RESET_INTERVAL));
        if self.phase == Phase::Running && !current && !recent {
            self.reset_at = Some(now);
            let unknown = Identity {
                tag,
                ..Identity::default()
            };
            self.push(ControlKind::Reset, unknown, 0, None);
        }
    }

    /// The peer leaves probes on the rail unanswered: to be called again and again while that goes on, more often than
    /// every 5 s. The peer is asked here, for as long as it takes. Once it has answered and is still silent on the rail 5 s
    /// later, paths or rings have failed, and the rail is closed; another machine may take its place. A peer that answers
    /// neither here nor there may have been stopped, and is waited for.
    pub fn silent(&mut self, now: Nanos) {
        let running = self.phase == Phase::Running;
        let Some(session) = self.session.as_mut().filter(|session| session.up && running) else {
            return;
        };
        let known = session
            .silence
            .filter(|silence| now.saturating_sub(silence.told) < SAME_SILENCE);
        let answered = match known {
            Some(silence) if session.acked => Some(silence.answered.unwrap_or(now)),
            Some(_) => None,
            None => {
                session.acked = false;
                self.announce.start(now);
                None
            }
        };
        session.silence = Some(Silence { told: now, answered });
        if answered.is_some_and(|at| now.saturating_sub(at) >= SILENT_PATIENCE) {
            return self.close(now);
        }
        self.settle(now);
    }

    /// Takes the rail down for good: BYE, three times at most, then the paths go off. [`RailFsm::is_closed`] tells
    /// when that is done.
    pub fn close(&mut self, now: Nanos) {
        if self.phase != Phase::Running {
            return;
        }
        if self.session.is_none() {
            return self.abort(now);
        }
        self.session_down(DownReason::Closed);
        self.offer.stop();
        self.announce.stop();
        self.outbox.clear();
        self.phase = Phase::Farewell { sent: 0, next: now };
        self.settle(now);
    }

    /// Takes the rail down without a word: the cable is gone.
    pub fn abort(&mut self, now: Nanos) {
        self.drop_session(DownReason::Closed);
        self.offer.stop();
        self.outbox.clear();
        self.phase = Phase::Over;
        self.settle(now);
    }

    /// Whether the rail is closed and its paths are off: the machine can be dropped.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Over && self.paths.is_off() && self.down.is_none()
    }

    /// How far the rail has come.
    pub fn state(&self) -> RailState {
        match (self.phase, &self.session) {
            (Phase::Farewell { .. }, _) => RailState::Closing,
            (Phase::Over, _) => RailState::Closed,
            (Phase::Running, Some(session)) if session.up => RailState::Up,
            (Phase::Running, Some(_)) if self.paths.ready() => RailState::WaitingForPeer,
            (Phase::Running, Some(_)) => RailState::Enabling,
            (Phase::Running, None) => self.refused.map_or(RailState::Offering, RailState::Refused),
        }
    }

    /// Lowest and highest frame version that the peer has said it speaks, in [`RailState::Refused`].
    pub fn refused_versions(&self) -> (u8, u8) {
        self.refused_versions
    }

    /// Brings everything in line with the state reached: timers that have expired, news for the home.
    fn settle(&mut self, now: Nanos) {
        match self.phase {
            Phase::Running => self.settle_running(now),
            Phase::Farewell { sent, next } => self.settle_farewell(now, sent, next),
            Phase::Over => {}
        }
        if self.paths.is_off() {
            if let Some(nonce) = self.bye_from.take() {
                self.push(ControlKind::ByeAck, Identity::default(), nonce, None);
            }
        }
    }

    fn settle_running(&mut self, now: Nanos) {
        self.settle_session(now);
        if self.offer.expire(now, self.next.nonce) {
            self.push(ControlKind::Offer, self.next, 0, None);
        }
    }

    fn settle_session(&mut self, now: Nanos) {
        let Some(session) = self.session.as_mut().filter(|_| self.paths.ready()) else {
            return;
        };
        if session.peer_up && !session.up {
            session.up = true;
            self.tell_up = true;
        }
        if session.acked {
            return;
        }
        if !self.announce.is_on() {
            self.announce.start(now);
        }
        let (mine, peer) = (session.mine, session.peer_nonce);
        let unheard = !session.peer_up && self.announce.tries() >= PATHS_UP_TRIES;
        if self.announce.expire(now, mine.nonce) {
            if unheard {
                return self.abandon(now);
            }
            self.push(ControlKind::PathsUp, mine, peer, None);
        }
    }

    fn settle_farewell(&mut self, now: Nanos, sent: u8, next: Nanos) {
        let Some(session) = self.session else {
            self.phase = Phase::Over;
            return;
        };
        if now < next {
            return;
        }
        if sent >= BYES {
            return self.end_farewell();
        }
        self.push(
            ControlKind::Bye,
            session.mine,
            session.peer_nonce,
            Some(Reason::Shutdown),
        );
        self.phase = Phase::Farewell {
            sent: sent.saturating_add(1),
            next: now.saturating_add(BYE_INTERVAL),
        };
    }

    fn end_farewell(&mut self) {
        self.drop_session(DownReason::Closed);
        self.phase = Phase::Over;
    }

    /// Gives up a session that never came up, and offers anew. The paths stay on until another session needs others:
    /// should the peer take a late PATHS_UP for a good one, its frames still meet a path.
    fn abandon(&mut self, now: Nanos) {
        self.session = None;
        self.announce.stop();
        self.offer.start(now);
    }

    /// Ends the session, if there is one; its paths go off.
    fn drop_session(&mut self, reason: DownReason) {
        self.session_down(reason);
        self.session = None;
        self.announce.stop();
        self.paths.want_off();
    }

    /// Tells the home that the session is not up any more, if it was told that it is.
    fn session_down(&mut self, reason: DownReason) {
        if let Some(session) = &mut self.session {
            if session.up {
                session.up = false;
                // The home need not hear of a session it has not been told of yet.
                if !core::mem::take(&mut self.tell_up) {
                    self.down = Some(reason);
                }
            }
        }
    }

    fn push(&mut self, kind: ControlKind, mine: Identity, echo: u64, reason: Option<Reason>) {
        self.outbox.push(Message {
            kind,
            tag: mine.tag,
            nonce: mine.nonce,
            join: mine.join,
            echo,
            reason: reason.map_or(0, Reason::code),
        });
    }

    fn control(&self, message: Message) -> Control {
        let local = &self.local;
        Control {
            kind: message.kind,
            body: ControlBody {
                ver_min: local.ver_min,
                ver_max: local.ver_max,
                node_id: local.node,
                tag: message.tag,
                nonce: message.nonce,
                echo: message.echo,
                join: message.join,
                tx_hop: local.tx_hop,
                ring_size: local.ring_size,
                max_ack_delay_us: local.max_ack_delay_us,
                features: local.features,
                max_flows: local.max_flows,
                max_reads: local.max_reads,
                reason: message.reason,
            },
        }
    }
}

#[cfg(test)]
mod tests;
