//! What a rank can be told to do.

use crate::meet::Meeting;
use crate::operations::{Operation, Place, wait};
use crate::report::{Event, say};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use usb4_nccl_host::api::DataType;
use usb4_nccl_host::{Communicator, Nccl, take_busy_time};

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Scenario {
    /// Create a communicator and destroy it.
    Init,
    /// Every operation over sizes, with data checked; communicators destroyed and created again; two at once.
    Verify {
        /// Largest buffer in bytes.
        #[arg(long, default_value_t = 4 << 20)]
        largest: usize,
    },
    /// Time AllReduce from 8 bytes on.
    Bench {
        /// Largest buffer in bytes.
        #[arg(long, default_value_t = 16 << 20)]
        largest: usize,
    },
    /// Abort an operation that cannot end, then go on with a new communicator.
    Abort,
    /// The last rank is killed; the others see an error, abort, and go on without it.
    Kill {
        /// This release keeps errors of the network to itself: abort what has not ended after some seconds.
        #[arg(long)]
        mute: bool,
    },
    /// The cable is cut while operations go on: every rank sees an error and aborts.
    Cut {
        /// As for `kill`.
        #[arg(long)]
        mute: bool,
    },
    /// The last rank's plugin is of another version: nothing works, and every rank sees an error.
    Mixed,
    /// No cable joins the last rank's host to the first's: every rank sees an error.
    Apart,
    /// The last rank is stopped for some seconds, which is no error.
    Pause {
        /// How long.
        #[arg(long, default_value_t = 5)]
        seconds: u32,
    },
}

/// A rank's part of a job.
pub(crate) struct Job {
    pub(crate) nccl: Nccl,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) meeting: Meeting,
}

/// Operations done.
#[derive(Default)]
struct Tally {
    operations: usize,
    bytes: usize,
}

impl Tally {
    fn run(&mut self, operation: Operation, place: &Place<'_>, bytes: usize) -> Result<()> {
        operation.run(place, bytes, self.operations)?;
        self.add(operation, bytes);
        Ok(())
    }

    fn add(&mut self, operation: Operation, bytes: usize) {
        self.operations += 1;
        self.bytes += bytes;
        say(&Event::Operation {
            what: operation.to_string(),
            bytes,
        });
    }

    fn done(&self) {
        say(&Event::Done {
            operations: self.operations,
            bytes: self.bytes,
        });
    }
}

impl Scenario {
    pub(crate) fn run(&self, job: &mut Job) -> Result<()> {
        let mut tally = Tally::default();
        match *self {
            Scenario::Init => job.communicator()?.destroy()?,
            Scenario::Verify { largest } => verify(job, &mut tally, largest)?,
            Scenario::Bench { largest } => bench(job, &mut tally, largest)?,
            Scenario::Abort => abort(job, &mut tally)?,
            Scenario::Kill { mute } => kill(job, &mut tally, mute)?,
            Scenario::Cut { mute } => cut(job, mute)?,
            Scenario::Mixed | Scenario::Apart => refused(job)?,
            Scenario::Pause { seconds } => pause(job, &mut tally, seconds)?,
        }
        tally.done();
        Ok(())
    }
}

impl Job {
    fn communicator(&mut self) -> Result<Communicator> {
        self.among(self.ranks)
    }

    /// A communicator of the first `ranks`.
    fn among(&mut self, ranks: usize) -> Result<Communicator> {
        let id = self.meeting.id(&self.nccl, self.rank == 0)?;
        let began = Instant::now();
        let comm = self.nccl.init(ranks, id, self.rank)?;
        say(&Event::Communicator {
            ranks,
            seconds: began.elapsed().as_secs_f64(),
        });
        Ok(comm)
    }

    fn place<'a>(&self, comm: &'a Communicator) -> Place<'a> {
        Place {
            comm,
            rank: self.rank,
            ranks: self.ranks,
        }
    }
}

fn verify(job: &mut Job, tally: &mut Tally, largest: usize) -> Result<()> {
    let sizes = [0, 1, 12, 1000, 4096, 65_540, 1 << 20, (4 << 20) + 12, 16 << 20];
    let comm = job.communicator()?;
    let place = job.place(&comm);
    let all = Operation::all(job.ranks);
    for bytes in sizes.into_iter().filter(|bytes| *bytes <= largest) {
        for operation in &all {
            tally.run(*operation, &place, bytes)?;
        }
    }
    comm.destroy()?;
    for _ in 0..2 {
        let comm = job.communicator()?;
        let place = job.place(&comm);
        tally.run(Operation::Shift, &place, 100_000)?;
        tally.run(Operation::AllReduce(DataType::F32), &place, 100_000)?;
        comm.destroy()?;
    }
    let (first, second) = (job.communicator()?, job.communicator()?);
    let (here, there) = (job.place(&first), job.place(&second));
    for salt in 0..10 {
        let one = Operation::AllReduce(DataType::F32).start(&here, 200_000, salt)?;
        let other = Operation::Shift.start(&there, 300_000, salt)?;
        one.finish(&here)?;
        tally.add(Operation::AllReduce(DataType::F32), 200_000);
        other.finish(&there)?;
        tally.add(Operation::Shift, 300_000);
    }
    first.destroy()?;
    second.destroy()?;
    Ok(())
}

/// Operations launched at once: NCCL waits in a launch when some hundreds have not begun.
const LAUNCHED: usize = 32;

fn bench(job: &mut Job, tally: &mut Tally, largest: usize) -> Result<()> {
    let comm = job.communicator()?;
    let place = job.place(&comm);
    let operation = Operation::AllReduce(DataType::F32);
    let mut bytes = 8;
    while bytes <= largest {
        let runs = ((64 << 20) / bytes).clamp(8, 1000);
        // Connections are made by the first, and memory is touched.
        for _ in 0..3 {
            operation.run(&place, bytes, 1)?;
        }
        let mut started = operation.start(&place, bytes, 2)?;
        wait(&comm)?;
        take_busy_time();
        let mut spent = Duration::ZERO;
        let mut left = runs;
        while left > 0 {
            // Launched while the stream is held up: what is timed is the data's way, not the launch.
            let (open, gate) = mpsc::channel();
            comm.stream().push(move || gate.recv().unwrap_or_default());
            let batch = left.min(LAUNCHED);
            for _ in 0..batch {
                started.launch(&place)?;
            }
            let began = Instant::now();
            open.send(())?;
            comm.stream().synchronize();
            spent += began.elapsed();
            left -= batch;
        }
        let busy = Duration::from_nanos(take_busy_time());
        started.finish(&place)?;
        let runs_f = f64::from(u32::try_from(runs)?);
        say(&Event::Timed {
            what: operation.to_string(),
            bytes,
            runs,
            micros: spent.as_secs_f64() * 1e6 / runs_f,
            busy: busy.as_secs_f64() * 1e6 / runs_f,
        });
        tally.operations += runs;
        tally.bytes += runs * bytes;
        bytes *= 2;
    }
    comm.destroy()?;
    Ok(())
}

fn abort(job: &mut Job, tally: &mut Tally) -> Result<()> {
    let comm = job.communicator()?;
    let place = job.place(&comm);
    tally.run(Operation::AllReduce(DataType::F32), &place, 100_000)?;
    // Connections are there; else the call itself would wait for the sender.
    tally.run(Operation::Shift, &place, 100_000)?;
    // All ranks wait for a message that nobody sends.
    let mut room = crate::buffers::Buffer::new(1 << 20)?;
    let previous = (job.rank + job.ranks - 1) % job.ranks;
    // SAFETY: the buffer lives until the communicator is aborted.
    unsafe { comm.recv(room.as_mut_ptr(), 1 << 20, previous)? };
    std::thread::sleep(Duration::from_millis(200));
    if comm.stream().is_idle() {
        bail!("a message that nobody sent was received");
    }
    timed_abort(comm)?;
    let comm = job.communicator()?;
    let place = job.place(&comm);
    tally.run(Operation::AllReduce(DataType::F32), &place, 100_000)?;
    comm.destroy()?;
    Ok(())
}

fn timed_abort(comm: Communicator) -> Result<()> {
    let began = Instant::now();
    comm.abort()?;
    say(&Event::Aborted {
        seconds: began.elapsed().as_secs_f64(),
    });
    Ok(())
}

fn kill(job: &mut Job, tally: &mut Tally, mute: bool) -> Result<()> {
    let comm = job.communicator()?;
    let place = job.place(&comm);
    let operation = Operation::AllReduce(DataType::F32);
    for _ in 0..3 {
        tally.run(operation, &place, 1 << 20)?;
    }
    let last = job.rank + 1 == job.ranks;
    if last {
        signal("KILL", 0)?;
        std::thread::sleep(Duration::from_secs(10));
        bail!("still alive after SIGKILL");
    }
    ends(&place, operation, mute)?;
    timed_abort(comm)?;
    if job.ranks > 2 {
        let comm = job.among(job.ranks - 1)?;
        let place = Place {
            comm: &comm,
            rank: job.rank,
            ranks: job.ranks - 1,
        };
        tally.run(operation, &place, 1 << 20)?;
        comm.destroy()?;
    }
    Ok(())
}

fn cut(job: &mut Job, mute: bool) -> Result<()> {
    let comm = job.communicator()?;
    ends(&job.place(&comm), Operation::AllReduce(DataType::F32), mute)?;
    timed_abort(comm)
}

/// Goes on until NCCL says that the ranks cannot work together.
fn refused(job: &mut Job) -> Result<()> {
    let began = Instant::now();
    let error = match job.communicator() {
        Err(error) => error,
        Ok(comm) => {
            // This release connects when there is something to move.
            let moved = Operation::Shift.run(&job.place(&comm), 100_000, 0);
            timed_abort(comm)?;
            match moved {
                Err(error) => error,
                Ok(()) => bail!("ranks work together that cannot"),
            }
        }
    };
    say_error(&error, began)
}

/// Goes on until operations end.
fn ends(place: &Place<'_>, operation: Operation, mute: bool) -> Result<()> {
    if mute {
        stuck(place, operation)
    } else {
        lost(place, operation)
    }
}

/// Goes on until NCCL tells of the rank that is gone.
fn lost(place: &Place<'_>, operation: Operation) -> Result<()> {
    let began = Instant::now();
    let failed = loop {
        match operation.run(place, 1 << 20, 0) {
            Ok(()) if began.elapsed() < Duration::from_secs(30) => {}
            Ok(()) => bail!("operations go on without the rank, or the cable, that is gone"),
            Err(error) => break error,
        }
    };
    say_error(&failed, began)
}

/// Reports what NCCL has said.
fn say_error(error: &anyhow::Error, began: Instant) -> Result<()> {
    let failure: &usb4_nccl_host::Failure =
        (error.chain().find_map(|cause| cause.downcast_ref())).with_context(|| format!("{error:#}"))?;
    say(&Event::Error {
        seconds: began.elapsed().as_secs_f64(),
        code: failure.code,
        text: failure.text.trim().to_string(),
    });
    Ok(())
}

/// Goes on until an operation does not end.
fn stuck(place: &Place<'_>, operation: Operation) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        let started = operation.start(place, 1 << 20, 0)?;
        let launched = Instant::now();
        while !place.comm.stream().is_idle() && launched.elapsed() < STUCK {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !place.comm.stream().is_idle() {
            // It has the buffers until the abort.
            std::mem::forget(started);
            return Ok(());
        }
    }
    bail!("operations go on without the rank, or the cable, that is gone")
}

/// Longer than any operation takes.
const STUCK: Duration = Duration::from_secs(5);

fn pause(job: &mut Job, tally: &mut Tally, seconds: u32) -> Result<()> {
    let comm = job.communicator()?;
    let place = job.place(&comm);
    let operation = Operation::AllReduce(DataType::F32);
    for round in 0..20 {
        if round == 10 && job.rank + 1 == job.ranks {
            signal("STOP", seconds)?;
        }
        tally.run(operation, &place, 1 << 20)?;
    }
    comm.destroy()?;
    Ok(())
}

/// Sends this process a signal by way of a shell, and SIGCONT after some seconds.
fn signal(name: &str, seconds: u32) -> Result<()> {
    let pid = std::process::id();
    let mut script = format!("kill -{name} {pid}");
    if seconds > 0 {
        script += &format!("; sleep {seconds}; kill -CONT {pid}");
    }
    Command::new("sh")
        .args(["-c", &script])
        .spawn()
        .context("start a shell")?;
    // The signal comes while operations go on.
    Ok(())
}
