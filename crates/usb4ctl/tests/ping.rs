//! `usb4ctl ping` between two processes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A process that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn usb4ctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usb4ctl"));
    command.env("USB4_DEVICE", format!("soft:ctl-{}", std::process::id()));
    command
}

#[test]
fn a_server_answers_more_pings_than_it_may_have_handles() {
    let mut server = usb4ctl()
        .args(["ping", "--serve"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = server.stdout.take().unwrap();
    let _server = Server(server);
    let mut address = String::new();
    BufReader::new(stdout).read_line(&mut address).unwrap();
    let ping = usb4ctl()
        .args(["ping", address.trim(), "--count", "1500", "--interval", "0"])
        .output()
        .unwrap();
    assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stderr));
}
