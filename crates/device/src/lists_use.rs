//! What the device does with lists of buffers and inline data: takes them over from entries, copies by them, and ends them.

use usb4_engine::{MemAt, MemRef, NakCode, Plan, Seg, Slab, Source, TxSlot};
use usb4_ring_abi::{CqeStatus, LOCAL_PROCESS, Op as OpCode, Piece, Rqe, Slots, Sqe, sqe_flags};

use crate::endpoint::{EndpointSlot, Rx, STARVED, Tx};
use crate::links::CopyPhase;
use crate::lists::{Content, INVALID, Lists, NoList, Part, owner_of};
use crate::memory::Domain;
use crate::{Device, DeviceError, EndpointId, Home, ListWord, Port};

/// A queue's depth, the slots behind its entries, and memory for the lists in them.
pub(crate) type ForLists = (u32, Slots, Slab<ListWord>);

impl<H: Home> Device<H> {
    /// The lists of an endpoint with these queues; `None` if they have no slots.
    pub(crate) fn lists_for(&self, sq: ForLists, rq: ForLists) -> Result<Option<Lists>, DeviceError> {
        if (sq.1, rq.1) == (Slots::NONE, Slots::NONE) {
            return Ok(None);
        }
        if self.lists.len() < self.endpoints.len() {
            return Err(DeviceError::Storage);
        }
        Lists::new(sq, rq).map(Some).ok_or(DeviceError::Storage)
    }

    /// Puts the lists of a new endpoint, which is not named yet, where they are found.
    pub(crate) fn put_lists(&self, ep: EndpointId, lists: Option<Lists>) {
        if let (Some(place), Some(lists)) = (self.lists.get(ep.index()), lists) {
            place.put(ep, lists);
        }
    }

    /// The buffer of a queue pair's entry, the one last peeked, that is in its slot.
    #[inline(never)]
    pub(crate) fn send_list(&self, tx: &Tx<H>, op: OpCode, sqe: &Sqe) -> Result<Option<MemAt>, NoList> {
        // SAFETY: the caller has the endpoint's sending half locked.
        let lists = unsafe { self.lists_of(tx.id.0) }.ok_or(INVALID)?;
        let half = &lists.sq;
        let slot = tx.sq.slot(half.slots()).map_err(|_| INVALID)?;
        let writes = op == OpCode::Read;
        let acquire = |piece| self.acquire_piece(tx.domain, tx.process_key, piece, writes);
        let content = if sqe.flags & sqe_flags::INLINE == 0 {
            Content::Pieces(sqe.local_key.into())
        } else {
            Content::Inline
        };
        let release = |mem| self.release_piece(mem);
        half.copy((tx.id, false), slot, sqe.len, content, acquire, release)
    }

    /// The list of a receive in `rx`, a queue pair's or a shared receive queue's, the one last peeked; inner error: what it
    /// completes with.
    pub(crate) fn receive_list(
        &self,
        slot: &EndpointSlot<H>,
        rx: &Rx<H>,
        rqe: &Rqe,
    ) -> Result<Result<MemAt, CqeStatus>, NakCode> {
        match self.copy_receive_list(rx, rqe) {
            Ok(at) => {
                let nothing = MemAt {
                    mem: MemRef(0),
                    offset: 0,
                };
                Ok(Ok(at.unwrap_or(nothing)))
            }
            Err(NoList::Yet) => {
                self.attend(slot, rx.id, STARVED);
                Err(NakCode::Rnr)
            }
            Err(NoList::Because(_)) => Ok(Err(CqeStatus::Protection)),
        }
    }

    #[inline(never)]
    fn copy_receive_list(&self, rx: &Rx<H>, rqe: &Rqe) -> Result<Option<MemAt>, NoList> {
        if rqe.addr != 0 || rqe.local_key != 0 {
            return Err(INVALID);
        }
        // SAFETY: the caller has the endpoint's receiving half locked.
        let lists = unsafe { self.lists_of(rx.id.0) }.ok_or(INVALID)?;
        let half = &lists.rq;
        let slot = rx.rq.slot(half.slots()).map_err(|_| INVALID)?;
        let acquire = |piece| self.acquire_piece(rx.domain, rx.process_key, piece, true);
        let content = Content::Pieces(rqe.pieces());
        let release = |mem| self.release_piece(mem);
        half.copy((rx.id, true), slot, rqe.len, content, acquire, release)
    }

    /// Whether the next receive in `rx` has a list, and there is no place for that. Who waits for it would come back in vain.
    #[inline(never)]
    pub(crate) fn waits_for_place(&self, rx: &mut Rx<H>) -> bool {
        let Ok(Some(rqe)) = rx.rq.peek() else {
            return false;
        };
        // SAFETY: the caller has the endpoint's receiving half locked.
        let lists = unsafe { self.lists_of(rx.id.0) };
        rqe.pieces() != 0 && lists.is_some_and(|lists| lists.rq.is_full())
    }

    fn acquire_piece(&self, domain: Domain, process_key: u32, piece: Piece, writes: bool) -> Option<MemAt> {
        let key = match piece.local_key {
            LOCAL_PROCESS => process_key,
            key => key,
        };
        let range = (piece.addr, u64::from(piece.len));
        self.regions
            .acquire_local(domain, key, range, writes)
            .inspect_err(|denied| self.tell_idle(denied.0))
            .ok()
    }

    fn release_piece(&self, mem: MemRef) {
        if let Ok(name) = u32::try_from(mem.0) {
            self.release_region(name);
        }
    }

    /// # Safety
    /// As for [`crate::ListsSlot::get`].
    unsafe fn lists_of(&self, ep: u32) -> Option<&Lists> {
        let place = self.lists.get(EndpointId(ep).index())?;
        // SAFETY: the caller's promise.
        unsafe { place.get(ep) }
    }

    /// An operation is over that had a list.
    ///
    /// # Safety
    /// As for [`crate::ListsSlot::get`].
    #[inline(never)]
    pub(crate) unsafe fn release_list(&self, mem: MemRef) {
        // SAFETY: the caller's promise.
        if let Some(lists) = unsafe { self.lists_of(owner_of(mem)) } {
            lists.release(mem, |mem| self.release_piece(mem));
        }
    }

    /// Whether all of a list may still be read.
    ///
    /// # Safety
    /// As for [`crate::ListsSlot::get`].
    #[inline(never)]
    pub(crate) unsafe fn list_lives(&self, mem: MemRef) -> bool {
        let lives = |mem: MemRef| u32::try_from(mem.0).is_ok_and(|name| self.regions.lives(name));
        // SAFETY: the caller's promise.
        unsafe { self.lists_of(owner_of(mem)) }.is_some_and(|lists| lists.live(mem, lives))
    }

    /// Copies what a segment is of, if that is a list, into its TX frame.
    #[cold]
    #[inline(never)]
    pub(crate) fn gather_list(&self, slot: TxSlot, seg: &Seg, port: &H::Port, phase: &CopyPhase<'_>) {
        let Seg { at: to, len, .. } = *seg;
        let Source::Mem(at) = seg.source else { return };
        let ep = owner_of(at.mem);
        let place = self.lists.get(EndpointId(ep).index());
        // SAFETY: frames are gathered in the phase in which they are composed, after the engine has asked whether the list lives.
        let Some(lists) = place.and_then(|place| unsafe { place.get_again(ep) }) else {
            return;
        };
        lists.parts(at, len.into(), |part, begin, len| {
            // Within `len`, which has 16 bits.
            let (begin, len) = (u16::try_from(begin), u16::try_from(len));
            let (Ok(begin), Ok(len)) = (begin, len) else {
                return;
            };
            let to = to.saturating_add(begin);
            match part {
                Part::Bytes(bytes) => port.write(slot, to, bytes),
                Part::Region(at) => {
                    if let Some(mem) = self.source_of(at, phase) {
                        port.gather(slot, to, len, mem, at.offset);
                    }
                }
            }
        });
    }

    /// Does what a plan to copy says, if that is into a list. Nothing happens to revoked memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn scatter_list(&self, plan: &Plan, port: &H::Port, phase: &CopyPhase<'_>) {
        let Plan::Copy {
            from: token,
            at: from,
            len,
            to,
        } = *plan
        else {
            return;
        };
        // SAFETY: the copy phase is on.
        let Some(lists) = (unsafe { self.lists_of(owner_of(to.mem)) }) else {
            return;
        };
        lists.parts(to, len.into(), |part, begin, len| {
            let (begin, len) = (u16::try_from(begin), u16::try_from(len));
            let (Ok(begin), Ok(len), Part::Region(to)) = (begin, len, part) else {
                return;
            };
            if let Some(mem) = self.memory(to, phase) {
                port.scatter(token, from.saturating_add(begin), len, mem, to.offset);
            }
        });
    }

    /// Writes a few bytes at `at`, be that in a region or in a list.
    ///
    /// # Safety
    /// The caller has the reference, and holds the lock of a link.
    pub(crate) unsafe fn write_few(&self, at: MemAt, bytes: &[u8]) {
        let write = |at: MemAt, bytes: &[u8]| {
            // SAFETY: the caller's promise: whoever takes the memory away takes that lock first, and a part of a list has a
            // reference of its own.
            if let Some(mem) = unsafe { self.regions.for_copy(at.mem) } {
                self.home.write(mem, at.offset, bytes);
            }
        };
        // SAFETY: the caller's promise.
        let Some(lists) = (unsafe { self.lists_of(owner_of(at.mem)) }) else {
            return write(at, bytes);
        };
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        lists.parts(at, len, |part, begin, len| {
            let (begin, len) = (begin as usize, len as usize);
            let bytes = bytes.get(begin..).and_then(|bytes| bytes.get(..len));
            if let (Part::Region(at), Some(bytes)) = (part, bytes) {
                write(at, bytes);
            }
        });
    }

    /// An endpoint is being destroyed: nobody finds its lists any more.
    pub(crate) fn hide_lists(&self, ep: EndpointId) {
        if let Some(place) = self.lists.get(ep.index()) {
            place.hide(ep);
        }
    }

    /// Gives back all that operations of a destroyed endpoint have.
    ///
    /// # Safety
    /// As for [`crate::ListsSlot::take`].
    pub(crate) unsafe fn drop_lists(&self, ep: EndpointId) {
        let place = self.lists.get(ep.index());
        // SAFETY: the caller's promise.
        if let Some(lists) = place.and_then(|place| unsafe { place.take() }) {
            lists.release_all(|mem| self.release_piece(mem));
        }
    }
}
