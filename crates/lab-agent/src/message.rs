//! What the bodies of some frames say.

/// A terminal's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Lines.
    pub rows: u16,
    /// Characters per line.
    pub columns: u16,
}

impl Terminal {
    /// The body of a frame.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.rows.to_le_bytes(), self.columns.to_le_bytes());
        [a, b, c, d]
    }

    /// Reads a body; `None` if it is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Terminal> {
        let &[a, b, c, d] = bytes else { return None };
        Some(Terminal {
            rows: u16::from_le_bytes([a, b]),
            columns: u16::from_le_bytes([c, d]),
        })
    }
}

/// A command to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Program and arguments, without zero bytes.
    pub argv: Vec<String>,
    /// Give it a terminal of this size, and not pipes.
    pub terminal: Option<Terminal>,
}

impl Start {
    /// The body of a frame.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = match self.terminal {
            None => vec![0],
            Some(terminal) => [&[1][..], &terminal.to_bytes()].concat(),
        };
        bytes.extend_from_slice(self.argv.join("\0").as_bytes());
        bytes
    }

    /// Reads a body; `None` if it is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Start> {
        let (terminal, argv) = match bytes.split_first()? {
            (0, argv) => (None, argv),
            (1, rest) => {
                let (size, argv) = rest.split_at_checked(4)?;
                (Some(Terminal::from_bytes(size)?), argv)
            }
            _ => return None,
        };
        let argv = std::str::from_utf8(argv).ok()?;
        Some(Start {
            argv: argv.split('\0').map(str::to_string).collect(),
            terminal,
        })
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Status(i32),
    /// This signal ended it.
    Signal(i32),
    /// It could not be started, and why.
    NotStarted(String),
}

impl End {
    /// The body of a frame.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, rest) = match self {
            End::Status(status) => (0, status.to_le_bytes().to_vec()),
            End::Signal(signal) => (1, signal.to_le_bytes().to_vec()),
            End::NotStarted(why) => (2, why.clone().into_bytes()),
        };
        [vec![kind], rest].concat()
    }

    /// Reads a body; `None` if it is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<End> {
        let (kind, rest) = bytes.split_first()?;
        Some(match kind {
            0 => End::Status(i32::from_le_bytes(rest.try_into().ok()?)),
            1 => End::Signal(i32::from_le_bytes(rest.try_into().ok()?)),
            2 => End::NotStarted(String::from_utf8_lossy(rest).into_owned()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_come_out_as_they_went_in() {
        let terminal = Terminal {
            rows: 24,
            columns: 300,
        };
        for terminal in [None, Some(terminal)] {
            let argv = ["sh", "", "-c", "echo ä"].map(str::to_string).to_vec();
            let start = Start { argv, terminal };
            assert_eq!(Start::from_bytes(&start.to_bytes()), Some(start));
        }
        for end in [End::Status(-1), End::Signal(9), End::NotStarted("no".into())] {
            assert_eq!(End::from_bytes(&end.to_bytes()), Some(end));
        }
    }

    #[test]
    fn what_is_no_body_is_none() {
        assert_eq!(Start::from_bytes(&[1, 0, 0]), None);
        assert_eq!(Start::from_bytes(&[0, 0xff]), None);
        assert_eq!(End::from_bytes(&[0, 1]), None);
        assert_eq!(End::from_bytes(&[]), None);
        assert_eq!(Terminal::from_bytes(&[0; 5]), None);
    }
}
