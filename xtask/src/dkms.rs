//! `cargo xtask dkms`: the folder from which DKMS, or anybody with kernel headers and a C compiler, builds the module.
//!
//! It holds the C sources, the core as one checked object with its sum and licence, and `dkms.conf`; no Rust is needed
//! where it is built.

use crate::freestanding;
use crate::ui::Verdict;
use crate::workspace::{root, work};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// The module's name and its package's.
pub(crate) const NAME: &str = "usb4_rdma";

/// The modules; kernels without verbs have the first only.
pub(crate) const MODULES: [&str; 2] = [NAME, "usb4_rdma_ib"];

/// Of the module and its package: `kmod/dkms.conf` and `U4_VERSION` say the same.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The object in the folder.
const OBJECT: &str = "usb4_core.o_shipped";

/// Sources of the module, by the ends of their names, and by name.
const ENDS: &[&str] = &[".c", ".h"];
const NAMES: &[&str] = &["Kbuild", "Makefile", "dkms.conf"];

const LICENSES: &[&str] = &["LICENSE-GPL-2.0", "LICENSE-MIT"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder to put usb4_rdma-VERSION in; /usr/src is where DKMS looks.
    #[arg(long)]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let parent = args.output.clone().unwrap_or_else(|| work().join("dkms"));
    let folder = parent.join(format!("{NAME}-{VERSION}"));
    write(&folder)?;
    let next = format!("copy it to /usr/src, then, as root: dkms install {NAME}/{VERSION}");
    Ok(Verdict::new(true, format!("{}; {next}", folder.display())))
}

/// Makes the folder anew.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let object = freestanding::checked_object()?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove the old {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for name in sources()? {
        copy(&root().join("kmod").join(&name), &folder.join(&name))?;
    }
    for name in LICENSES {
        copy(&root().join(name), &folder.join(name))?;
    }
    copy(&object, &folder.join(OBJECT))?;
    put(
        &folder.join(format!("{OBJECT}.sha256")),
        &format!("{}\n", sum(&object)?),
    )?;
    put(
        &folder.join(format!("{OBJECT}.license")),
        &license(&freestanding::compiler()?),
    )
}

/// Names of what goes from `kmod/` into the folder.
fn sources() -> Result<Vec<String>> {
    let entries = fs::read_dir(root().join("kmod")).context("read kmod/")?;
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let wanted = |name: &String| {
        // What Kbuild leaves.
        let made = name.ends_with(".mod.c");
        !made && (NAMES.contains(&name.as_str()) || ENDS.iter().any(|end| name.ends_with(end)))
    };
    let mut names: Vec<String> = names.filter(wanted).collect();
    names.sort();
    Ok(names)
}

fn license(compiler: &str) -> String {
    format!(
        "SPDX-License-Identifier: (GPL-2.0-only OR MIT) AND (MIT OR Apache-2.0)\n\
         \n\
         {OBJECT} is crates/wire, engine, ring-abi, device and kobj of usb4-rdma {VERSION} (GPL-2.0-only OR MIT) and what\n\
         they use of Rust's core library (MIT OR Apache-2.0), compiled by\n\
         {compiler}\n\
         with the flags in kmod/core.list. `cargo xtask freestanding` makes it, and checks it.\n"
    )
}

fn sum(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let digest = Sha256::digest(bytes);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    Ok(())
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn module_package_and_workspace_have_one_version() {
        let read = |name: &str| fs::read_to_string(root().join("kmod").join(name)).unwrap();
        assert!(read("usb4_rdma.h").contains(&format!("#define U4_VERSION\t\"{VERSION}\"")));
        assert!(read("dkms.conf").contains(&format!("PACKAGE_VERSION=\"{VERSION}\"")));
    }

    /// What `make` in kmod/ says, which does not build anything.
    fn make(arguments: &[&str]) -> (bool, String) {
        let mut make = Command::new("make");
        make.arg("-C").arg(root().join("kmod")).arg("--dry-run");
        for name in ["KDIR", "USB4_CORE", "USB4_FROM_SOURCE"] {
            make.env_remove(name);
        }
        let output = make
            .args(arguments)
            .output()
            .expect("make is wanted: apt-get install make");
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    #[test]
    fn missing_headers_are_named_with_the_package_that_has_them() {
        for (argument, wanted) in [
            ("release=9.9.9-none", "`apt-get install linux-headers-9.9.9-none`"),
            ("KDIR=/nowhere", "no kernel headers in KDIR=/nowhere"),
        ] {
            let (ok, said) = make(&[argument]);
            assert!(!ok && said.contains(wanted), "{said}");
        }
    }

    #[test]
    fn a_missing_object_is_named_with_the_ways_to_have_one() {
        let headers = std::env::temp_dir().join(format!("usb4-no-headers-{}", std::process::id()));
        fs::create_dir_all(&headers).unwrap();
        fs::write(headers.join("Makefile"), "modules clean:\n\ttrue\n").unwrap();
        let argument = format!("KDIR={}", headers.display());
        let (ok, said) = make(&[&argument]);
        assert!(!ok && said.contains("make USB4_FROM_SOURCE=1"), "{said}");
        for arguments in [["USB4_CORE=/some/object"].as_slice(), &["clean"]] {
            let (ok, said) = make(&[&[argument.as_str()], arguments].concat());
            assert!(ok, "{arguments:?}: {said}");
        }
        fs::remove_dir_all(headers).unwrap();
    }

    #[test]
    fn every_object_that_kbuild_wants_has_its_source_in_the_folder() {
        let names = sources().unwrap();
        let kbuild = fs::read_to_string(root().join("kmod/Kbuild")).unwrap();
        for module in MODULES {
            let (_, list) = kbuild.split_once(&format!("\n{module}-y :=")).unwrap();
            // A line goes on behind its backslash.
            let lines = list.split_inclusive('\n');
            let end = lines.clone().position(|line| !line.ends_with("\\\n")).unwrap();
            let list: String = lines.take(end + 1).collect();
            let list = list.replace('\\', " ");
            let objects: Vec<&str> = list.split_whitespace().filter(|name| *name != "core.o").collect();
            assert!(objects.len() > 7, "{objects:?}");
            for object in objects {
                let source = object.replace(".o", ".c");
                assert!(names.contains(&source), "{source} is not among {names:?}");
            }
        }
    }
}
