//! Finding a detached device, or starting it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Server;
use crate::names::Fabric;
use crate::{Error, socket};

/// The program that serves a detached device: `usb4-softd NAME HOST`.
pub const SERVER_PROGRAM: &str = "usb4-softd";

/// The environment variable that says where it is.
pub const SERVER_VARIABLE: &str = "USB4_SOFTD";

/// How long a device may take to start and to answer.
pub(super) const START: Duration = Duration::from_secs(10);

/// Shortest pause before another attempt to reach it.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Longest such pause.
const LONG_PAUSE: Duration = Duration::from_millis(100);

/// Connects to the device of `host`, by `deadline`; starts it if there is none.
pub(super) fn connect(fabric: &Fabric, host: &str, deadline: Instant) -> Result<OwnedFd, Error> {
    let name = fabric.server_socket(host)?;
    let mut pause = PAUSE;
    let mut started = None;
    loop {
        match socket::connect(&name) {
            Ok(socket) => {
                use std::os::fd::AsFd;
                let peer =
                    socket::credentials(socket.as_fd()).map_err(Error::os("open the detached device"))?;
                if peer.uid != fabric.uid() {
                    return Err(Error::ForeignServer(peer.uid));
                }
                return Ok(socket);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && started.is_none() => {
                started = Some(start(fabric.name(), host)?);
            }
            // It was the last client's and has just ended, or is busy.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
                ) && Instant::now() < deadline =>
            {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    started = None;
                }
                std::thread::sleep(pause);
                pause = LONG_PAUSE.min(2 * pause);
            }
            Err(source) => {
                if let Some(program) = started.filter(|_| source.kind() == io::ErrorKind::ConnectionRefused) {
                    return Err(Error::ServerSilent(program));
                }
                return Err(Error::Os {
                    what: "open the detached device",
                    source,
                });
            }
        }
    }
}

/// Starts the server and waits until it listens. Returns the program.
fn start(fabric: &str, host: &str) -> Result<PathBuf, Error> {
    let program = program()?;
    let mut command = Command::new(&program);
    command
        .args([fabric, host])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // It returns as soon as its background half listens, or another one does.
    match command.status() {
        Ok(status) if status.success() => Ok(program),
        Ok(_) => Err(Error::ServerFailed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::NoServer {
            fabric: fabric.into(),
            host: host.into(),
        }),
        Err(source) => Err(Error::Os {
            what: "start usb4-softd",
            source,
        }),
    }
}

/// The program: the one we are told of, else one beside this program (test programs are one directory further
/// down), else whatever `PATH` has.
fn program() -> Result<PathBuf, Error> {
    if let Some(told) = std::env::var_os(SERVER_VARIABLE).map(PathBuf::from) {
        return match told.is_file() {
            true => Ok(told),
            false => Err(Error::NoServerProgram(told)),
        };
    }
    let exe = std::env::current_exe().ok();
    let mut beside = exe
        .iter()
        .flat_map(|exe| exe.ancestors().skip(1).take(2))
        .map(|dir| dir.join(SERVER_PROGRAM));
    Ok(beside
        .find(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(SERVER_PROGRAM)))
}

/// What `usb4-softd` does: listens, goes on in the background, and serves there. Returns in the foreground as soon
/// as the device can be reached, also when another process serves it already. Must be called before the process
/// has threads.
///
/// # Errors
/// A name cannot be used, or the operating system refuses.
pub fn serve_in_background(fabric: &str, host: &str) -> Result<(), Error> {
    allow_descriptors();
    // Whatever the first client had open is none of ours to keep open.
    // SAFETY: this process has just begun and has opened nothing itself.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let server = match Server::bind(fabric, host) {
        Ok(server) => server,
        Err(Error::AlreadyServed { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    // SAFETY: the process has one thread, so its child is as good as itself.
    match unsafe { libc::fork() } {
        -1 => Err(Error::os("go to the background")(io::Error::last_os_error())),
        0 => {
            // A session of its own: it must not end with the terminal or the job of its first client.
            let _ = rustix::process::setsid();
            let _ = rustix::process::chdir("/");
            // Nor may it keep a pipe open that somebody reads to the end.
            if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
                let _ = rustix::stdio::dup2_stderr(null);
            }
            server.run()
        }
        _ => {
            // The listener is the child's now.
            drop(server);
            Ok(())
        }
    }
}

/// Raises the limit on open files to what is allowed at all: clients with all their completion queues need more than
/// the usual 1024. This process has no use for `select`, for whose sake that limit is low.
fn allow_descriptors() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If it cannot be raised the device serves fewer.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}
