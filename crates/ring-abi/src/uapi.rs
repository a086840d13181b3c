//! `/dev/usb4ring`: its ioctls, for the kernel module that serves them and the client that makes them.
//!
//! One open descriptor is one client: a protection domain with a quota, which goes, with all it has, when the last
//! copy of the descriptor is closed. It is of the process (the `mm`) that opened it; in any other, as a child made by
//! `fork`, every ioctl and `mmap` fails with `EPERM`; and it ends with that process, or when that becomes another by
//! `exec`, whoever still has the descriptor. Names and keys are the device's own (`ClientId` and the like in
//! `usb4-device`; most ioctls are one `usb4_core_*` call of `crates/kobj`) and never 0, but for address handles.
//!
//! Queue memory is the kernel's, zeroed, and reached by `mmap(MAP_SHARED)` at the offset a create call returns, for no
//! more than the bytes it returns, rounded up to whole pages. Children do not inherit a mapping (`VM_DONTCOPY`), and it
//! outlives its object; until it is unmapped the memory counts.
//!
//! # Extension
//!
//! As for iommufd (`include/uapi/linux/iommufd.h`): the number of an ioctl does not encode the size of its argument;
//! the argument begins with `size`, the bytes the caller has. The kernel takes what it knows
//! (`copy_struct_from_user`): a shorter argument is filled up with zeros, which mean what was meant before the field
//! existed; in a longer one what the kernel does not know must be zero. It writes back at most `size` bytes.
//! Fields are added at the end only; flags and values only where they were refused before; a reserved field that gets
//! a meaning has the old one at 0. What a client cannot find out by trying has a bit in [`Info::caps`].
//!
//! So [`crate::ABI_VERSION`] changes only when an old client would misread a queue or an argument. A client that finds
//! another version in [`Info`] closes the device and names both; `INFO` itself is the same in all versions.
//!
//! # Errors
//!
//! | errno | of any ioctl, or the one named |
//! | --- | --- |
//! | `ENOTTY` | the kernel does not know the ioctl |
//! | `E2BIG` | the argument is longer than the kernel's and the rest is not zero |
//! | `EOPNOTSUPP` | a flag, or a kind of endpoint, that the kernel does not know; `REG_MR`: the dma-buf cannot be mapped |
//! | `EINVAL` | shorter than in version 1; a reserved field is not 0; a value out of range: depth, access, address |
//! | `EFAULT` | the argument, or memory to be registered, is not the caller's, or not writable |
//! | `EACCES` | `REG_MR`: the dma-buf's descriptor is for reading only, and the region is not |
//! | `EPERM` | another process opened the descriptor; `SET_RULES`: without `CAP_NET_ADMIN` |
//! | `ENODEV` | the device is shutting down |
//! | `ENOENT` | the client has no such completion queue, endpoint, handle or region; the source is forgotten |
//! | `EDQUOT` | the client's quota ([`Info`]), or that of all its user's clients together, is used up |
//! | `ENOSPC` | the device, or for handles the endpoint, has no more of it |
//! | `ENOMEM` | no memory, or the memory cgroup has no more; `REG_MR`: or `RLIMIT_MEMLOCK` reached |
//! | `EBADF` | `CREATE_CQ`: `event_fd` is no eventfd; `REG_MR`: `dmabuf_fd` is no dma-buf |
//! | `EBUSY` | `DESTROY_CQ`: endpoints use it |
//! | `EISCONN` | `CREATE_AH`: the endpoint is connected already; `DESTROY_AH`: it is of the connected kind |
//! | `EHOSTUNREACH` | `CREATE_AH`: no such host is at the other end of any cable |
//! | `EAGAIN` | `CREATE_AH`: `timeout_ns` is 0, and a link to that host, or to one not known yet, is coming up |
//! | `ETIMEDOUT` | `CREATE_AH`: it did not come up in time |
//! | `EINTR` | `CREATE_AH`, `ENTER`: a signal ended the wait; what `ENTER` did before it waited is done |
//!
//! `open` fails with `EACCES` by the file's mode, with `ENOSPC` if the device, or the user, has no more clients, and with `ENODEV` or
//! `ENXIO` while there is none.
//!
//! # Sleeping
//!
//! A client that wants to sleep releases what it has consumed, sets [`crate::ARMED`] in the completion queue, looks once
//! more, and sleeps: in `poll(2)` on the queue's eventfd, or in [`Enter`] with [`ENTER_WAIT`]. The device clears the flag
//! when it wakes the client, both ways.

/// Where the device is.
pub const DEVICE_PATH: &str = "/dev/usb4ring";

/// Type of the device's ioctls: free in the kernel's `ioctl-number.rst`. Numbers 0x00 to 0x1f are for the device.
pub const IOC_TYPE: u8 = 0xd4;

/// What the device is: [`Info`].
pub const IOC_INFO: u32 = number(0x00);
/// Creates a completion queue: [`CreateCq`].
pub const IOC_CREATE_CQ: u32 = number(0x01);
/// Destroys one without endpoints: [`Destroy`].
pub const IOC_DESTROY_CQ: u32 = number(0x02);
/// Creates an endpoint: [`CreateEp`].
pub const IOC_CREATE_EP: u32 = number(0x03);
/// Destroys one: [`Destroy`]. Its work in flight completes `FLUSHED`; after the call nothing touches the buffers of its
/// submissions.
pub const IOC_DESTROY_EP: u32 = number(0x04);
/// Makes an address handle of a datagram endpoint, or gives a connected one its peer: [`CreateAh`].
pub const IOC_CREATE_AH: u32 = number(0x05);
/// Gives a handle back: [`DestroyAh`].
pub const IOC_DESTROY_AH: u32 = number(0x06);
/// Registers memory: [`RegMr`].
pub const IOC_REG_MR: u32 = number(0x07);
/// Deregisters it: [`DeregMr`].
pub const IOC_DEREG_MR: u32 = number(0x08);
/// The address behind the source of one of the client's completions: [`Source`].
pub const IOC_SOURCE: u32 = number(0x09);
/// The hosts at the other ends of the cables: [`Peers`].
pub const IOC_PEERS: u32 = number(0x0a);
/// Submits, drives and waits in one call: [`Enter`].
pub const IOC_ENTER: u32 = number(0x0b);

/// The cables with a host at the other end that has this service: [`Cables`].
pub const IOC_CABLES: u32 = number(0x0c);
/// Which hosts are let in: [`Rules`].
pub const IOC_RULES: u32 = number(0x0d);
/// Says which hosts are let in, instead of what was said before; links to others end. For `CAP_NET_ADMIN` only.
pub const IOC_SET_RULES: u32 = number(0x0e);

/// [`Info::caps`]: entries may name unregistered memory of the process ([`crate::LOCAL_PROCESS`]).
pub const CAP_PROCESS_MEMORY: u32 = 1;

/// Words of the notice page: links that are up and that nobody drives at this moment. While it is 0, a client that polls
/// gains nothing by calling [`IOC_ENTER`]; [`Info::notice_bytes`] is 0 where there is no such page.
pub const NOTICE_UNDRIVEN_WORD: usize = 0;

/// [`CreateEp::kind`]: reliable datagram, any peer by address handles.
pub const EP_DATAGRAM: u32 = 0;
/// [`CreateEp::kind`]: one peer, given by [`IOC_CREATE_AH`], whose handle is 0.
pub const EP_CONNECTED: u32 = 1;

/// [`RegMr::access`]: peers may read.
pub const ACCESS_REMOTE_READ: u32 = 1;
/// [`RegMr::access`]: peers may write.
pub const ACCESS_REMOTE_WRITE: u32 = 2;
/// [`RegMr::access`]: peers may do atomics; the address must be a multiple of 8.
pub const ACCESS_REMOTE_ATOMIC: u32 = 4;

/// [`RegMr::access`]: nobody writes: peers may have no right to, and entries of the client's that would are invalid. So the
/// memory need not be writable, nor the dma-buf's descriptor.
pub const ACCESS_READ_ONLY: u32 = 8;

/// [`RegMr::flags`]: the remote key is good for the host `node` only.
pub const REG_MR_PEER: u32 = 1;

/// [`RegMr::flags`]: the memory is that of a dma-buf, `dmabuf_fd`, from `dmabuf_offset` on, rather than the process's.
/// It is pinned, counted and mapped for the processor as a whole until it is deregistered; where that is not possible, as
/// for memory of a device only, `EOPNOTSUPP`.
pub const REG_MR_DMABUF: u32 = 2;

/// [`DeregMr::flags`]: work in flight may use the region to its end; its pages stay pinned, and count, until then.
/// Without, nothing touches the memory after the call: such work sends zeros and drops what it receives.
pub const DEREG_MR_LINGER: u32 = 1;

/// [`Peer::state`]: no session yet; it is being brought up, or tried again.
pub const PEER_CONNECTING: u32 = 1;
/// [`Peer::state`]: the link is up.
pub const PEER_UP: u32 = 2;

/// [`Cable::state`]: no session; it is being brought up, or tried again.
pub const CABLE_CONNECTING: u32 = 1;
/// [`Cable::state`]: it carries data.
pub const CABLE_UP: u32 = 2;
/// [`Cable::state`]: one side refuses, for [`Cable::reason`]; tried again from time to time.
pub const CABLE_REFUSED: u32 = 3;

/// [`Cable::reason`]: no protocol version in common.
pub const REFUSED_VERSION: u32 = 1;
/// [`Cable::reason`]: the host at the other end does not let this one in, or has the same node id.
pub const REFUSED_NOT_ALLOWED: u32 = 2;
/// [`Cable::reason`]: the host at the other end has no room.
pub const REFUSED_RESOURCES: u32 = 3;
/// [`Cable::reason`]: the host at the other end is shutting down.
pub const REFUSED_SHUTDOWN: u32 = 4;
/// [`Cable::reason`]: this host's [`Rules`] do not let it in.
pub const REFUSED_BY_RULES: u32 = 256;

/// [`Rules::policy`]: hosts without a rule are let in. So it is when the module is loaded.
pub const POLICY_OPEN: u32 = 0;
/// [`Rules::policy`]: hosts without a rule are refused.
pub const POLICY_LISTED: u32 = 1;

/// Rules there may be.
pub const MAX_RULES: usize = 256;

/// [`Enter::flags`]: take what is posted on `endpoint`'s queues.
pub const ENTER_SUBMIT: u32 = 1;
/// [`Enter::flags`]: drive every link that nobody drives, once; without blocking.
pub const ENTER_PROGRESS: u32 = 2;
/// [`Enter::flags`]: then sleep until completion queue `cq`, which the caller has armed, is not empty, or not armed any
/// more, or `timeout_ns` is over. (It is armed no more if it was woken for an entry that the caller took before it
/// armed: nobody would wake it again.)
pub const ENTER_WAIT: u32 = 4;

/// Result of [`IOC_ENTER`], bit: something was done.
pub const ENTERED_PROGRESS: i32 = 1;
/// Result of [`IOC_ENTER`], bit: with [`ENTER_WAIT`], the completion queue is not empty.
pub const ENTERED_READY: i32 = 2;

/// A timeout that never ends.
pub const FOREVER: u64 = u64::MAX;

/// `_IO(IOC_TYPE, nr)` of `asm-generic/ioctl.h`: neither direction nor size.
const fn number(nr: u8) -> u32 {
    (IOC_TYPE as u32) << 8 | nr as u32
}

/// The argument of an ioctl.
///
/// # Safety
/// It is `repr(C)`, has integers only and no padding, and begins with its size as a `u32`.
pub unsafe trait Argument: Copy {
    /// The ioctls it is for.
    const NUMBERS: &'static [u32];
}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident $numbers:tt $bytes:literal { $($fields:tt)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name {
            /// Bytes of the argument the caller has.
            pub size: u32,
            /// Flags; 0 where none are named.
            pub flags: u32,
            $($fields)*
        }

        impl $name {
            /// Bytes of this version of it.
            pub const SIZE: u32 = $bytes;

            /// All zero, but for the size.
            pub fn new() -> Self {
                Self { size: Self::SIZE, ..Self::default() }
            }
        }

        const _: () = assert!(size_of::<$name>() == $bytes);

        // SAFETY: `repr(C)`, integers, the size first; `tests/uapi.rs` has a C compiler refuse padding.
        unsafe impl Argument for $name {
            const NUMBERS: &'static [u32] = &$numbers;
        }
    )*};
}

/// Address of an endpoint: 24 bytes, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Addr {
    /// Lower 64 bits of the node id.
    pub node_low: u64,
    /// Upper 64 bits of the node id.
    pub node_high: u64,
    /// The endpoint on its host.
    pub ep: u32,
    /// Which of those that had that number one after the other.
    pub incarnation: u32,
}

/// A host at the other end of a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// Lower 64 bits of its node id.
    pub node_low: u64,
    /// Upper 64 bits of its node id.
    pub node_high: u64,
    /// [`PEER_CONNECTING`] or [`PEER_UP`]; others may come.
    pub state: u32,
    /// Rails that are up.
    pub rails: u32,
    /// Megabits per second of these together.
    pub rate_mbps: u32,
    /// 0.
    pub reserved: u32,
}

/// A cable to a router whose host has this service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cable {
    /// UUID of the router at the other end, its bytes in the order in which they are written.
    pub router: [u8; 16],
    /// Lower 64 bits of the node id the host there has last given; 0, both halves, if it has not said any.
    pub node_low: u64,
    /// Upper 64 bits of it.
    pub node_high: u64,
    /// [`CABLE_CONNECTING`] and so on; others may come.
    pub state: u32,
    /// With [`CABLE_REFUSED`]: why, [`REFUSED_VERSION`] and so on; others may come.
    pub reason: u32,
}

/// A host and a router by which it is let in. A host with rules is let in by the routers these name and by no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// Lower 64 bits of its node id.
    pub node_low: u64,
    /// Upper 64 bits of its node id.
    pub node_high: u64,
    /// UUID of the router, its bytes in the order in which they are written; all zero for any router.
    pub router: [u8; 16],
}

arguments! {
    /// What the device is and what this client may have. Everything is written by the kernel.
    Info [IOC_INFO] 112 {
        /// [`crate::ABI_VERSION`] of the kernel.
        pub abi_version: u32,
        /// [`CAP_PROCESS_MEMORY`] and what may come.
        pub caps: u32,
        /// Lower 64 bits of this host's node id.
        pub node_low: u64,
        /// Upper 64 bits of this host's node id.
        pub node_high: u64,
        /// Version of the module for people: text, filled up with zeros.
        pub release: [u8; 32],
        /// Longest message in bytes.
        pub max_message: u32,
        /// Most entries of a queue.
        pub max_depth: u32,
        /// Completion queues.
        pub max_cqs: u32,
        /// Entries of all completion queues together.
        pub max_cq_entries: u32,
        /// Endpoints.
        pub max_eps: u32,
        /// Address handles of all endpoints together.
        pub max_ahs: u32,
        /// Memory regions.
        pub max_mrs: u32,
        /// Bytes of the notice page, 0 if there is none.
        pub notice_bytes: u32,
        /// Bytes of all memory regions together.
        pub max_mr_bytes: u64,
        /// Where to map the notice page, read-only.
        pub notice_offset: u64,
    }

    /// A completion queue to be created.
    CreateCq [IOC_CREATE_CQ] 40 {
        /// Entries, a power of two.
        pub depth: u32,
        /// An eventfd that is signalled when an armed queue gets an entry, or -1. The kernel keeps it until the
        /// queue is destroyed.
        pub event_fd: i32,
        /// Written: its name.
        pub cq: u32,
        /// 0.
        pub reserved: u32,
        /// Written: where to map it.
        pub offset: u64,
        /// Written: bytes to map.
        pub bytes: u64,
    }

    /// A completion queue or endpoint to be destroyed.
    Destroy [IOC_DESTROY_CQ, IOC_DESTROY_EP] 16 {
        /// Its name.
        pub id: u32,
        /// 0.
        pub reserved: u32,
    }

    /// An endpoint to be created.
    CreateEp [IOC_CREATE_EP] 96 {
        /// [`EP_DATAGRAM`] or [`EP_CONNECTED`].
        pub kind: u32,
        /// Name of the completion queue of its submissions.
        pub send_cq: u32,
        /// Name of the completion queue of its receives; may be the same.
        pub recv_cq: u32,
        /// Entries of its submission queue, a power of two.
        pub sq_depth: u32,
        /// Entries of its receive queue, a power of two.
        pub rq_depth: u32,
        /// Address handles it may have at a time, 1 to 65536; 0 for what the device thinks right. A connected one has 1.
        pub max_ahs: u32,
        /// Written: its name.
        pub ep: u32,
        /// 0.
        pub reserved: u32,
        /// Written: its address.
        pub addr: Addr,
        /// Written: where to map the submission queue.
        pub sq_offset: u64,
        /// Written: bytes of it.
        pub sq_bytes: u64,
        /// Written: where to map the receive queue.
        pub rq_offset: u64,
        /// Written: bytes of it.
        pub rq_bytes: u64,
    }

    /// An address handle to be made. Links come up by themselves when a cable is plugged in, so this only looks for
    /// the one to `addr`'s host and, if it is coming up, waits for it. Other calls on the descriptor go on meanwhile.
    CreateAh [IOC_CREATE_AH] 48 {
        /// Name of the endpoint that will send.
        pub ep: u32,
        /// Written: the handle.
        pub ah: u32,
        /// Whom it will send to.
        pub addr: Addr,
        /// How long to wait for a link at most; 0: not at all.
        pub timeout_ns: u64,
    }

    /// An address handle to be given back; work in flight through it completes `FLUSHED`.
    DestroyAh [IOC_DESTROY_AH] 16 {
        /// Name of the endpoint.
        pub ep: u32,
        /// The handle.
        pub ah: u32,
    }

    /// Memory of the calling process to be registered: its pages are pinned, and count towards `RLIMIT_MEMLOCK`,
    /// until it is deregistered. It must be writable, unless [`ACCESS_READ_ONLY`] is said.
    RegMr [IOC_REG_MR] 72 {
        /// Address of its first byte; what local and remote operations use, too. With [`REG_MR_DMABUF`] any number that
        /// they shall use.
        pub addr: u64,
        /// Bytes, at least 1.
        pub len: u64,
        /// What peers may do, [`ACCESS_REMOTE_READ`] and so on, 0 for nothing; and [`ACCESS_READ_ONLY`].
        pub access: u32,
        /// Written: key for the client's own entries.
        pub local_key: u32,
        /// Written: key for peers.
        pub remote_key: u64,
        /// With [`REG_MR_PEER`]: lower 64 bits of the host's node id.
        pub node_low: u64,
        /// With [`REG_MR_PEER`]: upper 64 bits of the host's node id.
        pub node_high: u64,
        /// With [`REG_MR_DMABUF`]: where in the dma-buf the memory begins.
        pub dmabuf_offset: u64,
        /// With [`REG_MR_DMABUF`]: the dma-buf's descriptor, which may be closed after the call; else 0.
        pub dmabuf_fd: i32,
        /// 0.
        pub reserved: u32,
    }

    /// Memory to be deregistered. Its keys are dead at once.
    DeregMr [IOC_DEREG_MR] 16 {
        /// Its local key.
        pub local_key: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Who has sent a message.
    Source [IOC_SOURCE] 40 {
        /// `src` of the receive's completion.
        pub src: u32,
        /// 0.
        pub reserved: u32,
        /// Written: the sender's address.
        pub addr: Addr,
    }

    /// The list of peers.
    Peers [IOC_PEERS] 24 {
        /// Elements `peers` has room for. Written: peers there are, which may be more.
        pub count: u32,
        /// Bytes of an element as the caller knows it ([`Peer`]); what the kernel does not know of it is zeroed.
        pub stride: u32,
        /// Address of the elements.
        pub peers: u64,
    }

    /// The list of cables.
    Cables [IOC_CABLES] 24 {
        /// Elements `cables` has room for. Written: cables there are, which may be more.
        pub count: u32,
        /// Bytes of an element as the caller knows it ([`Cable`]); what the kernel does not know of it is zeroed.
        pub stride: u32,
        /// Address of the elements.
        pub cables: u64,
    }

    /// Which hosts are let in. Nothing proves to a host that the other end of a cable is who it says: rules keep out who
    /// was not meant to be there, not who forges a router's UUID.
    Rules [IOC_RULES, IOC_SET_RULES] 32 {
        /// [`POLICY_OPEN`] or [`POLICY_LISTED`]: what holds for hosts without a rule. Written by [`IOC_RULES`].
        pub policy: u32,
        /// [`IOC_SET_RULES`]: rules at `rules`, at most [`MAX_RULES`]. [`IOC_RULES`]: how many there is room for;
        /// written: rules there are.
        pub count: u32,
        /// Bytes of an element as the caller knows it ([`Rule`]): of what the kernel does not know, nothing may be set.
        pub stride: u32,
        /// 0.
        pub reserved: u32,
        /// Address of the elements.
        pub rules: u64,
    }

    /// What to do, and in this order: submit, drive, wait. The ioctl returns [`ENTERED_PROGRESS`] and
    /// [`ENTERED_READY`]; nothing is written to the argument.
    Enter [IOC_ENTER] 24 {
        /// With [`ENTER_SUBMIT`]: name of the endpoint.
        pub ep: u32,
        /// With [`ENTER_WAIT`]: name of the completion queue.
        pub cq: u32,
        /// With [`ENTER_WAIT`]: how long to wait at most, or [`FOREVER`]; 0 only looks.
        pub timeout_ns: u64,
    }
}
