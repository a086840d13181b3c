//! The loop: sockets, the model's deadline, and mapped doorbells.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use usb4_nhi_model::{Fabric, MappedPage, Nanos, Nhi, PciId, Topology, TopologyError};

use crate::connection::{Connection, ConnectionError, Received};
use crate::control::Control;
use crate::machine::Machine;
use crate::pages::Pages;
use crate::recording::Recording;
use crate::session::Session;
use crate::sockets::{Interest, Socket, Source, watch};

/// What to emulate, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the sockets, which must exist.
    pub dir: PathBuf,
    /// Hosts, controllers and cables.
    pub topology: Topology,
    /// Of everything random.
    pub seed: u64,
    /// Which registers the guests map instead of trapping.
    pub map: Map,
    /// How long mapped registers are looked at without a pause after the last change.
    pub spin: Duration,
}

/// Which registers the guests map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Map {
    /// None.
    #[default]
    Nothing,
    /// Doorbells.
    Doorbells,
    /// Doorbells and the interrupt mask.
    DoorbellsAndInterrupts,
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The topology makes no sense.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Other vendors' drivers clear mask bits by writing ones to a register in the same page, which cannot be told from
    /// having written them before.
    #[error("the interrupt page can only be mapped with Intel's vendor id: pci=8086:ff01")]
    MapNeedsIntel,
    /// A socket cannot be made.
    #[error("cannot listen at {path}: {error}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another emulator uses the folder.
    #[error("another process listens at {0}")]
    InUse(PathBuf),
    /// The kernel refuses something else.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Pause between two looks at mapped registers. With as many guests as cores a shorter one takes more from them than it
/// gives (measured: 2 cores, 2 guests).
const NAP: Duration = Duration::from_micros(50);
/// Sockets served per turn of the loop.
const EVENTS: usize = 32;
/// How long one guest's messages are carried out before the others get their turn. The last one may take longer: it can
/// be a few hundred doorbells at once.
const TURN: Nanos = 1_000_000;

/// A fabric and its sockets.
#[derive(Debug)]
pub struct Emulator {
    machine: Machine,
    seats: Vec<Seat>,
    control: Control,
    epoll: OwnedFd,
    options: Options,
    /// When a mapped register last changed.
    busy: Nanos,
}

/// Where a guest attaches: a controller's socket and who is there.
#[derive(Debug)]
struct Seat {
    nhi: Nhi,
    socket: Socket,
    client: Option<Client>,
}

/// Who is there.
#[derive(Debug)]
struct Client {
    connection: Connection,
    session: Session,
    /// What epoll waits for.
    interest: Interest,
    /// There are messages that have been read and not carried out.
    behind: bool,
}

impl Emulator {
    /// Makes the sockets in the folder: `nhi0.sock`, `nhi1.sock` ..., `mark.sock`, and `ctl.sock` last, so that whoever
    /// waits for that one finds the others.
    pub fn new(options: Options) -> Result<Self, StartError> {
        let topology = &options.topology;
        let nhis = topology.nhis();
        if options.map == Map::DoorbellsAndInterrupts && topology.pci.vendor != PciId::INTEL.vendor {
            return Err(StartError::MapNeedsIntel);
        }
        let fabric = Fabric::new(topology.clone(), options.seed)?;
        let pages: io::Result<Vec<_>> = (0..nhis).map(|_| Pages::new(options.map.pages())).collect();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let mut seats = Vec::new();
        for (index, seat) in (0..nhis).zip(0u32..) {
            let socket = Socket::listen(options.dir.join(format!("nhi{index}.sock")))?;
            watch(&epoll, socket.listener(), Source::Seat(seat))?;
            seats.push(Seat {
                nhi: Nhi(index),
                socket,
                client: None,
            });
        }
        let machine = Machine::new(fabric, pages?);
        Ok(Self {
            control: Control::new(&options.dir, &epoll, &machine)?,
            machine,
            seats,
            epoll,
            options,
            busy: 0,
        })
    }

    /// Serves until `stop` can be read.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        watch(&self.epoll, stop, Source::Stop)?;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let timeout = self.timeout();
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.machine.look_at_clock();
            for event in &events {
                match Source::of(event.data) {
                    Source::Stop => {
                        return self
                            .machine
                            .board
                            .recording
                            .take()
                            .map_or(Ok(()), Recording::stop);
                    }
                    Source::Seat(index) => self.serve(index),
                    Source::Control => self.control.accept(&self.epoll, false),
                    Source::Marks => self.control.accept(&self.epoll, true),
                    Source::Line(index) => self.control.serve(&self.epoll, index, &mut self.machine),
                }
            }
            for index in self.behind() {
                self.serve(index);
            }
            self.look();
            self.machine.look_at_clock();
            self.machine.advance();
        }
    }

    /// Guests whose turn ended before their messages did.
    fn behind(&self) -> Vec<u32> {
        let has_work = |seat: &Seat| seat.client.as_ref().is_some_and(Client::has_work);
        let seats = (0..).zip(&self.seats);
        seats
            .filter(|(_, seat)| has_work(seat))
            .map(|(index, _)| index)
            .collect()
    }

    /// How long there is nothing to do unless a socket has something.
    fn timeout(&self) -> Option<Timespec> {
        if !self.behind().is_empty() {
            return Some(Timespec::default());
        }
        let now = self.machine.board.now();
        let deadline = self.machine.fabric.deadline().map(|at| at.saturating_sub(now));
        let look = self.looks().then(|| {
            let spin = Nanos::try_from(self.options.spin.as_nanos()).unwrap_or(Nanos::MAX);
            let spinning = self.busy.saturating_add(spin) > now;
            if spinning { 0 } else { nanos(NAP) }
        });
        let wait = match (deadline, look) {
            (Some(deadline), Some(look)) => deadline.min(look),
            (deadline, look) => deadline.or(look)?,
        };
        Timespec::try_from(Duration::from_nanos(wait)).ok()
    }

    /// Whether any guest has mapped registers.
    fn looks(&self) -> bool {
        self.options.map != Map::Nothing && self.seats.iter().any(|seat| seat.client.is_some())
    }

    /// Looks at all mapped registers.
    fn look(&mut self) {
        if !self.looks() {
            return;
        }
        for seat in self.seats.iter().filter(|seat| seat.client.is_some()) {
            if self.machine.poll(seat.nhi) {
                self.busy = self.machine.now();
            }
        }
    }

    /// Does what a seat's socket asks for.
    fn serve(&mut self, index: u32) {
        let Some(seat) = usize::try_from(index).ok().and_then(|at| self.seats.get_mut(at)) else {
            return;
        };
        let nhi = seat.nhi;
        let Some(client) = &mut seat.client else {
            if let Err(error) = seat.accept(&self.epoll, index) {
                tracing::warn!("{nhi}: a guest cannot attach: {error}");
            }
            return;
        };
        let outcome = client
            .converse(&mut self.machine)
            .and_then(|stays| client.wait(&self.epoll, index).map(|()| stays));
        match outcome {
            Ok(true) => return,
            Ok(false) => tracing::info!("{nhi}: the guest is gone"),
            Err(error) => tracing::warn!("{nhi}: the guest is dropped: {error}"),
        }
        if seat.client.take().is_some_and(|client| client.session.is_open()) {
            self.machine.disconnect(nhi);
        }
        let listener = seat.socket.listener();
        if let Err(error) = watch(&self.epoll, listener, Source::Seat(index)) {
            tracing::warn!("{nhi}: no guest can attach any more: {error}");
        }
    }
}

impl Map {
    pub(crate) fn pages(self) -> Vec<MappedPage> {
        match self {
            Self::Nothing => vec![],
            Self::Doorbells => vec![MappedPage::TxRings, MappedPage::RxRings],
            Self::DoorbellsAndInterrupts => {
                vec![MappedPage::TxRings, MappedPage::RxRings, MappedPage::Interrupts]
            }
        }
    }
}

impl Seat {
    /// Takes the next client; while it is there the others wait.
    fn accept(&mut self, epoll: &OwnedFd, index: u32) -> io::Result<()> {
        let socket = match self.socket.listener().accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        epoll::delete(epoll, self.socket.listener())?;
        let connection = Connection::new(socket);
        watch(epoll, connection.socket(), Source::Seat(index))?;
        self.client = Some(Client {
            connection,
            session: Session::new(self.nhi),
            interest: Interest::reading(),
            behind: false,
        });
        tracing::info!("{}: a guest attaches", self.nhi);
        Ok(())
    }
}

impl Client {
    /// Reads a batch of messages and answers them; false at the end.
    fn converse(&mut self, machine: &mut Machine) -> Result<bool, ConnectionError> {
        let connection = &mut self.connection;
        let idle = !self.behind && !connection.outbox.is_full();
        if idle && connection.receive()? == Received::End {
            return Ok(false);
        }
        let end = machine.now().saturating_add(TURN);
        self.behind = loop {
            if connection.outbox.is_full() || machine.now() >= end {
                break true;
            }
            let Some(message) = connection.inbox.next()? else {
                break false;
            };
            self.session.message(message, machine, &mut connection.outbox)?;
            machine.look_at_clock();
        };
        connection.send()?;
        Ok(true)
    }

    /// It has messages that can be carried out now.
    fn has_work(&self) -> bool {
        self.behind && !self.connection.outbox.is_full()
    }

    /// Has epoll wait for what the client can do next: say something, or read what we have for it.
    fn wait(&mut self, epoll: &OwnedFd, index: u32) -> Result<(), ConnectionError> {
        let outbox = &self.connection.outbox;
        let (read, write) = (!self.behind && !outbox.is_full(), outbox.is_blocked());
        let socket = self.connection.socket();
        self.interest
            .set(epoll, socket, Source::Seat(index), read, write)?;
        Ok(())
    }
}

fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}
