//! Whom a queue pair's datagrams go to: the ring API's address handles, made when they are first needed and kept.

use std::collections::HashMap;
use std::ffi::c_int;

use usb4_ring::raw::{Errno, Ring, uapi};

/// A queue pair of another host, or of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) node_low: u64,
    pub(crate) node_high: u64,
    pub(crate) qpn: u32,
}

/// How long the first datagram to somebody waits for a link that is coming up.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Makes and gives back handles.
pub(crate) trait Maker {
    fn create(&self, target: &Target) -> Result<u32, Errno>;
    fn destroy(&self, handle: u32);
}

/// The device's, for endpoint `ep`.
pub(crate) struct Device<'a> {
    pub(crate) ring: &'a Ring,
    pub(crate) ep: u32,
}

impl Maker for Device<'_> {
    fn create(&self, target: &Target) -> Result<u32, Errno> {
        let addr = uapi::Addr {
            node_low: target.node_low,
            node_high: target.node_high,
            ep: target.qpn,
            // Whoever has that number.
            incarnation: 0,
        };
        self.ring.create_ah(self.ep, addr, PATIENCE_NS)
    }

    fn destroy(&self, handle: u32) {
        // It goes with the queue pair at the latest.
        let _ = self.ring.destroy_ah(self.ep, handle);
    }
}

/// Handles of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    known: HashMap<Target, Known>,
    /// The last one, which is often the next one.
    last: Option<(Target, u32)>,
    /// Counts lookups.
    clock: u64,
    /// Failures there had been when `last` was looked up.
    failures: u32,
}

#[derive(Debug)]
struct Known {
    handle: u32,
    used: u64,
    /// Failures there had been when it was made.
    failures: u32,
}

impl Handles {
    /// The handle for `target`. Where the device has room for no more, the one not used for longest goes: datagrams to
    /// there that are still on their way complete as flushed.
    ///
    /// A handle is good for as long as the link it was made for. So one that is older than the last of `failures`, which
    /// count sends that came to nothing, is made anew.
    #[inline]
    pub(crate) fn get(&mut self, target: &Target, failures: u32, maker: &impl Maker) -> Result<u32, c_int> {
        match self.last {
            Some((last, handle)) if last == *target && failures == self.failures => Ok(handle),
            _ => self.look_up(target, failures, maker),
        }
    }

    fn look_up(&mut self, target: &Target, failures: u32, maker: &impl Maker) -> Result<u32, c_int> {
        // `get` does not count the uses of the last one.
        if let Some(known) = self.last.and_then(|(last, _)| self.known.get_mut(&last)) {
            known.used = self.clock;
        }
        self.last = None;
        self.failures = failures;
        self.clock += 1;
        let used = self.clock;
        let handle = match self.known.get_mut(target) {
            Some(known) if known.failures == failures => {
                known.used = used;
                known.handle
            }
            _ => {
                if let Some(old) = self.known.remove(target) {
                    maker.destroy(old.handle);
                }
                let handle = self.make(target, maker).map_err(number)?;
                let known = Known {
                    handle,
                    used,
                    failures,
                };
                self.known.insert(*target, known);
                handle
            }
        };
        self.last = Some((*target, handle));
        Ok(handle)
    }

    /// Gives all of them back: the queue pair begins anew.
    pub(crate) fn clear(&mut self, maker: &impl Maker) {
        self.last = None;
        self.known
            .drain()
            .for_each(|(_, known)| maker.destroy(known.handle));
    }

    fn make(&mut self, target: &Target, maker: &impl Maker) -> Result<u32, Errno> {
        match maker.create(target) {
            Err(Errno::NOSPC | Errno::DQUOT) if self.make_room(maker) => maker.create(target),
            made => made,
        }
    }

    fn make_room(&mut self, maker: &impl Maker) -> bool {
        let oldest = self.known.iter().min_by_key(|(_, known)| known.used);
        let Some((target, handle)) = oldest.map(|(target, known)| (*target, known.handle)) else {
            return false;
        };
        self.known.remove(&target);
        maker.destroy(handle);
        true
    }
}

/// What a send to somebody who cannot be reached returns.
#[cold]
fn number(errno: Errno) -> c_int {
    match errno {
        // Of handles there are too many, as of work requests there may be.
        Errno::NOSPC | Errno::DQUOT => libc::ENOMEM,
        errno => errno.raw_os_error(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Has room for two.
    #[derive(Default)]
    struct Two(RefCell<Vec<(u32, u32)>>, RefCell<Vec<String>>);

    impl Maker for Two {
        fn create(&self, target: &Target) -> Result<u32, Errno> {
            if target.qpn == 99 {
                return Err(Errno::HOSTUNREACH);
            }
            let mut made = self.0.borrow_mut();
            if made.len() == 2 {
                return Err(Errno::NOSPC);
            }
            self.1.borrow_mut().push(format!("+{}", target.qpn));
            made.push((target.qpn + 1000, target.qpn));
            Ok(target.qpn + 1000)
        }

        fn destroy(&self, handle: u32) {
            self.1.borrow_mut().push(format!("-{}", handle - 1000));
            self.0.borrow_mut().retain(|made| made.0 != handle);
        }
    }

    fn target(qpn: u32) -> Target {
        Target {
            node_low: 1,
            node_high: 2,
            qpn,
        }
    }

    #[test]
    fn a_handle_is_made_once_and_the_one_not_used_for_longest_goes() {
        let (device, mut handles) = (Two::default(), Handles::default());
        for qpn in [5, 6, 5, 5, 6, 5, 7, 5, 7, 6] {
            assert_eq!(handles.get(&target(qpn), 0, &device), Ok(qpn + 1000));
        }
        assert_eq!(*device.1.borrow(), ["+5", "+6", "-6", "+7", "-5", "+6"]);
    }

    #[test]
    fn hosts_are_told_apart() {
        let (device, mut handles) = (Two::default(), Handles::default());
        let other = Target {
            node_low: 9,
            ..target(5)
        };
        for target in [target(5), other, target(5)] {
            handles.get(&target, 0, &device).unwrap();
        }
        assert_eq!(*device.1.borrow(), ["+5", "+5"]);
    }

    #[test]
    fn who_cannot_be_reached_is_asked_for_again() {
        let (device, mut handles) = (Two::default(), Handles::default());
        for _ in 0..2 {
            assert_eq!(handles.get(&target(99), 0, &device), Err(libc::EHOSTUNREACH));
        }
        assert!(handles.known.is_empty());
    }

    #[test]
    fn after_a_failure_each_is_made_anew_once() {
        let (device, mut handles) = (Two::default(), Handles::default());
        for (qpn, failures) in [(5, 0), (6, 0), (5, 1), (5, 1), (6, 1), (5, 1)] {
            handles.get(&target(qpn), failures, &device).unwrap();
        }
        assert_eq!(*device.1.borrow(), ["+5", "+6", "-5", "+5", "-6", "+6"]);
        handles.clear(&device);
        assert!(device.0.borrow().is_empty());
    }
}
