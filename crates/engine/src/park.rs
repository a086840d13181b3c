//! Chunks that arrived before their turn: kept in place, in their received frame.

use usb4_wire::{Chunk, Seq, csn_before};

use crate::list::{Linked, List, NONE, OUT, at, at_mut};
use crate::token::Tokens;
use crate::{RxToken, Slab};

/// A parked chunk.
#[derive(Debug)]
pub struct Parked {
    link: u32,
    seq: Seq,
    place: Place,
    chunk: Chunk,
}

impl Default for Parked {
    fn default() -> Self {
        Self {
            link: OUT,
            seq: Seq::default(),
            place: Place {
                token: RxToken(0),
                at: 0,
            },
            chunk: Chunk::Ping,
        }
    }
}

impl Linked<0> for Parked {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.link
    }
}

/// Where the payload of a chunk is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The received frame.
    pub(crate) token: RxToken,
    /// Byte offset in it.
    pub(crate) at: u16,
}

/// What has become of a chunk that was to be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parking {
    /// It is parked and refers to its frame.
    Parked,
    /// It had been parked before.
    Duplicate,
    /// The park is full, or finding its place took longer than it may.
    NoRoom,
}

/// The parked chunks of one flow and sequence space, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    /// Where a chunk was last put, or found: the next one of the same frame comes after it.
    recent: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
            recent: NONE,
        }
    }
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// All parked chunks of a link.
#[derive(Debug)]
pub(crate) struct Park {
    slab: Slab<Parked>,
    free: List<0>,
    room: u32,
    /// Parked chunks that may yet be looked at for the chunks of this frame.
    looks: u32,
}

impl Park {
    pub(crate) fn new(mut slab: Slab<Parked>) -> Self {
        let mut free = List::default();
        for parked in slab.iter_mut() {
            *parked = Parked::default();
        }
        for index in (0..NONE).take(slab.len()).rev() {
            free.push_front(&mut slab, index);
        }
        let room = u32::try_from(slab.len()).unwrap_or(NONE);
        Self {
            slab,
            free,
            room,
            looks: 0,
        }
    }

    /// Another frame has come. Its chunks may take one walk past everything parked, of all flows together, and as much
    /// again; those that follow each other take one walk between them. A peer that keeps the protocol needs no more. One
    /// that does not could have every chunk of every frame take such a walk, with the link's lock held: a quarter of a
    /// second for the frames of one turn.
    #[inline]
    pub(crate) fn begin_frame(&mut self) {
        self.looks = u32::try_from(self.slab.len()).unwrap_or(NONE).wrapping_mul(2);
    }

    pub(crate) fn into_slab(self) -> Slab<Parked> {
        self.slab
    }

    /// Chunks parked.
    pub(crate) fn used(&self) -> usize {
        self.slab.len().wrapping_sub(self.room as usize)
    }

    /// Which chunk is parked first.
    #[inline]
    pub(crate) fn first(&self, queue: &Queue) -> Option<Seq> {
        at(&self.slab, queue.head).map(|parked| parked.seq)
    }

    /// Parks a chunk.
    ///
    /// On one rail, chunks that wait for a lost one arrive in order, so the place is the tail. Over several rails
    /// the walk is short, and [`Park::begin_frame`] bounds what a hostile peer can make of it.
    pub(crate) fn insert(&mut self, queue: &mut Queue, seq: Seq, chunk: Chunk, place: Place) -> Parking {
        let mut before = NONE;
        let mut after = NONE;
        match at(&self.slab, queue.tail) {
            Some(tail) if !csn_before(tail.seq.csn, seq.csn) => {
                after = queue.head;
                match at(&self.slab, queue.recent) {
                    Some(recent) if csn_before(recent.seq.csn, seq.csn) => {
                        before = queue.recent;
                        after = recent.link;
                    }
                    _ => {}
                }
                while let Some(parked) = at(&self.slab, after) {
                    let Some(looks) = self.looks.checked_sub(1) else {
                        return Parking::NoRoom;
                    };
                    self.looks = looks;
                    // A chunk of another life of the flow may have the same number.
                    if parked.seq.csn == seq.csn {
                        if parked.seq.epoch == seq.epoch {
                            queue.recent = after;
                            return Parking::Duplicate;
                        }
                    } else if !csn_before(parked.seq.csn, seq.csn) {
                        break;
                    }
                    before = after;
                    after = parked.link;
                }
            }
            Some(_) => before = queue.tail,
            None => {}
        }
        let Some(index) = self.free.pop(&mut self.slab) else {
            return Parking::NoRoom;
        };
        self.room = self.room.wrapping_sub(1);
        if let Some(parked) = at_mut(&mut self.slab, index) {
            parked.link = after;
            parked.seq = seq;
            parked.place = place;
            parked.chunk = chunk;
        }
        match at_mut(&mut self.slab, before) {
            Some(parked) => parked.link = index,
            None => queue.head = index,
        }
        if after == NONE {
            queue.tail = index;
        }
        queue.recent = index;
        Parking::Parked
    }

    /// Drops all chunks of a queue.
    pub(crate) fn empty(&mut self, queue: &mut Queue, tokens: &mut Tokens) {
        while let Some((_, place)) = self.pop(queue) {
            tokens.drop_ref(place.token);
        }
    }

    /// Takes the first chunk; the reference on its frame goes to the caller.
    pub(crate) fn pop(&mut self, queue: &mut Queue) -> Option<(Chunk, Place)> {
        let index = queue.head;
        let parked = at_mut(&mut self.slab, index)?;
        queue.head = core::mem::replace(&mut parked.link, OUT);
        if queue.head == NONE {
            queue.tail = NONE;
        }
        if queue.recent == index {
            queue.recent = NONE;
        }
        let (chunk, place) = (parked.chunk, parked.place);
        self.room = self.room.wrapping_add(1);
        self.free.push_front(&mut self.slab, index);
        Some((chunk, place))
    }
}
