//! The libibverbs that loaded us.

use std::sync::OnceLock;

use rdma_core_sys::{Library, NotFound};

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Looks for it, the first time.
pub(crate) fn find() -> Result<&'static Library, NotFound> {
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let found = Library::find()?;
    Ok(LIBRARY.get_or_init(|| found))
}

/// The one that was found.
#[inline]
pub(crate) fn library() -> Option<&'static Library> {
    LIBRARY.get()
}
