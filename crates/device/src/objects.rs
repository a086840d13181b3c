//! Creating and destroying completion queues, endpoints and address handles.

use usb4_engine::{EpAddr, Nanos};
use usb4_ring_abi::Consumer;

use crate::ah::{self, Ah, AhSlot};
use crate::client::{Control, count};
use crate::cq::{Cq, CqSlot};
use crate::endpoint::{EndpointSlot, FAILED, Kind, Rx, Tx};
use crate::id::SPECIAL_QPS;
use crate::lists::Lists;
use crate::memory::Domain;
use crate::qp::Told;
use crate::{
    ClientId, CqConfig, CqId, Device, DeviceError, EndpointConfig, EndpointId, EndpointKind, EndpointState,
    Home, LinkId, Object, QpEvent,
};

impl<H: Home> Device<H> {
    /// Creates a completion queue.
    ///
    /// # Errors
    /// A bad depth, too little memory or too few places, quota or table full, no such client.
    pub fn create_cq(&self, client: ClientId, config: CqConfig<H>) -> Result<CqId, DeviceError> {
        let mut cq = Cq::new(client, config)?;
        let depth = cq.depth();
        let mut control = self.control.lock();
        control.charge(client, |quota, used| {
            let cqs = used.cqs;
            count(&mut used.cqs, 1, quota.cqs, Object::Cq)?;
            count(&mut used.cq_entries, depth, quota.cq_entries, Object::CqEntry)
                .inspect_err(|_| used.cqs = cqs)
        })?;
        for (index, slot) in self.cqs.iter().enumerate() {
            let Ok(index) = u16::try_from(index) else { break };
            match slot.put(index, cq) {
                Ok(id) => return Ok(id),
                Err(back) => cq = back,
            }
        }
        credit_cq(&mut control, client, depth);
        drop(control);
        Err(DeviceError::Full(Object::Cq))
    }

    /// Destroys a completion queue. Its completions not yet polled are lost. Waits only for turns of
    /// [`Self::turn`] that are running in other threads; must not be called from within one.
    ///
    /// # Errors
    /// The client has no such queue, or an endpoint still uses it.
    pub fn destroy_cq(&self, client: ClientId, cq: CqId) -> Result<(), DeviceError> {
        let slot = self.cq(cq).ok_or(DeviceError::NoCq)?;
        let gone = slot.take(cq, |cq| match (cq.client == client, cq.users) {
            (false, _) => Err(DeviceError::NoCq),
            (true, 0) => Ok(()),
            (true, _) => Err(DeviceError::Busy),
        })?;
        self.wait_for_copies();
        credit_cq(&mut self.control.lock(), client, gone.depth());
        Ok(())
    }

    /// Creates an endpoint. A connected one takes no work before [`Self::connect`].
    ///
    /// # Errors
    /// A bad depth or too little memory, no such completion queue, quota or table full, no such client.
    pub fn create_endpoint(
        &self,
        client: ClientId,
        config: EndpointConfig<H>,
    ) -> Result<(EndpointId, EpAddr), DeviceError> {
        let kind = Kind::Ring(config.kind);
        self.create(
            Domain::of(client),
            kind,
            None,
            self.random_incarnation(),
            config,
            (None, None),
        )
    }

    /// Creates an endpoint of any kind; that in `config` does not count. A `special` one gets that number. `srq` is what a queue
    /// pair draws from.
    pub(crate) fn create(
        &self,
        domain: Domain,
        kind: Kind,
        special: Option<u16>,
        incarnation: u32,
        config: EndpointConfig<H>,
        (srq, lists): (Option<EndpointId>, Option<Lists>),
    ) -> Result<(EndpointId, EpAddr), DeviceError> {
        let client = domain.client;
        let EndpointConfig {
            kind: _,
            send_cq,
            recv_cq,
            sq_depth,
            sq,
            rq_depth,
            rq,
            handles,
        } = config;
        if kind.is_connected() && handles.is_empty() {
            return Err(DeviceError::Storage);
        }
        let mut sq = Consumer::new(sq, sq_depth)?;
        let rq = Consumer::new(rq, rq_depth)?;
        // Until a home says that it polls (`disarm_all`), clients must call.
        let _ = sq.arm();
        let mut control = self.control.lock();
        control.charge(client, |quota, used| {
            count(&mut used.endpoints, 1, quota.endpoints, Object::Endpoint)
        })?;
        let placed = self.use_cqs(client, send_cq, recv_cq).and_then(|()| {
            self.place_endpoint(kind, special)
                .ok_or(DeviceError::Full(Object::Endpoint))
                .inspect_err(|_| {
                    self.leave_cqs(send_cq, recv_cq);
                })
        });
        let (slot, id) = match placed {
            Ok(placed) => placed,
            Err(error) => {
                control.credit(client, |used| used.endpoints = used.endpoints.saturating_sub(1));
                return Err(error);
            }
        };
        let process_key = control.process_key(client);
        let number = match kind {
            Kind::Ring(_) | Kind::Srq => id.0,
            Kind::Qp(_) => id.number(),
        };
        self.put_lists(id, lists);
        *slot.tx.lock() = Some(Tx {
            id,
            domain,
            kind,
            op_flags: kind.op_flags(),
            incarnation,
            cq: send_cq,
            process_key,
            told: Told::NOTHING,
            qkey: 0,
            sq,
            handles,
        });
        *slot.rx.lock() = Some(Rx {
            id,
            domain,
            kind,
            op_flags: kind.op_flags(),
            incarnation,
            cq: recv_cq,
            process_key,
            peer: None,
            qkey: 0,
            rq,
        });
        let state = match kind {
            Kind::Ring(EndpointKind::Datagram) => EndpointState::Ready,
            Kind::Ring(EndpointKind::Connected) => EndpointState::Unconnected,
            Kind::Qp(_) | Kind::Srq => EndpointState::Reset,
        };
        slot.open(id, domain, kind, state, srq);
        Ok((
            id,
            EpAddr {
                node: self.node,
                ep: number,
                incarnation,
            },
        ))
    }

    /// Destroys an endpoint. Work in flight completes `FLUSHED`; receives not taken are forgotten. When this
    /// returns nothing reads or writes the buffers of its submissions any more; those of receives that messages
    /// have taken are in use until these complete. Waits only for turns of [`Self::service`] that are running in
    /// other threads; must not be called from within one.
    ///
    /// # Errors
    /// The client has no such endpoint; it is a shared receive queue that queue pairs draw from.
    pub fn destroy_endpoint(&self, client: ClientId, ep: EndpointId, now: Nanos) -> Result<(), DeviceError> {
        let slot = self.endpoint_of(client, ep)?;
        let srq = slot.draws_from();
        if srq == Some(ep) {
            self.close_srq(slot, ep)?;
        } else if !slot.close(ep) {
            return Err(DeviceError::NoEndpoint);
        }
        // From here on nobody finds the endpoint; what is under way is stopped before the queues are dropped.
        let tx = slot.tx.lock().take();
        let rx = slot.rx.lock().take();
        self.hide_lists(ep);
        let mut handles = 0_u32;
        if let Some(mut tx) = tx {
            handles = self.close_flows(&mut tx.handles, now);
            if let Some(rx) = &rx {
                self.leave_cqs(tx.cq, rx.cq);
            }
        }
        self.close_target(ep, now);
        self.wait_for_copies();
        self.leave_srq(srq.filter(|srq| *srq != ep));
        // SAFETY: they were hidden after both halves were emptied, and copies have been waited for.
        unsafe { self.drop_lists(ep) };
        let mut control = self.control.lock();
        slot.leave_place();
        control.credit(client, |used| {
            used.endpoints = used.endpoints.saturating_sub(1);
            used.handles = used.handles.saturating_sub(handles);
        });
        Ok(())
    }

    /// Gives a connected endpoint its peer; address handle 0 is then that peer.
    ///
    /// # Errors
    /// No such endpoint, not of that kind, connected already, or no link to the peer's host.
    pub fn connect(&self, client: ClientId, ep: EndpointId, peer: &EpAddr) -> Result<(), DeviceError> {
        let slot = self.endpoint_of(client, ep)?;
        let link = self.link_to(peer.node).ok_or(DeviceError::Unreachable)?;
        let mut tx = slot.tx.lock();
        let tx = tx
            .as_mut()
            .filter(|tx| tx.id == ep)
            .ok_or(DeviceError::NoEndpoint)?;
        if tx.kind != Kind::Ring(EndpointKind::Connected) || slot.state() != EndpointState::Unconnected {
            return Err(DeviceError::State);
        }
        let handle = tx.handles.first_mut().ok_or(DeviceError::Storage)?;
        *handle = AhSlot(Some(Ah::new(*peer, link)));
        if let Some(rx) = slot.rx.lock().as_mut() {
            rx.peer = Some(*peer);
        }
        if slot.change(EndpointState::Unconnected, EndpointState::Ready) {
            Ok(())
        } else {
            Err(DeviceError::State)
        }
    }

    /// Takes a connected endpoint out of its error state (or any other but killed), back to unconnected, under a
    /// new incarnation: what the old peer still sends does not reach it. Entries posted and not taken stay.
    ///
    /// # Errors
    /// No such endpoint, not of that kind, or killed.
    pub fn reset_endpoint(
        &self,
        client: ClientId,
        ep: EndpointId,
        now: Nanos,
    ) -> Result<EpAddr, DeviceError> {
        let slot = self.endpoint_of(client, ep)?;
        let incarnation = self.random_incarnation();
        {
            let mut tx = slot.tx.lock();
            let tx = tx
                .as_mut()
                .filter(|tx| tx.id == ep)
                .ok_or(DeviceError::NoEndpoint)?;
            let old = slot.state();
            if tx.kind != Kind::Ring(EndpointKind::Connected)
                || old == EndpointState::Killed
                || !slot.change(old, EndpointState::Unconnected)
            {
                return Err(DeviceError::State);
            }
            self.close_flows(&mut tx.handles, now);
            if let Some(handle) = tx.handles.first_mut() {
                *handle = AhSlot(None);
            }
            tx.incarnation = incarnation;
            if let Some(rx) = slot.rx.lock().as_mut() {
                rx.incarnation = incarnation;
                rx.peer = None;
            }
        }
        self.close_target(ep, now);
        Ok(EpAddr {
            node: self.node,
            ep: ep.0,
            incarnation,
        })
    }

    /// Where an endpoint stands.
    ///
    /// # Errors
    /// The client has no such endpoint.
    pub fn endpoint_state(&self, client: ClientId, ep: EndpointId) -> Result<EndpointState, DeviceError> {
        self.endpoint_of(client, ep).map(EndpointSlot::state)
    }

    /// Creates an address handle on a datagram endpoint or queue pair: resolves the host to its link.
    ///
    /// # Errors
    /// No such endpoint, not of that kind, no link to that host, no more handles.
    pub fn create_ah(&self, client: ClientId, ep: EndpointId, dst: &EpAddr) -> Result<u32, DeviceError> {
        let slot = self.endpoint_of(client, ep)?;
        let link = self.link_to(dst.node).ok_or(DeviceError::Unreachable)?;
        let mut control = self.control.lock();
        control.charge(client, |quota, used| {
            count(&mut used.handles, 1, quota.handles, Object::Handle)
        })?;
        let created = (|| {
            let mut tx = slot.tx.lock();
            let tx = tx
                .as_mut()
                .filter(|tx| tx.id == ep)
                .ok_or(DeviceError::NoEndpoint)?;
            if tx.kind.is_connected() {
                return Err(DeviceError::State);
            }
            // What has an incarnation is no queue pair.
            if matches!(tx.kind, Kind::Qp(_)) && dst.incarnation != 0 {
                return Err(DeviceError::Range);
            }
            ah::insert(&mut tx.handles, Ah::new(*dst, link)).ok_or(DeviceError::Full(Object::Handle))
        })();
        if created.is_err() {
            control.credit(client, |used| used.handles = used.handles.saturating_sub(1));
        }
        created
    }

    /// Destroys an address handle; work in flight through it completes `FLUSHED`.
    ///
    /// # Errors
    /// No such endpoint or handle.
    pub fn destroy_ah(
        &self,
        client: ClientId,
        ep: EndpointId,
        ah: u32,
        now: Nanos,
    ) -> Result<(), DeviceError> {
        let slot = self.endpoint_of(client, ep)?;
        {
            let mut tx = slot.tx.lock();
            let tx = tx
                .as_mut()
                .filter(|tx| tx.id == ep)
                .ok_or(DeviceError::NoEndpoint)?;
            if tx.kind.is_connected() {
                return Err(DeviceError::State);
            }
            let handle = tx
                .handles
                .get_mut(ah as usize)
                .filter(|handle| handle.0.is_some());
            let handle = handle.ok_or(DeviceError::NoHandle)?;
            let open = handle.take_flow();
            *handle = AhSlot(None);
            if let Some((link, flow)) = open {
                self.close_flow(link, flow, now);
            }
        }
        self.control
            .lock()
            .credit(client, |used| used.handles = used.handles.saturating_sub(1));
        Ok(())
    }

    /// The address behind the `src` of a client's completion; remembered after the flow is closed, until the place is
    /// needed.
    pub fn source(&self, client: ClientId, src: u32) -> Option<EpAddr> {
        self.sources.lock().get(client, src)
    }

    /// Closes the flows of all handles; returns how many handles there are.
    pub(crate) fn close_flows(&self, handles: &mut [AhSlot], now: Nanos) -> u32 {
        let mut count = 0_u32;
        for handle in handles.iter_mut().filter(|handle| handle.0.is_some()) {
            count = count.saturating_add(1);
            if let Some((link, flow)) = handle.take_flow() {
                self.close_flow(link, flow, now);
            }
        }
        count
    }

    /// Closes flows that take no more work, so that what they hold on the link comes back. The next entry through
    /// their handles opens new ones.
    pub(crate) fn sweep(&self, slot: &EndpointSlot<H>, ep: EndpointId, now: Nanos) {
        let mut tx = slot.tx.lock();
        let Some(tx) = tx.as_mut().filter(|tx| tx.id == ep) else {
            return;
        };
        for handle in tx.handles.iter_mut() {
            let Some(Ah {
                link,
                flow: Some(flow),
                ..
            }) = handle.0
            else {
                continue;
            };
            if self.with_link(link, |link| link.is_open(flow)) == Some(false) {
                handle.take_flow();
                self.close_flow(link, flow, now);
            }
        }
    }

    /// Stops an endpoint whose client corrupted its queues.
    pub(crate) fn kill(&self, slot: &EndpointSlot<H>, ep: EndpointId) {
        if slot.kill() {
            self.attend(slot, ep, FAILED);
            let event = match slot.qp_kind() {
                Some(_) => QpEvent::Fatal,
                None if slot.is_srq(ep) => QpEvent::Corrupt,
                None => return,
            };
            self.home.qp_event(slot.client(), ep, event);
        }
    }

    /// A completion queue was found corrupted, or gone. No completion queue's lock is held.
    #[cold]
    pub(crate) fn tell_dead(&self, id: CqId) {
        if let Some(slot) = self.cq(id) {
            slot.with(id, |cq| {
                if cq.take_dead() {
                    self.home.cq_error(&cq.waker);
                }
            });
        }
    }

    /// The place of a completion queue with that name.
    #[inline]
    pub(crate) fn cq(&self, id: CqId) -> Option<&CqSlot<H>> {
        self.cqs.get(id.index())
    }

    /// The place of the endpoint with that name, if it is there.
    #[inline]
    pub(crate) fn endpoint(&self, id: EndpointId) -> Option<&EndpointSlot<H>> {
        self.endpoints.get(id.index()).filter(|slot| slot.is(id))
    }

    pub(crate) fn endpoint_of(
        &self,
        client: ClientId,
        id: EndpointId,
    ) -> Result<&EndpointSlot<H>, DeviceError> {
        self.endpoint(id)
            .filter(|slot| slot.client() == client)
            .ok_or(DeviceError::NoEndpoint)
    }

    pub(crate) fn place_endpoint(
        &self,
        kind: Kind,
        special: Option<u16>,
    ) -> Option<(&EndpointSlot<H>, EndpointId)> {
        if let Some(number) = special {
            let index = usize::from(number);
            let slot = self.endpoints.get(index).filter(|_| index < SPECIAL_QPS)?;
            return Some((slot, slot.take_special_place(number)?));
        }
        let spare = match kind {
            Kind::Ring(_) | Kind::Srq => SPECIAL_QPS,
            Kind::Qp(_) => 0,
        };
        let places = || self.endpoints.iter().enumerate();
        places()
            .skip(SPECIAL_QPS)
            .chain(places().take(spare))
            .find_map(|(index, slot)| Some((slot, slot.take_place(u16::try_from(index).ok()?)?)))
    }

    fn use_cqs(&self, client: ClientId, send: CqId, recv: CqId) -> Result<(), DeviceError> {
        let use_one = |id: CqId| {
            let used = self.cq(id).and_then(|slot| {
                slot.with(id, |cq| {
                    let mine = cq.client == client;
                    cq.users = cq.users.saturating_add(u32::from(mine));
                    mine
                })
            });
            if used == Some(true) {
                Ok(())
            } else {
                Err(DeviceError::NoCq)
            }
        };
        use_one(send)?;
        use_one(recv).inspect_err(|_| self.leave_cq(send))
    }

    fn leave_cqs(&self, send: CqId, recv: CqId) {
        self.leave_cq(send);
        self.leave_cq(recv);
    }

    fn leave_cq(&self, id: CqId) {
        if let Some(slot) = self.cq(id) {
            slot.with(id, |cq| cq.users = cq.users.saturating_sub(1));
        }
    }

    /// Random, and not 0, which stands for queue pairs.
    fn random_incarnation(&self) -> u32 {
        let [a, b, c, d, ..] = self.home.random().to_le_bytes();
        u32::from_le_bytes([a, b, c, d]).max(1)
    }

    pub(crate) fn close_flow(&self, link: LinkId, flow: usb4_engine::FlowId, now: Nanos) {
        self.with_host(link, |link, host| link.close_flow(now, flow, host));
    }
}

fn credit_cq(control: &mut Control, client: ClientId, depth: u32) {
    control.credit(client, |used| {
        used.cqs = used.cqs.saturating_sub(1);
        used.cq_entries = used.cq_entries.saturating_sub(depth);
    });
}
