//! PCI configuration space of a controller: a conventional function of 256 bytes with power management and MSI-X.
//!
//! Linux binds by class code (`nhi_ids` in `drivers/thunderbolt/nhi.c`); only vendor 8086 makes a difference, and the
//! front end's client emulates the BARs itself, so they are not writable here.
//!
//! With no peer, Linux suspends the controller after 15 seconds and stops ring 0. vfio-user cannot signal PME#, but
//! Linux looks at PME_Status of suspended conventional functions once a second (`pci_pme_list_scan` in
//! `drivers/pci/pci.c`): setting it is how a plug wakes the host.

use crate::regs::VECTORS;

/// Bytes of configuration space.
pub const CONFIG_SIZE: usize = 0x100;

// Offsets and bits: PCI Local Bus Specification 3.0 section 6.1, PCI Power Management 1.2 section 3.2, MSI-X
// (PCI 3.0 section 6.8.2); names as in include/uapi/linux/pci_regs.h.
const COMMAND: usize = 0x04;
const COMMAND_MEMORY_MASTER_PARITY: u8 = 0x47;
const COMMAND_MASTER: u8 = 0x04;
const COMMAND_SERR_INTX_OFF: u8 = 0x05;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u8 = 0x10;
const REVISION: usize = 0x08;
const CLASS: usize = 0x09;
const CACHE_LINE: usize = 0x0c;
const LATENCY_TIMER: usize = 0x0d;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const PM: usize = 0x40;
const PMCSR: usize = PM + 4;
const PMCSR_HIGH: usize = PMCSR + 1;
const PMCSR_STATE: u8 = 0x03;
const PMCSR_HIGH_PME_ENABLE: u8 = 0x01;
const PMCSR_HIGH_PME_STATUS: u8 = 0x80;
const MSIX: usize = 0x50;
const MSIX_CONTROL_HIGH: usize = MSIX + 3;
const MSIX_ENABLE_AND_MASK: u8 = 0xc0;

/// USB4 host interface: class 0c, subclass 03, programming interface 40 (USB4 specification 1.0 section 12.1).
const CLASS_USB4_HOST_INTERFACE: [u8; 3] = [0x40, 0x03, 0x0c];
/// Version 3, no soft reset when leaving D3hot, PME from D0 and D3hot.
const PM_CAPABILITY: [u8; 6] = [0x01, 0x50, 0x03, 0x48, 0x08, 0x00];
/// Table at BAR2 + 0, pending bits at BAR2 + 0x800, both `offset | BAR`.
const MSIX_TABLE_AND_PBA: [u8; 8] = [2, 0, 0, 0, 2, 8, 0, 0];

/// Who a controller says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciId {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
}

impl PciId {
    /// A vendor that is not Intel (1b36 is Red Hat's, for QEMU devices): interrupts by the clear register.
    pub const OTHER: Self = Self {
        vendor: 0x1b36,
        device: 0x0040,
    };
    /// Intel's vendor id with a device id Linux does not know: auto-clear interrupts, software connection manager.
    pub const INTEL: Self = Self {
        vendor: 0x8086,
        device: 0xff01,
    };
}

/// The space itself.
#[derive(Clone, Debug)]
pub(crate) struct PciConfig {
    id: PciId,
    bytes: [u8; CONFIG_SIZE],
}

impl PciConfig {
    pub(crate) fn new(id: PciId) -> Self {
        let mut config = Self {
            id,
            bytes: [0; CONFIG_SIZE],
        };
        config.reset();
        config
    }

    pub(crate) fn reset(&mut self) {
        self.bytes = [0; CONFIG_SIZE];
        let ids = [self.id.vendor.to_le_bytes(), self.id.device.to_le_bytes()].concat();
        let last_vector = u8::try_from(VECTORS.saturating_sub(1)).unwrap_or(0);
        self.put(0, &ids);
        self.put(STATUS, &[STATUS_CAPABILITIES]);
        self.put(REVISION, &[1]);
        self.put(CLASS, &CLASS_USB4_HOST_INTERFACE);
        self.put(SUBSYSTEM, &ids);
        self.put(CAPABILITIES, &[0x40]);
        self.put(PM, &PM_CAPABILITY);
        self.put(MSIX, &[0x11, 0, last_vector, 0]);
        self.put(MSIX.saturating_add(4), &MSIX_TABLE_AND_PBA);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0xff)
    }

    pub(crate) fn read(&self, offset: usize, buf: &mut [u8]) {
        for (i, to) in buf.iter_mut().enumerate() {
            *to = self.byte(offset.saturating_add(i));
        }
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        for (i, &value) in bytes.iter().take(CONFIG_SIZE).enumerate() {
            self.write_byte(offset.saturating_add(i), value);
        }
    }

    fn write_byte(&mut self, at: usize, value: u8) {
        const COMMAND_HIGH: usize = COMMAND + 1;
        let writable = match at {
            COMMAND => COMMAND_MEMORY_MASTER_PARITY,
            COMMAND_HIGH => COMMAND_SERR_INTX_OFF,
            CACHE_LINE | LATENCY_TIMER | INTERRUPT_LINE => 0xff,
            PMCSR => PMCSR_STATE,
            PMCSR_HIGH => PMCSR_HIGH_PME_ENABLE,
            MSIX_CONTROL_HIGH => MSIX_ENABLE_AND_MASK,
            _ => 0,
        };
        let Some(byte) = self.bytes.get_mut(at) else {
            return;
        };
        if at == PMCSR_HIGH {
            *byte &= !(value & PMCSR_HIGH_PME_STATUS); // written ones clear it
        }
        *byte = *byte & !writable | value & writable;
    }

    /// The host lets the function reach its memory, and the function is awake.
    pub(crate) fn may_dma(&self) -> bool {
        self.byte(COMMAND) & COMMAND_MASTER != 0 && self.awake()
    }

    /// In D0; else registers do not answer.
    pub(crate) fn awake(&self) -> bool {
        self.byte(PMCSR) & PMCSR_STATE == 0
    }

    /// Sets PME_Status; true if it was not set and the host has enabled PME.
    pub(crate) fn raise_pme(&mut self) -> bool {
        let news = self.byte(PMCSR_HIGH) & PMCSR_HIGH_PME_STATUS == 0;
        if let Some(byte) = self.bytes.get_mut(PMCSR_HIGH) {
            *byte |= PMCSR_HIGH_PME_STATUS;
        }
        news && self.byte(PMCSR_HIGH) & PMCSR_HIGH_PME_ENABLE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<const N: usize>(config: &PciConfig, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        config.read(at, &mut bytes);
        bytes
    }

    #[test]
    fn linux_finds_its_class_and_both_capabilities() {
        let config = PciConfig::new(PciId::OTHER);
        assert_eq!(read(&config, 0), [0x36, 0x1b, 0x40, 0x00]);
        assert_eq!(read(&config, CLASS), CLASS_USB4_HOST_INTERFACE);
        let [pm] = read(&config, CAPABILITIES);
        let [id, next] = read(&config, usize::from(pm));
        let [id2, end] = read(&config, usize::from(next));
        assert_eq!((id, id2, end), (0x01, 0x11, 0));
    }

    #[test]
    fn pme_status_stays_until_one_is_written_to_it() {
        let mut config = PciConfig::new(PciId::OTHER);
        assert!(!config.raise_pme(), "not enabled yet");
        config.write(PMCSR, &[3, 0x01]);
        assert_eq!(read(&config, PMCSR), [0x0b, 0x81]);
        config.write(PMCSR, &[0, 0x81]);
        assert_eq!(read(&config, PMCSR), [0x08, 0x01]);
    }

    #[test]
    fn no_dma_before_the_driver_makes_it_bus_master_or_while_it_sleeps() {
        let mut config = PciConfig::new(PciId::OTHER);
        assert!(!config.may_dma());
        config.write(COMMAND, &[0x06, 0x04]);
        assert!(config.may_dma());
        config.write(PMCSR, &[3]);
        assert!(!config.may_dma() && !config.awake());
    }

    #[test]
    fn ids_and_bars_are_read_only_and_the_end_is_the_end() {
        let mut config = PciConfig::new(PciId::OTHER);
        config.write(0, &[0; 4]);
        config.write(0x10, &[0xff; 24]);
        config.write(usize::MAX, &[1, 2]);
        config.write(0xfe, &[1, 2, 3, 4]);
        assert_eq!(read(&config, 0), [0x36, 0x1b, 0x40, 0x00]);
        assert_eq!(read(&config, 0x10), [0; 24]);
        assert_eq!(read(&config, 0xfe), [0, 0, 0xff]);
    }
}
