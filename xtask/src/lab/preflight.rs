//! Whether this machine can run guests at all, asked before anything is fetched or built.

use anyhow::{Result, bail};
use std::process::{Command, Stdio};

/// What a guest's QEMU takes besides the guest's memory: translated code and its own (measured: 130 MiB).
const OVERHEAD_MIB: u64 = 160;

/// Programs of this machine, each with the package that has it.
const PROGRAMS: [(&str, &str); 3] = [
    ("setpriv", "util-linux"),
    ("timeout", "coreutils"),
    ("unshare", "util-linux"),
];

/// Fails with what is missing.
pub(crate) fn check(guests: usize, memory_mib: u32) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the lab's programs and guests are x86-64, and so must this machine be");
    }
    for (program, package) in PROGRAMS {
        let mut command = Command::new(program);
        command
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if command.status().is_err() {
            bail!("the lab needs the program {program}; install {package}");
        }
    }
    let needed = guests as u64 * (u64::from(memory_mib) + OVERHEAD_MIB);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available_mib(&text) {
        Some(available) if available < needed => bail!(
            "{guests} guests with {memory_mib} MiB each need {needed} MiB of memory; {available} MiB are available"
        ),
        _ => Ok(()),
    }
}

/// `MemAvailable` of /proc/meminfo.
fn available_mib(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_guests_are_refused_with_the_numbers() {
        assert!(check(1, 16).is_ok());
        let error = check(4, u32::MAX).unwrap_err().to_string();
        assert!(
            error.starts_with("4 guests with 4294967295 MiB each need"),
            "{error}"
        );
    }

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let text = "MemTotal:       24689164 kB\nMemFree:          123456 kB\nMemAvailable:   20480000 kB\n";
        assert_eq!(available_mib(text), Some(20000));
        assert_eq!(available_mib("MemTotal: 1 kB"), None);
    }
}
