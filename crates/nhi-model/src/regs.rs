//! Register layout of the native host interface (USB4 specification 1.0 section 12.6; names and offsets as in
//! `drivers/thunderbolt/nhi_regs.h`).

/// Bytes of BAR0.
pub const BAR0_SIZE: u64 = 0x40000;
/// Bytes of BAR2: MSI-X table at 0, pending bits at 0x800.
pub const BAR2_SIZE: u64 = 0x1000;
/// MSI-X vectors.
pub const VECTORS: usize = 16;

/// A page of BAR0 that a front end may map into the guest.
///
/// The driver never reads the two ring pages, and touches a ring's (trapped) options register after it has written
/// its base and size and before it clears them. The interrupt page may only be mapped for PCI vendor 8086: other
/// drivers clear mask bits through a write-one-to-clear register in the same page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedPage {
    /// TX ring registers.
    TxRings,
    /// RX ring registers.
    RxRings,
    /// Interrupt mask, moderation and vector allocation.
    Interrupts,
}

impl MappedPage {
    /// Offset of the page in BAR0.
    #[must_use]
    pub const fn offset(self) -> u64 {
        match self {
            Self::TxRings => 0,
            Self::RxRings => 0x8000,
            Self::Interrupts => 0x38000,
        }
    }

    /// Bytes of every such page.
    pub const SIZE: u64 = 0x1000;
}
