//! What applications do: endpoints, memory, flows and work.

use crate::host::Endpoint;
use crate::memory::{Access, Region};
use crate::world::{HostId, LinkId, World};
use usb4_engine::{FlowId, OpenError, Operation, PostError, Work};

/// An open flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The link that carries it.
    pub link: LinkId,
    /// The engine's name for it.
    pub id: FlowId,
}

/// A local buffer: where in which region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buf {
    /// The region.
    pub region: Region,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Region {
    /// Part of the region.
    pub fn at(self, offset: u64, len: u32) -> Buf {
        Buf {
            region: self,
            offset,
            len,
        }
    }
}

impl Buf {
    /// The address peers name the buffer by.
    pub fn remote_addr(&self) -> u64 {
        self.region.addr + self.offset
    }
}

impl World {
    /// Opens an endpoint on a host.
    pub fn endpoint(&mut self, host: HostId) -> Endpoint {
        let node = &mut self.hosts[host];
        let incarnation = u32::try_from(node.rng.next_u64() >> 32).unwrap_or(1);
        node.host.open_endpoint(host, incarnation)
    }

    /// Closes an endpoint; senders are refused with `Gone` from now on.
    pub fn close_endpoint(&mut self, ep: Endpoint) {
        self.hosts[ep.host].host.close_endpoint(ep.index);
        let now = self.now();
        for link in self.links_of(ep.host) {
            self.links[link]
                .link
                .close_target(now, ep.index, &self.hosts[ep.host].host);
            self.request_service(link, now);
        }
    }

    /// A region of `bytes` on a host.
    pub fn memory(&mut self, host: HostId, bytes: Vec<u8>, access: Access) -> Region {
        self.hosts[host].host.register(bytes, access)
    }

    /// Kills a region's remote key.
    pub fn revoke(&mut self, region: Region) {
        self.hosts[region.host].host.revoke(region);
    }

    /// Posts a receive on an endpoint.
    pub fn post_receive(&mut self, ep: Endpoint, buf: Buf, cookie: u64) {
        let host = &self.hosts[ep.host].host;
        if host.post_receive(ep.index, buf.region, buf.offset, buf.len, cookie) {
            self.tell_links(ep);
        }
    }

    fn tell_links(&mut self, ep: Endpoint) {
        let now = self.now();
        for link in self.links_of(ep.host) {
            self.links[link].link.receive_posted(now, ep.index);
            self.request_service(link, now);
        }
    }

    /// Opens a flow between two endpoints over the link their hosts have.
    ///
    /// # Errors
    /// There is no link, or it has no flow left.
    pub fn open_flow(&mut self, from: Endpoint, to: Endpoint) -> Result<Flow, OpenError> {
        let link = self.link_between(from.host, to.host).ok_or(OpenError::Down)?;
        self.open_flow_on(link, from, to)
    }

    /// Opens a flow over a particular link.
    ///
    /// # Errors
    /// The link has no flow left or is down.
    pub fn open_flow_on(&mut self, link: LinkId, from: Endpoint, to: Endpoint) -> Result<Flow, OpenError> {
        let now = self.now();
        let opened = self.links[link]
            .link
            .open_flow(now, from.index, from.addr.incarnation, &to.addr);
        // Without success, too: an idle flow may have been closed.
        self.request_service(link, now);
        Ok(Flow { link, id: opened? })
    }

    /// Closes a flow; its work is flushed.
    pub fn close_flow(&mut self, flow: Flow) {
        let now = self.now();
        let home = &mut self.links[flow.link];
        home.link.close_flow(now, flow.id, &self.hosts[home.host].host);
        self.request_service(flow.link, now);
    }

    /// Posts work on a flow; `cookie` comes back in [`usb4_engine::WorkDone`].
    ///
    /// # Errors
    /// The engine has no room, or the flow or link is gone.
    pub fn post(
        &mut self,
        flow: Flow,
        cookie: u64,
        op: Operation,
        local: Option<Buf>,
    ) -> Result<(), PostError> {
        let now = self.now();
        let home = &mut self.links[flow.link];
        let host = &self.hosts[home.host].host;
        let at = local
            .filter(|buf| buf.len > 0)
            .map(|buf| host.grant(buf.region, buf.offset));
        let len = local.map_or(0, |buf| buf.len);
        if let Err(error) = home.link.post(
            now,
            flow.id,
            Work {
                cookie,
                op,
                local: at,
                len,
            },
        ) {
            if let Some(at) = at {
                usb4_engine::Host::release(host, at.mem);
            }
            return Err(error);
        }
        home.charge(now, self.profile.costs.message);
        self.request_service(flow.link, now);
        Ok(())
    }

    /// Posts a SEND.
    ///
    /// # Errors
    /// As [`World::post`].
    pub fn send(&mut self, flow: Flow, cookie: u64, buf: Buf) -> Result<(), PostError> {
        let op = Operation::Send {
            imm: None,
            prefix: [0; 24],
            prefix_len: 0,
        };
        self.post(flow, cookie, op, Some(buf))
    }

    /// Posts a WRITE of `from` to the remote buffer `to`.
    ///
    /// # Errors
    /// As [`World::post`].
    pub fn write(&mut self, flow: Flow, cookie: u64, from: Buf, to: Buf) -> Result<(), PostError> {
        let op = Operation::Write {
            remote_addr: to.remote_addr(),
            remote_key: to.region.key,
            imm: None,
        };
        self.post(flow, cookie, op, Some(from))
    }

    /// Posts a READ of the remote buffer `from` into `to`.
    ///
    /// # Errors
    /// As [`World::post`].
    pub fn read(&mut self, flow: Flow, cookie: u64, to: Buf, from: Buf) -> Result<(), PostError> {
        let op = Operation::Read {
            remote_addr: from.remote_addr(),
            remote_key: from.region.key,
        };
        self.post(flow, cookie, op, Some(to))
    }

    /// Posts a fetch-add on 8 bytes of a remote buffer; the old value goes to `old`.
    ///
    /// # Errors
    /// As [`World::post`].
    pub fn fetch_add(
        &mut self,
        flow: Flow,
        cookie: u64,
        old: Buf,
        at: Buf,
        add: u64,
    ) -> Result<(), PostError> {
        let op = Operation::FetchAdd {
            remote_addr: at.remote_addr(),
            remote_key: at.region.key,
            add,
        };
        self.post(flow, cookie, op, Some(old))
    }
}
