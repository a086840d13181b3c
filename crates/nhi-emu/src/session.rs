//! The conversation with one client: what each command does.

use rustix::io::Errno;
use usb4_nhi_model::Nhi;

use crate::connection::{ConnectionError, Message, Outbox};
use crate::machine::{Machine, region_size, vectors};
use crate::memory::Announced;
use crate::protocol::{self, Header, Irqs, Request, irq, region};

/// Where the conversation stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    nhi: Nhi,
    /// Versions have been exchanged; until then nothing else is heard.
    open: bool,
}

/// What is left to say when a command has been carried out.
enum Answer {
    /// Nothing but that.
    Done,
    /// These bytes.
    Bytes(Vec<u8>),
    /// These bytes and the file of the mapped pages.
    BytesAndPages(Vec<u8>),
}

impl Session {
    pub(crate) fn new(nhi: Nhi) -> Self {
        Self { nhi, open: false }
    }

    /// The guest counts as attached.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Carries out one message and answers it. An error means that the client cannot be understood any further.
    pub(crate) fn message(
        &mut self,
        message: Message<'_>,
        machine: &mut Machine,
        out: &mut Outbox,
    ) -> Result<(), ConnectionError> {
        let Message { header, body, fds } = message;
        let request = Request::parse(header.command, body);
        let takes_fds = matches!(request, Ok(Request::DmaMap { .. } | Request::SetIrqs { .. }));
        if !fds.is_empty() && !takes_fds {
            return Err(ConnectionError::StrayFds);
        }
        // The hot path: registers, without anything put together on the way.
        if self.open {
            match request {
                Ok(Request::Read {
                    region,
                    offset,
                    count,
                }) => {
                    self.read(&header, body, (region, offset, count), machine, out);
                    return Ok(());
                }
                Ok(Request::Write { region, offset, data }) => {
                    let outcome = machine.write(self.nhi, region, offset, data);
                    // The reply repeats offset, region and count.
                    let access = body.get(..ACCESS).unwrap_or_default();
                    self.answer(&header, outcome, &[access], out);
                    return Ok(());
                }
                _ => {}
            }
        }
        let outcome = request.and_then(|request| self.carry_out(request, body, fds, machine));
        if let Err(error) = outcome {
            tracing::debug!("{}: command {} refused: {error}", self.nhi, header.command);
        }
        match outcome {
            Ok(Answer::BytesAndPages(bytes)) if header.wants_reply() => {
                let pages = machine
                    .pages(self.nhi)
                    .map(|pages| pages.file().try_clone_to_owned());
                match pages {
                    Some(Ok(file)) => out.done_with(&header, &bytes, file),
                    _ => out.refused(&header, Errno::MFILE),
                }
            }
            Ok(Answer::Bytes(bytes)) => self.answer(&header, Ok(()), &[&bytes], out),
            Ok(Answer::Done | Answer::BytesAndPages(_)) => self.answer(&header, Ok(()), &[], out),
            Err(error) => self.answer(&header, Err(error), &[], out),
        }
        Ok(())
    }

    fn answer(&self, to: &Header, outcome: Result<(), Errno>, parts: &[&[u8]], out: &mut Outbox) {
        match outcome {
            _ if !to.wants_reply() => {}
            Ok(()) => out.done(to, parts),
            Err(error) => out.refused(to, error),
        }
    }

    fn read(
        &self,
        header: &Header,
        body: &[u8],
        (region, offset, count): (u32, u64, usize),
        machine: &mut Machine,
        out: &mut Outbox,
    ) {
        let mut space = [0; protocol::TRANSFER_MAX];
        let buf = space.get_mut(..count).unwrap_or_default();
        let outcome = machine.read(self.nhi, region, offset, buf);
        let access = body.get(..ACCESS).unwrap_or_default();
        self.answer(header, outcome, &[access, buf], out);
    }

    fn carry_out(
        &mut self,
        request: Request<'_>,
        body: &[u8],
        fds: Vec<std::os::fd::OwnedFd>,
        machine: &mut Machine,
    ) -> Result<Answer, Errno> {
        let nhi = self.nhi;
        if self.open == matches!(request, Request::Version { .. }) {
            return Err(Errno::PROTO);
        }
        match request {
            Request::Version {
                major, capabilities, ..
            } => {
                self.greet(major, capabilities)?;
                machine.connect(nhi);
                Ok(Answer::Bytes(protocol::version()))
            }
            Request::DmaMap {
                readable,
                writable,
                offset,
                address,
                size,
            } => {
                let range = Announced {
                    address,
                    size,
                    offset,
                    readable,
                    writable,
                };
                tracing::debug!("{nhi}: {range:x?}, {} file descriptors", fds.len());
                let mut fds = fds.into_iter();
                let file = fds.next();
                if fds.next().is_some() {
                    return Err(Errno::INVAL);
                }
                let guest = machine.board.guest(nhi).ok_or(Errno::NODEV)?;
                guest.memory.map(range, file).map(|()| Answer::Done)
            }
            Request::DmaUnmap { all, address, size } => {
                tracing::debug!("{nhi}: no more {address:#x}+{size:#x}, all: {all}");
                let guest = machine.board.guest(nhi).ok_or(Errno::NODEV)?;
                if all {
                    guest.memory.clear();
                } else {
                    guest.memory.unmap(address, size)?;
                }
                // The reply repeats the arguments.
                Ok(Answer::Bytes(body.get(..UNMAP).unwrap_or_default().to_vec()))
            }
            Request::DeviceInfo => Ok(Answer::Bytes(protocol::device_info())),
            Request::RegionInfo { room, index } => region_info(nhi, room, index, machine),
            Request::IrqInfo { index } => {
                if index >= irq::COUNT {
                    return Err(Errno::INVAL);
                }
                Ok(Answer::Bytes(protocol::irq_info(index, vectors_of(index))))
            }
            Request::SetIrqs {
                index,
                start,
                count,
                irqs,
            } => {
                tracing::debug!(
                    "{nhi}: interrupts {index}: {irqs:?} {start}+{count}, {} file descriptors",
                    fds.len()
                );
                set_irqs(nhi, index, start, count, irqs, fds, machine).map(|()| Answer::Done)
            }
            Request::WriteMulti(writes) => {
                for (region, offset, data) in writes.iter() {
                    machine.write(nhi, region, offset, data)?;
                }
                Ok(Answer::Bytes((writes.len() as u64).to_le_bytes().to_vec()))
            }
            Request::Reset => {
                machine.reset(nhi);
                Ok(Answer::Done)
            }
            // Only before versions have been exchanged: see above.
            Request::Read { .. } | Request::Write { .. } => Err(Errno::PROTO),
        }
    }

    fn greet(&mut self, major: u16, capabilities: &[u8]) -> Result<(), Errno> {
        let text = String::from_utf8_lossy(capabilities);
        tracing::debug!("{}: a client of version {major}: {text}", self.nhi);
        let object = serde_json::from_slice::<serde_json::Value>(capabilities);
        let understood = capabilities.is_empty() || object.is_ok_and(|value| value.is_object());
        if major != 0 || !understood {
            return Err(Errno::INVAL);
        }
        self.open = true;
        Ok(())
    }
}

/// Bytes of offset, region and count in front of the data of an access.
const ACCESS: usize = 16;
/// Bytes of the arguments of DMA_UNMAP.
const UNMAP: usize = 24;

fn region_info(nhi: Nhi, room: u32, index: u32, machine: &Machine) -> Result<Answer, Errno> {
    if index >= region::COUNT {
        return Err(Errno::INVAL);
    }
    let pages = machine.pages(nhi).filter(|_| index == region::BAR0);
    let areas = pages.map(|pages| pages.areas()).unwrap_or_default();
    let (body, whole) = protocol::region_info(index, region_size(index), &areas, room);
    Ok(if whole {
        Answer::BytesAndPages(body)
    } else {
        Answer::Bytes(body)
    })
}

fn vectors_of(index: u32) -> u32 {
    if index == irq::MSIX {
        u32::from(vectors())
    } else {
        0
    }
}

fn set_irqs(
    nhi: Nhi,
    index: u32,
    start: u32,
    count: u32,
    irqs: Irqs,
    fds: Vec<std::os::fd::OwnedFd>,
    machine: &mut Machine,
) -> Result<(), Errno> {
    let end = start.checked_add(count).ok_or(Errno::INVAL)?;
    if index >= irq::COUNT || end > vectors_of(index) {
        return Err(Errno::INVAL);
    }
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let all = usize::from(vectors());
    match irqs {
        Irqs::Disable if index == irq::MSIX => {
            machine.set_vectors(nhi, 0, std::iter::repeat_with(|| None).take(all))
        }
        Irqs::Disable => Ok(()),
        // QEMU sends a descriptor for each of a run of vectors, or none at all for a run of unused ones.
        Irqs::Signal if fds.is_empty() => {
            machine.set_vectors(nhi, start, std::iter::repeat_with(|| None).take(count))
        }
        Irqs::Signal if fds.len() == count => machine.set_vectors(nhi, start, fds.into_iter().map(Some)),
        Irqs::Signal => Err(Errno::INVAL),
    }
}
