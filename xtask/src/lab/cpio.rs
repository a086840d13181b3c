//! Writes cpio archives as the kernel unpacks them at boot (Documentation/driver-api/early-userspace/buffer-format.rst:
//! "newc", each part padded to four bytes).

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// S_IFDIR, S_IFREG and S_IFLNK.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// Files to be archived, by path without a leading slash. Folders on the way appear by themselves.
#[derive(Default)]
pub(crate) struct Archive {
    entries: BTreeMap<PathBuf, (u32, Vec<u8>)>,
}

impl Archive {
    pub(crate) fn folder(&mut self, path: impl AsRef<Path>) {
        for folder in path
            .as_ref()
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty())
        {
            self.entries
                .entry(folder.to_path_buf())
                .or_insert((FOLDER | 0o755, vec![]));
        }
    }

    pub(crate) fn file(&mut self, path: impl AsRef<Path>, permissions: u32, bytes: impl Into<Vec<u8>>) {
        self.insert(path.as_ref(), FILE | permissions, bytes.into());
    }

    pub(crate) fn link(&mut self, path: impl AsRef<Path>, target: &str) {
        self.insert(path.as_ref(), LINK | 0o777, target.as_bytes().to_vec());
    }

    /// A file of this machine, with its permissions; what a link leads to, not the link.
    pub(crate) fn copy(&mut self, path: impl AsRef<Path>, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        let mode = fs::metadata(from)
            .context("read its permissions")?
            .permissions()
            .mode();
        self.file(path, mode & 0o7777, bytes);
        Ok(())
    }

    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.entries.contains_key(path.as_ref())
    }

    fn insert(&mut self, path: &Path, mode: u32, bytes: Vec<u8>) {
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.entries.insert(path.to_path_buf(), (mode, bytes));
    }

    /// The archive. Several of them one after the other are one to the kernel.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = vec![];
        for (inode, (path, (mode, bytes))) in self.entries.iter().enumerate() {
            let name = path.to_str().context("a file name that is not UTF-8")?;
            // Inode numbers differ, so that the kernel takes no two entries for hard links.
            put(&mut out, inode + 1, *mode, name, bytes)?;
        }
        put(&mut out, 0, 0, "TRAILER!!!", &[])?;
        Ok(out)
    }
}

fn put(out: &mut Vec<u8>, inode: usize, mode: u32, name: &str, bytes: &[u8]) -> Result<()> {
    let number = |value: usize| -> Result<String> {
        let value = u32::try_from(value).context("a file too large for cpio")?;
        Ok(format!("{value:08X}"))
    };
    let mode = usize::try_from(mode).context("a mode")?;
    let links = 1;
    // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
    let fields = [
        inode,
        mode,
        0,
        0,
        links,
        0,
        bytes.len(),
        0,
        0,
        0,
        0,
        name.len() + 1,
        0,
    ];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(number(field)?.as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(bytes);
    pad(out);
    Ok(())
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_each_folder_before_what_is_in_it() {
        let mut archive = Archive::default();
        archive.file("usr/bin/tool", 0o755, b"abc".to_vec());
        archive.link("bin", "elsewhere");
        let bytes = archive.to_bytes().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let at = |name: &str| text.find(&format!("{name}\0")).unwrap();
        assert!(at("usr") < at("usr/bin") && at("usr/bin") < at("usr/bin/tool"));
        assert!(at("TRAILER!!!") > at("usr/bin/tool"));
    }

    #[test]
    fn a_header_is_as_the_kernel_reads_it() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, b"hello".to_vec());
        let text = String::from_utf8(archive.to_bytes().unwrap()).unwrap();
        let header = "070701\
            00000001000081A400000000000000000000000100000000\
            0000000500000000000000000000000000000000\
            0000000200000000a\0hello\0\0\0";
        assert!(text.starts_with(header), "{text:?}");
        assert!(text[header.len()..].starts_with("070701"), "{text:?}");
    }
}
