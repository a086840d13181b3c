//! Lists of buffers and inline data of queue pairs, and lists of shared receive queues.
//!
//! What an entry's slot says is copied when the entry is taken, to a place that the operation has until it is over: the
//! client may write to the slot at any time, and sending again needs the same bytes. The engine sees one buffer; who
//! copies looks here what it is made of.
//!
//! The places come with the endpoint, as many as its queues have entries. Whoever finds none free waits.

use usb4_engine::{MemAt, MemRef, Slab};
use usb4_ring_abi::{CqeStatus, PIECE_WORDS, Piece, Slots};

use crate::EndpointId;
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// A word of an endpoint's lists (opaque).
#[derive(Debug, Default)]
pub struct ListWord(AtomicU64);

/// Words that the lists of a queue with `depth` entries take.
pub fn list_words(depth: u32, slots: Slots) -> usize {
    if slots == Slots::NONE {
        return 0;
    }
    (depth as usize).saturating_mul(slots.words().saturating_add(1))
}

/// Place of an endpoint's lists (opaque).
#[derive(Debug)]
pub struct ListsSlot {
    /// Raw name of the endpoint whose lists are here, 0 if none.
    name: AtomicU32,
    lists: UnsafeCell<Option<Lists>>,
}

impl Default for ListsSlot {
    fn default() -> Self {
        Self {
            name: AtomicU32::new(0),
            lists: UnsafeCell::new(None),
        }
    }
}

// SAFETY: `lists` is written only by the thread that creates the endpoint, before it publishes the name, and by the one
// that destroys it, when nobody can be looking any more (see `Self::get`). In between it is only shared, and is `Sync`.
unsafe impl Sync for ListsSlot {}

impl ListsSlot {
    /// Puts a new endpoint's lists here. The caller has taken the endpoint's place and not named it yet.
    pub(crate) fn put(&self, ep: EndpointId, lists: Lists) {
        // SAFETY: the place was free, so there is no name by which anybody could look; see `Self::take`.
        self.lists.with_mut(|cell| unsafe { *cell = Some(lists) });
        self.name.store(ep.0, Ordering::Release);
    }

    /// The lists of an endpoint.
    ///
    /// # Safety
    /// For as long as it uses the result the caller holds the lock of a link, or is in the copy phase of one, or holds the
    /// lock of the endpoint's sending or receiving half, in which it has found the endpoint.
    #[inline]
    pub(crate) unsafe fn get(&self, ep: u32) -> Option<&Lists> {
        if ep == 0 || self.name.load(Ordering::Acquire) != ep {
            return None;
        }
        // SAFETY: whoever takes them out has first emptied both halves, then taken the name away, then waited for each
        // link's lock and copy phase (`links.rs`); who looks under a later lock does not find the name.
        self.lists.with(|cell| unsafe { (*cell).as_ref() })
    }

    /// The same for who fills a frame: what is in it by now goes to the peer, so it is filled to the end, whatever becomes of
    /// the endpoint meanwhile.
    ///
    /// # Safety
    /// The caller is in the copy phase of a link, in which [`Self::get`] has found the lists of `ep`, and is in it for as long
    /// as it uses the result.
    #[inline]
    pub(crate) unsafe fn get_again(&self, ep: u32) -> Option<&Lists> {
        if ep == 0 {
            return None;
        }
        // SAFETY: they were there in this phase; who has taken the name away since waits for its end before it takes them out.
        self.lists.with(|cell| unsafe { (*cell).as_ref() })
    }

    /// Nobody finds the lists here from now on, but who has found them in a copy phase that is still on.
    pub(crate) fn hide(&self, ep: EndpointId) {
        let _ = self
            .name
            .compare_exchange(ep.0, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Takes out what was hidden.
    ///
    /// # Safety
    /// Since [`Self::hide`] the caller has waited for copies, and both halves of the endpoint were emptied before that;
    /// the endpoint's place is still taken.
    pub(crate) unsafe fn take(&self) -> Option<Lists> {
        // SAFETY: by this function's contract nobody else looks.
        self.lists.with_mut(|cell| unsafe { (*cell).take() })
    }
}

/// The lists of an endpoint's operations. Those of what queue pairs draw are the shared receive queue's.
#[derive(Debug)]
pub(crate) struct Lists {
    pub(crate) sq: Half,
    pub(crate) rq: Half,
}

/// Those of one of its queues.
#[derive(Debug)]
pub(crate) struct Half {
    /// A header and a slot's words each. The header's lower half is the next free place, counted from 1; its upper half
    /// what is here: nothing, so many pieces, or with [`INLINE`] so many bytes.
    words: Slab<ListWord>,
    slots: Slots,
    depth: u32,
    /// The first that was used before and is free again, counted from 1. Taken by whoever has the queue, given back by
    /// anybody: since only one takes, none comes back while it looks.
    free: AtomicU32,
    /// First place never used.
    fresh: AtomicU32,
}

/// Bytes are here, no pieces.
const INLINE: u32 = 1 << 31;

/// The names of lists begin here, above those of regions: which half, which place, which endpoint.
const LIST: u64 = 1 << 63;
const RECEIVES: u64 = 1 << 48;

/// A part of a buffer, in one region or in a list.
pub(crate) enum Part<'a> {
    /// Memory of a region.
    Region(MemAt),
    /// Inline data.
    Bytes(&'a [u8]),
}

/// What an entry has in place of one buffer.
#[derive(Clone, Copy)]
pub(crate) enum Content {
    /// So many pieces.
    Pieces(u64),
    /// The bytes themselves.
    Inline,
}

/// Why there is no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoList {
    /// No place is free; one will be.
    Yet,
    /// The entry completes with this.
    Because(CqeStatus),
}

/// The slot does not have what the entry says.
pub(crate) const INVALID: NoList = NoList::Because(CqeStatus::Invalid);
/// A piece is not the client's to use.
const PROTECTION: NoList = NoList::Because(CqeStatus::Protection);

impl Lists {
    /// `None` if there are fewer words than it takes.
    pub(crate) fn new(sq: (u32, Slots, Slab<ListWord>), rq: (u32, Slots, Slab<ListWord>)) -> Option<Self> {
        Some(Self {
            sq: Half::new(sq)?,
            rq: Half::new(rq)?,
        })
    }

    #[inline]
    fn half(&self, mem: MemRef) -> &Half {
        if mem.0 & RECEIVES == 0 { &self.sq } else { &self.rq }
    }

    /// Ends the use of a place: calls `release` with the region of each piece.
    pub(crate) fn release(&self, mem: MemRef, release: impl FnMut(MemRef)) {
        self.half(mem).release(place_of(mem), release);
    }

    /// Whether `lives` says of all regions of a list that they do.
    pub(crate) fn live(&self, mem: MemRef, mut lives: impl FnMut(MemRef) -> bool) -> bool {
        self.half(mem)
            .pieces(place_of(mem))
            .is_some_and(|mut pieces| pieces.all(|(at, _)| lives(at.mem)))
    }

    /// Calls `f` with the parts that `len` bytes at `at` are made of: where each is, where it begins in these, and how long it
    /// is.
    pub(crate) fn parts(&self, at: MemAt, len: u32, mut f: impl FnMut(Part<'_>, u32, u32)) {
        let (half, place) = (self.half(at.mem), place_of(at.mem));
        let Some(pieces) = half.pieces(place) else { return };
        let inline = half.inline(place);
        if inline != 0 {
            let mut bytes = [0; usb4_ring_abi::MAX_INLINE as usize];
            half.bytes(place, &mut bytes);
            let from = usize::try_from(at.offset).unwrap_or(usize::MAX);
            let known = bytes.get(..inline as usize).and_then(|bytes| bytes.get(from..));
            if let Some(bytes) = known.and_then(|bytes| bytes.get(..len as usize)) {
                f(Part::Bytes(bytes), 0, len);
            }
            return;
        }
        let (mut before, end) = (0_u64, at.offset.saturating_add(len.into()));
        for (piece, size) in pieces {
            let after = before.saturating_add(size.into());
            let (from, to) = (before.max(at.offset), after.min(end));
            if from < to {
                let there = MemAt {
                    mem: piece.mem,
                    offset: piece.offset.saturating_add(from.saturating_sub(before)),
                };
                // Within `len`.
                let begin = u32::try_from(from.saturating_sub(at.offset)).unwrap_or(u32::MAX);
                let size = u32::try_from(to.saturating_sub(from)).unwrap_or(0);
                f(Part::Region(there), begin, size);
            }
            before = after;
        }
    }

    /// Gives back what the operations have that are not over and will not be known to be.
    pub(crate) fn release_all(self, mut release: impl FnMut(MemRef)) {
        for half in [&self.sq, &self.rq] {
            for place in 0..half.depth {
                half.release(place, &mut release);
            }
        }
    }
}

impl Half {
    fn new((depth, slots, words): (u32, Slots, Slab<ListWord>)) -> Option<Self> {
        (words.len() >= list_words(depth, slots)).then_some(Self {
            words,
            slots,
            depth: if slots == Slots::NONE { 0 } else { depth },
            free: AtomicU32::new(0),
            fresh: AtomicU32::new(0),
        })
    }

    pub(crate) fn slots(&self) -> Slots {
        self.slots
    }

    /// Whether there are places, and none is free.
    pub(crate) fn is_full(&self) -> bool {
        let fresh = self.fresh.load(Ordering::Relaxed);
        self.depth != 0 && fresh >= self.depth && self.free.load(Ordering::Relaxed) == 0
    }

    /// Copies what an entry of `len` bytes has in `slot`. `None` if that is nothing. The caller has the queue's half of the
    /// endpoint locked.
    pub(crate) fn copy(
        &self,
        (ep, receives): (EndpointId, bool),
        slot: &[usb4_ring_abi::sync::AtomicU64],
        len: u32,
        content: Content,
        acquire: impl Fn(Piece) -> Option<MemAt>,
        release: impl FnMut(MemRef),
    ) -> Result<Option<MemAt>, NoList> {
        let fits = match content {
            Content::Pieces(count) => count <= self.slots.pieces().into(),
            Content::Inline => len <= self.slots.inline(),
        };
        if !fits || self.depth == 0 {
            return Err(INVALID);
        }
        if len == 0 && matches!(content, Content::Inline) {
            return Ok(None);
        }
        let place = self.take().ok_or(NoList::Yet)?;
        let (header, words) = self.at(place).ok_or(INVALID)?;
        let used = match content {
            Content::Inline => {
                for (to, from) in words.iter().zip(slot).take(len.div_ceil(8) as usize) {
                    to.0.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                Ok(INLINE | len)
            }
            Content::Pieces(count) => resolve(words, slot, (count, len), acquire),
        };
        let (used, refused) = match used {
            Ok(used) => (used, None),
            Err((used, why)) => (used, Some(why)),
        };
        header.0.store(u64::from(used) << 32, Ordering::Relaxed);
        if refused.is_some() || used == 0 {
            self.drop_place(place, release);
            return refused.map_or(Ok(None), Err);
        }
        let half = if receives { RECEIVES } else { 0 };
        let mem = MemRef(LIST | half | u64::from(place) << 32 | u64::from(ep.0));
        Ok(Some(MemAt { mem, offset: 0 }))
    }

    /// A place that is free. One thread at a time.
    fn take(&self) -> Option<u32> {
        let mut first = self.free.load(Ordering::Acquire);
        while let Some(place) = first.checked_sub(1) {
            let (header, _) = self.at(place)?;
            let [a, b, c, d, ..] = header.0.load(Ordering::Relaxed).to_le_bytes();
            let next = u32::from_le_bytes([a, b, c, d]);
            match self
                .free
                .compare_exchange_weak(first, next, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(place),
                Err(now) => first = now,
            }
        }
        let fresh = self.fresh.load(Ordering::Relaxed);
        if fresh >= self.depth {
            return None;
        }
        self.fresh.store(fresh.saturating_add(1), Ordering::Relaxed);
        Some(fresh)
    }

    fn release(&self, place: u32, release: impl FnMut(MemRef)) {
        // Else it is free.
        if self.used(place) != 0 {
            self.drop_place(place, release);
        }
    }

    fn drop_place(&self, place: u32, mut release: impl FnMut(MemRef)) {
        let Some((header, _)) = self.at(place) else { return };
        for (at, _) in self.pieces(place).into_iter().flatten() {
            release(at.mem);
        }
        let mut first = self.free.load(Ordering::Relaxed);
        loop {
            header.0.store(first.into(), Ordering::Relaxed);
            let this = place.saturating_add(1);
            match self
                .free
                .compare_exchange_weak(first, this, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// A place's header and words.
    fn at(&self, place: u32) -> Option<(&ListWord, &[ListWord])> {
        let each = self.slots.words().checked_add(1)?;
        let from = (place as usize).checked_mul(each)?;
        let words = self.words.get(from..from.checked_add(each)?)?;
        words.split_first()
    }

    /// The upper half of a place's header.
    fn used(&self, place: u32) -> u32 {
        let header = self
            .at(place)
            .map_or(0, |(header, _)| header.0.load(Ordering::Relaxed));
        let [.., a, b, c, d] = header.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Bytes of inline data in a place.
    fn inline(&self, place: u32) -> u32 {
        let used = self.used(place);
        if used & INLINE == 0 { 0 } else { used & !INLINE }
    }

    /// Where the pieces in a place are, and how long; none if it has inline data.
    fn pieces(&self, place: u32) -> Option<impl Iterator<Item = (MemAt, u32)> + '_> {
        let (_, words) = self.at(place)?;
        let used = self.used(place);
        let count = if used & INLINE == 0 { used } else { 0 };
        let pieces = words.chunks_exact(PIECE_WORDS).take(count as usize);
        Some(pieces.map(|words| {
            let mut values = [0; PIECE_WORDS];
            for (value, word) in values.iter_mut().zip(words) {
                *value = word.0.load(Ordering::Relaxed);
            }
            let Piece { addr, local_key, len } = Piece::from_words(values);
            let mem = MemRef(local_key.into());
            (MemAt { mem, offset: addr }, len)
        }))
    }

    fn bytes(&self, place: u32, to: &mut [u8]) {
        if let Some((_, words)) = self.at(place) {
            for (to, word) in to.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.0.load(Ordering::Relaxed).to_le_bytes());
            }
        }
    }
}

/// Puts where the pieces in `slot` are into `words`: of each an offset in place of the address, and the region's name in
/// place of the key. Those without bytes are left out. Returns how many there are; with an error, how many references
/// there are to give back.
fn resolve(
    words: &[ListWord],
    slot: &[usb4_ring_abi::sync::AtomicU64],
    (count, len): (u64, u32),
    acquire: impl Fn(Piece) -> Option<MemAt>,
) -> Result<u32, (u32, NoList)> {
    let (mut used, mut sum) = (0_u32, 0_u32);
    let mut places = words.chunks_exact(PIECE_WORDS);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    for words in slot.chunks_exact(PIECE_WORDS).take(count) {
        let mut values = [0; PIECE_WORDS];
        for (value, word) in values.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        let piece = Piece::from_words(values);
        if piece.len == 0 {
            continue;
        }
        sum = sum.checked_add(piece.len).ok_or((used, INVALID))?;
        let at = acquire(piece).ok_or((used, PROTECTION))?;
        let there = Piece {
            addr: at.offset,
            // Names of regions have 32 bits.
            local_key: u32::try_from(at.mem.0).unwrap_or(0),
            len: piece.len,
        };
        for (to, word) in places.next().into_iter().flatten().zip(there.to_words()) {
            to.0.store(word, Ordering::Relaxed);
        }
        used = used.saturating_add(1);
    }
    if sum == len {
        Ok(used)
    } else {
        Err((used, INVALID))
    }
}

/// The endpoint whose list that is; 0 if it is none.
#[inline]
pub(crate) fn owner_of(mem: MemRef) -> u32 {
    let [a, b, c, d, ..] = mem.0.to_le_bytes();
    if mem.0 & LIST == 0 {
        0
    } else {
        u32::from_le_bytes([a, b, c, d])
    }
}

fn place_of(mem: MemRef) -> u32 {
    let [.., a, b, _, _] = mem.0.to_le_bytes();
    u16::from_le_bytes([a, b]).into()
}
