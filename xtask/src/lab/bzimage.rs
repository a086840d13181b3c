//! Unpacks a kernel image, so that QEMU starts the kernel itself (by its PVH entry) and the guest does not spend a third
//! of its boot on decompressing it under emulation.

use crate::debian;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

/// Offsets in the image, from Documentation/arch/x86/boot.rst ("The Real-Mode Kernel Header").
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// The build appends the length of what it has compressed (scripts/Makefile.lib, `size_append`).
const APPENDED: usize = 4;

/// Writes the ELF file in the image `from` to `to`.
pub(crate) fn unpack(from: &Path, to: &Path) -> Result<()> {
    let image = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    let (program, payload) = payload(&image).with_context(|| format!("{} is no bzImage", from.display()))?;
    debian::ensure(&["zstd", "xz-utils"])?;
    let compressed = to.with_extension("compressed");
    fs::write(&compressed, payload).context("write the compressed kernel")?;
    let input = File::open(&compressed).context("open the compressed kernel")?;
    let output = File::create(to).with_context(|| format!("create {}", to.display()))?;
    let status = Command::new(program)
        .args(["-q", "-d", "-c"])
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("run {program}"))?;
    fs::remove_file(&compressed).context("remove the compressed kernel")?;
    if !status.success() {
        bail!(
            "{program} cannot unpack the kernel in {}: {status}",
            from.display()
        );
    }
    Ok(())
}

/// The compressed kernel in an image, and the program that decompresses it.
fn payload(image: &[u8]) -> Option<(&'static str, &[u8])> {
    let number = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let (at, magic) = MAGIC;
    if image.get(at..at + magic.len())? != magic {
        return None;
    }
    // The boot sector is not counted.
    let protected = (usize::from(*image.get(SETUP_SECTORS)?) + 1) * SECTOR;
    let start = protected.checked_add(number(PAYLOAD_OFFSET)?)?;
    let length = number(PAYLOAD_LENGTH)?.checked_sub(APPENDED)?;
    let payload = image.get(start..start.checked_add(length)?)?;
    let program = match payload.get(..4)? {
        [0x28, 0xb5, 0x2f, 0xfd] => "zstd",
        [0xfd, b'7', b'z', b'X'] => "xz",
        [0x1f, 0x8b, ..] => "gzip",
        _ => return None,
    };
    Some((program, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * SECTOR + 16];
        image[SETUP_SECTORS] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET] = 16;
        image[PAYLOAD_LENGTH] = u8::try_from(payload.len() + APPENDED).unwrap();
        image.extend_from_slice(payload);
        image.extend_from_slice(&[0; APPENDED]);
        image
    }

    #[test]
    fn the_payload_is_found_behind_the_setup_sectors() {
        let kernel = [0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3];
        assert_eq!(payload(&image(&kernel)), Some(("zstd", &kernel[..])));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let good = image(&[0xfd, b'7', b'z', b'X']);
        assert!(payload(&good).is_some());
        assert_eq!(payload(&good[..good.len() - 9]), None);
        assert_eq!(payload(&image(b"none")), None);
        assert_eq!(payload(&[0; 4096]), None);
    }
}
