//! What a link counts.

/// Monotone counters of one link, for status tools and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames with chunks posted, retransmissions included.
    pub tx_frames: u64,
    /// Bytes of all posted frames.
    pub tx_bytes: u64,
    /// Pure acknowledgements posted.
    pub tx_acks: u64,
    /// Probes posted.
    pub tx_pings: u64,
    /// Frames posted again under a new packet number.
    pub tx_resent: u64,
    /// Frames declared lost.
    pub tx_lost: u64,
    /// Lost frames that were not resent, because a replay has made all of their chunks stale.
    pub tx_stale: u64,
    /// Frames accepted.
    pub rx_frames: u64,
    /// Bytes of all accepted frames.
    pub rx_bytes: u64,
    /// Frames dropped because their head was not valid.
    pub rx_malformed: u64,
    /// Frames dropped because the head or payload CRC was wrong.
    pub rx_corrupt: u64,
    /// Frames dropped because they carried another session's tag.
    pub rx_wrong_tag: u64,
    /// Frames dropped because their packet number had been received before.
    pub rx_duplicate: u64,
    /// Frames dropped because there was no room to hold them.
    pub rx_no_room: u64,
    /// Chunks dropped because they had been executed or were parked already.
    pub rx_chunk_duplicate: u64,
    /// Chunks dropped because a replay had superseded them.
    pub rx_chunk_stale: u64,
    /// Chunks that waited for an earlier one.
    pub rx_parked: u64,
    /// Things a peer that keeps the protocol does not do.
    pub violations: u64,
    /// Requests of the peer executed, in chunks.
    pub executed: u64,
    /// Operations of this side completed without error.
    pub completed: u64,
    /// Operations of this side completed with an error.
    pub failed: u64,
    /// Receiver-not-ready refusals sent, those of targets that are not ready included.
    pub rnr_sent: u64,
    /// Receiver-not-ready refusals received, those of targets that are not ready included.
    pub rnr_received: u64,
    /// Other refusals sent.
    pub nak_sent: u64,
    /// Other refusals received.
    pub nak_received: u64,
}
