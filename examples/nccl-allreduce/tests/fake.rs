//! The example over a fake GPU and a fake NCCL.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

/// `fake.c`, compiled.
fn fake() -> PathBuf {
    static FAKE: OnceLock<PathBuf> = OnceLock::new();
    let compile = || {
        let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libfake.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake.c");
        let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-o"])
            .arg(&library)
            .arg(source)
            .status()
            .unwrap();
        assert!(status.success());
        library
    };
    FAKE.get_or_init(compile).clone()
}

fn rank(rank: u32, ranks: u32, root: &str, variables: &[(&str, &str)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_nccl-allreduce"))
        .arg("--library")
        .arg(fake())
        .arg("--gpu-library")
        .arg(fake())
        .args(["--root", root, "--max", "262144", "--count", "2"])
        .env("OMPI_COMM_WORLD_RANK", rank.to_string())
        .env("OMPI_COMM_WORLD_SIZE", ranks.to_string())
        .env("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        .env_remove("NCCL_NET")
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Two ranks; what came of rank 0.
fn two(variables: &[(&str, &str)]) -> Output {
    // A port that is free now.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let root = format!("127.0.0.1:{port}");
    let other = rank(1, 2, &root, variables);
    let first = rank(0, 2, &root, variables).wait_with_output().unwrap();
    let other = other.wait_with_output().unwrap();
    assert_eq!(first.status.success(), other.status.success());
    first
}

#[test]
fn two_ranks_sum_and_choose_usb4_themselves() {
    let done = two(&[]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.contains("all sums are right"),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn a_wrong_sum_is_noticed() {
    let done = two(&[("FAKE_WRONG", "1")]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && said.contains("of 2 sums, number 1 is"),
        "{said}"
    );
}

#[test]
fn a_net_that_is_not_there_fails_loudly() {
    let done = rank(0, 1, "127.0.0.1:1", &[("NCCL_NET", "other")])
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && said.contains("NCCL_NET names no net") && said.contains("doctor"),
        "{said}"
    );
}
