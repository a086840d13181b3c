//! Which hosts at the other ends of the cables are let in: the kernel module's device only.

use std::fmt;
use std::str::FromStr;

use crate::{Device, Error, NodeId, Result};

/// UUID of a USB4 router: each controller of a host has its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouterId(pub [u8; 16]);

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if HYPHENS.contains(&at) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RouterId({self})")
    }
}

/// Bytes of a UUID before which its text has a hyphen.
const HYPHENS: [usize; 4] = [4, 6, 8, 10];

/// The text is not a UUID, or that of no router: zeros, which to the kernel are any router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a router's UUID is 32 hexadecimal digits with hyphens, 8-4-4-4-12, and not zero")]
pub struct ParseRouterIdError;

impl FromStr for RouterId {
    type Err = ParseRouterIdError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let mut bytes = [0; 16];
        let mut rest = text;
        for (at, byte) in bytes.iter_mut().enumerate() {
            if HYPHENS.contains(&at) {
                rest = rest.strip_prefix('-').ok_or(ParseRouterIdError)?;
            }
            let (digits, more) = rest.split_at_checked(2).ok_or(ParseRouterIdError)?;
            // The conversion would take a sign.
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(ParseRouterIdError);
            }
            *byte = u8::from_str_radix(digits, 16).map_err(|_| ParseRouterIdError)?;
            rest = more;
        }
        if rest.is_empty() && bytes != [0; 16] {
            Ok(Self(bytes))
        } else {
            Err(ParseRouterIdError)
        }
    }
}

/// What holds for hosts without a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// They are let in.
    #[default]
    Open,
    /// They are refused.
    Listed,
}

/// A host, and a router by which it is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// The host.
    pub node: NodeId,
    /// The router; `None` for any.
    pub router: Option<RouterId>,
}

/// Which hosts are let in. One with rules is let in by the routers these name, and by no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// What holds for those without a rule.
    pub policy: Policy,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// Why one side of a cable refuses the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// This host's rules do not let the other one in.
    Rules,
    /// The other one does not let this host in, or has the same node id.
    NotAllowed,
    /// No protocol version in common.
    Version,
    /// The other one has no room.
    Resources,
    /// The other one is shutting down.
    Shutdown,
    /// Something this program does not know of.
    Other,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rules => "no rule lets it in",
            Self::NotAllowed => "it does not let this host in, or has the same node id",
            Self::Version => "no protocol version in common",
            Self::Resources => "it has no room",
            Self::Shutdown => "it is shutting down",
            Self::Other => "for a reason this program does not know of",
        })
    }
}

/// How a cable stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CableState {
    /// No session yet; it is tried again.
    Connecting,
    /// It carries data.
    Up,
    /// One side refuses the other; it is tried again from time to time.
    Refused(Refusal),
}

/// A cable to a router whose host runs the module, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cable {
    /// The router at the other end.
    pub router: RouterId,
    /// The host there, as it calls itself; `None` if it has not said.
    pub node: Option<NodeId>,
    /// How it stands.
    pub state: CableState,
}

impl Cable {
    pub(crate) fn new(router: RouterId, node: Option<NodeId>, state: CableState) -> Self {
        Self { router, node, state }
    }
}

impl Device {
    /// The cables with a host at the other end that runs the module, too.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] but for the kernel module's device; [`Error::Gone`], [`Error::Forked`].
    pub fn cables(&self) -> Result<Vec<Cable>> {
        self.kernel()?.cables()
    }

    /// Which hosts are let in.
    ///
    /// # Errors
    ///
    /// As [`Device::cables`].
    pub fn rules(&self) -> Result<Rules> {
        self.kernel()?.rules()
    }

    /// Says which hosts are let in, instead of what was said before. Links to others end.
    ///
    /// # Errors
    ///
    /// As [`Device::cables`]; [`Error::NotAdministrator`] without `CAP_NET_ADMIN`; [`Error::Invalid`] for more than
    /// [`usb4_ring_abi::uapi::MAX_RULES`] rules.
    pub fn set_rules(&self, rules: &Rules) -> Result<()> {
        self.kernel()?.set_rules(rules)
    }

    fn kernel(&self) -> Result<&crate::kernel::Client> {
        self.client()
            .kernel()
            .ok_or(Error::Unsupported("only /dev/usb4ring has cables and neighbours"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_reads_as_it_is_written() {
        let text = "d3b1a2c4-0102-0304-a506-0708090a0b0c";
        let router: RouterId = text.parse().unwrap();
        assert_eq!(router.to_string(), text);
        assert_eq!(router.0[0], 0xd3);
        assert_eq!(router.0[15], 0x0c);
        assert_eq!(text.to_uppercase().parse(), Ok(router));
        for bad in [
            "",
            "any",
            "d3b1a2c4010203 04a5060708090a0b0c",
            "d3b1a2c4-0102-0304-a506-0708090a0b",
            "d3b1a2c4-0102-0304-a506-0708090a0b0c0d",
            "+3b1a2c4-0102-0304-a506-0708090a0b0c",
            "d3b1a2c4-0102-0304-a506-0708090a0b\u{e9}",
            "00000000-0000-0000-0000-000000000000",
        ] {
            assert_eq!(bad.parse::<RouterId>(), Err(ParseRouterIdError), "{bad}");
        }
    }
}
