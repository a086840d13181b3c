//! The home's side of [`Joins`]: which number of its is which link and which port.

use crate::world::{HostId, LinkId, World};
use usb4_engine::{JoinOrder, Joins, NodeId, Slab};

/// Links and rails of one host at most.
const MOST: usize = 64;

/// What a host knows of its links and rails, by [`crate::home::LinkHome::number`] and by place among the host's ports.
pub(crate) fn nothing_known(host: NodeId) -> Joins {
    Joins::new(host, Slab::boxed(MOST), Slab::boxed(MOST))
}

impl World {
    /// Has a host give a nonce of the caller's choice over a link, as a hostile one would.
    pub fn offer_join(&mut self, link: LinkId, nonce: u64) {
        self.links[link].link.offer_join(nonce);
        self.request_service(link, self.now());
    }

    /// Rails have come or gone, or a nonce has come: does what follows from that.
    pub(crate) fn sort_rails(&mut self, host: HostId) {
        while let Some(order) = self.hosts[host].joins.next_order() {
            match order {
                JoinOrder::Offer { link, nonce } => {
                    if let Some(link) = self.link_numbered(host, link) {
                        self.offer_join(link, nonce);
                    }
                }
                JoinOrder::Show { rail, nonce } => {
                    let port = self.hosts[host].ports[rail];
                    self.set_join(port, nonce);
                }
            }
        }
    }

    /// The peer may have sent a nonce over an established rail of `link`.
    pub(crate) fn take_join(&mut self, link: LinkId) {
        if let Some(nonce) = self.links[link].link.take_join() {
            let host = self.links[link].host;
            self.hosts[host].joins.came(self.links[link].number, nonce);
            self.sort_rails(host);
        }
    }

    /// A port's place among those of its host.
    pub(crate) fn rail_number(&self, port: usize) -> usize {
        let ports = &self.hosts[self.ports[port].host].ports;
        ports.iter().position(|&other| other == port).unwrap_or(MOST)
    }

    /// A host's living link of that number.
    pub(crate) fn link_numbered(&self, host: HostId, number: usize) -> Option<LinkId> {
        let links = self.links_of(host);
        links.into_iter().find(|&link| self.links[link].number == number)
    }

    /// A number that none of a host's links has, dead ones left out.
    pub(crate) fn free_number(&self, host: HostId) -> usize {
        let links = self.links_of(host);
        let taken = |number| links.iter().any(|&link| self.links[link].number == number);
        (0..MOST).find(|&number| !taken(number)).unwrap_or(MOST)
    }
}
