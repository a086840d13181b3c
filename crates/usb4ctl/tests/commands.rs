//! `usb4ctl` as its users see it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
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

/// A server of a command, and its address.
fn serve(command: &str) -> (Server, String) {
    let mut server = usb4ctl()
        .args([command, "--serve"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = server.stdout.take().unwrap();
    let server = Server(server);
    let mut address = String::new();
    BufReader::new(stdout).read_line(&mut address).unwrap();
    (server, address)
}

#[test]
fn a_server_answers_more_pings_than_it_may_have_handles() {
    let (_server, address) = serve("ping");
    let ping = usb4ctl()
        .args(["ping", address.trim(), "--count", "1500", "--interval", "0"])
        .output()
        .unwrap();
    assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stderr));
}

#[test]
fn a_benchmark_that_is_broken_off_does_not_hold_up_the_next_one() {
    let (_server, address) = serve("bench");
    let write = |count: &str| {
        let mut bench = usb4ctl();
        bench.args(["bench", address.trim(), "--op", "write", "--max", "8"]);
        bench.args(["--megabytes", "1", "--iterations", count]);
        bench
    };
    // The head of its table comes just before its first run.
    let mut endless = write("10000000").stdout(Stdio::piped()).spawn().unwrap();
    let mut head = String::new();
    let mut said = BufReader::new(endless.stdout.take().unwrap());
    let endless = Server(endless);
    said.read_line(&mut head).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(endless);
    let next = write("10").output().unwrap();
    assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
}

#[test]
fn a_benchmark_by_step_waits_before_and_after_what_it_measures() {
    let (_server, address) = serve("bench");
    for (operation, part, messages) in [
        ("write", "latency", 20),
        ("send", "latency", 20),
        ("read", "latency", 10),
        ("write", "bandwidth", 64),
        ("send", "bandwidth", 64),
        ("read", "bandwidth", 64),
    ] {
        let mut bench = usb4ctl();
        bench.args(["bench", address.trim(), "--op", operation, "--only", part]);
        bench.args([
            "--min",
            "65536",
            "--max",
            "65536",
            "--iterations",
            "10",
            "--megabytes",
            "1",
        ]);
        bench.args(["--flows", "3", "--by-step", "--json"]);
        let mut bench = bench
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut go_on = bench.stdin.take().unwrap();
        let mut said = BufReader::new(bench.stdout.take().unwrap());
        for wanted in ["ready\n".to_string(), format!("done {messages}\n")] {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert_eq!(line, wanted, "{operation} {part}");
            go_on.write_all(b"\n").unwrap();
        }
        let report: serde_json::Value = serde_json::from_reader(said).unwrap();
        let row = report.pointer("/rows/0").unwrap();
        assert_eq!(row.get("p50_us").is_some(), part == "latency", "{row}");
        assert_eq!(
            row.get("messages_per_second").is_some(),
            part == "bandwidth",
            "{row}"
        );
        assert!(bench.wait().unwrap().success());
    }
}

#[test]
fn a_closed_or_full_standard_output_is_no_panic() {
    let closed = UnixStream::pair().unwrap().0;
    let devices = usb4ctl()
        .arg("devices")
        .stdout(Stdio::from(OwnedFd::from(closed)))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!((devices.status.code(), devices.stderr), (Some(1), Vec::new()));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let devices = usb4ctl()
        .arg("devices")
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8(devices.stderr).unwrap();
    assert_eq!(devices.status.code(), Some(1));
    assert!(
        said.starts_with("usb4ctl: cannot write to standard output"),
        "{said}"
    );
}

#[test]
fn a_closed_standard_error_is_no_panic() {
    let closed = UnixStream::pair().unwrap().0;
    let ping = usb4ctl()
        .args(["ping", "no address"])
        .stderr(Stdio::from(OwnedFd::from(closed)))
        .status()
        .unwrap();
    assert_eq!(ping.code(), Some(1));
}

#[test]
fn a_benchmark_at_a_ping_server_says_which_server_it_wants() {
    let (_server, address) = serve("ping");
    let bench = usb4ctl()
        .args(["bench", address.trim(), "--max", "8"])
        .output()
        .unwrap();
    let said = String::from_utf8(bench.stderr).unwrap();
    assert!(
        !bench.status.success() && said.contains("usb4ctl bench --serve"),
        "{said}"
    );
}

/// `usb4ctl doctor` with nothing of a job in its environment but what is given.
fn doctor(variables: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = usb4ctl();
    for name in ["NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_SOCKET_IFNAME"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let done = command.arg("doctor").args(arguments).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    (done.status.code(), said)
}

#[test]
fn doctor_finds_that_there_is_no_plugin_and_says_so_by_its_exit_status() {
    let (code, said) = doctor(&[("NCCL_NET", "Socket")], &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("opens, node"), "{said}");
    assert!(
        said.contains("PROBLEM  fallback") && said.contains("$ export NCCL_NET=USB4"),
        "{said}"
    );
    let (code, said) = doctor(&[("NCCL_NET", "Socket")], &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(code, Some(1));
    assert!(
        findings
            .iter()
            .any(|finding| finding["level"] == "problem" && finding["about"] == "fallback"),
        "{said}"
    );
}

#[test]
fn doctor_that_cannot_print_says_that_it_could_not_look() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let done = usb4ctl().arg("doctor").stdout(full).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn doctor_meets_the_peers_of_a_software_cable() {
    let (_server, _) = serve("ping");
    let (_, said) = doctor(&[], &[]);
    assert!(said.contains("ok       link") && said.contains("up to"), "{said}");
}

#[test]
fn status_shows_a_software_cable_and_a_host_without_the_module() {
    let (_server, _) = serve("ping");
    let soft = usb4ctl().arg("status").output().unwrap();
    let text = String::from_utf8_lossy(&soft.stdout).into_owned();
    assert!(soft.status.success() && text.contains("peer "), "{text}");
    let bare = usb4ctl()
        .env_remove("USB4_DEVICE")
        .args(["status", "--json", "--sysfs", "/nonexistent"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&bare.stdout).into_owned();
    assert!(bare.status.success(), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(
        report["module"].is_null() && report["rails"] == serde_json::json!([]),
        "{text}"
    );
}
