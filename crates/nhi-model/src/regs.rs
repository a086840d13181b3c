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
    /// Bytes of every such page.
    pub const SIZE: u64 = 0x1000;

    /// Offset of the page in BAR0.
    #[must_use]
    pub const fn offset(self) -> u64 {
        match self {
            Self::TxRings => TX_RINGS,
            Self::RxRings => RX_RINGS,
            Self::Interrupts => 0x38000,
        }
    }
}

/// Per TX ring, 16 bytes: base low, base high, indices, size.
pub(crate) const TX_RINGS: u64 = 0x00000;
/// The same per RX ring.
pub(crate) const RX_RINGS: u64 = 0x08000;
pub(crate) const RING_STRIDE: u64 = 16;
/// Offsets in a ring's registers.
pub(crate) const RING_BASE: u64 = 0;
pub(crate) const RING_BASE_HIGH: u64 = 4;
/// TX: consumer index (ours) low, producer index (the driver's) high. RX: the driver's low, ours high. A doubleword
/// write leaves our half alone (`ring_iowrite_cons` and `ring_iowrite_prod` in `nhi.c`).
pub(crate) const RING_INDICES: u64 = 8;
/// Descriptors (15:0); RX: also the largest frame a buffer takes (27:16, 0 = 4096).
pub(crate) const RING_SIZE: u64 = 12;

/// Per TX ring, 32 bytes: options first.
pub(crate) const TX_OPTIONS: u64 = 0x19800;
/// Per RX ring, 32 bytes: options, then SOF (31:16) and EOF (15:0) PDF masks.
pub(crate) const RX_OPTIONS: u64 = 0x29800;
pub(crate) const OPTIONS_STRIDE: u64 = 32;
pub(crate) const OPTIONS_MASKS: u64 = 4;
/// The ring runs.
pub(crate) const OPTION_ENABLE: u32 = 1 << 31;
/// No frames, PDF masks ignored.
pub(crate) const OPTION_RAW: u32 = 1 << 30;
/// End-to-end flow control.
pub(crate) const OPTION_E2E: u32 = 1 << 28;

/// Three bit fields of one bit per hop: TX, RX, RX overrun.
pub(crate) const INT_STATUS: u64 = 0x37800;
/// Written ones clear the status bit.
pub(crate) const INT_CLEAR: u64 = 0x37808;
pub(crate) const INT_CLEAR_END: u64 = 0x37810;
/// Two bit fields of one bit per hop, TX and RX; set = enabled.
pub(crate) const INT_MASK: u64 = 0x38200;
/// Written ones clear the mask bit.
pub(crate) const INT_MASK_CLEAR: u64 = 0x38208;
pub(crate) const INT_MASK_CLEAR_END: u64 = 0x38210;
/// Per vector, ticks of 256 ns: running count (31:16), interval (15:0).
pub(crate) const INT_THROTTLE: u64 = 0x38c00;
pub(crate) const THROTTLE_TICK: u64 = 256;
/// Per ring bit, a 4-bit vector number.
pub(crate) const INT_VECTOR: u64 = 0x38c40;
pub(crate) const INT_VECTOR_END: u64 = 0x38c50;

/// Hop count (10:0), version (23:16).
pub(crate) const CAPS: u64 = 0x39640;
pub(crate) const CAPS_VERSION_SHIFT: u32 = 16;
/// Versions of USB4 1 and 2; Linux uses the reset register from 0x40 on.
pub(crate) const CAPS_VERSION_PER_MAJOR: u32 = 0x20;
pub(crate) const DMA_MISC: u64 = 0x39864;
/// Intel's: sending the message clears the status bit.
pub(crate) const DMA_MISC_AUTO_CLEAR: u32 = 1 << 2;
/// USB4's: reading the status does not clear it.
pub(crate) const DMA_MISC_NO_CLEAR_ON_READ: u32 = 1 << 17;
/// Bit 0 resets the host router and reads 0 when done.
pub(crate) const RESET: u64 = 0x39898;
/// Firmware mailbox; bit 31 is a request, done at once.
pub(crate) const INMAIL_COMMAND: u64 = 0x39904;
