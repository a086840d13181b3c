//! What a step came to.

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing can be done now.
    Stuck,
    /// Something was done.
    Moved,
    /// All is done.
    Done,
}
