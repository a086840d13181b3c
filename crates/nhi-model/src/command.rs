//! What a person or a test can do to a fabric.

use crate::{Cable, Direction, Nanos, Nhi, Ring, Stats, Towards};

/// Random faults of one direction of a cable. Rates are in parts per million of what enters the cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CableFaults {
    /// Data frames lost.
    pub loss: u32,
    /// Data frames damaged, with the receiver's CRC error flag set.
    pub corrupt: u32,
    /// Data frames damaged so that no hardware check sees it.
    pub corrupt_silently: u32,
    /// Data frames that arrive twice.
    pub duplicate: u32,
    /// Control packets lost.
    pub control_loss: u32,
    /// Control packets damaged (their CRC no longer matches).
    pub control_corrupt: u32,
    /// Control packets that arrive twice.
    pub control_duplicate: u32,
    /// Added to the latency of data frames; order is kept.
    pub delay: Nanos,
    /// Added to the latency of control packets; order is kept.
    pub control_delay: Nanos,
}

/// A command. Counts say how many of the next ones are hit; 0 takes a fault back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Puts a cable in.
    Plug(Cable),
    /// Pulls a cable out.
    Unplug(Cable),
    /// Retrains a link to at most this many lanes, 1 or 2, without a hot plug event.
    Retrain {
        /// The cable.
        cable: Cable,
        /// Lanes it may use from now on.
        lanes: u8,
    },
    /// Sets the random faults of a cable, in one direction or both.
    Faults {
        /// The cable.
        cable: Cable,
        /// Only this way.
        direction: Option<Direction>,
        /// The new rates, in place of the old ones.
        faults: CableFaults,
    },
    /// Loses the next data frames on a cable.
    LoseFrames {
        /// The cable.
        cable: Cable,
        /// Which way.
        direction: Direction,
        /// How many.
        count: u32,
    },
    /// Loses the next control packets between a host and its router, whatever they are.
    LoseControl {
        /// The controller.
        nhi: Nhi,
        /// Which way.
        towards: Towards,
        /// How many.
        count: u32,
    },
    /// Loses the next MSI-X messages of a controller, of one vector or of any.
    LoseInterrupts {
        /// The controller.
        nhi: Nhi,
        /// Only this vector.
        vector: Option<u16>,
        /// How many.
        count: u32,
    },
    /// Loses MSI-X messages of a controller's data rings at random.
    InterruptLoss {
        /// The controller.
        nhi: Nhi,
        /// Parts per million.
        ppm: u32,
    },
    /// Ignores doorbells of a controller's data rings at random. See [`Command::IgnoreDoorbells`].
    DoorbellLoss {
        /// The controller.
        nhi: Nhi,
        /// Parts per million.
        ppm: u32,
    },
    /// Withholds the next completions of a ring: the frame passes, its descriptor is never handed back, and no
    /// interrupt is raised. Later ones are written in their places; the driver, which reaps in order, sees none of
    /// them until the ring is restarted.
    StrandCompletions {
        /// The controller.
        nhi: Nhi,
        /// The ring.
        ring: Ring,
        /// How many.
        count: u32,
    },
    /// Ignores the next doorbells of a ring. The next one after that makes up for them, even with the same index; a
    /// mapped doorbell must change to be noticed.
    IgnoreDoorbells {
        /// The controller.
        nhi: Nhi,
        /// The ring.
        ring: Ring,
        /// How many.
        count: u32,
    },
    /// Resets the host router of a controller under its driver, as when its host crashes: rings stop, paths are gone,
    /// its links go down and peers get an unplug event.
    ResetPeer(Nhi),
    /// Puts a frame into an RX ring, as if a peer had sent it.
    InjectFrame {
        /// The receiving controller.
        nhi: Nhi,
        /// Its RX ring, not 0.
        hop: usize,
        /// PDF of the first packet, below 16.
        sof: u8,
        /// PDF of the last packet, below 16.
        eof: u8,
        /// Payload, 1 to 4096 bytes.
        bytes: Vec<u8>,
        /// Flag a CRC error.
        crc_error: bool,
    },
    /// Puts a control packet into RX ring 0.
    InjectControl {
        /// The receiving controller.
        nhi: Nhi,
        /// Packet type, below 16.
        pdf: u8,
        /// Bytes as they shall appear in the buffer, 4 to 256, big-endian doublewords and their CRC32C;
        /// [`crate::ControlPacket`] makes good ones.
        bytes: Vec<u8>,
    },
    /// Asks for all counters.
    Stats,
    /// Clears all counters.
    Clear,
    /// Asks for all counters and clears them, in one step.
    Mark,
}

/// What a command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// To [`Command::Stats`] and [`Command::Mark`].
    Stats(Stats),
}

/// Why a command was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The fabric has fewer controllers.
    #[error("there is no controller {0}")]
    NoSuchNhi(usize),
    /// The fabric has fewer cables.
    #[error("there is no cable {0}")]
    NoSuchCable(usize),
    /// The controller has fewer rings.
    #[error("there is no ring {0}")]
    NoSuchRing(usize),
    /// The controller has fewer vectors.
    #[error("there is no vector {0}")]
    NoSuchVector(u16),
    /// A link has one or two lanes.
    #[error("a link has 1 or 2 lanes, not {0}")]
    BadLanes(u8),
    /// A frame has 1 to 4096 bytes, a control packet 4 to 256.
    #[error("{0} bytes are too few or too many")]
    BadLength(usize),
    /// A PDF has 4 bits.
    #[error("a PDF is below 16, not {0}")]
    BadPdf(u8),
    /// A rate is in parts per million.
    #[error("{0} is more than a million parts per million")]
    BadRate(u32),
    /// The RX ring does not run, has no buffer, or does not want such a frame.
    #[error("the frame was not taken: {0}")]
    NotTaken(&'static str),
}
