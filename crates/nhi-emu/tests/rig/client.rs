//! A vfio-user client.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const DEVICE_INFO: u16 = 4;
pub const REGION_INFO: u16 = 5;
pub const IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const READ: u16 = 9;
pub const WRITE: u16 = 10;
pub const RESET: u16 = 13;
pub const WRITE_MULTI: u16 = 15;

pub const BAR0: u32 = 0;
pub const CONFIG: u32 = 7;
pub const MSIX: u32 = 2;
/// Flags of SET_IRQS: eventfds to be triggered, or none of them any more.
pub const SIGNAL: u32 = 0x24;
pub const DISABLE: u32 = 0x21;

pub const EINVAL: u32 = 22;
const NO_REPLY: u32 = 1 << 4;

/// A reply: its body, or the error number; and what came along.
pub type Reply = (Result<Vec<u8>, u32>, Vec<OwnedFd>);

pub struct Client {
    pub socket: UnixStream,
    next: u16,
}

/// Bytes of numbers, little endian.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

pub fn header(id: u16, command: u16, size: usize, flags: u32) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend_from_slice(&command.to_le_bytes());
    bytes.extend_from_slice(&words(&[size as u32, flags, 0]));
    bytes
}

pub fn memfd(size: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, size).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

impl Client {
    /// Connects, and says nothing yet.
    pub fn connect(dir: &Path, nhi: usize) -> Self {
        let socket = UnixStream::connect(dir.join(format!("nhi{nhi}.sock"))).unwrap();
        socket.set_read_timeout(Some(super::PATIENCE)).unwrap();
        socket.set_write_timeout(Some(super::PATIENCE)).unwrap();
        Self { socket, next: 0 }
    }

    /// Connects and exchanges versions.
    pub fn greeted(dir: &Path, nhi: usize) -> Self {
        let mut client = Self::connect(dir, nhi);
        let capabilities = br#"{"capabilities":{"max_msg_fds":16,"write_multiple":true}}"#;
        let body = [&[0; 4][..], capabilities, &[0]].concat();
        let reply = client.ask(VERSION, &body, &[]).0.unwrap();
        let text = reply[4..].strip_suffix(&[0]).unwrap();
        let answer: serde_json::Value = serde_json::from_slice(text).unwrap();
        assert_eq!(answer["capabilities"]["write_multiple"], true);
        client
    }

    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let sent = sendmsg(
            &self.socket,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// A command nobody answers.
    pub fn post(&mut self, command: u16, body: &[u8]) {
        let head = header(0, command, 16 + body.len(), NO_REPLY);
        self.send(&[&head, body].concat(), &[]);
    }

    pub fn ask(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        self.next = self.next.wrapping_add(1);
        let head = header(self.next, command, 16 + body.len(), 0);
        self.send(&[&head, body].concat(), fds);
        let (head, fds) = self.receive_header();
        assert_eq!(
            head[..4],
            [self.next.to_le_bytes(), command.to_le_bytes()].concat()
        );
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(4) as usize - 16];
        self.socket.read_exact(&mut body).unwrap();
        match word(8) {
            0x01 => (Ok(body), fds),
            0x21 => (Err(word(12)), fds),
            flags => panic!("flags {flags:#x}"),
        }
    }

    /// As QEMU does: the header first, and what comes with it.
    fn receive_header(&mut self) -> ([u8; 16], Vec<OwnedFd>) {
        let mut head = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut head)],
            &mut ancillary,
            RecvFlags::WAITALL,
        );
        assert_eq!(got.unwrap().bytes, 16, "the emulator has closed the connection");
        let fds = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let fds = fds.collect();
        (head, fds)
    }

    /// Whether the emulator closes the connection instead of answering.
    pub fn is_dropped(&mut self) -> bool {
        matches!(self.socket.read(&mut [0]), Ok(0) | Err(_))
    }

    pub fn map(&mut self, address: u64, size: u64, offset: u64, fds: &[BorrowedFd<'_>]) -> Result<(), u32> {
        let body = [words(&[32, 3]), longs(&[offset, address, size])].concat();
        self.ask(DMA_MAP, &body, fds)
            .0
            .map(|body| assert!(body.is_empty()))
    }

    pub fn unmap(&mut self, address: u64, size: u64) -> Result<(), u32> {
        let body = [words(&[24, 0]), longs(&[address, size])].concat();
        let reply = self.ask(DMA_UNMAP, &body, &[]).0;
        reply.map(|reply| assert_eq!(reply, body))
    }

    pub fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), u32> {
        let body = words(&[20, flags, index, start, count]);
        self.ask(SET_IRQS, &body, fds)
            .0
            .map(|body| assert!(body.is_empty()))
    }

    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let body = [longs(&[offset]), words(&[region, count])].concat();
        let reply = self.ask(READ, &body, &[]).0?;
        assert_eq!(reply[..16], body);
        Ok(reply[16..].to_vec())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), u32> {
        let access = [longs(&[offset]), words(&[region, data.len() as u32])].concat();
        let reply = self.ask(WRITE, &[&access, data].concat(), &[]).0?;
        assert_eq!(reply, access);
        Ok(())
    }

    /// A register write that is not answered, as QEMU makes them.
    pub fn post_write(&mut self, offset: u64, value: u32) {
        let access = [longs(&[offset]), words(&[BAR0, 4, value])].concat();
        self.post(WRITE, &access);
    }

    pub fn read32(&mut self, offset: u64) -> u32 {
        let bytes = self.read(BAR0, offset, 4).unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    /// The descriptor of BAR0's mappable pages, and where they are.
    pub fn pages(&mut self) -> (Vec<(u64, u64)>, Vec<OwnedFd>) {
        let ask = |room: u32| [words(&[room, 0, BAR0, 0]), longs(&[0, 0])].concat();
        let short = self.ask(REGION_INFO, &ask(32), &[]);
        assert!(short.1.is_empty(), "only who has room gets the file");
        let room = u32::from_le_bytes(short.0.unwrap()[..4].try_into().unwrap());
        let (body, fds) = self.ask(REGION_INFO, &ask(room), &[]);
        let body = body.unwrap();
        let long = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let areas = body.get(48..).unwrap_or_default().chunks(16);
        (
            areas.map(|area| (long(&area[..8]), long(&area[8..]))).collect(),
            fds,
        )
    }

    /// Sends raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }
}

/// How often an eventfd has been signalled since it was last asked; 0 if not.
pub fn signals(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(event.as_fd(), &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(rustix::io::Errno::AGAIN) => 0,
        Err(error) => panic!("{error}"),
    }
}
