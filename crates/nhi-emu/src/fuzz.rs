//! A client that says anything at all, without sockets and clocks, for the fuzz target `emu_client`.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use usb4_nhi_control::Request;
use usb4_nhi_model::{Fabric, Nanos, Nhi, Topology};

use crate::connection::{Inbox, Outbox};
use crate::control::Executor;
use crate::machine::Machine;
use crate::pages::Pages;
use crate::protocol::HEADER;
use crate::session::Session;
use crate::{Map, StartError};

/// The client's file: memory it announces, and behind that memory it never does.
const ANNOUNCED: u64 = 0x8000;
const SECRET: &[u8] = &[0x5a; 0x1000];

/// An emulator and the one client that talks to its first controller.
#[derive(Debug)]
pub struct Client {
    machine: Machine,
    executor: Executor,
    inbox: Inbox,
    outbox: Outbox,
    session: Session,
    memory: OwnedFd,
    now: Nanos,
}

impl Client {
    /// A client that has said nothing yet, its doorbells mapped or not.
    pub fn new(map: Map) -> Result<Self, StartError> {
        let topology = Topology::pair();
        let pages: std::io::Result<Vec<_>> = (0..topology.nhis()).map(|_| Pages::new(map.pages())).collect();
        let mut machine = Machine::new(Fabric::new(topology, 1)?, pages?);
        machine.board.set_time(0);
        machine.look_at_clock();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("client", flags).map_err(std::io::Error::from)?;
        ftruncate(&memory, ANNOUNCED).map_err(std::io::Error::from)?;
        rustix::io::pwrite(&memory, SECRET, ANNOUNCED).map_err(std::io::Error::from)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK).map_err(std::io::Error::from)?;
        Ok(Self {
            executor: Executor::new(&machine),
            machine,
            inbox: Inbox::new(),
            outbox: Outbox::default(),
            session: Session::new(Nhi(0)),
            memory,
            now: 0,
        })
    }

    /// Sends bytes, and with them so many eventfds and perhaps its memory.
    ///
    /// # Panics
    /// If the answer is malformed.
    pub fn send(&mut self, bytes: &[u8], events: usize, memory: bool) {
        let room = self.inbox.room();
        let count = bytes.len().min(room.len());
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
        let mut fds: Vec<_> = (0..events)
            .filter_map(|_| eventfd(0, EventfdFlags::CLOEXEC).ok())
            .collect();
        fds.extend(self.memory.try_clone().ok().filter(|_| memory));
        let followed = self.inbox.arrived(count, fds).is_ok() && self.converse();
        self.check_replies();
        if !followed {
            // The connection ends, and the next client comes.
            if self.session.is_open() {
                self.machine.disconnect(Nhi(0));
            }
            (self.inbox, self.session) = (Inbox::new(), Session::new(Nhi(0)));
        }
    }

    /// Sends a whole message.
    pub fn message(&mut self, command: u16, quiet: bool, body: &[u8], events: usize, memory: bool) {
        let size = u32::try_from(HEADER.saturating_add(body.len())).unwrap_or(u32::MAX);
        let flags = u32::from(quiet) << 4;
        let mut bytes = 7u16.to_le_bytes().to_vec();
        bytes.extend_from_slice(&command.to_le_bytes());
        for word in [size, flags, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(body);
        self.send(&bytes, events, memory);
    }

    /// Writes its own memory.
    pub fn poke(&mut self, at: u64, bytes: &[u8]) {
        let at = at % ANNOUNCED;
        let room = usize::try_from(ANNOUNCED.saturating_sub(at)).unwrap_or(0);
        let bytes = bytes.get(..bytes.len().min(room)).unwrap_or_default();
        // A short write would only make the input say less.
        let _ = rustix::io::pwrite(self.memory.as_fd(), bytes, at);
    }

    /// Writes a register that may be mapped.
    pub fn poke_page(&mut self, offset: u64, value: u32) {
        if let Some(pages) = self.machine.pages(Nhi(0)) {
            pages.set(offset & !3, value);
        }
        self.machine.poll(Nhi(0));
    }

    /// Puts a line to the control socket; captures, which write files, are left out.
    pub fn line(&mut self, line: &str) {
        if let Ok(request) = line.parse::<Request>()
            && !matches!(request, Request::Capture(_))
        {
            let _ = self.executor.execute(&request, &mut self.machine);
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, time: Nanos) {
        self.now = self.now.saturating_add(time);
        self.machine.board.set_time(self.now);
        self.machine.look_at_clock();
        self.machine.advance();
    }

    /// What the client never announced is as it was.
    ///
    /// # Panics
    /// If it is not.
    pub fn check(&self) {
        let mut bytes = vec![0; SECRET.len()];
        let read = rustix::io::pread(&self.memory, &mut bytes, ANNOUNCED);
        assert_eq!(read, Ok(SECRET.len()));
        assert_eq!(bytes, SECRET);
    }

    fn converse(&mut self) -> bool {
        loop {
            match self.inbox.next() {
                Ok(Some(message)) => {
                    let outcome = self.session.message(message, &mut self.machine, &mut self.outbox);
                    if outcome.is_err() {
                        return false;
                    }
                }
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Replies are replies, one behind the other.
    fn check_replies(&mut self) {
        const REPLY: u8 = 1;
        let bytes = self.outbox.take();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let size = rest
                .get(4..8)
                .and_then(|size| size.try_into().ok())
                .map(u32::from_le_bytes);
            let size = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
            assert!(size >= HEADER && rest.get(8).is_some_and(|flags| flags & 0xf == REPLY));
            assert!(size <= rest.len(), "a reply claims more bytes than there are");
            rest = rest.get(size..).unwrap_or_default();
        }
    }
}
