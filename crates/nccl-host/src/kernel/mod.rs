//! NCCL's kernels on a host thread: what a GPU would do with the connections, buffers and sums, and nothing else.
//!
//! A launch is a grid of blocks, one per channel. A block does its batches in order; the messages of a point-to-point
//! batch go on at once, the collectives of a batch one after the other. Whoever steps a kernel steps everything in it that
//! can move, so nothing waits for anything but NCCL's proxy threads. Start at [`Kernel`].

mod combine;
mod fifo;
pub(crate) mod layout;
mod p2p;
mod place;
mod protocol;
mod ring;
mod transfer;
mod work;

use crate::runtime::Progress;
use layout::{args, comm};
use place::Place;
use std::collections::VecDeque;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use work::{Block, Launch};

/// How slots are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// A part takes one slot, whose lines carry flags.
    Ll,
    /// A part is cut into slices, each of which takes some slots.
    Simple {
        /// Slices of a part.
        slices: u32,
        /// Slots of a slice.
        steps: u64,
    },
}

/// A kernel's argument block, which NCCL gives up when the launch returns.
pub(crate) struct Arguments(Box<[u128]>);

impl Arguments {
    pub(crate) fn new(bytes: &[u8]) -> Arguments {
        let words = bytes.chunks(16).map(|chunk| {
            let mut word = [0; 16];
            word.get_mut(..chunk.len())
                .unwrap_or_default()
                .copy_from_slice(chunk);
            u128::from_ne_bytes(word)
        });
        Arguments(words.collect())
    }
}

/// Time in which kernels did something, in nanoseconds: the part of an operation that is the emulation's.
static BUSY: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds that kernels were busy, as opposed to waiting for NCCL, since the last call.
pub fn take_busy_time() -> u64 {
    BUSY.swap(0, Ordering::Relaxed)
}

/// How long a kernel goes on at most before NCCL's thread, which may be the caller, has its turn.
const TURN: Duration = Duration::from_micros(20);

/// A kernel that was launched.
///
/// What cannot be emulated ends the process: going on would be a hang or wrong data.
pub(crate) struct Kernel {
    name: String,
    arguments: Arguments,
    blocks: u32,
    /// Those that are not done, once it has begun.
    running: Option<VecDeque<Block>>,
}

impl Kernel {
    pub(crate) fn new(name: String, blocks: u32, arguments: Arguments) -> Kernel {
        Kernel {
            name,
            arguments,
            blocks,
            running: None,
        }
    }

    /// Does what can be done now, for about [`TURN`] at most. It is done as well when NCCL has raised the communicator's abort flag.
    pub(crate) fn advance(&mut self) -> Progress {
        let Some(layout) = layout::chosen() else {
            unsupported("a kernel of this release");
        };
        // SAFETY: NCCL's argument block, with the layout of the release that was loaded; what it names lives until the
        // kernel has ended.
        let place = unsafe { Place::new(self.arguments.0.as_ptr().cast()) };
        let launch = Launch::new(&self.name, place, layout);
        let running = self.running.get_or_insert_with(|| {
            let mask = place.u64(args::CHANNEL_MASK);
            let channels = (0..64).filter(|channel| mask >> channel & 1 == 1);
            let blocks = channels.take(self.blocks as usize).enumerate();
            blocks.map(|(at, channel)| Block::new(at, channel)).collect()
        });
        let began = Instant::now();
        let mut progress = Progress::Stuck;
        loop {
            let before = running.len();
            let mut moved = false;
            running.retain_mut(|block| match block.step(&launch) {
                Progress::Stuck => true,
                Progress::Moved => {
                    moved = true;
                    true
                }
                Progress::Done => false,
            });
            if moved || running.len() < before {
                progress = Progress::Moved;
            } else {
                let abort = place.place(args::COMM).place(comm::ABORT_FLAG);
                if !abort.is_null() && abort.load_u32() != 0 {
                    running.clear();
                }
                break;
            }
            if running.is_empty() || began.elapsed() > TURN {
                break;
            }
        }
        if progress == Progress::Moved {
            let spent = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            BUSY.fetch_add(spent, Ordering::Relaxed);
        }
        if running.is_empty() {
            Progress::Done
        } else {
            progress
        }
    }
}

/// Ends the process with a sentence.
pub(crate) fn unsupported(what: &str) -> ! {
    eprintln!("nccl-host: cannot emulate {what}");
    process::exit(70);
}
