//! The memory a link lives in.

/// All state of a link, handed over at creation.
#[derive(Debug)]
pub struct LinkStorage {
    _private: (),
}

#[cfg(feature = "alloc")]
impl LinkStorage {
    /// Storage on the heap for a link with this configuration.
    pub fn boxed(config: &crate::LinkConfig) -> Self {
        let _ = config;
        Self { _private: () }
    }
}
