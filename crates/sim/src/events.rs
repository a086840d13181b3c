//! What happens to hosts and cables: plugs pulled, hosts stopped, crashed and closed.

use crate::host::SimHost;
use crate::join::nothing_known;
use crate::world::{CableId, HostId, World};
use usb4_wire::Control;

impl World {
    /// Pulls the cable out at both ends; the hosts notice at once.
    pub fn unplug(&mut self, cable: CableId) {
        for port in [2 * cable, 2 * cable + 1] {
            self.ports[port].plugged = false;
            self.directions[port].clear(&mut self.pool);
        }
        for port in [2 * cable, 2 * cable + 1] {
            self.abort_bringup(port);
            self.ports[port].forget(&mut self.pool);
            let rail = self.rail_number(port);
            self.hosts[self.ports[port].host].joins.closed(rail);
        }
    }

    /// Puts the cable back in; bring-up begins.
    pub fn plug(&mut self, cable: CableId) {
        for port in [2 * cable, 2 * cable + 1] {
            self.ports[port].plugged = true;
        }
        for port in [2 * cable, 2 * cable + 1] {
            self.begin_bringup(port);
        }
    }

    /// The host takes its end of the cable down in good order (module unloaded, suspend).
    pub fn close(&mut self, cable: CableId, host: HostId) {
        let port = self.port_of(cable, host);
        self.close_rail(port);
    }

    /// The host runs nothing for a while (stopped process, machine in a debugger); its NIC goes on receiving.
    pub fn stop(&mut self, host: HostId) {
        self.hosts[host].stopped = true;
    }

    /// The stopped host goes on where it was.
    pub fn resume(&mut self, host: HostId) {
        self.hosts[host].stopped = false;
        let now = self.now();
        for link in 0..self.links.len() {
            if self.links[link].host == host {
                self.links[link].forget_service();
                self.request_service(link, now);
            }
        }
        for port in self.hosts[host].ports.clone() {
            self.resume_bringup(port);
        }
    }

    /// The host dies without a word: memory, links and state machines are gone, its paths too. Its neighbours
    /// notice nothing but silence.
    pub fn crash(&mut self, host: HostId) {
        let now_dead = (0..self.links.len())
            .filter(|&link| self.links[link].host == host)
            .collect::<Vec<_>>();
        for link in now_dead {
            self.links[link].dead = true;
        }
        for port in self.hosts[host].ports.clone() {
            self.ports[port].forget(&mut self.pool);
            self.ports[port].forgetful = true;
        }
        let node = &mut self.hosts[host];
        node.stopped = true;
        node.joins = nothing_known(node.host.node());
        node.host = SimHost::new(host, node.host.node(), node.rng.fork());
    }

    /// A crashed host starts anew, with empty memory.
    pub fn boot(&mut self, host: HostId) {
        self.hosts[host].stopped = false;
        for port in self.hosts[host].ports.clone() {
            self.begin_bringup(port);
        }
    }

    /// Keeps copies of all frames and control messages a host puts on a cable from now on.
    pub fn tap(&mut self, cable: CableId, from: HostId) {
        let port = self.port_of(cable, from);
        self.ports[port].tap = Some(Vec::new());
    }

    /// The frames a tap has seen so far, oldest first.
    pub fn tapped(&self, cable: CableId, from: HostId) -> &[Vec<u8>] {
        self.ports[self.port_of(cable, from)]
            .tap
            .as_deref()
            .unwrap_or_default()
    }

    /// The control messages a tap has seen so far, oldest first.
    pub fn tapped_control(&self, cable: CableId, from: HostId) -> &[Control] {
        &self.ports[self.port_of(cable, from)].control_tap
    }

    /// Puts a frame of a hostile neighbour on the cable, as if `from` had sent it.
    pub fn inject(&mut self, cable: CableId, from: HostId, bytes: &[u8]) {
        let port = self.port_of(cable, from);
        let frame = self.pool.frame(bytes);
        self.transmit(port, frame);
    }

    /// Puts a control message of a hostile neighbour on its way, as if `from` had sent it.
    pub fn inject_control(&mut self, cable: CableId, from: HostId, message: [u8; usb4_wire::CONTROL_LEN]) {
        let port = self.port_of(cable, from);
        self.send_control(port, message);
    }
}
