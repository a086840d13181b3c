//! The loop: sockets, the model's deadline, and mapped doorbells.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use usb4_nhi_model::{Fabric, MappedPage, Nanos, Nhi, PciId, Topology, TopologyError};

use crate::connection::{Connection, ConnectionError, Received};
use crate::machine::Machine;
use crate::pages::Pages;
use crate::session::Session;

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

/// A fabric and its sockets.
#[derive(Debug)]
pub struct Emulator {
    machine: Machine,
    seats: Vec<Seat>,
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
    interest: epoll::EventFlags,
}

/// A listening socket, whose name goes when it does.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

/// What an event is about, as epoll carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Stop,
    Seat(usize),
}

impl Source {
    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Stop => u64::MAX,
            Self::Seat(seat) => seat as u64,
        })
    }

    fn of(data: epoll::EventData) -> Self {
        usize::try_from(data.u64()).map_or(Self::Stop, |index| match index {
            usize::MAX => Self::Stop,
            seat => Self::Seat(seat),
        })
    }
}

impl Emulator {
    /// Makes the sockets `nhi0.sock`, `nhi1.sock` ... in the folder.
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
        for index in 0..nhis {
            let socket = Socket::listen(options.dir.join(format!("nhi{index}.sock")))?;
            watch(
                &epoll,
                &socket.listener,
                Source::Seat(index),
                epoll::EventFlags::IN,
            )?;
            seats.push(Seat {
                nhi: Nhi(index),
                socket,
                client: None,
            });
        }
        Ok(Self {
            machine: Machine::new(fabric, pages?),
            seats,
            epoll,
            options,
            busy: 0,
        })
    }

    /// Serves until `stop` can be read.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        watch(&self.epoll, stop, Source::Stop, epoll::EventFlags::IN)?;
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
            for event in &events {
                match Source::of(event.data) {
                    Source::Stop => return Ok(()),
                    Source::Seat(index) => self.serve(index),
                }
            }
            self.look();
            self.machine.advance();
        }
    }

    /// How long there is nothing to do unless a socket has something.
    fn timeout(&self) -> Option<Timespec> {
        let now = self.machine.now();
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
    fn serve(&mut self, index: usize) {
        let Some(seat) = self.seats.get_mut(index) else {
            return;
        };
        let nhi = seat.nhi;
        let outcome = match &mut seat.client {
            None => seat.accept(&self.epoll, index).map(|()| true),
            Some(client) => client
                .converse(&mut self.machine)
                .and_then(|stays| client.wait(&self.epoll, index).map(|()| stays)),
        };
        match outcome {
            Ok(true) => return,
            Ok(false) => tracing::info!("{nhi}: the guest is gone"),
            Err(error) => tracing::warn!("{nhi}: the guest is dropped: {error}"),
        }
        if seat.client.take().is_some_and(|client| client.session.is_open()) {
            self.machine.disconnect(nhi);
        }
        let listener = &seat.socket.listener;
        if let Err(error) = watch(&self.epoll, listener, Source::Seat(index), epoll::EventFlags::IN) {
            tracing::warn!("{nhi}: no guest can attach any more: {error}");
        }
    }
}

impl Map {
    fn pages(self) -> Vec<MappedPage> {
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
    fn accept(&mut self, epoll: &OwnedFd, index: usize) -> Result<(), ConnectionError> {
        let (socket, _) = self.socket.listener.accept()?;
        epoll::delete(epoll, &self.socket.listener)?;
        let connection = Connection::new(socket);
        watch(
            epoll,
            connection.socket(),
            Source::Seat(index),
            epoll::EventFlags::IN,
        )?;
        self.client = Some(Client {
            connection,
            session: Session::new(self.nhi),
            interest: epoll::EventFlags::IN,
        });
        tracing::info!("{}: a guest attaches", self.nhi);
        Ok(())
    }
}

impl Client {
    /// Reads a batch of messages and answers them; false at the end.
    fn converse(&mut self, machine: &mut Machine) -> Result<bool, ConnectionError> {
        let Self {
            connection, session, ..
        } = self;
        if !connection.outbox.is_full() {
            if connection.receive()? == Received::End {
                return Ok(false);
            }
            while let Some(message) = connection.inbox.next()? {
                session.message(message, machine, &mut connection.outbox)?;
            }
        }
        connection.send()?;
        Ok(true)
    }

    /// Has epoll wait for what the client can do next: say something, or read what we have for it.
    fn wait(&mut self, epoll: &OwnedFd, index: usize) -> Result<(), ConnectionError> {
        let outbox = &self.connection.outbox;
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, !outbox.is_full());
        interest.set(epoll::EventFlags::OUT, outbox.is_blocked());
        if interest != self.interest {
            epoll::modify(
                epoll,
                self.connection.socket(),
                Source::Seat(index).data(),
                interest,
            )?;
            self.interest = interest;
        }
        Ok(())
    }
}

fn watch(epoll: &OwnedFd, what: impl AsFd, source: Source, flags: epoll::EventFlags) -> io::Result<()> {
    Ok(epoll::add(epoll, what, source.data(), flags)?)
}

fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

impl Socket {
    /// Listens at `path`, in place of a socket nobody listens at any more.
    fn listen(path: PathBuf) -> Result<Self, StartError> {
        match std::os::unix::net::UnixStream::connect(&path) {
            Ok(_) => return Err(StartError::InUse(path)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => remove(&path),
            Err(_) => {}
        }
        match UnixListener::bind(&path) {
            Ok(listener) => Ok(Self { path, listener }),
            Err(error) => Err(StartError::Listen { path, error }),
        }
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
