//! Other processes: this test program again, in a role.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use usb4_ring::{EP_ADDR_LEN, EpAddr};

/// Says to the child which role it plays: `ROLE FABRIC`.
const ROLE: &str = "USB4_RING_TEST_ROLE";

/// A child process; killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Its endpoint.
    pub(crate) address: EpAddr,
    stdin: ChildStdin,
    _stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts `role` on a fabric and waits for its address.
    pub(crate) fn start(role: &str, fabric: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{role} {fabric}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the child has ended");
            // The test harness says something, too.
            if let Some(at) = line.find("address ") {
                break parse(line[at..].trim_start_matches("address ").trim());
            }
        };
        Self {
            stdin: child.stdin.take().unwrap(),
            _stdout: stdout,
            child,
            address,
        }
    }

    /// Tells the child an address.
    pub(crate) fn tell(&mut self, address: &EpAddr) {
        // A child that has been killed does not listen.
        let _ = writeln!(self.stdin, "{}", text(address));
    }

    /// Stops it, and waits until it is.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: our own child; a stop is reported without reaping it.
        let stopped = unsafe {
            libc::waitpid(
                self.child.id().try_into().unwrap(),
                &raw mut status,
                libc::WUNTRACED,
            )
        };
        assert!(stopped > 0 && libc::WIFSTOPPED(status));
    }

    pub(crate) fn signal(&self, signal: i32) {
        let pid = self.child.id().try_into().unwrap();
        // SAFETY: a signal to our own child, which has not been waited for.
        let sent = unsafe { libc::kill(pid, signal) };
        assert_eq!(sent, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a child: its role and fabric.
pub(crate) fn role() -> Option<(String, String)> {
    let role = std::env::var(ROLE).ok()?;
    let (role, fabric) = role.split_once(' ').unwrap();
    Some((role.into(), fabric.into()))
}

/// In a child: tells the parent its address.
pub(crate) fn announce(address: &EpAddr) {
    println!("address {}", text(address));
}

/// In a child: the next address the parent tells; `None` when it has closed.
pub(crate) fn told() -> Option<EpAddr> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).unwrap() != 0).then(|| parse(line.trim()))
}

fn text(address: &EpAddr) -> String {
    address
        .to_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn parse(text: &str) -> EpAddr {
    let mut bytes = [0; EP_ADDR_LEN];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    }
    EpAddr::from_bytes(&bytes)
}
