//! Where things are in this repository.

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Cargo's target folder. A relative one counts from where [`cargo`] runs.
pub(crate) fn target() -> PathBuf {
    let wanted = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    root().join(wanted.unwrap_or_else(|| "target".into()))
}

/// Where commands leave logs and what they build.
pub(crate) fn work() -> PathBuf {
    target().join("xtask")
}

/// Waits until no other command uses what goes by `name` in the work folder; others wait until the answer is dropped.
pub(crate) fn lock(name: &str) -> Result<File> {
    let path = work().join(format!("{name}.lock"));
    fs::create_dir_all(work()).context("create the work folder")?;
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    flock(&file, FlockOperation::LockExclusive).with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

/// A cargo command that runs at the repository root.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn what_one_command_uses_another_waits_for() {
        let name = format!("test-{}", std::process::id());
        let held = lock(&name).unwrap();
        let (tell, told) = channel();
        let other = {
            let name = name.clone();
            std::thread::spawn(move || tell.send(lock(&name).unwrap()))
        };
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        drop(held);
        told.recv().unwrap();
        other.join().unwrap().unwrap();
        fs::remove_file(work().join(format!("{name}.lock"))).unwrap();
    }
}
