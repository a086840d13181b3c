//! Layout of the ring API's queues and entries, and the cursors both sides move over them.
//!
//! A queue is memory shared by a client and a device: two indices, a flag word and entries of fixed size, all
//! of it `u64` words ([`QueueGeometry`] has the map). Each index has one writer. Submission ([`Sqe`]) and
//! receive ([`Rqe`]) queues run from client to device, completion queues ([`Cqe`]) from device to client.
//!
//! [`Producer`] and [`Consumer`] are the only code that touches the words. They keep private copies of their
//! own index, believe nothing the peer writes ([`Hostile`]) and read each entry exactly once, so what is
//! validated is what is used. Both sides use the same cursors; the device adds validation of the entry's
//! content ([`Sqe::check`], [`Rqe::check`]).
//!
//! [`uapi`] has the ioctls of the kernel's device.
//!
//! This crate does not map memory, make system calls or know what an operation does.
//! The same for C, in the kernel and outside, is `usb4_ring.h`; `tests/uapi.rs` compares the two with a C compiler.
//!
//! Where to start: [`QueueGeometry`], [`Producer::push`], [`Consumer::pop`].
#![no_std]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used
)]

mod cursor;
mod entry;
mod geometry;
mod slot;
mod status;
pub mod sync;
pub mod uapi;

pub use cursor::{Consumer, Hostile, Producer, PushError, is_armed};
pub use entry::{
    CQE_WORDS, Cqe, Entry, InvalidEntry, LOCAL_PROCESS, MAX_MESSAGE, OP_INVALIDATE, Op, PREFIX_MAX,
    RQE_WORDS, Rqe, SQE_WORDS, Sqe, cqe_flags, sqe_flags,
};
pub use geometry::{
    ARMED, ARMED_SOLICITED, CONSUMER_WORD, ENTRIES_WORD, FLAGS_WORD, GeometryError, MAX_DEPTH, NEED_WAKEUP,
    PRODUCER_WORD, QueueGeometry,
};
pub use slot::{MAX_INLINE, MAX_PIECES, PIECE_WORDS, Piece, SLOT_ALIGN, SLOT_MAX, Slots};
pub use status::CqeStatus;

/// Version of this layout. A device and a client with different versions refuse each other.
pub const ABI_VERSION: u32 = if cfg!(usb4_next_version) { 2 } else { 1 };
