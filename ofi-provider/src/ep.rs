//! Endpoints: set-up, options, address, close. Messages are in `msg` and `tagged`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys::*;
use usb4_ffi::{Handle, Level, boundary_or, log};
use usb4_tagged::{Config, EVENTS_MAX, MAX_MESSAGE, Messenger, PeerId, STAGE_LEN};

use crate::addr::{self, ADDR_LEN};
use crate::av::{self, AvHandle, AvState};
use crate::cntr::{CntrHandle, CntrState};
use crate::cq::CqHandle;
use crate::domain::{DomainHandle, Shared, State, Table};
use crate::env::params;
use crate::exit::{CONFIRM, CONFIRM_CALLS};
use crate::fork::FORKED;
use crate::init::PANICKED;
use crate::lanes::{Parts, RingLanes};
use crate::sink::{Bound, CqSink, CqState, Direct, UNBOUND};
use crate::{msg, nosys, tagged};

/// Sends outstanding, those that wait for their receiver to finish included.
const SENDS_MAX: usize = 65536;

/// Calls for progress in a row that find nothing, about ten milliseconds of polling, after which peers that a
/// rendezvous waits for are asked for a sign of life.
const PROBE_AFTER: u32 = 1 << 16;

/// How long closing an endpoint waits for its messages to leave.
const DRAIN: Duration = Duration::from_millis(500);

/// An endpoint's state, under the domain's lock.
pub(crate) struct EpState {
    /// From `fi_enable` on.
    pub(crate) messenger: Option<Messenger<RingLanes>>,
    /// Until `fi_enable`.
    parts: Option<Parts>,
    address: [u8; ADDR_LEN],
    av: u32,
    settings: Settings,
    /// Calls for progress in a row that found nothing.
    idle: u32,
}

/// What is bound to an endpoint, and how its operations behave.
pub(crate) struct Settings {
    pub(crate) bound: Bound,
    pub(crate) tx_selective: bool,
    pub(crate) rx_selective: bool,
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    /// Receives may name a sender; else the sender given means nothing.
    pub(crate) directed: bool,
    pub(crate) min_multi_recv: u64,
}

/// An enabled endpoint with what its messages need.
pub(crate) struct Active<'a> {
    pub(crate) messenger: &'a mut Messenger<RingLanes>,
    pub(crate) settings: &'a Settings,
    avs: &'a Table<AvState>,
    av: u32,
    cqs: &'a mut Table<CqState>,
    cntrs: &'a mut Table<CntrState>,
}

impl State {
    /// An endpoint, if it is enabled.
    #[inline]
    fn active(&mut self, ep: u32) -> Option<Active<'_>> {
        let ep = self.eps.get_mut(ep)?;
        Some(Active {
            messenger: ep.messenger.as_mut()?,
            settings: &ep.settings,
            avs: &self.avs,
            av: ep.av,
            cqs: &mut self.cqs,
            cntrs: &mut self.cntrs,
        })
    }
}

impl Active<'_> {
    /// The peer behind an `fi_addr_t`.
    #[inline]
    pub(crate) fn peer(&self, address: fi_addr_t) -> Option<PeerId> {
        self.avs.get(self.av)?.peer(address)
    }

    /// The messenger, and where its completions go.
    #[inline]
    pub(crate) fn split(&mut self) -> (&mut Messenger<RingLanes>, CqSink<'_>) {
        let sink = CqSink {
            cqs: self.cqs,
            cntrs: self.cntrs,
            avs: self.avs,
            av: self.av,
            bound: &self.settings.bound,
            direct: None,
        };
        (self.messenger, sink)
    }
}

/// Asks the peers of an endpoint's rendezvous for a sign of life.
pub(crate) fn probe(state: &mut State, ep: u32) {
    if let Some(mut active) = state.active(ep) {
        let (messenger, mut sink) = active.split();
        messenger.probe(&mut sink);
    }
}

/// Drives one endpoint.
#[inline(never)]
pub(crate) fn drive(state: &mut State, ep: u32) {
    progress(state, ep, &mut Direct::none());
}

/// Drives one endpoint; completions of the queue that is read go to `direct` as long as there is room.
#[inline(always)]
pub(crate) fn progress(state: &mut State, ep: u32, direct: &mut Direct) {
    let State {
        eps, cqs, avs, cntrs, ..
    } = state;
    let Some(ep) = eps.get_mut(ep) else { return };
    let Some(messenger) = &mut ep.messenger else {
        return;
    };
    let mut sink = CqSink {
        cqs,
        cntrs,
        avs,
        av: ep.av,
        bound: &ep.settings.bound,
        direct: Some(direct),
    };
    let handled = messenger.progress(&mut sink);
    if handled > 0 {
        ep.idle = 0;
        if handled >= EVENTS_MAX {
            // There may be more, of which who sleeps on the other queue is not told.
            for cq in [ep.settings.bound.tx_cq, ep.settings.bound.rx_cq] {
                if let Some(cq) = cqs.get_mut(cq) {
                    cq.wake();
                }
            }
        }
        return;
    }
    ep.idle = ep.idle.wrapping_add(1);
    if ep.idle % PROBE_AFTER == 0 {
        messenger.probe(&mut sink);
    }
}

/// An endpoint, as C sees it.
#[repr(C)]
pub(crate) struct Ep {
    fid: fid_ep,
    domain: Arc<Shared>,
    index: u32,
}

pub(crate) type EpHandle = Handle<Ep, fid_ep>;

impl Ep {
    /// Runs `body` on the endpoint, under the lock.
    #[inline(always)]
    pub(crate) fn with(&self, body: impl FnOnce(Active<'_>) -> isize) -> isize {
        let Some(mut state) = self.domain.lock() else {
            return FORKED as isize;
        };
        match state.active(self.index) {
            Some(active) => body(active),
            None => -(FI_EOPBADSTATE as isize),
        }
    }
}

/// Runs `body` on an endpoint from C.
///
/// # Safety
/// `ep` is null or an endpoint of ours.
#[inline(always)]
pub(crate) unsafe fn with(ep: *mut fid_ep, body: impl FnOnce(Active<'_>) -> isize) -> isize {
    boundary_or(PANICKED as isize, || {
        // SAFETY: promised by the caller.
        match unsafe { EpHandle::get(ep) } {
            Some(ep) => ep.with(body),
            None => -(FI_EINVAL as isize),
        }
    })
}

static OPS: fi_ops = nosys::ops(close, bind, control);

static EP_OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: nosys::tx_ctx,
    rx_ctx: nosys::rx_ctx,
    rx_size_left,
    tx_size_left,
};

static CM_OPS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname,
    getname,
    getpeer: nosys::getpeer,
    connect: nosys::connect,
    listen: nosys::listen,
    accept: nosys::accept,
    reject: nosys::reject,
    shutdown: nosys::shutdown,
    join: None,
};

/// `fi_endpoint`.
///
/// # Safety
/// Called with a domain of ours and valid arguments.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: promised by the caller.
        let (Some(domain), Some(info)) = (unsafe { (DomainHandle::get(domain), info.as_ref()) }) else {
            return -FI_EINVAL;
        };
        // SAFETY: parts of a valid info.
        let (tx, rx) = unsafe { (info.tx_attr.as_ref(), info.rx_attr.as_ref()) };
        let shared = domain.open_child();
        let parts = match Parts::open(&shared.device, (params().tx_size, params().rx_slots)) {
            Ok(parts) => parts,
            Err(error) => {
                log(Level::Warn, format_args!("no endpoint: {error}"));
                shared.close_child();
                return if matches!(error, usb4_ring::Error::Limit(_)) {
                    -FI_ENOSPC
                } else {
                    -FI_EIO
                };
            }
        };
        let state = EpState {
            address: addr::to_bytes(&parts.name()),
            messenger: None,
            parts: Some(parts),
            av: UNBOUND,
            settings: Settings {
                bound: Bound::NONE,
                tx_selective: false,
                rx_selective: false,
                tx_flags: tx.map_or(0, |tx| tx.op_flags),
                rx_flags: rx.map_or(0, |rx| rx.op_flags),
                directed: (info.caps | rx.map_or(0, |rx| rx.caps)) & FI_DIRECTED_RECV != 0,
                min_multi_recv: 64,
            },
            idle: 0,
        };
        let Some(mut objects) = shared.lock() else {
            shared.close_child();
            return FORKED;
        };
        let index = objects.eps.insert(state);
        drop(objects);
        let object = Ep {
            fid: fid_ep {
                fid: fid {
                    fclass: FI_CLASS_EP,
                    context,
                    ops: &OPS,
                },
                ops: &EP_OPS,
                cm: &CM_OPS,
                msg: &msg::OPS,
                rma: &nosys::RMA,
                tagged: &tagged::OPS,
                atomic: &nosys::ATOMIC,
                collective: std::ptr::null(),
            },
            domain: shared,
            index,
        };
        // SAFETY: promised by the caller.
        unsafe { *ep = EpHandle::into_raw(Box::new(object)) };
        0
    })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an endpoint of ours, and an object of ours.
        let (Some(ep), Some(class)) = (unsafe { (EpHandle::get(fid.cast()), other.as_ref()) }) else {
            return -FI_EINVAL;
        };
        let Some(mut state) = ep.domain.lock() else {
            return FORKED;
        };
        let State {
            eps, cqs, avs, cntrs, ..
        } = &mut *state;
        let Some(this) = eps.get_mut(ep.index) else {
            return -FI_EINVAL;
        };
        match class.fclass {
            FI_CLASS_CQ => {
                // SAFETY: a completion queue of ours, by its class.
                let Some(cq) = (unsafe { CqHandle::get(other.cast()) }) else {
                    return -FI_EINVAL;
                };
                let Some(queue) = cqs.get_mut(cq.index).filter(|_| ep.shares(&cq.domain)) else {
                    return -FI_EINVAL;
                };
                if flags & (FI_SEND | FI_RECV) == 0 {
                    return -FI_EBADFLAGS;
                }
                let bound = &this.settings.bound;
                if taken(flags, bound.tx_cq, bound.rx_cq) {
                    return -FI_EINVAL;
                }
                let selective = flags & FI_SELECTIVE_COMPLETION != 0;
                if flags & FI_SEND != 0 {
                    (this.settings.bound.tx_cq, this.settings.tx_selective) = (cq.index, selective);
                }
                if flags & FI_RECV != 0 {
                    (this.settings.bound.rx_cq, this.settings.rx_selective) = (cq.index, selective);
                }
                if !queue.endpoints.contains(&ep.index) {
                    queue.endpoints.push(ep.index);
                }
                0
            }
            FI_CLASS_AV => {
                // SAFETY: an address vector of ours, by its class.
                let Some(av) = (unsafe { AvHandle::get(other.cast()) }) else {
                    return -FI_EINVAL;
                };
                if this.av != UNBOUND || !ep.shares(&av.domain) {
                    return -FI_EINVAL;
                }
                let Some(vector) = avs.get_mut(av.index) else {
                    return -FI_EINVAL;
                };
                vector.endpoints += 1;
                this.av = av.index;
                0
            }
            FI_CLASS_CNTR => {
                // SAFETY: a counter of ours, by its class.
                let Some(cntr) = (unsafe { CntrHandle::get(other.cast()) }) else {
                    return -FI_EINVAL;
                };
                let Some(counter) = cntrs.get_mut(cntr.index).filter(|_| ep.shares(&cntr.domain)) else {
                    return -FI_EINVAL;
                };
                let bound = &this.settings.bound;
                if taken(flags, bound.tx_cntr, bound.rx_cntr) {
                    return -FI_EINVAL;
                }
                // Counters of remote access never count, as there is none.
                if flags & FI_SEND != 0 {
                    this.settings.bound.tx_cntr = cntr.index;
                }
                if flags & FI_RECV != 0 {
                    this.settings.bound.rx_cntr = cntr.index;
                }
                if !counter.endpoints.contains(&ep.index) {
                    counter.endpoints.push(ep.index);
                }
                0
            }
            // It would never carry an event.
            FI_CLASS_EQ => 0,
            _ => -FI_ENOSYS,
        }
    })
}

/// Whether a direction among `flags` has an object already.
fn taken(flags: u64, tx: u32, rx: u32) -> bool {
    (flags & FI_SEND != 0 && tx != UNBOUND) || (flags & FI_RECV != 0 && rx != UNBOUND)
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an endpoint of ours.
        let Some(ep) = (unsafe { EpHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        match command {
            FI_ENABLE => ep.enable(),
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: these commands take a `uint64_t`.
                let flags = unsafe { &mut *arg.cast::<u64>() };
                let Some(mut state) = ep.domain.lock() else {
                    return FORKED;
                };
                let Some(this) = state.eps.get_mut(ep.index) else {
                    return -FI_EINVAL;
                };
                let place = match *flags & (FI_SEND | FI_RECV) {
                    FI_SEND => &mut this.settings.tx_flags,
                    FI_RECV => &mut this.settings.rx_flags,
                    _ => return -FI_EINVAL,
                };
                if command == FI_GETOPSFLAG {
                    *flags = *place;
                } else {
                    *place = *flags & !(FI_SEND | FI_RECV);
                }
                0
            }
            _ => -FI_ENOSYS,
        }
    })
}

impl Ep {
    /// Whether an object of `domain` is one of this endpoint's: their indices mean the same.
    fn shares(&self, domain: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    fn enable(&self) -> c_int {
        let Some(mut state) = self.domain.lock() else {
            return FORKED;
        };
        let State { eps, cqs, avs, .. } = &mut *state;
        let Some(this) = eps.get_mut(self.index) else {
            return -FI_EINVAL;
        };
        if this.messenger.is_some() {
            return 0;
        }
        if this.settings.bound.tx_cq == UNBOUND && this.settings.bound.rx_cq == UNBOUND {
            return -FI_ENOCQ;
        }
        let Some(av) = avs.get(this.av) else {
            return -FI_ENOAV;
        };
        let Some(mut rings) = this.parts.take() else {
            return -FI_EOPBADSTATE;
        };
        for bound in [this.settings.bound.tx_cq, this.settings.bound.rx_cq] {
            let Some(wait) = cqs.get(bound).and_then(|cq| cq.wait.as_ref()) else {
                continue;
            };
            for ring in rings.cqs() {
                let added = ring
                    .wait_fd()
                    .map_err(|e| e.to_string())
                    .and_then(|fd| wait.add(fd).map_err(|e| e.to_string()));
                if let Err(error) = added {
                    log(Level::Warn, format_args!("no wait object: {error}"));
                    return -FI_EIO;
                }
            }
        }
        let (slots, eager) = (params().rx_slots, params().eager_size);
        let slots = slots.min(self.domain.device.info().max_queue_depth as usize);
        let transport = match RingLanes::new(&self.domain.device, rings, slots, eager, &av.peers) {
            Ok(transport) => transport,
            Err(error) => {
                log(Level::Warn, format_args!("no receive buffers: {error}"));
                return -FI_ENOMEM;
            }
        };
        let config = Config {
            eager_max: u32::try_from(eager).unwrap_or(u32::MAX),
            max_sends: SENDS_MAX,
            unexpected_max: params().unexpected_max,
        };
        match Messenger::new(transport, config) {
            Ok(messenger) => {
                this.messenger = Some(messenger);
                // Who sleeps on its queues already has not armed this endpoint's.
                for bound in [this.settings.bound.tx_cq, this.settings.bound.rx_cq] {
                    if let Some(cq) = cqs.get_mut(bound) {
                        cq.wake();
                    }
                }
                0
            }
            Err(_) => -FI_EIO,
        }
    }

    /// Gives messages that are on their way time to leave, and then the confirmations owed to peers: a message
    /// whose confirmation is cut off by the end of its endpoint looks lost to its sender.
    fn drain(&self) {
        let deadline = Instant::now() + DRAIN;
        let mut drained = None;
        let mut calls = 0;
        loop {
            let now = Instant::now();
            let Some(mut state) = self.domain.lock() else {
                return;
            };
            drive(&mut state, self.index);
            calls += 1;
            let messenger = state.eps.get(self.index).and_then(|ep| ep.messenger.as_ref());
            match messenger {
                None => return,
                Some(messenger) if messenger.drained() => {
                    if now >= *drained.get_or_insert(now) + CONFIRM && calls >= CONFIRM_CALLS {
                        return;
                    }
                }
                Some(_) => (drained, calls) = (None, 0),
            }
            if now >= deadline {
                log(
                    Level::Warn,
                    format_args!("endpoint closed with messages the peers have not taken"),
                );
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an endpoint of ours.
        let Some(ep) = (unsafe { EpHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        ep.drain();
        let Some(mut state) = ep.domain.lock() else {
            return FORKED;
        };
        let State {
            eps, cqs, avs, cntrs, ..
        } = &mut *state;
        let removed = eps.remove(ep.index);
        if let Some(mut this) = removed {
            for bound in [this.settings.bound.tx_cq, this.settings.bound.rx_cq] {
                let Some(cq) = cqs.get_mut(bound) else { continue };
                cq.unbind(ep.index);
                let (Some(wait), Some(messenger)) = (&cq.wait, &mut this.messenger) else {
                    continue;
                };
                for ring in messenger.transport().cqs() {
                    if let Ok(fd) = ring.wait_fd() {
                        wait.remove(fd);
                    }
                }
            }
            for cntr in cntrs.iter_mut() {
                cntr.endpoints.retain(|bound| *bound != ep.index);
            }
            if let Some(av) = avs.get_mut(this.av) {
                av.endpoints -= 1;
            }
            drop(this);
        }
        drop(state);
        // SAFETY: as above, closed once.
        if let Some(ep) = unsafe { EpHandle::free(fid.cast()) } {
            ep.domain.close_child();
        }
        0
    })
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    // SAFETY: an endpoint of ours.
    unsafe {
        with(fid.cast(), |mut ep| {
            let (messenger, mut sink) = ep.split();
            let found = messenger.cancel(context as u64, &mut sink);
            if found { 0 } else { -(FI_ENOENT as isize) }
        })
    }
}

unsafe extern "C" fn getopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an endpoint of ours.
        let Some(ep) = (unsafe { EpHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        if level != FI_OPT_ENDPOINT {
            return -FI_ENOPROTOOPT;
        }
        let Some(state) = ep.domain.lock() else {
            return FORKED;
        };
        let Some(this) = state.eps.get(ep.index) else {
            return -FI_EINVAL;
        };
        let size = match name {
            FI_OPT_MIN_MULTI_RECV => this.settings.min_multi_recv,
            FI_OPT_CM_DATA_SIZE => 0,
            FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_TAGGED_SIZE => MAX_MESSAGE,
            FI_OPT_INJECT_MSG_SIZE | FI_OPT_INJECT_TAGGED_SIZE => STAGE_LEN as u64,
            _ => return -FI_ENOPROTOOPT,
        };
        // SAFETY: the application gives `*len` bytes.
        unsafe {
            if *len < size_of::<usize>() {
                return -FI_ETOOSMALL;
            }
            *len = size_of::<usize>();
            value.cast::<u64>().write_unaligned(size);
        }
        0
    })
}

unsafe extern "C" fn setopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an endpoint of ours.
        let Some(ep) = (unsafe { EpHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        if level != FI_OPT_ENDPOINT {
            return -FI_ENOPROTOOPT;
        }
        match name {
            FI_OPT_MIN_MULTI_RECV if len == size_of::<usize>() => {
                // SAFETY: the application gives `len` bytes.
                let size = unsafe { value.cast::<u64>().read_unaligned() };
                let Some(mut state) = ep.domain.lock() else {
                    return FORKED;
                };
                let Some(this) = state.eps.get_mut(ep.index) else {
                    return -FI_EINVAL;
                };
                this.settings.min_multi_recv = size;
                0
            }
            FI_OPT_MIN_MULTI_RECV => -FI_EINVAL,
            // Neither CUDA nor another provider's shared memory is used, whether permitted or not.
            FI_OPT_CUDA_API_PERMITTED | FI_OPT_SHARED_MEMORY_PERMITTED => 0,
            _ => -FI_ENOPROTOOPT,
        }
    })
}

/// Receives are bounded only by memory.
unsafe extern "C" fn rx_size_left(_: *mut fid_ep) -> isize {
    4096
}

unsafe extern "C" fn tx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: an endpoint of ours.
    unsafe {
        with(ep, |ep| {
            isize::try_from(ep.messenger.sends_left()).unwrap_or(isize::MAX)
        })
    }
}

/// The device chooses addresses: only the one it chose is accepted.
unsafe extern "C" fn setname(fid: *mut fid, address: *mut c_void, len: usize) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an endpoint of ours.
        let Some(ep) = (unsafe { EpHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        let Some(state) = ep.domain.lock() else {
            return FORKED;
        };
        let Some(this) = state.eps.get(ep.index) else {
            return -FI_EINVAL;
        };
        if address.is_null() || len != ADDR_LEN {
            return -FI_EINVAL;
        }
        // SAFETY: the application gives `len` bytes.
        let wanted = unsafe { address.cast::<[u8; ADDR_LEN]>().read_unaligned() };
        if wanted == this.address {
            0
        } else {
            -FI_EADDRNOTAVAIL
        }
    })
}

unsafe extern "C" fn getname(fid: *mut fid, address: *mut c_void, len: *mut usize) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an endpoint of ours.
        let Some(ep) = (unsafe { EpHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        let Some(state) = ep.domain.lock() else {
            return FORKED;
        };
        let Some(this) = state.eps.get(ep.index) else {
            return -FI_EINVAL;
        };
        // SAFETY: the application gives room for `*len` bytes.
        if unsafe { av::put(&this.address, address, len) } {
            0
        } else {
            -FI_ETOOSMALL
        }
    })
}
