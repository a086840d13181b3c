//! Endpoints: places, states and the two halves.

use usb4_engine::{EpAddr, Slab};
use usb4_ring_abi::{Consumer, Rqe, Sqe};

use crate::ah::AhSlot;
use crate::cq::CONNECTED;
use crate::id::{next_generation, split};
use crate::memory::Domain;
use crate::qp::Told;
use crate::srq::Draws;
use crate::sync::{AtomicU32, Ordering};
use crate::{Access, ClientId, CqId, EndpointId, EndpointKind, EndpointState, Home, Lock, QpKind, QpState};

/// The endpoint is on the attention list.
pub(crate) const QUEUED: u32 = 1;
/// Entries wait on its submission queue for room on a link or a completion queue.
pub(crate) const RETRY: u32 = 2;
/// Messages wait for a receive and there was none: the client's next receive must be noticed.
pub(crate) const HUNGRY: u32 = 4;
/// Messages wait for a receive and the receive completion queue is full.
pub(crate) const STARVED: u32 = 8;
/// It went to error or was killed: its flows must be closed and its queues flushed.
pub(crate) const FAILED: u32 = 16;
/// A peer endpoint refused it as gone: the flow there must be closed.
pub(crate) const SWEEP: u32 = 32;

/// With `RETRY`: the first entry waits for a flow. Whoever waits is served in turn, from the attention list only.
pub(crate) const FLOWLESS: u32 = 64;

/// A queue pair in error: receives that its client posts are flushed.
pub(crate) const DRAINS: u32 = 128;

/// The first entry on its submission queue waits until all operations before it have completed. Set under the send completion
/// queue's lock.
pub(crate) const BARRIER: u32 = 256;

/// The client of a queue pair has been told that its peer is there: whoever comes again makes no news.
pub(crate) const TOLD: u32 = 512;

/// What an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What the ring interface has.
    Ring(EndpointKind),
    /// What verbs have.
    Qp(QpKind),
    /// A shared receive queue.
    Srq,
}

impl Kind {
    /// Whether it has one peer, given once.
    pub(crate) fn is_connected(self) -> bool {
        match self {
            Self::Ring(kind) => kind == EndpointKind::Connected,
            Self::Qp(kind) => kind != QpKind::Ud,
            Self::Srq => false,
        }
    }

    /// What its operations are marked with ([`crate::cq`]).
    pub(crate) fn op_flags(self) -> u8 {
        match self {
            Self::Ring(EndpointKind::Datagram) | Self::Srq => 0,
            Self::Ring(EndpointKind::Connected) => CONNECTED,
            Self::Qp(kind) => kind.op_flags(),
        }
    }
}

/// Place of an endpoint (opaque).
pub struct EndpointSlot<H: Home> {
    /// Raw name of the endpoint that is here, 0 if none.
    id: AtomicU32,
    state: AtomicU32,
    client: AtomicU32,
    /// Protection domain, 0 for all but queue pairs.
    pd: AtomicU32,
    /// What it does for peers, a byte each: what they may do to the memory it leads to, beside each region's own rights
    /// (bits of [`Access`]); marks of its operations ([`Kind::op_flags`], and a queue pair's life); reads and atomics of
    /// its peer that a queue pair serves at a time.
    serves: AtomicU32,
    /// Of the last endpoint here, and whether the place is taken (bit 16); used under the control lock only.
    place: AtomicU32,
    /// Raw name of the shared receive queue that its receives come from: its own, if it is one; 0 if they come from a queue
    /// of its own.
    srq: AtomicU32,
    /// What a queue pair has taken from it.
    pub(crate) draws: Draws,
    /// Shared receive queue: queue pairs that draw from it, and the limit below which its client is told, once. Written
    /// under its receiving half's lock.
    pub(crate) users: AtomicU32,
    pub(crate) limit: AtomicU32,
    /// What it waits for: the bits above.
    pub(crate) attention: AtomicU32,
    /// Operations of the endpoint that links have taken; written under its sending half's lock.
    begun: AtomicU32,
    /// Those of them that have completed; written under its send completion queue's lock.
    ended: AtomicU32,
    /// The sending half; locked before any link.
    pub(crate) tx: Lock<H::Lock, Option<Tx<H>>>,
    /// The receiving half; locked under a link.
    pub(crate) rx: Lock<H::Lock, Option<Rx<H>>>,
}

/// The sending half.
pub(crate) struct Tx<H: Home> {
    pub(crate) id: EndpointId,
    pub(crate) domain: Domain,
    pub(crate) kind: Kind,
    /// Marks of its operations.
    pub(crate) op_flags: u8,
    pub(crate) incarnation: u32,
    pub(crate) cq: CqId,
    /// Local key that stands for `LOCAL_PROCESS`; 0 if the device cannot reach the process.
    pub(crate) process_key: u32,
    /// Queue pairs: what bounds their flows, and the key that a datagram one shows if told to show its own.
    pub(crate) told: Told,
    pub(crate) qkey: u32,
    pub(crate) sq: Consumer<H::Queue, Sqe>,
    pub(crate) handles: Slab<AhSlot>,
}

/// The receiving half.
pub(crate) struct Rx<H: Home> {
    pub(crate) id: EndpointId,
    pub(crate) domain: Domain,
    pub(crate) kind: Kind,
    /// Marks of its operations.
    pub(crate) op_flags: u8,
    pub(crate) incarnation: u32,
    pub(crate) cq: CqId,
    pub(crate) process_key: u32,
    /// Connected: the only one that may send to it.
    pub(crate) peer: Option<EpAddr>,
    /// Datagram queue pairs: the key that messages must show.
    pub(crate) qkey: u32,
    pub(crate) rq: Consumer<H::Queue, Rqe>,
}

impl<H: Home> Default for EndpointSlot<H> {
    fn default() -> Self {
        Self {
            id: AtomicU32::new(0),
            state: AtomicU32::new(READY),
            client: AtomicU32::new(0),
            pd: AtomicU32::new(0),
            serves: AtomicU32::new(0),
            place: AtomicU32::new(0),
            srq: AtomicU32::new(0),
            draws: Draws::new(),
            users: AtomicU32::new(0),
            limit: AtomicU32::new(0),

            attention: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            tx: Lock::new(None),
            rx: Lock::new(None),
        }
    }
}

impl<H: Home> core::fmt::Debug for EndpointSlot<H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EndpointSlot")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

const TAKEN: u32 = 1 << 16;
const UNCONNECTED: u32 = 0;
const READY: u32 = 1;
const ERROR: u32 = 2;
const KILLED: u32 = 3;
const RESET: u32 = 4;
const INIT: u32 = 5;
const RECEIVING: u32 = 6;
const DRAINING: u32 = 7;
const SEND_ERROR: u32 = 8;

/// Rights of an endpoint that leaves them to the regions.
const ALL_RIGHTS: Access = Access::REMOTE_ALL;

impl<H: Home> EndpointSlot<H> {
    /// Whether the endpoint here has that name.
    #[inline]
    pub(crate) fn is(&self, id: EndpointId) -> bool {
        id.0 != 0 && self.id.load(Ordering::Acquire) == id.0
    }

    /// The name of the endpoint that is here.
    pub(crate) fn id(&self) -> Option<EndpointId> {
        match self.id.load(Ordering::Acquire) {
            0 => None,
            id => Some(EndpointId(id)),
        }
    }

    /// Takes the place for a new endpoint, under the control lock. `None` if it is taken.
    pub(crate) fn take_place(&self, index: u16) -> Option<EndpointId> {
        self.take(index, next_generation)
    }

    /// The same for a queue pair whose number is that of its place.
    pub(crate) fn take_special_place(&self, index: u16) -> Option<EndpointId> {
        // Nothing of the generation is in the number, and it is not 0.
        self.take(index, |generation| (generation | 0xff).wrapping_add(1).max(0x100))
    }

    fn take(&self, index: u16, next: impl Fn(u16) -> u16) -> Option<EndpointId> {
        let place = self.place.load(Ordering::Relaxed);
        if place & TAKEN != 0 {
            return None;
        }
        let (generation, _) = split(place);
        let generation = next(generation);
        self.place.store(u32::from(generation) | TAKEN, Ordering::Relaxed);
        Some(EndpointId::new(index, generation))
    }

    /// Gives the place back, under the control lock.
    pub(crate) fn leave_place(&self) {
        self.place
            .store(self.place.load(Ordering::Relaxed) & !TAKEN, Ordering::Relaxed);
    }

    /// Names the endpoint that has just been put here.
    pub(crate) fn open(
        &self,
        id: EndpointId,
        domain: Domain,
        kind: Kind,
        state: EndpointState,
        srq: Option<EndpointId>,
    ) {
        self.client.store(domain.client.0, Ordering::Relaxed);
        self.pd.store(domain.pd, Ordering::Relaxed);
        let rights = match kind {
            Kind::Ring(_) => ALL_RIGHTS,
            Kind::Qp(_) | Kind::Srq => Access::LOCAL,
        };
        let serves = [rights.bits(), kind.op_flags(), 0, 0];
        self.serves.store(u32::from_le_bytes(serves), Ordering::Relaxed);
        // Whether the place is on the attention list outlives the endpoint.
        self.attention.fetch_and(QUEUED, Ordering::Relaxed);
        self.srq.store(srq.map_or(0, |srq| srq.0), Ordering::Relaxed);
        self.draws.reset();
        self.users.store(0, Ordering::Relaxed);
        self.limit.store(0, Ordering::Relaxed);
        self.begun.store(0, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        self.state.store(code(state), Ordering::Relaxed);
        self.id.store(id.0, Ordering::Release);
    }

    /// Takes the name away; false if it was gone already.
    pub(crate) fn close(&self, id: EndpointId) -> bool {
        self.id
            .compare_exchange(id.0, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// A link has taken an operation. The caller holds the sending half's lock.
    #[inline]
    pub(crate) fn begin(&self) {
        let begun = self.begun.load(Ordering::Relaxed).wrapping_add(1);
        self.begun.store(begun, Ordering::Relaxed);
    }

    /// An operation a link had taken has completed. The caller holds the send completion queue's lock.
    #[inline]
    pub(crate) fn end(&self) {
        let ended = self.ended.load(Ordering::Relaxed).wrapping_add(1);
        self.ended.store(ended, Ordering::Relaxed);
    }

    /// Whether the endpoint may give a link another operation, of which `free` are left: no more are outstanding than
    /// that. So one endpoint gets half of a link, two a third each, and another always finds room.
    #[inline]
    pub(crate) fn has_share(&self, free: u32) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        begun.wrapping_sub(self.ended.load(Ordering::Relaxed)) < free
    }

    pub(crate) fn client(&self) -> ClientId {
        ClientId(self.client.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn domain(&self) -> Domain {
        Domain {
            client: self.client(),
            pd: self.pd.load(Ordering::Relaxed),
        }
    }

    /// Whether peers may do that, if the region's rights say so, too.
    #[inline]
    pub(crate) fn allows(&self, access: Access) -> bool {
        self.rights().contains(access)
    }

    /// What [`Self::allows`] says yes to.
    #[inline]
    pub(crate) fn rights(&self) -> Access {
        let [bits, ..] = self.serves.load(Ordering::Relaxed).to_le_bytes();
        Access::from_bits(bits).unwrap_or_default()
    }

    /// Marks of its operations.
    #[inline]
    pub(crate) fn marks(&self) -> u8 {
        let [_, marks, ..] = self.serves.load(Ordering::Relaxed).to_le_bytes();
        marks
    }

    /// Reads and atomics of its peer that are served at a time.
    pub(crate) fn reads(&self) -> u8 {
        let [_, _, reads, _] = self.serves.load(Ordering::Relaxed).to_le_bytes();
        reads
    }

    /// Changes what [`Self::rights`], [`Self::marks`] and [`Self::reads`] say; the caller holds the sending half's lock.
    pub(crate) fn serve(&self, rights: Access, marks: u8, reads: u8) {
        let serves = [rights.bits(), marks, reads, 0];
        self.serves.store(u32::from_le_bytes(serves), Ordering::Relaxed);
    }

    /// Which kind of queue pair is here, if it is one.
    #[inline]
    pub(crate) fn qp_kind(&self) -> Option<QpKind> {
        QpKind::of(self.marks())
    }

    /// The shared receive queue that a queue pair draws from.
    pub(crate) fn draws_from(&self) -> Option<EndpointId> {
        match self.srq.load(Ordering::Relaxed) {
            0 => None,
            srq => Some(EndpointId(srq)),
        }
    }

    /// Whether it is the shared receive queue of that name.
    pub(crate) fn is_srq(&self, id: EndpointId) -> bool {
        self.draws_from() == Some(id)
    }

    /// Whether no operation is with a link.
    pub(crate) fn is_drained(&self) -> bool {
        self.begun.load(Ordering::Relaxed) == self.ended.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn state(&self) -> EndpointState {
        match self.state.load(Ordering::Acquire) {
            UNCONNECTED => EndpointState::Unconnected,
            READY => EndpointState::Ready,
            ERROR => EndpointState::Error,
            RESET => EndpointState::Reset,
            INIT => EndpointState::Init,
            RECEIVING => EndpointState::Receiving,
            DRAINING => EndpointState::Draining,
            SEND_ERROR => EndpointState::SendError,
            _ => EndpointState::Killed,
        }
    }

    /// Whether all that is posted on its queues is flushed.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state(), EndpointState::Error | EndpointState::Killed)
    }

    /// A queue pair's state.
    pub(crate) fn qp_state(&self) -> QpState {
        match self.state() {
            EndpointState::Reset | EndpointState::Unconnected => QpState::Reset,
            EndpointState::Init => QpState::Init,
            EndpointState::Receiving => QpState::Rtr,
            EndpointState::Ready => QpState::Rts,
            EndpointState::Draining => QpState::Sqd,
            EndpointState::SendError => QpState::Sqe,
            EndpointState::Error | EndpointState::Killed => QpState::Err,
        }
    }

    /// One state to another; false if it was not in the first.
    pub(crate) fn change(&self, from: EndpointState, to: EndpointState) -> bool {
        self.state
            .compare_exchange(code(from), code(to), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Any state but killed to another; false if it was killed.
    pub(crate) fn force(&self, to: EndpointState) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        while state != KILLED {
            match self
                .state
                .compare_exchange(state, code(to), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// A queue pair that receives to error; false if it did not.
    pub(crate) fn fail_qp(&self) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        while matches!(state, READY | RECEIVING | DRAINING | SEND_ERROR) {
            match self
                .state
                .compare_exchange(state, ERROR, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Any state to killed; false if it was that already.
    pub(crate) fn kill(&self) -> bool {
        self.state.swap(KILLED, Ordering::AcqRel) != KILLED
    }

    /// Ready to error; false if it was not ready.
    pub(crate) fn fail(&self) -> bool {
        self.state
            .compare_exchange(READY, ERROR, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

fn code(state: EndpointState) -> u32 {
    match state {
        EndpointState::Unconnected => UNCONNECTED,
        EndpointState::Ready => READY,
        EndpointState::Error => ERROR,
        EndpointState::Killed => KILLED,
        EndpointState::Reset => RESET,
        EndpointState::Init => INIT,
        EndpointState::Receiving => RECEIVING,
        EndpointState::Draining => DRAINING,
        EndpointState::SendError => SEND_ERROR,
    }
}
