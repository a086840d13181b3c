//! `cargo xtask lab matrix`: the stock suite, and the module's build, on every kernel that is supported.

use super::module;
use super::suites::{self, Suite, Tally};
use super::tree::{Available, Kernel, Tree, available};
use crate::freestanding::Release;
use crate::interrupt;
use crate::ui::{Verdict, seconds};
use crate::workspace::root;
use anyhow::Result;
use std::path::Path;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these kernels: versions such as 7.2 or 7.2.12.
    #[arg(long, value_delimiter = ',')]
    kernels: Vec<String>,
    /// Run only checks whose group/name has this in it.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "pair/ping,pair/replug,pair/reload"
    )]
    only: Vec<String>,
    /// What to run.
    #[arg(long, value_enum, default_value = "stock")]
    suite: Suite,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let kernels = if args.kernels.is_empty() {
        newest_of_each(&available()?)
    } else {
        args.kernels.clone()
    };
    let mut lines = vec![];
    let mut failed = 0;
    for version in &kernels {
        interrupt::check()?;
        let began = Instant::now();
        let line = match one(args, version) {
            Ok((tally, module)) => {
                failed += tally.failed.len() + usize::from(module.starts_with("FAIL"));
                let names = tally.failed.join(", ");
                let verdict = if tally.failed.is_empty() { "PASS" } else { "FAIL" };
                format!(
                    "{verdict} {} passed, {} skipped, failed: [{names}]; module: {module}",
                    tally.passed, tally.skipped
                )
            }
            Err(error) => {
                failed += 1;
                format!("FAIL {error:#}")
            }
        };
        lines.push(format!("{version} ({}): {line}", seconds(began.elapsed())));
    }
    interrupt::check()?;
    lines.iter().for_each(|line| say!("{line}"));
    Ok(Verdict::new(
        failed == 0,
        format!("{} kernels, {failed} failures", kernels.len()),
    ))
}

/// Runs the suite on a kernel and builds the module for it. Debian drops the headers of a kernel that is not the newest
/// of its line, or not of the newest lines; then the module is not built, which is said but is no failure.
fn one(args: &Args, version: &str) -> Result<(Tally, String)> {
    let kernel = Kernel::get(version)?;
    say!("kernel {}", kernel.release);
    let source = root().join("kmod");
    let module = if !module::is_source(&source) {
        "none yet".to_string()
    } else if kernel.sources().is_err() {
        "not built, Debian has no headers".to_string()
    } else {
        built(&kernel, &source)
    };
    let checks = suites::chosen(args.suite, &args.only, false);
    let mut tally = Tally::default();
    for (group, checks) in &checks {
        suites::run_group(args.suite, group, checks, version, "", &mut tally)?;
    }
    Ok((tally, module))
}

/// How the module's build went, and that by DKMS.
fn built(kernel: &Kernel, source: &Path) -> String {
    let build = || {
        let tree = Tree::get()?;
        let mut warnings = module::build(&tree, kernel, source, Release::This, &[])?.warnings;
        warnings.extend(module::build_by_dkms(&tree, kernel)?.warnings);
        Ok::<_, anyhow::Error>(warnings)
    };
    match build() {
        Ok(warnings) if warnings.is_empty() => "built, also by DKMS".to_string(),
        Ok(warnings) => format!("FAIL, warnings: {}", warnings.join("; ")),
        Err(error) => format!("FAIL {error:#}"),
    }
}

/// The newest kernel of each line (6.16, 6.17 ...), oldest first.
fn newest_of_each(all: &[Available]) -> Vec<String> {
    let line = |version: &str| version.split('.').take(2).collect::<Vec<_>>().join(".");
    let mut found: Vec<String> = vec![];
    for kernel in all {
        if found
            .last()
            .is_some_and(|last| line(last) == line(&kernel.version))
        {
            found.pop();
        }
        found.push(kernel.version.clone());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kernel_of_each_line_is_tried() {
        let all = ["6.16.3", "6.16.12", "7.2.9", "7.2.11", "7.3.4"].map(Available::named);
        assert_eq!(newest_of_each(&all), ["6.16.12", "7.2.11", "7.3.4"]);
        assert!(newest_of_each(&[]).is_empty());
    }
}
