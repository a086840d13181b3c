//! How ranks find each other's communicators: files in a folder.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use usb4_nccl_host::{Nccl, UniqueId};

/// The folder, and how many communicators were met for in it.
pub(crate) struct Meeting {
    folder: PathBuf,
    met: usize,
}

/// How long a rank waits for the first.
const PATIENCE: Duration = Duration::from_secs(60);

impl Meeting {
    pub(crate) fn new(folder: &Path) -> Self {
        Meeting {
            folder: folder.to_path_buf(),
            met: 0,
        }
    }

    /// The id of the next communicator, made by whoever is `first`.
    pub(crate) fn id(&mut self, nccl: &Nccl, first: bool) -> Result<UniqueId> {
        let path = self.folder.join(format!("id.{}", self.met));
        self.met += 1;
        if first {
            let id = nccl.unique_id()?;
            let new = path.with_extension("new");
            fs::write(&new, id.0).with_context(|| format!("write {}", new.display()))?;
            fs::rename(&new, &path).with_context(|| format!("create {}", path.display()))?;
            return Ok(id);
        }
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Ok(bytes) = fs::read(&path) {
                let id = bytes.try_into().ok().context("an id of the wrong length")?;
                return Ok(UniqueId(id));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("nobody made {}", path.display());
    }
}
