//! Operations with data that is checked afterwards.

use crate::buffers::Buffer;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::time::{Duration, Instant};
use usb4_nccl_host::Communicator;
use usb4_nccl_host::api::DataType;

/// An operation of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Each even rank to the next, and back: no group.
    Pair,
    /// Each rank to the next, in a group.
    Shift,
    /// Each rank to each, itself among them, in a group.
    AllToAll,
    /// From one buffer to another.
    AllReduce(DataType),
    /// Within one buffer.
    AllReduceInPlace(DataType),
    ReduceScatter,
    AllGather,
    /// From the given rank.
    Broadcast(usize),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Pair => f.write_str("send/recv"),
            Operation::Shift => f.write_str("grouped send/recv"),
            Operation::AllToAll => f.write_str("all-to-all"),
            Operation::AllReduce(of) => write!(f, "AllReduce {of:?}"),
            Operation::AllReduceInPlace(of) => write!(f, "AllReduce {of:?} in place"),
            Operation::ReduceScatter => f.write_str("ReduceScatter"),
            Operation::AllGather => f.write_str("AllGather"),
            Operation::Broadcast(root) => write!(f, "Broadcast from {root}"),
        }
    }
}

/// A communicator with this rank's place in it.
pub(crate) struct Place<'a> {
    pub(crate) comm: &'a Communicator,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

/// An operation that was started.
pub(crate) struct Started {
    operation: Operation,
    /// Elements of a rank's share.
    count: usize,
    salt: usize,
    from: Buffer,
    to: Buffer,
}

/// What rank `rank` has at `at`: small enough for the sum of sixteen ranks to fit 16 bits.
fn value(rank: usize, at: usize, salt: usize) -> u32 {
    u32::try_from((at * 7 + rank * 131 + salt * 17) % 4001).unwrap_or(0)
}

impl Operation {
    pub(crate) fn all(ranks: usize) -> Vec<Operation> {
        let mut all = vec![Operation::Pair, Operation::Shift, Operation::AllToAll];
        all.extend([DataType::F32, DataType::U32].map(Operation::AllReduce));
        all.push(Operation::AllReduceInPlace(DataType::F32));
        all.extend([Operation::ReduceScatter, Operation::AllGather]);
        all.extend((0..ranks).map(Operation::Broadcast));
        all
    }

    /// What its elements are.
    fn of(self) -> DataType {
        match self {
            Operation::AllReduce(of) | Operation::AllReduceInPlace(of) => of,
            Operation::ReduceScatter => DataType::F32,
            _ => DataType::U8,
        }
    }

    /// Starts it on shares of about `bytes`. `salt` makes its data its own.
    pub(crate) fn start(self, place: &Place<'_>, bytes: usize, salt: usize) -> Result<Started> {
        let of = self.of();
        let size = if of == DataType::U8 { 1 } else { 4 };
        let count = bytes.div_ceil(size);
        let (rank, n) = (place.rank, place.ranks);
        let shares = |all: bool| if all { n } else { 1 };
        let all_to_all = self == Operation::AllToAll;
        let mut started = Started {
            operation: self,
            count,
            salt,
            from: Buffer::new(count * size * shares(all_to_all || self == Operation::ReduceScatter))?,
            to: Buffer::new(count * size * shares(all_to_all || self == Operation::AllGather))?,
        };
        started.from.fill(of, |at| value(rank, at, salt));
        started.to.spoil();
        started
            .launch(place)
            .with_context(|| format!("{self}, {bytes} bytes"))?;
        Ok(started)
    }

    pub(crate) fn run(self, place: &Place<'_>, bytes: usize, salt: usize) -> Result<()> {
        self.start(place, bytes, salt)?.finish(place)
    }
}

impl Started {
    /// Starts the operation again on the same buffers.
    pub(crate) fn launch(&mut self, place: &Place<'_>) -> Result<()> {
        let (comm, rank, n, count) = (place.comm, place.rank, place.ranks, self.count);
        let (from, to) = (self.from.as_ptr(), self.to.as_mut_ptr());
        let of = self.operation.of();
        let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
        // SAFETY: the buffers have the elements that each operation wants of them, and live until `finish` has waited.
        unsafe {
            match self.operation {
                Operation::Pair => {
                    let peer = rank ^ 1;
                    match (peer < n, rank % 2 == 0) {
                        (false, _) => {}
                        (true, true) => {
                            comm.send(from, count, peer)?;
                            comm.recv(to, count, peer)?;
                        }
                        (true, false) => {
                            comm.recv(to, count, peer)?;
                            comm.send(from, count, peer)?;
                        }
                    }
                }
                Operation::Shift => comm.group(|| {
                    comm.send(from, count, next)?;
                    comm.recv(to, count, previous)
                })?,
                Operation::AllToAll => comm.group(|| {
                    for peer in 0..n {
                        comm.send(from.add(peer * count), count, peer)?;
                        comm.recv(to.add(peer * count), count, peer)?;
                    }
                    Ok(())
                })?,
                Operation::AllReduce(_) => comm.all_reduce(from, to, count, of)?,
                Operation::AllReduceInPlace(_) => {
                    let both = self.from.as_mut_ptr();
                    comm.all_reduce(both, both, count, of)?;
                }
                Operation::ReduceScatter => comm.reduce_scatter(from, to, count, of)?,
                Operation::AllGather => comm.all_gather(from, to, count, of)?,
                Operation::Broadcast(root) => comm.broadcast(from, to, count, of, root)?,
            }
        }
        Ok(())
    }

    /// Waits for it and checks what it delivered.
    pub(crate) fn finish(self, place: &Place<'_>) -> Result<()> {
        wait(place.comm)
            .and_then(|()| self.check(place))
            .with_context(|| format!("{}, {} elements", self.operation, self.count))
            // An operation that failed may still use the buffers.
            .inspect_err(|_| std::mem::forget(self))
    }

    fn check(&self, place: &Place<'_>) -> Result<()> {
        let (rank, n, count, salt) = (place.rank, place.ranks, self.count, self.salt);
        let of = self.operation.of();
        let sum = |at: usize| (0..n).map(|rank| value(rank, at, salt)).sum();
        let to = &self.to;
        match self.operation {
            Operation::Pair if rank ^ 1 >= n => Ok(()),
            Operation::Pair => to.check(of, |at| value(rank ^ 1, at, salt)),
            Operation::Shift => to.check(of, |at| value((rank + n - 1) % n, at, salt)),
            Operation::AllToAll => to.check(of, |at| {
                value(at / count.max(1), rank * count + at % count.max(1), salt)
            }),
            Operation::AllReduce(_) => to.check(of, sum),
            Operation::AllReduceInPlace(_) => self.from.check(of, sum),
            Operation::ReduceScatter => to.check(of, |at| sum(rank * count + at)),
            Operation::AllGather => to.check(of, |at| value(at / count.max(1), at % count.max(1), salt)),
            Operation::Broadcast(root) => to.check(of, |at| value(root, at, salt)),
        }
    }
}

/// How long an operation may take: far more than any does.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the communicator's stream is idle.
pub(crate) fn wait(comm: &Communicator) -> Result<()> {
    let began = Instant::now();
    while !comm.stream().is_idle() {
        if began.elapsed() < Duration::from_millis(1) {
            std::thread::yield_now();
            continue;
        }
        comm.async_error()?;
        if began.elapsed() > PATIENCE {
            bail!("not done after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    comm.async_error()?;
    Ok(())
}
