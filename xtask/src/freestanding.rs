//! `cargo xtask freestanding`: do wire, engine, ring-abi and device still fit the kernel?
//!
//! Compiles them with the oldest supported compiler (Debian trixie's rustc 1.85) and the kernel's flags to one
//! x86-64 object, as Kbuild will, and checks that nothing in it can hurt a kernel: no undefined symbol beyond a
//! short list (so no panic, no allocator, no 128-bit division), no vector or x87 instruction, no indirect
//! branch, no recursion, small stack frames. The same of what `kmod/build-core` makes, which users run who build from source.

use crate::cache;
use crate::debian::{self, Suite};
use crate::objcheck::{self, Facts};
use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{lock, root, work};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Which object.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Release {
    /// The one that is shipped.
    This,
    /// One that speaks the next version of the wire protocol and of the ring interface, and is the same else: what
    /// hosts and programs of different releases say to each other is tried with it.
    Next,
}

impl Release {
    /// Of the folder for what is compiled.
    fn name(self) -> &'static str {
        match self {
            Release::This => "freestanding",
            Release::Next => "freestanding-next",
        }
    }

    /// Flags it has beside those of the list.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Release::This => &[],
            Release::Next => &["--cfg=usb4_next_version"],
        }
    }

    fn folder(self) -> PathBuf {
        work().join(self.name())
    }
}

/// Stack budget of one function, from the design: kernel stacks are 16 KiB and we are deep in them.
const FRAME_MAX: u64 = 1024;

/// The compiler, its libraries and the sources of `core`. Run through the tree's own dynamic loader.
const COMPILER: Suite = Suite {
    name: "trixie",
    include: &["rustc", "rust-src"],
    keep: &["usr/bin/rustc", "usr/lib/x86_64-linux-gnu", "usr/src/*/library"],
};

/// What the object is made of, and with which flags.
const LIST: &str = include_str!("../../kmod/core.list");

/// Its flags: all that any kernel wants.
fn flags() -> impl Iterator<Item = &'static str> {
    entries("flag").filter_map(|words| words.last().copied())
}

/// The workspace crates in it, in order of dependence, with their folders.
fn crates() -> impl Iterator<Item = (&'static str, &'static str)> {
    entries("crate").filter_map(|words| match words.as_slice() {
        [name, folder] => Some((*name, folder.trim_start_matches("../"))),
        _ => None,
    })
}

/// Words of the lines that begin with `kind`, without that.
fn entries(kind: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    LIST.lines().filter_map(move |line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(kind)).then(|| words.collect())
    })
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// List every function with its stack frame.
    #[arg(long)]
    frames: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    debian::ensure(&["binutils"])?;
    let _alone = lock(Release::This.name())?;
    let compiler = Compiler::new(Release::This)?;
    let version = compiler.version()?;
    say!("{version}");
    let core = compiler.core(&version)?;
    compiler.check_the_gate(&core)?;
    let object = compiler.object(&core)?;
    let (facts, mut faults) = examine(&object)?;
    faults.extend(compiler.as_users_build(&facts)?);
    if args.frames {
        let mut frames: Vec<_> = facts.functions.iter().map(|(name, f)| (f.frame, name)).collect();
        frames.sort();
        frames.iter().for_each(|(frame, name)| say!("{frame:6}  {name}"));
    }
    faults.iter().for_each(|fault| say!("fault: {fault}"));
    let largest = facts.functions.values().map(|f| f.frame).max().unwrap_or(0);
    let seen = format!(
        "{} functions, {} bytes of code, {} of data, largest frame {largest} bytes, deepest path {}",
        facts.functions.len(),
        facts.text,
        facts.data,
        facts
            .deepest()
            .map_or("recursive".to_string(), |(depth, _)| format!("{depth} bytes")),
    );
    Ok(if faults.is_empty() {
        Verdict::new(true, seen)
    } else {
        Verdict::fail(format!("{} faults in {}; {seen}", faults.len(), object.display()))
    })
}

/// The object as it is given to others: checked.
pub(crate) fn checked_object() -> Result<PathBuf> {
    debian::ensure(&["binutils"])?;
    let object = current_object(Release::This)?;
    let (_, faults) = examine(&object)?;
    if !faults.is_empty() {
        bail!("{}: {}", object.display(), faults.join("; "));
    }
    Ok(object)
}

/// What says which compiler the object is of.
pub(crate) fn compiler() -> Result<String> {
    Compiler::new(Release::This)?.version()
}

/// The object, built if it is not of these sources. Not checked: that is what the command is for.
pub(crate) fn current_object(release: Release) -> Result<PathBuf> {
    let _alone = lock(release.name())?;
    let object = release.folder().join("usb4_core.o");
    let stamp = release.folder().join("usb4_core.sources");
    let mut files = vec![root().join("kmod/core.rs")];
    for (_, folder) in crates() {
        list(&root().join(folder).join("src"), &mut files)?;
    }
    files.sort();
    let texts = files
        .iter()
        .map(|path| fs::read(path).with_context(|| format!("read {}", path.display())));
    let texts: Vec<Vec<u8>> = texts.collect::<Result<_>>()?;
    let flags: Vec<&[u8]> = flags().map(str::as_bytes).collect();
    let key = cache::key(texts.iter().map(Vec::as_slice).chain(flags));
    if object.exists() && fs::read_to_string(&stamp).is_ok_and(|known| known == key) {
        return Ok(object);
    }
    let compiler = Compiler::new(release)?;
    let core = compiler.core(&compiler.version()?)?;
    compiler.object(&core)?;
    fs::write(&stamp, key).context("note what the object was made of")?;
    Ok(object)
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry
            .with_context(|| format!("read {}", folder.display()))?
            .path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn examine(object: &Path) -> Result<(Facts, Vec<String>)> {
    let bytes = fs::read(object).context("read the object")?;
    if !objcheck::is_kernel_object(&bytes) {
        bail!("{} is not a relocatable x86-64 object", object.display());
    }
    let facts = Facts::read(&bytes)?;
    let mut faults = symbols(&facts)?;
    faults.extend(frames(&facts));
    faults.extend(
        facts
            .relocations
            .iter()
            .map(|kind| format!("relocation type {kind}, which the module loader refuses")),
    );
    faults.extend(instructions(object)?);
    Ok((facts, faults))
}

fn symbols(facts: &Facts) -> Result<Vec<String>> {
    let path = root().join("ci/freestanding/undefined-symbols.txt");
    let list = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let allowed: Vec<&str> = list
        .lines()
        .map(str::trim)
        .filter(|s| !s.is_empty() && !s.starts_with('#'))
        .collect();
    let fits = |name: &str| {
        allowed.iter().any(|entry| {
            entry
                .strip_suffix('*')
                .map_or(*entry == name, |prefix| name.starts_with(prefix))
        })
    };
    let mut faults = vec![];
    for name in facts.undefined.iter().filter(|name| !fits(name)) {
        faults.push(format!(
            "undefined symbol {name}, used by {}",
            facts.who_refers(name).join(", ")
        ));
    }
    for (name, function) in &facts.functions {
        for panic in function
            .refers
            .iter()
            .filter(|callee| callee.starts_with("core::") && callee.contains("panic"))
        {
            if !name.starts_with("core::panicking") {
                faults.push(format!("{name} can panic: it refers to {panic}"));
            }
        }
    }
    Ok(faults)
}

fn frames(facts: &Facts) -> Vec<String> {
    let mut faults: Vec<String> = facts
        .functions
        .iter()
        .filter(|(_, function)| function.frame > FRAME_MAX)
        .map(|(name, function)| format!("{name} has a stack frame of {} bytes", function.frame))
        .collect();
    if facts.deepest().is_none() {
        faults.push("functions call each other in a circle, so the stack has no bound".to_string());
    }
    faults
}

fn instructions(object: &Path) -> Result<Vec<String>> {
    let mut command = Command::new("objdump");
    command.args(["--disassemble", "--no-show-raw-insn"]).arg(object);
    let log = object.with_extension("disassembly");
    let outcome = process::run(&mut command, Duration::from_secs(120), &log, None)?.require("objdump")?;
    let found = objcheck::forbidden_instructions(&outcome.text);
    Ok(found
        .into_iter()
        .map(|(function, code, why)| format!("{function}: {code}: {why}"))
        .collect())
}

struct Compiler {
    tree: PathBuf,
    release: Release,
}

impl Compiler {
    fn new(release: Release) -> Result<Self> {
        Ok(Self {
            tree: COMPILER.tree()?,
            release,
        })
    }

    /// Where it leaves what it makes.
    fn folder(&self) -> PathBuf {
        self.release.folder()
    }

    fn command(&self) -> Command {
        let libraries = self.tree.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(&libraries)
            .arg(self.tree.join("usr/bin/rustc"));
        command.env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTFLAGS");
        command
    }

    fn rustc(&self, what: &str, add: impl FnOnce(&mut Command)) -> Result<()> {
        let mut task = Task::start(format!("rustc {what}"), None);
        let mut command = self.command();
        add(command.args(flags()).args(self.release.flags()));
        let log = self.folder().join(format!("{what}.log"));
        process::run(&mut command, Duration::from_secs(600), &log, Some(&mut task))?.require(what)?;
        task.done("compiled");
        Ok(())
    }

    fn version(&self) -> Result<String> {
        let log = self.folder().join("version.log");
        let outcome = process::run(
            self.command().arg("--version"),
            Duration::from_secs(60),
            &log,
            None,
        )?;
        Ok(outcome.require("trixie's rustc")?.text.trim().to_string())
    }

    /// The sources of Rust's libraries.
    fn library(&self) -> Result<PathBuf> {
        fs::read_dir(self.tree.join("usr/src"))
            .context("find the sources of core")?
            .flatten()
            .map(|entry| entry.path().join("library"))
            .find(|path| path.join("core/src/lib.rs").exists())
            .context("rust-src has no library/core")
    }

    /// What `make USB4_FROM_SOURCE=1` makes of the same sources for a kernel that has all the options of the list, if that is
    /// not as good, or not the same, as the object with `facts`.
    fn as_users_build(&self, facts: &Facts) -> Result<Vec<String>> {
        let folder = self.folder().join("from-source");
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        // build-core wants the name of a program.
        let rustc = folder.join("rustc");
        let command = self.command();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        fs::write(&rustc, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")))
            .context("write a wrapper of rustc")?;
        fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755)).context("make it a program")?;
        let config = folder.join("auto.conf");
        let options = entries("flag").filter(|words| words.len() > 1);
        let options = options.filter_map(|words| words.first().map(|option| format!("{option}=y\n")));
        let options = options.collect::<String>() + "CONFIG_FUNCTION_PADDING_BYTES=16\n";
        fs::write(&config, options).context("write a kernel's configuration")?;
        let mut command = Command::new(root().join("kmod/build-core"));
        command.arg(&config).arg(&folder).env("RUSTC", &rustc);
        command.env("RUST_LIB_SRC", self.library()?);
        let mut task = Task::start("kmod/build-core", None);
        let log = self.folder().join("build-core.log");
        let limit = Duration::from_secs(600);
        process::run(&mut command, limit, &log, Some(&mut task))?.require("kmod/build-core")?;
        task.done("compiled");
        let (from_source, mut faults) = examine(&folder.join("usb4_core.o_built"))?;
        let names = |facts: &Facts| facts.functions.keys().cloned().collect::<Vec<_>>();
        if names(&from_source) != names(facts) || from_source.text != facts.text {
            faults.push("its functions are not those of the shipped object".to_string());
        }
        Ok(faults
            .into_iter()
            .map(|fault| format!("from kmod/build-core: {fault}"))
            .collect())
    }

    /// `core` and the stand-in for compiler_builtins, built once for this compiler and these flags.
    fn core(&self, version: &str) -> Result<PathBuf> {
        let stand_in = root().join("ci/freestanding/compiler_builtins.rs");
        let text = fs::read(&stand_in).context("read compiler_builtins.rs")?;
        let flags: Vec<&[u8]> = flags().map(str::as_bytes).collect();
        let key = cache::key([version.as_bytes(), &text].into_iter().chain(flags));
        cache::entry(&format!("kernel-core-{key}"), |at| {
            fs::create_dir_all(at).context("create the folder for core")?;
            let source = self.library()?.join("core/src/lib.rs");
            self.rustc("core", |command| {
                command.args([
                    "--edition=2021",
                    "--crate-type=rlib",
                    "--crate-name=core",
                    "--cap-lints=allow",
                ]);
                command.arg("--out-dir").arg(at).arg(source);
            })?;
            self.rustc("compiler_builtins", |command| {
                command.args([
                    "--edition=2021",
                    "--crate-type=rlib",
                    "--crate-name=compiler_builtins",
                ]);
                command
                    .arg("--extern")
                    .arg(format!("core={}", at.join("libcore.rlib").display()));
                command.arg("--out-dir").arg(at).arg(stand_in);
            })
        })
    }

    /// A gate that finds nothing may be blind: it must find each fault of a crate made of faults.
    fn check_the_gate(&self, core: &Path) -> Result<()> {
        let object = self.link(core, "bad", &root().join("ci/freestanding/bad.rs"), &[])?;
        let (_, faults) = examine(&object)?;
        let expected = [
            "undefined symbol usb4_core_may_panic",
            "indexes can panic",
            "undefined symbol __muldf3",
            "undefined symbol __udivti3",
            "takes_much_stack has a stack frame",
            "circle",
            "branches_indirectly: ",
        ];
        for fault in expected {
            if !faults.iter().any(|found| found.contains(fault)) {
                bail!("the gate does not notice \"{fault}\" in bad.rs; it found: {faults:#?}");
            }
        }
        Ok(())
    }

    fn object(&self, core: &Path) -> Result<PathBuf> {
        let out = self.folder();
        for (at, (name, folder)) in crates().enumerate() {
            self.rustc(name, |command| {
                self.common(command, core, crates().take(at).map(|(earlier, _)| earlier));
                command
                    .args(["--crate-type=rlib", "--crate-name", name, "--out-dir"])
                    .arg(&out);
                command.arg(root().join(folder).join("src/lib.rs"));
            })?;
        }
        self.link(core, "usb4_core", &root().join("kmod/core.rs"), &["usb4_kobj"])
    }

    /// Compiles `root` and all it uses to one object.
    fn link(&self, core: &Path, name: &str, root: &Path, externs: &[&str]) -> Result<PathBuf> {
        let object = self.folder().join(format!("{name}.o"));
        self.rustc(name, |command| {
            self.common(command, core, externs.iter().copied());
            command.args([
                "--crate-type=staticlib",
                "-Clto=fat",
                "-Ccodegen-units=1",
                "--crate-name",
                name,
            ]);
            command.arg(format!("--emit=obj={}", object.display())).arg(root);
        })?;
        Ok(object)
    }

    fn common<'a>(&self, command: &mut Command, core: &Path, externs: impl Iterator<Item = &'a str>) {
        command.arg("--edition=2024").arg("-L").arg(self.folder());
        for name in ["core", "compiler_builtins"] {
            command.arg("--extern").arg(format!(
                "{name}={}",
                core.join(format!("lib{name}.rlib")).display()
            ));
        }
        for name in externs {
            command.arg("--extern").arg(format!(
                "{name}={}",
                self.folder().join(format!("lib{name}.rlib")).display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_crates_that_are_there_and_flags_with_at_most_one_condition() {
        let crates: Vec<_> = crates().collect();
        assert_eq!(crates.len(), 5);
        for (name, folder) in crates {
            assert!(root().join(folder).join("src/lib.rs").exists(), "{name}");
        }
        for words in entries("flag") {
            match words.as_slice() {
                [flag] => assert!(flag.starts_with('-'), "{flag}"),
                [condition, flag] => assert!(condition.starts_with("CONFIG_") && flag.starts_with('-')),
                other => panic!("{other:?}"),
            }
        }
        assert!(flags().count() > 15);
        let lines = LIST
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            assert!(line.starts_with("crate ") || line.starts_with("flag "), "{line}");
        }
    }
}
