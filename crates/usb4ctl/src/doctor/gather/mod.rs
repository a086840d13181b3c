//! Looks at the machine and the environment.

mod device;
mod interfaces;
mod library;
mod runtimes;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use usb4_ring::KERNEL_DEVICE;

use super::facts::{Built, Device, Facts, INSTALLED, Kind, Variables};

pub(crate) use library::probe;

/// Everything doctor judges.
///
/// # Errors
///
/// When the machine cannot be looked at.
pub(crate) fn facts(device: Option<&str>) -> Result<Facts> {
    let variables = variables();
    let mut probes = BTreeMap::new();
    for name in wanted(&variables) {
        if let std::collections::btree_map::Entry::Vacant(entry) = probes.entry(name) {
            let probe = library::in_a_child(entry.key())?;
            entry.insert(probe);
        }
    }
    let spec = device.unwrap_or(KERNEL_DEVICE);
    Ok(Facts {
        device: Device {
            spec: spec.to_string(),
            named: device.is_some(),
            state: device::state(spec),
            module: Path::new("/sys/module/usb4_rdma").exists(),
        },
        runtimes: runtimes::find(&variables)?,
        variables,
        probes,
        built: built(),
        interfaces: interfaces::list()?,
        memlock: memlock(),
        container: container(),
    })
}

fn variables() -> Variables {
    let read = |name| Some((name, std::env::var_os(name)?.to_string_lossy().into_owned()));
    Variables(Variables::NAMES.into_iter().filter_map(read).collect())
}

/// Names that are tried with the loader.
fn wanted(variables: &Variables) -> Vec<String> {
    let mut names = vec![];
    for kind in Kind::ALL {
        names.extend([kind.our_plugin(), kind.default_plugin()]);
        names.extend(
            kind.candidates(variables.get("NCCL_NET_PLUGIN"))
                .into_iter()
                .flatten(),
        );
    }
    names
}

/// Where the plugin is: next to this program, as built or as installed, or where it is usually installed.
fn built() -> Built {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let real = |path: PathBuf| {
        let path = fs::canonicalize(path).ok()?;
        Some(path.to_string_lossy().into_owned())
    };
    let places = ["../nccl/plugin", "../lib", ".", INSTALLED].map(|place| folder.join(place));
    let named = places
        .into_iter()
        .find(|place| place.join(Kind::Nccl.our_plugin()).exists());
    if let Some(folder) = named.and_then(real) {
        return Built::Named(folder);
    }
    real(folder.join("libusb4_nccl.so")).map_or(Built::No, Built::Unnamed)
}

/// Bytes this process may pin: without limit for who has `CAP_IPC_LOCK`.
fn memlock() -> Option<u64> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    if effective.is_some_and(|effective| effective & CAP_IPC_LOCK != 0) {
        return None;
    }
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// What kind of container this is, by what container engines leave behind.
fn container() -> Option<&'static str> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("a Kubernetes container");
    }
    if Path::new("/run/.containerenv").exists() {
        return Some("a Podman container");
    }
    if Path::new("/.dockerenv").exists() {
        return Some("a Docker container");
    }
    let groups = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    let marked = ["docker", "kubepods", "containerd", "lxc"]
        .iter()
        .any(|mark| groups.contains(mark));
    marked.then_some("a container")
}
