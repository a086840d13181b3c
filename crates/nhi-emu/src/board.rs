//! What the model reaches outside itself: guests' memory, their interrupts, the log and the capture file.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use usb4_nhi_model::{Env, Event, Nanos, Nhi, VECTORS};

use crate::memory::GuestMemory;
use crate::recording::Recording;

/// Everything outside the model.
#[derive(Debug)]
pub(crate) struct Board {
    guests: Vec<Guest>,
    clock: Clock,
    pub(crate) recording: Option<Recording>,
}

/// Where the time comes from.
#[derive(Debug)]
enum Clock {
    /// It has passed since then.
    Since(Instant),
    /// Somebody says it.
    #[cfg(feature = "fuzz")]
    Told(Nanos),
}

/// What belongs to the guest at one controller.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    pub(crate) memory: GuestMemory,
    vectors: [Option<OwnedFd>; VECTORS],
}

impl Board {
    pub(crate) fn new(nhis: usize) -> Self {
        Self {
            guests: (0..nhis).map(|_| Guest::default()).collect(),
            clock: Clock::Since(Instant::now()),
            recording: None,
        }
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Nanos {
        match self.clock {
            Clock::Since(start) => Nanos::try_from(start.elapsed().as_nanos()).unwrap_or(Nanos::MAX),
            #[cfg(feature = "fuzz")]
            Clock::Told(now) => now,
        }
    }

    /// Says the time from now on.
    #[cfg(feature = "fuzz")]
    pub(crate) fn set_time(&mut self, now: Nanos) {
        self.clock = Clock::Told(now);
    }

    pub(crate) fn guest(&mut self, nhi: Nhi) -> Option<&mut Guest> {
        self.guests.get_mut(nhi.0)
    }
}

impl Guest {
    /// Signals a vector by `fd` from now on, or not at all. False if there is no such vector.
    ///
    /// The descriptor is made non-blocking, so that one which is no eventfd, or a full one, cannot hold up the others.
    pub(crate) fn set_vector(&mut self, vector: u16, fd: Option<OwnedFd>) -> Result<(), Errno> {
        let slot = self.vectors.get_mut(usize::from(vector)).ok_or(Errno::INVAL)?;
        if let Some(fd) = &fd {
            fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        }
        *slot = fd;
        Ok(())
    }
}

impl Env for Board {
    fn read(&mut self, nhi: Nhi, addr: u64, buf: &mut [u8]) -> bool {
        self.guests
            .get(nhi.0)
            .is_some_and(|guest| guest.memory.read(addr, buf))
    }

    fn write(&mut self, nhi: Nhi, addr: u64, bytes: &[u8]) -> bool {
        self.guests
            .get(nhi.0)
            .is_some_and(|guest| guest.memory.write(addr, bytes))
    }

    fn interrupt(&mut self, nhi: Nhi, vector: u16) {
        let guest = self.guests.get(nhi.0);
        let Some(Some(fd)) = guest.and_then(|guest| guest.vectors.get(usize::from(vector))) else {
            return;
        };
        match rustix::io::write(fd, &1u64.to_ne_bytes()) {
            // An eventfd that is full has told its reader already.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => tracing::warn!("{nhi}: vector {vector} cannot be signalled: {error}"),
        }
    }

    fn observe(&mut self, now: Nanos, event: &Event<'_>) {
        if let Some(recording) = &mut self.recording {
            recording.observe(now, event);
        }
        match event {
            Event::Note { nhi, text } => tracing::info!("{nhi}: {text}"),
            Event::Link { cable, state } => tracing::info!("cable {}: {state:?}", cable.0),
            Event::Interrupt { .. } | Event::Frame { .. } => tracing::trace!("{event:?}"),
            Event::Control { at, pdf, bytes, fate } => {
                if tracing::enabled!(tracing::Level::DEBUG) {
                    match usb4_nhi_model::ControlPacket::decode(*pdf, bytes) {
                        Ok(packet) => tracing::debug!("{at:?} {fate:?}: {packet}"),
                        Err(error) => tracing::debug!("{at:?} {fate:?}: {error}"),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn an_interrupt_is_counted_by_its_eventfd() {
        let mut board = Board::new(1);
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        let ours = fd.try_clone().unwrap();
        board.guest(Nhi(0)).unwrap().set_vector(3, Some(fd)).unwrap();
        board.interrupt(Nhi(0), 3);
        board.interrupt(Nhi(0), 3);
        board.interrupt(Nhi(0), 4);
        board.interrupt(Nhi(1), 3);
        let mut count = [0; 8];
        rustix::io::read(&ours, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
    }

    #[test]
    fn a_descriptor_that_is_no_eventfd_holds_nothing_up() {
        let mut board = Board::new(1);
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let guest = board.guest(Nhi(0)).unwrap();
        guest.set_vector(0, Some(writer)).unwrap();
        for _ in 0..100_000 {
            board.interrupt(Nhi(0), 0);
        }
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        board.guest(Nhi(0)).unwrap().set_vector(0, Some(full)).unwrap();
        board.interrupt(Nhi(0), 0);
    }

    #[test]
    fn there_are_sixteen_vectors() {
        let mut guest = Guest::default();
        assert_eq!(guest.set_vector(15, None), Ok(()));
        assert_eq!(guest.set_vector(16, None), Err(Errno::INVAL));
    }
}
