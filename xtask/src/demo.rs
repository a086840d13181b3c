//! `cargo xtask demo`: a real MPI job over usb4 on the soft cable, then usb4 next to tcp and shm.
//!
//! What `ci/demo` runs on a fresh machine: fetches and installs what is missing, builds the provider, runs IMB-MPI1
//! PingPong and Allreduce with every byte checked on 2 and 4 ranks, and prints one table.

use crate::lab::shared::Place;
use crate::load::Load;
use crate::mpi::imb;
use crate::mpi::launch::{self, Installed, Job, Mpi};
use crate::mpi::{self, Bench, Run};
use crate::process;
use crate::provider;
use crate::ui::{Task, Verdict, seconds};
use crate::workspace::work;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which MPI.
    #[arg(long, value_enum, default_value = "impi")]
    mpi: Mpi,
}

const PROVIDERS: [&str; 3] = ["usb4", "tcp", "shm"];
const LIMIT: Duration = Duration::from_secs(120);

/// What the table shows: title, benchmark, message size, column, and whether more is better.
const ROWS: [(&str, &str, u32, &str); 5] = [
    ("PingPong 64 B, us", "PingPong", 64, "t[usec]"),
    ("PingPong 4 KiB, us", "PingPong", 4096, "t[usec]"),
    ("PingPong 1 MiB, MB/s", "PingPong", 1 << 20, "Mbytes/sec"),
    ("Allreduce 64 B, us", "Allreduce", 64, "t_avg[usec]"),
    ("Allreduce 1 MiB, us", "Allreduce", 1 << 20, "t_avg[usec]"),
];

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let began = Instant::now();
    // A cache that cannot be used shows before anything is built.
    crate::cache::dir()?;
    let folder = provider::folder()?;
    let installed = launch::install(args.mpi)?;
    let device = mpi::device("soft")?;
    let bench = Bench {
        installed: &installed,
        name: format!("demo-{}", args.mpi.name()),
        provider: "usb4",
        provider_folder: Some(&folder),
        device: device.clone(),
        place: Place::Here,
    };
    bench.prove_checker()?;
    let mut wrong = 0;
    for (ranks, iterations, largest) in [(2, 100, 20), (4, 20, 18)] {
        let mut task = Task::start(
            format!("PingPong and Allreduce on {ranks} ranks over usb4, every byte checked"),
            None,
        );
        let options = format!("-iter {iterations} -msglog 0:{largest} -npmin {ranks} PingPong Allreduce");
        let options: Vec<String> = options.split(' ').map(str::to_string).collect();
        let run = Run {
            program: "IMB-MPI1",
            ranks,
            args: &options,
            fault: false,
            limit: LIMIT,
        };
        let (_, checked) = bench.job(&run, Some(&mut task))?;
        task.done(&checked.to_string());
        if !checked.is_right() {
            wrong += 1;
        }
    }
    let mut task = Task::start("usb4 next to tcp and shm", Some(PROVIDERS.len() as u64));
    let measuring = Load::now()?;
    let mut columns = vec![];
    for (at, provider) in PROVIDERS.iter().enumerate() {
        columns.push(measure(&installed, provider, &folder, &device, &mut task)?);
        task.set(at as u64 + 1);
    }
    task.done("measured");
    say!(
        "\n{:<22} {:>12} {:>12} {:>12}",
        format!("{}, 2 ranks", args.mpi.name()),
        "usb4",
        "tcp",
        "shm"
    );
    for (row, (title, ..)) in ROWS.iter().enumerate() {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| format!("{:>12.2}", column[row]))
            .collect();
        say!("{title:<22} {}", cells.join(" "));
    }
    say!("Soft cable, one machine, same run; says nothing about a USB4 cable.");
    measuring.warn()?;
    if wrong > 0 {
        bail!("{wrong} runs moved wrong bytes");
    }
    Ok(Verdict::new(
        true,
        format!(
            "an MPI job ran over usb4 on 2 and 4 ranks, every byte right ({})",
            seconds(began.elapsed())
        ),
    ))
}

/// The values of [`ROWS`] over one provider.
fn measure(
    installed: &Installed,
    provider: &str,
    folder: &Path,
    device: &str,
    task: &mut Task,
) -> Result<[f64; ROWS.len()]> {
    let args = [
        "-iter",
        "1000",
        "-time",
        "2",
        "-msgsize",
        "64,4096,1048576",
        "PingPong",
        "Allreduce",
    ];
    let args = args.map(str::to_string);
    let job = Job {
        ranks: 2,
        provider,
        provider_folder: (provider == "usb4").then_some(folder),
        device,
        program: "IMB-MPI1",
        args: &args,
        check: None,
        pinned: true,
        hosts: &[],
    };
    let log = work().join("demo").join(format!("{provider}.log"));
    let outcome = process::run(&mut installed.command(&job), LIMIT, &log, Some(task))?;
    let text = outcome.require(&format!("IMB-MPI1 over {provider}"))?.text;
    let tables = imb::tables(&text);
    let mut values = [0.0; ROWS.len()];
    for ((_, benchmark, bytes, column), value) in ROWS.iter().zip(&mut values) {
        let table = tables.iter().find(|table| table.benchmark == *benchmark);
        let found = table.and_then(|table| table.at(*bytes, column));
        *value =
            found.with_context(|| format!("{benchmark} over {provider} has no result for {bytes} bytes"))?;
    }
    Ok(values)
}
