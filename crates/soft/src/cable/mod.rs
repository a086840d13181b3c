//! Cables.

mod cursor;
mod sync;
