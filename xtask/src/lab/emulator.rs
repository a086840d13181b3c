//! The emulator process: host routers on vfio-user sockets, and its control socket.

use super::child::Child;
use super::folder::Folder;
use crate::interrupt;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use usb4_nhi_model::Topology;

/// How long the emulator may take to open its sockets, and to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running emulator.
pub(crate) struct Emulator {
    child: Child,
    control: BufReader<UnixStream>,
    routers: Vec<PathBuf>,
}

impl Emulator {
    /// Starts `program` and waits until its sockets are there.
    pub(crate) fn start(
        program: &Path,
        topology: &Topology,
        folder: &Folder,
        limit: Duration,
        log: &Path,
    ) -> Result<Emulator> {
        let mut command = Command::new(program);
        command.arg("--dir").arg(folder.path());
        command.args(prototype_arguments(topology));
        let mut child = Child::start(&command, limit, log)?;
        let routers: Vec<PathBuf> = (0..topology.nhis())
            .map(|nhi| folder.join(&format!("nhi{nhi}.sock")))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            interrupt::check()?;
            if let Some(status) = child.ended() {
                bail!("the emulator ended: {status}\n{}", child.words());
            }
            let there = routers.iter().all(|path| path.exists());
            match UnixStream::connect(folder.join("ctl.sock")) {
                Ok(stream) if there => break stream,
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                    return Err(error).context("connect to the emulator's control socket");
                }
                _ => {}
            }
            if Instant::now() > deadline {
                bail!("the emulator has not opened its sockets\n{}", child.words());
            }
            // Sockets appear; there is no event for that.
            std::thread::sleep(Duration::from_millis(2));
        };
        stream
            .set_read_timeout(Some(PATIENCE))
            .context("set up the control socket")?;
        Ok(Emulator {
            child,
            control: BufReader::new(stream),
            routers,
        })
    }

    /// The socket of each host router.
    pub(crate) fn routers(&self) -> &[PathBuf] {
        &self.routers
    }

    /// Sends one command line, returns the one line of its reply.
    pub(crate) fn command(&mut self, line: &str) -> Result<String> {
        let mut ask = || -> std::io::Result<String> {
            writeln!(self.control.get_mut(), "{line}")?;
            let mut reply = String::new();
            self.control.read_line(&mut reply)?;
            Ok(reply.trim_end().to_string())
        };
        let reply =
            ask().with_context(|| format!("send {line:?} to the emulator\n{}", self.child.words()))?;
        if reply.is_empty() || reply == "?" || reply.starts_with("error") {
            bail!("the emulator refuses {line:?}: {reply}");
        }
        Ok(reply)
    }
}

fn prototype_arguments(topology: &Topology) -> Vec<String> {
    let mut words = vec![
        format!("--nodes={}", topology.nhis()),
        format!("--ports={}", topology.ports),
    ];
    for [one, other] in &topology.cables {
        words.push(format!(
            "--cable={}.{}-{}.{}",
            one.nhi.0, one.port, other.nhi.0, other.port
        ));
    }
    words
        .iter()
        .flat_map(|word| word.split('='))
        .map(str::to_string)
        .chain(["--lanes".to_string(), topology.lanes.to_string()])
        .chain(["--hops".to_string(), topology.hops.to_string()])
        .chain(["--usb4".to_string(), topology.usb4.to_string()])
        .chain([
            "--pci".to_string(),
            format!("{:04x}:{:04x}", topology.pci.vendor, topology.pci.device),
        ])
        .chain((!topology.moderation).then(|| "--no-throttle".to_string()))
        .collect()
}
