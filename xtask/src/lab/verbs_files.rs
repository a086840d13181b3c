//! What guests get for verbs: the provider of libibverbs, and programs over it.

use super::binary;
use crate::provider;
use anyhow::Result;
use std::path::PathBuf;

/// Where libibverbs 56 of the guests looks for providers.
const PROVIDER: &str = "usr/lib/x86_64-linux-gnu/libibverbs/libusb4-rdmav34.so";

/// Where guests find files, and which these are.
pub(crate) type Files = Vec<(String, PathBuf)>;

/// Our provider.
pub(crate) fn provider() -> Result<Files> {
    let folder = provider::verbs_folder()?;
    let files = [
        (PROVIDER, "libusb4-rdmav34.so"),
        ("etc/libibverbs.d/usb4.driver", "usb4.driver"),
    ];
    Ok(files
        .map(|(inside, name)| (inside.to_string(), folder.join(name)))
        .into())
}

/// A program that loads libibverbs.
pub(crate) fn program(package: &str, name: &str) -> Result<(String, PathBuf)> {
    let path = binary::build_dynamic(package, name)?;
    Ok((format!("usr/bin/{name}"), path))
}

/// What is to be played with.
pub(crate) fn programs() -> Result<Files> {
    Ok(vec![
        program("usb4-testkit", "usb4-verbs")?,
        program("verbs-pingpong", "verbs-pingpong")?,
    ])
}
