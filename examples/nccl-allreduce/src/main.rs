//! AllReduce between GPUs of several hosts with NCCL or RCCL, every element checked, over USB4 or not at all.
//!
//! Start one per GPU with `mpirun`, `torchrun --no-python` or `srun`, which tell ranks apart (`launcher.rs`). It needs
//! no CUDA or ROCm to build: the libraries are loaded when it runs (`library.rs`). Exit status: 0 right sums, 1 not.
//!
//! Unless they are set, it sets `NCCL_NET_PLUGIN=usb4` and `NCCL_NET=USB4`, so that it fails rather than use sockets.

mod gpu;
mod id;
mod launcher;
mod library;
mod nccl;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use gpu::{Buffer, Gpu, Stream};
use launcher::Place;
use nccl::{Communicator, Nccl};

/// AllReduce over NCCL or RCCL with every element checked.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// Host and port where rank 0 gives out the communicator's id [default: MASTER_ADDR and MASTER_PORT + 1, else
    /// 127.0.0.1:29555]
    #[arg(long, value_name = "HOST:PORT")]
    root: Option<String>,
    /// libnccl.so.2 or librccl.so.1; the first of these that loads if not given
    #[arg(long, value_name = "FILE")]
    library: Option<String>,
    /// The run time that goes with it: libcudart.so.13, .12 or libamdhip64.so
    #[arg(long, value_name = "FILE")]
    gpu_library: Option<String>,
    /// Largest message in bytes
    #[arg(long, default_value_t = 16 << 20)]
    max: usize,
    /// Operations of each size
    #[arg(long, default_value_t = 20)]
    count: u32,
}

/// Bytes of an element: single precision.
const ELEMENT: usize = 4;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nccl-allreduce: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    use_usb4();
    let place = Place::find()?;
    let nccl = Nccl::load(arguments.library.as_deref())?;
    let gpu = Gpu::load(arguments.gpu_library.as_deref(), nccl.is_rccl())?;
    gpu.choose(place.local)?;
    let root = arguments.root.unwrap_or_else(launcher::root);
    let id = id::agree(&place, &root, || nccl.unique_id())?;
    let communicator = nccl.init(place.ranks, id, place.rank)?;
    let stream = gpu.stream()?;
    if place.rank == 0 {
        println!("{} ranks, {} {}", place.ranks, nccl.name(), nccl.version());
        println!("{:>12} {:>12} {:>10}", "bytes", "us", "GB/s");
    }
    let largest = (arguments.max / ELEMENT).max(2);
    let mut memory = Memory::new(&gpu, largest)?;
    let mut elements = 2;
    while elements <= largest {
        let took = measure(
            &communicator,
            &stream,
            &mut memory,
            &place,
            elements,
            arguments.count,
        )?;
        if place.rank == 0 {
            let bytes = elements * ELEMENT;
            let seconds = took.as_secs_f64();
            println!(
                "{bytes:>12} {:>12.1} {:>10.3}",
                seconds * 1e6,
                bytes as f64 / seconds / 1e9
            );
        }
        elements *= 4;
    }
    communicator.destroy()?;
    if place.rank == 0 {
        println!("all sums are right");
    }
    Ok(())
}

/// Has NCCL use USB4 or fail, where the environment does not say otherwise.
fn use_usb4() {
    for (name, value) in [("NCCL_NET_PLUGIN", "usb4"), ("NCCL_NET", "USB4")] {
        if std::env::var_os(name).is_none() {
            // SAFETY: this process has one thread, and nothing has read its environment yet.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Buffers here and on the GPU.
struct Memory<'a> {
    host: Vec<f32>,
    send: Buffer<'a>,
    receive: Buffer<'a>,
}

impl<'a> Memory<'a> {
    fn new(gpu: &'a Gpu, elements: usize) -> Result<Self> {
        Ok(Self {
            host: vec![0.0; elements],
            send: gpu.alloc(elements)?,
            receive: gpu.alloc(elements)?,
        })
    }
}

/// What rank `rank` puts in at `at`: whole numbers whose sums single precision holds exactly.
fn element(rank: usize, at: usize) -> f32 {
    u8::try_from((rank * 31 + at * 7) % 251).map_or(0.0, f32::from)
}

/// One operation checked, then `count` timed; returns the mean time.
fn measure(
    communicator: &Communicator<'_>,
    stream: &Stream<'_>,
    memory: &mut Memory<'_>,
    place: &Place,
    elements: usize,
    count: u32,
) -> Result<Duration> {
    let host = memory.host.get_mut(..elements).unwrap_or_default();
    for (at, value) in host.iter_mut().enumerate() {
        *value = element(place.rank, at);
    }
    memory.send.fill(host)?;
    communicator.all_reduce(&memory.send, &memory.receive, elements, stream)?;
    stream.wait()?;
    memory.receive.read(host)?;
    for (at, got) in host.iter().enumerate() {
        let want: f32 = (0..place.ranks).map(|rank| element(rank, at)).sum();
        ensure!(
            got.to_bits() == want.to_bits(),
            "of {elements} sums, number {at} is {got} on rank {}, not {want}",
            place.rank
        );
    }
    let start = Instant::now();
    for _ in 0..count {
        communicator.all_reduce(&memory.send, &memory.receive, elements, stream)?;
    }
    stream.wait()?;
    Ok(start.elapsed() / count.max(1))
}
