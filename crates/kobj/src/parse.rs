//! Looks at frames and control messages without a device.

use usb4_wire::FrameView;

/// Walks the head of a frame of `frame_len` bytes, of which `len` are at `head`. Returns the number of chunks,
/// or -1 if the frame is malformed.
///
/// # Safety
/// `head` is valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_check_frame(head: *const u8, len: usize, frame_len: usize) -> i32 {
    // SAFETY: the caller promises `len` readable bytes at `head`.
    let head = unsafe { core::slice::from_raw_parts(head, len) };
    let Ok(view) = FrameView::parse(head, frame_len) else { return -1 };
    let mut count = 0_i32;
    for _ in view.chunks() {
        count = count.saturating_add(1);
    }
    count
}
