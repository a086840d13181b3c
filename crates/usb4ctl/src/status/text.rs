//! What is said of the facts, in lines for people.

use super::facts::{Controller, Counters, Facts, Host, Link, Rail, Service};

/// Columns before what is said.
const MARGIN: usize = 11;

/// The whole report.
pub(super) fn lines(facts: &Facts) -> Vec<String> {
    let mut lines = vec![];
    match &facts.module {
        Some(module) => {
            let version = module.version.as_deref().unwrap_or("of an unknown version");
            let abi = module.abi.map_or(String::new(), |abi| format!(", ABI {abi}"));
            say(
                &mut lines,
                "device",
                format!("/dev/usb4ring (usb4_rdma {version}{abi})"),
            );
            let node = module.node.as_deref().unwrap_or("unknown");
            say(&mut lines, "node", node.to_string());
        }
        None => say(
            &mut lines,
            "device",
            "none: the module usb4_rdma is not loaded".to_string(),
        ),
    }
    if facts.links.is_empty() {
        say(&mut lines, "link", format!("none: {}", why_no_link(facts)));
    }
    for each in &facts.links {
        link(&mut lines, each);
    }
    for each in &facts.rails {
        let host = facts.hosts.iter().find(|host| host.name == each.host);
        rail(&mut lines, each, host);
    }
    for each in &facts.hosts {
        if !facts.rails.iter().any(|rail| rail.host == each.name) {
            let text = format!("{} does not offer this service", host(each));
            say(&mut lines, &each.name, text);
        }
    }
    for each in &facts.controllers {
        say(&mut lines, &each.domain, controller(each));
    }
    for each in &facts.services {
        say(&mut lines, &each.name, service(each));
    }
    lines
}

fn say(lines: &mut Vec<String>, what: &str, text: String) {
    lines.push(format!("{what:<MARGIN$}{text}"));
}

fn why_no_link(facts: &Facts) -> &'static str {
    match (facts.hosts.is_empty(), facts.rails.is_empty()) {
        (true, true) if facts.controllers.is_empty() => {
            "no USB4 controller here, or the thunderbolt driver is not loaded"
        }
        (true, true) => {
            "no host at the end of any cable: is one plugged in, and a driver loaded at its other end?"
        }
        (false, true) => "no host has usb4_rdma loaded",
        _ if facts.module.is_none() => "modprobe usb4_rdma",
        _ => "see what the rails wait for",
    }
}

fn link(lines: &mut Vec<String>, link: &Link) {
    let mut text = link.peer.clone().unwrap_or("a host".to_string());
    text += &format!(" {}", link.state.as_deref().unwrap_or("in an unknown state"));
    if let Some(ms) = link.age_ms {
        text += &format!(" for {}", time(ms));
    }
    match link.rails {
        Some(1) => text += ", 1 rail",
        Some(rails) => text += &format!(", {rails} rails"),
        None => {}
    }
    say(lines, &link.name, text);
    let of = |name: &str| link.counters.get(name).copied().unwrap_or(0);
    let dropped = [
        "rx_malformed",
        "rx_corrupt",
        "rx_wrong_tag",
        "rx_duplicate",
        "rx_no_room",
    ];
    let dropped: u64 = dropped.into_iter().map(of).fold(0, u64::saturating_add);
    say(
        lines,
        "",
        format!(
            "sent {} frames, {}, {} lost, {} sent again, {} probes",
            of("tx_frames"),
            bytes(of("tx_bytes")),
            of("tx_lost"),
            of("tx_resent"),
            of("tx_probes")
        ),
    );
    say(
        lines,
        "",
        format!(
            "received {} frames, {}, {dropped} dropped{}",
            of("rx_frames"),
            bytes(of("rx_bytes")),
            each(&link.counters, "rx_", &dropped_names(&link.counters))
        ),
    );
    say(
        lines,
        "",
        format!(
            "operations {} completed, {} failed; {} of the peer's executed",
            of("completed"),
            of("failed"),
            of("executed")
        ),
    );
    let trouble = [
        "violations",
        "rnr_sent",
        "rnr_received",
        "nak_sent",
        "nak_received",
    ];
    let trouble: Vec<&str> = trouble.into_iter().filter(|name| of(name) != 0).collect();
    if !trouble.is_empty() {
        let list: Vec<String> = trouble
            .iter()
            .map(|name| format!("{} {}", of(name), name.replace('_', " ")))
            .collect();
        say(lines, "", list.join(", "));
    }
}

fn dropped_names(counters: &Counters) -> Vec<String> {
    let kinds = ["malformed", "corrupt", "wrong_tag", "duplicate", "no_room"];
    let some = |name: &&str| {
        counters
            .get(&format!("rx_{name}"))
            .is_some_and(|count| *count != 0)
    };
    kinds.into_iter().filter(some).map(str::to_string).collect()
}

/// ` (3 corrupt, 1 duplicate)`.
fn each(counters: &Counters, prefix: &str, names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let list: Vec<String> = names
        .iter()
        .map(|name| {
            let count = counters.get(&format!("{prefix}{name}")).copied().unwrap_or(0);
            format!("{count} {}", name.replace('_', " "))
        })
        .collect();
    format!(" ({})", list.join(", "))
}

fn rail(lines: &mut Vec<String>, rail: &Rail, host: Option<&Host>) {
    let Some(state) = &rail.state else {
        let text = "no driver: the module usb4_rdma is not loaded, or refuses it";
        return say(lines, &rail.name, text.to_string());
    };
    let mut text = format!("rail, {state}");
    if let Some(link) = &rail.link {
        text += &format!(" in {link}");
    }
    if let Some(peer) = rail.peer.as_ref().filter(|_| rail.link.is_none()) {
        text += &format!(" to {peer}");
    }
    if state != "up" {
        if let Some(reason) = &rail.reason {
            text += &format!(": {reason}");
        }
        if let Some(ms) = rail.retry_ms.filter(|ms| *ms != 0) {
            text += &format!("; tried again in {}", time(ms));
        }
    }
    say(lines, &rail.name, text);
    let mut cable = host.map_or("an unknown cable".to_string(), self::cable);
    if let Some(mbps) = rail.rate_mbps.filter(|mbps| *mbps != 0) {
        cable += &format!(", delivers {}.{} Gb/s", mbps / 1000, mbps % 1000 / 100);
    }
    if let Some(ns) = rail.rtt_ns.filter(|ns| *ns != 0) {
        cable += &format!(", round trip {}.{} us", ns / 1000, ns % 1000 / 100);
    }
    say(lines, "", cable);
    let hops = [
        ("HopID", rail.tx_hop, rail.rx_hop),
        ("ring", rail.tx_ring, rail.rx_ring),
    ];
    let mut place: Vec<String> = hops
        .into_iter()
        .filter_map(|(what, tx, rx)| {
            let (tx, rx) = (tx.filter(|tx| *tx != 0)?, rx?);
            Some(format!("{what} {tx} out {rx} in"))
        })
        .collect();
    if let Some(controller) = &rail.controller {
        place.push(format!("of {controller}"));
    }
    if let Some(ns) = rail.interrupt_throttle_ns {
        place.push(format!("interrupts at least {ns} ns apart"));
    }
    if !place.is_empty() {
        say(lines, "", place.join(", "));
    }
    let of = |name: &str| rail.counters.get(name).copied().unwrap_or(0);
    let mut counts = format!(
        "sent {}, {} lost; received {}, {} damaged, {} too long; {} interrupts",
        of("tx_frames"),
        of("tx_lost"),
        of("rx_frames"),
        of("rx_crc_errors"),
        of("rx_overruns"),
        of("interrupts")
    );
    for (name, what) in [
        ("interrupts_lost", "that did not come"),
        ("tx_kicks", "kicks of the transmit ring"),
        ("rx_kicks", "kicks of the receive ring"),
        ("stalls", "stalls"),
    ] {
        if of(name) != 0 {
            counts += &format!(", {} {what}", of(name));
        }
    }
    say(lines, "", counts);
}

/// `2 x 20.0 Gb/s to strix-b (0-1)`.
fn cable(host: &Host) -> String {
    let way = |lanes: Option<u32>, speed: &Option<String>| {
        let (lanes, speed) = (lanes?, speed.as_ref()?);
        Some(format!("{lanes} x {speed}"))
    };
    let (tx, rx) = (
        way(host.tx_lanes, &host.tx_speed),
        way(host.rx_lanes, &host.rx_speed),
    );
    let speed = match (tx, rx) {
        (Some(tx), Some(rx)) if tx == rx => format!("{tx} to "),
        (Some(tx), Some(rx)) => format!("{tx} out, {rx} in, to "),
        _ => "to ".to_string(),
    };
    speed + &self::host(host)
}

fn host(host: &Host) -> String {
    match &host.called {
        Some(name) => format!("{name} ({})", host.name),
        None => host.name.clone(),
    }
}

fn controller(controller: &Controller) -> String {
    let mut text = format!("controller {}", controller.name);
    if let (Some(vendor), Some(device)) = (&controller.vendor, &controller.device) {
        let bare = |id: &str| id.trim_start_matches("0x").to_string();
        text += &format!(" [{}:{}]", bare(vendor), bare(device));
    }
    match (&controller.iommu_group, &controller.iommu_type) {
        (Some(group), Some(kind)) => text += &format!(", IOMMU group {group} ({kind})"),
        (Some(group), None) => text += &format!(", IOMMU group {group}"),
        (None, _) => text += ", no IOMMU: a neighbour's controller is trusted with all memory",
    }
    if controller.dma_protection == Some(true) {
        text += ", DMA protection by the firmware";
    }
    text
}

fn service(service: &Service) -> String {
    let mut text = format!("shares the cable: {}", service.key);
    match &service.driver {
        Some(driver) => text += &format!(", driver {driver}"),
        None => text += ", no driver",
    }
    if !service.interfaces.is_empty() {
        text += &format!(", {}", service.interfaces.join(", "));
    }
    text
}

/// `3.4 GB`.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut tenths = count / 100;
    let mut unit = 0;
    while tenths >= 10_000 && unit + 1 < UNITS.len() {
        tenths /= 1000;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// `2 h 5 min`, `1.3 s`.
fn time(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}.{} s", ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}
