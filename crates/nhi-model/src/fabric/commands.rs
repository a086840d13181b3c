//! What a person or a test does to the fabric.

use super::Fabric;
use crate::cable::CableState;
use crate::control::CONTROL_MAX;
use crate::nhi::{Arrival, Controller, FRAME_MAX};
use crate::rng::MILLION;
use crate::{
    CableFaults, Command, CommandError, Direction, Env, Event, Fate, Nanos, Nhi, Place, Reply, Ring,
    RingKind, VECTORS,
};

/// PDFs have 4 bits.
const PDFS: u8 = 16;
/// A CRC and nothing else.
const CONTROL_MIN: usize = 4;

impl Fabric {
    pub(super) fn execute(
        &mut self,
        command: Command,
        now: Nanos,
        env: &mut dyn Env,
    ) -> Result<Reply, CommandError> {
        match command {
            Command::Plug(cable) => {
                self.cable(cable)?.plugged = true;
                self.update_links(now, env);
            }
            Command::Unplug(cable) => {
                self.cable(cable)?.plugged = false;
                self.update_links(now, env);
            }
            Command::Retrain { cable, lanes } => {
                if !(1..=2).contains(&lanes) {
                    return Err(CommandError::BadLanes(lanes));
                }
                self.cable(cable)?.narrow = lanes == 1;
                self.update_links(now, env);
            }
            Command::Faults {
                cable,
                direction,
                faults,
            } => {
                check_rates(&faults)?;
                let ways =
                    direction.map_or(0..2, |direction| way(direction)..way(direction).saturating_add(1));
                let wires = self
                    .cable(cable)?
                    .wires
                    .iter_mut()
                    .skip(ways.start)
                    .take(ways.len());
                wires.for_each(|wire| wire.faults = faults);
            }
            Command::LoseFrames {
                cable,
                direction,
                count,
            } => {
                let wires = self.cable(cable)?.wires.iter_mut().skip(way(direction)).take(1);
                wires.for_each(|wire| wire.lose = count);
            }
            Command::LoseControl { nhi, towards, count } => {
                self.controller(nhi)?.set_lose_control(towards, count);
            }
            Command::LoseInterrupts { nhi, vector, count } => {
                if let Some(vector) = vector.filter(|&vector| usize::from(vector) >= VECTORS) {
                    return Err(CommandError::NoSuchVector(vector));
                }
                self.controller(nhi)?.lose_interrupts(vector, count);
            }
            Command::InterruptLoss { nhi, ppm } => {
                check_rate(ppm)?;
                self.controller(nhi)?.lose_some_interrupts(ppm);
            }
            Command::DoorbellLoss { nhi, ppm } => {
                check_rate(ppm)?;
                self.controller(nhi)?.doorbell_loss = ppm;
            }
            Command::StrandCompletions { nhi, ring, count } => self.ring_faults(nhi, ring)?.strand = count,
            Command::IgnoreDoorbells { nhi, ring, count } => self.ring_faults(nhi, ring)?.ignore = count,
            Command::ResetPeer(nhi) => {
                self.controller(nhi)?.reset_router();
                env.observe(
                    now,
                    &Event::Note {
                        nhi,
                        text: "reset by command",
                    },
                );
                self.after_reset(nhi.0, now, env);
            }
            Command::InjectFrame {
                nhi,
                hop,
                sof,
                eof,
                bytes,
                crc_error,
            } => {
                let frame = Arrival {
                    sof,
                    eof,
                    bytes: &bytes,
                    crc_error,
                };
                self.inject_frame(nhi, hop, frame, now, env)?;
            }
            Command::InjectControl { nhi, pdf, bytes } => self.inject_control(nhi, pdf, bytes, now, env)?,
            Command::Stats => return Ok(Reply::Stats(self.stats())),
            Command::Clear => self.clear_counters(),
            Command::Mark => {
                let stats = self.stats();
                self.clear_counters();
                return Ok(Reply::Stats(stats));
            }
        }
        Ok(Reply::Done)
    }

    fn cable(&mut self, cable: crate::Cable) -> Result<&mut CableState, CommandError> {
        self.cables
            .get_mut(cable.0)
            .ok_or(CommandError::NoSuchCable(cable.0))
    }

    fn controller(&mut self, nhi: Nhi) -> Result<&mut Controller, CommandError> {
        self.nhis.get_mut(nhi.0).ok_or(CommandError::NoSuchNhi(nhi.0))
    }

    fn ring_faults(&mut self, nhi: Nhi, ring: Ring) -> Result<&mut crate::nhi::RingFaults, CommandError> {
        let faults = self.controller(nhi)?.faults(ring.kind == RingKind::Tx, ring.hop);
        faults.ok_or(CommandError::NoSuchRing(ring.hop))
    }

    fn inject_frame(
        &mut self,
        nhi: Nhi,
        hop: usize,
        frame: Arrival<'_>,
        now: Nanos,
        env: &mut dyn Env,
    ) -> Result<(), CommandError> {
        check_pdf(frame.sof)?;
        check_pdf(frame.eof)?;
        if !(1..=FRAME_MAX).contains(&frame.bytes.len()) {
            return Err(CommandError::BadLength(frame.bytes.len()));
        }
        let controller = self.controller(nhi)?;
        if !(1..controller.hops()).contains(&hop) {
            return Err(CommandError::NoSuchRing(hop));
        }
        let result = controller.receive(hop, frame, env);
        let fate = result.map_or_else(Fate::Dropped, |()| Fate::Passed);
        let (at, hop, bytes) = (Place::ToHost(nhi), crate::bits::word(hop), frame.bytes);
        env.observe(
            now,
            &Event::Frame {
                at,
                hop,
                sof: frame.sof,
                eof: frame.eof,
                bytes,
                fate,
            },
        );
        result.map_err(CommandError::NotTaken)
    }

    fn inject_control(
        &mut self,
        nhi: Nhi,
        pdf: u8,
        bytes: Vec<u8>,
        now: Nanos,
        env: &mut dyn Env,
    ) -> Result<(), CommandError> {
        check_pdf(pdf)?;
        if !(CONTROL_MIN..=CONTROL_MAX).contains(&bytes.len()) {
            return Err(CommandError::BadLength(bytes.len()));
        }
        let taken = self.controller(nhi)?.tell_host(pdf, bytes, now, env);
        if taken {
            Ok(())
        } else {
            Err(CommandError::NotTaken("ring 0 does not take control packets"))
        }
    }

    fn clear_counters(&mut self) {
        self.nhis
            .iter_mut()
            .for_each(|controller| controller.counters = crate::Counters::default());
        let wires = self.cables.iter_mut().flat_map(|cable| &mut cable.wires);
        wires.for_each(|wire| wire.counters = crate::CableCounters::default());
    }
}

fn way(direction: Direction) -> usize {
    match direction {
        Direction::Forth => 0,
        Direction::Back => 1,
    }
}

fn check_pdf(pdf: u8) -> Result<(), CommandError> {
    if pdf < PDFS {
        Ok(())
    } else {
        Err(CommandError::BadPdf(pdf))
    }
}

fn check_rates(faults: &CableFaults) -> Result<(), CommandError> {
    let rates = [
        faults.loss,
        faults.corrupt,
        faults.corrupt_silently,
        faults.duplicate,
        faults.control_loss,
        faults.control_corrupt,
        faults.control_duplicate,
    ];
    rates.into_iter().try_for_each(check_rate)
}

fn check_rate(rate: u32) -> Result<(), CommandError> {
    if rate <= MILLION {
        Ok(())
    } else {
        Err(CommandError::BadRate(rate))
    }
}
