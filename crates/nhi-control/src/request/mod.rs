//! What can be asked of a running emulator.
//!
//! A request is a line of words: `loss 0 1000 --control`. The same definition reads the command line of `usb4ctl lab`
//! and the lines on the socket.

mod values;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use values::{Hex, Name, RingKind, Span, Towards, Way};

/// A request to the emulator.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Request {
    /// Puts a cable in
    Plug {
        /// Number of the cable
        cable: usize,
    },
    /// Pulls a cable out
    Unplug {
        /// Number of the cable
        cable: usize,
    },
    /// Retrains a cable's link to fewer lanes, or back to two
    Narrow {
        /// Number of the cable
        cable: usize,
        /// Lanes it may use from now on
        #[arg(default_value_t = 1)]
        lanes: u8,
    },
    /// Loses frames, or control packets, at random
    Loss {
        /// What it strikes
        #[command(flatten)]
        on: On,
        /// Parts per million; 0 ends it
        ppm: u32,
    },
    /// Damages frames, or control packets, at random
    Corrupt {
        /// What it strikes
        #[command(flatten)]
        on: On,
        /// Parts per million; 0 ends it
        ppm: u32,
        /// So that no hardware check sees it (frames only)
        #[arg(long, conflicts_with = "control")]
        silent: bool,
    },
    /// Doubles frames, or control packets, at random
    Duplicate {
        /// What it strikes
        #[command(flatten)]
        on: On,
        /// Parts per million; 0 ends it
        ppm: u32,
    },
    /// Delays all frames, or control packets; their order is kept
    Delay {
        /// What it strikes
        #[command(flatten)]
        on: On,
        /// As in 50us, 2ms, 1s; 0 ends it
        time: Span,
    },
    /// Ends loss, corruption, duplication and delay on a cable
    Heal {
        /// Number of the cable
        cable: usize,
    },
    /// Loses the next frames on a cable
    LoseFrames {
        /// Number of the cable
        cable: usize,
        /// Which way
        way: Way,
        /// How many; 0 takes it back
        count: u32,
    },
    /// Loses the next control packets between a host and its router
    LoseControl {
        /// Number of the controller
        nhi: usize,
        /// Which way
        towards: Towards,
        /// How many; 0 takes it back
        count: u32,
    },
    /// Loses the next interrupts of a controller
    LoseInterrupt {
        /// Number of the controller
        nhi: usize,
        /// How many; 0 takes it back
        #[arg(default_value_t = 1)]
        count: u32,
        /// Only of this vector
        #[arg(long)]
        vector: Option<u16>,
    },
    /// Loses interrupts of a controller's data rings at random
    InterruptLoss {
        /// Number of the controller
        nhi: usize,
        /// Parts per million; 0 ends it
        ppm: u32,
    },
    /// Ignores doorbells of a controller's data rings at random
    DoorbellLoss {
        /// Number of the controller
        nhi: usize,
        /// Parts per million; 0 ends it
        ppm: u32,
    },
    /// Never completes the next descriptors of a ring
    StrandCompletion {
        /// Number of the controller
        nhi: usize,
        /// Which ring of the pair
        kind: RingKind,
        /// Its number
        hop: usize,
        /// How many; 0 takes it back
        #[arg(default_value_t = 1)]
        count: u32,
    },
    /// Ignores the next doorbells of a ring
    IgnoreDoorbell {
        /// Number of the controller
        nhi: usize,
        /// Which ring of the pair
        kind: RingKind,
        /// Its number
        hop: usize,
        /// How many; 0 takes it back
        #[arg(default_value_t = 1)]
        count: u32,
    },
    /// Resets a controller's router under its driver, as when its host crashes
    ResetPeer {
        /// Number of the controller
        nhi: usize,
    },
    /// Hands a controller a frame or a control packet of our own making
    #[command(subcommand)]
    Inject(Inject),
    /// Shows all counters
    Stats,
    /// Clears all counters
    Clear,
    /// Shows all counters, prints them on the emulator's output under a name, and clears them
    Mark {
        /// The name
        name: Name,
    },
    /// Records what crosses the cables
    #[command(subcommand)]
    Capture(Capture),
}

/// Something to inject.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Inject {
    /// A data frame, into an RX ring
    Frame {
        /// Number of the receiving controller
        nhi: usize,
        /// Its RX ring
        hop: usize,
        /// PDF of the frame's first packet
        sof: u8,
        /// PDF of its last packet
        eof: u8,
        /// The payload, in hexadecimal digits
        bytes: Hex,
        /// Flag a CRC error
        #[arg(long)]
        crc_error: bool,
    },
    /// A control packet, into RX ring 0
    Control {
        /// Number of the receiving controller
        nhi: usize,
        /// Packet type
        pdf: u8,
        /// Its big-endian doublewords, in hexadecimal digits; the CRC is added
        bytes: Hex,
        /// Add no CRC
        #[arg(long)]
        raw: bool,
    },
}

/// Beginning and end of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Capture {
    /// Starts recording into a file, in place of what it held
    Start {
        /// The file
        file: PathBuf,
        /// Also what passes between hosts and their routers, interrupts, and notes
        #[arg(long)]
        all: bool,
    },
    /// Stops recording
    Stop,
}

/// What a fault strikes: a cable, one direction of it or both, its frames or its control packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct On {
    /// Number of the cable
    pub cable: usize,
    /// Only this way
    #[arg(long)]
    pub way: Option<Way>,
    /// Control packets, not data frames
    #[arg(long)]
    pub control: bool,
}

/// Why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(String);

#[derive(Parser)]
#[command(
    no_binary_name = true,
    disable_help_flag = true,
    disable_help_subcommand = true
)]
struct Line {
    #[command(subcommand)]
    request: Request,
}

impl FromStr for Request {
    type Err = RequestError;

    fn from_str(line: &str) -> Result<Self, RequestError> {
        let told = |error: clap::Error| RequestError(first_paragraph(&error.to_string()));
        // Help is for the command line; on a socket a missing word is a mistake.
        let command = Line::command()
            .arg_required_else_help(false)
            .mut_subcommands(|command| command.arg_required_else_help(false));
        let matches = command
            .try_get_matches_from(line.split_whitespace())
            .map_err(told)?;
        Ok(Line::from_arg_matches(&matches).map_err(told)?.request)
    }
}

/// What clap says first, as one line: the usage that follows is for people at a terminal.
fn first_paragraph(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The line that asks for it.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plug { cable } => write!(f, "plug {cable}"),
            Self::Unplug { cable } => write!(f, "unplug {cable}"),
            Self::Narrow { cable, lanes } => write!(f, "narrow {cable} {lanes}"),
            Self::Loss { on, ppm } => fault(f, "loss", on, ppm),
            Self::Corrupt { on, ppm, silent } => {
                fault(f, "corrupt", on, ppm)?;
                f.write_str(if *silent { " --silent" } else { "" })
            }
            Self::Duplicate { on, ppm } => fault(f, "duplicate", on, ppm),
            Self::Delay { on, time } => fault(f, "delay", on, time),
            Self::Heal { cable } => write!(f, "heal {cable}"),
            Self::LoseFrames { cable, way, count } => write!(f, "lose-frames {cable} {way} {count}"),
            Self::LoseControl { nhi, towards, count } => write!(f, "lose-control {nhi} {towards} {count}"),
            Self::LoseInterrupt { nhi, count, vector } => {
                write!(f, "lose-interrupt {nhi} {count}")?;
                vector.map_or(Ok(()), |vector| write!(f, " --vector {vector}"))
            }
            Self::InterruptLoss { nhi, ppm } => write!(f, "interrupt-loss {nhi} {ppm}"),
            Self::DoorbellLoss { nhi, ppm } => write!(f, "doorbell-loss {nhi} {ppm}"),
            Self::StrandCompletion {
                nhi,
                kind,
                hop,
                count,
            } => write!(f, "strand-completion {nhi} {kind} {hop} {count}"),
            Self::IgnoreDoorbell {
                nhi,
                kind,
                hop,
                count,
            } => write!(f, "ignore-doorbell {nhi} {kind} {hop} {count}"),
            Self::ResetPeer { nhi } => write!(f, "reset-peer {nhi}"),
            Self::Inject(inject) => inject.fmt(f),
            Self::Stats => f.write_str("stats"),
            Self::Clear => f.write_str("clear"),
            Self::Mark { name } => write!(f, "mark {name}"),
            Self::Capture(Capture::Start { file, all }) => {
                write!(f, "capture start {}", file.display())?;
                f.write_str(if *all { " --all" } else { "" })
            }
            Self::Capture(Capture::Stop) => f.write_str("capture stop"),
        }
    }
}

impl fmt::Display for Inject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame {
                nhi,
                hop,
                sof,
                eof,
                bytes,
                crc_error,
            } => {
                write!(f, "inject frame {nhi} {hop} {sof} {eof} {bytes}")?;
                f.write_str(if *crc_error { " --crc-error" } else { "" })
            }
            Self::Control { nhi, pdf, bytes, raw } => {
                write!(f, "inject control {nhi} {pdf} {bytes}")?;
                f.write_str(if *raw { " --raw" } else { "" })
            }
        }
    }
}

fn fault(f: &mut fmt::Formatter<'_>, name: &str, on: &On, value: &dyn fmt::Display) -> fmt::Result {
    write!(f, "{name} {} {value}", on.cable)?;
    if let Some(way) = on.way {
        write!(f, " --way {way}")?;
    }
    f.write_str(if on.control { " --control" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &[&str] = &[
        "plug 0",
        "unplug 3",
        "narrow 0 2",
        "loss 0 1000",
        "loss 0 1000 --way forth --control",
        "corrupt 1 5 --silent",
        "corrupt 1 5 --way back --control",
        "duplicate 0 1000000",
        "delay 0 50us --way back",
        "heal 0",
        "lose-frames 0 forth 3",
        "lose-control 1 host 2",
        "lose-interrupt 0 1",
        "lose-interrupt 0 4 --vector 2",
        "interrupt-loss 0 10000",
        "doorbell-loss 1 10000",
        "strand-completion 0 tx 1 1",
        "ignore-doorbell 1 rx 2 5",
        "reset-peer 1",
        "inject frame 0 1 2 3 00ff --crc-error",
        "inject control 1 5 8000000000000000 --raw",
        "stats",
        "clear",
        "mark lat.write.64",
        "capture start /tmp/a.pcapng --all",
        "capture stop",
    ];

    #[test]
    fn every_request_is_the_line_it_was_read_from() {
        for line in LINES {
            let request: Request = line.parse().unwrap();
            assert_eq!(request.to_string(), *line);
        }
    }

    #[test]
    fn every_kind_of_request_is_tried_above() {
        let mut command = Line::command();
        command.build();
        for name in command.get_subcommands().map(clap::Command::get_name) {
            assert!(LINES.iter().any(|line| line.starts_with(name)), "{name}");
        }
    }

    #[test]
    fn what_has_a_default_may_be_left_out() {
        let parse = |line: &str| line.parse::<Request>();
        assert_eq!(parse("narrow 0"), parse("narrow 0 1"));
        assert_eq!(parse(" lose-interrupt  0\r"), parse("lose-interrupt 0 1"));
        assert_eq!(parse("loss --way back 0 10"), parse("loss 0 10 --way back"));
    }

    #[test]
    fn a_mistake_is_told_in_one_line() {
        let told = |line: &str| line.parse::<Request>().unwrap_err().to_string();
        assert_eq!(told("plugg 0"), "unrecognized subcommand 'plugg'");
        assert_eq!(
            told("plug x"),
            "invalid value 'x' for '<CABLE>': invalid digit found in string"
        );
        for line in ["", "inject", "capture"] {
            assert!(told(line).contains("requires a subcommand"), "{}", told(line));
        }
        assert!(told("plug").contains("<CABLE>"), "{}", told("plug"));
        assert!(told("loss 0 5 6").contains("'6'"), "{}", told("loss 0 5 6"));
        assert!(told("delay 0 5x").contains("'5x'"), "{}", told("delay 0 5x"));
        assert!(told("help").contains("help") && told("plug --help").contains("--help"));
    }
}
