//! The text form of a topology.

use core::str::FromStr;

use super::{Topology, TopologyError, port};
use crate::{Nanos, PciId, Port};

/// Milliseconds in nanoseconds.
const MS: Nanos = 1_000_000;
/// Megabits per second in bits per second.
const MEGA: u64 = 1_000_000;

/// A preset: its name, hosts, and pairs of hosts that are joined.
type Preset = (&'static str, usize, &'static [[usize; 2]]);

const PRESETS: &[Preset] = &[
    ("none", 2, &[]),
    ("pair", 2, &[[0, 1]]),
    ("pair2", 2, &[[0, 1], [0, 1]]),
    ("triangle", 3, &[[0, 1], [1, 2], [2, 0]]),
    ("chain", 3, &[[0, 1], [1, 2]]),
    ("chain4", 4, &[[0, 1], [1, 2], [2, 3]]),
];

impl FromStr for Topology {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let mut words = text.split(',').map(str::trim);
        let name = words.next().unwrap_or_default();
        let &(_, hosts, joined) = PRESETS
            .iter()
            .find(|preset| preset.0 == name)
            .ok_or_else(|| TopologyError::Unknown(name.to_owned()))?;
        let mut topology = Self {
            hosts,
            cables: Vec::new(),
            ..Self::pair()
        };
        let mut ports = None;
        let mut extra = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| TopologyError::Unknown(word.to_owned()))?;
            match key {
                "ports" => ports = Some(number(value, "ports")?),
                "cable" => extra.push(cable(value)?),
                _ => topology.set(key, value)?,
            }
        }
        let needed = ports_needed(hosts, joined);
        topology.ports = ports.unwrap_or_else(|| needed.div_ceil(topology.controllers.max(1)).max(1));
        let per_host = topology.ports.saturating_mul(topology.controllers);
        if needed > per_host {
            return Err(TopologyError::TooFewPorts {
                preset: name.to_owned(),
                needed,
                ports: per_host,
            });
        }
        topology.join(joined);
        topology.cables.append(&mut extra);
        topology.check()?;
        Ok(topology)
    }
}

impl Topology {
    fn set(&mut self, key: &str, value: &str) -> Result<(), TopologyError> {
        match key {
            "hosts" => self.hosts = number(value, "hosts")?,
            "controllers" => self.controllers = number(value, "controllers")?,
            "hops" => {
                self.hops = match value {
                    "strix" => 3,
                    "intel" => 12,
                    _ => number(value, "hops")?,
                }
            }
            "lanes" => self.lanes = number(value, "lanes")?,
            "pci" => self.pci = pci(value)?,
            "usb4" => self.usb4 = number(value, "usb4")?,
            "train" => self.training = number::<Nanos>(value, "train")?.saturating_mul(MS),
            "rate" => self.rate = number::<u64>(value, "rate")?.saturating_mul(MEGA),
            "latency" => self.latency = number(value, "latency")?,
            "moderation" => self.moderation = switch(value, "moderation")?,
            "wedge" => self.wedge = switch(value, "wedge")?,
            _ => return Err(TopologyError::Unknown(format!("{key}={value}"))),
        }
        Ok(())
    }

    /// Adds a cable for each pair of hosts, each host's ports used in order.
    fn join(&mut self, joined: &[[usize; 2]]) {
        let mut used = vec![0usize; self.hosts];
        for pair in joined {
            let ends = pair.map(|host| {
                let slot = used.get_mut(host).map_or(0, |slot| {
                    *slot = slot.saturating_add(1);
                    slot.saturating_sub(1)
                });
                let controller = slot.checked_div(self.ports).unwrap_or(0);
                let nhi = host.saturating_mul(self.controllers).saturating_add(controller);
                port(nhi, slot.checked_rem(self.ports).unwrap_or(0))
            });
            self.cables.push(ends);
        }
    }
}

/// The most ports any host of a preset uses.
fn ports_needed(hosts: usize, joined: &[[usize; 2]]) -> usize {
    (0..hosts)
        .map(|host| joined.iter().flatten().filter(|&&end| end == host).count())
        .max()
        .unwrap_or(0)
}

fn number<T: FromStr>(value: &str, what: &'static str) -> Result<T, TopologyError> {
    value
        .parse()
        .map_err(|_| TopologyError::BadValue(value.to_owned(), what))
}

fn switch(value: &str, what: &'static str) -> Result<bool, TopologyError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(TopologyError::BadValue(value.to_owned(), what)),
    }
}

fn pci(value: &str) -> Result<PciId, TopologyError> {
    let bad = || TopologyError::BadValue(value.to_owned(), "pci");
    let (vendor, device) = value.split_once(':').ok_or_else(bad)?;
    let hex = |text: &str| u16::from_str_radix(text, 16).map_err(|_| bad());
    Ok(PciId {
        vendor: hex(vendor)?,
        device: hex(device)?,
    })
}

fn cable(value: &str) -> Result<[Port; 2], TopologyError> {
    let bad = || TopologyError::BadValue(value.to_owned(), "cable");
    let end = |text: &str| {
        let (nhi, number) = text.split_once('.')?;
        Some(port(nhi.parse().ok()?, number.parse().ok()?))
    };
    let (a, b) = value.split_once('-').ok_or_else(bad)?;
    Ok([end(a).ok_or_else(bad)?, end(b).ok_or_else(bad)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Topology, TopologyError> {
        text.parse()
    }

    #[test]
    fn presets_join_the_hosts_they_say() {
        assert_eq!(parse("pair").unwrap(), Topology::pair());
        let triangle = parse("triangle").unwrap();
        assert_eq!((triangle.hosts, triangle.ports), (3, 2));
        assert_eq!(
            triangle.cables,
            [
                [port(0, 0), port(1, 0)],
                [port(1, 1), port(2, 0)],
                [port(2, 1), port(0, 1)]
            ]
        );
        assert_eq!(parse("chain4").unwrap().cables.len(), 3);
    }

    #[test]
    fn two_cables_use_two_ports_or_two_controllers() {
        assert_eq!(
            parse("pair2").unwrap().cables,
            [[port(0, 0), port(1, 0)], [port(0, 1), port(1, 1)]]
        );
        let split = parse("pair2,controllers=2").unwrap();
        assert_eq!((split.ports, split.nhis()), (1, 4));
        assert_eq!(split.cables, [[port(0, 0), port(2, 0)], [port(1, 0), port(3, 0)]]);
    }

    #[test]
    fn settings_are_read() {
        let topology =
            parse("none,hosts=3,hops=strix,lanes=1,pci=8086:ff01,rate=20000,cable=0.0-2.0").unwrap();
        assert_eq!((topology.hosts, topology.hops, topology.lanes), (3, 3, 1));
        assert_eq!(
            topology.pci,
            PciId {
                vendor: 0x8086,
                device: 0xff01
            }
        );
        assert_eq!(topology.rate, 20_000_000_000);
        assert_eq!(topology.cables, [[port(0, 0), port(2, 0)]]);
    }

    #[test]
    fn a_mistake_is_named() {
        assert_eq!(parse("ring"), Err(TopologyError::Unknown("ring".into())));
        assert_eq!(
            parse("pair,lanes=x"),
            Err(TopologyError::BadValue("x".into(), "lanes"))
        );
        assert!(matches!(
            parse("pair2,ports=1"),
            Err(TopologyError::TooFewPorts {
                needed: 2,
                ports: 1,
                ..
            })
        ));
        assert!(matches!(
            parse("pair,hosts=0"),
            Err(TopologyError::OutOfRange { what: "hosts", .. })
        ));
    }
}
