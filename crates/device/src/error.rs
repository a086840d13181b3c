//! Why the device refuses a call.

use core::fmt;

use usb4_engine::AttachError;
use usb4_ring_abi::GeometryError;

/// Why the device refused a call. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// No such client, or it is being removed.
    NoClient,
    /// No such completion queue of this client.
    NoCq,
    /// No such endpoint of this client.
    NoEndpoint,
    /// No such memory region of this client.
    NoRegion,
    /// No such address handle of this endpoint.
    NoHandle,
    /// No such link.
    NoLink,
    /// There is no link to that host.
    Unreachable,
    /// The client's quota of this is used up.
    Quota(Object),
    /// The device has no more of this.
    Full(Object),
    /// Still in use: a completion queue with endpoints, a shared receive queue with queue pairs.
    Busy,
    /// The call does not fit the endpoint's kind or state.
    State,
    /// A queue pair cannot go from its state to that one, or an attribute is not possible.
    Attribute,
    /// A link to that host exists already.
    Exists,
    /// An address range that wraps or is empty of meaning, or an access right that does not exist.
    Range,
    /// The queue's depth or memory.
    Queue(GeometryError),
    /// The link does not take the rail.
    Rail(AttachError),
    /// Tables that do not fit together or are too large.
    Storage,
}

/// A kind of object that can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// Clients.
    Client,
    /// Endpoints.
    Endpoint,
    /// Completion queues.
    Cq,
    /// Completion queue entries, which bound the work outstanding.
    CqEntry,
    /// Memory regions.
    Region,
    /// Bytes of memory regions.
    RegionByte,
    /// Address handles.
    Handle,
    /// Links.
    Link,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "clients",
            Self::Endpoint => "endpoints",
            Self::Cq => "completion queues",
            Self::CqEntry => "completion queue entries",
            Self::Region => "memory regions",
            Self::RegionByte => "bytes of registered memory",
            Self::Handle => "address handles",
            Self::Link => "links",
        })
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClient => f.write_str("there is no such client"),
            Self::NoCq => f.write_str("the client has no such completion queue"),
            Self::NoEndpoint => f.write_str("the client has no such endpoint"),
            Self::NoRegion => f.write_str("the client has no such memory region"),
            Self::NoHandle => f.write_str("the endpoint has no such address handle"),
            Self::NoLink => f.write_str("there is no such link"),
            Self::Unreachable => f.write_str("there is no link to that host"),
            Self::Quota(object) => write!(f, "the client's quota of {object} is used up"),
            Self::Full(object) => write!(f, "the device has no more {object}"),
            Self::Busy => f.write_str("the queue still has endpoints"),
            Self::State => f.write_str("the endpoint's kind or state does not allow it"),
            Self::Attribute => f.write_str("the queue pair's state or attribute does not allow it"),
            Self::Exists => f.write_str("there is a link to that host already"),
            Self::Range => f.write_str("the address range or access right is not valid"),
            Self::Queue(error) => error.fmt(f),
            Self::Rail(error) => error.fmt(f),
            Self::Storage => f.write_str("the device's tables do not fit together"),
        }
    }
}

impl core::error::Error for DeviceError {}

impl From<GeometryError> for DeviceError {
    fn from(error: GeometryError) -> Self {
        Self::Queue(error)
    }
}

impl From<AttachError> for DeviceError {
    fn from(error: AttachError) -> Self {
        Self::Rail(error)
    }
}
