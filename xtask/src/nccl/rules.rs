//! `cargo xtask nccl --rules`: the rules R1 to R32 of a network plugin, tested in C as NCCL would meet them.
//!
//! The driver is `nccl-net-plugin/conformance/`. Before its verdict on our plugin counts it has to notice each fault of
//! a toy plugin that breaks one rule at a time.

use crate::debian;
use crate::process::{self, Outcome};
use crate::ui::{Task, Verdict};
use crate::workspace::{root, work};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Versions of the interface that all rules are tried with where everything is.
const OLDER: std::ops::Range<u32> = 6..12;

pub(crate) fn run(plugin: &Path, device: &str, full: bool) -> Result<Verdict> {
    debian::ensure(&["gcc", "libc6-dev"])?;
    let driver = Driver {
        program: build_driver()?,
        device: device.to_string(),
    };
    let faults = notices_faults(&driver)?;
    let mut lines = vec![];
    let mut pass = true;
    for version in (if full { OLDER } else { 0..0 }).chain([12]) {
        let mut arguments = vec!["--version".to_string(), version.to_string()];
        if full && version == 12 {
            arguments.push("--full".into());
        }
        let mut task = Task::start(format!("rules with ncclNetPlugin_v{version}"), None);
        let outcome = driver.run(plugin, &arguments, "", &format!("v{version}"), Some(&mut task))?;
        let verdict = outcome.text.lines().last().unwrap_or(&outcome.how).to_string();
        task.done(&verdict);
        if version == 12 || !outcome.ok {
            say!("{}", outcome.text.trim_end());
        }
        pass &= outcome.ok;
        lines.push(verdict);
    }
    Ok(Verdict::new(
        pass,
        format!(
            "{}; the driver notices {faults} faults of {faults}",
            lines.join("; ")
        ),
    ))
}

/// The driver, and what it is run on.
struct Driver {
    program: PathBuf,
    device: String,
}

impl Driver {
    /// Runs it over the plugin in `folder`; `fault` is the toy's.
    fn run(
        &self,
        folder: &Path,
        arguments: &[String],
        fault: &str,
        log: &str,
        task: Option<&mut Task>,
    ) -> Result<Outcome> {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("LD_LIBRARY_PATH", folder)
            .env("USB4_DEVICE", &self.device)
            .env("TOY_BREAK", fault);
        let log = work().join("nccl").join(format!("rules-{log}.log"));
        process::run(&mut command, Duration::from_secs(3600), &log, task)
    }
}

/// One line of `faults.txt`.
struct Fault<'a> {
    name: &'a str,
    rule: &'a str,
}

fn parse(list: &str) -> Result<Vec<Fault<'_>>> {
    let lines = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some(name), Some(rule)) => Ok(Fault { name, rule }),
                _ => bail!("faults.txt: {line:?} names no rule"),
            }
        })
        .collect()
}

/// How many faults of the toy plugin the driver notices; an error names one that it does not.
fn notices_faults(driver: &Driver) -> Result<usize> {
    let toy = source().join("toy");
    let list = fs::read_to_string(toy.join("faults.txt")).context("read the toy's faults")?;
    let faults = parse(&list)?;
    let whole = build_toy("toy", &["-Wl,-z,nodelete"])?;
    let missing = build_toy("toy-missing", &["-Wl,-z,nodelete", "-DTOY_NO_V9"])?;
    let unmapped = build_toy("toy-unmapped", &[])?;
    let task = Task::start("a toy plugin's faults", Some(faults.len() as u64 + 1));
    let mut rules: Vec<&str> = faults.iter().map(|fault| fault.rule).collect();
    rules.dedup();
    let arguments: Vec<String> = rules
        .iter()
        .flat_map(|rule| ["--rule".to_string(), (*rule).to_string()])
        .collect();
    let outcome = driver.run(&whole, &arguments, "", "toy", None)?;
    ensure!(
        outcome.ok,
        "the driver finds fault with a toy that has none:\n{}",
        outcome.text
    );
    for (at, fault) in faults.iter().enumerate() {
        task.set(at as u64 + 1);
        let folder = match fault.name {
            "missing" => &missing,
            "unmapped" => &unmapped,
            _ => &whole,
        };
        let arguments = ["--rule".to_string(), fault.rule.to_string()];
        let outcome = driver.run(
            folder,
            &arguments,
            fault.name,
            &format!("toy-{}", fault.name),
            None,
        )?;
        let noticed = outcome.text.lines().any(|line| line.contains("FAIL  "));
        ensure!(
            !outcome.ok && noticed,
            "the driver does not notice that the toy breaks rule {} ({}):\n{}",
            fault.rule,
            fault.name,
            outcome.text
        );
    }
    task.done(&format!("all {} noticed", faults.len()));
    Ok(faults.len())
}

fn source() -> PathBuf {
    root().join("nccl-net-plugin/conformance")
}

/// Compiles the C files of `folder` into `output`.
fn compile(folder: &Path, output: &Path, flags: &[&str]) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    if let Some(parent) = output.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command
        .args("-std=gnu11 -O1 -g -D_GNU_SOURCE -Wall -Wextra -Werror -pthread".split(' '))
        .args(flags)
        .arg("-o")
        .arg(output)
        .args(&files)
        .arg("-ldl");
    let log = work().join("build/nccl-conformance.log");
    process::run(&mut command, Duration::from_secs(300), &log, None)?
        .require(&format!("compile {}", folder.display()))?;
    Ok(())
}

fn build_driver() -> Result<PathBuf> {
    let program = work().join("nccl/conformance");
    compile(&source(), &program, &[])?;
    Ok(program)
}

/// The toy plugin under both names, in a folder of its own.
fn build_toy(name: &str, flags: &[&str]) -> Result<PathBuf> {
    let folder = work().join("nccl").join(name);
    let [nccl, rccl] = ["libnccl-net-usb4.so", "librccl-net-usb4.so"].map(|file| folder.join(file));
    let flags: Vec<&str> = ["-fPIC", "-shared"].iter().chain(flags).copied().collect();
    compile(&source().join("toy"), &nccl, &flags)?;
    fs::copy(&nccl, &rccl).context("copy the toy")?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_names_a_rule() {
        let list = fs::read_to_string(source().join("toy/faults.txt")).unwrap();
        let faults = parse(&list).unwrap();
        assert!(faults.len() > 20);
        assert!(faults.iter().all(|fault| fault.rule.parse::<u32>().is_ok()));
        assert!(parse("word\n").is_err());
    }
}
