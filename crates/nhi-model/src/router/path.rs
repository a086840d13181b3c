//! Path configuration space: two doublewords per ingress HopID of an adapter (USB4 1.0 section 8.2.3, `struct
//! tb_regs_hop` in `tb_regs.h`).

use super::adapter::{Adapter, Kind};
use crate::bits::{bit, get, word};

/// Bit of the second doubleword: packets of the path are still under way. Read-only.
const PENDING: u32 = 1 << 28;

/// One path entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hop(pub(super) [u32; 2]);

impl Hop {
    /// The control channel's entry: two credits, which the driver reads.
    pub(super) const CONTROL: Self = Self([2 << 17 | 1 << 31, 0]);

    /// Frames may pass.
    pub(crate) fn enabled(self) -> bool {
        let [first, _] = self.0;
        first & bit(31) != 0
    }

    /// HopID on the link beyond, or RX ring.
    pub(crate) fn next_hop(self) -> u32 {
        let [first, _] = self.0;
        get(first, 0, 11)
    }

    /// Adapter it leads to.
    pub(crate) fn out_adapter(self) -> u32 {
        let [first, _] = self.0;
        get(first, 11, 6)
    }
}

impl Adapter {
    /// A doubleword of path space.
    pub(super) fn path_word(&self, at: usize, number: u32, busy: &dyn Fn(u32, u32) -> bool) -> Option<u32> {
        let Hop([first, second]) = *self.hops.get(at / 2)?;
        if at % 2 == 0 {
            return Some(first);
        }
        let pending = matches!(self.kind, Kind::Lane(_)) && busy(number, word(at / 2));
        Some(second | if pending { PENDING } else { 0 })
    }

    pub(super) fn write_path(&mut self, at: usize, value: u32) -> Option<()> {
        let Hop([first, second]) = self.hops.get_mut(at / 2)?;
        if at % 2 == 0 {
            *first = value;
        } else {
            *second = value & !PENDING;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read, router};
    use super::super::{Router, space};
    use super::*;

    #[test]
    fn entries_say_where_a_path_goes() {
        let mut router = router(2);
        router
            .write(1, space::PATH, 16, &[3 | 5 << 11 | 1 << 31, 0])
            .unwrap();
        let hop = router.hop(1, 8).unwrap();
        assert_eq!((hop.enabled(), hop.next_hop(), hop.out_adapter()), (true, 3, 5));
        assert_eq!((router.hop(1, 24), router.hop(5, 12)), (None, None));
    }

    #[test]
    fn pending_shows_frames_under_way_and_cannot_be_written() {
        let mut router: Router = router(2);
        router.write(1, space::PATH, 17, &[u32::MAX]).unwrap();
        assert_eq!(read(&router, 1, space::PATH, 17) & PENDING, 0);
        let busy = |adapter, hop| (adapter, hop) == (1, 8);
        assert_eq!(
            router.read(1, space::PATH, 17, 1, &busy).unwrap()[0] & PENDING,
            PENDING
        );
        assert_eq!(router.read(3, space::PATH, 17, 1, &busy).unwrap()[0] & PENDING, 0);
    }
}
