//! Other ranks: this test program again, in a role.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that cannot go on fails, and each test program uses its part"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Handle, device};

/// Says to the child which role it plays.
const ROLE: &str = "USB4_NCCL_TEST_ROLE";

/// A child process on the same fabric; killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("USB4_DEVICE", device())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// What it says next.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.stdout.read_line(&mut line).unwrap(),
                0,
                "the child has ended"
            );
            // The test harness says something, too.
            if let Some(at) = line.find("says ") {
                return line[at + 5..].trim().into();
            }
        }
    }

    pub(crate) fn hear_handle(&mut self) -> Handle {
        to_handle(&self.hear())
    }

    pub(crate) fn tell(&mut self, line: &str) {
        // A child that has been killed does not listen.
        let _ = writeln!(self.stdin, "{line}");
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

/// In a child: its role.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// In a child: tells the parent something.
pub(crate) fn say(line: &str) {
    println!("says {line}");
}

/// In a child: the next line the parent tells; `None` when it has closed.
pub(crate) fn told() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).unwrap() != 0).then(|| line.trim().into())
}

pub(crate) fn from_handle(handle: &Handle) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn to_handle(text: &str) -> Handle {
    let mut handle = [0; 128];
    for (i, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    }
    handle
}
