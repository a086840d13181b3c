//! Queue pairs with slots for lists and inline data.

use std::sync::atomic::Ordering;

use usb4_device::{Keys, QpKind, Quota};
use usb4_ring_abi::{Piece, QueueGeometry, Rqe, Slots, Sqe, sqe_flags};

use crate::world::{User, World};

impl World {
    /// A queue pair of a client of its own, in protection domain 1.
    pub(crate) fn qp_with(&self, side: usize, kind: QpKind, slots: Slots) -> User {
        let device = &self.sides[side].device;
        let client = device.add_client(Quota::UNLIMITED, None).unwrap();
        User::of_qp_with_slots(device, side, client, kind, 1, slots)
    }

    /// Two connected queue pairs that send and receive, with slots.
    pub(crate) fn qp_pair_with(&self, kind: QpKind, slots: Slots) -> (User, User) {
        let (a, b) = (self.qp_with(0, kind, slots), self.qp_with(1, kind, slots));
        self.connect_qp(&a, &b);
        self.connect_qp(&b, &a);
        (a, b)
    }
}

/// The pieces of a list, one after the other from `addr`, of these lengths.
pub(crate) fn pieces_of(keys: Keys, mut addr: u64, lens: &[u32]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for len in lens {
        pieces.push(Piece {
            addr,
            local_key: keys.local,
            len: *len,
        });
        addr += u64::from(*len);
    }
    pieces
}

fn flat(pieces: &[Piece]) -> Vec<u64> {
    pieces.iter().flat_map(|piece| piece.to_words()).collect()
}

impl User {
    /// Posts an entry whose buffer is a list.
    pub(crate) fn post_list(&mut self, sqe: Sqe, pieces: &[Piece]) {
        let sqe = Sqe {
            ah: self.ah,
            flags: sqe.flags | sqe_flags::LIST,
            local_addr: 0,
            local_key: pieces.len() as u32,
            len: pieces.iter().map(|piece| piece.len).sum(),
            ..sqe
        };
        self.sq.push_with(&sqe, self.slots, &flat(pieces)).unwrap();
    }

    /// Posts an entry with the bytes themselves.
    pub(crate) fn post_inline(&mut self, sqe: Sqe, bytes: &[u8]) {
        let sqe = Sqe {
            ah: self.ah,
            flags: sqe.flags | sqe_flags::INLINE,
            local_addr: 0,
            local_key: 0,
            len: bytes.len() as u32,
            ..sqe
        };
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(8), 0);
        let words = padded.chunks_exact(8);
        let words: Vec<u64> = words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        self.sq.push_with(&sqe, self.slots, &words).unwrap();
    }

    /// Posts a receive whose buffer is a list.
    pub(crate) fn receive_list(&mut self, user_data: u64, pieces: &[Piece]) {
        let rqe = Rqe {
            user_data,
            len: pieces.iter().map(|piece| piece.len).sum(),
            reserved: pieces.len() as u64,
            ..Rqe::default()
        };
        self.rq.push_with(&rqe, self.slots, &flat(pieces)).unwrap();
    }

    /// Writes nonsense to all slots of both queues, as a client may at any time.
    pub(crate) fn spoil_slots(&self) {
        let first = QueueGeometry::of::<Sqe>(self.sq.depth()).unwrap().words();
        let sends = &self.sq_words[first..];
        let first = QueueGeometry::of::<Rqe>(self.rq.depth()).unwrap().words();
        for word in sends.iter().chain(&self.rq_words[first..]) {
            word.store(0x0bad_0bad_0bad_0bad, Ordering::Relaxed);
        }
    }
}
