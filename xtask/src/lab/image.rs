//! What a guest's root file system holds: programs of the tree with the libraries they need, and modules of the kernel.
//!
//! It is an uncompressed cpio archive that the kernel unpacks into memory: nothing to mount, nothing that sleeps
//! badly, and quicker under emulation than any disk. Programs are the real ones; busybox fills in the rest.

use super::cpio::Archive;
use super::tree::{Kernel, Tree};
use crate::cache;
use crate::process;
use crate::ui::Task;
use crate::workspace::work;
use anyhow::{Context, Result, bail};
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, Object, ObjectSection};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Programs of the tree that guests have; busybox has no such program, or a lesser one.
const PROGRAMS: &[&str] = &[
    "usr/bin/bash",
    "usr/bin/busybox",
    "usr/bin/dash",
    "usr/bin/ib_atomic_bw",
    "usr/bin/ib_atomic_lat",
    "usr/bin/ib_read_bw",
    "usr/bin/ib_read_lat",
    "usr/bin/ib_send_bw",
    "usr/bin/ib_send_lat",
    "usr/bin/ib_write_bw",
    "usr/bin/ib_write_lat",
    "usr/bin/ibv_asyncwatch",
    "usr/bin/ibv_devices",
    "usr/bin/ibv_devinfo",
    "usr/bin/ibv_rc_pingpong",
    "usr/bin/ibv_srq_pingpong",
    "usr/bin/ibv_uc_pingpong",
    "usr/bin/ibv_ud_pingpong",
    "usr/bin/ip",
    "usr/bin/iperf3",
    "usr/bin/kmod",
    "usr/bin/lspci",
    "usr/bin/ping",
    "usr/bin/ps",
    "usr/bin/rdma",
    "usr/bin/rping",
    "usr/bin/setpriv",
    "usr/bin/setsid",
    "usr/bin/ss",
    "usr/bin/strace",
    "usr/bin/taskset",
    "usr/bin/timeout",
    "usr/bin/ucmatose",
    "usr/bin/udaddy",
    "usr/bin/unshare",
    "usr/bin/nsenter",
    "usr/sbin/rtcwake",
];

/// What programs open while they run, without saying so in their headers.
const DATA: &[&str] = &[
    "etc/libibverbs.d/rxe.driver",
    "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
    // pthread_cancel loads it.
    "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
    // Of NCCL and of MPIs, which are not of the tree.
    "usr/lib/x86_64-linux-gnu/libdl.so.2",
    "usr/lib/x86_64-linux-gnu/libpthread.so.0",
    "usr/lib/x86_64-linux-gnu/librt.so.1",
    "usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "usr/lib/x86_64-linux-gnu/libutil.so.1",
    "usr/lib/x86_64-linux-gnu/libz.so.1",
    "usr/share/misc/pci.ids",
];

/// Modules that guests can load, besides what these need. Those the kernel does not have are left out.
const MODULES: &[&str] = &[
    "thunderbolt",
    "thunderbolt_net",
    "thunderbolt_stream",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "macvlan",
    "udmabuf",
    "virtio_net",
    "9p",
    "9pnet_virtio",
];

const KMOD_NAMES: [&str; 6] = ["depmod", "insmod", "lsmod", "modinfo", "modprobe", "rmmod"];

/// Changes when what this file makes of the lists does.
const VERSION: &str = "1";

/// The part of the root file system that is the same for every run, from the cache.
pub(crate) fn base(tree: &Tree, kernel: &Kernel) -> Result<PathBuf> {
    let texts = [
        VERSION.to_string(),
        tree.root.display().to_string(),
        kernel.root.display().to_string(),
    ];
    let lists = PROGRAMS.iter().chain(DATA).chain(MODULES).copied();
    let key = cache::key(texts.iter().map(String::as_str).chain(lists).map(str::as_bytes));
    cache::entry(&format!("lab-guest-{}-{key}", kernel.release), |at| {
        let mut task = Task::start(format!("make the guests' root for {}", kernel.release), None);
        let mut archive = Archive::default();
        programs(&mut archive, tree)?;
        modules(&mut archive, tree, kernel, &mut task)?;
        let bytes = archive.to_bytes()?;
        fs::write(at, &bytes).context("write the guests' root")?;
        task.done(&format!("{} MiB", bytes.len() >> 20));
        Ok(())
    })
}

fn programs(archive: &mut Archive, tree: &Tree) -> Result<()> {
    for link in ["bin", "lib", "lib64", "sbin"] {
        archive.link(link, &format!("usr/{link}"));
    }
    archive.link("usr/bin/sh", "dash");
    archive.link(
        "usr/lib64/ld-linux-x86-64.so.2",
        "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    );
    let mut open: Vec<PathBuf> = vec![];
    for path in PROGRAMS.iter().chain(DATA) {
        archive.copy(path, &tree.root.join(path))?;
        open.push(tree.root.join(path));
    }
    let libraries = tree.libraries();
    while let Some(path) = open.pop() {
        for name in needed(&path)? {
            let inside = Path::new("usr/lib/x86_64-linux-gnu").join(&name);
            if !archive.has(&inside) {
                archive.copy(&inside, &libraries.join(&name))?;
                open.push(libraries.join(&name));
            }
        }
    }
    for name in KMOD_NAMES {
        archive.link(format!("usr/sbin/{name}"), "../bin/kmod");
    }
    let list = Command::new(tree.root.join("usr/bin/busybox"))
        .arg("--list")
        .stdin(Stdio::null())
        .output()
        .context("run busybox")?;
    for name in String::from_utf8_lossy(&list.stdout).lines() {
        let taken = ["bin", "sbin"]
            .iter()
            .any(|folder| archive.has(Path::new("usr").join(folder).join(name)));
        if !taken {
            archive.link(format!("usr/bin/{name}"), "busybox");
        }
    }
    Ok(())
}

/// The libraries an ELF file names; none for other files.
fn needed(path: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let Ok(header) = FileHeader64::<Endianness>::parse(bytes.as_slice()) else {
        return Ok(vec![]);
    };
    let read = || -> object::read::Result<Vec<String>> {
        let endian = header.endian()?;
        let sections = header.sections(endian, bytes.as_slice())?;
        let Some((entries, link)) = sections.dynamic(endian, bytes.as_slice())? else {
            return Ok(vec![]);
        };
        let strings = sections.strings(endian, bytes.as_slice(), link)?;
        let needed = entries
            .iter()
            .filter(|entry| entry.d_tag(endian) == u64::from(DT_NEEDED));
        needed
            .map(|entry| Ok(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned()))
            .collect()
    };
    read().with_context(|| format!("read what {} needs", path.display()))
}

fn modules(archive: &mut Archive, tree: &Tree, kernel: &Kernel, task: &mut Task) -> Result<()> {
    let inside = Path::new("usr/lib/modules").join(&kernel.release);
    let folder = work().join("lab/modules").join(&kernel.release);
    if folder.exists() {
        fs::remove_dir_all(&folder).context("remove an earlier attempt")?;
    }
    let stage = folder.join(&inside);
    let mut all = BTreeMap::new();
    index(&kernel.modules().join("kernel"), &mut all)?;
    let builtin =
        fs::read_to_string(kernel.modules().join("modules.builtin")).context("read modules.builtin")?;
    let builtin: BTreeSet<String> = builtin
        .lines()
        .filter_map(|line| module_name(Path::new(line)))
        .collect();
    let mut open: Vec<String> = MODULES.iter().map(|name| name.to_string()).collect();
    let mut taken = BTreeSet::new();
    while let Some(name) = open.pop() {
        if builtin.contains(&name) || !taken.insert(name.clone()) {
            continue;
        }
        let Some(path) = all.get(&name) else {
            if MODULES.contains(&name.as_str()) {
                continue;
            }
            bail!(
                "kernel {} has no module {name}, which another needs",
                kernel.release
            );
        };
        task.tick();
        let bytes = decompressed(path)?;
        open.extend(depends(&bytes).with_context(|| format!("read {}", path.display()))?);
        let below = path.strip_prefix(kernel.modules()).unwrap_or(path);
        let below = below.parent().unwrap_or(below).join(format!("{}.ko", stem(path)));
        let at = stage.join(&below);
        fs::create_dir_all(at.parent().unwrap_or(&stage)).context("create a folder for modules")?;
        fs::write(&at, &bytes).with_context(|| format!("write {}", at.display()))?;
        archive.file(inside.join(&below), 0o644, bytes);
    }
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        let from = kernel.modules().join(list);
        fs::copy(&from, stage.join(list)).with_context(|| format!("copy {}", from.display()))?;
        archive.copy(inside.join(list), &from)?;
    }
    let mut depmod = tree.program_as("depmod", "usr/bin/kmod");
    depmod.arg("-b").arg(folder.join("usr")).arg(&kernel.release);
    process::run(
        &mut depmod,
        Duration::from_secs(60),
        &folder.join("depmod.log"),
        None,
    )?
    .require("depmod")?;
    for entry in fs::read_dir(&stage).context("read what depmod wrote")?.flatten() {
        if entry.path().is_file() {
            archive.copy(inside.join(entry.file_name()), &entry.path())?;
        }
    }
    Ok(())
}

/// Every module below `folder` by its name.
fn index(folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)
        .with_context(|| format!("read {}", folder.display()))?
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            index(&path, found)?;
        } else if let Some(name) = module_name(&path) {
            found.insert(name, path);
        }
    }
    Ok(())
}

/// `thunderbolt_net` for `.../thunderbolt-net.ko.xz`: the kernel calls them so whatever the file is called.
fn module_name(path: &Path) -> Option<String> {
    path.file_name()?
        .to_str()?
        .contains(".ko")
        .then(|| stem(path).replace('-', "_"))
}

fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(".ko").next().unwrap_or_default().to_string()
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|ext| ext.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| format!("read {}", path.display())),
    };
    let output = Command::new(program)
        .args(["-q", "-d", "-c"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program} cannot read {}", path.display());
    }
    Ok(output.stdout)
}

/// The modules that a module says it needs.
fn depends(module: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(module).context("not an ELF file")?;
    let section = file.section_by_name(".modinfo").context("no .modinfo")?;
    Ok(depends_of(section.data().context("read .modinfo")?))
}

fn depends_of(modinfo: &[u8]) -> Vec<String> {
    let lines = modinfo.split(|byte| *byte == 0);
    let lists = lines.filter_map(|line| std::str::from_utf8(line).ok()?.strip_prefix("depends="));
    let names = lists.flat_map(|list| list.split(','));
    names
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_known_by_the_kernels_name_for_it() {
        let name = |path: &str| module_name(Path::new(path));
        assert_eq!(
            name("a/thunderbolt-net.ko.xz").as_deref(),
            Some("thunderbolt_net")
        );
        assert_eq!(name("b/crc16.ko").as_deref(), Some("crc16"));
        assert_eq!(name("modules.order"), None);
    }

    #[test]
    fn dependences_are_read_from_modinfo() {
        let modinfo = b"license=GPL\0depends=ib-core,udp_tunnel\0intree=Y\0depends=\0";
        assert_eq!(depends_of(modinfo), ["ib_core", "udp_tunnel"]);
    }

    #[test]
    fn the_libraries_of_this_program_are_found() {
        let names = needed(&std::env::current_exe().unwrap()).unwrap();
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
    }
}
