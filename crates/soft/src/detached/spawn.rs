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

/// How long a device may take to start.
const START: Duration = Duration::from_secs(10);

/// Connects to the device of `host`; starts it if there is none.
pub(super) fn connect(fabric: &Fabric, host: &str) -> Result<OwnedFd, Error> {
    let name = fabric.server_socket(host)?;
    let deadline = Instant::now() + START;
    let mut started = false;
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
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && !started => {
                start(fabric.name(), host)?;
                started = true;
            }
            // It was the last client's and has just ended, or is busy.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
                ) && Instant::now() < deadline =>
            {
                started = error.kind() == io::ErrorKind::WouldBlock;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(source) => {
                return Err(Error::Os {
                    what: "open the detached device",
                    source,
                });
            }
        }
    }
}

/// Starts the server and waits until it listens.
fn start(fabric: &str, host: &str) -> Result<(), Error> {
    let missing = || Error::NoServer {
        fabric: fabric.into(),
        host: host.into(),
    };
    let program = candidates().into_iter().find(|path| path.is_file());
    let program = program.unwrap_or_else(|| PathBuf::from(SERVER_PROGRAM));
    let mut command = Command::new(program);
    command
        .args([fabric, host])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // It returns as soon as its background half listens, or another one does.
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Error::ServerFailed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
        Err(source) => Err(Error::Os {
            what: "start usb4-softd",
            source,
        }),
    }
}

/// Where the program may be, besides `PATH`: where we are told, or beside this one (test programs are one
/// directory further down).
fn candidates() -> Vec<PathBuf> {
    let told = std::env::var_os(SERVER_VARIABLE).map(PathBuf::from);
    let exe = std::env::current_exe().ok();
    let beside = exe
        .iter()
        .flat_map(|exe| exe.ancestors().skip(1).take(2))
        .map(|dir| dir.join(SERVER_PROGRAM));
    told.into_iter().chain(beside).collect()
}

/// What `usb4-softd` does: listens, goes on in the background, and serves there. Returns in the foreground as soon
/// as the device can be reached, also when another process serves it already. Must be called before the process
/// has threads.
///
/// # Errors
/// A name cannot be used, or the operating system refuses.
pub fn serve_in_background(fabric: &str, host: &str) -> Result<(), Error> {
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
