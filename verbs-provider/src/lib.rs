//! `libusb4-rdmavNN.so`: the provider by which libibverbs knows the kernel module's device `usb4_0`. One object serves
//! every rdma-core from 36 to 65; it has a name for each private ABI.
//!
//! Objects are made by uverbs. Then queues are mapped, and a work request is an entry of the ring API's submission or
//! receive queue (`usb4_ring::raw`), a completion one of its completion queue: no call into uverbs posts or polls.
//! The number of a work request is the entry's `user_data`, so there is no table of what is in flight.
//!
//! Reliable and unreliable connected queue pairs, and datagrams. One buffer per work request; inline data as far as it
//! fits into the entry of a SEND. Shared receive queues, memory windows, XRC, flow steering and the like are refused with
//! `EOPNOTSUPP`, by libibverbs itself where this provider leaves a slot empty.
//!
//! `init` is where libibverbs comes in, `context` opens the device; each other file is an object of verbs. What is decided
//! on the data path has files without C: `send` (work request to entry), `wc` (entry to completion), `handles` (whom
//! datagrams go to), `queue` (a completion queue's two ends).
//!
//! Locks: one for each end of a queue pair, one for each completion queue, none held where another is taken.

mod abi;
mod ah;
mod context;
mod cq;
mod cq_ex;
mod device;
mod errno;
mod handles;
mod host;
mod init;
mod mr;
mod object;
mod pd;
mod qp;
mod qp_ex;
mod qp_post;
mod queue;
mod send;
mod slot;
mod srq;
mod wc;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
