//! Debian trixie, unpacked into the cache: the programs (QEMU, compiler, user land of the guests) in one tree,
//! each kernel with its headers in another.
//!
//! Nothing of it is installed on this machine. What runs on the host runs through the tree's own dynamic loader,
//! or chrooted into the tree where it starts other programs by absolute path.

use super::bzimage;
use super::debug_kernel::Kind;
use super::pool;
use crate::cache;
use crate::debian::{Index, Packages};
use crate::ui::Verdict;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SUITE: &str = "trixie";

/// QEMU and its firmware; what guests run, of which some programs of verbs come by 9p (`suites/chroot.rs`); what Kbuild runs.
const PROGRAMS: &[&str] = &[
    "qemu-system-x86",
    "seabios",
    "base-files",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "ibverbs-providers",
    "ibverbs-utils",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libc-bin",
    "libfabric-bin",
    "pciutils",
    "perftest",
    "procps",
    "python3-pyverbs",
    "qperf",
    "rdma-core",
    "rdmacm-utils",
    "strace",
    "ucx-utils",
    "util-linux",
    "binutils",
    "findutils",
    "gcc",
    "grep",
    "gzip",
    "make",
    "mawk",
    "pahole",
    "sed",
    "tar",
    "xz-utils",
];

/// What a kernel is built with.
const FOR_KERNELS: &[&str] = &[
    "base-files",
    "bash",
    "bc",
    "binutils",
    "bison",
    "coreutils",
    "cpio",
    "dash",
    "diffutils",
    "findutils",
    "flex",
    "gcc",
    "grep",
    "gzip",
    "kmod",
    "libelf-dev",
    "make",
    "mawk",
    "patch",
    "perl-base",
    "sed",
    "tar",
];

const NO_DOCUMENTATION: &[&str] = &[
    "path-exclude=/usr/share/doc/*",
    // Debian has rdma-core's tests there.
    "path-include=/usr/share/doc/rdma-core/tests/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/lib/udev/hwdb.d/*",
    // What UCX needs for GPUs of AMD: 250 MB, in modules that do without.
    "path-exclude=/usr/lib/x86_64-linux-gnu/libLLVM*",
    "path-exclude=/usr/lib/x86_64-linux-gnu/libamd*",
    "path-exclude=/usr/lib/x86_64-linux-gnu/libhsa*",
    "path-exclude=/usr/lib/x86_64-linux-gnu/libz3*",
    "path-exclude=/usr/lib/x86_64-linux-gnu/ucx/*rocm*",
];

/// Kernel packages depend on half a system (boot loader hooks, initramfs tools); only this is unpacked.
const KERNEL_ONLY: &[&str] = &[
    "path-exclude=/*",
    "path-include=/boot/vmlinuz*",
    "path-include=/usr/lib/modules/*",
    "path-include=/usr/lib/linux-kbuild*",
    "path-include=/usr/src/*",
];

/// Changes when what [`arrange`] makes of a kernel does.
const ARRANGED: &str = "2";

/// The oldest kernel that is supported.
const OLDEST: (u32, u32) = (6, 16);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kernel: `newest`, or a version such as 7.2 or 7.2.12.
    #[arg(long, default_value = "newest")]
    kernel: String,
    /// Unpack again, so that newer packages come in.
    #[arg(long)]
    fresh: bool,
    /// List the kernels there are, and whether modules can be built for them.
    #[arg(long)]
    kernels: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    if args.kernels {
        let all = available()?;
        for kernel in &all {
            let headers = if kernel.headers { "with" } else { "without" };
            say!("{}, {headers} headers", kernel.version);
        }
        return Ok(Verdict::new(true, format!("{} kernels", all.len())));
    }
    if args.fresh {
        cache::forget(&Tree::name(PROGRAMS))?;
        cache::forget(&kernel_name("newest"))?;
    }
    let tree = Tree::get()?;
    let kernel = Kernel::get(&args.kernel)?;
    say!("programs: {}", tree.root.display());
    say!("kernel: {}", kernel.root.display());
    let seen = format!("{}, kernel {}", tree.qemu_version()?, kernel.release);
    Ok(Verdict::new(true, seen))
}

/// The tree of programs.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
}

impl Tree {
    fn name(programs: &[&str]) -> String {
        let parts = programs.iter().chain(NO_DOCUMENTATION);
        format!("lab-{SUITE}-{}", cache::key(parts.map(|part| part.as_bytes())))
    }

    pub(crate) fn get() -> Result<Tree> {
        Tree::of(PROGRAMS)
    }

    /// What kernels are built with, which is apart from what they run.
    pub(crate) fn for_kernels() -> Result<Tree> {
        Tree::of(FOR_KERNELS)
    }

    fn of(programs: &[&str]) -> Result<Tree> {
        let root = cache::entry(&Tree::name(programs), |at| {
            let packages = Packages {
                suite: SUITE,
                backports: true,
                include: programs,
                filter: NO_DOCUMENTATION,
            };
            packages.extract(at)?;
            fs::create_dir_all(at.join("mnt")).context("create a mount point")?;
            // What update-alternatives would have made.
            symlink("mawk", at.join("usr/bin/awk")).context("link awk")
        })?;
        Ok(Tree { root })
    }

    pub(crate) fn libraries(&self) -> PathBuf {
        self.root.join("usr/lib/x86_64-linux-gnu")
    }

    /// A program of the tree (`usr/bin/NAME`), run as it is on this machine.
    pub(crate) fn program(&self, path: &str) -> Command {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.program_as(name, path)
    }

    /// A program that is several, by the name it is called.
    pub(crate) fn program_as(&self, name: &str, path: &str) -> Command {
        let mut command = Command::new(self.libraries().join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(self.libraries());
        command.args(["--argv0", name]).arg(self.root.join(path));
        command
    }

    /// A command inside the tree, with folders of this machine bound over some of its own. The mounts are in a
    /// namespace that ends with the command.
    pub(crate) fn inside(
        &self,
        binds: &[(&Path, &str)],
        argv: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Command {
        const SCRIPT: &str = r#"
            set -e
            tree=$1; shift
            mount --rbind /dev "$tree/dev"
            mount --rbind /proc "$tree/proc"
            while [ "$1" != -- ]; do mount --bind "$1" "$tree$2"; shift 2; done
            shift
            exec chroot "$tree" "$@""#;
        let mut command = Command::new("unshare");
        command.arg("--mount");
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["sh", "-c", SCRIPT, "sh"]).arg(&self.root);
        for (from, to) in binds {
            command.arg(from).arg(to);
        }
        command.arg("--").args(argv);
        command.env_clear();
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C.UTF-8");
        command
    }

    fn qemu_version(&self) -> Result<String> {
        let mut command = self.program("usr/bin/qemu-system-x86_64");
        let output = command
            .arg("--version")
            .output()
            .context("run QEMU of the tree")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().next().unwrap_or_default();
        if !output.status.success() || line.is_empty() {
            bail!(
                "QEMU of the tree does not run: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(line.replace("QEMU emulator version", "QEMU"))
    }
}

/// A kernel of Debian's, with its modules and, where Debian still has them, its headers; or one built from Debian's source
/// that looks for mistakes.
pub(crate) struct Kernel {
    /// What `uname -r` says in it: `7.3.4+deb13-amd64`.
    pub(crate) release: String,
    pub(crate) root: PathBuf,
}

impl Kernel {
    /// `newest`, or the newest whose version begins with `which`; `kasan`, `kcsan`.
    pub(crate) fn get(which: &str) -> Result<Kernel> {
        if let Some(kind) = Kind::named(which) {
            return Kernel::at(kind.folder()?);
        }
        if which == "newest" {
            return Kernel::unpacked(which, &["linux-image-amd64", "linux-headers-amd64"]);
        }
        let fits = |version: &str| version == which || version.starts_with(&format!("{which}."));
        let all = available()?;
        let Some(found) = all.iter().rev().find(|kernel| fits(&kernel.version)) else {
            let known: Vec<&str> = all.iter().map(|kernel| kernel.version.as_str()).collect();
            bail!("no kernel {which}; there are {}", known.join(", "));
        };
        let mut packages = vec![found.image()];
        if !pool::files(&found.version).is_empty() {
            packages.extend(found.binary.then(|| found.image().replacen("image", "binary", 1)));
            return Kernel::collected(&found.version, &packages);
        }
        packages.extend(found.headers.then(|| found.headers_package()));
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        Kernel::unpacked(&found.version, &packages)
    }

    /// A kernel that is no longer listed whole.
    fn collected(version: &str, packages: &[String]) -> Result<Kernel> {
        let root = cache::entry(&kernel_name(version), |at| {
            Index::read(&format!("{SUITE}-backports"))?.unpack(packages, &pool::files(version), at)?;
            arrange(at)
        })?;
        Kernel::at(root)
    }

    fn unpacked(which: &str, packages: &[&str]) -> Result<Kernel> {
        let root = cache::entry(&kernel_name(which), |at| {
            let packages = Packages {
                suite: SUITE,
                backports: true,
                include: packages,
                filter: KERNEL_ONLY,
            };
            packages.extract(at)?;
            arrange(at)
        })?;
        Kernel::at(root)
    }

    fn at(root: PathBuf) -> Result<Kernel> {
        let release = release(&root)?;
        Ok(Kernel { release, root })
    }

    /// `lib/modules/RELEASE`.
    pub(crate) fn modules(&self) -> PathBuf {
        self.root.join("usr/lib/modules").join(&self.release)
    }

    /// The kernel itself, as QEMU is to start it: unpacked, which saves time, if there is such a one.
    pub(crate) fn image(&self) -> PathBuf {
        let unpacked = self.modules().join("vmlinux");
        if unpacked.exists() {
            return unpacked;
        }
        self.modules().join("vmlinuz")
    }

    /// The folder to be mounted at `/usr/src`, where it has headers.
    pub(crate) fn sources(&self) -> Result<PathBuf> {
        let sources = self.root.join("usr/src");
        if !sources.join(format!("linux-headers-{}", self.release)).exists() {
            bail!("Debian no longer has the headers of kernel {}", self.release);
        }
        Ok(sources)
    }
}

fn kernel_name(which: &str) -> String {
    let parts = [which, ARRANGED].into_iter().chain(KERNEL_ONLY.iter().copied());
    let sums = pool::files(which).into_iter().map(|(_, sum)| sum);
    let key = cache::key(parts.chain(sums).map(str::as_bytes));
    format!("lab-kernel-{which}-{key}")
}

fn release(root: &Path) -> Result<String> {
    let entries = fs::read_dir(root.join("usr/lib/modules")).context("find the kernel's modules")?;
    let mut names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(only),
        _ => bail!("{} has not exactly one kernel", root.display()),
    }
}

/// Brings the image to the modules, where newer packages have it, unpacks it, and brings Kbuild's programs to the headers, so that
/// `usr/src` is all that building a module needs.
fn arrange(root: &Path) -> Result<()> {
    let release = release(root)?;
    let old = root.join("boot").join(format!("vmlinuz-{release}"));
    let new = root.join("usr/lib/modules").join(&release).join("vmlinuz");
    if !new.exists() {
        fs::rename(&old, &new).with_context(|| format!("the packages have no {}", old.display()))?;
    }
    bzimage::unpack(&new, &root.join("usr/lib/modules").join(&release).join("vmlinux"))?;
    let sources = root.join("usr/src");
    if !sources.exists() {
        return fs::create_dir_all(sources).context("create usr/src");
    }
    let all = |folder: &Path| -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
        Ok(entries.flatten().map(|entry| entry.path()).collect())
    };
    let named = |path: &PathBuf, prefix: &str| {
        path.file_name()
            .and_then(OsStr::to_str)
            .is_some_and(|name| name.starts_with(prefix))
    };
    let Some(kbuild) = all(&root.join("usr/lib"))?
        .into_iter()
        .find(|path| named(path, "linux-kbuild-"))
    else {
        return Ok(());
    };
    let name = kbuild.file_name().unwrap_or_default().to_owned();
    let place = sources.join(&name);
    // Where packages have a link to what moves here.
    let _ = fs::remove_file(&place);
    fs::rename(&kbuild, &place).context("move Kbuild's programs")?;
    for headers in all(&sources)?.iter().filter(|path| named(path, "linux-headers-")) {
        for link in ["scripts", "tools"] {
            let at = headers.join(link);
            if at.is_symlink() {
                fs::remove_file(&at).context("replace a link")?;
                symlink(Path::new("..").join(&name).join(link), &at).context("replace a link")?;
            }
        }
    }
    Ok(())
}

/// A kernel that the suite's backports have.
#[derive(Debug, PartialEq)]
pub(crate) struct Available {
    pub(crate) version: String,
    pub(crate) headers: bool,
    /// Its image is a package of its own, apart from signatures and hooks.
    binary: bool,
    /// What comes between the version and the architecture: `+deb13`.
    revision: String,
}

impl Available {
    #[cfg(test)]
    pub(crate) fn named(version: &str) -> Available {
        Available {
            version: version.to_string(),
            headers: false,
            binary: false,
            revision: String::new(),
        }
    }

    fn image(&self) -> String {
        format!("linux-image-{}{}-amd64", self.version, self.revision)
    }

    fn headers_package(&self) -> String {
        format!("linux-headers-{}{}-amd64", self.version, self.revision)
    }
}

/// The supported kernels in backports, oldest first.
pub(crate) fn available() -> Result<Vec<Available>> {
    let pattern = "^linux-(image|binary|headers)-[0-9.]+[+]deb[0-9]+-amd64$";
    Ok(kernels(
        &Index::read(&format!("{SUITE}-backports"))?.names(pattern)?,
    ))
}

fn kernels(packages: &[String]) -> Vec<Available> {
    let mut found: Vec<(Vec<u32>, Available)> = packages
        .iter()
        .filter_map(|name| {
            let name = name.strip_prefix("linux-image-")?.strip_suffix("-amd64")?;
            let (version, revision) = name.split_at(name.find('+')?);
            if revision.contains('-') {
                // A flavour: rt, cloud.
                return None;
            }
            let numbers: Vec<u32> = version
                .split('.')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .ok()?;
            let has = |part: &str| packages.contains(&format!("linux-{part}-{name}-amd64"));
            let kernel = Available {
                version: version.to_string(),
                headers: has("headers") || !pool::files(version).is_empty(),
                binary: has("binary"),
                revision: revision.to_string(),
            };
            (numbers.as_slice() >= [OLDEST.0, OLDEST.1].as_slice()).then_some((numbers, kernel))
        })
        .collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found.into_iter().map(|(_, kernel)| kernel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_sorted_by_number_and_old_ones_are_left_out() {
        let names = [
            "linux-image-7.0.9+deb13-amd64",
            "linux-image-7.0.10+deb13-amd64",
            "linux-image-6.12.3+deb13-amd64",
            "linux-image-6.16.12+deb13-amd64",
            "linux-image-7.0.9+deb13-rt-amd64",
            "linux-headers-7.0.10+deb13-amd64",
            "linux-image-amd64",
        ];
        let found = kernels(&names.map(str::to_string));
        let versions: Vec<_> = found.iter().map(|k| (k.version.as_str(), k.headers)).collect();
        assert_eq!(versions, [("6.16.12", true), ("7.0.9", false), ("7.0.10", true)]);
        assert_eq!(found[0].image(), "linux-image-6.16.12+deb13-amd64");
    }
}
