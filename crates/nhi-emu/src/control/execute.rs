//! What a request does.

use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};
use usb4_nhi_control::{Capture, Hex, Inject, On, Request, RingKind, Towards, Way};
use usb4_nhi_model::{
    self as model, Cable, CableFaults, Command, CommandError, ControlPacket, Direction, Nhi, Reply, Ring,
};

use super::json;
use crate::machine::Machine;
use crate::recording::Recording;

/// Carries requests out, and remembers the faults that are set, since the model takes all those of a cable at once.
#[derive(Debug)]
pub(crate) struct Executor {
    /// Of each cable, forth and back.
    faults: Vec<[CableFaults; 2]>,
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecuteError {
    #[error(transparent)]
    Model(#[from] CommandError),
    #[error("a control packet is whole doublewords, not {0} bytes")]
    Ragged(usize),
    #[error("a capture is running: stop it first")]
    Capturing,
    #[error("no capture is running")]
    NotCapturing,
    #[error("cannot record into {}: {_1}", _0.display())]
    File(PathBuf, io::Error),
    #[error("the capture is not complete: {0}")]
    Incomplete(io::Error),
}

impl Executor {
    pub(crate) fn new(machine: &Machine) -> Self {
        let cables = machine.fabric.topology().cables.len();
        Self {
            faults: vec![Default::default(); cables],
        }
    }

    /// Carries a request out; the answer is an object with `"ok": true`.
    pub(crate) fn execute(
        &mut self,
        request: &Request,
        machine: &mut Machine,
    ) -> Result<Value, ExecuteError> {
        let command = match request {
            Request::Plug { cable } => Command::Plug(Cable(*cable)),
            Request::Unplug { cable } => Command::Unplug(Cable(*cable)),
            Request::Narrow { cable, lanes } => Command::Retrain {
                cable: Cable(*cable),
                lanes: *lanes,
            },
            Request::Loss { on, ppm } => {
                let rate = |faults: &mut CableFaults| match on.control {
                    false => faults.loss = *ppm,
                    true => faults.control_loss = *ppm,
                };
                return self.set(machine, on, rate);
            }
            Request::Corrupt { on, ppm, silent } => {
                let rate = |faults: &mut CableFaults| match (on.control, silent) {
                    (true, _) => faults.control_corrupt = *ppm,
                    (false, false) => faults.corrupt = *ppm,
                    (false, true) => faults.corrupt_silently = *ppm,
                };
                return self.set(machine, on, rate);
            }
            Request::Duplicate { on, ppm } => {
                let rate = |faults: &mut CableFaults| match on.control {
                    false => faults.duplicate = *ppm,
                    true => faults.control_duplicate = *ppm,
                };
                return self.set(machine, on, rate);
            }
            Request::Delay { on, time } => {
                let delay = |faults: &mut CableFaults| match on.control {
                    false => faults.delay = time.nanos,
                    true => faults.control_delay = time.nanos,
                };
                return self.set(machine, on, delay);
            }
            Request::Heal { cable } => {
                let both = On {
                    cable: *cable,
                    way: None,
                    control: false,
                };
                return self.set(machine, &both, |faults| *faults = CableFaults::default());
            }
            Request::LoseFrames { cable, way, count } => Command::LoseFrames {
                cable: Cable(*cable),
                direction: direction(*way),
                count: *count,
            },
            Request::LoseControl { nhi, towards, count } => Command::LoseControl {
                nhi: Nhi(*nhi),
                towards: match towards {
                    Towards::Host => model::Towards::Host,
                    Towards::Router => model::Towards::Router,
                },
                count: *count,
            },
            Request::LoseInterrupt { nhi, count, vector } => Command::LoseInterrupts {
                nhi: Nhi(*nhi),
                vector: *vector,
                count: *count,
            },
            Request::InterruptLoss { nhi, ppm } => Command::InterruptLoss {
                nhi: Nhi(*nhi),
                ppm: *ppm,
            },
            Request::DoorbellLoss { nhi, ppm } => Command::DoorbellLoss {
                nhi: Nhi(*nhi),
                ppm: *ppm,
            },
            Request::StrandCompletion {
                nhi,
                kind,
                hop,
                count,
            } => Command::StrandCompletions {
                nhi: Nhi(*nhi),
                ring: ring(*kind, *hop),
                count: *count,
            },
            Request::IgnoreDoorbell {
                nhi,
                kind,
                hop,
                count,
            } => Command::IgnoreDoorbells {
                nhi: Nhi(*nhi),
                ring: ring(*kind, *hop),
                count: *count,
            },
            Request::ResetPeer { nhi } => Command::ResetPeer(Nhi(*nhi)),
            Request::Inject(inject) => injection(inject)?,
            Request::Stats => Command::Stats,
            Request::Clear => Command::Clear,
            Request::Mark { .. } => Command::Mark,
            Request::Capture(request) => return capture(request, machine),
        };
        Ok(reply(&command_now(machine, command)?))
    }

    /// Changes the faults of a cable.
    fn set(
        &mut self,
        machine: &mut Machine,
        on: &On,
        change: impl Fn(&mut CableFaults),
    ) -> Result<Value, ExecuteError> {
        let both = self
            .faults
            .get_mut(on.cable)
            .ok_or(CommandError::NoSuchCable(on.cable))?;
        for (faults, way) in both.iter_mut().zip([Way::Forth, Way::Back]) {
            if on.way.is_some_and(|only| only != way) {
                continue;
            }
            let mut changed = *faults;
            change(&mut changed);
            let command = Command::Faults {
                cable: Cable(on.cable),
                direction: Some(direction(way)),
                faults: changed,
            };
            command_now(machine, command)?;
            *faults = changed;
        }
        Ok(reply(&Reply::Done))
    }
}

fn capture(capture: &Capture, machine: &mut Machine) -> Result<Value, ExecuteError> {
    let running = &mut machine.board.recording;
    match capture {
        Capture::Start { .. } if running.is_some() => return Err(ExecuteError::Capturing),
        Capture::Start { file, all } => {
            let recording = Recording::start(file, *all, machine.fabric.topology());
            *running = Some(recording.map_err(|error| ExecuteError::File(file.clone(), error))?);
        }
        Capture::Stop => {
            let recording = running.take().ok_or(ExecuteError::NotCapturing)?;
            recording.stop().map_err(ExecuteError::Incomplete)?;
        }
    }
    Ok(reply(&Reply::Done))
}

fn command_now(machine: &mut Machine, command: Command) -> Result<Reply, CommandError> {
    let now = machine.now();
    machine.fabric.command(now, command, &mut machine.board)
}

fn reply(reply: &Reply) -> Value {
    match reply {
        Reply::Done => json!({"ok": true}),
        Reply::Stats(stats) => json!({"ok": true, "stats": json::stats(stats)}),
    }
}

fn injection(inject: &Inject) -> Result<Command, ExecuteError> {
    Ok(match inject {
        Inject::Frame {
            nhi,
            hop,
            sof,
            eof,
            bytes,
            crc_error,
        } => Command::InjectFrame {
            nhi: Nhi(*nhi),
            hop: *hop,
            sof: *sof,
            eof: *eof,
            bytes: bytes.0.clone(),
            crc_error: *crc_error,
        },
        Inject::Control { nhi, pdf, bytes, raw } => Command::InjectControl {
            nhi: Nhi(*nhi),
            pdf: *pdf,
            bytes: if *raw {
                bytes.0.clone()
            } else {
                with_crc(*pdf, bytes)?
            },
        },
    })
}

fn with_crc(pdf: u8, bytes: &Hex) -> Result<Vec<u8>, ExecuteError> {
    let mut words = bytes.0.chunks_exact(size_of::<u32>());
    let packet: Vec<u32> = words
        .by_ref()
        .map(|word| word.iter().fold(0, |word, &byte| word << 8 | u32::from(byte)))
        .collect();
    if !words.remainder().is_empty() {
        return Err(ExecuteError::Ragged(bytes.0.len()));
    }
    Ok(ControlPacket::new(pdf, packet).encode())
}

fn direction(way: Way) -> Direction {
    match way {
        Way::Forth => Direction::Forth,
        Way::Back => Direction::Back,
    }
}

fn ring(kind: RingKind, hop: usize) -> Ring {
    let kind = match kind {
        RingKind::Tx => model::RingKind::Tx,
        RingKind::Rx => model::RingKind::Rx,
    };
    Ring { kind, hop }
}
