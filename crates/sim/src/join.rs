//! Which rails belong to one link. A peer's node id proves nothing: a neighbour on another cable may claim it. A rail
//! joins a link only if each side has shown the other a nonce that it got over a rail of that link.
//!
//! Rails that come up at once each begin a link, and both sides must keep the same one. The side with the smaller node
//! id leads: it sends its nonce over its oldest living link to the peer. The other side answers over the link on which
//! the nonce came, unless it has answered on another that lives. Both then pass the nonce they got on over their other
//! links to the same node: whoever gets his own nonce back over one knows that it leads to the same peer, and only then
//! has its rail join. So a neighbour who claims another's node id can end no session but his own.

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

    /// Has a host give a nonce of the caller's choice over a link, as a hostile one would.
    pub fn offer_join(&mut self, link: LinkId, nonce: u64) {
        self.links[link].link.offer_join(nonce);
        self.request_service(link, self.now());
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

    /// The peer has sent a nonce over an established rail of `link`: its own, or ours back.
    pub(crate) fn take_join(&mut self, link: LinkId) {
        if let Some(nonce) = self.links[link].link.take_join() {
            if self.gave(link, nonce) {
                self.links[link].proved = Some(nonce);
            } else {
                self.links[link].peer_join.get_or_insert(nonce);
            }
            self.sort_rails(self.links[link].host);
        }
    }

    /// Whether this side gave that nonce over another living link to the same node.
    pub(crate) fn gave(&self, link: LinkId, nonce: u64) -> bool {
        let LinkHome { host, peer, .. } = self.links[link];
        let others = self.links_of(host).into_iter().filter(|&other| other != link);
        others
            .map(|other| &self.links[other])
            .any(|home| home.peer == peer && home.join_sent && home.join == nonce)
    }

    /// Once nonces have been exchanged over `link`: finds out which rails of other links lead to the same peer, and
    /// has those ask to join.
    pub(crate) fn join_others(&mut self, link: LinkId) {
        let home = &self.links[link];
        let Some(nonce) = home.peer_join.filter(|_| home.join_sent) else {
            return;
        };
        let (host, peer, ours) = (home.host, home.peer, home.join);
        for port in self.hosts[host].ports.clone() {
            let elsewhere = self.ports[port].link.filter(|&other| other != link);
            let Some(other) = elsewhere.filter(|&other| self.links[other].peer == peer) else {
                continue;
            };
            if self.links[other].asked != Some(nonce) {
                self.links[other].asked = Some(nonce);
                self.offer_join(other, nonce);
            }
            if self.links[other].proved == Some(ours) && self.ports[port].joins != Some(nonce) {
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
