//! Calls: how two devices join a cable.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use usb4_engine::Nanos;
use usb4_wire::NodeId;

use super::rail::Rail;
use super::{Keeper, MAX_CONNECTIONS};
use crate::cable::CableEnd;
use crate::clock::now;
use crate::core::MAX_LINKS;
use crate::directory::Failure;
use crate::fork::Descriptor;
use crate::greeting::{GREETING_LEN, Greeting, GreetingError, Kind, Refusal};
use crate::socket;

/// How long a caller may take to say HELLO.
const HELLO_TIMEOUT: Nanos = 5_000_000_000;

/// When a call is tried again that met a full backlog, or a peer that has not noticed yet that an earlier
/// connection ended.
const RETRY: Nanos = 2_000_000;

/// Longest message on the socket; one byte more than the longest of the protocol.
const MESSAGE: usize = 128;

/// A socket to a peer.
pub(super) struct Connection {
    pub(super) socket: Descriptor,
    /// The peer's process, 0 if unknown.
    pub(super) pid: u32,
    pub(super) stage: Stage,
}

/// How far a connection has come.
pub(super) enum Stage {
    /// Accepted; HELLO must come before this time.
    Accepted(Nanos),
    /// We have said HELLO to this peer.
    Calling(NodeId, CableEnd),
    /// The cable is joined.
    Joined(Box<Rail>),
}

impl Connection {
    /// When [`Keeper::on_time`] must look at it.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        match &self.stage {
            Stage::Accepted(until) => Some(*until),
            Stage::Calling(..) => None,
            Stage::Joined(rail) => rail.fsm.deadline(),
        }
    }
}

impl Keeper {
    /// Accepts all who wait.
    pub(super) fn accept(&mut self) {
        loop {
            let socket = match socket::accept(self.listener.as_fd()) {
                Ok(socket) => socket,
                Err(error) => {
                    if socket::is_exhausted(&error) {
                        // The listener stays readable: it is left alone for a while.
                        self.listen_for(epoll::EventFlags::empty());
                        self.paused = Some(now().saturating_add(socket::ACCEPT_PAUSE));
                    }
                    return;
                }
            };
            if self.connections.len() >= MAX_CONNECTIONS {
                continue;
            }
            // Another user's process is not even answered.
            if let Ok(peer) = socket::credentials(socket.as_fd()) {
                if peer.uid == self.fabric.uid() {
                    let stage = Stage::Accepted(now().saturating_add(HELLO_TIMEOUT));
                    let _ = self.add(socket, peer.pid, stage);
                }
            }
        }
    }

    fn listen_for(&self, events: epoll::EventFlags) {
        let _ = epoll::modify(
            &self.epoll,
            &self.listener,
            epoll::EventData::new_u64(super::LISTENER),
            events,
        );
    }

    /// Calls a peer, unless that is under way or done.
    pub(super) fn call(&mut self, node: NodeId) {
        if self.by_node.contains_key(&node) || !self.directory.is_calling(node) {
            return;
        }
        match self.try_call(node) {
            Ok(()) => {}
            Err(Failure::Os(_, error)) if error.kind() == io::ErrorKind::WouldBlock => self.retry(node),
            Err(failure) => self.directory.set_failed(node, failure),
        }
    }

    fn try_call(&mut self, node: NodeId) -> Result<(), Failure> {
        if self.connections.len() >= MAX_CONNECTIONS || self.core.ports().len() >= MAX_LINKS {
            return Err(Failure::Full);
        }
        let socket =
            socket::connect(&self.fabric.device_socket(node)).map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => Failure::Unreachable,
                _ => Failure::Os("connect to the peer", error),
            })?;
        let os = |error| Failure::Os("call the peer", error);
        let peer = socket::credentials(socket.as_fd()).map_err(os)?;
        if peer.uid != self.fabric.uid() {
            return Err(Failure::Foreign(peer.uid));
        }
        let end = CableEnd::new().map_err(os)?;
        let hello = Greeting {
            kind: Kind::Hello,
            from: self.node,
            to: node,
        };
        socket::send(
            socket.as_fd(),
            &hello.to_bytes(),
            &[end.fd(), self.core.bell().as_fd()],
        )
        .map_err(|error| match error.kind() {
            // It died between the two calls.
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Failure::Unreachable,
            _ => Failure::Os("call the peer", error),
        })?;
        let id = self
            .add(socket, peer.pid, Stage::Calling(node, end))
            .map_err(os)?;
        self.by_node.insert(node, id);
        Ok(())
    }

    fn add(&mut self, socket: OwnedFd, pid: u32, stage: Stage) -> io::Result<u64> {
        let socket = Descriptor::new(socket)?;
        let id = self.next_id;
        self.next_id += 1;
        epoll::add(
            &self.epoll,
            &socket,
            epoll::EventData::new_u64(id),
            epoll::EventFlags::IN,
        )?;
        self.connections.insert(id, Connection { socket, pid, stage });
        Ok(id)
    }

    fn retry(&mut self, node: NodeId) {
        // Whoever does not wait for the call asks again and again.
        if self.retries.iter().all(|retry| retry.1 != node) {
            self.retries.push((now().saturating_add(RETRY), node));
        }
    }

    /// Time has passed: late callers, calls to be tried again, rails.
    pub(super) fn on_time(&mut self, time: Nanos) {
        if self.paused.is_some_and(|until| until <= time) {
            self.paused = None;
            self.listen_for(epoll::EventFlags::IN);
        }
        let due = |connection: &Connection| connection.deadline().is_some_and(|at| at <= time);
        let ids: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, c)| due(c))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            match self.connections.get(&id).map(|connection| &connection.stage) {
                Some(Stage::Accepted(_)) => drop(self.connections.remove(&id)),
                Some(Stage::Joined(_)) => self.on_rail_timer(id, time),
                _ => {}
            }
        }
        let (now_due, later) = std::mem::take(&mut self.retries)
            .into_iter()
            .partition(|(at, _)| *at <= time);
        self.retries = later;
        let now_due: Vec<(Nanos, NodeId)> = now_due;
        for (_, node) in now_due {
            self.call(node);
        }
    }

    /// Something has come on a connection, its end perhaps.
    pub(super) fn on_readable(&mut self, id: u64) {
        // Level-triggered: what is left is reported again. The bound keeps one peer from starving the rest.
        for _ in 0..16 {
            let Some(connection) = self.connections.get(&id) else {
                return;
            };
            let mut bytes = [0; MESSAGE];
            match socket::receive(connection.socket.as_fd(), &mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(message) if message.len != 0 => {
                    let bytes = bytes.get(..message.len).unwrap_or_default();
                    self.on_message(id, bytes, message.fds);
                }
                // The end, an error, or what is no message of ours.
                _ => return self.lose(id),
            }
        }
    }

    fn on_message(&mut self, id: u64, bytes: &[u8], fds: Vec<OwnedFd>) {
        match self.connections.get(&id).map(|connection| &connection.stage) {
            Some(Stage::Accepted(_)) => self.on_hello(id, bytes, fds),
            Some(Stage::Calling(node, _)) => {
                let node = *node;
                self.on_answer(id, node, bytes, fds);
            }
            Some(Stage::Joined(_)) => self.on_control(id, bytes),
            None => {}
        }
    }

    /// A caller has introduced itself.
    fn on_hello(&mut self, id: u64, bytes: &[u8], fds: Vec<OwnedFd>) {
        let answer = match Greeting::parse(bytes) {
            Ok(Greeting {
                kind: Kind::Hello,
                from,
                to,
            }) => self.may_join(from, to).map(|()| from),
            Err(GreetingError::Version) => Err((NodeId::default(), Refusal::Version)),
            _ => return drop(self.connections.remove(&id)),
        };
        match answer {
            Ok(from) => self.welcome(id, from, fds),
            Err((to, refusal)) => {
                let refuse = Greeting {
                    kind: Kind::Refuse(refusal),
                    from: self.node,
                    to,
                };
                if let Some(connection) = self.connections.remove(&id) {
                    let _ = socket::send(connection.socket.as_fd(), &refuse.to_bytes(), &[]);
                }
            }
        }
    }

    /// Whether a caller's HELLO may be answered by WELCOME; gives up our own call to it where it must.
    fn may_join(&mut self, from: NodeId, to: NodeId) -> Result<(), (NodeId, Refusal)> {
        if to != self.node || from == self.node {
            return Err((from, Refusal::NotMe));
        }
        if let Some(&id) = self.by_node.get(&from) {
            match self.connections.get(&id).map(|connection| &connection.stage) {
                Some(Stage::Calling(..)) if self.node < from => return Err((from, Refusal::Crossed)),
                Some(Stage::Calling(..)) => {
                    self.connections.remove(&id);
                    self.by_node.remove(&from);
                }
                _ => {
                    // Perhaps its end is waiting to be noticed.
                    self.on_readable(id);
                    if self.by_node.contains_key(&from) {
                        return Err((from, Refusal::Joined));
                    }
                }
            }
        }
        if self.core.ports().len() >= MAX_LINKS {
            return Err((from, Refusal::Full));
        }
        Ok(())
    }

    fn welcome(&mut self, id: u64, from: NodeId, fds: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let welcome = Greeting {
            kind: Kind::Welcome,
            from: self.node,
            to: from,
        };
        let cable = CableEnd::new().and_then(|end| {
            let ours = [end.fd(), self.core.bell().as_fd()];
            socket::send(connection.socket.as_fd(), &welcome.to_bytes(), &ours)?;
            join(end, fds)
        });
        match cable {
            Ok(cable) => {
                self.by_node.insert(from, id);
                self.start_rail(id, from, cable);
            }
            Err(_) => drop(self.connections.remove(&id)),
        }
    }

    /// The peer we called has answered.
    fn on_answer(&mut self, id: u64, node: NodeId, bytes: &[u8], fds: Vec<OwnedFd>) {
        let answer = Greeting::parse(bytes);
        if let Ok(Greeting {
            kind: Kind::Welcome,
            from,
            to,
        }) = answer
        {
            if from == node && to == self.node {
                return self.on_welcome(id, node, fds);
            }
        }
        self.connections.remove(&id);
        self.by_node.remove(&node);
        match answer {
            // Its call will come, or has come already.
            Ok(Greeting {
                kind: Kind::Refuse(Refusal::Crossed),
                ..
            }) => {}
            Ok(Greeting {
                kind: Kind::Refuse(Refusal::Joined),
                ..
            }) => self.retry(node),
            Ok(Greeting {
                kind: Kind::Refuse(Refusal::Full),
                ..
            }) => self.directory.set_failed(node, Failure::Full),
            Ok(Greeting {
                kind: Kind::Refuse(Refusal::Version),
                ..
            })
            | Err(GreetingError::Version) => {
                self.directory.set_failed(node, Failure::Version);
            }
            _ => self.directory.set_failed(node, Failure::Unreachable),
        }
    }

    fn on_welcome(&mut self, id: u64, node: NodeId, fds: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let accepted = Stage::Accepted(Nanos::MAX);
        let cable = match std::mem::replace(&mut connection.stage, accepted) {
            Stage::Calling(_, end) => join(end, fds),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
        match cable {
            Ok(cable) => self.start_rail(id, node, cable),
            Err(error) => {
                self.connections.remove(&id);
                self.by_node.remove(&node);
                self.directory
                    .set_failed(node, Failure::Os("map the peer's memory", error));
            }
        }
    }

    /// A connection is over.
    pub(super) fn lose(&mut self, id: u64) {
        match self.connections.get(&id).map(|connection| &connection.stage) {
            Some(Stage::Joined(_)) => self.end_rail(id, true),
            Some(Stage::Calling(node, _)) => {
                let node = *node;
                self.connections.remove(&id);
                self.by_node.remove(&node);
                self.directory.set_failed(node, Failure::Unreachable);
            }
            Some(Stage::Accepted(_)) => drop(self.connections.remove(&id)),
            None => {}
        }
    }
}

/// Joins our end with the region and the doorbell the peer has sent.
fn join(end: CableEnd, fds: Vec<OwnedFd>) -> io::Result<crate::cable::Cable> {
    match <[OwnedFd; 2]>::try_from(fds) {
        Ok([region, doorbell]) if socket::is_doorbell(doorbell.as_fd()) => end.join(region, doorbell),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

const _: () = assert!(GREETING_LEN < MESSAGE && usb4_wire::CONTROL_LEN < MESSAGE);
