//! What a client asks.

use rustix::io::Errno;

use super::{HEADER, MESSAGE_MAX, Refused, TRANSFER_MAX, command, flag};

/// The 16 bytes in front of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Copied into the reply.
    pub(crate) id: u16,
    /// What is asked.
    pub(crate) command: u16,
    /// Bytes of the whole message.
    pub(crate) size: usize,
    flags: u32,
}

/// Why a stream of messages cannot be followed any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    /// The size is below that of the header or above what we take.
    #[error("a message of {0} bytes")]
    Size(u32),
    /// It is not a command.
    #[error("a message that is no command (flags {0:#x})")]
    NoCommand(u32),
}

impl Header {
    /// Reads a header if `bytes` hold one.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, HeaderError> {
        let fields = Fields(bytes);
        let (Some(size), Some(flags), Some(_error)) = (fields.u32(4), fields.u32(8), fields.u32(12)) else {
            return Ok(None);
        };
        let (Some(id), Some(command)) = (fields.u16(0), fields.u16(2)) else {
            return Ok(None);
        };
        let fits = |size: &usize| (HEADER..=MESSAGE_MAX).contains(size);
        let size = usize::try_from(size)
            .ok()
            .filter(fits)
            .ok_or(HeaderError::Size(size))?;
        if flags & flag::TYPE != 0 {
            return Err(HeaderError::NoCommand(flags));
        }
        Ok(Some(Self {
            id,
            command,
            size,
            flags,
        }))
    }

    /// The client waits for a reply.
    #[must_use]
    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & flag::NO_REPLY == 0
    }
}

/// A command and its arguments, all there and consistent with each other; whether the device has what they name is for
/// the device to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// Opens the conversation.
    Version {
        /// Must be 0.
        major: u16,
        /// The highest the client knows.
        minor: u16,
        /// JSON.
        capabilities: &'a [u8],
    },
    /// Guest memory appears; its file descriptor comes with the message, if it has one.
    DmaMap {
        /// The device may read it.
        readable: bool,
        /// The device may write it.
        writable: bool,
        /// Where it begins in the file.
        offset: u64,
        /// Bus address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// Guest memory disappears.
    DmaUnmap {
        /// All of it, whatever address and size say (they are 0).
        all: bool,
        /// Bus address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// What the device is.
    DeviceInfo,
    /// What a region is.
    RegionInfo {
        /// Bytes the client has room for.
        room: u32,
        /// Region number.
        index: u32,
    },
    /// What a kind of interrupt is.
    IrqInfo {
        /// Kind of interrupt.
        index: u32,
    },
    /// How interrupts are to be signalled.
    SetIrqs {
        /// Kind of interrupt.
        index: u32,
        /// First vector.
        start: u32,
        /// Vectors.
        count: u32,
        /// What about them.
        irqs: Irqs,
    },
    /// Reads from a region.
    Read {
        /// Region number.
        region: u32,
        /// Offset in it.
        offset: u64,
        /// Bytes, at most 4096.
        count: usize,
    },
    /// Writes to a region.
    Write {
        /// Region number.
        region: u32,
        /// Offset in it.
        offset: u64,
        /// The bytes, at most 4096.
        data: &'a [u8],
    },
    /// Writes that waited in the client.
    WriteMulti(Writes<'a>),
    /// Function reset.
    Reset,
}

/// What is to be done about a run of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Irqs {
    /// Signal them by the file descriptors that came along; those without one are not to be signalled.
    Signal,
    /// With no vectors: signal none of this kind any more.
    Disable,
}

// Bits of the `flags` of DMA_MAP, DMA_UNMAP (`VFIO_DMA_UNMAP_FLAG_ALL`) and SET_IRQS (`VFIO_IRQ_SET_*`).
const MAP_READ: u32 = 1;
const MAP_WRITE: u32 = 2;
const UNMAP_ALL: u32 = 2;
const SET_DATA_NONE: u32 = 1;
const SET_DATA_EVENTFD: u32 = 4;
const SET_ACTION_TRIGGER: u32 = 1 << 5;

/// Bytes of the arguments before the data of a region access.
const ACCESS: usize = 16;

impl<'a> Request<'a> {
    /// Reads the arguments of `command` from what follows the header.
    pub(crate) fn parse(command: u16, body: &'a [u8]) -> Result<Self, Errno> {
        let fields = Fields(body);
        Self::fields(command, fields)?.ok_or(Errno::INVAL)
    }

    /// None if the body is too short.
    fn fields(command: u16, fields: Fields<'a>) -> Result<Option<Self>, Refused> {
        let request = match command {
            command::VERSION => version(fields),
            command::DMA_MAP => dma_map(fields),
            command::DMA_UNMAP => dma_unmap(fields),
            command::DEVICE_GET_INFO => fields.u32(12).map(|_| Self::DeviceInfo),
            command::DEVICE_GET_REGION_INFO => region_info(fields),
            command::DEVICE_GET_IRQ_INFO => fields
                .u32(12)
                .and(fields.u32(8))
                .map(|index| Self::IrqInfo { index }),
            command::DEVICE_SET_IRQS => return set_irqs(fields),
            command::REGION_READ => return read(fields),
            command::REGION_WRITE => return write(fields),
            command::REGION_WRITE_MULTI => Writes::parse(fields).map(Self::WriteMulti),
            command::DEVICE_RESET => Some(Self::Reset),
            _ => return Err(Errno::NOTSUP),
        };
        Ok(request)
    }
}

fn version(fields: Fields<'_>) -> Option<Request<'_>> {
    let text = fields.rest(4)?;
    Some(Request::Version {
        major: fields.u16(0)?,
        minor: fields.u16(2)?,
        capabilities: text.strip_suffix(&[0]).unwrap_or(text),
    })
}

fn dma_map(fields: Fields<'_>) -> Option<Request<'_>> {
    let flags = fields.u32(4)?;
    Some(Request::DmaMap {
        readable: flags & MAP_READ != 0,
        writable: flags & MAP_WRITE != 0,
        offset: fields.u64(8)?,
        address: fields.u64(16)?,
        size: fields.u64(24)?,
    })
}

fn dma_unmap(fields: Fields<'_>) -> Option<Request<'_>> {
    Some(Request::DmaUnmap {
        all: fields.u32(4)? & UNMAP_ALL != 0,
        address: fields.u64(8)?,
        size: fields.u64(16)?,
    })
}

fn region_info(fields: Fields<'_>) -> Option<Request<'_>> {
    fields.u64(24)?;
    Some(Request::RegionInfo {
        room: fields.u32(0)?,
        index: fields.u32(8)?,
    })
}

fn set_irqs(fields: Fields<'_>) -> Result<Option<Request<'_>>, Refused> {
    let (Some(flags), Some(index), Some(start), Some(count)) =
        (fields.u32(4), fields.u32(8), fields.u32(12), fields.u32(16))
    else {
        return Ok(None);
    };
    const DISABLE: u32 = SET_DATA_NONE | SET_ACTION_TRIGGER;
    const SIGNAL: u32 = SET_DATA_EVENTFD | SET_ACTION_TRIGGER;
    let irqs = match (flags, count) {
        (DISABLE, 0) => Irqs::Disable,
        (SIGNAL, _) => Irqs::Signal,
        // Masking is the client's own affair: we never offer it.
        _ => return Err(Errno::INVAL),
    };
    Ok(Some(Request::SetIrqs {
        index,
        start,
        count,
        irqs,
    }))
}

fn read(fields: Fields<'_>) -> Result<Option<Request<'_>>, Refused> {
    let (Some(offset), Some(region), Some(count)) = (fields.u64(0), fields.u32(8), fields.u32(12)) else {
        return Ok(None);
    };
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= TRANSFER_MAX)
        .ok_or(Errno::INVAL)?;
    Ok(Some(Request::Read {
        region,
        offset,
        count,
    }))
}

fn write(fields: Fields<'_>) -> Result<Option<Request<'_>>, Refused> {
    let (Some(offset), Some(region), Some(count)) = (fields.u64(0), fields.u32(8), fields.u32(12)) else {
        return Ok(None);
    };
    let data = fields.rest(ACCESS).unwrap_or_default();
    if usize::try_from(count) != Ok(data.len()) || data.len() > TRANSFER_MAX {
        return Err(Errno::INVAL);
    }
    Ok(Some(Request::Write { region, offset, data }))
}

/// Writes of up to 8 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writes<'a>(&'a [u8]);

/// Bytes of an entry: offset, region, count, 8 bytes of data.
const ENTRY: usize = 24;

impl<'a> Writes<'a> {
    fn parse(fields: Fields<'a>) -> Option<Self> {
        let count = usize::try_from(fields.u64(0)?).ok()?;
        let entries = fields.rest(8)?;
        (count.checked_mul(ENTRY)? == entries.len()).then_some(Self(entries))
    }

    /// How many.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.0.len() / ENTRY
    }

    /// Region, offset and bytes of each; an entry that claims more than 8 bytes is left out.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u64, &'a [u8])> {
        self.0.chunks_exact(ENTRY).filter_map(|entry| {
            let fields = Fields(entry);
            let count = usize::try_from(fields.u32(12)?).ok()?;
            Some((fields.u32(8)?, fields.u64(0)?, fields.rest(16)?.get(..count)?))
        })
    }
}

/// Little-endian fields of a message; None past its end.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.rest(at)?.first_chunk().copied()
    }

    fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn rest(self, at: usize) -> Option<&'a [u8]> {
        self.0.get(at..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_header_is_waited_for_and_its_size_checked() {
        let bytes = words(&[0x000a_0007, 48, flag::NO_REPLY, 0]);
        assert_eq!(Header::parse(&bytes[..15]), Ok(None));
        let header = Header::parse(&bytes).unwrap().unwrap();
        assert_eq!((header.id, header.command, header.size), (7, 10, 48));
        assert!(!header.wants_reply());
        for size in [0, 15, (8 << 10) + 1, u32::MAX] {
            let bytes = words(&[0, size, 0, 0]);
            assert_eq!(Header::parse(&bytes), Err(HeaderError::Size(size)));
        }
        let reply = words(&[0, 16, flag::REPLY, 0]);
        assert_eq!(Header::parse(&reply), Err(HeaderError::NoCommand(1)));
    }

    #[test]
    fn a_write_must_bring_as_many_bytes_as_it_says() {
        let mut body = words(&[8, 0, region(), 4, 0xaabb]);
        assert_eq!(
            Request::parse(command::REGION_WRITE, &body),
            Ok(Request::Write {
                region: 0,
                offset: 8,
                data: &[0xbb, 0xaa, 0, 0]
            })
        );
        body.pop();
        assert_eq!(Request::parse(command::REGION_WRITE, &body), Err(Errno::INVAL));
        assert_eq!(
            Request::parse(command::REGION_WRITE, &body[..7]),
            Err(Errno::INVAL)
        );
    }

    fn region() -> u32 {
        super::super::region::BAR0
    }

    #[test]
    fn a_read_of_more_than_we_transfer_is_refused() {
        let body = words(&[0, 0, 7, 4097]);
        assert_eq!(Request::parse(command::REGION_READ, &body), Err(Errno::INVAL));
        let body = words(&[0, 0, 7, 4096]);
        assert!(Request::parse(command::REGION_READ, &body).is_ok());
    }

    #[test]
    fn many_writes_are_taken_apart_and_a_wrong_count_is_refused() {
        let mut body = words(&[2, 0]);
        body.extend(words(&[16, 0, 0, 4, 1, 2]));
        body.extend(words(&[24, 0, 0, 9, 1, 2]));
        let Ok(Request::WriteMulti(writes)) = Request::parse(command::REGION_WRITE_MULTI, &body) else {
            panic!("refused")
        };
        assert_eq!(writes.len(), 2);
        let all: Vec<_> = writes.iter().collect();
        assert_eq!(
            all,
            [(0, 16, &[1u8, 0, 0, 0][..])],
            "nine bytes do not fit an entry"
        );
        for count in [0u8, 1, 3, 255] {
            body[0] = count;
            assert_eq!(
                Request::parse(command::REGION_WRITE_MULTI, &body),
                Err(Errno::INVAL)
            );
        }
        body[..8].fill(0xff);
        assert_eq!(
            Request::parse(command::REGION_WRITE_MULTI, &body),
            Err(Errno::INVAL)
        );
    }

    #[test]
    fn interrupts_are_signalled_by_eventfd_or_not_at_all() {
        let set = |flags, count| {
            let body = words(&[20, flags, 2, 0, count]);
            Request::parse(command::DEVICE_SET_IRQS, &body).map(|request| match request {
                Request::SetIrqs { irqs, .. } => irqs,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(set(0x24, 3), Ok(Irqs::Signal));
        assert_eq!(set(0x21, 0), Ok(Irqs::Disable));
        for (flags, count) in [(0x21, 1), (0x22, 1), (0x0c, 1), (0x14, 1), (0, 0)] {
            assert_eq!(set(flags, count), Err(Errno::INVAL), "{flags:#x}");
        }
    }

    #[test]
    fn a_message_cut_anywhere_is_refused() {
        let bodies: [(u16, Vec<u8>); 7] = [
            (command::VERSION, vec![0; 4]),
            (command::DMA_MAP, vec![0; 32]),
            (command::DMA_UNMAP, vec![0; 24]),
            (command::DEVICE_GET_INFO, vec![0; 16]),
            (command::DEVICE_GET_REGION_INFO, vec![0; 32]),
            (command::DEVICE_GET_IRQ_INFO, vec![0; 16]),
            (command::REGION_READ, vec![0; 16]),
        ];
        for (command, body) in bodies {
            assert!(Request::parse(command, &body).is_ok(), "{command}");
            for cut in 0..body.len() {
                let cut = body.get(..cut).unwrap();
                assert_eq!(Request::parse(command, cut), Err(Errno::INVAL), "{command}");
            }
        }
        for command in [0, 6, 11, 12, 14, 16, u16::MAX] {
            assert_eq!(Request::parse(command, &[]), Err(Errno::NOTSUP), "{command}");
        }
    }
}
