//! What the ranks are built from: our programs, and files that NCCL reads.

use crate::process;
use crate::ui::Task;
use crate::workspace::{cargo, target, work};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A GPU for NCCL to find, at the address that `crates/nccl-host` gives it: nothing but what makes NCCL accept it. Its parser
/// wants each tag on one line.
const TOPOLOGY: &str = concat!(
    r#"<system version="1">"#,
    r#"<cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">"#,
    r#"<pci busid="0000:fe:00.0" class="0x030200" vendor="0x10de" device="0x20b0" "#,
    r#"subsystem_vendor="0x10de" subsystem_device="0x134f" link_speed="16 GT/s" link_width="16">"#,
    r#"<gpu dev="0" sm="80" gdr="0"/>"#,
    "</pci></cpu></system>\n"
);

/// The same for RCCL.
const RCCL_TOPOLOGY: &str = concat!(
    r#"<system version="2">"#,
    r#"<cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">"#,
    r#"<pci busid="0000:fe:00.0" class="0x038000" vendor="0x1002" device="0x66a1" "#,
    r#"subsystem_vendor="0x1002" subsystem_device="0x834" link_speed="16 GT/s" link_width="16">"#,
    r#"<gpu dev="0" sm="90" gcn="906" arch="38911" gdr="0"/>"#,
    "</pci></cpu></system>\n"
);

/// The names that vendors' libraries are looked for by.
const VENDORS: &[&str] = &["libnvidia-ml.so.1", "libamdhip64.so.5", "librocm_smi64.so.1"];

/// The names that NCCL and RCCL look for the plugin by.
const PLUGIN: &[&str] = &["libnccl-net-usb4.so", "librccl-net-usb4.so"];

/// What was built.
pub(crate) struct Built {
    /// `usb4-nccl-rank`.
    pub(crate) rank: PathBuf,
    /// Folder of the vendors' libraries.
    pub(crate) gpu: PathBuf,
    /// Folder of the plugin.
    pub(crate) plugin: PathBuf,
    /// Folder that holds the plugin under the name of a default plugin as well.
    pub(crate) default_plugin: PathBuf,
    /// Folder of the plugin of another version.
    pub(crate) next_plugin: PathBuf,
    pub(crate) topology: PathBuf,
    pub(crate) rccl_topology: PathBuf,
}

impl Built {
    pub(crate) fn get() -> Result<Built> {
        let next_plugin = next_plugin_folder()?;
        let plugin = plugin_folder()?;
        let default_plugin = target().join("nccl/default-plugin");
        place(
            "libusb4_nccl.so",
            &default_plugin,
            &[PLUGIN, &["libnccl-net.so"]].concat(),
        )?;
        build(
            "the NCCL host",
            &["--package", "usb4-nccl-host", "--package", "usb4-fake-gpu"],
        )?;
        let gpu = target().join("nccl/gpu");
        place("libfake_gpu.so", &gpu, VENDORS)?;
        let topology = target().join("nccl/topology.xml");
        let rccl_topology = target().join("nccl/topology-rccl.xml");
        for (path, text) in [(&topology, TOPOLOGY), (&rccl_topology, RCCL_TOPOLOGY)] {
            fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(Built {
            rank: target().join("release/usb4-nccl-rank"),
            gpu,
            plugin,
            default_plugin,
            next_plugin,
            topology,
            rccl_topology,
        })
    }
}

/// Builds the net plugin in release and returns the folder that holds it under the names by which NCCL and RCCL find it.
pub(crate) fn plugin_folder() -> Result<PathBuf> {
    build("the NCCL plugin", &["--package", "usb4-nccl"])?;
    let folder = target().join("nccl/plugin");
    place("libusb4_nccl.so", &folder, PLUGIN)?;
    Ok(folder)
}

/// The same for a plugin that says it is of the next version.
fn next_plugin_folder() -> Result<PathBuf> {
    build(
        "an NCCL plugin of another version",
        &["--package", "usb4-nccl", "--features", "next-version"],
    )?;
    let folder = target().join("nccl/next-plugin");
    place("libusb4_nccl.so", &folder, PLUGIN)?;
    Ok(folder)
}

fn build(what: &str, args: &[&str]) -> Result<()> {
    let mut task = Task::start(format!("build {what}"), None);
    let mut command = cargo(["build", "--release"]);
    command.args(args);
    let log = work()
        .join("build")
        .join(format!("{}.log", what.replace(' ', "-")));
    process::run(&mut command, Duration::from_secs(1800), &log, Some(&mut task))?.require("cargo build")?;
    task.done("built");
    Ok(())
}

/// Copies a library of ours to a folder under other names.
fn place(library: &str, folder: &Path, names: &[&str]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for name in names {
        // Copied under another name and renamed, so that a program that has the old one mapped keeps it.
        let (new, ready) = (folder.join(format!(".{name}.new")), folder.join(name));
        fs::copy(target().join("release").join(library), &new).with_context(|| format!("copy {library}"))?;
        fs::rename(&new, &ready).with_context(|| format!("put {name} in place"))?;
    }
    Ok(())
}
