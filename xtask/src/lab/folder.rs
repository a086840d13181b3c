//! The folder of one run: sockets and what guests boot from. It goes when the run ends.

use anyhow::{Context, Result};
use rustix::fs::Mode;
use rustix::process::{Pid, test_kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "usb4-lab-";

/// A folder that only this user can enter. Its path is short, since a socket's is at most 107 bytes (unix(7)).
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn create() -> Result<Folder> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = std::env::temp_dir();
        remove_abandoned(&base);
        let path = base.join(format!("{PREFIX}{}-{count}", std::process::id()));
        rustix::fs::mkdir(&path, Mode::RWXU).with_context(|| format!("create {}", path.display()))?;
        Ok(Folder { path })
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of runs that were killed.
fn remove_abandoned(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let owner = entry.file_name().to_str().and_then(owner);
        if owner.is_some_and(|pid| test_kill_process(pid).is_err()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process that made a folder of this name.
fn owner(name: &str) -> Option<Pid> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Pid::from_raw(pid.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_its_owner_and_those_of_the_dead_go_too() {
        let folder = Folder::create().unwrap();
        let path = folder.path().to_path_buf();
        assert_eq!(
            owner(path.file_name().unwrap().to_str().unwrap()),
            Some(rustix::process::getpid())
        );
        let other = Folder::create().unwrap();
        assert!(path.exists(), "the folder of a living process was removed");
        drop((folder, other));
        assert!(!path.exists());
        assert_eq!(owner("usb4-lab-x-1"), None);
        assert_eq!(owner("else"), None);
    }
}
