//! A frame: command number, kind, length, body.

use std::io::{self, ErrorKind, Read, Write};

/// Longest body. Longer data goes in several frames.
pub const BODY_MAX: usize = 64 << 10;

const HEADER: usize = 9;

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// To the guest: run a command; the body is a [`Start`](crate::Start).
    Start = 1,
    /// To the guest: bytes for its standard input; an empty body closes it.
    Stdin = 2,
    /// To the guest: send its process group the signal whose number is the body's only byte.
    Signal = 3,
    /// To the guest: its terminal's new size, a [`Terminal`](crate::Terminal).
    Resize = 4,
    /// To the host: the agent is there.
    Hello = 16,
    /// To the host: bytes of its standard output, or of its terminal.
    Stdout = 17,
    /// To the host: bytes of its standard error.
    Stderr = 18,
    /// To the host: it has ended; the body is an [`End`](crate::End).
    End = 19,
}

impl Kind {
    fn known(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Start, Stdin, Signal, Resize, Hello, Stdout, Stderr, End]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The command it belongs to.
    pub id: u32,
    /// What it is about.
    pub kind: Kind,
    /// At most [`BODY_MAX`] bytes.
    pub body: Vec<u8>,
}

impl Frame {
    /// Reads the next frame; `None` where the stream ends between two frames.
    ///
    /// # Errors
    /// The stream breaks off within a frame, or what is there is no frame.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Frame>> {
        let mut header = [0; HEADER];
        let (first, rest) = header.split_at_mut(1);
        if from.read(first)? == 0 {
            return Ok(None);
        }
        from.read_exact(rest)?;
        let [a, b, c, d, kind, len @ ..] = header;
        let wrong = |what: &str| io::Error::new(ErrorKind::InvalidData, what);
        let kind = Kind::known(kind).ok_or_else(|| wrong("a frame of an unknown kind"))?;
        let len = usize::try_from(u32::from_le_bytes(len)).map_err(|_| wrong("a frame too long"))?;
        if len > BODY_MAX {
            return Err(wrong("a frame too long"));
        }
        let mut body = vec![0; len];
        from.read_exact(&mut body)?;
        let id = u32::from_le_bytes([a, b, c, d]);
        Ok(Some(Frame { id, kind, body }))
    }

    /// Writes the frame in one call.
    ///
    /// # Errors
    /// Those of the stream; `InvalidInput` for a body that is too long.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let len = u32::try_from(self.body.len())
            .ok()
            .filter(|_| self.body.len() <= BODY_MAX)
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a frame too long"))?;
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend_from_slice(&self.id.to_le_bytes());
        bytes.push(self.kind as u8);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&self.body);
        to.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in() {
        let frames = [
            Frame {
                id: 7,
                kind: Kind::Stdout,
                body: b"hello".to_vec(),
            },
            Frame {
                id: u32::MAX,
                kind: Kind::Stdin,
                body: vec![],
            },
        ];
        let mut bytes = vec![];
        frames.iter().for_each(|frame| frame.write(&mut bytes).unwrap());
        let mut from = bytes.as_slice();
        for frame in &frames {
            assert_eq!(Frame::read(&mut from).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from).unwrap(), None);
    }

    #[test]
    fn a_stream_that_breaks_off_within_a_frame_is_an_error() {
        let mut bytes = vec![];
        let frame = Frame {
            id: 1,
            kind: Kind::Stdout,
            body: b"hello".to_vec(),
        };
        frame.write(&mut bytes).unwrap();
        bytes.pop();
        assert!(Frame::read(&mut bytes.as_slice()).is_err());
    }

    #[test]
    fn what_is_no_frame_is_refused_before_its_length_is_believed() {
        let wrong_kind = [0, 0, 0, 0, 99, 0, 0, 0, 0];
        let too_long = [0, 0, 0, 0, 17, 255, 255, 255, 255];
        for bytes in [wrong_kind, too_long] {
            assert_eq!(
                Frame::read(&mut bytes.as_slice()).unwrap_err().kind(),
                ErrorKind::InvalidData
            );
        }
    }
}
