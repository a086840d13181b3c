//! The IP path NCCL's bootstrap takes.

use std::net::IpAddr;

use super::facts::{Facts, Interface};
use super::finding::Finding;

/// Whether NCCL's ranks can find each other over TCP, which they do before any plugin carries data.
pub(crate) fn bootstrap(facts: &Facts, findings: &mut Vec<Finding>) {
    let wish = facts.variables.get("NCCL_SOCKET_IFNAME");
    let chosen: Vec<&Interface> = facts
        .interfaces
        .iter()
        .filter(|one| usable(one) && wish.map_or_else(|| by_default(one), |wish| selects(wish, &one.name)))
        .collect();
    let list = |of: &[&Interface]| {
        let names: Vec<&str> = of.iter().map(|one| one.name.as_str()).collect();
        names.join(", ")
    };
    let others: Vec<&Interface> = facts
        .interfaces
        .iter()
        .filter(|one| usable(one) && !one.loopback)
        .collect();
    let suggestion = others
        .iter()
        .find(|one| by_default(one))
        .or(others.first())
        .map_or("lo", |one| one.name.as_str());
    let mend = format!("export NCCL_SOCKET_IFNAME={suggestion}");
    findings.push(match (wish, chosen.as_slice()) {
        (Some(wish), []) => Finding::problem(
            "bootstrap",
            format!("NCCL_SOCKET_IFNAME={wish} selects no interface that is up and has an address"),
            if others.is_empty() { "ip -br address".into() } else { mend },
        ),
        (Some(_), some) if some.iter().all(|one| one.loopback) && facts.device.is_kernel() => Finding::problem(
            "bootstrap",
            "NCCL_SOCKET_IFNAME selects lo alone: ranks on other hosts cannot be reached over it",
            mend,
        ),
        (None, []) if facts.device.is_kernel() => Finding::problem(
            "bootstrap",
            "no interface besides lo has an address, and NCCL's ranks find each other over TCP",
            "sudo modprobe thunderbolt_net && sudo ip address add 10.99.0.1/24 dev thunderbolt0    # .2 at the other end",
        ),
        (None, []) => Finding::note(
            "bootstrap",
            "only lo has an address: ranks of this machine can find each other, others cannot",
            mend,
        ),
        (_, some) => Finding::ok(
            "bootstrap",
            format!("ranks can find each other over TCP by {}", list(some)),
        ),
    });
}

/// Whether it is up and has an address that others can use.
fn usable(interface: &Interface) -> bool {
    let global = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    interface.up && interface.addresses.iter().any(global)
}

/// Whether NCCL takes it unasked.
fn by_default(interface: &Interface) -> bool {
    !interface.loopback && !interface.name.starts_with("docker")
}

/// Whether `NCCL_SOCKET_IFNAME=wish` selects `name`: prefixes, `=` for whole names, `^` for all but those.
fn selects(wish: &str, name: &str) -> bool {
    let (without, wish) = match wish.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, wish),
    };
    let (exact, wish) = match wish.strip_prefix('=') {
        Some(rest) => (true, rest),
        None => (false, wish),
    };
    let mut named = wish.split(',').filter(|part| !part.is_empty());
    named.any(|part| {
        if exact {
            part == name
        } else {
            name.starts_with(part)
        }
    }) != without
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_filter_reads_as_nccl_s() {
        assert!(selects("eth", "eth0") && !selects("eth", "lo"));
        assert!(selects("=eth0,lo", "lo") && !selects("=eth", "eth0"));
        assert!(selects("^docker,lo", "eth0") && !selects("^docker,lo", "docker0"));
        assert!(selects("^=eth", "eth0"));
    }
}
