//! A soft device: core, keeper and peers, without clients.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use usb4_device::{ClientId, DeviceError, EndpointId, EndpointKind};
use usb4_engine::LinkStorage;
use usb4_wire::{EpAddr, NodeId};

use crate::cable::CableEnd;
use crate::clock::now;
pub(crate) use crate::core::Drivers;
use crate::core::{Core, Port, RAIL};
use crate::directory::Directory;
use crate::faults::Plan;
use crate::home::random;
use crate::keeper::{self, KeeperHandle};
use crate::names::Fabric;
use crate::{Error, Peer, PeerState};

/// A running soft device.
#[derive(Debug)]
pub(crate) struct SoftDevice {
    pub(crate) core: Arc<Core>,
    directory: Arc<Directory>,
    fabric: Fabric,
    node: NodeId,
    _keeper: KeeperHandle,
}

impl SoftDevice {
    /// Starts a device on a fabric, under a random node id.
    pub(crate) fn start(fabric: Fabric, drivers: Drivers) -> Result<Self, Error> {
        let faults = Plan::from_environment()?;
        let node = NodeId::from_halves(random(), random());
        let core = Arc::new(Core::new(node, drivers)?);
        loop_back(&core, node)?;
        let directory = Arc::new(Directory::default());
        directory.set_up(node, std::process::id());
        let keeper = keeper::start(
            Arc::clone(&core),
            Arc::clone(&directory),
            fabric.clone(),
            node,
            faults,
        )?;
        Ok(Self {
            core,
            directory,
            fabric,
            node,
            _keeper: keeper,
        })
    }

    /// Its node id.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Its fabric's name.
    pub(crate) fn fabric(&self) -> &str {
        self.fabric.name()
    }

    /// The other devices on the fabric.
    pub(crate) fn peers(&self) -> Result<Vec<Peer>, Error> {
        let known = self.directory.known();
        let peer = |node| match known.iter().find(|known| known.node == node) {
            Some(known) if known.up => Peer {
                node,
                state: PeerState::Up,
                pid: Some(known.pid).filter(|pid| *pid != 0),
            },
            Some(_) => Peer {
                node,
                state: PeerState::Connecting,
                pid: None,
            },
            None => Peer {
                node,
                state: PeerState::Seen,
                pid: None,
            },
        };
        let nodes = self.fabric.nodes().map_err(Error::os("read /proc/net/unix"))?;
        Ok(nodes
            .into_iter()
            .filter(|node| *node != self.node)
            .map(peer)
            .collect())
    }

    /// Makes an address handle, or gives a connected endpoint its peer (handle 0). Calls the peer's device first
    /// if there is no link to it: waits for that up to `wait`; without, `None` while the call is under way.
    pub(crate) fn address_handle(
        &self,
        client: ClientId,
        endpoint: EndpointId,
        kind: EndpointKind,
        peer: &EpAddr,
        wait: Option<Duration>,
    ) -> Result<Option<u32>, Error> {
        self.core.check_process()?;
        let deadline = wait.map(|wait| Instant::now() + wait);
        if self
            .directory
            .connect(peer.node, deadline, || self.core.wake_keeper())?
            .is_none()
        {
            return Ok(None);
        }
        let device = &self.core.device;
        let handle = match kind {
            EndpointKind::Datagram => device.create_ah(client, endpoint, peer),
            EndpointKind::Connected => device.connect(client, endpoint, peer).map(|()| 0),
        };
        match handle {
            Ok(handle) => Ok(Some(handle)),
            // The link went down at this very moment.
            Err(DeviceError::Unreachable) => Err(Error::Unreachable(peer.node)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Adds the link of a device to itself: a cable whose two ends are one region.
fn loop_back(core: &Core, node: NodeId) -> Result<(), Error> {
    let cable = CableEnd::new().and_then(|end| {
        let region = end.fd().try_clone_to_owned()?;
        end.join(region, core.bell().as_fd().try_clone_to_owned()?)
    });
    let cable = cable.map_err(Error::os("allocate the loopback cable"))?;
    let config = keeper::link_config(node, node);
    let tag = random();
    let rail = keeper::rail_config(tag, tag, keeper::RING, config.max_ack_delay);
    let link = core.device.add_link(config, LinkStorage::boxed(&config))?;
    core.device.attach_rail(link, now(), RAIL, &rail)?;
    core.add_port(Port::new(link, Arc::new(cable)));
    Ok(())
}
