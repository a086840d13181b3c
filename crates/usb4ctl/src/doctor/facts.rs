//! What doctor knows of a machine and the environment of a job, without having judged it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use usb4_ring::{Backend, KERNEL_DEVICE};

/// Everything that is judged.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) device: Device,
    pub(crate) variables: Variables,
    /// By the name given to `dlopen`.
    pub(crate) probes: BTreeMap<String, Probe>,
    pub(crate) runtimes: Vec<Runtime>,
    pub(crate) built: Built,
    pub(crate) interfaces: Vec<Interface>,
    /// Bytes this process may pin; `None` is without limit.
    pub(crate) memlock: Option<u64>,
    /// What this runs in: `docker`, `podman`, `kubernetes`, `a container`.
    pub(crate) container: Option<&'static str>,
}

/// Where the documentation has the plugin installed (docs/nccl.md).
pub(crate) const INSTALLED: &str = "/opt/usb4/lib";

/// Where the plugin is on this machine, whether or not the loader looks there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Built {
    /// In this folder, under the name that NCCL looks for.
    Named(String),
    /// As this file, under the name that cargo gives it.
    Unnamed(String),
    /// Neither next to this program nor where it is usually installed.
    No,
}

impl Facts {
    /// What came of loading `name`.
    pub(crate) fn probe(&self, name: &str) -> Option<&Library> {
        match self.probes.get(name) {
            Some(Probe::Loaded(library)) => Some(library),
            _ => None,
        }
    }

    /// Kinds of runtime a plugin is wanted for: those found, else the kind whose plugin is there.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let found = |kind: &Kind| self.runtimes.iter().any(|runtime| runtime.kind == *kind);
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(found).collect();
        if !kinds.is_empty() {
            return kinds;
        }
        let there = |kind: &Kind| self.probe(&kind.our_plugin()).is_some();
        vec![Kind::ALL.into_iter().find(there).unwrap_or(Kind::Nccl)]
    }
}

/// The device of the ring API.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// As in `USB4_DEVICE`.
    pub(crate) spec: String,
    /// Somebody named it; else it is the default.
    pub(crate) named: bool,
    pub(crate) state: DeviceState,
    /// The module usb4_rdma is in the kernel.
    pub(crate) module: bool,
}

impl Device {
    /// Whether it is the kernel module's.
    pub(crate) fn is_kernel(&self) -> bool {
        self.spec.starts_with("/dev/")
    }

    /// Whether it is the one that is used when none is named.
    pub(crate) fn is_default(&self) -> bool {
        self.spec == KERNEL_DEVICE
    }
}

/// Whether the device opens.
#[derive(Clone, Debug)]
pub(crate) enum DeviceState {
    /// The name does not parse.
    BadSpec(String),
    /// It is not there.
    Missing,
    /// This user may not open it. The sentence says what to do.
    Permission(String),
    /// It and this program are of different releases.
    Version(String),
    /// Something else keeps it from opening.
    Failed(String),
    /// It opens.
    Open {
        backend: Backend,
        node: String,
        peers: Vec<Peer>,
    },
}

/// A peer the device sees.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) node: String,
    pub(crate) standing: Standing,
}

/// How a link stands, after an attempt to use it.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    Up {
        rails: u8,
    },
    Connecting,
    /// One side refuses the other; whether by the rules of this host, and why.
    Refused {
        ours: bool,
        why: String,
    },
    /// It is of another version of this software.
    Version(String),
    Failed(String),
}

/// Variables of the environment; an empty one is unset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables(pub(crate) BTreeMap<&'static str, String>);

impl Variables {
    /// Those that are looked at.
    pub(crate) const NAMES: [&'static str; 6] = [
        "NCCL_NET_PLUGIN",
        "NCCL_NET",
        "NCCL_NET_PLUGIN_REF_COUNT",
        "NCCL_SOCKET_IFNAME",
        "VLLM_NCCL_SO_PATH",
        "LD_LIBRARY_PATH",
    ];

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

/// NCCL, or AMD's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nccl,
    Rccl,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Nccl, Self::Rccl];

    /// What people call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL",
            Self::Rccl => "RCCL",
        }
    }

    /// What the names of its net plugins start with.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Nccl => "libnccl-net",
            Self::Rccl => "librccl-net",
        }
    }

    /// The plugin it loads if nobody names one.
    pub(crate) fn default_plugin(self) -> String {
        format!("{}.so", self.prefix())
    }

    /// Our plugin.
    pub(crate) fn our_plugin(self) -> String {
        format!("{}-usb4.so", self.prefix())
    }

    /// What `dlopen` is called with, in turn, for each entry of `NCCL_NET_PLUGIN=value`. NCCL 2.21 and later; RCCL's
    /// code is the same but for the prefix.
    pub(crate) fn candidates(self, value: Option<&str>) -> Vec<Vec<String>> {
        let Some(value) = value else {
            return vec![vec![self.default_plugin()]];
        };
        let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let file = name.contains('/') || name.starts_with("lib") && name.ends_with(".so");
                let mut tried = vec![name.to_string()];
                if !file {
                    tried.push(format!("{}-{name}.so", self.prefix()));
                }
                tried
            })
            .collect()
    }
}

/// What came of loading a library in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Probe {
    Loaded(Library),
    /// The loader's words.
    Failed(String),
}

/// A loaded library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Library {
    /// Where the loader found it.
    pub(crate) path: String,
    /// Versions of the net plugin interface it offers, newest first.
    pub(crate) tables: Vec<u32>,
    /// The name the newest of them gives.
    pub(crate) net: Option<String>,
    /// The answer of `ncclGetVersion`.
    pub(crate) version: Option<i32>,
}

impl Library {
    /// Whether it is our plugin.
    pub(crate) fn is_ours(&self) -> bool {
        self.net
            .as_deref()
            .is_some_and(|net| net.eq_ignore_ascii_case(OUR_NET))
    }
}

/// The name our plugin gives itself, which `NCCL_NET` is compared with.
pub(crate) const OUR_NET: &str = "USB4";

/// An NCCL or RCCL that a job here might use.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    pub(crate) kind: Kind,
    pub(crate) path: String,
    pub(crate) version: Version,
    /// How a job would come to use it.
    pub(crate) by: &'static str,
}

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) i32, pub(crate) i32, pub(crate) i32);

impl Version {
    /// From the answer of `ncclGetVersion`: 2.27.5 is 22705; before 2.9, 2.8.4 was 2804.
    pub(crate) fn from_code(code: i32) -> Self {
        let major = if code < 10_000 { 1_000 } else { 10_000 };
        Self(code / major, code % major / 100, code % 100)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A network interface.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) loopback: bool,
    pub(crate) addresses: Vec<IpAddr>,
}
