//! Queue pairs: kinds, states and what changes them.
//!
//! To links and queues a queue pair is an endpoint like others. What is different on the way out is in `qp_send.rs`, on the
//! way in in `qp_receive.rs`.

use usb4_engine::{EpAddr, Limits, Nanos, NodeId, Slab};
use usb4_ring_abi::{GeometryError, QueueGeometry, Rqe, Slots, Sqe};

use crate::ah::{Ah, AhSlot};
use crate::cq::LIFE;
use crate::endpoint::{DRAINS, EndpointSlot, FAILED, Kind, QUEUED, RETRY};
use crate::memory::Domain;
use crate::sync::Ordering;
use crate::{
    Access, ClientId, CqId, Device, DeviceError, EndpointConfig, EndpointId, EndpointKind, EndpointState,
    Home, LinkId, ListWord,
};

/// What a queue pair can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: what the peer does not take is dropped.
    Uc,
    /// Unreliable datagram: SEND only, to anybody, through address handles.
    Ud,
}

impl QpKind {
    /// The mark of its operations: within [`crate::cq::QP`], not 0.
    pub(crate) fn op_flags(self) -> u8 {
        match self {
            Self::Rc => 1 << 3,
            Self::Uc => 2 << 3,
            Self::Ud => 3 << 3,
        }
    }

    /// The kind that made the mark.
    #[inline]
    pub(crate) fn of(op_flags: u8) -> Option<Self> {
        match op_flags >> 3 & 3 {
            1 => Some(Self::Rc),
            2 => Some(Self::Uc),
            3 => Some(Self::Ud),
            _ => None,
        }
    }
}

/// States of a queue pair, as InfiniBand has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Made, or reset: its queues are empty.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send, too.
    Rts,
    /// What has been sent is finished, nothing new is.
    Sqd,
    /// An error in sending: sends are flushed. Not of reliable connections.
    Sqe,
    /// Everything is flushed.
    Err,
}

impl QpState {
    /// Whether a queue pair can be told to go from this state to that one.
    fn can_become(self, to: Self) -> bool {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        match to {
            Reset => true,
            Err => self != Reset,
            Init => matches!(self, Reset | Init),
            Rtr => self == Init,
            Rts => matches!(self, Rtr | Rts | Sqd | Sqe),
            Sqd => matches!(self, Rts | Sqd),
            Sqe => false,
        }
    }

    fn as_endpoint(self) -> EndpointState {
        match self {
            Self::Reset => EndpointState::Reset,
            Self::Init => EndpointState::Init,
            Self::Rtr => EndpointState::Receiving,
            Self::Rts => EndpointState::Ready,
            Self::Sqd => EndpointState::Draining,
            Self::Sqe => EndpointState::SendError,
            Self::Err => EndpointState::Error,
        }
    }
}

/// What no completion tells, of a queue pair or a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// It is in error because its queues were corrupted, or its link is gone.
    Fatal,
    /// It is in error because its peer has asked for something that it does not offer.
    Request,
    /// It is in error because its peer has asked for memory it has no right to.
    Access,
    /// Its peer is there, and it is not told yet to send.
    Established,
    /// It is told to finish sending, and has.
    Drained,
    /// It is in error, and what it has taken from its shared receive queue has completed: it takes no more.
    LastReceive,
    /// A shared receive queue has fewer receives than its limit.
    Limit,
    /// A shared receive queue was corrupted.
    Corrupt,
}

/// A queue pair to be created.
#[derive(Debug)]
pub struct QpConfig<H: Home> {
    /// What it can do.
    pub kind: QpKind,
    /// It is to have that number, 0 or 1, which no other gets: of the host's own users only.
    pub special: Option<u16>,
    /// Its protection domain, not 0.
    pub pd: u32,
    /// Where submissions complete.
    pub send_cq: CqId,
    /// Where receives complete; may be the same.
    pub recv_cq: CqId,
    /// Entries of the submission queue, a power of two.
    pub sq_depth: u32,
    /// The submission queue's memory, zeroed.
    pub sq: H::Queue,
    /// Entries of the receive queue, a power of two.
    pub rq_depth: u32,
    /// The receive queue's memory, zeroed.
    pub rq: H::Queue,
    /// Room for address handles; one for connections.
    pub handles: Slab<AhSlot>,
    /// A shared receive queue of the same client, which receives come from; `rq` then is of no use.
    pub srq: Option<EndpointId>,
    /// Slots behind the submission queue's entries.
    pub sq_slots: Slots,
    /// [`crate::list_words`] of them for the submission queue.
    pub sq_lists: Slab<ListWord>,
    /// Slots behind the receive queue's entries.
    pub rq_slots: Slots,
    /// [`crate::list_words`] of them for the receive queue.
    pub rq_lists: Slab<ListWord>,
}

/// What is to change of a queue pair: what is not there stays as it is. Times and counts are coded as in InfiniBand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to go to.
    pub state: Option<QpState>,
    /// Connections: the peer's host and queue pair number. Needed on the way to [`QpState::Rtr`].
    pub peer: Option<(NodeId, u32)>,
    /// Datagrams: the key that messages must show.
    pub qkey: Option<u32>,
    /// What peers may do, if a region's rights say so, too.
    pub access: Option<Access>,
    /// How long to wait for a peer to be ready, each time.
    pub timeout: Option<u8>,
    /// How many times more.
    pub retry_cnt: Option<u8>,
    /// How many times to wait for a receive; 7: for ever.
    pub rnr_retry: Option<u8>,
    /// How long, each time.
    pub min_rnr_timer: Option<u8>,
    /// Reads and atomics outstanding.
    pub max_rd_atomic: Option<u8>,
    /// The peer's reads and atomics outstanding.
    pub max_dest_rd_atomic: Option<u8>,
}

/// What is to be known of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// Where it stands.
    pub state: QpState,
    /// The number that peers know it by.
    pub number: u32,
    /// In [`QpState::Sqd`]: something sent is not finished.
    pub draining: bool,
    /// What it has been told since it was made or reset.
    pub attr: QpAttr,
}

/// [`QpAttr::rnr_retry`] that has no end.
const FOR_EVER: u8 = 7;

/// Largest codes.
const MAX_TIME: u8 = 31;
const MAX_RETRY: u8 = 7;
const MAX_NUMBER: u32 = 0xff_ffff;

/// What a code for the wait before a retry means (InfiniBand, table 45).
fn rnr_timer(code: u8) -> Nanos {
    const HUNDREDTHS_MS: [u32; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536,
        2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    /// A hundredth of a millisecond.
    const EACH: Nanos = 10_000;
    let hundredths = HUNDREDTHS_MS.get(usize::from(code)).copied().unwrap_or(0);
    EACH.saturating_mul(hundredths.into())
}

/// How long a queue pair's flows wait, and for how much, as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    max_rd_atomic: Option<u8>,
}

impl Told {
    /// Nothing: for ever.
    pub(crate) const NOTHING: Self = Self {
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: FOR_EVER,
        min_rnr_timer: 0,
        max_rd_atomic: None,
    };

    /// What holds when more is told.
    fn and(self, attr: &QpAttr) -> Self {
        Self {
            timeout: attr.timeout.unwrap_or(self.timeout),
            retry_cnt: attr.retry_cnt.unwrap_or(self.retry_cnt),
            rnr_retry: attr.rnr_retry.unwrap_or(self.rnr_retry),
            min_rnr_timer: attr.min_rnr_timer.unwrap_or(self.min_rnr_timer),
            max_rd_atomic: attr.max_rd_atomic.or(self.max_rd_atomic),
        }
    }

    /// Whether reads and atomics are sent at all.
    pub(crate) fn reads(&self) -> bool {
        self.max_rd_atomic != Some(0)
    }

    /// The limits of flows.
    pub(crate) fn limits(&self) -> Limits {
        let ready = match self.timeout {
            0 => Nanos::MAX,
            // 4.096 us times a power of two, once and with each retry.
            power => 4_096_u64
                .checked_shl(power.into())
                .and_then(|once| once.checked_mul(u64::from(self.retry_cnt).saturating_add(1)))
                .unwrap_or(Nanos::MAX),
        };
        let receive = match self.rnr_retry {
            FOR_EVER => Nanos::MAX,
            times => rnr_timer(self.min_rnr_timer).saturating_mul(times.into()),
        };
        Limits {
            ready,
            receive,
            reads: self.max_rd_atomic.map_or(u32::MAX, u32::from),
        }
    }
}

impl QpAttr {
    /// Whether every value exists.
    fn is_valid(&self) -> bool {
        let below = |value: Option<u8>, most: u8| value.is_none_or(|value| value <= most);
        below(self.timeout, MAX_TIME)
            && below(self.min_rnr_timer, MAX_TIME)
            && below(self.retry_cnt, MAX_RETRY)
            && below(self.rnr_retry, MAX_RETRY)
            && self.peer.is_none_or(|(_, number)| number <= MAX_NUMBER)
            && self
                .access
                .is_none_or(|access| Access::REMOTE_ALL.contains(access))
    }
}

impl<H: Home> Device<H> {
    /// Creates a queue pair, in [`QpState::Reset`]. Returns its name, and its number for peers. It is destroyed as an
    /// endpoint is.
    ///
    /// # Errors
    /// As for [`Self::create_endpoint`]; no such shared receive queue.
    pub fn create_qp(&self, client: ClientId, config: QpConfig<H>) -> Result<(EndpointId, u32), DeviceError> {
        let QpConfig {
            kind,
            special,
            pd,
            send_cq,
            recv_cq,
            sq_depth,
            sq,
            rq_depth,
            rq,
            handles,
            srq,
            sq_slots,
            sq_lists,
            rq_slots,
            rq_lists,
        } = config;
        if pd == 0 {
            return Err(DeviceError::Range);
        }
        let fits = |words: usize, queue: Result<QueueGeometry, GeometryError>, slots| {
            queue.is_ok_and(|queue| words >= queue.with_slots(slots).words())
        };
        if !fits(sq.len(), QueueGeometry::of::<Sqe>(sq_depth), sq_slots)
            || !fits(rq.len(), QueueGeometry::of::<Rqe>(rq_depth), rq_slots)
        {
            return Err(DeviceError::Storage);
        }
        let lists = self.lists_for((sq_depth, sq_slots, sq_lists), (rq_depth, rq_slots, rq_lists))?;
        let endpoint = EndpointConfig {
            kind: EndpointKind::Datagram,
            send_cq,
            recv_cq,
            sq_depth,
            sq,
            rq_depth,
            rq,
            handles,
        };
        let domain = Domain { client, pd };
        if let Some(srq) = srq {
            self.join_srq(client, srq)?;
        }
        self.create(domain, Kind::Qp(kind), special, 0, endpoint, (srq, lists))
            .map(|(id, addr)| (id, addr.ep))
            .inspect_err(|_| self.leave_srq(srq))
    }

    /// Changes a queue pair. To [`QpState::Reset`] it waits for turns of [`Self::service`] that are running in other
    /// threads, as [`Self::destroy_endpoint`] does: afterwards nothing touches the buffers of what was posted. Calls for one
    /// queue pair come one at a time. Links may have something to do afterwards.
    ///
    /// # Errors
    /// No such queue pair; it cannot go to that state; an attribute that does not exist, or one that is needed is missing.
    pub fn modify_qp(
        &self,
        client: ClientId,
        qp: EndpointId,
        attr: &QpAttr,
        now: Nanos,
    ) -> Result<(), DeviceError> {
        let slot = self.endpoint_of(client, qp)?;
        let kind = slot.qp_kind().ok_or(DeviceError::State)?;
        let from = slot.qp_state();
        let to = attr.state.unwrap_or(from);
        let connects = to == QpState::Rtr && from == QpState::Init && kind != QpKind::Ud;
        if !attr.is_valid()
            || (attr.state.is_some() && !from.can_become(to))
            || (connects && attr.peer.is_none())
        {
            return Err(DeviceError::Attribute);
        }
        match to {
            QpState::Reset if attr.state.is_some() => return self.reset_qp(slot, qp, now),
            QpState::Err if attr.state.is_some() => return self.break_qp(slot, qp, now),
            _ => self.set_attributes(slot, qp, attr, connects)?,
        }
        if to == from {
            return Ok(());
        }
        if !slot.change(from.as_endpoint(), to.as_endpoint()) {
            // It has met an error meanwhile.
            return Err(DeviceError::Attribute);
        }
        match to {
            // Whoever waited for it may go on.
            QpState::Rtr => self.for_each_link(|link, _| link.receive_posted(now, qp.0)),
            QpState::Rts => self.attend(slot, qp, RETRY),
            QpState::Sqd => self.tell_drained(slot, qp),
            _ => {}
        }
        Ok(())
    }

    /// What is to be known of a queue pair.
    ///
    /// # Errors
    /// The client has no such queue pair.
    pub fn query_qp(&self, client: ClientId, qp: EndpointId) -> Result<QpInfo, DeviceError> {
        let slot = self.endpoint_of(client, qp)?;
        slot.qp_kind().ok_or(DeviceError::State)?;
        let state = slot.qp_state();
        let tx = slot.tx.lock();
        let tx = tx
            .as_ref()
            .filter(|tx| tx.id == qp)
            .ok_or(DeviceError::NoEndpoint)?;
        let peer = slot.rx.lock().as_ref().and_then(|rx| rx.peer);
        let Told {
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            max_rd_atomic,
        } = tx.told;
        Ok(QpInfo {
            state,
            number: qp.number(),
            draining: state == QpState::Sqd && !slot.is_drained(),
            attr: QpAttr {
                state: Some(state),
                peer: peer.map(|peer| (peer.node, peer.ep)),
                qkey: Some(tx.qkey),
                access: Some(slot.rights()),
                timeout: Some(timeout),
                retry_cnt: Some(retry_cnt),
                rnr_retry: Some(rnr_retry),
                min_rnr_timer: Some(min_rnr_timer),
                max_rd_atomic,
                max_dest_rd_atomic: Some(slot.reads()),
            },
        })
    }

    /// Tells once that a queue pair that is told to finish sending has.
    pub(crate) fn tell_drained(&self, slot: &EndpointSlot<H>, qp: EndpointId) {
        if slot.state() == EndpointState::Draining && slot.is_drained() {
            self.home.qp_event(slot.client(), qp, QpEvent::Drained);
        }
    }

    /// The queue pair that peers know by that number.
    pub(crate) fn numbered(&self, number: u32) -> Option<(EndpointId, &EndpointSlot<H>)> {
        let [a, b, _, high] = number.to_le_bytes();
        let slot = self.endpoints.get(usize::from(u16::from_le_bytes([a, b])))?;
        let id = slot.id()?;
        let found = high == 0 && id.number() == number && slot.qp_kind().is_some();
        found.then_some((id, slot))
    }

    fn set_attributes(
        &self,
        slot: &EndpointSlot<H>,
        qp: EndpointId,
        attr: &QpAttr,
        connects: bool,
    ) -> Result<(), DeviceError> {
        let mut tx = slot.tx.lock();
        let tx = tx
            .as_mut()
            .filter(|tx| tx.id == qp)
            .ok_or(DeviceError::NoEndpoint)?;
        let rights = attr.access.unwrap_or(slot.rights());
        let rights = match QpKind::of(tx.op_flags) {
            Some(QpKind::Rc) => rights,
            Some(QpKind::Uc) if rights.contains(Access::REMOTE_WRITE) => Access::REMOTE_WRITE,
            _ => Access::LOCAL,
        };
        let reads = attr.max_dest_rd_atomic.unwrap_or(slot.reads());
        slot.serve(rights, tx.op_flags, reads);
        let peer = attr.peer.filter(|_| connects).map(|(node, number)| EpAddr {
            node,
            ep: number,
            incarnation: 0,
        });
        tx.told = tx.told.and(attr);
        tx.qkey = attr.qkey.unwrap_or(tx.qkey);
        if let Some(peer) = peer {
            let handle = tx.handles.first_mut().ok_or(DeviceError::Storage)?;
            // Without a link now there may be one when it sends.
            let link = self.link_to(peer.node).unwrap_or(LinkId(0));
            *handle = AhSlot(Some(Ah::new(peer, link)));
        }
        if let Some(rx) = slot.rx.lock().as_mut() {
            rx.qkey = tx.qkey;
            rx.peer = peer.or(rx.peer);
        }
        Ok(())
    }

    /// To error, by its owner.
    fn break_qp(&self, slot: &EndpointSlot<H>, qp: EndpointId, now: Nanos) -> Result<(), DeviceError> {
        if slot.force(EndpointState::Error) {
            self.flush(slot, qp, now);
        } else {
            self.attend(slot, qp, FAILED);
        }
        Ok(())
    }

    /// Empties the queues, ends what is under way, and forgets the peer. What still completes of it is not shown.
    fn reset_qp(&self, slot: &EndpointSlot<H>, qp: EndpointId, now: Nanos) -> Result<(), DeviceError> {
        if !slot.force(EndpointState::Reset) {
            return Err(DeviceError::Attribute);
        }
        slot.attention.fetch_and(QUEUED, Ordering::AcqRel);
        let marks = {
            let mut tx = slot.tx.lock();
            let tx = tx
                .as_mut()
                .filter(|tx| tx.id == qp)
                .ok_or(DeviceError::NoEndpoint)?;
            let life = (tx.op_flags & LIFE).wrapping_add(1 << LIFE.trailing_zeros());
            tx.op_flags = tx.op_flags & !LIFE | life;
            slot.serve(Access::LOCAL, tx.op_flags, 0);
            self.close_flows(&mut tx.handles, now);
            if tx.kind.is_connected() {
                tx.handles.fill(AhSlot(None));
            }
            tx.told = Told::NOTHING;
            tx.qkey = 0;
            if tx.sq.clear().is_err() {
                self.kill(slot, qp);
            }
            tx.op_flags
        };
        if let Some(rx) = slot.rx.lock().as_mut() {
            rx.op_flags = marks;
            rx.peer = None;
            rx.qkey = 0;
            slot.attention.fetch_and(!DRAINS, Ordering::AcqRel);
            rx.rq.disarm();
            if rx.rq.clear().is_err() {
                self.kill(slot, qp);
            }
        }
        self.close_target(qp, now);
        self.wait_for_copies();
        slot.draws.reset();
        Ok(())
    }

    /// A queue pair in error flushes receives as they are posted: its client is asked to say so.
    pub(crate) fn drain_receives(&self, slot: &EndpointSlot<H>, qp: EndpointId) {
        let armed = {
            let mut rx = slot.rx.lock();
            // It may have been reset meanwhile.
            let rx = rx.as_mut().filter(|rx| rx.id == qp && slot.is_over());
            rx.is_none_or(|rx| {
                slot.attention.fetch_or(DRAINS, Ordering::AcqRel);
                rx.rq.arm().unwrap_or(true)
            })
        };
        if !armed {
            // One came between.
            self.attend(slot, qp, FAILED);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn patience_is_what_the_codes_say() {
        assert_eq!(Told::NOTHING.limits(), Limits::NONE);
        let attr = QpAttr {
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(3),
            min_rnr_timer: Some(12),
            max_rd_atomic: Some(5),
            ..QpAttr::default()
        };
        let told = Told::NOTHING.and(&attr);
        let limits = told.limits();
        assert_eq!(limits.ready, 8 * 67_108_864, "8 times 67 ms");
        assert_eq!(limits.receive, 3 * 640_000, "3 times 0.64 ms");
        assert_eq!(limits.reads, 5);
        let longest = QpAttr {
            timeout: Some(31),
            rnr_retry: Some(7),
            ..QpAttr::default()
        };
        let limits = told.and(&longest).limits();
        assert_eq!(limits.ready / MS, 8 * 8_796_093);
        assert_eq!(limits.receive, Nanos::MAX);
        let none = QpAttr {
            rnr_retry: Some(0),
            ..QpAttr::default()
        };
        assert_eq!(told.and(&none).limits().receive, 0);
        let coded = [0, 1, 31].map(rnr_timer);
        assert_eq!(coded, [655_360_000, 10_000, 491_520_000]);
    }

    #[test]
    fn states_follow_each_other_as_in_infiniband() {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
        let next = |from: QpState| all.into_iter().filter(move |to| from.can_become(*to));
        assert!(next(Reset).eq([Reset, Init]));
        assert!(next(Init).eq([Reset, Init, Rtr, Err]));
        assert!(next(Rtr).eq([Reset, Rts, Err]));
        assert!(next(Rts).eq([Reset, Rts, Sqd, Err]));
        assert!(next(Sqd).eq([Reset, Rts, Sqd, Err]));
        assert!(next(Sqe).eq([Reset, Rts, Err]));
        assert!(next(Err).eq([Reset, Err]));
    }
}
