//! Network interfaces and their addresses.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};

use crate::doctor::facts::Interface;

/// All of them.
///
/// # Errors
///
/// When the system does not list them.
pub(super) fn list() -> Result<Vec<Interface>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the list's head is written to a pointer of ours.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot list network interfaces");
    }
    let mut all: Vec<Interface> = vec![];
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an element of the list, which lives until it is freed below.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: every element has a name.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }
            .to_string_lossy()
            .into_owned();
        let has = |flag: libc::c_int| entry.ifa_flags & flag.unsigned_abs() != 0;
        let at = match all.iter().position(|one| one.name == name) {
            Some(at) => at,
            None => {
                all.push(Interface {
                    name,
                    up: has(libc::IFF_UP),
                    loopback: has(libc::IFF_LOOPBACK),
                    addresses: vec![],
                });
                all.len() - 1
            }
        };
        if let (Some(interface), Some(address)) = (all.get_mut(at), address(entry.ifa_addr)) {
            interface.addresses.push(address);
        }
    }
    // SAFETY: the list of above, of which nothing is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

fn address(of: *const libc::sockaddr) -> Option<IpAddr> {
    if of.is_null() {
        return None;
    }
    // SAFETY: not null, so a socket address, whose family says which.
    match libc::c_int::from(unsafe { (*of).sa_family }) {
        libc::AF_INET => {
            // SAFETY: its family says that it is this struct.
            let v4 = unsafe { of.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: its family says that it is this struct.
            let v6 = unsafe { of.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_address() {
        let all = list().unwrap();
        let lo = all.iter().find(|one| one.loopback).unwrap();
        assert!(
            lo.up && lo.addresses.contains(&Ipv4Addr::LOCALHOST.into()),
            "{lo:?}"
        );
    }
}
