//! Hosts, controllers, ports and cables: what a fabric is made of.

mod text;

use crate::{Nanos, Nhi, PciId, Port};

/// What a fabric is made of. The fields are checked by [`Fabric::new`](crate::Fabric::new).
///
/// Its text form is a preset followed by settings: `pair`, `triangle`, `chain,hops=3,lanes=1`,
/// `pair2,controllers=2,pci=8086:ff01`. Presets: `pair` (two hosts, one cable), `pair2` (two hosts, two cables),
/// `triangle` (three hosts, each joined to both others), `chain` (three hosts in a row), `chain4` (four), `none`
/// (two hosts, no cable). Settings:
///
/// | setting | meaning |
/// | --- | --- |
/// | `hosts=N` | hosts, 1 to 4 |
/// | `controllers=N` | controllers per host, 1 to 4 |
/// | `ports=N` | USB4 ports per controller, 1 to 4 |
/// | `cable=A.P-B.P` | one more cable, between ports P of controllers A and B (counted over all hosts) |
/// | `hops=N` | ring pairs per controller, 2 to 16; `strix` = 3, `intel` = 12 |
/// | `lanes=1` or `2` | lanes per port |
/// | `pci=VVVV:DDDD` | PCI vendor and device id |
/// | `usb4=1` or `2` | USB4 version of the routers |
/// | `train=MS` | training time, milliseconds |
/// | `rate=MBPS` | per lane, megabits per second; 0 = frames take no time |
/// | `latency=NS` | of a cable, nanoseconds |
/// | `moderation=on` or `off` | honour the interrupt throttle |
/// | `wedge=on` or `off` | frames into an absent path wedge their sender |
///
/// A preset's cables use a host's ports in order: all of its first controller, then of its second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Hosts, 1 to 4.
    pub hosts: usize,
    /// Controllers per host, 1 to 4. Each is a PCI function with one host router behind it.
    pub controllers: usize,
    /// USB4 ports per controller, 1 to 4.
    pub ports: usize,
    /// Cables. All are plugged at first.
    pub cables: Vec<[Port; 2]>,
    /// Ring pairs per controller, the control channel's included, 2 to 16: 3 as on Strix Halo, 12 as on Intel.
    ///
    /// The limit is Linux's: it computes the RX word of the interrupt clear register as `hop_count / 32`, which is 8
    /// bytes above the status register (`ring_clear_msix` in `drivers/thunderbolt/nhi.c`).
    pub hops: u8,
    /// Lanes per port, 1 or 2. With 1 a port has no second lane adapter, and the driver skips bonding.
    pub lanes: u8,
    /// PCI identity. Vendor 8086 makes the driver use auto-clear interrupts, any other the interrupt clear register.
    pub pci: PciId,
    /// USB4 version of the routers, 1 or 2. The driver resets version 2 through a register, and version 1 port by port.
    pub usb4: u8,
    /// Time from both ends being ready to the link being up.
    pub training: Nanos,
    /// Bits per second of one lane; 0: frames take no time.
    pub rate: u64,
    /// Time from the end of a frame leaving one router to its arrival at the other.
    pub latency: Nanos,
    /// Honour the interrupt throttle. Off, each event is signalled at once.
    pub moderation: bool,
    /// Frames into a path the far router does not have use up the sender's credits, until its TX ring stops for good
    /// (a reset of either router, or the link going down, mends it). Seen on AMD hosts.
    pub wedge: bool,
}

/// What is wrong with a topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A setting is out of range.
    #[error("{what} must be {min} to {max}, not {value}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A cable ends at a port that does not exist.
    #[error("cable {cable} ends at {port}, which does not exist")]
    NoSuchPort {
        /// The cable's number.
        cable: usize,
        /// The end.
        port: Port,
    },
    /// Two cable ends are in one port.
    #[error("two cable ends are in port {0}")]
    PortTaken(Port),
    /// The preset needs more ports per host.
    #[error("{preset} needs {needed} ports per host, there are {ports}")]
    TooFewPorts {
        /// The preset's name.
        preset: String,
        /// Ports it needs.
        needed: usize,
        /// Ports there are.
        ports: usize,
    },
    /// Not a preset or setting.
    #[error("{0:?} is neither a preset nor a setting; try pair, pair2, triangle, chain, chain4 or none")]
    Unknown(String),
    /// A setting's value makes no sense.
    #[error("{0:?} is not a value for {1}")]
    BadValue(String, &'static str),
}

impl Topology {
    /// Two hosts, one cable: 12 hops, two lanes, a USB4 version 1 router without Intel's auto-clear.
    #[must_use]
    pub fn pair() -> Self {
        Self {
            hosts: 2,
            controllers: 1,
            ports: 1,
            cables: vec![[port(0, 0), port(1, 0)]],
            hops: 12,
            lanes: 2,
            pci: PciId::OTHER,
            usb4: 1,
            training: 200_000_000,
            rate: 0,
            latency: 0,
            moderation: true,
            wedge: false,
        }
    }

    /// Controllers of all hosts.
    #[must_use]
    pub fn nhis(&self) -> usize {
        self.hosts.saturating_mul(self.controllers)
    }

    /// The host a controller is in.
    #[must_use]
    pub fn host_of(&self, nhi: Nhi) -> usize {
        nhi.0.checked_div(self.controllers).unwrap_or(0)
    }

    pub(crate) fn check(&self) -> Result<(), TopologyError> {
        let range = |what, value: usize, min, max| {
            let value = value as u64;
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(TopologyError::OutOfRange {
                    what,
                    value,
                    min,
                    max,
                })
            }
        };
        range("hosts", self.hosts, 1, 4)?;
        range("controllers", self.controllers, 1, 4)?;
        range("ports", self.ports, 1, 4)?;
        range("hops", usize::from(self.hops), 2, 16)?;
        range("lanes", usize::from(self.lanes), 1, 2)?;
        range("usb4", usize::from(self.usb4), 1, 2)?;
        let mut taken = Vec::new();
        for (cable, ends) in self.cables.iter().enumerate() {
            for &end in ends {
                if end.nhi.0 >= self.nhis() || end.port >= self.ports {
                    return Err(TopologyError::NoSuchPort { cable, port: end });
                }
                if taken.contains(&end) {
                    return Err(TopologyError::PortTaken(end));
                }
                taken.push(end);
            }
        }
        Ok(())
    }
}

const fn port(nhi: usize, port: usize) -> Port {
    Port { nhi: Nhi(nhi), port }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_needs_two_free_ports_that_exist() {
        let mut topology = Topology::pair();
        assert_eq!(topology.check(), Ok(()));
        topology.cables.push([port(0, 0), port(1, 0)]);
        assert_eq!(topology.check(), Err(TopologyError::PortTaken(port(0, 0))));
        topology.cables = vec![[port(0, 0), port(2, 0)]];
        assert_eq!(
            topology.check(),
            Err(TopologyError::NoSuchPort {
                cable: 0,
                port: port(2, 0)
            })
        );
    }

    #[test]
    fn more_rings_than_linux_can_clear_are_refused() {
        let topology = Topology {
            hops: 17,
            ..Topology::pair()
        };
        assert!(matches!(
            topology.check(),
            Err(TopologyError::OutOfRange {
                what: "hops",
                value: 17,
                ..
            })
        ));
    }
}
