//! Address vectors. An `fi_addr_t` is an index in both types; peers have their own numbers, which also name
//! senders that are in no address vector.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use libfabric_sys::*;
use parking_lot::Mutex;
use usb4_ffi::{Handle, boundary_or};
use usb4_ring::EpAddr;
use usb4_tagged::PeerId;

use crate::addr::{self, ADDR_LEN, Name};
use crate::domain::{DomainHandle, Shared};
use crate::fork::FORKED;
use crate::init::PANICKED;
use crate::nosys;

/// No peer.
const NONE: u32 = u32::MAX;

/// Addresses and their numbers. Grows with the addresses seen and never shrinks.
#[derive(Default)]
pub(crate) struct Peers {
    addresses: Vec<EpAddr>,
    numbers: HashMap<EpAddr, u32>,
    /// Those that were in the address vector and are not.
    removed: HashSet<u32>,
    removals: u64,
    /// By peer: the number of its control lane's address.
    lanes: HashMap<u32, PeerId>,
    /// The other way round.
    owners: HashMap<u32, PeerId>,
}

impl Peers {
    /// The address of a peer.
    pub(crate) fn address(&self, peer: PeerId) -> Option<EpAddr> {
        self.addresses.get(peer.0 as usize).copied()
    }

    /// Whether a peer, or the one whose control lane this is, was removed from the address vector, and not inserted
    /// again.
    pub(crate) fn is_removed(&self, peer: PeerId) -> bool {
        let peer = self.owner_of(peer).unwrap_or(peer);
        self.removed.contains(&peer.0)
    }

    /// How often that has happened.
    pub(crate) fn removals(&self) -> u64 {
        self.removals
    }

    /// The number of an address; a new one if it has none.
    pub(crate) fn peer(&mut self, address: &EpAddr) -> PeerId {
        PeerId(*self.numbers.entry(*address).or_insert_with(|| {
            self.addresses.push(*address);
            u32::try_from(self.addresses.len() - 1).unwrap_or(NONE)
        }))
    }

    /// Tells which control lane is a peer's: once and for all if the application says so, else unless more is known
    /// about either.
    pub(crate) fn introduce(&mut self, peer: PeerId, lane: u64, sure: bool) {
        let Some(EpAddr { node, .. }) = self.address(peer) else {
            return;
        };
        if !sure && self.lanes.contains_key(&peer.0) {
            return;
        }
        let lane = self.peer(&addr::lane_address(node, lane));
        if sure || !self.owners.contains_key(&lane.0) {
            self.lanes.insert(peer.0, lane);
            self.owners.insert(lane.0, peer);
        }
    }

    /// The peer behind whose address the control lane of `peer` is.
    pub(crate) fn lane_of(&self, peer: PeerId) -> Option<PeerId> {
        self.lanes.get(&peer.0).copied()
    }

    /// Whose control lane is at the address of `lane`.
    pub(crate) fn owner_of(&self, lane: PeerId) -> Option<PeerId> {
        self.owners.get(&lane.0).copied()
    }

    /// The name of a peer whose control lane is known.
    fn name(&self, peer: PeerId) -> Option<Name> {
        Some(Name {
            address: self.address(peer)?,
            lane: addr::lane_name(&self.address(self.lane_of(peer)?)?),
        })
    }
}

/// An address vector's state, under the domain's lock.
#[derive(Default)]
pub(crate) struct AvState {
    pub(crate) peers: Arc<Mutex<Peers>>,
    /// By `fi_addr_t`: peer and number of insertions.
    entries: Vec<(u32, u32)>,
    /// By peer: `fi_addr_t`.
    inserted: Vec<fi_addr_t>,
    pub(crate) endpoints: u32,
}

impl AvState {
    /// The peer behind an `fi_addr_t`.
    #[inline]
    pub(crate) fn peer(&self, address: fi_addr_t) -> Option<PeerId> {
        let (peer, _) = *self.entries.get(usize::try_from(address).ok()?)?;
        (peer != NONE).then_some(PeerId(peer))
    }

    /// The `fi_addr_t` of a peer, or `FI_ADDR_NOTAVAIL`.
    #[inline]
    pub(crate) fn address(&self, peer: PeerId) -> fi_addr_t {
        self.inserted
            .get(peer.0 as usize)
            .copied()
            .unwrap_or(FI_ADDR_NOTAVAIL)
    }

    fn insert(&mut self, name: &Name) -> fi_addr_t {
        let peer = {
            let mut peers = self.peers.lock();
            let PeerId(peer) = peers.peer(&name.address);
            peers.removed.remove(&peer);
            peers.introduce(PeerId(peer), name.lane, true);
            peer
        };
        let index = peer as usize;
        if self.inserted.len() <= index {
            self.inserted.resize(index + 1, FI_ADDR_NOTAVAIL);
        }
        if self.inserted[index] == FI_ADDR_NOTAVAIL {
            self.inserted[index] = self.entries.len() as fi_addr_t;
            self.entries.push((peer, 1));
        } else if let Some(entry) = self.entries.get_mut(size(self.inserted[index])) {
            entry.1 += 1;
        }
        self.inserted[index]
    }

    fn remove(&mut self, address: fi_addr_t) -> bool {
        let Some(PeerId(peer)) = self.peer(address) else {
            return false;
        };
        let entry = &mut self.entries[size(address)];
        entry.1 -= 1;
        if entry.1 == 0 {
            entry.0 = NONE;
            self.inserted[peer as usize] = FI_ADDR_NOTAVAIL;
            let mut peers = self.peers.lock();
            peers.removed.insert(peer);
            peers.removals += 1;
        }
        true
    }
}

/// A 64-bit size or index; both kinds are from this process, whose pointers have 64 bits.
#[inline]
pub(crate) fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// An address vector, as C sees it.
#[repr(C)]
pub(crate) struct Av {
    fid: fid_av,
    pub(crate) domain: Arc<Shared>,
    pub(crate) index: u32,
}

pub(crate) type AvHandle = Handle<Av, fid_av>;

static OPS: fi_ops = nosys::ops(close, bind, nosys::control);

static AV_OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert,
    insertsvc: nosys::insertsvc,
    insertsym: nosys::insertsym,
    remove,
    lookup,
    straddr,
    av_set: None,
    insert_auth_key: None,
    lookup_auth_key: None,
    set_user_id: None,
};

/// `fi_av_open`.
///
/// # Safety
/// Called with a domain of ours and valid arguments.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: promised by the caller.
        let (Some(domain), Some(attr)) = (unsafe { (DomainHandle::get(domain), attr.as_mut()) }) else {
            return -FI_EINVAL;
        };
        if !attr.name.is_null() || attr.rx_ctx_bits != 0 {
            return -FI_ENOSYS;
        }
        // FI_EVENT (asynchronous insertion) would need an event queue.
        if attr.flags & FI_COMPLETION != 0 {
            return -FI_ENOSYS;
        }
        if attr.type_ == FI_AV_UNSPEC {
            attr.type_ = FI_AV_TABLE;
        }
        let shared = domain.open_child();
        let Some(mut state) = shared.lock() else {
            shared.close_child();
            return FORKED;
        };
        let index = state.avs.insert(AvState::default());
        drop(state);
        let object = Av {
            fid: fid_av {
                fid: fid {
                    fclass: FI_CLASS_AV,
                    context,
                    ops: &OPS,
                },
                ops: &AV_OPS,
            },
            domain: shared,
            index,
        };
        // SAFETY: promised by the caller.
        unsafe { *av = AvHandle::into_raw(Box::new(object)) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an address vector of ours.
        let Some(av) = (unsafe { AvHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        let Some(mut state) = av.domain.lock() else {
            return FORKED;
        };
        if state.avs.get(av.index).is_some_and(|state| state.endpoints > 0) {
            return -FI_EBUSY;
        }
        state.avs.remove(av.index);
        drop(state);
        // SAFETY: as above, closed once.
        if let Some(av) = unsafe { AvHandle::free(fid.cast()) } {
            av.domain.close_child();
        }
        0
    })
}

/// Event queues may be bound, as insertion never waits.
unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    out: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an address vector of ours.
        let Some(av) = (unsafe { AvHandle::get(av) }) else {
            return -FI_EINVAL;
        };
        if flags & !(FI_MORE | FI_SYNC_ERR) != 0 {
            return -FI_EBADFLAGS;
        }
        let Some(mut state) = av.domain.lock() else {
            return FORKED;
        };
        let Some(state) = state.avs.get_mut(av.index) else {
            return -FI_EINVAL;
        };
        let mut inserted = 0;
        for n in 0..count {
            // SAFETY: the application gives `count` addresses of our length.
            let bytes = unsafe { addresses.cast::<[u8; ADDR_LEN]>().add(n).read_unaligned() };
            let number = addr::from_bytes(&bytes).map(|name| state.insert(&name));
            inserted += c_int::from(number.is_some());
            // SAFETY: `out` is null or has `count` entries; so has the array of FI_SYNC_ERR.
            unsafe {
                if !out.is_null() {
                    out.add(n).write(number.unwrap_or(FI_ADDR_NOTAVAIL));
                }
                if flags & FI_SYNC_ERR != 0 && !context.is_null() {
                    let error = if number.is_some() { 0 } else { FI_EINVAL };
                    context.cast::<c_int>().add(n).write(error);
                }
            }
        }
        inserted
    })
}

unsafe extern "C" fn remove(av: *mut fid_av, addresses: *mut fi_addr_t, count: usize, _flags: u64) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an address vector of ours.
        let Some(av) = (unsafe { AvHandle::get(av) }) else {
            return -FI_EINVAL;
        };
        let Some(mut state) = av.domain.lock() else {
            return FORKED;
        };
        let Some(state) = state.avs.get_mut(av.index) else {
            return -FI_EINVAL;
        };
        let mut rc = 0;
        for n in 0..count {
            // SAFETY: the application gives `count` entries.
            if !state.remove(unsafe { *addresses.add(n) }) {
                rc = -FI_EINVAL;
            }
        }
        rc
    })
}

unsafe extern "C" fn lookup(av: *mut fid_av, address: fi_addr_t, out: *mut c_void, len: *mut usize) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an address vector of ours.
        let Some(av) = (unsafe { AvHandle::get(av) }) else {
            return -FI_EINVAL;
        };
        let Some(state) = av.domain.lock() else {
            return FORKED;
        };
        let Some(state) = state.avs.get(av.index) else {
            return -FI_EINVAL;
        };
        let found = state.peer(address).and_then(|peer| state.peers.lock().name(peer));
        let Some(found) = found else { return -FI_EINVAL };
        // SAFETY: the application gives room for `*len` bytes.
        unsafe { put(&addr::to_bytes(&found), out, len) };
        0
    })
}

/// Copies as much of an address as fits and says how long it is; false if it did not fit.
///
/// # Safety
/// `out` has room for `*len` bytes, or `*len` is 0.
pub(crate) unsafe fn put(address: &[u8; ADDR_LEN], out: *mut c_void, len: *mut usize) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        let room = *len;
        *len = ADDR_LEN;
        if !out.is_null() {
            std::ptr::copy_nonoverlapping(address.as_ptr(), out.cast(), room.min(ADDR_LEN));
        }
        room >= ADDR_LEN && !out.is_null()
    }
}

unsafe extern "C" fn straddr(
    _av: *mut fid_av,
    address: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    boundary_or(std::ptr::null(), || {
        // SAFETY: the application gives an address of our length.
        let bytes = unsafe { address.cast::<[u8; ADDR_LEN]>().read_unaligned() };
        let text = addr::from_bytes(&bytes).map_or("usb4://?".into(), |name| addr::to_text(&name));
        // SAFETY: the application gives room for `*len` bytes.
        unsafe {
            let room = *len;
            *len = text.len() + 1;
            if room > 0 && !buf.is_null() {
                let count = text.len().min(room - 1);
                std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, count);
                *buf.add(count) = 0;
            }
        }
        buf
    })
}

#[cfg(test)]
mod tests {
    use usb4_ring::NodeId;

    use super::*;

    fn address(n: u32) -> Name {
        Name {
            address: EpAddr {
                node: NodeId(7),
                ep: n,
                incarnation: 1,
            },
            lane: 1 << 32 | u64::from(100 + n),
        }
    }

    #[test]
    fn a_lane_is_whose_the_application_says_whatever_strangers_claim() {
        let mut av = AvState::default();
        let (liar, owner) = {
            let mut peers = av.peers.lock();
            let liar = peers.peer(&address(1).address);
            peers.introduce(liar, address(2).lane, false);
            (liar, peers.peer(&address(2).address))
        };
        av.insert(&address(2));
        let mut peers = av.peers.lock();
        let lane = peers.lane_of(owner).unwrap();
        assert_eq!(peers.owner_of(lane), Some(owner));
        assert_eq!(peers.name(owner), Some(address(2)));
        peers.introduce(owner, address(3).lane, false);
        peers.introduce(liar, address(2).lane, false);
        assert_eq!(
            (peers.lane_of(owner), peers.owner_of(lane)),
            (Some(lane), Some(owner))
        );
    }

    #[test]
    fn indices_follow_the_order_of_insertion_though_strangers_came_first() {
        let mut av = AvState::default();
        let stranger = av.peers.lock().peer(&address(9).address);
        assert_eq!(av.address(stranger), FI_ADDR_NOTAVAIL);
        assert_eq!(
            (
                av.insert(&address(5)),
                av.insert(&address(9)),
                av.insert(&address(5))
            ),
            (0, 1, 0)
        );
        assert_eq!(av.address(stranger), 1);
        assert_eq!(av.peer(1), Some(stranger));
    }

    #[test]
    fn an_address_inserted_twice_is_removed_twice() {
        let mut av = AvState::default();
        let at = av.insert(&address(1));
        av.insert(&address(1));
        assert!(av.remove(at));
        assert!(av.peer(at).is_some());
        assert!(av.remove(at));
        assert_eq!(av.peer(at), None);
        assert!(!av.remove(at));
        assert_eq!(av.insert(&address(1)), 1, "an index is not used again");
    }
}
