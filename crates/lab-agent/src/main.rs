//! The agent in a guest: runs commands for the host until the host goes away.
#![forbid(unsafe_code)]

mod job;
mod port;

use port::Port;
use std::path::Path;
use std::process::ExitCode;
use usb4_lab_agent::{Frame, GREETING, Kind};

fn main() -> ExitCode {
    match serve(Path::new("/dev")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(devices: &Path) -> std::io::Result<()> {
    let port = Port::open(devices)?;
    let mut commands = port.reader()?;
    port.send(0, Kind::Hello, GREETING);
    let jobs = job::Jobs::default();
    while let Some(Frame { id, kind, body }) = Frame::read(&mut commands)? {
        match kind {
            Kind::Start => jobs.start(id, &body, &port),
            Kind::Stdin => jobs.stdin(id, body),
            Kind::Signal => jobs.signal(id, &body),
            Kind::Resize => jobs.resize(id, &body),
            Kind::Hello | Kind::Stdout | Kind::Stderr | Kind::End => {
                eprintln!("lab-agent: the host sent {kind:?}");
            }
        }
    }
    Ok(())
}
