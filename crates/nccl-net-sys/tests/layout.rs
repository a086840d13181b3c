//! Compares what there is in RCCL's header with what is declared here.
//!
//! The only package with such a header is Debian's `librccl-dev` (trixie), which has v6. `cargo xtask nccl --headers` fetches
//! it and runs this, as CI does.
#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use nccl_net_sys::*;

/// Sizes by "structure", and offsets of fields by "structure.field".
type Layout = BTreeMap<String, usize>;

macro_rules! layout {
    ($layout:ident, $type:ident, [$($field:ident),* $(,)?]) => {
        $layout.insert(stringify!($type).to_owned(), size_of::<$type>());
        $($layout.insert(concat!(stringify!($type), ".", stringify!($field)).to_owned(), offset_of!($type, $field));)*
    };
}

fn ours() -> Layout {
    let mut layout = Layout::new();
    layout!(
        layout,
        ncclNetProperties_v6_t,
        [
            name, pciPath, guid, ptrSupport, speed, port, latency, maxComms, maxRecvs
        ]
    );
    layout!(
        layout,
        ncclNet_v6_t,
        [
            name,
            init,
            devices,
            getProperties,
            listen,
            connect,
            accept,
            regMr,
            regMrDmaBuf,
            deregMr,
            isend,
            irecv,
            iflush,
            test,
            closeSend,
            closeRecv,
            closeListen,
        ]
    );
    layout
}

/// As bindgen reads them from the header.
fn theirs(include: &Path) -> Layout {
    let header = std::fs::read_to_string(include.join("nccl_net.h")).expect("nccl_net.h in RCCL_INCLUDE");
    // It includes the runtime's own header, which wants HIP's; these are the types it needs of that.
    let types = "typedef __SIZE_TYPE__ size_t;\ntypedef int ncclResult_t, ncclDataType_t, ncclRedOp_t;\n";
    let source = format!("{types}{}", header.replace("#include \"nccl.h\"", ""));
    let bindings = bindgen::Builder::default()
        .header_contents("nccl_net.h", &source)
        .allowlist_type("ncclNet(Properties)?_v6_t")
        .generate()
        .expect("bindgen reads the header (it needs libclang: install libclang-dev)")
        .to_string();
    let mut layout = Layout::new();
    for part in bindings.split("[\"").skip(1) {
        let (what, after) = part.split_once("\"]").expect("the end of a name");
        let name = match (
            what.strip_prefix("Offset of field: "),
            what.strip_prefix("Size of "),
        ) {
            (Some(field), _) => field.replace("::", "."),
            (_, Some(size)) => size.to_owned(),
            _ => continue,
        };
        let value = after
            .split_once(" - ")
            .and_then(|value| value.1.split_once("usize"))
            .and_then(|value| value.0.parse().ok());
        layout.insert(name, value.expect("a number"));
    }
    layout
}

#[test]
#[ignore = "wants the header of librccl-dev in RCCL_INCLUDE: cargo xtask nccl --headers"]
fn version_6_is_that_of_the_header() {
    let include = std::env::var_os("RCCL_INCLUDE").map_or_else(|| "/usr/include/rccl".into(), PathBuf::from);
    assert_eq!(ours(), theirs(&include));
}
