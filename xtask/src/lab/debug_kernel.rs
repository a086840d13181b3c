//! `cargo xtask lab debug-kernel`: kernels that look for mistakes in what runs in them, built from Debian's source.
//!
//! `ci/kernel/` has their configurations. Debian's compiler and what else Kbuild runs come from a tree of their own, as
//! the lab's programs do. What is unpacked and compiled stays in `target/xtask/lab/debug-kernel`, so that a build that
//! was broken off goes on; the kernel and its headers go into the cache.

use super::tree::{Kernel, Tree};
use crate::cache;
use crate::linux_source;
use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{lock, root, work};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// With one slow processor, which it has to share.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// What both have.
const GUEST: &str = "ci/kernel/guest.config";

/// What is mended in Debian's source, so that what it breaks does not hide anything else; each file says what that is.
const PATCHES: &[&str] = &[
    "ci/kernel/thunderbolt-response.patch",
    "ci/kernel/thunderbolt-unregister.patch",
];

/// Changes when what this file makes of the configurations does.
const VERSION: &str = "3";

/// What a kernel looks for. One excludes the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// KASAN, lockdep, kmemleak, checks of DMA mappings, of objects' lives, and of sleeping where one must not.
    Kasan,
    /// KCSAN: data races.
    Kcsan,
}

impl Kind {
    /// The kind that is named so as a kernel.
    pub(crate) fn named(name: &str) -> Option<Kind> {
        [Kind::Kasan, Kind::Kcsan]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Kasan => "kasan",
            Kind::Kcsan => "kcsan",
        }
    }

    /// Its configuration, and its name at the end of the release.
    fn config(self) -> Result<String> {
        let own = format!("ci/kernel/{}.config", self.name());
        let mut text = String::new();
        for path in [GUEST, &own] {
            text += &read(path)?;
        }
        text += &format!("CONFIG_LOCALVERSION=\"-{}\"\n", self.name());
        Ok(text)
    }

    fn entry_name(self) -> Result<String> {
        let key = cache::key([VERSION, &self.config()?, &patches()?].map(str::as_bytes));
        Ok(format!("lab-kernel-{}-{key}", self.name()))
    }

    /// The kernel's folder, built if it is not there.
    pub(super) fn folder(self) -> Result<PathBuf> {
        cache::entry(&self.entry_name()?, |at| build(self, at))
    }

    /// How much longer than on Debian's kernels everything may take: measured under emulation, KASAN with lockdep is
    /// 3 to 5 times as slow.
    pub(super) fn patience(self) -> u32 {
        6
    }

    /// Further parameters. With five levels of page tables, KASAN takes memory for wild if an interrupt comes while
    /// identify_cpu() works out which features the processor has.
    pub(super) fn parameters(self) -> &'static str {
        match self {
            Kind::Kasan => "no5lvl",
            Kind::Kcsan => "",
        }
    }

    /// Memory of a guest in place of `mib`: an eighth of it is KASAN's, and what was freed waits a while.
    pub(super) fn memory_mib(self, mib: u32) -> u32 {
        mib * 3
    }

    /// Processors of a guest in place of `cpus`: races want two.
    pub(super) fn cpus(self, cpus: u32) -> u32 {
        match self {
            Kind::Kasan => cpus,
            Kind::Kcsan => cpus.max(2),
        }
    }
}

/// A file of the project.
fn read(path: &str) -> Result<String> {
    let path = root().join(path);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// All of [`PATCHES`].
fn patches() -> Result<String> {
    PATCHES.iter().map(|path| read(path)).collect()
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which; both if none is named.
    kinds: Vec<Kind>,
    /// Build again, from the newest source.
    #[arg(long)]
    fresh: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let kinds = match args.kinds.as_slice() {
        [] => &[Kind::Kasan, Kind::Kcsan],
        some => some,
    };
    if args.fresh {
        let folder = work().join("lab/debug-kernel");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        for kind in kinds {
            cache::forget(&kind.entry_name()?)?;
        }
    }
    let mut releases = vec![];
    for kind in kinds {
        let kernel = Kernel::get(kind.name())?;
        say!("{}: {}", kernel.release, kernel.root.display());
        releases.push(kernel.release);
    }
    Ok(Verdict::new(true, releases.join(", ")))
}

/// Where the tree sees the folder of the builds, and that of the result.
const BUILDS: &str = "/mnt";
const RESULT: &str = "/usr/src";

fn build(kind: Kind, at: &Path) -> Result<()> {
    let tree = Tree::for_kernels()?;
    let builds = work().join("lab/debug-kernel");
    let objects = builds.join(kind.name());
    fs::create_dir_all(&objects).with_context(|| format!("create {}", objects.display()))?;
    fs::create_dir_all(at).with_context(|| format!("create {}", at.display()))?;
    let _alone = lock("lab-debug-kernel")?;
    let source = builds.join("source");
    if !source.exists() {
        let partial = builds.join("source.partial");
        linux_source::unpack(&partial, &[])?;
        fs::write(builds.join("patches"), patches()?).context("write the patches")?;
        let argv = ["patch", "-p1", "-d/mnt/source.partial", "-i/mnt/patches"];
        let mut command = tree.inside(&[(&builds, BUILDS)], argv);
        process::run(&mut command, LIMIT, &builds.join("patch.log"), None)?
            .require("patch the kernel's source")?;
        fs::rename(&partial, &source).context("move the kernel's source into place")?;
    }
    let wanted = kind.config()?;
    fs::write(objects.join("wanted"), &wanted).context("write the wanted configuration")?;
    let make = |what: &str, targets: &[&str]| {
        let argv = [
            "make".to_string(),
            format!("-C{BUILDS}/source"),
            format!("O={BUILDS}/{}", kind.name()),
            format!("KCONFIG_ALLCONFIG={BUILDS}/{}/wanted", kind.name()),
            format!("INSTALL_MOD_PATH={RESULT}/usr"),
            "KBUILD_BUILD_USER=lab".to_string(),
            "KBUILD_BUILD_HOST=lab".to_string(),
        ];
        let argv = argv
            .into_iter()
            .chain(targets.iter().map(|word| word.to_string()));
        let mut command = tree.inside(
            &[(&builds, BUILDS), (at, RESULT)],
            argv.map(OsString::from).collect::<Vec<_>>(),
        );
        let what = format!("{what} kernel {}", kind.name());
        let mut task = Task::start(&what, None);
        let log = builds.join(format!("{}.log", kind.name()));
        let outcome = process::run(&mut command, LIMIT, &log, Some(&mut task))?.require(&what)?;
        task.done("done");
        Ok::<_, anyhow::Error>(outcome.text)
    };
    make("configure", &["allnoconfig"])?;
    let config = objects.join(".config");
    let text = fs::read_to_string(&config).with_context(|| format!("read {}", config.display()))?;
    let missing = missing(&wanted, &text);
    if !missing.is_empty() {
        bail!(
            "the kernel does not have what is wanted of it: {}",
            missing.join(", ")
        );
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make("build", &[&format!("-j{jobs}"), "bzImage", "modules"])?;
    make("install", &["modules_install"])?;
    let release = fs::read_to_string(objects.join("include/config/kernel.release"))
        .context("read the kernel's release")?;
    let release = release.trim();
    let headers = format!("usr/src/linux-headers-{release}");
    // What packages with headers are made with.
    let script = format!("$(srctree)/scripts/package/install-extmod-build {RESULT}/{headers}");
    make(
        "install headers of",
        &["run-command", &format!("KBUILD_RUN_COMMAND={script}")],
    )?;
    let modules = at.join("usr/lib/modules").join(release);
    for link in ["build", "source"] {
        let _ = fs::remove_file(modules.join(link));
    }
    // Not vmlinux, which QEMU would start by its PVH entry: that calls memcmp() before there is a shadow for KASAN to look at.
    let image = objects.join("arch/x86/boot/bzImage");
    fs::copy(image, modules.join("vmlinuz")).context("copy the kernel")?;
    Ok(())
}

/// The lines of a fragment that a configuration does not fulfil.
fn missing(wanted: &str, config: &str) -> Vec<String> {
    let given = |option: &str| {
        let mut lines = config.lines().filter_map(|line| line.split_once('='));
        lines
            .find_map(|(name, value)| (name == option).then_some(value))
            .unwrap_or("n")
    };
    let lines = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    lines
        .filter(|line| {
            line.split_once('=')
                .is_some_and(|(name, value)| given(name) != value)
        })
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_fell_out_is_missed() {
        let config = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\nCONFIG_D=\"-x\"\n";
        let wanted = "# why\nCONFIG_A=y\nCONFIG_B=n\nCONFIG_C=y\nCONFIG_D=\"-x\"\nCONFIG_E=y\n";
        assert_eq!(missing(wanted, config), ["CONFIG_C=y", "CONFIG_E=y"]);
    }

    #[test]
    fn every_kind_has_a_configuration_of_its_own() {
        for kind in [Kind::Kasan, Kind::Kcsan] {
            assert_eq!(Kind::named(kind.name()), Some(kind));
            let config = kind.config().unwrap();
            assert!(config.contains(&format!("\nCONFIG_{}=y\n", kind.name().to_uppercase())));
        }
        assert_eq!(Kind::named("7.3"), None);
    }
}
