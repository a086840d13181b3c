//! Names of the device's objects: table index and generation, so that a stale name never reaches a later object.

/// Most objects of one kind: an index has 16 bits.
pub(crate) const MAX_OBJECTS: usize = 1 << 16;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The place in its table; below the table's size, and used again by later objects.
            pub fn index(self) -> usize {
                usize::from(split(self.0).0)
            }

            /// The name as a number, as it crosses an ABI. Never 0.
            pub fn raw(self) -> u32 {
                self.0
            }

            /// From [`Self::raw`]. A number that names nothing is refused by every call it is used in.
            pub fn from_raw(raw: u32) -> Self {
                Self(raw)
            }

            #[allow(dead_code, reason = "not every table makes names the same way")]
            pub(crate) fn new(index: u16, generation: u16) -> Self {
                Self(join(index, generation))
            }
        }
    )*};
}

ids! {
    /// A client: a process, or whoever owns objects; also a protection domain.
    ClientId,
    /// A completion queue.
    CqId,
    /// An endpoint; also its number in [`usb4_engine::EpAddr::ep`].
    EndpointId,
    /// A link to a peer.
    LinkId,
}

impl EndpointId {
    /// The 24 bits by which a queue pair is known to peers: the place, and 8 bits of the generation.
    pub(crate) fn number(self) -> u32 {
        self.0 & 0xff_ffff
    }

    /// Whether the queue pair of that name is one of the host's own.
    pub(crate) fn is_special(self) -> bool {
        self.index() < SPECIAL_QPS
    }
}

/// Places that no other queue pair gets than those with their numbers, which are a host's own; other endpoints do where there
/// are no others.
pub(crate) const SPECIAL_QPS: usize = 2;

/// The generation after this one; never 0, so that no name is 0.
pub(crate) fn next_generation(generation: u16) -> u16 {
    match generation.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

pub(crate) fn join(index: u16, generation: u16) -> u32 {
    u32::from(index) | u32::from(generation) << 16
}

/// Index and generation.
pub(crate) fn split(raw: u32) -> (u16, u16) {
    let [a, b, c, d] = raw.to_le_bytes();
    (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
}
