//! The two ends of a connection between a kernel and NCCL's proxy thread: eight slots, counted in steps.

use super::Protocol;
use super::layout::{comm, connection, fifo};
use super::place::Place;
use super::unsupported;

/// What both ends have.
struct End {
    connection: Place,
    buffer: Place,
    fifo: Place,
    /// Bytes of a slot.
    step_size: usize,
    /// Steps done.
    step: u64,
}

impl End {
    fn open(comm: Place, connection: Place, protocol: Protocol) -> End {
        let slots = usize::try_from(connection::SLOTS).unwrap_or(usize::MAX);
        let (buffer, step_size, granularity) = match protocol {
            Protocol::Ll => {
                let size = comm.u32(comm::LL_BUFFER_SIZE) as usize;
                (connection::LL_BUFFER, size / slots, 1)
            }
            Protocol::Simple { slices, steps } => {
                let all = comm.u32(comm::SIMPLE_BUFFER_SIZE) as usize;
                let own = connection.u32(connection::STEP_SIZE) as usize;
                let size = if own == 0 { all / slots } else { own };
                (connection::SIMPLE_BUFFER, size, u64::from(slices) * steps)
            }
        };
        let end = End {
            connection,
            buffer: connection.place(buffer),
            fifo: connection.place(connection::FIFO),
            step_size,
            step: connection.u64(connection::STEP).next_multiple_of(granularity),
        };
        if end.fifo.is_null() || end.buffer.is_null() {
            unsupported("a connection that does not go through the network");
        }
        end
    }

    fn entry(&self) -> Place {
        let slot = usize::try_from(self.step % connection::SLOTS).unwrap_or(0);
        self.fifo.at(slot * fifo::SIZE)
    }

    fn slot(&self) -> Place {
        let entry = self.entry();
        match entry.u32(fifo::MODE) {
            fifo::BY_INDEX => {
                let slot = usize::try_from(self.step % connection::SLOTS).unwrap_or(0);
                self.buffer.at(slot * self.step_size)
            }
            fifo::BY_OFFSET => self.buffer.at(entry.u32(fifo::OFFSET) as usize),
            _ => unsupported("a slot that is a buffer of the user's"),
        }
    }

    fn word(&self, offset: usize) -> Place {
        self.connection.place(offset)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // The next kernel goes on from here.
        self.connection.at(connection::STEP).store(self.step);
    }
}

/// The end that fills slots.
pub(crate) struct Sender(End);

impl Sender {
    pub(crate) fn open(comm: Place, connection: Place, protocol: Protocol) -> Sender {
        Sender(End::open(comm, connection, protocol))
    }

    /// The next slot, if the proxy has emptied it and the `steps` - 1 after it.
    pub(crate) fn slot(&self, steps: u64) -> Option<Place> {
        // Eight behind zero where the proxy has a slot for nothing yet.
        let room = self
            .0
            .word(connection::HEAD)
            .load()
            .wrapping_add(connection::SLOTS);
        (room >= self.0.step + steps).then(|| self.0.slot())
    }

    /// Tells how many bytes the next slot holds.
    pub(crate) fn size(&self, bytes: usize) {
        self.0.entry().at(fifo::BYTES).store(bytes as u64);
    }

    /// Goes on by `steps`; who reads the tail learns of them.
    pub(crate) fn advance(&mut self, steps: u64, publish: bool) {
        self.0.step += steps;
        if publish {
            self.0.word(connection::TAIL).store(self.0.step);
        }
    }

    /// The flag of an LL line of this step.
    pub(crate) fn flag(&self) -> u32 {
        flag(self.0.step)
    }
}

/// The end that empties slots.
pub(crate) struct Receiver(End);

impl Receiver {
    pub(crate) fn open(comm: Place, connection: Place, protocol: Protocol) -> Receiver {
        let end = End::open(comm, connection, protocol);
        // Rounding up may have skipped steps: they are empty.
        end.word(connection::HEAD).store(end.step);
        Receiver(end)
    }

    /// The next slot, if the proxy has filled it and the `steps` - 1 after it.
    pub(crate) fn slot(&self, steps: u64) -> Option<Place> {
        let filled = self.0.word(connection::TAIL).load();
        (filled >= self.0.step + steps).then(|| self.0.slot())
    }

    /// The next slot, whose lines say for themselves whether they have come.
    pub(crate) fn lines(&self) -> Place {
        self.0.slot()
    }

    /// Goes on by `steps`, whose slots are empty.
    pub(crate) fn advance(&mut self, steps: u64) {
        self.0.step += steps;
        self.0.word(connection::HEAD).store(self.0.step);
    }

    /// The flag of an LL line of this step.
    pub(crate) fn flag(&self) -> u32 {
        flag(self.0.step)
    }
}

/// The low half of the step counted from 1.
fn flag(step: u64) -> u32 {
    u32::try_from((step + 1) & u64::from(u32::MAX)).unwrap_or(0)
}
