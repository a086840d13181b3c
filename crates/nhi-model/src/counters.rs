//! What is counted, per controller and per cable.

use crate::{Cable, Nhi, Port};

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// Names and values, for printing.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Counters of one controller, since the last clear or mark.
    Counters {
        /// BAR0 reads that trapped.
        reads,
        /// BAR0 writes that trapped.
        writes,
        /// TX doorbells: changes of a producer index.
        tx_doorbells,
        /// RX doorbells: changes of a consumer index.
        rx_doorbells,
        /// Doorbells a fault made the controller ignore.
        ignored_doorbells,
        /// MSI-X messages sent.
        interrupts,
        /// MSI-X messages lost to a fault.
        lost_interrupts,
        /// Times a message had to wait for its moderation interval.
        moderated,
        /// Data frames taken from TX rings.
        tx_frames,
        /// Bytes of them.
        tx_bytes,
        /// Data frames put into RX rings.
        rx_frames,
        /// Bytes of them.
        rx_bytes,
        /// Frames put into RX rings with the CRC error flag.
        rx_crc_errors,
        /// Frames that found no RX buffer, on a ring without end-to-end flow control.
        rx_overruns,
        /// Frames cut short because the RX buffer was smaller.
        rx_truncated,
        /// Frames dropped for any other reason: no path, no ring, PDF not wanted, memory fault.
        dropped,
        /// Times a TX ring had to wait for the far RX ring.
        held,
        /// Times a TX ring got wedged by frames into an absent path.
        wedged,
        /// TX completions a fault withheld.
        stranded,
        /// Control packets from the host.
        control_out,
        /// Control packets to the host.
        control_in,
        /// Control packets lost, to a fault or because nobody took them.
        control_lost,
        /// DMA accesses that guest memory refused.
        dma_faults,
    }
}

counters! {
    /// Counters of one direction of one cable.
    CableCounters {
        /// Data frames that entered.
        frames,
        /// Payload bytes that entered.
        bytes,
        /// Frames a fault lost.
        lost,
        /// Frames a fault changed.
        corrupted,
        /// Frames a fault doubled.
        duplicated,
        /// Control packets that entered.
        control,
        /// Control packets a fault lost.
        control_lost,
        /// Control packets a fault changed.
        control_corrupted,
        /// Control packets a fault doubled.
        control_duplicated,
    }
}

/// State of the link on a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// No signal.
    Down,
    /// Coming up.
    Training,
    /// Up, briefly out of service while its width changes. Frames wait.
    Recovery,
    /// Up, with this many lanes bonded.
    Up {
        /// 1 or 2.
        lanes: u8,
    },
}

/// One controller's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NhiStats {
    /// The controller.
    pub nhi: Nhi,
    /// The host it is in.
    pub host: usize,
    /// A guest is attached.
    pub connected: bool,
    /// Its counters.
    pub counters: Counters,
}

/// One cable's state and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CableStats {
    /// The cable.
    pub cable: Cable,
    /// Its ends.
    pub ends: [Port; 2],
    /// Not pulled out.
    pub plugged: bool,
    /// Its link.
    pub link: LinkState,
    /// Counters from the first end to the second, and back.
    pub counters: [CableCounters; 2],
}

/// All counters of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// One entry per controller.
    pub nhis: Vec<NhiStats>,
    /// One entry per cable.
    pub cables: Vec<CableStats>,
}
