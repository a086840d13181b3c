//! BAR2: the MSI-X table and the pending bits. The table only stores; see [`crate::Fabric::bar2_read`].

use super::Controller;
use crate::bits::{bit, word};
use crate::regs::VECTORS;

/// Doublewords of a table entry: address (two), data, control (bit 0 masks; PCI 3.0 section 6.8.2).
const ENTRY: usize = 4;
const CONTROL: usize = 3;
/// Doubleword of the pending bits.
const PENDING: usize = 0x800 / 4;

/// The table.
#[derive(Clone, Debug)]
pub(super) struct Msix([[u32; ENTRY]; VECTORS]);

impl Default for Msix {
    fn default() -> Self {
        Self([[0, 0, 0, 1]; VECTORS])
    }
}

impl Controller {
    pub(crate) fn bar2_read(&self, offset: u64) -> u32 {
        let at = usize::try_from(offset / 4).unwrap_or(usize::MAX);
        if at == PENDING {
            let pending = (0..VECTORS).filter(|&vector| self.interrupts.pending(vector));
            return pending.fold(0, |bits, vector| bits | bit(word(vector)));
        }
        let entry = self.msix.0.get(at / ENTRY);
        entry
            .and_then(|entry| entry.get(at % ENTRY))
            .copied()
            .unwrap_or(0)
    }

    pub(crate) fn bar2_write(&mut self, offset: u64, value: u32) {
        let at = usize::try_from(offset / 4).unwrap_or(usize::MAX);
        let field = at % ENTRY;
        if let Some(slot) = self
            .msix
            .0
            .get_mut(at / ENTRY)
            .and_then(|entry| entry.get_mut(field))
        {
            *slot = match field {
                0 => value & !3,
                CONTROL => value & 1,
                _ => value,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Nhi, Topology};

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn entries_start_masked_and_keep_what_they_may() {
        let mut controller = Controller::new(Nhi(0), &Topology::pair(), Rng::new(1));
        assert_eq!(controller.bar2_read(0x0c), 1);
        controller.bar2_write(0x10, 0xfee0_0003);
        controller.bar2_write(0x1c, 0xffff_fffe);
        assert_eq!(
            (controller.bar2_read(0x10), controller.bar2_read(0x1c)),
            (0xfee0_0000, 0)
        );
        controller.bar2_write(0x800, !0);
        assert_eq!((controller.bar2_read(0x800), controller.bar2_read(0xffc)), (0, 0));
    }
}
