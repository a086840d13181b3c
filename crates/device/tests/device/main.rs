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
mod home;
mod hostile;
mod invalidate;
mod lifecycle;
mod links;
mod messages;
mod qp;
mod qp_datagrams;
mod qp_errors;
mod qp_lists;
mod qp_lists_wrong;
mod quotas;
mod slots;
mod srq;
mod srq_lists;
mod srq_wrong;
mod threads;
mod world;
