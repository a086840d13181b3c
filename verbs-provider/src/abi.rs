//! What uverbs calls of `usb4_0` answer its provider: `kmod/usb4_ib_abi.h`, version 1.

#![allow(non_camel_case_types, reason = "the names are the header's")]

use rdma_core_sys::{
    ib_uverbs_create_ah_resp, ib_uverbs_create_cq_resp, ib_uverbs_create_qp_resp, ib_uverbs_create_srq_resp,
    ib_uverbs_get_context_resp,
};

/// `uverbs_abi_ver` of the kernel's driver.
pub(crate) const ABI_VERSION: u32 = 1;

/// The driver in sysfs that `usb4_0` is bound to.
pub(crate) const DRIVER: &str = "usb4_rdma_ib";

/// The kernel's driver has no `rdma_driver_id` (`RDMA_DRIVER_UNKNOWN`).
pub(crate) const DRIVER_ID: u32 = 0;

/// A context: the descriptor its queues are mapped through, and where the notice page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct usb4_ib_alloc_ucontext_resp {
    pub(crate) ring_abi: u32,
    pub(crate) ring_fd: i32,
    pub(crate) caps: u32,
    pub(crate) notice_bytes: u32,
    pub(crate) notice_offset: u64,
}

/// A completion queue: its name for `ENTER`, and where to map it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct usb4_ib_create_cq_resp {
    pub(crate) cq: u32,
    pub(crate) depth: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A shared receive queue: its name for `ENTER`, and where to map it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct usb4_ib_create_srq_resp {
    pub(crate) srq: u32,
    pub(crate) depth: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) slot: u32,
    pub(crate) reserved: u32,
}

/// A queue pair: its name for `ENTER`, and where to map its queues. One that draws from a shared receive queue has none of
/// its own: `rq_depth` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct usb4_ib_create_qp_resp {
    pub(crate) ep: u32,
    pub(crate) sq_depth: u32,
    pub(crate) rq_depth: u32,
    pub(crate) sq_slot: u32,
    pub(crate) sq_offset: u64,
    pub(crate) sq_bytes: u64,
    pub(crate) rq_offset: u64,
    pub(crate) rq_bytes: u64,
    pub(crate) rq_slot: u32,
    pub(crate) reserved: u32,
}

/// An address: the host's node id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct usb4_ib_create_ah_resp {
    pub(crate) node_low: u64,
    pub(crate) node_high: u64,
}

/// What is answered to `GET_CONTEXT`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ContextResponse {
    pub(crate) core: ib_uverbs_get_context_resp,
    pub(crate) ours: usb4_ib_alloc_ucontext_resp,
}

/// What is answered to `CREATE_CQ`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CqResponse {
    pub(crate) core: ib_uverbs_create_cq_resp,
    pub(crate) ours: usb4_ib_create_cq_resp,
}

/// What is answered to `CREATE_QP`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct QpResponse {
    pub(crate) core: ib_uverbs_create_qp_resp,
    pub(crate) ours: usb4_ib_create_qp_resp,
}

/// What is answered to `CREATE_SRQ`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SrqResponse {
    pub(crate) core: ib_uverbs_create_srq_resp,
    pub(crate) ours: usb4_ib_create_srq_resp,
}

/// What is answered to `CREATE_AH`: ours follows uverbs' four bytes at once.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
pub(crate) struct AhResponse {
    pub(crate) core: ib_uverbs_create_ah_resp,
    pub(crate) ours: usb4_ib_create_ah_resp,
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::mem::offset_of;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_ours_follows_what_is_of_uverbs_without_a_gap() {
        assert_eq!(
            offset_of!(ContextResponse, ours),
            size_of::<ib_uverbs_get_context_resp>()
        );
        assert_eq!(
            offset_of!(CqResponse, ours),
            size_of::<ib_uverbs_create_cq_resp>()
        );
        assert_eq!(
            offset_of!(QpResponse, ours),
            size_of::<ib_uverbs_create_qp_resp>()
        );
        assert_eq!(
            offset_of!(SrqResponse, ours),
            size_of::<ib_uverbs_create_srq_resp>()
        );
        assert_eq!(
            offset_of!(AhResponse, ours),
            size_of::<ib_uverbs_create_ah_resp>()
        );
    }

    /// Each structure's size and each field's offset and size, here and in the header.
    #[test]
    fn structures_are_those_of_the_header() {
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kmod/usb4_ib_abi.h");
        if !header.exists() {
            println!("skipped: there is no {}", header.display());
            return;
        }
        let mut facts: Vec<(String, usize)> = vec![(
            "USB4_IB_ABI_VERSION".into(),
            usize::try_from(ABI_VERSION).unwrap(),
        )];
        macro_rules! structure {
            ($name:ident: $($field:ident),*) => {
                let c = concat!("struct ", stringify!($name));
                facts.push((format!("sizeof({c})"), size_of::<$name>()));
                $(facts.push((
                    format!("offsetof({c}, {})", stringify!($field)),
                    offset_of!($name, $field),
                ));)*
            };
        }
        structure!(usb4_ib_alloc_ucontext_resp: ring_abi, ring_fd, caps, notice_bytes, notice_offset);
        structure!(usb4_ib_create_cq_resp: cq, depth, offset, bytes);
        structure!(usb4_ib_create_qp_resp:
            ep, sq_depth, rq_depth, sq_slot, sq_offset, sq_bytes, rq_offset, rq_bytes, rq_slot, reserved);
        structure!(usb4_ib_create_srq_resp: srq, depth, offset, bytes, slot, reserved);
        structure!(usb4_ib_create_ah_resp: node_low, node_high);
        let mut c = format!("#include <stddef.h>\n#include \"{}\"\n", header.display());
        for (expression, value) in &facts {
            writeln!(c, "_Static_assert({expression} == {value}, \"{expression}\");").unwrap();
        }
        let folder = std::env::temp_dir().join(format!("usb4-ib-abi-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = folder.join("abi.c");
        std::fs::write(&source, c).unwrap();
        let out = Command::new("gcc")
            .args(["-Wpadded", "-Werror", "-fsyntax-only"])
            .arg(&source)
            .output()
            .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}
