//! Device names.

use std::str::FromStr;

use usb4_soft::Reach;

use crate::Error;

/// The environment variable that names the device to open.
pub const DEVICE_VARIABLE: &str = "USB4_DEVICE";

/// Where the kernel module's device is.
pub const KERNEL_DEVICE: &str = "/dev/usb4ring";

/// Longest fabric name of a soft device: the socket's name has to fit in `sun_path`.
const MAX_NAME: usize = 32;

/// A parsed device name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// A character device of the kernel module.
    Kernel(String),
    /// A soft device on fabric `name`.
    Soft {
        /// The fabric: processes of one user with the same name find each other.
        name: String,
        /// Where it runs, and what it reaches.
        kind: SoftKind,
    },
}

/// Kinds of soft devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SoftKind {
    /// In this process; `registered`: it reaches only registered memory, as a kernel module does.
    Inline(Reach),
    /// In another process, which all clients of that host share.
    Detached(String),
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(spec: &str) -> Result<Self, Error> {
        let bad = |why| Error::BadSpec {
            spec: spec.into(),
            why,
        };
        if spec.starts_with("/dev/") {
            return Ok(Self::Kernel(spec.into()));
        }
        let rest = spec.strip_prefix("soft:").ok_or(bad("unknown kind of device"))?;
        let (name, option) = match rest.split_once(',') {
            Some((name, option)) => (name, Some(option)),
            None => (rest, None),
        };
        check_name(name).map_err(bad)?;
        let kind = match option.map(|option| option.split_once('=').unwrap_or((option, ""))) {
            None => SoftKind::Inline(Reach::Process),
            Some(("registered", "")) => SoftKind::Inline(Reach::Registered),
            Some(("detached", _)) if option == Some("detached") => SoftKind::Detached("0".into()),
            Some(("detached", host)) => {
                check_name(host).map_err(bad)?;
                SoftKind::Detached(host.into())
            }
            Some(_) => return Err(bad("unknown option")),
        };
        Ok(Self::Soft {
            name: name.into(),
            kind,
        })
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    match name {
        "" => Err("the name is empty"),
        _ if name.len() > MAX_NAME => Err("the name is longer than 32 characters"),
        _ if !name.bytes().all(fits) => Err("a name has only letters, digits, '-', '_' and '.'"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soft(name: &str, kind: SoftKind) -> Spec {
        Spec::Soft {
            name: name.into(),
            kind,
        }
    }

    #[test]
    fn names_parse() {
        let detached = |host: &str| SoftKind::Detached(host.into());
        for (text, spec) in [
            ("soft:a", soft("a", SoftKind::Inline(Reach::Process))),
            (
                "soft:a,registered",
                soft("a", SoftKind::Inline(Reach::Registered)),
            ),
            ("soft:a,detached", soft("a", detached("0"))),
            ("soft:a,detached=h1", soft("a", detached("h1"))),
            ("/dev/usb4ring", Spec::Kernel("/dev/usb4ring".into())),
        ] {
            assert_eq!(text.parse::<Spec>().unwrap(), spec, "{text}");
        }
    }

    #[test]
    fn a_name_that_would_escape_its_socket_is_refused() {
        for bad in [
            "",
            "soft:",
            "soft:a/b",
            "soft:a\0",
            "soft:a b",
            "soft:a,x",
            "soft:a,detached=",
            "soft:a,registered=x",
            "hard:a",
        ] {
            assert!(
                matches!(bad.parse::<Spec>(), Err(Error::BadSpec { .. })),
                "{bad:?}"
            );
        }
        assert!(format!("soft:{}", "n".repeat(33)).parse::<Spec>().is_err());
    }
}
