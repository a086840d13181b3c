//! One client's socket: a batch of messages in, a batch of replies out.
//!
//! QEMU posts register writes, so several messages often wait; all of them are read by one system call. The kernel ends
//! a `recvmsg` right behind the message that file descriptors came with, so they belong to the last message in the
//! buffer, whole or not.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::protocol::{FDS_MAX, Header, HeaderError, MESSAGE_MAX, Refused, Replies};

// There is always room for the rest of a message.
const _: () = assert!(BATCH > MESSAGE_MAX);

/// A client that leaves this many bytes of replies unread is not listened to until it has read them.
const UNREAD_MAX: usize = 256 << 10;
/// Bytes read at once: more than a thousand register writes, and more than one message.
const BATCH: usize = 64 << 10;

/// A connected client.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: UnixStream,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
}

/// What [`Connection::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Something,
    Nothing,
    /// The client has closed.
    End,
}

/// Why a client is dropped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("more than {FDS_MAX} file descriptors with one message")]
    TooManyFds,
    #[error("file descriptors with a message that has no use for them")]
    StrayFds,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for ConnectionError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// A whole message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) header: Header,
    pub(crate) body: &'a [u8],
    pub(crate) fds: Vec<OwnedFd>,
}

impl Connection {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            inbox: Inbox::new(),
            outbox: Outbox::default(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads what has come, without waiting.
    pub(crate) fn receive(&mut self) -> Result<Received, ConnectionError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let room = self.inbox.room();
        let got = match recvmsg(&self.socket, &mut [IoSliceMut::new(room)], &mut ancillary, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::End),
            Err(error) => return Err(error.into()),
        };
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ConnectionError::TooManyFds);
        }
        if got.bytes == 0 {
            return Ok(Received::End);
        }
        self.inbox.arrived(got.bytes, fds)?;
        Ok(Received::Something)
    }

    /// Sends what is ready, as far as the client takes it.
    pub(crate) fn send(&mut self) -> Result<(), ConnectionError> {
        while let Some((bytes, rider)) = self.outbox.next() {
            let rider: &[_] = &rider.map(AsFd::as_fd).into_iter().collect::<Vec<_>>();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !rider.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(rider));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
                Ok(sent) => self.outbox.sent(sent),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Bytes that have come and are not yet used.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    fds: Vec<OwnedFd>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; BATCH].into_boxed_slice(),
            start: 0,
            end: 0,
            fds: Vec::new(),
        }
    }

    /// Where more bytes go: never empty once all whole messages have been taken.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end = self.end.saturating_sub(self.start);
        self.start = 0;
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    pub(crate) fn arrived(&mut self, count: usize, mut fds: Vec<OwnedFd>) -> Result<(), ConnectionError> {
        self.end = self.end.saturating_add(count).min(self.bytes.len());
        self.fds.append(&mut fds);
        if self.fds.len() > FDS_MAX {
            return Err(ConnectionError::TooManyFds);
        }
        Ok(())
    }

    /// The next message, if all of it is there.
    pub(crate) fn next(&mut self) -> Result<Option<Message<'_>>, HeaderError> {
        let waiting = self.bytes.get(self.start..self.end).unwrap_or_default();
        let Some(header) = Header::parse(waiting)? else {
            return Ok(None);
        };
        let Some((message, _)) = waiting.split_at_checked(header.size) else {
            return Ok(None);
        };
        self.start = self.start.saturating_add(header.size);
        let fds = if self.start == self.end {
            std::mem::take(&mut self.fds)
        } else {
            Vec::new()
        };
        let (_, body) = message
            .split_at_checked(crate::protocol::HEADER)
            .unwrap_or_default();
        Ok(Some(Message { header, body, fds }))
    }
}

/// Replies that are not yet sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    replies: Replies,
    sent: usize,
    /// File descriptors that go along with a part of the bytes, in order.
    riders: VecDeque<(Range<usize>, OwnedFd)>,
}

impl Outbox {
    /// Answers with `parts`.
    pub(crate) fn done(&mut self, to: &Header, parts: &[&[u8]]) {
        self.replies.done(to, parts);
    }

    /// Answers with `body`, and a file descriptor beside it.
    pub(crate) fn done_with(&mut self, to: &Header, body: &[u8], fd: OwnedFd) {
        let start = self.replies.bytes.len();
        self.replies.done(to, &[body]);
        self.riders.push_back((start..self.replies.bytes.len(), fd));
    }

    /// Answers with an error number.
    pub(crate) fn refused(&mut self, to: &Header, why: Refused) {
        self.replies.refused(to, why);
    }

    /// Takes what would be sent.
    #[cfg(feature = "fuzz")]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.riders.clear();
        std::mem::take(&mut self.replies.bytes)
    }

    /// Something waits for the client to read.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.replies.bytes.is_empty()
    }

    /// More waits than is fair.
    pub(crate) fn is_full(&self) -> bool {
        self.replies.bytes.len().saturating_sub(self.sent) > UNREAD_MAX
    }

    /// What to send next: one reply and its file descriptor, or everything up to such a reply.
    fn next(&self) -> Option<(&[u8], Option<&OwnedFd>)> {
        let all = self.replies.bytes.len();
        let (end, rider) = match self.riders.front() {
            Some((part, fd)) if part.start == self.sent => (part.end, Some(fd)),
            Some((part, _)) => (part.start, None),
            None => (all, None),
        };
        let bytes = self.replies.bytes.get(self.sent..end).unwrap_or_default();
        (!bytes.is_empty()).then_some((bytes, rider))
    }

    fn sent(&mut self, count: usize) {
        // A descriptor goes with the first byte, even if no more than that is taken.
        if self
            .riders
            .front()
            .is_some_and(|(part, _)| part.start == self.sent)
        {
            self.riders.pop_front();
        }
        self.sent = self.sent.saturating_add(count);
        if self.sent >= self.replies.bytes.len() {
            self.replies.bytes.clear();
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::{Read, Write};

    fn pair() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Connection::new(ours), theirs)
    }

    /// A message of `size` bytes named `id`.
    fn message(id: u16, size: u32) -> Vec<u8> {
        let mut bytes = id.to_le_bytes().to_vec();
        bytes.extend_from_slice(&13u16.to_le_bytes());
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.resize(size as usize, 0);
        bytes
    }

    fn send_with(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
        let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty());
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// Ids and numbers of file descriptors of all messages that are there.
    fn all(connection: &mut Connection) -> Vec<(u16, usize)> {
        let mut seen = Vec::new();
        while let Some(message) = connection.inbox.next().unwrap() {
            seen.push((message.header.id, message.fds.len()));
        }
        seen
    }

    #[test]
    fn messages_that_wait_are_read_at_once_and_file_descriptors_go_with_theirs() {
        let (mut connection, mut client) = pair();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        client
            .write_all(&[message(1, 16), message(2, 24)].concat())
            .unwrap();
        send_with(&client, &message(3, 40), &[event.as_fd(), event.as_fd()]);
        client.write_all(&message(4, 16)).unwrap();
        assert_eq!(connection.receive().unwrap(), Received::Something);
        assert_eq!(all(&mut connection), [(1, 0), (2, 0), (3, 2)]);
        assert_eq!(connection.receive().unwrap(), Received::Something);
        assert_eq!(all(&mut connection), [(4, 0)]);
        assert_eq!(connection.receive().unwrap(), Received::Nothing);
        drop(client);
        assert_eq!(connection.receive().unwrap(), Received::End);
    }

    #[test]
    fn a_message_may_come_byte_by_byte() {
        let (mut connection, mut client) = pair();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        let bytes = message(9, 20);
        send_with(&client, &bytes[..1], &[event.as_fd()]);
        connection.receive().unwrap();
        for byte in &bytes[1..] {
            assert!(connection.inbox.next().unwrap().is_none());
            client.write_all(&[*byte]).unwrap();
            connection.receive().unwrap();
        }
        assert_eq!(all(&mut connection), [(9, 1)]);
    }

    #[test]
    fn messages_of_the_largest_size_come_through_across_batches() {
        let (mut connection, mut client) = pair();
        let largest = u32::try_from(MESSAGE_MAX).unwrap();
        let bytes: Vec<u8> = (0..20).flat_map(|id| message(id, largest - 5)).collect();
        let sender = std::thread::spawn(move || client.write_all(&bytes).unwrap());
        let mut seen = Vec::new();
        while seen.len() < 20 {
            connection.receive().unwrap();
            seen.append(&mut all(&mut connection));
        }
        assert_eq!(seen, (0..20).map(|id| (id, 0)).collect::<Vec<_>>());
        sender.join().unwrap();
    }

    #[test]
    fn too_many_file_descriptors_end_the_connection() {
        let (mut connection, client) = pair();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        send_with(&client, &message(1, 16), &[event.as_fd(); FDS_MAX + 1]);
        assert!(matches!(connection.receive(), Err(ConnectionError::TooManyFds)));
    }

    #[test]
    fn a_file_descriptor_leaves_with_its_reply_and_not_before() {
        let (mut connection, client) = pair();
        let header = Header::parse(&message(5, 16)).unwrap().unwrap();
        connection.outbox.done(&header, &[]);
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        connection.outbox.done_with(&header, &[1; 4], event);
        connection.outbox.done(&header, &[]);
        assert!(connection.outbox.is_blocked());
        connection.send().unwrap();
        assert!(!connection.outbox.is_blocked());

        // The kernel ends a read behind the bytes that a descriptor came with.
        let mut client = Connection::new(client);
        client.receive().unwrap();
        assert_eq!((client.inbox.end, client.inbox.fds.len()), (36, 1));
        client.receive().unwrap();
        assert_eq!((client.inbox.end, client.inbox.fds.len()), (52, 1));
    }

    #[test]
    fn a_client_that_does_not_read_is_noticed_and_gets_everything_later() {
        let (mut connection, mut client) = pair();
        let header = Header::parse(&message(5, 16)).unwrap().unwrap();
        let mut expected = 0;
        while !connection.outbox.is_full() {
            connection.outbox.done(&header, &[&[7; 4096]]);
            expected += 16 + 4096;
            connection.send().unwrap();
        }
        assert!(connection.outbox.is_blocked());
        let mut got = 0;
        while got < expected {
            let mut bytes = [0; 65536];
            got += client.read(&mut bytes).unwrap();
            connection.send().unwrap();
        }
        assert!(!connection.outbox.is_blocked());
    }
}
