//! The suite with a second host, which is another process here.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

/// An agent's process, ended with the test, and where it listens.
struct Agent(Child, String);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn conformance() -> Command {
    Command::new(env!("CARGO_BIN_EXE_usb4-conformance"))
}

fn agent() -> Agent {
    let mut agent = conformance()
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(agent.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    Agent(agent, address)
}

fn run(address: &str, filter: &str) -> Output {
    conformance()
        .args(["--connect", address, "--filter", filter])
        .output()
        .unwrap()
}

#[test]
fn cases_of_every_kind_pass_between_two_processes() {
    let agent = agent();
    for filter in ["send::", "atomic::", "life::"] {
        let output = run(&agent.1, filter);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        assert!(said.contains(" 0 failed"), "{said}");
    }
}

#[test]
fn a_second_host_that_is_not_there_fails_the_cases_and_says_so() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let output = run(&closed, "send::an_empty");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success());
    assert!(said.contains("FAIL") && said.contains(&closed), "{said}");
}

#[test]
fn a_stranger_does_not_end_the_agent() {
    let agent = agent();
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n........"[..], &[0xff; 64]] {
        let mut stream = TcpStream::connect(&agent.1).unwrap();
        stream.write_all(nonsense).unwrap();
        let mut rest = Vec::new();
        // It hangs up, one way or the other.
        let _ = stream.read_to_end(&mut rest);
    }
    let mut stream = TcpStream::connect(&agent.1).unwrap();
    stream.write_all(b"usb4-conformance agent 1").unwrap();
    stream.write_all(&[0xff; 8]).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    assert!(run(&agent.1, "send::an_empty").status.success());
}
