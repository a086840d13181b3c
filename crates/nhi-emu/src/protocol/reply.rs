//! What we answer.

use super::{FDS_MAX, HEADER, Header, Refused, TRANSFER_MAX, flag, irq, region};

// `struct vfio_device_info`, `vfio_region_info`, `vfio_irq_info` and their flags.
const DEVICE_FLAGS_RESET: u32 = 1;
const DEVICE_FLAGS_PCI: u32 = 1 << 1;
const DEVICE_INFO: u32 = 16;
const REGION_FLAGS_READ_WRITE: u32 = 3;
const REGION_FLAGS_MMAP: u32 = 1 << 2;
const REGION_FLAGS_CAPS: u32 = 1 << 3;
const REGION_INFO: u32 = 32;
const IRQ_FLAGS_EVENTFD: u32 = 1;
const IRQ_FLAGS_NORESIZE: u32 = 1 << 3;
const IRQ_INFO: u32 = 16;
/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`, version 1 in the upper half.
const CAP_SPARSE_MMAP: u32 = 1 | 1 << 16;

/// A part of a region that a client may map: offset and bytes.
pub(crate) type Area = (u64, u64);

/// Where replies are put together, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// The bytes, ready to be sent.
    pub(crate) bytes: Vec<u8>,
}

impl Replies {
    /// Answers a command with `parts`, one behind the other.
    pub(crate) fn done(&mut self, to: &Header, parts: &[&[u8]]) {
        self.message(to, flag::REPLY, 0, parts);
    }

    /// Refuses a command.
    pub(crate) fn refused(&mut self, to: &Header, why: Refused) {
        // Linux error numbers are positive and small.
        let number = u32::try_from(why.raw_os_error()).unwrap_or_default();
        self.message(to, flag::REPLY | flag::ERROR, number, &[]);
    }

    fn message(&mut self, to: &Header, flags: u32, error: u32, parts: &[&[u8]]) {
        let size: usize = HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&to.id.to_le_bytes());
        self.bytes.extend_from_slice(&to.command.to_le_bytes());
        self.bytes.extend_from_slice(&words([size, flags, error]));
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }
}

/// Body of the reply to VERSION: 0.0 and our limits.
pub(crate) fn version() -> Vec<u8> {
    let capabilities = serde_json::json!({"capabilities": {
        "max_msg_fds": FDS_MAX,
        "max_data_xfer_size": TRANSFER_MAX,
        "write_multiple": true,
    }});
    let mut body = vec![0; 4];
    body.extend_from_slice(capabilities.to_string().as_bytes());
    body.push(0);
    body
}

/// Body of the reply to DEVICE_GET_INFO.
pub(crate) fn device_info() -> Vec<u8> {
    let flags = DEVICE_FLAGS_RESET | DEVICE_FLAGS_PCI;
    words([DEVICE_INFO, flags, region::COUNT, irq::COUNT])
}

/// Body of the reply to DEVICE_GET_REGION_INFO for a region of `size` bytes, and whether the file descriptor of the
/// mappable areas goes with it. A client asks with little room first, is told how much is needed, and asks again.
pub(crate) fn region_info(index: u32, size: u64, areas: &[Area], room: u32) -> (Vec<u8>, bool) {
    let mut flags = if size == 0 { 0 } else { REGION_FLAGS_READ_WRITE };
    let mut capability = Vec::new();
    if !areas.is_empty() {
        flags |= REGION_FLAGS_MMAP | REGION_FLAGS_CAPS;
        let count = u32::try_from(areas.len()).unwrap_or_default();
        capability = words([CAP_SPARSE_MMAP, 0, count, 0]);
        for (offset, size) in areas {
            capability.extend_from_slice(&offset.to_le_bytes());
            capability.extend_from_slice(&size.to_le_bytes());
        }
    }
    let needed = REGION_INFO.saturating_add(u32::try_from(capability.len()).unwrap_or(u32::MAX));
    let whole = !capability.is_empty() && room >= needed;
    let at = if capability.is_empty() { 0 } else { REGION_INFO };
    let mut body = words([needed, flags, index, at]);
    body.extend_from_slice(&size.to_le_bytes());
    body.extend_from_slice(&0u64.to_le_bytes());
    if whole {
        body.append(&mut capability);
    }
    (body, whole)
}

/// Body of the reply to DEVICE_GET_IRQ_INFO.
pub(crate) fn irq_info(index: u32, vectors: u32) -> Vec<u8> {
    words([IRQ_INFO, IRQ_FLAGS_EVENTFD | IRQ_FLAGS_NORESIZE, index, vectors])
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_names_its_command_and_its_own_size() {
        let header = Header::parse(&[7, 0, 9, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let header = header.unwrap().unwrap();
        let mut replies = Replies::default();
        replies.done(&header, &[&[1, 2], &[3]]);
        replies.refused(&header, Refused::INVAL);
        let expected = [
            [7, 0, 9, 0, 19, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0].as_slice(),
            &[1, 2, 3],
            &[7, 0, 9, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0],
        ];
        assert_eq!(replies.bytes, expected.concat());
    }

    #[test]
    fn mappable_areas_are_told_to_who_has_room() {
        let areas = [(0, 4096), (0x8000, 4096)];
        let (short, whole) = region_info(0, 0x40000, &areas, 32);
        assert_eq!((short.len(), whole), (32, false));
        assert_eq!(short[..16], words([80, 0xf, 0, 32])[..]);
        let (long, whole) = region_info(0, 0x40000, &areas, 80);
        assert_eq!((long.len(), whole), (80, true));
        assert_eq!(long[32..48], words([0x1_0001, 0, 2, 0])[..]);
        let (plain, whole) = region_info(7, 256, &[], 4096);
        assert_eq!((plain.len(), whole), (32, false));
        assert_eq!(plain[..16], words([32, 3, 7, 0])[..]);
    }
}
