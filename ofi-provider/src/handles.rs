//! The address handles of an endpoint: which peer has which, and which can be given up.

use usb4_ring::AddressHandle;
use usb4_tagged::PeerId;

/// No handle; more than there are places.
const NONE: u16 = u16::MAX;

/// Place of a handle: goes with the work posted through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u16);

/// A handle and what it is used for.
#[derive(Clone, Copy)]
struct Used {
    handle: AddressHandle,
    /// Whose it is; `None`: it has been given up.
    peer: Option<PeerId>,
    /// Posted through it and not finished.
    pending: u32,
    /// Counts all that was posted, as of the last through this one.
    last: u64,
}

/// Handles, by peer and by place.
#[derive(Default)]
pub(crate) struct Handles {
    by_peer: Vec<u16>,
    places: Vec<Used>,
    posts: u64,
}

impl Handles {
    /// The handle of a peer, through which work is about to be posted.
    #[inline(always)]
    pub(crate) fn begin(&mut self, peer: PeerId) -> Option<(AddressHandle, Place)> {
        let place = *self.by_peer.get(peer.0 as usize)?;
        let used = self.places.get_mut(usize::from(place))?;
        used.pending += 1;
        self.posts += 1;
        used.last = self.posts;
        Some((used.handle, Place(place)))
    }

    /// Work has finished, or was not posted after all.
    #[inline(always)]
    pub(crate) fn end(&mut self, place: Place) {
        if let Some(used) = self.places.get_mut(usize::from(place.0)) {
            used.pending = used.pending.wrapping_sub(1);
        }
    }

    /// Takes in the handle of a peer that has none; false if there are too many.
    pub(crate) fn insert(&mut self, peer: PeerId, handle: AddressHandle) -> bool {
        let free = self.places.iter().position(|used| used.peer.is_none());
        let place = free.unwrap_or(self.places.len());
        let Some(number) = u16::try_from(place).ok().filter(|number| *number != NONE) else {
            return false;
        };
        let index = peer.0 as usize;
        if self.by_peer.len() <= index {
            self.by_peer.resize(index + 1, NONE);
        }
        self.by_peer[index] = number;
        let used = Used {
            handle,
            peer: Some(peer),
            pending: 0,
            last: self.posts,
        };
        match self.places.get_mut(place) {
            Some(place) => *place = used,
            None => self.places.push(used),
        }
        true
    }

    /// Gives up the handle used longest ago of those without work whose peer `of` accepts: the caller closes it.
    pub(crate) fn remove_idle(&mut self, of: impl Fn(PeerId) -> bool) -> Option<AddressHandle> {
        let idle = |used: &&mut Used| used.pending == 0 && used.peer.is_some_and(&of);
        let oldest = self.places.iter_mut().filter(idle).min_by_key(|used| used.last)?;
        let peer = oldest.peer.take()?;
        self.by_peer[peer.0 as usize] = NONE;
        Some(oldest.handle)
    }
}

#[cfg(test)]
mod tests {
    use usb4_ring::{Device, EndpointConfig};

    use super::*;

    #[test]
    fn the_handle_without_work_for_longest_is_given_up_and_none_with_work() {
        let device = Device::open(&format!("soft:handles-{}", std::process::id())).unwrap();
        let cq = device.create_cq(4).unwrap();
        let mut endpoint = device
            .create_endpoint(&EndpointConfig::default(), &cq, &cq)
            .unwrap();
        let address = endpoint.address();
        let opened = [(); 3].map(|()| endpoint.address_handle(&address).unwrap());
        let mut handles = Handles::default();
        for (peer, handle) in (0..).zip(opened) {
            assert_eq!(handles.begin(PeerId(peer)), None);
            assert!(handles.insert(PeerId(peer), handle));
        }
        let places = [1, 0, 2].map(|peer| handles.begin(PeerId(peer)).unwrap().1);
        assert_eq!(handles.remove_idle(|_| true), None);
        for place in places.into_iter().rev() {
            handles.end(place);
        }
        assert_eq!(handles.remove_idle(|peer| peer == PeerId(2)), Some(opened[2]));
        assert_eq!(handles.remove_idle(|_| true), Some(opened[1]));
        assert_eq!(handles.begin(PeerId(1)), None);
        assert!(handles.insert(PeerId(9), opened[1]));
        assert_eq!(handles.begin(PeerId(9)).unwrap().0, opened[1]);
        assert_eq!(handles.remove_idle(|_| true), Some(opened[0]));
        assert_eq!(handles.remove_idle(|_| true), None);
    }
}
