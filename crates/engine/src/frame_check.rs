//! What the home needs to check a payload CRC before it hands a frame over.

use core::ops::Range;

use usb4_wire::FrameView;

/// Where the payload lies whose CRC32C is the little-endian word that follows it, in a frame of `frame_len`
/// bytes that begins with `head`. `None` if the frame carries no payload CRC, or is not valid (the link drops
/// it).
pub fn payload_span(head: &[u8], frame_len: u16) -> Option<Range<u16>> {
    let view = FrameView::parse(head, usize::from(frame_len)).ok()?;
    view.header().payload_crc.then(|| view.payload())
}
