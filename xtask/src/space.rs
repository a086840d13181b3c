//! Whether there is disk space for what a command is going to write.

use crate::{cache, workspace};
use anyhow::{Context, Result, bail};
use std::path::Path;

const GIB: u64 = 1 << 30;

/// Fails if the disks of the target folder and of the cache have less than that many GiB free, together if both are on
/// the same.
pub(crate) fn need(target_gib: u64, cache_gib: u64) -> Result<()> {
    std::fs::create_dir_all(workspace::target()).context("create the target folder")?;
    let (target, cache) = (Place::of(&workspace::target())?, Place::of(&cache::dir()?)?);
    if target.device == cache.device {
        target.has(target_gib.saturating_add(cache_gib))
    } else {
        target.has(target_gib)?;
        cache.has(cache_gib)
    }
}

struct Place {
    path: String,
    device: u64,
    free: u64,
}

impl Place {
    fn of(path: &Path) -> Result<Place> {
        let stat = rustix::fs::stat(path).with_context(|| format!("look at {}", path.display()))?;
        let disk =
            rustix::fs::statvfs(path).with_context(|| format!("ask for the space at {}", path.display()))?;
        Ok(Place {
            path: path.display().to_string(),
            device: stat.st_dev,
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
        })
    }

    fn has(&self, gib: u64) -> Result<()> {
        if self.free >= gib.saturating_mul(GIB) {
            return Ok(());
        }
        bail!(
            "{} MiB are free at {}, and up to {gib} GiB are written there: make room, or put the target folder and the cache \
             elsewhere with CARGO_TARGET_DIR and USB4_CACHE",
            self.free >> 20,
            self.path
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_before_anything_is_written() {
        let place = Place {
            path: "/full".into(),
            device: 1,
            free: 3 * GIB - 1,
        };
        assert!(place.has(2).is_ok());
        let error = place.has(3).unwrap_err().to_string();
        assert!(error.starts_with("3071 MiB are free at /full"), "{error}");
    }

    #[test]
    fn what_is_there_is_enough_for_nothing() {
        need(0, 0).unwrap();
        assert!(need(u64::MAX >> 30, 0).is_err());
    }
}
