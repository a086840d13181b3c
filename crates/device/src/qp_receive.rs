//! Queue pairs, receiving: whose requests they take, which receives, and how these complete.

use usb4_engine::{Admission, EpAddr, Host as _, MemAt, MemRef, NakCode, NodeId, Receive, Target};
use usb4_ring_abi::{Cqe, CqeStatus, Op as OpCode, cqe_flags};

use crate::endpoint::{EndpointSlot, FAILED, Rx, TOLD};
use crate::host::LinkHost;
use crate::qp_send::word;
use crate::srq::{Drawer, Drawn};
use crate::sync::Ordering;
use crate::{Device, EndpointId, EndpointState, Home, QpEvent, QpKind, QpState};

/// Bytes in front of a datagram: a global route header.
const GRH: u32 = 40;

impl<H: Home> LinkHost<'_, H> {
    /// A peer opens a flow to the queue pair of that number.
    #[cold]
    pub(crate) fn open_qp(&self, src: &EpAddr, number: u32) -> Result<Target, NakCode> {
        let (id, slot) = self.device.numbered(number).ok_or(NakCode::Gone)?;
        let state = slot.qp_state();
        let kind = slot.qp_kind().ok_or(NakCode::Gone)?;
        let is_open = match (kind, state) {
            (_, QpState::Err) => false,
            (QpKind::Ud, _) => true,
            // Who its peer will be is not known yet.
            (_, QpState::Reset | QpState::Init) => true,
            _ => {
                let rx = slot.rx.lock();
                rx.as_ref().is_some_and(|rx| rx.id == id && rx.peer == Some(*src))
            }
        };
        if !is_open {
            return Err(NakCode::Gone);
        }
        let src = self.device.sources.lock().open(slot.client(), src);
        Ok(Target {
            ep: id.0,
            src: src.ok_or(NakCode::Resource)?,
        })
    }

    /// Whether requests for a queue pair are executed.
    #[cold]
    pub(crate) fn admit_qp(
        &self,
        kind: QpKind,
        slot: &EndpointSlot<H>,
        target: Target,
    ) -> Result<Admission, NakCode> {
        if kind == QpKind::Ud {
            // Each message is looked at.
            return Ok(Admission::Reads(0));
        }
        let state = slot.qp_state();
        match (state, kind) {
            (QpState::Err, _) => return Err(NakCode::Gone),
            (QpState::Reset | QpState::Init, QpKind::Uc) => return Ok(Admission::Drop),
            (QpState::Reset | QpState::Init, _) => return Ok(Admission::Later),
            _ => {}
        }
        let peer = slot.rx.lock().as_ref().and_then(|rx| rx.peer);
        if peer.is_none() || self.device.source(slot.client(), target.src) != peer {
            return Err(NakCode::Gone);
        }
        if state == QpState::Rtr && slot.attention.fetch_or(TOLD, Ordering::AcqRel) & TOLD == 0 {
            self.device
                .home
                .qp_event(slot.client(), EndpointId(target.ep), QpEvent::Established);
        }
        let reads = match kind {
            QpKind::Rc => slot.reads().into(),
            _ => 0,
        };
        Ok(Admission::Reads(reads))
    }

    /// Takes a queue pair's next receive for a message of `len` bytes.
    #[inline(never)]
    pub(crate) fn take_qp_receive(
        &self,
        slot: &EndpointSlot<H>,
        rx: &mut Rx<H>,
        target: Target,
        len: u32,
    ) -> Result<Receive, NakCode> {
        let device = self.device;
        let kind = QpKind::of(rx.op_flags).ok_or(NakCode::Gone)?;
        let mut src = EpAddr::default();
        if kind == QpKind::Ud {
            src = device
                .source(rx.domain.client, target.src)
                .ok_or(NakCode::Access)?;
            if src.incarnation != rx.qkey {
                return Err(NakCode::Access);
            }
        }
        let drawer = Drawer {
            kind,
            id: rx.id,
            cq: rx.cq,
            op_flags: rx.op_flags,
            needed: match kind {
                // A message that is too long ends its receive, too.
                QpKind::Rc => 0,
                QpKind::Uc => len,
                QpKind::Ud => len.saturating_add(GRH),
            },
            used: match kind {
                QpKind::Rc | QpKind::Uc => len,
                QpKind::Ud => len.saturating_add(GRH),
            },
        };
        let Drawn { rqe, cookie, at } = match slot.draws_from() {
            None => device.draw(slot, &drawer, slot, rx)?,
            Some(srq) => device.draw_shared(slot, &drawer, srq)?,
        };
        let at = match at {
            Ok(at) => at,
            Err(status) => {
                self.complete(cookie, |op| Cqe {
                    user_data: op.user_data,
                    op: OpCode::Send.code(),
                    status: status.code(),
                    flags: cqe_flags::RECV,
                    ..Cqe::default()
                });
                return Err(NakCode::Resource);
            }
        };
        if kind != QpKind::Ud {
            return Ok(Receive {
                at,
                capacity: rqe.len,
                cookie,
            });
        }
        let header = grh(src.node, device.node, len);
        // SAFETY: the reference has just been taken. The link's lock is held, which whoever revokes a region, or takes lists
        // out, takes before that.
        unsafe { device.write_few(at, &header) };
        let capacity = rqe.len.saturating_sub(GRH);
        let mut at = MemAt {
            offset: at.offset.saturating_add(GRH.into()),
            ..at
        };
        if capacity == 0 {
            // To the engine a receive without room is one without memory.
            self.release(at.mem);
            at.mem = MemRef(0);
        }
        Ok(Receive { at, capacity, cookie })
    }
}

impl<H: Home> Device<H> {
    /// What a receive of a queue pair's completes with, in place of what another's would: `value` is the word that came with
    /// the message, `src` the name of its source.
    pub(crate) fn received_by_qp(&self, kind: QpKind, slot: &EndpointSlot<H>, cqe: &mut Cqe) {
        let done = cqe.status == CqeStatus::Ok.code();
        let word = cqe.value;
        cqe.value = word & u64::from(u32::MAX);
        cqe.flags &= !cqe_flags::IMM;
        let sent = cqe.flags & cqe_flags::WRITE_IMM == 0;
        if word & word::INVALIDATE != 0 && kind == QpKind::Rc && sent && done {
            cqe.flags |= cqe_flags::INVALIDATED;
        } else if word & word::IMM != 0 {
            cqe.flags |= cqe_flags::IMM;
        }
        if word & word::SOLICITED != 0 {
            cqe.flags |= cqe_flags::SOLICITED;
        }
        let src = core::mem::take(&mut cqe.src);
        if kind == QpKind::Ud && done {
            cqe.len = cqe.len.saturating_add(GRH);
            let src = self.source(slot.client(), src);
            cqe.src = src.map_or(0, |src| src.ep);
        }
    }

    /// A request for a queue pair was refused for good: that of a reliable connection is in error then.
    #[cold]
    pub(crate) fn refused_qp(&self, slot: &EndpointSlot<H>, ep: EndpointId, code: NakCode) {
        let event = match code {
            NakCode::Access => QpEvent::Access,
            NakCode::Unsupported => QpEvent::Request,
            _ => return,
        };
        if slot.qp_kind() == Some(QpKind::Rc) && slot.fail_qp() {
            self.attend(slot, ep, FAILED);
            self.home.qp_event(slot.client(), ep, event);
        }
    }
}

/// Whether a queue pair takes messages in that state.
pub(crate) fn receives(state: EndpointState) -> bool {
    matches!(
        state,
        EndpointState::Ready | EndpointState::Receiving | EndpointState::Draining | EndpointState::SendError
    )
}

/// What is said of a message for an endpoint that takes none in its state.
#[cold]
pub(crate) fn not_receiving<H: Home>(slot: &EndpointSlot<H>, state: EndpointState) -> NakCode {
    let not_yet = matches!(state, EndpointState::Reset | EndpointState::Init);
    if not_yet && slot.qp_kind() == Some(QpKind::Ud) {
        NakCode::Resource
    } else {
        NakCode::Gone
    }
}

/// A global route header from host to host, for a datagram of `len` bytes.
fn grh(from: NodeId, to: NodeId, len: u32) -> [u8; GRH as usize] {
    /// What a packet has between this header and the payload, and after it: transport headers and a CRC.
    const OTHERS: u32 = 12 + 8 + 4;
    /// A transport header comes next; it came over one hop.
    const NEXT_HOP: u64 = 0x1b_40;
    let halves = |node: NodeId| [0xfe80_u64 << 48, node.guid()];
    let [from_high, from_low] = halves(from);
    let [to_high, to_low] = halves(to);
    let first = 6_u64 << 60 | u64::from(len.saturating_add(OTHERS) & 0xffff) << 16 | NEXT_HOP;
    let mut bytes = [0; GRH as usize];
    let words = [first, from_high, from_low, to_high, to_low];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_route_header_has_the_bytes_of_ipv6() {
        let (from, to) = (NodeId(1), NodeId(2));
        let bytes = grh(from, to, 100);
        assert_eq!(bytes[..8], [0x60, 0, 0, 0, 0, 124, 0x1b, 0x40]);
        assert_eq!(bytes[8..24], from.gid());
        assert_eq!(bytes[24..40], to.gid());
    }
}
