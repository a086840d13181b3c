//! Reading a capture.

use std::io::{self, Read};

use super::{Record, block};

/// Longest block: a frame of 4096 bytes with everything around it is far below.
const BLOCK_MAX: usize = 64 << 10;

/// Reads records one after the other; blocks of other kinds are passed over.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: R,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It does not begin as a little-endian pcapng file does.
    #[error("not a capture file")]
    NotACapture,
    /// It ends in the middle of a block: the emulator was killed, or the disk is full.
    #[error("the file ends in the middle of a record")]
    Truncated,
    /// A block cannot be what it says.
    #[error("a damaged block of {0} bytes")]
    Damaged(u32),
    /// A packet in it is no record of this version.
    #[error("a packet that is no record of this version")]
    NoRecord,
    /// It cannot be read at all.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl<R: Read> Reader<R> {
    /// Checks the section header.
    pub fn new(mut input: R) -> Result<Self, ReadError> {
        match read_block(&mut input) {
            Ok(Some((block::SECTION, body))) if word(&body, 0) == Some(block::BYTE_ORDER) => {
                Ok(Self { input })
            }
            Err(ReadError::Io(error)) => Err(error.into()),
            _ => Err(ReadError::NotACapture),
        }
    }

    fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        while let Some((kind, body)) = read_block(&mut self.input)? {
            if kind == block::PACKET {
                return packet(&body).ok_or(ReadError::NoRecord).map(Some);
            }
        }
        Ok(None)
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

fn packet(body: &[u8]) -> Option<Record> {
    let time = u64::from(word(body, 4)?) << 32 | u64::from(word(body, 8)?);
    let length = usize::try_from(word(body, 12)?).ok()?;
    let data = body.get(block::PACKET_FIELDS..)?.get(..length)?;
    Record::parse(time, data)
}

/// The next block's type and body; None at the end.
fn read_block(input: &mut impl Read) -> Result<Option<(u32, Vec<u8>)>, ReadError> {
    let mut start = [0; 8];
    match fill(input, &mut start)? {
        0 => return Ok(None),
        8 => {}
        _ => return Err(ReadError::Truncated),
    }
    let (kind, length) = (word(&start, 0).unwrap_or(0), word(&start, 4).unwrap_or(0));
    let damaged = ReadError::Damaged(length);
    let fits = |length: &usize| (block::FRAMING..=BLOCK_MAX).contains(length) && length % 4 == 0;
    let Some(whole) = usize::try_from(length).ok().filter(fits) else {
        return Err(damaged);
    };
    let mut body = vec![0; whole.saturating_sub(start.len())];
    if fill(input, &mut body)? != body.len() {
        return Err(ReadError::Truncated);
    }
    let end = body.split_off(body.len().saturating_sub(4));
    if word(&end, 0) != Some(length) {
        return Err(damaged);
    }
    Ok(Some((kind, body)))
}

/// Reads as much of `buf` as there is.
fn fill(input: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0usize;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(count) => filled = filled.saturating_add(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::{Fate, Kind, Writer};
    use super::*;
    use usb4_nhi_model::{self as model, Cable, Event, LinkState, Nhi, Place, Port};

    fn port(nhi: usize, port: usize) -> Port {
        Port { nhi: Nhi(nhi), port }
    }

    fn events() -> Vec<Event<'static>> {
        let at = Place::Cable {
            cable: Cable(1),
            from: port(3, 1),
            to: port(0, 0),
        };
        vec![
            Event::Frame {
                at,
                hop: 8,
                sof: 1,
                eof: 2,
                bytes: &[1, 2, 3, 4, 5],
                fate: model::Fate::CorruptedSilently,
            },
            Event::Control {
                at: Place::FromHost(Nhi(2)),
                pdf: 6,
                bytes: &[0; 16],
                fate: model::Fate::Dropped("no path"),
            },
            Event::Link {
                cable: Cable(0),
                state: LinkState::Up { lanes: 2 },
            },
            Event::Interrupt {
                nhi: Nhi(1),
                vector: 4,
                lost: true,
            },
            Event::Note {
                nhi: Nhi(1),
                text: "router reset",
            },
        ]
    }

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, 4, 2).unwrap();
        for (time, event) in (1 << 40..).zip(events()) {
            writer.record(time, &event).unwrap();
        }
        writer.flush().unwrap();
        bytes
    }

    #[test]
    fn what_is_written_is_read_back() {
        let records: Vec<_> = Reader::new(&written()[..])
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(records.len(), 5);
        assert_eq!(
            records[0],
            Record {
                time: 1 << 40,
                kind: Kind::Frame {
                    at: Place::Cable {
                        cable: Cable(1),
                        from: port(3, 1),
                        to: port(0, 0)
                    },
                    hop: 8,
                    sof: 1,
                    eof: 2
                },
                fate: Fate::CorruptedSilently,
                bytes: vec![1, 2, 3, 4, 5],
            }
        );
        assert_eq!(records[1].fate, Fate::Dropped("no path".into()));
        assert_eq!(records[1].bytes.len(), 16);
        let state = LinkState::Up { lanes: 2 };
        assert_eq!(
            records[2].kind,
            Kind::Link {
                cable: Cable(0),
                state
            }
        );
        assert_eq!(
            records[3].kind,
            Kind::Interrupt {
                nhi: Nhi(1),
                vector: 4
            }
        );
        let text = "router reset".to_owned();
        assert_eq!(records[4].kind, Kind::Note { nhi: Nhi(1), text });
    }

    #[test]
    fn a_file_cut_anywhere_gives_whole_records_and_then_says_so() {
        let bytes = written();
        let whole: Vec<_> = Reader::new(&bytes[..]).unwrap().map(Result::unwrap).collect();
        for cut in 0..bytes.len() {
            let Ok(reader) = Reader::new(&bytes[..cut]) else {
                continue;
            };
            for (seen, record) in reader.enumerate() {
                match record {
                    Ok(record) => assert_eq!(record, whole[seen]),
                    Err(error) => {
                        assert!(matches!(error, ReadError::Truncated), "{error}");
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn damage_anywhere_neither_panics_nor_runs_on_for_ever() {
        let bytes = written();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            if let Ok(reader) = Reader::new(&damaged[..]) {
                assert!(reader.take_while(Result::is_ok).count() <= 5);
            }
        }
        assert!(matches!(Reader::new(&b"PNG"[..]), Err(ReadError::NotACapture)));
        assert!(matches!(Reader::new(&[][..]), Err(ReadError::NotACapture)));
    }

    #[test]
    fn blocks_are_as_pcapng_has_them() {
        let bytes = written();
        assert_eq!(
            bytes[..28],
            [
                &[
                    0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0
                ][..],
                &[0xff; 8],
                &[28, 0, 0, 0]
            ]
            .concat()
        );
        let interface = &bytes[28..68];
        assert_eq!(
            interface[..16],
            [1, 0, 0, 0, 40, 0, 0, 0, 147, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            interface[16..28],
            [2, 0, 4, 0, b'n', b'h', b'i', b'0', 9, 0, 1, 0]
        );
    }
}
