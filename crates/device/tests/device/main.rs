//! Two devices wired back to back.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod connected;
mod flows;
mod hostile;
mod lifecycle;
mod messages;
mod threads;
mod world;
