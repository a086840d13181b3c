//! Which libibverbs it is.

use core::ffi::CStr;
use core::mem::{offset_of, size_of};

use crate::{ibv_context, ibv_qp_ex};

/// A layout of what libibverbs and its providers share: a private ABI, or one of the two that went by the number 59.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// rdma-core 36 to 56.
    Abi34,
    /// rdma-core 57 and 58.
    Abi57,
    /// rdma-core 59 to 61.
    Abi59,
    /// rdma-core 62 and 63, which have `ibv_dm_export_dmabuf_fd`.
    Abi59Dmabuf,
    /// rdma-core 64.
    Abi64,
    /// rdma-core 65.
    Abi65,
}

impl Layout {
    /// All of them, oldest first.
    pub const ALL: [Self; 6] = [
        Self::Abi34,
        Self::Abi57,
        Self::Abi59,
        Self::Abi59Dmabuf,
        Self::Abi64,
        Self::Abi65,
    ];

    /// The layout of rdma-core's release `major`, if it is one of these.
    pub const fn of_release(major: u32) -> Option<Self> {
        match major {
            36..=56 => Some(Self::Abi34),
            57 | 58 => Some(Self::Abi57),
            59..=61 => Some(Self::Abi59),
            62 | 63 => Some(Self::Abi59Dmabuf),
            64 => Some(Self::Abi64),
            65 => Some(Self::Abi65),
            _ => None,
        }
    }

    /// Number of the private ABI.
    pub const fn number(self) -> u32 {
        match self {
            Self::Abi34 => 34,
            Self::Abi57 => 57,
            Self::Abi59 | Self::Abi59Dmabuf => 59,
            Self::Abi64 => 64,
            Self::Abi65 => 65,
        }
    }

    /// Version of the private symbols.
    pub const fn version(self) -> &'static CStr {
        match self {
            Self::Abi34 => c"IBVERBS_PRIVATE_34",
            Self::Abi57 => c"IBVERBS_PRIVATE_57",
            Self::Abi59 | Self::Abi59Dmabuf => c"IBVERBS_PRIVATE_59",
            Self::Abi64 => c"IBVERBS_PRIVATE_64",
            Self::Abi65 => c"IBVERBS_PRIVATE_65",
        }
    }

    /// Name of `verbs_register_driver`.
    pub const fn register_driver(self) -> &'static CStr {
        match self {
            Self::Abi34 => c"verbs_register_driver_34",
            Self::Abi57 => c"verbs_register_driver_57",
            Self::Abi59 | Self::Abi59Dmabuf => c"verbs_register_driver_59",
            Self::Abi64 => c"verbs_register_driver_64",
            Self::Abi65 => c"verbs_register_driver_65",
        }
    }

    /// A function that came with this layout and the one before does not have: what tells two of one number apart. The
    /// first one's tells it from the releases before 36.
    pub const fn witness(self) -> Option<&'static CStr> {
        match self {
            Self::Abi34 => Some(c"ibv_query_qp_data_in_order"),
            Self::Abi59Dmabuf => Some(c"ibv_dm_export_dmabuf_fd"),
            _ => None,
        }
    }

    /// Bytes of `verbs_context` in front of its last field, the [`ibv_context`]: pointers, and the size of the whole.
    pub const fn context_front(self) -> usize {
        let words = match self {
            Self::Abi34 | Self::Abi57 => 40,
            Self::Abi59 => 43,
            Self::Abi59Dmabuf => 44,
            Self::Abi64 | Self::Abi65 => 46,
        };
        words * size_of::<usize>()
    }

    /// Bytes of `verbs_context`.
    pub const fn context_size(self) -> usize {
        self.context_front() + size_of::<ibv_context>()
    }

    /// Whether `ibv_cmd_get_context` takes an array of descriptors.
    pub const fn takes_descriptors(self) -> bool {
        !matches!(self, Self::Abi34)
    }
}

/// Where `verbs_qp.comp_mask` may be: `ibv_qp_ex` in front of it grew by a pointer with rdma-core 44 and with 45, and the
/// number of the private ABI tells nothing of that.
pub const QP_COMP_MASK: [usize; 3] = [
    offset_of!(ibv_qp_ex, wr_atomic_write),
    offset_of!(ibv_qp_ex, wr_flush),
    size_of::<ibv_qp_ex>(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_the_number_it_was_built_with() {
        let number = |major| Layout::of_release(major).map(Layout::number);
        assert_eq!(number(35), None);
        assert_eq!(number(44), Some(34));
        assert_eq!(number(56), Some(34));
        assert_eq!(number(58), Some(57));
        assert_eq!(number(63), Some(59));
        assert_eq!(number(64), Some(64));
        assert_eq!(number(65), Some(65));
        assert_eq!(number(66), None);
    }

    #[test]
    fn names_carry_the_number() {
        for layout in Layout::ALL {
            let number = layout.number().to_string();
            for name in [layout.version(), layout.register_driver()] {
                assert!(name.to_str().unwrap().ends_with(&format!("_{number}")));
            }
        }
    }
}
