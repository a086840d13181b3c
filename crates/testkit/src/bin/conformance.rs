//! `usb4-conformance`: runs the suite against one backend; the exit status is the verdict.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use usb4_testkit::{Fabric, cases, serve};

/// Runs the ring API's conformance suite.
#[derive(Parser)]
struct Arguments {
    /// Backend: `soft`, `soft,detached` or `/dev/usb4ring`.
    #[arg(long, default_value = "soft")]
    device: String,
    /// Runs only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Runs the list this many times.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Has every second peer on another host, where `usb4-conformance --listen` runs. That connection should not run
    /// over the cable under test.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Does another host's part until interrupted, for whoever connects: only on a network of friends.
    #[arg(long, value_name = "HOST:PORT", exclusive = true)]
    listen: Option<String>,
    /// Names the cases and runs none.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4-conformance: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(address) = &arguments.listen {
        return serve(address);
    }
    let mut out = std::io::stdout();
    if arguments.list {
        for case in cases::all() {
            writeln!(out, "{}", case.name)?;
        }
        return Ok(());
    }
    let (mut passed, mut failed) = (0, 0);
    for round in 0..arguments.repeat {
        let chosen = cases::all()
            .into_iter()
            .filter(|case| case.name.contains(&arguments.filter));
        for (number, case) in chosen.enumerate() {
            let start = Instant::now();
            let second = arguments.connect.as_deref();
            let fabric = Fabric::new(&arguments.device, second, round * 1000 + number)?;
            let outcome = (case.run)(&fabric);
            let spent = start.elapsed().as_millis();
            match outcome {
                Ok(()) => {
                    passed += 1;
                    writeln!(out, "ok    {} ({spent} ms)", case.name)?;
                }
                Err(error) => {
                    failed += 1;
                    writeln!(out, "FAIL  {} ({spent} ms): {error:#}", case.name)?;
                }
            }
        }
    }
    writeln!(
        out,
        "conformance {}: {passed} passed, {failed} failed",
        arguments.device
    )?;
    ensure!(passed + failed > 0, "no case matches {:?}", arguments.filter);
    ensure!(failed == 0, "{failed} cases failed");
    Ok(())
}
