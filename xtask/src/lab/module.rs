//! Builds a kernel module with Kbuild and the compiler of the tree.
//!
//! The sources are copied first, so that each kernel has an object folder of its own and the repository stays
//! clean. Kbuild's programs and gcc 14, which the kernels are built with, come from the tree and run inside it.
//! [`build_by_dkms`] has DKMS do it, from the folder that hosts without Rust get.

use super::tree::{Kernel, Tree};
use crate::cache;
use crate::debian::Index;
use crate::dkms;
use crate::freestanding::{self, Release};
use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{lock, root, work};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// What to build.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with the sources.
    #[arg(default_value = "kmod")]
    source: PathBuf,
    /// Kernel: `newest`, or a version such as 7.2 or 7.2.12; `kasan` or `kcsan`, which `lab debug-kernel` builds.
    #[arg(long, default_value = "newest")]
    kernel: String,
    /// Have DKMS build kmod/, from the folder of `cargo xtask dkms`.
    #[arg(long, conflicts_with_all = ["source", "make"])]
    dkms: bool,
    /// Further arguments for make, such as W=1 or V=1.
    #[arg(last = true)]
    make: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let source = if args.source.is_absolute() {
        args.source.clone()
    } else {
        root().join(&args.source)
    };
    let kernel = Kernel::get(&args.kernel)?;
    let built = if args.dkms {
        build_by_dkms(&Tree::get()?, &kernel)?
    } else {
        build(&Tree::get()?, &kernel, &source, Release::This, &args.make)?
    };
    for line in built.warnings.iter() {
        say!("{line}");
    }
    let names: Vec<String> = built
        .modules
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Ok(Verdict::new(
        true,
        format!("{} for {}", names.join(", "), kernel.release),
    ))
}

/// What a build left.
pub(crate) struct Built {
    pub(crate) modules: Vec<PathBuf>,
    /// What the compiler or modpost warned about.
    pub(crate) warnings: Vec<String>,
}

/// Whether Kbuild can do something with the folder.
pub(crate) fn is_source(folder: &Path) -> bool {
    ["Kbuild", "Makefile"]
        .iter()
        .any(|name| folder.join(name).exists())
}

/// Builds the module in `source` for `kernel`; if that is ours, of a release.
pub(crate) fn build(
    tree: &Tree,
    kernel: &Kernel,
    source: &Path,
    release: Release,
    make: &[String],
) -> Result<Built> {
    let sources = kernel.sources()?;
    // Another command may build it, too.
    let _alone = lock("lab-module")?;
    let name = source.file_name().context("the source folder has no name")?;
    let parent = match release {
        Release::This => "lab/module",
        Release::Next => "lab/module-next",
    };
    let folder = work().join(parent).join(&kernel.release).join(name);
    let mut kept = BTreeSet::new();
    mirror(source, &folder, &mut kept)?;
    if source == root().join("kmod") {
        let core = freestanding::current_object(release)?;
        copy(&core, &folder.join("usb4_core.o_shipped"), &mut kept)?;
    }
    if !is_source(&folder) {
        bail!("{} has neither a Kbuild file nor a Makefile", source.display());
    }
    drop_vanished(&folder, &kept)?;
    let what = format!("build {} for {}", name.to_string_lossy(), kernel.release);
    let mut task = Task::start(&what, None);
    let headers = format!("/usr/src/linux-headers-{}", kernel.release);
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut argv = vec![
        "make".to_string(),
        "-C".to_string(),
        headers,
        "M=/mnt".to_string(),
    ];
    argv.push(format!("-j{jobs}"));
    argv.extend_from_slice(make);
    argv.push("modules".to_string());
    let mut command = tree.inside(&[(&sources, "/usr/src"), (&folder, "/mnt")], argv);
    let log = folder.with_extension("log");
    let outcome = process::run(&mut command, LIMIT, &log, Some(&mut task))?.require(&what)?;
    task.done("built");
    let modules = order(&folder)?;
    if modules.is_empty() {
        bail!("{what}: no module came of it\n{}", outcome.tail(25));
    }
    Ok(Built {
        modules,
        warnings: warnings(&outcome.text),
    })
}

/// What a compiler, objtool or modpost has warned about.
fn warnings(text: &str) -> Vec<String> {
    let warns = |line: &&str| line.contains("warning:") || line.starts_with("WARNING");
    text.lines().filter(warns).map(str::to_string).collect()
}

/// Has DKMS build the module for `kernel` from the folder of `cargo xtask dkms`, without Rust.
pub(crate) fn build_by_dkms(tree: &Tree, kernel: &Kernel) -> Result<Built> {
    let folder = DkmsFolder::make(tree, kernel)?;
    folder.build()
}

/// What DKMS gets to see as /mnt.
pub(crate) struct DkmsFolder<'a> {
    tree: &'a Tree,
    kernel: &'a Kernel,
    folder: PathBuf,
}

impl<'a> DkmsFolder<'a> {
    /// Writes it anew.
    pub(crate) fn make(tree: &'a Tree, kernel: &'a Kernel) -> Result<Self> {
        let package = cache::entry("lab-dkms-trixie", |at| {
            Index::read("trixie")?.unpack(&["dkms".to_string()], &[], at)
        })?;
        let folder = work().join("lab/dkms").join(&kernel.release);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        for part in ["src", "dkms", "tmp"] {
            fs::create_dir_all(folder.join(part)).context("create a folder for DKMS")?;
        }
        let program = package.join("usr/sbin/dkms");
        fs::copy(&program, folder.join("program")).with_context(|| format!("copy {}", program.display()))?;
        let made = DkmsFolder { tree, kernel, folder };
        dkms::write(&made.sources())?;
        Ok(made)
    }

    /// Where the sources are.
    pub(crate) fn sources(&self) -> PathBuf {
        let name = format!("{}-{}", dkms::NAME, dkms::VERSION);
        self.folder.join("src").join(name)
    }

    /// Runs `dkms build`.
    pub(crate) fn build(&self) -> Result<Built> {
        let headers = self.kernel.sources()?;
        let release = &self.kernel.release;
        let what = format!("dkms build for {release}");
        let mut task = Task::start(&what, None);
        let directory = format!("/usr/src/linux-headers-{release}");
        let argv = [
            "env",
            "TMPDIR=/mnt/tmp",
            "bash",
            "/mnt/program",
            "build",
            "--dkmstree",
            "/mnt/dkms",
            "--sourcetree",
            "/mnt/src",
            "--kernelsourcedir",
            &directory,
            "-k",
            release,
            "-m",
            dkms::NAME,
            "-v",
            dkms::VERSION,
        ];
        let binds = [(headers.as_path(), "/usr/src"), (self.folder.as_path(), "/mnt")];
        let log = self.folder.join("dkms.log");
        let outcome = process::run(&mut self.tree.inside(&binds, argv), LIMIT, &log, Some(&mut task))?;
        let place = self.folder.join("dkms").join(dkms::NAME).join(dkms::VERSION);
        let said = |path: &Path| fs::read_to_string(path.join("make.log")).unwrap_or_default();
        if let Err(error) = outcome.require(&what) {
            bail!("{error:#}\n{}", said(&place.join("build")));
        }
        task.done("built");
        let made = place.join(release).join("x86_64");
        let modules = dkms::MODULES.map(|name| made.join("module").join(format!("{name}.ko")));
        if let Some(missing) = modules.iter().find(|module| !module.exists()) {
            bail!("{what}: there is no {}", missing.display());
        }
        Ok(Built {
            modules: modules.to_vec(),
            warnings: warnings(&said(&made.join("log"))),
        })
    }
}

/// The modules that Kbuild lists in `modules.order`.
fn order(folder: &Path) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string(folder.join("modules.order")).context("read modules.order")?;
    let names = text.lines().filter_map(|line| Path::new(line).file_stem());
    let paths = names.map(|stem| folder.join(stem).with_extension("ko"));
    Ok(paths.filter(|path| path.exists()).collect())
}

/// Whether make leaves that, in `kmod/` as well for whoever builds there by hand. In the lab's copy it would look newer
/// than what the lab has made of other sources.
fn is_made(name: &str, is_dir: bool) -> bool {
    const ENDS: [&str; 6] = [".o", ".ko", ".mod", ".mod.c", ".cmd", ".o.d"];
    const NAMES: [&str; 3] = ["modules.order", "Module.symvers", ".tmp_versions"];
    (is_dir && name == "built") || NAMES.contains(&name) || ENDS.iter().any(|end| name.ends_with(end))
}

/// Copies the sources in `from` that differ, so that make sees what changed. What make has left in either stays there.
fn mirror(from: &Path, to: &Path, kept: &mut BTreeSet<PathBuf>) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let path = entry.with_context(|| format!("read {}", from.display()))?.path();
        let name = path.file_name().unwrap_or_default();
        let target = to.join(name);
        if is_made(&name.to_string_lossy(), path.is_dir()) {
            continue;
        }
        if path.is_dir() {
            mirror(&path, &target, kept)?;
        } else {
            copy(&path, &target, kept)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, kept: &mut BTreeSet<PathBuf>) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    if fs::read(to).ok().as_ref() != Some(&new) {
        fs::write(to, new).with_context(|| format!("write {}", to.display()))?;
    }
    kept.insert(to.to_path_buf());
    Ok(())
}

/// Removes sources that are no longer there; what make made stays.
fn drop_vanished(folder: &Path, kept: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)
        .with_context(|| format!("read {}", folder.display()))?
        .flatten()
    {
        let path = entry.path();
        let source = path.extension().is_some_and(|ext| {
            ["c", "h", "S", "rs", "o_shipped"]
                .iter()
                .any(|known| ext == *known)
        });
        let made = path.to_string_lossy().ends_with(".mod.c");
        if path.is_dir() {
            drop_vanished(&path, kept)?;
        } else if source && !made && !kept.contains(&path) {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_make_has_left_beside_the_sources_does_not_replace_what_the_lab_made() {
        let base = std::env::temp_dir().join(format!("xtask-mirror-made-{}", std::process::id()));
        let (from, to) = (base.join("from"), base.join("to"));
        fs::create_dir_all(from.join("built")).unwrap();
        fs::create_dir_all(&to).unwrap();
        let made = [
            "a.o",
            ".a.o.cmd",
            "x.ko",
            "x.mod.c",
            "modules.order",
            "built/core.o_built",
        ];
        for name in made {
            fs::write(from.join(name), "by hand").unwrap();
        }
        for name in ["a.c", "core.o_shipped"] {
            fs::write(from.join(name), name).unwrap();
        }
        fs::write(to.join("a.o"), "the lab's").unwrap();
        mirror(&from, &to, &mut BTreeSet::new()).unwrap();
        assert_eq!(fs::read(to.join("a.o")).unwrap(), b"the lab's");
        assert!(made[1..].iter().all(|name| !to.join(name).exists()));
        assert!(to.join("a.c").exists() && to.join("core.o_shipped").exists());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_source_that_is_gone_goes_but_what_make_made_stays() {
        let base = std::env::temp_dir().join(format!("xtask-mirror-{}", std::process::id()));
        let (from, to) = (base.join("from"), base.join("to"));
        fs::create_dir_all(from.join("sub")).unwrap();
        for name in ["Kbuild", "a.c", "b.c", "sub/c.h"] {
            fs::write(from.join(name), name).unwrap();
        }
        let mut kept = BTreeSet::new();
        mirror(&from, &to, &mut kept).unwrap();
        for name in ["a.o", "x.mod.c"] {
            fs::write(to.join(name), name).unwrap();
        }
        fs::remove_file(from.join("b.c")).unwrap();
        kept.clear();
        mirror(&from, &to, &mut kept).unwrap();
        drop_vanished(&to, &kept).unwrap();
        let there = |name: &str| to.join(name).exists();
        assert!(there("a.c") && there("a.o") && there("x.mod.c") && there("sub/c.h") && there("Kbuild"));
        assert!(!there("b.c"));
        fs::remove_dir_all(&base).unwrap();
    }
}
