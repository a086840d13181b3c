//! A cable: its two ends, its link, and one wire per direction.

mod wire;

pub(crate) use wire::{ControlFlight, Flight, Wire, flip};

use crate::rng::Rng;
use crate::{LinkState, Nanos, Port};

/// The link on a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Down,
    /// Comes up then.
    Training(Nanos),
    Up,
    /// Changes its width until then; frames wait.
    Recovery(Nanos),
}

/// One cable.
#[derive(Debug)]
pub(crate) struct CableState {
    pub(crate) ends: [Port; 2],
    pub(crate) plugged: bool,
    pub(crate) link: Link,
    /// Both lanes are bonded.
    pub(crate) bonded: bool,
    /// A command allows one lane only.
    pub(crate) narrow: bool,
    /// From the first end to the second, and back.
    pub(crate) wires: [Wire; 2],
}

impl CableState {
    pub(crate) fn new(ends: [Port; 2], rng: &mut Rng) -> Self {
        Self {
            ends,
            plugged: true,
            link: Link::Down,
            bonded: false,
            narrow: false,
            wires: [Wire::new(rng.fork()), Wire::new(rng.fork())],
        }
    }

    /// Packets can pass, or could in a moment.
    pub(crate) fn carries(&self) -> bool {
        matches!(self.link, Link::Up | Link::Recovery(_))
    }

    pub(crate) fn state(&self) -> LinkState {
        match self.link {
            Link::Down => LinkState::Down,
            Link::Training(_) => LinkState::Training,
            Link::Up => LinkState::Up {
                lanes: if self.bonded { 2 } else { 1 },
            },
            Link::Recovery(_) => LinkState::Recovery,
        }
    }

    /// The end a wire leads from, and the one it leads to.
    pub(crate) fn wire_ends(&self, way: usize) -> (Port, Port) {
        let [first, second] = self.ends;
        if way == 0 {
            (first, second)
        } else {
            (second, first)
        }
    }

    /// The wire that leads away from a port.
    pub(crate) fn way_from(&self, port: Port) -> Option<usize> {
        self.ends.iter().position(|&end| end == port)
    }

    /// When the link changes by itself, or something arrives.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let link = match self.link {
            Link::Training(at) | Link::Recovery(at) => Some(at),
            Link::Down | Link::Up => None,
        };
        self.wires.iter().filter_map(Wire::deadline).chain(link).min()
    }
}
