//! The provider's parameters: each defined once, with its help and default (`fi_info -g usb4` lists them).

use std::ffi::CStr;
use std::sync::OnceLock;

use libfabric_sys::FI_PARAM_SIZE_T;
use usb4_ffi::{Level, log};

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
            All processes of a job need the same, or messages are truncated. \
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
        c"Memory in bytes for the unexpected messages an endpoint keeps outside its receive buffers; each costs its \
            length and about 400 bytes, one longer than FI_USB4_EAGER_SIZE only the latter. Beyond it senders have to \
            wait. 0 or more, default 268435456.",
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
    /// Memory for unexpected messages.
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

/// The values, read once. What is not usable is said in the log, with the value used instead.
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
        let variable = format!("FI_USB4_{}", self.name.to_string_lossy().to_uppercase());
        let text = std::env::var_os(&variable).map(|text| text.to_string_lossy().into_owned());
        let (value, wrong) = self.settle(text.as_deref(), host().size_param(self.name));
        if let Some(wrong) = wrong {
            log(Level::Warn, format_args!("{variable}: {wrong}; using {value}"));
        }
        value
    }

    /// The value to use, and what is wrong with the one given. `text` is what the environment has; `read` is what the
    /// host makes of that or of its own configuration: it takes "abc" for 0 and "-5" for a huge number.
    fn settle(&self, text: Option<&str>, read: Option<usize>) -> (usize, Option<String>) {
        if let Some(text) = text.filter(|text| !is_number(text.trim())) {
            return (self.default, Some(format!("{text:?} is not a number")));
        }
        let (least, most) = self.range;
        let value = read.unwrap_or(self.default);
        let wrong = (value < least || value > most).then(|| format!("{value} is not in {least} to {most}"));
        (value.clamp(least, most), wrong)
    }
}

/// Whether C's `strtol` reads all of it, as a number that is not negative.
fn is_number(text: &str) -> bool {
    match text.strip_prefix("0x") {
        Some(digits) => !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit()),
        None => !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_named_and_the_default_used() {
        for text in ["abc", "", "-5", "16k", "0x"] {
            let (value, wrong) = EAGER_SIZE.settle(Some(text), Some(0));
            assert_eq!(value, 16384, "{text:?}");
            assert!(wrong.unwrap().contains(&format!("{text:?}")), "{text:?}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_named_and_the_nearest_used() {
        let (value, wrong) = TX_SIZE.settle(Some("3"), Some(3));
        assert_eq!((value, wrong.as_deref()), (64, Some("3 is not in 64 to 16384")));
        assert_eq!(RX_SLOTS.settle(Some("100000"), Some(100_000)).0, 16384);
    }

    #[test]
    fn a_good_value_passes_without_a_word() {
        assert_eq!(EAGER_SIZE.settle(Some("0x1000"), Some(4096)), (4096, None));
        assert_eq!(EAGER_SIZE.settle(None, None), (16384, None));
        assert_eq!(UNEXPECTED_MAX.settle(Some("0"), Some(0)), (0, None));
    }
}
