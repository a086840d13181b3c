//! Listening sockets, and what epoll says about them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::StartError;

/// What an event is about, as epoll carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The process is to end.
    Stop,
    /// A controller's socket: somebody attaches to it, or who is attached has said something.
    Seat(u32),
    /// Somebody connects to the control socket.
    Control,
    /// Somebody connects to the socket for marks.
    Marks,
    /// Somebody who is connected to either has said something.
    Line(u32),
}

impl Source {
    const KIND: u32 = 32;

    fn data(self) -> EventData {
        let (kind, index) = match self {
            Self::Stop => (0, 0),
            Self::Seat(index) => (1, index),
            Self::Control => (2, 0),
            Self::Marks => (3, 0),
            Self::Line(index) => (4, index),
        };
        EventData::new_u64(kind << Self::KIND | u64::from(index))
    }

    pub(crate) fn of(data: EventData) -> Self {
        let index = u32::try_from(data.u64() & u64::from(u32::MAX)).unwrap_or_default();
        match data.u64() >> Self::KIND {
            1 => Self::Seat(index),
            2 => Self::Control,
            3 => Self::Marks,
            4 => Self::Line(index),
            _ => Self::Stop,
        }
    }
}

/// Has epoll wait until `what` can be read.
pub(crate) fn watch(epoll: &OwnedFd, what: impl AsFd, source: Source) -> io::Result<()> {
    Ok(epoll::add(epoll, what, source.data(), EventFlags::IN)?)
}

/// What epoll waits for at a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest(EventFlags);

impl Interest {
    /// As [`watch`] leaves it.
    pub(crate) fn reading() -> Self {
        Self(EventFlags::IN)
    }

    /// Has epoll wait until the connection can be read, written, or either.
    pub(crate) fn set(
        &mut self,
        epoll: &OwnedFd,
        what: impl AsFd,
        source: Source,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, read);
        flags.set(EventFlags::OUT, write);
        if flags != self.0 {
            epoll::modify(epoll, what, source.data(), flags)?;
            self.0 = flags;
        }
        Ok(())
    }
}

/// A listening socket, whose name goes when it does.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

impl Socket {
    /// Listens at `path`, in place of a socket nobody listens at any more.
    pub(crate) fn listen(path: PathBuf) -> Result<Self, StartError> {
        match UnixStream::connect(&path) {
            Ok(_) => return Err(StartError::InUse(path)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => remove(&path),
            Err(_) => {}
        }
        let listen = || {
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        match listen() {
            Ok(listener) => Ok(Self { path, listener }),
            Err(error) => Err(StartError::Listen { path, error }),
        }
    }

    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_epoll() {
        for source in [
            Source::Stop,
            Source::Seat(3),
            Source::Control,
            Source::Marks,
            Source::Line(u32::MAX),
        ] {
            assert_eq!(Source::of(source.data()), source);
        }
    }
}
