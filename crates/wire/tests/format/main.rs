//! Tests of the formats, from the outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

mod common;
mod control_errors;
mod frame_errors;
mod ids;
mod layout;
mod roundtrip;
