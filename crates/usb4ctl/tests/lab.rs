//! `usb4ctl lab` and an emulator.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::Duration;

use usb4_nhi_emu::{Emulator, Map, Options};

/// An emulator without guests that ends with the test.
struct Lab {
    dir: PathBuf,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Lab {
    fn start(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("usb4ctl-lab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut emulator = Emulator::new(Options {
            dir: dir.clone(),
            topology: "pair".parse().unwrap(),
            seed: 1,
            map: Map::Nothing,
            spin: Duration::ZERO,
        })
        .unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || emulator.run(stopped.as_fd()).unwrap());
        Self {
            dir,
            stop,
            thread: Some(thread),
        }
    }

    fn usb4ctl(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_usb4ctl"))
            .current_dir(&self.dir)
            .arg("lab")
            .args(words)
            .output()
            .unwrap()
    }

    /// What it prints if all is well.
    fn told(&self, words: &[&str]) -> String {
        let output = self.usb4ctl(words);
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says if not.
    fn complaint(&self, words: &[&str]) -> String {
        let output = self.usb4ctl(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.write_all(b"x").unwrap();
        let _ = self.thread.take().unwrap().join();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn requests_are_put_and_answers_shown() {
    let lab = Lab::start("requests");
    assert_eq!(lab.told(&["unplug", "0"]), "");
    assert_eq!(
        lab.told(&["stats"]),
        "nhi0  host 0, no guest\nnhi1  host 1, no guest\ncable 0  0.0 - 1.0, unplugged, link down\n"
    );
    let json: serde_json::Value = serde_json::from_str(&lab.told(&["--json", "stats"])).unwrap();
    assert_eq!(
        (&json["ok"], &json["stats"]["cables"][0]["plugged"]),
        (&true.into(), &false.into())
    );
    assert_eq!(lab.told(&["--json", "plug", "0"]), "{\"ok\":true}\n");
    assert_eq!(lab.complaint(&["plug", "3"]), "usb4ctl: there is no cable 3\n");
    assert!(
        lab.complaint(&["--dir", "/nowhere", "stats"])
            .starts_with("usb4ctl: no emulator at /nowhere/ctl.sock")
    );
    assert_eq!(lab.usb4ctl(&["loss", "0", "many"]).status.code(), Some(2));
}

#[test]
fn a_capture_is_made_where_the_caller_is_and_decoded() {
    let lab = Lab::start("capture");
    lab.told(&["capture", "start", "a.pcapng", "--all"]);
    lab.told(&["capture", "stop"]);
    assert!(lab.dir.join("a.pcapng").exists());
    assert_eq!(lab.told(&["decode", "a.pcapng"]), "");
    std::fs::write(lab.dir.join("b.pcapng"), "nonsense").unwrap();
    assert_eq!(
        lab.complaint(&["decode", "b.pcapng"]),
        "usb4ctl: b.pcapng: not a capture file\n"
    );
    assert!(
        lab.complaint(&["decode", "c.pcapng"])
            .starts_with("usb4ctl: cannot open c.pcapng: ")
    );
    let mut bytes = std::fs::read(lab.dir.join("a.pcapng")).unwrap();
    bytes.truncate(bytes.len() - 3);
    std::fs::write(lab.dir.join("a.pcapng"), bytes).unwrap();
    assert_eq!(
        lab.complaint(&["decode", "a.pcapng"]),
        "usb4ctl: a.pcapng: the file ends in the middle of a record\n"
    );
}
