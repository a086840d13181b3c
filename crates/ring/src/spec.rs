//! Device names.

use std::str::FromStr;

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
        /// `Some(host)`: the device runs in another process, which all clients of that host share.
        detached: Option<String>,
    },
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
        let detached = match option.map(|option| option.split_once('=').unwrap_or((option, "0"))) {
            None => None,
            Some(("detached", host)) => {
                check_name(host).map_err(bad)?;
                Some(host.into())
            }
            Some(_) => return Err(bad("unknown option")),
        };
        Ok(Self::Soft {
            name: name.into(),
            detached,
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

    fn soft(name: &str, detached: Option<&str>) -> Spec {
        Spec::Soft {
            name: name.into(),
            detached: detached.map(Into::into),
        }
    }

    #[test]
    fn names_parse() {
        assert_eq!("soft:a".parse::<Spec>().unwrap(), soft("a", None));
        assert_eq!("soft:a,detached".parse::<Spec>().unwrap(), soft("a", Some("0")));
        assert_eq!(
            "soft:a,detached=h1".parse::<Spec>().unwrap(),
            soft("a", Some("h1"))
        );
        assert_eq!(
            "/dev/usb4ring".parse::<Spec>().unwrap(),
            Spec::Kernel("/dev/usb4ring".into())
        );
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
