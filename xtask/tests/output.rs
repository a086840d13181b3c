//! Standard output that cannot be written.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::process::{Command, Stdio};

#[test]
fn a_full_standard_output_fails_without_a_panic() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["ci", "--list"])
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(1), Vec::new()));
}
