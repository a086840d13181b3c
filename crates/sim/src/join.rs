//! Which rails belong to one link. A peer's node id proves nothing: a neighbour on another cable may claim it. A rail
//! joins a link only if each side has shown the other a nonce that it got over a rail of that link.
//!
//! Rails that come up at once each begin a link, and both sides must keep the same one. The side with the smaller node
//! id leads: it sends its nonce over its oldest living link to the peer. The other side answers over the link on which
//! the nonce came, unless it has answered on another that lives.

use crate::home::LinkHome;
use crate::world::{HostId, LinkId, World};
use usb4_engine::PeerInfo;
use usb4_wire::NodeId;

impl World {
    /// The oldest living link from a host to whoever calls itself `node`.
    pub(crate) fn link_to(&self, host: HostId, node: NodeId) -> Option<LinkId> {
        self.links_of(host)
            .into_iter()
            .find(|&link| self.links[link].peer == node)
    }

    /// Whether this side chooses the link that others join.
    pub(crate) fn leads(&self, link: LinkId) -> bool {
        let home = &self.links[link];
        self.hosts[home.host].host.node() < home.peer
    }

    /// The link a rail has proved to belong to: the peer shows our nonce, and we have shown the peer's.
    pub(crate) fn joined_link(&self, port: usize, info: &PeerInfo) -> Option<LinkId> {
        let proved = |link: &LinkId| {
            let home = &self.links[*link];
            home.peer == info.node
                && home.join_sent
                && home.join == info.join
                && home.peer_join == Some(info.shown)
        };
        self.links_of(self.ports[port].host).into_iter().find(proved)
    }

    /// Rails have come or gone, or a nonce has come: chooses the link others join, where this side chooses, follows
    /// the peer's choice, where it does, and has rails join.
    pub(crate) fn sort_rails(&mut self, host: HostId) {
        for link in self.links_of(host) {
            let home = &self.links[link];
            let wanted = if self.leads(link) {
                self.link_to(host, home.peer) == Some(link)
            } else {
                home.peer_join.is_some() && !self.has_answered(host, home.peer)
            };
            if wanted && !home.join_sent {
                self.links[link].send_join();
                self.request_service(link, self.now());
            }
            self.join_others(link);
        }
    }

    /// Whether this side has shown its nonce over a living link to the node.
    fn has_answered(&self, host: HostId, node: NodeId) -> bool {
        self.links_of(host)
            .iter()
            .map(|&link| &self.links[link])
            .any(|home| home.peer == node && home.join_sent)
    }

    /// The peer has shown a nonce over an established rail of `link`.
    pub(crate) fn take_join(&mut self, link: LinkId) {
        if let Some(nonce) = self.links[link].link.take_join() {
            self.links[link].peer_join = Some(nonce);
            self.sort_rails(self.links[link].host);
        }
    }

    /// Has rails that lead to the same node ask to join `link`, once nonces have been exchanged over it.
    pub(crate) fn join_others(&mut self, link: LinkId) {
        let home = &self.links[link];
        let Some(nonce) = home.peer_join.filter(|_| home.join_sent) else {
            return;
        };
        let (host, peer) = (home.host, home.peer);
        for port in self.hosts[host].ports.clone() {
            let elsewhere = self.ports[port].link.filter(|&other| other != link);
            if elsewhere.is_some_and(|other| self.links[other].peer == peer)
                && self.ports[port].joins != Some(nonce)
            {
                self.ports[port].joins = Some(nonce);
                self.set_join(port, nonce);
            }
        }
    }
}

impl LinkHome {
    /// Shows the peer this side's nonce.
    pub(crate) fn send_join(&mut self) {
        self.join_sent = true;
        self.link.offer_join(self.join);
    }
}
