//! Releases of NCCL, from PyPI, and Debian's RCCL.

use crate::cache;
use crate::debian::Index;
use crate::wheel::NCCL;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// A release, unpacked.
pub(crate) struct Release {
    pub(crate) version: String,
    pub(crate) library: PathBuf,
    /// RCCL wants a newer C library than this machine may have: the folder with that and its loader.
    pub(crate) libraries: Option<PathBuf>,
}

/// Debian's RCCL, 2.13.4 (release 5.4.3 of ROCm), with what it links besides ROCm's own.
const RCCL: &str = "rccl";
pub(super) const SUITE: &str = "trixie";
const RCCL_PACKAGES: [&str; 4] = ["librccl1", "libc6", "libstdc++6", "libgcc-s1"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

impl Release {
    /// The releases there are, RCCL among them.
    pub(crate) fn all() -> Vec<String> {
        let wheels = NCCL.iter().map(|wheel| wheel.version);
        wheels.chain([RCCL]).map(str::to_string).collect()
    }

    pub(crate) fn get(version: &str) -> Result<Release> {
        if version == RCCL {
            return Release::rccl();
        }
        let Some(wheel) = NCCL.iter().find(|wheel| wheel.version == version) else {
            bail!("--nccl {version}: there are {}", Release::all().join(", "));
        };
        Ok(Release {
            version: version.to_string(),
            library: wheel.prefix()?.join("nvidia/nccl/lib/libnccl.so.2"),
            libraries: None,
        })
    }

    fn rccl() -> Result<Release> {
        let packages = RCCL_PACKAGES.map(str::to_string);
        let key = cache::key([SUITE].iter().chain(&RCCL_PACKAGES).map(|part| part.as_bytes()));
        let tree = cache::entry(&format!("{RCCL}-{SUITE}-{key}"), |at| {
            Index::read(SUITE)?.unpack(&packages, &[], at)
        })?;
        let libraries = tree.join(LIBRARIES);
        Ok(Release {
            version: RCCL.to_string(),
            library: libraries.join("librccl.so.1"),
            libraries: Some(libraries),
        })
    }

    /// The loader to start programs with, and where it finds libraries.
    pub(crate) fn loader(&self) -> Option<(PathBuf, &Path)> {
        let libraries = self.libraries.as_deref()?;
        Some((libraries.join("ld-linux-x86-64.so.2"), libraries))
    }

    pub(crate) fn is_rccl(&self) -> bool {
        self.version == RCCL
    }

    /// Its kernels are not emulated: it can only be initialised.
    pub(crate) fn only_init(&self) -> bool {
        self.is_rccl() || self.version == "2.21.5"
    }

    /// It keeps errors of the network to itself, those of its own sockets too: its log has them, `ncclCommGetAsyncError`
    /// does not.
    pub(crate) fn mutes_errors(&self) -> bool {
        self.version.starts_with("2.27.")
    }

    /// It loses a plugin after the last communicator is destroyed (NVIDIA/nccl issue 1978), unless told otherwise.
    pub(crate) fn reloads(&self) -> bool {
        ["2.27.", "2.28.", "2.29."]
            .iter()
            .any(|line| self.version.starts_with(line))
    }
}
