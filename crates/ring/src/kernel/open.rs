//! Opening the device, and why it cannot be.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use usb4_ring_abi::{ABI_VERSION, uapi};

use super::line::Line;
use crate::{Error, KERNEL_DEVICE, Result};

/// Opens `path` and asks what it is.
///
/// # Errors
/// There is no device, it may not be opened, it is another's, or it speaks another version.
pub(super) fn open(path: &str) -> Result<(Line, uapi::Info)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| cannot(path, errno))?;
    let line = Line::new(file).map_err(|source| Error::OpenDevice {
        path: path.into(),
        source,
    })?;
    let info = greet(path, &line)?;
    Ok((line, info))
}

/// Whether what was opened is a device we can speak to.
pub(super) fn greet(path: &str, line: &Line) -> Result<uapi::Info> {
    let mut info = uapi::Info::new();
    line.call(uapi::IOC_INFO, &mut info)
        .map_err(|errno| match errno {
            Errno::NOTTY | Errno::INVAL => Error::NotADevice(path.into()),
            errno => cannot(path, errno),
        })?;
    if info.abi_version != ABI_VERSION {
        return Err(Error::AbiVersion {
            path: path.into(),
            release: release(&info),
            kernel: info.abi_version,
            ours: ABI_VERSION,
        });
    }
    Ok(info)
}

/// The module's version.
fn release(info: &uapi::Info) -> String {
    let text = info.release.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cold]
fn cannot(path: &str, errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO if path == KERNEL_DEVICE => Error::NoDevice,
        Errno::ACCESS | Errno::PERM => Error::Permission {
            path: path.into(),
            remedy: remedy(path),
        },
        Errno::NOSPC => Error::Limit(usb4_soft::Object::Client),
        errno => Error::OpenDevice {
            path: path.into(),
            source: errno.into(),
        },
    }
}

/// What lets this user open the device.
fn remedy(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let owner = fs::metadata(path).ok().map(|meta| (meta.mode(), meta.gid()));
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    match owner.and_then(|(mode, gid)| member_of(mode, gid, &groups)) {
        Some(group) => format!("join its group (usermod -aG {group} USER) and log in again"),
        None => format!(
            "give it to a group of yours, in /etc/udev/rules.d/61-usb4-rdma-local.rules: KERNEL==\"{name}\", \
             GROUP=\"GROUP\", MODE=\"0660\""
        ),
    }
}

/// The group, if it is not root's, whose members may read and write a file of this mode.
fn member_of(mode: u32, gid: u32, groups: &str) -> Option<String> {
    const GROUP_READS_AND_WRITES: u32 = 0o060;
    if mode & GROUP_READS_AND_WRITES != GROUP_READS_AND_WRITES || gid == 0 {
        return None;
    }
    let line = |line: &str| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse() == Ok(gid)).then(|| name.to_owned())
    };
    groups.lines().find_map(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_told_from_a_file_that_is_none() {
        // Nobody has loaded the module where this runs, or the first says nothing.
        if !fs::exists(KERNEL_DEVICE).unwrap() {
            let said = open(KERNEL_DEVICE).unwrap_err().to_string();
            for part in [KERNEL_DEVICE, "modprobe usb4_rdma", "USB4_DEVICE=soft:NAME"] {
                assert!(said.contains(part), "{said}");
            }
        }
        let said = open("/dev/usb4ring-not-there").unwrap_err().to_string();
        assert!(said.starts_with("cannot open /dev/usb4ring-not-there"), "{said}");
        assert!(matches!(open("/dev/null"), Err(Error::NotADevice(path)) if path == "/dev/null"));
    }

    #[test]
    fn who_may_not_open_it_is_told_which_group_may() {
        let groups = "root:x:0:\nrdma:x:107:somebody\n";
        assert_eq!(member_of(0o20660, 107, groups).as_deref(), Some("rdma"));
        assert_eq!(member_of(0o20660, 0, groups), None, "nobody is to join root's");
        assert_eq!(member_of(0o20600, 107, groups), None);
        assert_eq!(member_of(0o20660, 108, groups), None);
        assert!(remedy("/dev/usb4ring-not-there").contains("KERNEL==\"usb4ring-not-there\""));
    }
}
