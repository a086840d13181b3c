//! Names of things in a fabric.

use core::fmt;

/// A time or a span of it, in nanoseconds of the front end's monotonic clock.
pub type Nanos = u64;

/// A controller, counted over all hosts: host 0's first, then host 1's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nhi(pub usize);

/// A cable, by its place in [`Topology::cables`](crate::Topology::cables).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cable(pub usize);

/// One USB4 port of a controller: an end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The controller.
    pub nhi: Nhi,
    /// Its port, from 0.
    pub port: usize,
}

/// A way along a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the first end to the second.
    Forth,
    /// From the second end to the first.
    Back,
}

/// Which half of a ring pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RingKind {
    /// Frames the host sends.
    Tx,
    /// Frames the host receives.
    Rx,
}

/// A ring of a controller. Ring 0 is the control channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ring {
    /// TX or RX.
    pub kind: RingKind,
    /// Its number, below the controller's hop count.
    pub hop: usize,
}

/// Which way a control packet goes between a host and its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Towards {
    /// From the router to the host: replies, hot plug events, packets of peers.
    Host,
    /// From the host to the router.
    Router,
}

impl fmt::Display for Nhi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nhi{}", self.0)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.nhi.0, self.port)
    }
}
