//! The address handles of an endpoint: which peer has which, and which can be given up.

use usb4_ring::AddressHandle;
use usb4_tagged::PeerId;

/// No handle.
const NONE: u16 = u16::MAX;

/// Place of a handle: goes with the work posted through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u16);

/// A handle and what it is used for.
#[derive(Clone, Copy)]
struct Used {
    handle: AddressHandle,
    peer: PeerId,
    /// Posted through it and not finished.
    pending: u32,
    /// Counts all that was posted, as of the last through this one.
    last: u64,
}

/// Handles, by peer and by place.
#[derive(Default)]
pub(crate) struct Handles {
    by_peer: Vec<u16>,
    places: Vec<Option<Used>>,
    posts: u64,
}

impl Handles {
    /// The handle of a peer.
    #[inline]
    pub(crate) fn get(&self, peer: PeerId) -> Option<(AddressHandle, Place)> {
        let place = *self.by_peer.get(peer.0 as usize)?;
        let used = self.places.get(usize::from(place))?.as_ref()?;
        Some((used.handle, Place(place)))
    }

    /// Work was posted through a handle.
    #[inline]
    pub(crate) fn begin(&mut self, place: Place) {
        self.posts += 1;
        if let Some(Some(used)) = self.places.get_mut(usize::from(place.0)) {
            used.pending += 1;
            used.last = self.posts;
        }
    }

    /// Work posted through a handle has finished.
    #[inline]
    pub(crate) fn end(&mut self, place: Place) {
        if let Some(Some(used)) = self.places.get_mut(usize::from(place.0)) {
            used.pending = used.pending.saturating_sub(1);
        }
    }

    /// Takes in the handle of a peer that has none. `None` if there are too many.
    pub(crate) fn insert(&mut self, peer: PeerId, handle: AddressHandle) -> Option<Place> {
        let place = match self.places.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.places.push(None);
                self.places.len() - 1
            }
        };
        let number = u16::try_from(place).ok().filter(|number| *number != NONE)?;
        let index = peer.0 as usize;
        if self.by_peer.len() <= index {
            self.by_peer.resize(index + 1, NONE);
        }
        self.by_peer[index] = number;
        self.places[place] = Some(Used {
            handle,
            peer,
            pending: 0,
            last: self.posts,
        });
        Some(Place(number))
    }

    /// Gives up the handle used longest ago of those without work, and of them only one of a peer that `of`
    /// accepts: the caller closes it.
    pub(crate) fn remove_idle(&mut self, of: impl Fn(PeerId) -> bool) -> Option<AddressHandle> {
        let idle = |used: &&Used| used.pending == 0 && of(used.peer);
        let oldest = self
            .places
            .iter()
            .flatten()
            .filter(idle)
            .min_by_key(|used| used.last)?;
        let Used { handle, peer, .. } = *oldest;
        let place = std::mem::replace(&mut self.by_peer[peer.0 as usize], NONE);
        self.places[usize::from(place)] = None;
        Some(handle)
    }
}
