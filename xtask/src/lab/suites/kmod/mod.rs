//! The whole of our module: what it does on bad cables, with peers that go, beside other users, and to those who mean
//! it ill.
//!
//! Each file is about one of these; the suite is the groups of all of them.

mod bad_cable;
mod dkms;
mod dmabuf;
mod jobs;
mod limits;
mod neighbour;
mod network;
mod peer;
mod peers;
mod soak;
mod status;
mod three;
mod users;
mod versions;

use super::{Check, Group, Outcome, Tag};
use crate::lab::session::Lab;
use anyhow::Result;

pub(super) use bad_cable::with_all as with_all_faults;

pub(super) fn groups() -> Vec<&'static Group> {
    [
        bad_cable::GROUPS,
        dkms::GROUPS,
        jobs::GROUPS,
        limits::GROUPS,
        status::GROUPS,
        peer::GROUPS,
        network::GROUPS,
        three::GROUPS,
        neighbour::GROUPS,
        users::GROUPS,
        versions::GROUPS,
        soak::GROUPS,
    ]
    .into_iter()
    .flatten()
    .collect()
}

const fn check(name: &'static str, tag: Tag, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check { name, tag, run }
}

fn seen(what: impl Into<String>) -> Result<Outcome> {
    Ok(Outcome::Seen(what.into()))
}
