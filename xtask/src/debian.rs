//! Debian packages: installed when missing, or unpacked from another suite into the cache.

use crate::cache;
use crate::process;
use crate::ui::Task;
use crate::workspace::work;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// Installs those of `packages` that are missing. Needs root for that, and says what to do without it.
pub(crate) fn ensure(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("missing Debian packages; install them with: sudo apt-get install {list}");
    }
    let mut task = Task::start(format!("apt-get install {list}"), None);
    apt(&["update"], &mut task)?;
    let mut args = vec!["install", "--yes", "--no-install-recommends"];
    args.extend(&missing);
    apt(&args, &mut task)?;
    task.done("installed");
    Ok(())
}

fn apt(args: &[&str], task: &mut Task) -> Result<()> {
    let mut command = Command::new("apt-get");
    command
        .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let log = work()
        .join("apt")
        .join(format!("{}.log", args.first().unwrap_or(&"apt")));
    process::run(&mut command, LIMIT, &log, Some(task))?.require("apt-get")?;
    Ok(())
}

fn installed(package: &str) -> bool {
    query("dpkg-query", &["-W", "-f", "${db:Status-Abbrev}", package])
        .is_some_and(|status| status.starts_with("ii"))
}

/// Packages of another suite, with what they depend on, unpacked into the cache without running them.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) include: &'static [&'static str],
    /// What of it is kept, as paths in the tree, in which a part `*` stands for the one folder there; the rest
    /// (hundreds of MB) is removed.
    pub(crate) keep: &'static [&'static str],
}

impl Suite {
    /// The unpacked tree.
    pub(crate) fn tree(&self) -> Result<PathBuf> {
        let parts = [self.name]
            .into_iter()
            .chain(self.include.iter().copied())
            .chain(self.keep.iter().copied());
        let key = cache::key(parts.map(str::as_bytes));
        cache::entry(&format!("{}-{}-{key}", self.name, self.include.join("-")), |at| {
            self.unpack(at)
        })
    }

    fn unpack(&self, at: &Path) -> Result<()> {
        let whole = at.with_extension("whole");
        let packages = Packages {
            suite: self.name,
            backports: false,
            include: self.include,
            filter: &[],
        };
        packages.extract(&whole)?;
        for path in self.keep {
            let path = resolve(&whole, path)?;
            let target = at.join(&path);
            std::fs::create_dir_all(target.parent().unwrap_or(at)).context("create a folder of the tree")?;
            std::fs::rename(whole.join(&path), target)
                .with_context(|| format!("the packages have no {}", path.display()))?;
        }
        std::fs::remove_dir_all(&whole).context("remove what is not needed")?;
        Ok(())
    }
}

/// Packages to be unpacked with all they depend on.
pub(crate) struct Packages<'a> {
    pub(crate) suite: &'a str,
    /// Take what the suite's backports have from there.
    pub(crate) backports: bool,
    pub(crate) include: &'a [&'a str],
    /// dpkg's `path-exclude=` and `path-include=` options, of which the last that matches a path decides whether it is
    /// unpacked.
    pub(crate) filter: &'a [&'a str],
}

impl Packages<'_> {
    /// Unpacks them to `at`, replacing what is there. No script of theirs is run.
    pub(crate) fn extract(&self, at: &Path) -> Result<()> {
        ensure(&["mmdebstrap", "debian-archive-keyring"])?;
        let mirror = mirror()?;
        let suite = self.suite;
        let what = match self.include {
            [first, .., last] if self.include.len() > 3 => format!("{first} ... {last}"),
            few => few.join(", "),
        };
        let mut task = Task::start(format!("unpack {what} of Debian {suite}"), None);
        let mut command = Command::new("mmdebstrap");
        command
            .arg("--variant=extract")
            .arg(format!("--include={}", self.include.join(",")));
        for option in network_options() {
            command.arg(format!("--aptopt={option}"));
        }
        for option in self.filter {
            command.arg(format!("--dpkgopt={option}"));
        }
        if self.backports {
            // Otherwise apt takes from backports only what is nowhere else.
            command.arg(format!("--aptopt=APT::Default-Release \"{suite}-backports\""));
        }
        command
            .arg(suite)
            .arg(at)
            .arg(format!("deb {mirror} {suite} main"));
        if self.backports {
            command.arg(format!("deb {mirror} {suite}-backports main"));
        }
        if at.exists() {
            std::fs::remove_dir_all(at).context("remove an earlier attempt")?;
        }
        let log = work().join("apt").join(format!("{suite}.log"));
        process::run(&mut command, LIMIT, &log, Some(&mut task))?.require("mmdebstrap")?;
        task.done("unpacked");
        Ok(())
    }
}

/// `path` with `*` replaced by the only folder at that place of `tree`.
fn resolve(tree: &Path, path: &str) -> Result<PathBuf> {
    let mut found = PathBuf::new();
    for part in path.split('/') {
        if part == "*" {
            let entries = std::fs::read_dir(tree.join(&found)).with_context(|| format!("look for {path}"))?;
            let mut folders = entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            match (folders.next(), folders.next()) {
                (Some(only), None) => found.push(only.file_name()),
                _ => bail!("{path}: not exactly one folder there"),
            }
        } else {
            found.push(part);
        }
    }
    Ok(found)
}

/// The list of a suite's packages, kept apart from this machine's own apt.
pub(crate) struct Index {
    folder: PathBuf,
    options: Vec<String>,
}

impl Index {
    /// Reads it anew.
    pub(crate) fn read(suite: &str) -> Result<Index> {
        Self::read_to(work().join("apt").join(suite), suite, &["deb"])
    }

    /// As [`Index::read`], with the list of source packages.
    pub(crate) fn read_with_sources(suite: &str) -> Result<Index> {
        let folder = work().join("apt").join(format!("{suite}-sources"));
        Self::read_to(folder, suite, &["deb", "deb-src"])
    }

    fn read_to(folder: PathBuf, suite: &str, kinds: &[&str]) -> Result<Index> {
        ensure(&["debian-archive-keyring"])?;
        for part in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(folder.join(part)).context("create folders for apt")?;
        }
        let source = folder.join("sources.list");
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let mirror = mirror()?;
        let lines: String = kinds
            .iter()
            .map(|kind| format!("{kind} [signed-by={keyring}] {mirror} {suite} main\n"))
            .collect();
        std::fs::write(&source, lines).with_context(|| format!("write {}", source.display()))?;
        let options = vec![
            format!("Dir::Etc::SourceList={}", source.display()),
            "Dir::Etc::SourceParts=/dev/null".to_string(),
            format!("Dir::State::Lists={}", folder.join("lists").display()),
            "Dir::State::Status=/dev/null".to_string(),
            format!("Dir::Cache={}", folder.join("cache").display()),
        ];
        let index = Index { folder, options };
        let mut task = Task::start(format!("read the list of packages in {suite}"), None);
        index.run(index.command("apt-get", &["-q", "update"]), &mut task)?;
        task.done("read");
        Ok(index)
    }

    /// The names of packages that match `pattern` (an extended regular expression).
    pub(crate) fn names(&self, pattern: &str) -> Result<Vec<String>> {
        let mut task = Task::start("search packages", None);
        let text = self.run(
            self.command("apt-cache", &["search", "--names-only", pattern]),
            &mut task,
        )?;
        task.done("searched");
        let names = text.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.map(str::to_string).collect())
    }

    /// The version of a package.
    pub(crate) fn version(&self, name: &str) -> Result<String> {
        let mut task = Task::start(format!("look for {name}"), None);
        let text = self.run(self.command("apt-cache", &["madison", name]), &mut task)?;
        let version = text.lines().find_map(|line| line.split('|').nth(1));
        let version = version
            .with_context(|| format!("there is no package {name}"))?
            .trim();
        task.done(version);
        Ok(version.to_string())
    }

    /// Unpacks the source of package `name` as its authors have published it, without Debian's changes, to `to`. The index
    /// must have been read with sources.
    pub(crate) fn upstream(&self, name: &str, to: &Path) -> Result<()> {
        let downloads = to.with_extension("orig");
        if downloads.exists() {
            std::fs::remove_dir_all(&downloads).context("remove an earlier attempt")?;
        }
        std::fs::create_dir_all(&downloads).context("create a folder for the source")?;
        let mut task = Task::start(format!("download the source of {name}"), None);
        let mut command = self.command("apt-get", &["-q", "source", "--tar-only", name]);
        command.current_dir(&downloads);
        self.run(command, &mut task)?;
        let entries = std::fs::read_dir(&downloads).context("read what was downloaded")?;
        let archive = entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().contains(".orig.tar."))
            .context("the source package has no .orig.tar")?;
        std::fs::create_dir_all(to).context("create the folder to unpack to")?;
        let mut command = Command::new("tar");
        command
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(to)
            .arg("--strip-components=1");
        self.run(command, &mut task)?;
        std::fs::remove_dir_all(&downloads).context("remove what was downloaded")?;
        task.done("unpacked");
        Ok(())
    }

    /// Unpacks packages, and nothing they depend on, into `to`: those named, and files of the mirror that are no longer in
    /// its list, each with its SHA-256.
    pub(crate) fn unpack(&self, names: &[String], files: &[(String, &str)], to: &Path) -> Result<()> {
        let downloads = to.with_extension("debs");
        if downloads.exists() {
            std::fs::remove_dir_all(&downloads).context("remove an earlier attempt")?;
        }
        std::fs::create_dir_all(&downloads).context("create a folder for packages")?;
        let mut task = Task::start(format!("download {} packages", names.len() + files.len()), None);
        let names: Vec<&str> = ["-q", "download"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .collect();
        let mut command = self.command("apt-get", &names);
        command.current_dir(&downloads);
        self.run(command, &mut task)?;
        for (path, sum) in files {
            let mut command = self.command("/usr/lib/apt/apt-helper", &["download-file"]);
            let name = path.rsplit('/').next().unwrap_or(path);
            command.arg(format!("{}/{path}", mirror()?.trim_end_matches('/')));
            command.arg(downloads.join(name)).arg(format!("SHA256:{sum}"));
            self.run(command, &mut task)?;
        }
        std::fs::create_dir_all(to).context("create the folder to unpack to")?;
        for package in std::fs::read_dir(&downloads)
            .context("read what was downloaded")?
            .flatten()
        {
            let mut command = Command::new("dpkg-deb");
            command.arg("-x").arg(package.path()).arg(to);
            self.run(command, &mut task)?;
        }
        std::fs::remove_dir_all(&downloads).context("remove what was downloaded")?;
        task.done("unpacked");
        Ok(())
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command.args(args);
        command
    }

    fn run(&self, mut command: Command, task: &mut Task) -> Result<String> {
        let what = command.get_program().to_string_lossy().into_owned();
        let log = self.folder.join("last.log");
        Ok(process::run(&mut command, LIMIT, &log, Some(task))?
            .require(&what)?
            .text)
    }
}

/// The Debian mirror this machine's apt is set up with.
fn mirror() -> Result<String> {
    const FORMAT: &str = "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)";
    let find = || {
        let targets = query("apt-get", &["indextargets", "--format", FORMAT])?;
        targets
            .lines()
            .find_map(|line| line.strip_prefix("Debian|Debian|main|").map(str::to_string))
    };
    if let Some(uri) = find() {
        return Ok(uri);
    }
    let mut task = Task::start("apt-get update", None);
    apt(&["update"], &mut task)?;
    task.done("lists read");
    find().context("apt on this machine is set up with no Debian mirror")
}

/// Proxy and certificate settings of this machine's apt, for the apt that mmdebstrap runs.
fn network_options() -> Vec<String> {
    let all = query("apt-config", &["dump", "Acquire"]).unwrap_or_default();
    all.lines()
        .filter(|line| line.contains("::Proxy") || line.contains("::Ca"))
        .map(str::to_string)
        .collect()
}

fn query(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    out.status
        .success()
        .then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}
