//! The provider's parameters: each defined once, with its help and default (`fi_info -g usb4` lists them).

use std::ffi::CStr;
use std::sync::OnceLock;

use libfabric_sys::FI_PARAM_SIZE_T;

use crate::host::host;

struct Param {
    name: &'static CStr,
    help: &'static CStr,
    default: usize,
    range: (usize, usize),
}

const EAGER_SIZE: Param = Param {
    name: c"eager_size",
    help: c"Longest message in bytes that is sent without asking the receiver; longer ones are read by it. \
            All processes of a job need the same. \
            256 to 1048576, default 16384.",
    default: 16384,
    range: (256, 1 << 20),
};

const RX_SLOTS: Param = Param {
    name: c"rx_slots",
    help: c"Receive buffers of eager size per endpoint. 16 to 16384, default 256.",
    default: 256,
    range: (16, 16384),
};

const UNEXPECTED_MAX: Param = Param {
    name: c"unexpected_max",
    help:
        c"Bytes of unexpected messages an endpoint keeps outside its receive buffers before senders have to \
            wait. Default 268435456.",
    default: 256 << 20,
    range: (0, usize::MAX),
};

const TX_SIZE: Param = Param {
    name: c"tx_size",
    help: c"Entries of an endpoint's submission queue. 64 to 16384, default 1024.",
    default: 1024,
    range: (64, 16384),
};

/// The parameters' values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    /// Longest eager message.
    pub(crate) eager_size: usize,
    /// Receive slots.
    pub(crate) rx_slots: usize,
    /// Bytes of unexpected messages.
    pub(crate) unexpected_max: usize,
    /// Submission queue entries.
    pub(crate) tx_size: usize,
}

/// Tells the host of the parameters.
pub(crate) fn define() {
    for param in [&EAGER_SIZE, &RX_SLOTS, &UNEXPECTED_MAX, &TX_SIZE] {
        host().define(param.name, FI_PARAM_SIZE_T, param.help);
    }
}

/// The values, read once.
pub(crate) fn params() -> &'static Params {
    static PARAMS: OnceLock<Params> = OnceLock::new();
    PARAMS.get_or_init(|| Params {
        eager_size: EAGER_SIZE.get(),
        rx_slots: RX_SLOTS.get(),
        unexpected_max: UNEXPECTED_MAX.get(),
        tx_size: TX_SIZE.get(),
    })
}

impl Param {
    fn get(&self) -> usize {
        let value = host().size_param(self.name).unwrap_or(self.default);
        value.clamp(self.range.0, self.range.1)
    }
}
