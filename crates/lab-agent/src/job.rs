//! Commands: started, fed, watched until they end.
//!
//! A command has ended when its first process has. What that wrote until then is passed on; a child it left behind
//! that still holds its output is not waited for.

use crate::port::Port;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use usb4_lab_agent::{End, Kind, Start, Terminal};

#[derive(Clone, Default)]
pub(crate) struct Jobs(Arc<Mutex<HashMap<u32, Job>>>);

struct Job {
    group: Pid,
    /// `None` once it is closed.
    stdin: Option<Sender<Vec<u8>>>,
    terminal: Option<OwnedFd>,
}

/// A command that has just been started.
struct Started {
    child: Child,
    stdin: OwnedFd,
    outputs: Vec<(Kind, OwnedFd)>,
    terminal: Option<OwnedFd>,
}

impl Jobs {
    pub(crate) fn start(&self, id: u32, body: &[u8], port: &Port) {
        let started = Start::from_bytes(body)
            .ok_or_else(|| io::Error::other("the host sent no command"))
            .and_then(|start| match start.terminal {
                None => with_pipes(&start.argv),
                Some(size) => with_terminal(&start.argv, size),
            });
        let (jobs, port) = (self.clone(), port.clone());
        let failed = |error: io::Error| {
            let end = End::NotStarted(error.to_string());
            port.send(id, Kind::End, &end.to_bytes());
        };
        let started = match started {
            Ok(started) => started,
            Err(error) => return failed(error),
        };
        let (send, receive) = channel();
        let job = Job {
            group: Pid::from_child(&started.child),
            stdin: Some(send),
            terminal: started.terminal,
        };
        self.list().insert(id, job);
        let (stdin, mut child, outputs) = (started.stdin, started.child, started.outputs);
        std::thread::spawn(move || feed(stdin, &receive));
        std::thread::spawn(move || {
            let end = watch(id, &mut child, outputs, &port, &jobs);
            port.send(id, Kind::End, &end.to_bytes());
        });
    }

    pub(crate) fn stdin(&self, id: u32, bytes: Vec<u8>) {
        if let Some(job) = self.list().get_mut(&id) {
            if bytes.is_empty() {
                job.stdin = None;
            } else if let Some(stdin) = &job.stdin {
                // A command that does not read any more has closed its end.
                let _ = stdin.send(bytes);
            }
        }
    }

    pub(crate) fn signal(&self, id: u32, body: &[u8]) {
        let signal = body
            .first()
            .and_then(|number| Signal::from_named_raw(i32::from(*number)));
        if let (Some(job), Some(signal)) = (self.list().get(&id), signal) {
            let _ = kill_process_group(job.group, signal);
        }
    }

    pub(crate) fn resize(&self, id: u32, body: &[u8]) {
        if let (Some(job), Some(size)) = (self.list().get(&id), Terminal::from_bytes(body)) {
            if let Some(terminal) = &job.terminal {
                let _ = tcsetwinsize(terminal, window(size));
            }
        }
    }

    fn list(&self) -> MutexGuard<'_, HashMap<u32, Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn command(argv: &[String]) -> Command {
    let mut words = argv.iter();
    let mut command = Command::new(words.next().map_or("", String::as_str));
    command.args(words);
    command
}

fn with_pipes(argv: &[String]) -> io::Result<Started> {
    let mut child = command(argv)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
        (Some(stdin), Some(stdout), Some(stderr)) => Ok(Started {
            child,
            stdin: stdin.into(),
            outputs: vec![(Kind::Stdout, stdout.into()), (Kind::Stderr, stderr.into())],
            terminal: None,
        }),
        _ => Err(io::Error::other("the command was started without pipes")),
    }
}

fn with_terminal(argv: &[String], size: Terminal) -> io::Result<Started> {
    let host = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&host)?;
    unlockpt(&host)?;
    tcsetwinsize(&host, window(size))?;
    let name = ptsname(&host, vec![])?.into_string().map_err(io::Error::other)?;
    let guest = File::options().read(true).write(true).open(name)?;
    // setsid makes it the session's terminal, and its own process the leader of a group.
    let child = Command::new("setsid")
        .arg("--ctty")
        .args(argv)
        .stdin(guest.try_clone()?)
        .stdout(guest.try_clone()?)
        .stderr(guest)
        .spawn()?;
    Ok(Started {
        child,
        stdin: host.try_clone()?,
        outputs: vec![(Kind::Stdout, host.try_clone()?)],
        terminal: Some(host),
    })
}

fn window(size: Terminal) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

fn feed(stdin: OwnedFd, bytes: &Receiver<Vec<u8>>) {
    let mut stdin = File::from(stdin);
    while let Ok(bytes) = bytes.recv() {
        if write_all(&mut stdin, &bytes).is_err() {
            return;
        }
    }
}

/// Like `Write::write_all`; a terminal's file is shared with its reader, who has made it non-blocking.
fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&*file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Passes output on until the command has ended.
fn watch(id: u32, child: &mut Child, mut outputs: Vec<(Kind, OwnedFd)>, port: &Port, jobs: &Jobs) -> End {
    let not_watched = |error: &dyn std::fmt::Display| End::NotStarted(format!("cannot watch it: {error}"));
    for (_, output) in &outputs {
        let set = fcntl_getfl(output).and_then(|flags| fcntl_setfl(output, flags | OFlags::NONBLOCK));
        if let Err(error) = set {
            return not_watched(&error);
        }
    }
    let ended = match pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
        Ok(ended) => ended,
        Err(error) => return not_watched(&error),
    };
    loop {
        let mut wanted = vec![PollFd::new(&ended, PollFlags::IN)];
        wanted.extend(
            outputs
                .iter()
                .map(|(_, output)| PollFd::new(output, PollFlags::IN)),
        );
        match poll(&mut wanted, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return not_watched(&error),
        }
        let over = wanted.first().is_some_and(|first| !first.revents().is_empty());
        outputs.retain(|(kind, output)| drain(id, *kind, output, port));
        if over {
            break;
        }
    }
    // After this nobody signals a process id that may be another's.
    jobs.list().remove(&id);
    match child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => End::Status(code),
            (None, signal) => End::Signal(signal.unwrap_or_default()),
        },
        Err(error) => not_watched(&error),
    }
}

/// Passes on what is there; `false` once there will be no more.
fn drain(id: u32, kind: Kind, output: &OwnedFd, port: &Port) -> bool {
    let mut block = vec![0; 16 << 10];
    loop {
        match rustix::io::read(output, &mut block) {
            Ok(0) => return false,
            Ok(n) => port.send(id, kind, block.get(..n).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            // A terminal that nobody has open any more gives EIO.
            Err(_) => return false,
        }
    }
}
