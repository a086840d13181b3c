//! The cache of what commands fetch and prepare: `${USB4_CACHE:-$HOME/.cache/usb4-rdma}`.
//!
//! An entry's name carries its version and a hash of what it holds or was made from. It is made under another
//! name and renamed when it is complete, so a download that broke off is never looked at. Everything in it may
//! be deleted at any time between commands.

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The cache folder, created if it is not there.
pub(crate) fn dir() -> Result<PathBuf> {
    let dir = match (std::env::var_os("USB4_CACHE"), std::env::var_os("HOME")) {
        (Some(dir), _) if !dir.is_empty() => PathBuf::from(dir),
        (_, Some(home)) => Path::new(&home).join(".cache/usb4-rdma"),
        _ => bail!("neither USB4_CACHE nor HOME is set, so there is no place for the cache"),
    };
    fs::create_dir_all(&dir).with_context(|| format!("create the cache {}", dir.display()))?;
    dir.canonicalize().context("resolve the cache folder")
}

/// The entry `name`, made by `make` at the path it is given if it is not there yet. Two commands that want the
/// same entry at once wait for each other.
pub(crate) fn entry(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let dir = dir()?;
    let ready = dir.join(name);
    if ready.exists() {
        return Ok(ready);
    }
    let lock_path = dir.join(format!(".{name}.lock"));
    let lock = File::create(&lock_path).with_context(|| format!("create {}", lock_path.display()))?;
    flock(&lock, FlockOperation::LockExclusive).context("lock the cache entry")?;
    if ready.exists() {
        return Ok(ready);
    }
    let partial = dir.join(format!(".{name}.partial"));
    remove(&partial)?;
    make(&partial)?;
    fs::rename(&partial, &ready).with_context(|| format!("move {} into place", ready.display()))?;
    Ok(ready)
}

/// Removes the entry `name`, so that it is made again. Who uses it must not.
pub(crate) fn forget(name: &str) -> Result<()> {
    let old = dir()?.join(name);
    let aside = dir()?.join(format!(".{name}.old"));
    remove(&aside)?;
    if old.exists() {
        fs::rename(&old, &aside).with_context(|| format!("move {} away", old.display()))?;
    }
    remove(&aside)
}

fn remove(path: &Path) -> Result<()> {
    let done = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    done.with_context(|| format!("remove {}", path.display()))
}

/// The first 16 hex digits of a SHA-256 over `parts`, each preceded by its length.
pub(crate) fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize()).chars().take(16).collect()
}

/// SHA-256 of a file, in hex.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let n = file
            .read(&mut block)
            .with_context(|| format!("read {}", path.display()))?;
        if n == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(block.get(..n).unwrap_or_default());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_depends_on_where_one_part_ends() {
        assert_ne!(key([&b"ab"[..], b"c"]), key([&b"a"[..], b"bc"]));
        assert_eq!(key([&b"ab"[..]]).len(), 16);
    }

    #[test]
    fn sha256_of_a_file_is_the_published_one() {
        let path = std::env::temp_dir().join(format!("xtask-sha-{}", std::process::id()));
        fs::write(&path, b"abc").unwrap();
        let sum = sha256(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(
            sum,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
