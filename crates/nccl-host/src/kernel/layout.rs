//! Where things are in NCCL's device structures, by release.
//!
//! Computed from NCCL's released headers and seen in running releases: `docs/spec/nccl-host.md` lists them with the
//! reasons. All offsets are bytes.

use std::sync::OnceLock;

/// The argument block of a kernel.
pub(crate) mod args {
    pub(crate) const COMM: usize = 0;
    pub(crate) const CHANNEL_MASK: usize = 8;
    pub(crate) const STORAGE: usize = 16;
    pub(crate) const WORK_MASK: usize = 20;
    pub(crate) const WORK_BUFFER: usize = 24;
    pub(crate) const BATCHES: usize = 32;
    /// Values of STORAGE: work items follow the batches, are in a ring, or in memory of their own.
    pub(crate) const IN_ARGUMENTS: u32 = 0;
    pub(crate) const IN_RING: u32 = 1;
}

/// A batch of work items: a word of bit fields (jump to the next batch: 14, the next one extends this: 1, type: 2,
/// function: 15), the offset of the first item, and one bit per item.
pub(crate) mod batch {
    pub(crate) const SIZE: usize = 16;
    pub(crate) const BITS: usize = 0;
    pub(crate) const OFFSET: usize = 4;
    pub(crate) const ITEMS: usize = 8;
    pub(crate) const JUMP: u32 = (1 << 14) - 1;
    pub(crate) const EXTENDS: u32 = 1 << 14;
    pub(crate) const TYPE_SHIFT: u32 = 15;
    pub(crate) const TYPE: u32 = 3;
    pub(crate) const FUNCTION_SHIFT: u32 = 17;
    /// Values of TYPE.
    pub(crate) const P2P: u32 = 0;
    pub(crate) const COLLECTIVE: u32 = 1;
}

/// A communicator as kernels see it, with its channels behind it.
pub(crate) mod comm {
    pub(crate) const RANK: usize = 0;
    pub(crate) const RANKS: usize = 4;
    pub(crate) const LL_BUFFER_SIZE: usize = 16;
    pub(crate) const SIMPLE_BUFFER_SIZE: usize = 24;
    pub(crate) const ABORT_FLAG: usize = 48;
    pub(crate) const CHANNELS: usize = 96;
}

/// A channel: pointers to its peers, and its ring.
pub(crate) mod channel {
    pub(crate) const SIZE: usize = 368;
    pub(crate) const PEERS: usize = 0;
    pub(crate) const RING_PREVIOUS: usize = 8;
    pub(crate) const RING_NEXT: usize = 12;
    /// Pointer to the ranks in the order of the ring, from this one on.
    pub(crate) const RING_RANKS: usize = 16;
}

/// A peer: two connections each way, for collectives (0) and point-to-point (1).
pub(crate) mod peer {
    pub(crate) const SEND: usize = 0;
    pub(crate) const RECEIVE: usize = 304;
    pub(crate) const CONNECTION: usize = 152;
}

/// One end of a connection.
pub(crate) mod connection {
    /// Pointers to the buffers of LL, LL128 and Simple.
    pub(crate) const LL_BUFFER: usize = 0;
    pub(crate) const SIMPLE_BUFFER: usize = 16;
    pub(crate) const TAIL: usize = 48;
    pub(crate) const HEAD: usize = 56;
    pub(crate) const STEP_SIZE: usize = 72;
    pub(crate) const FIFO: usize = 96;
    pub(crate) const STEP: usize = 104;
    /// Slots of a buffer.
    pub(crate) const SLOTS: u64 = 8;
}

/// An entry of a connection's queue of sizes, one per slot.
pub(crate) mod fifo {
    pub(crate) const SIZE: usize = 24;
    pub(crate) const MODE: usize = 0;
    pub(crate) const OFFSET: usize = 4;
    pub(crate) const BYTES: usize = 8;
    /// Values of MODE: the slot is at its index, or at OFFSET from the buffer's start.
    pub(crate) const BY_INDEX: u32 = 0;
    pub(crate) const BY_OFFSET: u32 = 1;
}

/// A work item of a pair of send and receive.
pub(crate) mod p2p {
    pub(crate) const SIZE: usize = 48;
    pub(crate) const SEND_ADDRESS: usize = 0;
    pub(crate) const RECEIVE_ADDRESS: usize = 8;
    pub(crate) const SEND_BYTES: usize = 16;
    pub(crate) const RECEIVE_BYTES: usize = 24;
    pub(crate) const SEND_RANK: usize = 32;
    pub(crate) const RECEIVE_RANK: usize = 36;
    pub(crate) const CHANNELS: usize = 40;
    pub(crate) const CHANNEL_BASE: usize = 41;
    pub(crate) const SEND_CHANNELS: usize = 42;
    pub(crate) const RECEIVE_CHANNELS: usize = 43;
    pub(crate) const SEND_CHUNK: usize = 44;
    pub(crate) const RECEIVE_CHUNK: usize = 45;
    pub(crate) const FLAGS: usize = 46;
    /// Bits of FLAGS: the send and the receive go over LL.
    pub(crate) const SEND_LL: u8 = 1;
    pub(crate) const RECEIVE_LL: u8 = 2;
}

/// A work item of a collective: fields at the same offset in every release.
pub(crate) mod collective {
    pub(crate) const FIRST_CHANNEL: usize = 0;
    pub(crate) const LAST_CHANNEL: usize = 1;
    pub(crate) const ROOT: usize = 4;
    /// From the start of the part about channels: counts of the first, each middle and the last channel, then their
    /// chunks, 21 bits each.
    pub(crate) const COUNTS: usize = 0;
    pub(crate) const CHUNKS: usize = 24;
    pub(crate) const CHUNK_BITS: u32 = 21;
    /// Unit of a chunk in bytes.
    pub(crate) const LL_GRAIN: usize = 16;
    pub(crate) const SIMPLE_GRAIN: usize = 512;
}

/// What differs between releases.
#[derive(Debug)]
pub(crate) struct Layout {
    /// From the start of a channel: this rank's place in the ring.
    pub(crate) ring_index: usize,
    /// Of a collective's work item.
    pub(crate) collective_size: usize,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    pub(crate) by_channel: usize,
}

/// NCCL 2.27 and 2.28.
const ONE: Layout = Layout {
    ring_index: 24,
    collective_size: 96,
    receive_buffer: 8,
    send_buffer: 16,
    by_channel: 56,
};

/// NCCL 2.30.
const TWO: Layout = Layout {
    ring_index: 32,
    collective_size: 128,
    receive_buffer: 24,
    send_buffer: 32,
    by_channel: 80,
};

static CHOSEN: OnceLock<Option<&'static Layout>> = OnceLock::new();

/// Chooses the layout of a release, as `ncclGetVersion` numbers it; returns whether its kernels can be emulated.
pub(crate) fn choose(version: i32) -> bool {
    let layout = match version / 100 {
        227 | 228 => Some(&ONE),
        230 => Some(&TWO),
        _ => None,
    };
    CHOSEN.get_or_init(|| layout).is_some()
}

/// The layout of the library that is loaded.
pub(crate) fn chosen() -> Option<&'static Layout> {
    CHOSEN.get().copied().flatten()
}
