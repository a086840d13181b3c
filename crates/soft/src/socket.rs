//! Unix sockets with abstract names: how soft devices of one user find and reach each other. An abstract name
//! vanishes with its socket, so a killed process leaves nothing behind.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use usb4_engine::Nanos;

/// Most descriptors one message carries.
pub(crate) const MAX_FDS: usize = 4;

/// Connections waiting to be accepted. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 1024;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn socket() -> io::Result<OwnedFd> {
    // Sequenced packets: a message arrives whole or not at all, and the end of the peer is seen.
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        FLAGS,
        None,
    )?)
}

/// Listens at `name`. `AddrInUse` when somebody else does.
pub(crate) fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to `name` at once or not at all: `ConnectionRefused` when nobody listens, `WouldBlock` when too
/// many wait already.
pub(crate) fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// How long a listener is left alone after [`is_exhausted`].
pub(crate) const ACCEPT_PAUSE: Nanos = 100_000_000;

/// Whether accepting failed for want of something other than a caller: descriptors or memory. The caller still waits.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let transient = [
        libc::EAGAIN,
        libc::EINTR,
        libc::ECONNABORTED,
        libc::EPROTO,
        libc::EPERM,
    ];
    error.raw_os_error().is_none_or(|code| !transient.contains(&code))
}

/// Accepts a waiting connection.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, FLAGS)?)
}

/// The process at the other end, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Its process id, 0 where it is not visible from here.
    pub(crate) pid: u32,
    /// Its effective user.
    pub(crate) uid: u32,
}

/// Who is at the other end.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
    // SAFETY: `cred` is as long as `len` says, and both outlive the call.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    match rc {
        0 => Ok(Credentials {
            pid: u32::try_from(cred.pid).unwrap_or(0),
            uid: cred.uid,
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a message with descriptors, whole or not at all.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Message {
    /// Bytes received; 0 = the peer has closed.
    pub(crate) len: usize,
    /// Descriptors that came along, at most [`MAX_FDS`].
    pub(crate) fds: Vec<OwnedFd>,
}

/// Receives a message into `bytes`. `WouldBlock` when there is none; a message longer than `bytes` is an
/// error.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Message> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got
        .flags
        .intersects(rustix::net::ReturnFlags::TRUNC | rustix::net::ReturnFlags::CTRUNC)
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message longer than the protocol has",
        ));
    }
    Ok(Message { len: got.bytes, fds })
}

/// The abstract names somebody listens at in this network namespace.
pub(crate) fn listening(prefix: &str) -> io::Result<Vec<String>> {
    let table = std::fs::read("/proc/net/unix")?;
    Ok(parse_listening(&String::from_utf8_lossy(&table), prefix))
}

/// `/proc/net/unix`: "Num RefCount Protocol Flags Type St Inode Path", an abstract path starting with '@'.
fn parse_listening(table: &str, prefix: &str) -> Vec<String> {
    /// `__SO_ACCEPTCON`: the socket listens. Connections accepted from it show the same name without it.
    const ACCEPTING: u32 = 1 << 16;
    let name = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
        let path = fields.nth(3)?.strip_prefix('@')?;
        (flags & ACCEPTING != 0 && path.starts_with(prefix)).then(|| path.to_owned())
    };
    table.lines().filter_map(name).collect()
}

/// An eventfd at 0: a doorbell.
pub(crate) fn doorbell() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Whether a descriptor another process has sent is a doorbell, and ringing it never makes us wait: a pipe could,
/// or end the process by a signal.
pub(crate) fn is_doorbell(fd: BorrowedFd<'_>) -> bool {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]")
        && rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Makes a doorbell readable. One that overflows is readable already.
pub(crate) fn ring(doorbell: impl AsFd) {
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

/// Makes a doorbell unreadable again.
pub(crate) fn silence(doorbell: impl AsFd) {
    let _ = rustix::io::read(doorbell, &mut [0; 8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> String {
        format!("usb4-soft-test/{}/{test}", std::process::id())
    }

    #[test]
    fn a_message_carries_its_descriptors() {
        let listener = listen(&name("fds")).unwrap();
        let there = connect(&name("fds")).unwrap();
        let here = accept(listener.as_fd()).unwrap();
        let bell = doorbell().unwrap();
        send(there.as_fd(), b"hello", &[bell.as_fd()]).unwrap();
        let mut bytes = [0; 16];
        let message = receive(here.as_fd(), &mut bytes).unwrap();
        assert_eq!((&bytes[..message.len], message.fds.len()), (&b"hello"[..], 1));
        ring(&message.fds[0]);
        let mut count = [0; 8];
        rustix::io::read(&bell, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        assert_eq!(
            receive(here.as_fd(), &mut bytes).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(there);
        assert_eq!(receive(here.as_fd(), &mut bytes).unwrap().len, 0);
    }

    #[test]
    fn only_an_event_descriptor_that_does_not_block_is_a_doorbell() {
        use rustix::event::{EventfdFlags, eventfd};
        let (_reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        assert!(!is_doorbell(writer.as_fd()));
        assert!(!is_doorbell(eventfd(0, EventfdFlags::CLOEXEC).unwrap().as_fd()));
        assert!(is_doorbell(doorbell().unwrap().as_fd()));
    }

    #[test]
    fn an_oversized_message_is_an_error() {
        let listener = listen(&name("long")).unwrap();
        let there = connect(&name("long")).unwrap();
        let here = accept(listener.as_fd()).unwrap();
        send(there.as_fd(), &[0; 32], &[]).unwrap();
        assert_eq!(
            receive(here.as_fd(), &mut [0; 16]).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn the_peer_is_who_the_kernel_says() {
        let listener = listen(&name("cred")).unwrap();
        let there = connect(&name("cred")).unwrap();
        let here = accept(listener.as_fd()).unwrap();
        let ours = Credentials {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
        };
        assert_eq!(credentials(here.as_fd()).unwrap(), ours);
        assert_eq!(credentials(there.as_fd()).unwrap(), ours);
    }

    #[test]
    fn listeners_are_listed_and_connections_are_not() {
        let prefix = name("list");
        let listener = listen(&format!("{prefix}/a")).unwrap();
        let _other = listen(&format!("{prefix}/b")).unwrap();
        let _there = connect(&format!("{prefix}/a")).unwrap();
        let _here = accept(listener.as_fd()).unwrap();
        let mut found = listening(&prefix).unwrap();
        found.sort();
        assert_eq!(found, [format!("{prefix}/a"), format!("{prefix}/b")]);
        drop(listener);
        assert_eq!(
            connect(&format!("{prefix}/a")).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn a_table_with_odd_lines_is_read_without_harm() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 1234 @p/x\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 1235 @p/x\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 1236\n\
            0000000000000000: 00000002 00000000 zz 0001 01 1236 @p/y\n\n";
        assert_eq!(parse_listening(table, "p/"), ["p/x"]);
    }
}
