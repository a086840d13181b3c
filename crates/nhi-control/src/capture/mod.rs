//! Capture files: what crossed the cables, when, and what became of it.
//!
//! The file is pcapng (draft-ietf-opsawg-pcapng), so that common tools can cut and merge it: link type USER0, one
//! interface per controller and per cable, nanoseconds since the emulator started. A packet's data is a record header
//! of 16 bytes, a text, and the bytes that crossed. Little endian:
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 1 | format, 1 |
//! | 1 | 1 | kind: 1 control packet, 2 frame, 3 link, 4 interrupt, 5 note |
//! | 2 | 1 | place: 0 nowhere, 1 from a host to its router, 2 from a router to its host, 3 on a cable |
//! | 3 | 1 | fate: 0 passed, 1 corrupted, 2 corrupted where no hardware sees it, 3 doubled, 4 dropped or lost |
//! | 4 | 1 | controller, or the one that sent it |
//! | 5 | 1 | port it was sent from (on a cable) |
//! | 6 | 1 | controller it goes to (on a cable) |
//! | 7 | 1 | port it goes to (on a cable) |
//! | 8 | 1 | packet type (control), PDF of the first packet (frame), state 0 down, 1 training, 2 recovery, 3 up (link) |
//! | 9 | 1 | PDF of the last packet (frame), lanes (link) |
//! | 10 | 2 | ring or HopID (frame), vector (interrupt) |
//! | 12 | 2 | cable (on a cable, link) |
//! | 14 | 2 | bytes of the text: why it was dropped, or the note |
//!
//! * `record.rs`: one record, to and from bytes.
//! * `write.rs`, `read.rs`: the blocks around it.

mod read;
mod record;
mod write;

pub use read::{ReadError, Reader};
pub use record::{Fate, Kind, Record};
pub use write::Writer;

/// Blocks and options of pcapng.
mod block {
    /// Section header, and the number that tells its byte order.
    pub(super) const SECTION: u32 = 0x0a0d_0d0a;
    pub(super) const BYTE_ORDER: u32 = 0x1a2b_3c4d;
    pub(super) const INTERFACE: u32 = 1;
    pub(super) const PACKET: u32 = 6;
    /// Type, length, and the length again.
    pub(super) const FRAMING: usize = 12;
    /// Interface, two halves of the time, two lengths.
    pub(super) const PACKET_FIELDS: usize = 20;
    /// `LINKTYPE_USER0`.
    pub(super) const USER0: u16 = 147;
    pub(super) const OPTION_END: u16 = 0;
    pub(super) const OPTION_NAME: u16 = 2;
    pub(super) const OPTION_RESOLUTION: u16 = 9;
    /// Time in units of 10^-9 seconds.
    pub(super) const NANOSECONDS: u8 = 9;
}
