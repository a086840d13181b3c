//! The program itself: what it says to mistakes, and how it ends.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod rig;

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};

use rig::{Folder, PATIENCE};
use rustix::process::{Pid, Signal, kill_process};

fn program(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usb4-nhi-emu"));
    command.arg("--dir").arg(&folder.0);
    command
}

/// Starts it and waits for its last socket.
fn started(folder: &Folder) -> Child {
    let mut child = program(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = std::time::Instant::now();
    while UnixStream::connect(folder.0.join("ctl.sock")).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        assert!(start.elapsed() < PATIENCE, "no socket");
        std::thread::yield_now();
    }
    child
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_child(child);
    kill_process(pid, signal).unwrap();
}

fn told(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_signal_ends_it_cleanly_and_removes_its_sockets() {
    for which in [Signal::TERM, Signal::INT] {
        let folder = Folder::new();
        let child = started(&folder);
        assert_eq!(
            folder.names(),
            ["ctl.sock", "mark.sock", "nhi0.sock", "nhi1.sock"]
        );
        signal(&child, which);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(folder.names().is_empty());
    }
}

#[test]
fn marks_are_printed_as_they_come() {
    use std::io::{BufRead, BufReader};
    let folder = Folder::new();
    let mut child = started(&folder);
    let request = "mark first".parse().unwrap();
    let mut client = usb4_nhi_control::Client::connect(&folder.0).unwrap();
    client.ask(&request).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let mark: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&mark["mark"], &mark["stats"]["nhis"][0]["nhi"]),
        (&"first".into(), &0.into())
    );
    signal(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_mistake_is_named() {
    let folder = Folder::new();
    for (arguments, code, words) in [
        (&["--topology", "ring"][..], 2, "neither a preset nor a setting"),
        (&["--topology", "pair,lanes=3"], 2, "lanes must be 1 to 2, not 3"),
        (
            &["--topology", "none,cable=0.0-9.0"],
            2,
            "9.0, which does not exist",
        ),
        (&["--mmap-interrupts"], 1, "only be mapped with Intel's vendor id"),
        (&["--mmap-all"], 2, "unexpected argument '--mmap-all'"),
        (&["--seed", "x"], 2, "invalid value 'x' for '--seed <SEED>'"),
        (&["extra"], 2, "unexpected argument 'extra'"),
    ] {
        let output = program(&folder).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(told(&output).contains(words), "{arguments:?}: {}", told(&output));
        assert!(folder.names().is_empty(), "{arguments:?}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_usb4-nhi-emu"))
        .args(["--dir", "/does/not/exist"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        told(&missing).contains("cannot listen at /does/not/exist/nhi0.sock"),
        "{}",
        told(&missing)
    );
}
