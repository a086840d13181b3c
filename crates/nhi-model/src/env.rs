//! What the fabric needs from outside, and what it tells.

use crate::{Cable, LinkState, Nanos, Nhi, Port};

/// Guest memory and interrupts, as the front end has them.
pub trait Env {
    /// DMA read of guest memory at bus address `addr`; false if any byte of it may not be read (then `buf` may hold
    /// anything).
    fn read(&mut self, nhi: Nhi, addr: u64, buf: &mut [u8]) -> bool;

    /// DMA write; false if any byte may not be written (then nothing need be).
    ///
    /// Writes become visible in call order. One of 4 bytes at a multiple of 4 is a single store: it is how a
    /// descriptor is handed back to a guest that polls it.
    fn write(&mut self, nhi: Nhi, addr: u64, bytes: &[u8]) -> bool;

    /// Sends one MSI-X message.
    fn interrupt(&mut self, nhi: Nhi, vector: u16);

    /// Something happened that a log or a capture would show.
    fn observe(&mut self, now: Nanos, event: &Event<'_>) {
        let _ = (now, event);
    }
}

/// Where a packet or frame was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// From a host to its own router.
    FromHost(Nhi),
    /// From a router to its own host.
    ToHost(Nhi),
    /// On a cable.
    Cable {
        /// The cable.
        cable: Cable,
        /// The end it was sent from.
        from: Port,
        /// The end it goes to.
        to: Port,
    },
}

/// What became of a packet or frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It went on.
    Passed,
    /// It went on with a bit changed, and the receiving controller flags the CRC error.
    Corrupted,
    /// It went on with a bit changed that no hardware check sees.
    CorruptedSilently,
    /// It went on, twice.
    Duplicated,
    /// It ended here, for this reason.
    Dropped(&'static str),
}

/// Something worth recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A control packet: what ring 0 carries, and what crosses a cable between domains.
    Control {
        /// Where.
        at: Place,
        /// Packet type (the PDF): see [`crate::ControlPacket`].
        pdf: u8,
        /// Big-endian doublewords and their CRC32C, as in the ring buffer.
        bytes: &'a [u8],
        /// What became of it.
        fate: Fate,
    },
    /// A data frame.
    Frame {
        /// Where.
        at: Place,
        /// TX ring it came from, or RX ring it went to; on a cable, the HopID.
        hop: u32,
        /// PDF of its first packet.
        sof: u8,
        /// PDF of its last packet.
        eof: u8,
        /// The payload.
        bytes: &'a [u8],
        /// What became of it.
        fate: Fate,
    },
    /// A cable's link changed.
    Link {
        /// The cable.
        cable: Cable,
        /// Its new state.
        state: LinkState,
    },
    /// An MSI-X message was sent, or lost to a fault.
    Interrupt {
        /// The controller.
        nhi: Nhi,
        /// The vector.
        vector: u16,
        /// A fault swallowed it.
        lost: bool,
    },
    /// Something rare about a controller that a log should show: a reset, PME, a hot plug event nobody acknowledges.
    Note {
        /// The controller.
        nhi: Nhi,
        /// A sentence.
        text: &'static str,
    },
}
