//! A connection, cut into lines.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// Longest line: an injected frame of 4096 bytes is 8192 digits.
const LINE_MAX: usize = 16 << 10;
/// Who leaves more than this unread is not listened to until it has been read. An answer is at most a few kilobytes.
const UNREAD_MAX: usize = 256 << 10;

/// A connection of lines.
#[derive(Debug)]
pub(crate) struct Lines {
    socket: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
        })
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Reads some of what has come; false at the end.
    pub(crate) fn receive(&mut self) -> io::Result<bool> {
        if self.is_full() {
            return Ok(true);
        }
        let mut space = [0; 4096];
        match (&self.socket).read(&mut space) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.input
                    .extend_from_slice(space.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(error) if is_nothing(&error) => Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next whole line, without its end.
    pub(crate) fn next(&mut self) -> io::Result<Option<String>> {
        let Some(end) = self.input.iter().position(|&byte| byte == b'\n') else {
            if self.input.len() > LINE_MAX {
                return Err(io::Error::other(format!("a line of more than {LINE_MAX} bytes")));
            }
            return Ok(None);
        };
        let line: Vec<u8> = self.input.drain(..=end).collect();
        Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
    }

    /// Puts a line with those to be sent.
    pub(crate) fn say(&mut self, line: &str) {
        self.output.extend_from_slice(line.as_bytes());
        self.output.push(b'\n');
    }

    /// Sends what the other side takes.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match (&self.socket).write(&self.output) {
                Ok(count) => {
                    self.output.drain(..count);
                }
                Err(error) if is_nothing(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Something waits for the other side to read.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.output.is_empty()
    }

    /// More waits than is fair.
    pub(crate) fn is_full(&self) -> bool {
        self.output.len() > UNREAD_MAX
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Lines, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Lines::new(ours).unwrap(), theirs)
    }

    #[test]
    fn lines_come_whole_however_they_are_sent() {
        let (mut lines, mut peer) = pair();
        for (sent, got) in [
            ("pl", None),
            ("ug 0\r\nst", Some("plug 0")),
            ("ats\n", Some("stats")),
        ] {
            peer.write_all(sent.as_bytes()).unwrap();
            assert!(lines.receive().unwrap());
            assert_eq!(lines.next().unwrap().as_deref(), got);
        }
        assert!(lines.receive().unwrap(), "nothing is not the end");
        drop(peer);
        assert!(!lines.receive().unwrap());
    }

    #[test]
    fn an_endless_line_ends_the_connection() {
        let (mut lines, mut peer) = pair();
        let mut outcome = Ok(None);
        for _ in 0..5 {
            assert!(outcome.unwrap().is_none());
            peer.write_all(&[b'x'; 4096]).unwrap();
            lines.receive().unwrap();
            outcome = lines.next();
        }
        assert!(outcome.is_err());
    }

    #[test]
    fn who_does_not_read_is_not_listened_to() {
        let (mut lines, mut peer) = pair();
        while !lines.is_full() {
            lines.say(&"x".repeat(10_000));
            lines.send().unwrap();
        }
        peer.write_all(b"stats\n").unwrap();
        assert!(lines.receive().unwrap());
        assert_eq!(lines.next().unwrap(), None);
        while lines.is_blocked() {
            let count = peer.read(&mut [0; 65536]).unwrap();
            assert!(count > 0);
            lines.send().unwrap();
        }
        assert!(lines.receive().unwrap());
        assert_eq!(lines.next().unwrap().as_deref(), Some("stats"));
    }
}
