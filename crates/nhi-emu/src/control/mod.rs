//! The control socket: a line in, a line out.
//!
//! * `lines.rs`: a connection, cut into lines.
//! * `execute.rs`: what a request does.
//! * `json.rs`: counters as JSON.
//!
//! A guest's serial port may be joined to the socket for marks (`-chardev socket,id=c,path=DIR/mark.sock -serial
//! chardev:c`). That one takes nothing but marks, since a guest must not be able to pull a cable or write a file, and
//! answers nothing, since a guest's terminal echoes what it is told.

mod execute;
mod json;
mod lines;

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use serde_json::Value;
use usb4_nhi_control::{CONTROL_SOCKET, MARK_SOCKET, Request};

use crate::StartError;
use crate::machine::Machine;
use crate::sockets::{Interest, Socket, Source, watch};
pub(crate) use execute::Executor;
use lines::Lines;

/// Most connections at a time, more than a lab has guests and people.
const PEERS_MAX: usize = 64;

/// Both sockets and who is connected.
#[derive(Debug)]
pub(crate) struct Control {
    control: Socket,
    marks: Socket,
    peers: Vec<Option<Peer>>,
    executor: Executor,
}

#[derive(Debug)]
struct Peer {
    lines: Lines,
    interest: Interest,
    /// Only marks are taken, and nothing is answered.
    marks_only: bool,
}

impl Control {
    pub(crate) fn new(dir: &Path, epoll: &OwnedFd, machine: &Machine) -> Result<Self, StartError> {
        let marks = Socket::listen(dir.join(MARK_SOCKET))?;
        let control = Socket::listen(dir.join(CONTROL_SOCKET))?;
        watch(epoll, control.listener(), Source::Control)?;
        watch(epoll, marks.listener(), Source::Marks)?;
        Ok(Self {
            control,
            marks,
            peers: Vec::new(),
            executor: Executor::new(machine),
        })
    }

    /// Somebody connects.
    pub(crate) fn accept(&mut self, epoll: &OwnedFd, marks_only: bool) {
        let socket = if marks_only { &self.marks } else { &self.control };
        if let Err(error) = accept(socket, epoll, &mut self.peers, marks_only)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::warn!("control socket: {error}");
        }
    }

    /// Somebody has said something, or can take more of an answer.
    pub(crate) fn serve(&mut self, epoll: &OwnedFd, index: u32, machine: &mut Machine) {
        let Some(slot) = usize::try_from(index).ok().and_then(|at| self.peers.get_mut(at)) else {
            return;
        };
        let Some(peer) = slot else {
            return;
        };
        let served = peer
            .converse(&mut self.executor, machine)
            .and_then(|stays| peer.wait(epoll, index).map(|()| stays));
        match served {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!("control socket: {error}"),
        }
        *slot = None;
    }
}

fn accept(
    socket: &Socket,
    epoll: &OwnedFd,
    peers: &mut Vec<Option<Peer>>,
    marks_only: bool,
) -> io::Result<()> {
    let (stream, _) = socket.listener().accept()?;
    let free = peers.iter().position(Option::is_none);
    let at = free.unwrap_or(peers.len());
    if at >= PEERS_MAX {
        return Err(io::Error::other("too many connections"));
    }
    let index = u32::try_from(at).map_err(io::Error::other)?;
    let lines = Lines::new(stream)?;
    watch(epoll, lines.socket(), Source::Line(index))?;
    let peer = Peer {
        lines,
        interest: Interest::reading(),
        marks_only,
    };
    match peers.get_mut(at) {
        Some(slot) => *slot = Some(peer),
        None => peers.push(Some(peer)),
    }
    Ok(())
}

impl Peer {
    /// Reads, carries out and answers what there is; false at the end.
    fn converse(&mut self, executor: &mut Executor, machine: &mut Machine) -> io::Result<bool> {
        let open = self.lines.receive()?;
        while let Some(line) = self.lines.next()? {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let answer = self.answer(line, executor, machine);
            if !self.marks_only {
                self.lines.say(&answer.to_string());
            }
        }
        self.lines.send()?;
        Ok(open)
    }

    fn answer(&self, line: &str, executor: &mut Executor, machine: &mut Machine) -> Value {
        let outcome = match line.parse::<Request>() {
            Ok(request) if self.marks_only && !matches!(request, Request::Mark { .. }) => {
                Err("this socket takes only marks".to_owned())
            }
            Ok(request) => {
                let outcome = executor.execute(&request, machine);
                if let (Request::Mark { name }, Ok(reply)) = (&request, &outcome) {
                    print_mark(name.as_str(), reply);
                }
                outcome.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(reply) => reply,
            Err(error) => {
                tracing::info!("{line:?} refused: {error}");
                serde_json::json!({"ok": false, "error": error})
            }
        }
    }

    fn wait(&mut self, epoll: &OwnedFd, index: u32) -> io::Result<()> {
        let (read, write) = (!self.lines.is_full(), self.lines.is_blocked());
        let socket = self.lines.socket().as_fd();
        self.interest.set(epoll, socket, Source::Line(index), read, write)
    }
}

/// Prints a mark's counters on standard output, where who started the emulator collects them.
fn print_mark(name: &str, reply: &Value) {
    let line = serde_json::json!({"mark": name, "stats": reply.get("stats")});
    if let Err(error) = writeln!(io::stdout(), "{line}") {
        tracing::warn!("mark {name} cannot be printed: {error}");
    }
}
