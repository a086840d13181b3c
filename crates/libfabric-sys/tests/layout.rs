//! Compares every structure, field and constant of this crate with the C headers that are installed
//! (`libfabric-dev`), or with those under `LIBFABRIC_INCLUDE` if it is set.
//!
//! A C program prints what the compiler says; fields a header is too old to have are left out by version.
//! `bindgen` shows in addition what the headers have and this crate does not.

#![allow(clippy::expect_used)]

mod facts;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use facts::{Fact, facts};

fn program(facts: &[Fact]) -> String {
    let mut c = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <pthread.h>\n#include <rdma/fabric.h>\n\
         #include <rdma/fi_atomic.h>\n#include <rdma/fi_cm.h>\n#include <rdma/fi_domain.h>\n\
         #include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_errno.h>\n\
         #include <rdma/fi_rma.h>\n#include <rdma/fi_tagged.h>\n#include <rdma/providers/fi_log.h>\n\
         #include <rdma/providers/fi_prov.h>\n#define HERE FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)\n\
         int main(void) {\n",
    );
    for (index, fact) in facts.iter().enumerate() {
        let (major, minor) = fact.since;
        write!(c, "#if HERE >= FI_VERSION({major}, {minor})").expect("string");
        if let Some((major, minor)) = fact.until {
            write!(c, " && HERE < FI_VERSION({major}, {minor})").expect("string");
        }
        writeln!(
            c,
            "\nprintf(\"{index} %lld\\n\", (long long)({}));\n#endif",
            fact.expression
        )
        .expect("string");
    }
    c.push_str("return 0; }\n");
    c
}

fn run_probe(include: Option<&Path>, facts: &[Fact]) -> HashMap<usize, i64> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = dir.join("layout.c");
    let binary = dir.join("layout");
    std::fs::write(&source, program(facts)).expect("the probe is written");
    let mut gcc = Command::new("gcc");
    gcc.arg("-w");
    if let Some(include) = include {
        gcc.arg("-I").arg(include);
    }
    let out = gcc
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output()
        .expect("gcc runs");
    assert!(
        out.status.success(),
        "the probe does not compile:\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let out = Command::new(&binary).output().expect("the probe runs");
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines()
        .map(|line| {
            let (index, value) = line.split_once(' ').expect("two columns");
            (index.parse().expect("index"), value.parse().expect("value"))
        })
        .collect()
}

/// The folder of `rdma/`, and whether it was given.
fn headers() -> (PathBuf, bool) {
    let given = std::env::var_os("LIBFABRIC_INCLUDE").map(PathBuf::from);
    let is_given = given.is_some();
    let root = given.unwrap_or_else(|| PathBuf::from("/usr/include"));
    assert!(
        root.join("rdma/fabric.h").exists() && root.join("rdma/providers/fi_prov.h").exists(),
        "libfabric's headers are missing under {}: install libfabric-dev, or set LIBFABRIC_INCLUDE",
        root.display()
    );
    (root, is_given)
}

#[test]
fn every_size_offset_and_constant_is_that_of_the_headers() {
    let (root, given) = headers();
    let facts = facts();
    let seen = run_probe(given.then_some(root.as_path()), &facts);
    assert!(seen.len() > 500, "the probe printed only {} facts", seen.len());
    let mut wrong = Vec::new();
    for (index, value) in &seen {
        let fact = &facts[*index];
        if fact.value != *value {
            wrong.push(format!("{}: {} here, {value} in C", fact.name, fact.value));
        }
    }
    wrong.sort();
    assert!(
        wrong.is_empty(),
        "{} of {} differ:\n{}",
        wrong.len(),
        seen.len(),
        wrong.join("\n")
    );
}

/// Offsets of fields as bindgen reads them from the headers, by "structure.field"; and sizes, by "structure".
fn bindgen_layout(root: &Path) -> HashMap<String, i64> {
    let mut source = String::new();
    for header in [
        "fabric",
        "fi_atomic",
        "fi_cm",
        "fi_domain",
        "fi_endpoint",
        "fi_eq",
        "fi_rma",
        "fi_tagged",
    ] {
        writeln!(source, "#include <rdma/{header}.h>").expect("string");
    }
    source.push_str("#include <rdma/providers/fi_prov.h>\n");
    let bindings = bindgen::Builder::default()
        .header_contents("libfabric.h", &source)
        .clang_arg(format!("-I{}", root.display()))
        .allowlist_type("(fi|fid)_.*|fid")
        .generate()
        .expect("bindgen reads the headers (it needs libclang: install libclang-dev)")
        .to_string();
    let mut layout = HashMap::new();
    let mut rest = bindings.as_str();
    while let Some(at) = rest.find("[\"") {
        rest = &rest[at + 2..];
        let Some((what, after)) = rest.split_once("\"]") else {
            break;
        };
        let name = if let Some(field) = what.strip_prefix("Offset of field: ") {
            field.replace("::", ".")
        } else if let Some(size) = what.strip_prefix("Size of ") {
            size.to_owned()
        } else {
            continue;
        };
        let value = after
            .split_once(" - ")
            .and_then(|v| v.1.split_once("usize"))
            .expect("a number")
            .0;
        layout.insert(name, value.parse().expect("a number"));
    }
    layout
}

#[test]
fn bindgen_finds_no_field_of_our_structures_that_is_missing_or_elsewhere() {
    let layout = bindgen_layout(&headers().0);
    let facts = facts();
    let ours: HashMap<&str, i64> = facts
        .iter()
        .map(|fact| (fact.name.as_str(), fact.value))
        .collect();
    let sizes: HashMap<&str, i64> = facts
        .iter()
        .filter_map(|fact| {
            let name = fact.name.strip_prefix("sizeof(")?.strip_suffix(')')?;
            Some((name, fact.value))
        })
        .collect();
    let mut seen = HashSet::new();
    let mut wrong = Vec::new();
    for (name, value) in &layout {
        let Some((ty, field)) = name.split_once('.') else {
            continue;
        };
        // The atomics' slots are arrays here, and a union has a name of bindgen's.
        let Some(size) = sizes
            .get(ty)
            .filter(|_| ty != "fi_ops_atomic" && !field.starts_with("__bindgen"))
        else {
            continue;
        };
        seen.insert(ty);
        match ours.get(name.as_str()) {
            Some(here) if here == value => {}
            Some(here) => wrong.push(format!("{name}: {here} here, {value} in C")),
            // Beyond our structure a later version has appended it.
            None if value >= size => {}
            None => wrong.push(format!("{name}: missing, {value} in C")),
        }
    }
    wrong.sort();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        seen.len() >= sizes.len() - 2,
        "bindgen showed only {} of {} structures",
        seen.len(),
        sizes.len()
    );
}
