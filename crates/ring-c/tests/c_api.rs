//! Programs in C against the header and the library as they are shipped.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where Cargo has put the library: beside this program.
fn library_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    assert!(folder.join("libusb4ring.so").exists(), "{}", folder.display());
    folder.to_path_buf()
}

/// Compiles a program, named from this crate's folder, with all warnings being errors.
fn compile(source: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    // Found under its soname, as an installed one is.
    let linked = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("usb4ring-{name}"));
    std::fs::create_dir_all(&linked).unwrap();
    let soname = linked.join("libusb4ring.so.0");
    let _ = std::fs::remove_file(&soname);
    std::fs::copy(library_folder().join("libusb4ring.so"), &soname).unwrap();
    let program = linked.join(name);
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-O1",
        ])
        .arg(format!("-I{}", here.join("include").display()))
        .arg(here.join(source))
        .arg(&soname)
        .arg(format!("-Wl,-rpath,{}", linked.display()))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    program
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn the_header_has_the_librarys_layout() {
    let output = Command::new(compile("tests/c/layout.c")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn every_operation_works_and_every_mistake_is_named() {
    let device = format!("soft:c-{}", std::process::id());
    let output = Command::new(compile("tests/c/operations.c"))
        .arg(device)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn the_example_plays_and_refuses_nonsense() {
    let program = compile("../../examples/c/ring-pingpong.c");
    let device = format!("soft:c-pp-{}", std::process::id());
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).env("USB4_DEVICE", &device);
        command
    };
    let serve = || {
        let mut server = run(&[]).stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        (server, address.trim().to_string())
    };
    let (mut server, address) = serve();
    let address = address.as_str();
    for wrong in [&["nowhere"][..], &[address, "0"], &[address, "1", "1048577"]] {
        assert_eq!(run(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
    let output = run(&[address, "500", "5000"]).output().unwrap();
    assert!(
        text(&output).contains("500 times 5000 bytes there and back, all as sent"),
        "{}",
        text(&output)
    );
    assert!(server.wait().unwrap().success());
    // The last message is long under way when the server could leave.
    let (mut server, address) = serve();
    let output = run(&[&address, "3", "1048576"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(server.wait().unwrap().success());
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let header =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/usb4ring.h")).unwrap();
    let declared: std::collections::BTreeSet<&str> = header
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .zip(header.match_indices(|c: char| !(c.is_alphanumeric() || c == '_')))
        .filter(|(word, (_, after))| word.starts_with("usb4ring_") && *after == "(")
        .map(|(word, _)| word)
        .collect();
    let symbols = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library_folder().join("libusb4ring.so"))
        .output()
        .unwrap();
    let symbols = text(&symbols);
    let exported: std::collections::BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(declared, exported);
}
