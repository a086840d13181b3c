//! Compares every structure, field, constant and function of this crate with rdma-core's headers: the private ones with
//! source trees of rdma-core (`RDMA_CORE_SOURCE`, folders with `:` between them), the public ones with those a
//! `libibverbs-dev` installs (`RDMA_CORE_INCLUDE`, `MAJOR=FOLDER` with `:` between them), and looks for the functions in
//! libraries (`RDMA_CORE_LIBRARY`, `MAJOR=FILE` likewise).
//!
//! No package installs `driver.h`, so these tests run where somebody provides it: `cargo xtask rdma-core`.

#![allow(clippy::expect_used)]

mod facts;

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use facts::Fact;
use rdma_core_sys::Layout;

#[test]
#[ignore = "needs source trees of rdma-core: cargo xtask rdma-core"]
fn private_structures_are_those_of_the_source() {
    let trees = std::env::var("RDMA_CORE_SOURCE").expect("RDMA_CORE_SOURCE names source trees of rdma-core");
    for tree in trees.split(':') {
        let source = Source::read(Path::new(tree));
        let include = source.include();
        let headers = "#include <infiniband/driver.h>\n";
        let facts = facts::private(source.major);
        compare(&format!("private-{}", source.major), &include, headers, &facts);
        let facts = facts::public(source.major);
        compare(&format!("public-{}", source.major), &include, headers, &facts);
        let symbols = source.symbols();
        for name in functions(&facts::private(source.major)) {
            assert!(
                symbols.contains(&name),
                "rdma-core {} exports no {name}",
                source.major
            );
        }
    }
}

#[test]
#[ignore = "needs headers of libibverbs-dev: cargo xtask rdma-core"]
fn public_structures_are_those_of_the_installed_headers() {
    let folders = std::env::var("RDMA_CORE_INCLUDE").expect("RDMA_CORE_INCLUDE names folders of headers");
    for one in folders.split(':') {
        let (major, folder) = one.split_once('=').expect("MAJOR=FOLDER");
        let major = major.parse().expect("a release");
        let headers = "#include <infiniband/verbs.h>\n";
        let facts = facts::public(major);
        compare(&format!("installed-{major}"), Path::new(folder), headers, &facts);
    }
}

#[test]
#[ignore = "needs libraries of libibverbs1: cargo xtask rdma-core"]
fn libraries_have_the_functions_and_are_known_by_them() {
    let libraries = std::env::var("RDMA_CORE_LIBRARY").expect("RDMA_CORE_LIBRARY names libraries");
    for one in libraries.split(':') {
        let (major, file) = one.split_once('=').expect("MAJOR=FILE");
        let major: u32 = major.parse().expect("a release");
        let layout = Layout::of_release(major).expect("a release of a known layout");
        let out = Command::new("readelf").args(["-W", "--dyn-syms", file]).output();
        let text = String::from_utf8(out.expect("readelf runs").stdout).expect("text");
        let symbols: HashSet<&str> = text
            .split_whitespace()
            .filter(|word| word.contains("@@"))
            .collect();
        let version = layout.version().to_str().expect("text");
        let names = functions(&facts::private(major));
        for name in &names {
            let name = name.replace("@IBVERBS_PABI_VERSION@", &layout.number().to_string());
            let symbol = format!("{name}@@{version}");
            assert!(symbols.contains(symbol.as_str()), "{file} has no {symbol}");
        }
        // As `Library::find` tells them apart.
        let has = |name: &CStr| {
            let name = format!("{}@@", name.to_str().expect("text"));
            symbols.iter().any(|symbol| symbol.starts_with(&name))
        };
        let known = Layout::ALL
            .into_iter()
            .rev()
            .find(|layout| has(layout.register_driver()) && layout.witness().is_none_or(has));
        assert_eq!(known, Some(layout), "{file}");
        println!("compared library-{major}: {} facts", names.len());
    }
}

/// A source tree of rdma-core.
struct Source {
    root: PathBuf,
    major: u32,
    number: u32,
}

impl Source {
    fn read(root: &Path) -> Self {
        let lists = fs::read_to_string(root.join("CMakeLists.txt")).expect("a source tree of rdma-core");
        let value = |name: &str| -> u32 {
            let rest = lists.split_once(&format!("set({name} \"")).expect(name).1;
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse().ok()).expect(name)
        };
        let source = Self {
            root: root.to_path_buf(),
            major: value("PACKAGE_VERSION"),
            number: value("IBVERBS_PABI_VERSION"),
        };
        let layout = Layout::of_release(source.major).expect("a release of a known layout");
        assert_eq!(layout.number(), source.number, "rdma-core {}", source.major);
        source
    }

    /// A folder of headers as the build makes it.
    fn include(&self) -> PathBuf {
        let include = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("include-{}", self.major));
        let _ = fs::remove_dir_all(&include);
        for folder in ["infiniband", "kernel-abi"] {
            fs::create_dir_all(include.join(folder)).expect("a folder for headers");
        }
        for (from, to) in [
            ("kernel-headers/rdma", "rdma"),
            ("ccan", "ccan"),
            ("util", "util"),
        ] {
            symlink(self.root.join(from), include.join(to)).expect("a link to headers");
        }
        let verbs = fs::read_dir(self.root.join("libibverbs")).expect("libibverbs");
        let ioctl = self.root.join("kernel-headers/rdma/ib_user_ioctl_verbs.h");
        for header in verbs.flatten().map(|entry| entry.path()).chain([ioctl]) {
            if header.extension().is_some_and(|extension| extension == "h") {
                let name = header.file_name().expect("a name");
                symlink(&header, include.join("infiniband").join(name)).expect("a link to a header");
            }
        }
        let config = format!(
            "#define IBVERBS_PABI_VERSION {}\n#define HAVE_TYPEOF 1\n#define HAVE_STATEMENT_EXPR 1\n\
             #define HAVE_BUILTIN_TYPES_COMPATIBLE_P 1\n#define HAVE_ISBLANK 1\n#define SIZEOF_LONG 8\n\
             #define VERBS_IOCTL_ONLY 0\n#define VERBS_WRITE_ONLY 0\n#define HAVE_FUNC_ATTRIBUTE_ALWAYS_INLINE 1\n",
            self.number
        );
        fs::write(include.join("config.h"), config).expect("config.h is written");
        let made = Command::new("python3")
            .arg(self.root.join("buildlib/make_abi_structs.py"))
            .arg(self.root.join("kernel-headers/rdma/ib_user_verbs.h"))
            .arg(include.join("kernel-abi/ib_user_verbs.h"))
            .status()
            .expect("python3 runs");
        assert!(made.success(), "rdma-core's make_abi_structs.py fails");
        include
    }

    /// What libibverbs exports.
    fn symbols(&self) -> Vec<String> {
        let map =
            fs::read_to_string(self.root.join("libibverbs/libibverbs.map.in")).expect("a version script");
        let names = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
        names.map(str::to_string).collect()
    }
}

/// The functions that `facts` have the types of, as they are exported.
fn functions(facts: &[Fact]) -> Vec<String> {
    facts
        .iter()
        .filter_map(|fact| fact.name.strip_prefix("type of "))
        .filter(|name| !name.contains("->"))
        .map(|name| match name {
            "verbs_register_driver" => "verbs_register_driver_@IBVERBS_PABI_VERSION@".to_string(),
            name => name.to_string(),
        })
        .collect()
}

/// Has a C compiler say what `facts` say.
fn compare(name: &str, include: &Path, headers: &str, facts: &[Fact]) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&source, program(headers, facts)).expect("the probe is written");
    let out = Command::new("gcc")
        .args(["-std=gnu11", "-w", "-D_GNU_SOURCE", "-I"])
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output()
        .expect("gcc runs");
    assert!(
        out.status.success(),
        "the probe for {name} does not compile:\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let out = Command::new(&binary).output().expect("the probe runs");
    let text = String::from_utf8(out.stdout).expect("text");
    let seen: HashMap<usize, u64> = text
        .lines()
        .map(|line| {
            let (index, value) = line.split_once(' ').expect("two columns");
            (index.parse().expect("index"), value.parse().expect("value"))
        })
        .collect();
    assert_eq!(
        seen.len(),
        facts.len(),
        "the probe for {name} says less than it should"
    );
    let wrong: Vec<String> = facts
        .iter()
        .enumerate()
        .filter(|(index, fact)| seen.get(index) != Some(&fact.value))
        .map(|(index, fact)| format!("{}: {} here, {:?} in C", fact.name, fact.value, seen.get(&index)))
        .collect();
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    println!("compared {name}: {} facts", facts.len());
}

fn program(headers: &str, facts: &[Fact]) -> String {
    let mut c = format!("#include <stddef.h>\n#include <stdio.h>\n{headers}int main(void) {{\n");
    for (index, fact) in facts.iter().enumerate() {
        writeln!(
            c,
            "printf(\"{index} %llu\\n\", (unsigned long long)({}));",
            fact.expression
        )
        .expect("string");
    }
    c.push_str("return 0; }\n");
    c
}
