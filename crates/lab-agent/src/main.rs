//! The agent in a guest: runs commands for the host until the host goes away. `usb4-lab-agent PORT`, where PORT is
//! the character device of the virtio-serial port.
#![forbid(unsafe_code)]

mod job;
mod port;

use port::Port;
use std::process::ExitCode;
use usb4_lab_agent::{Frame, GREETING, Kind};

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: usb4-lab-agent PORT");
        return ExitCode::from(2);
    };
    match serve(path.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(path: &std::path::Path) -> std::io::Result<()> {
    let port = Port::open(path)?;
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
