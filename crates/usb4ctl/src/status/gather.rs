//! Reads sysfs.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use super::facts::{Controller, Counters, Facts, Host, Link, Module, Rail, Service};

/// Our service's key, as the bus shows it.
const OUR_KEY: &str = "usb4rdma";

/// All there is under `sys`, which is `/sys` but for tests.
pub(super) fn facts(sys: &Path) -> Facts {
    let mut facts = Facts {
        module: module(sys),
        links: names(&sys.join("class/usb4_rdma"))
            .into_iter()
            .map(|name| link(sys, name))
            .collect(),
        ..Facts::default()
    };
    let bus = sys.join("bus/thunderbolt/devices");
    for name in names(&bus) {
        let at = bus.join(&name);
        if name.starts_with("domain") {
            facts.controllers.push(controller(sys, &at, name));
        } else if let Some((host, _)) = name.split_once('.') {
            let host = host.to_string();
            match text(&at, "key") {
                Some(key) if key == OUR_KEY => facts.rails.push(rail(&at, name, host)),
                Some(key) => facts.services.push(service(&at, name, key)),
                // A retimer.
                None => {}
            }
        } else if at.join("maxhopid").exists() {
            // Which routers do not have.
            facts.hosts.push(host(&at, name));
        }
    }
    facts
}

fn module(sys: &Path) -> Option<Module> {
    let at = sys.join("class/misc/usb4ring");
    at.exists().then(|| Module {
        version: text(&at, "version"),
        abi: number(&at, "abi_version"),
        node: text(&at, "node"),
    })
}

fn link(sys: &Path, name: String) -> Link {
    let at = sys.join("class/usb4_rdma").join(&name);
    Link {
        peer: text(&at, "peer"),
        state: text(&at, "state"),
        rails: number(&at, "rails"),
        age_ms: number(&at, "age_ms"),
        counters: counters(&at.join("statistics"), |_| true),
        name,
    }
}

/// What counts among a rail's attributes.
fn is_rail_counter(name: &str) -> bool {
    ["interrupts", "interrupts_lost", "stalls"].contains(&name)
        || (name.starts_with("tx_") || name.starts_with("rx_"))
            && !["tx_ring", "rx_ring", "tx_hop", "rx_hop"].contains(&name)
}

fn rail(service: &Path, name: String, host: String) -> Rail {
    let at = service.join("usb4_rdma");
    Rail {
        name,
        host,
        state: text(&at, "state"),
        reason: known(&at, "reason"),
        retry_ms: number(&at, "retry_ms"),
        peer: known(&at, "peer"),
        link: known(&at, "link"),
        controller: text(&at, "controller"),
        route: text(&at, "route"),
        tx_ring: number(&at, "tx_ring"),
        rx_ring: number(&at, "rx_ring"),
        tx_hop: number(&at, "tx_hop"),
        rx_hop: number(&at, "rx_hop"),
        rate_mbps: number(&at, "rate_mbps"),
        rtt_ns: number(&at, "rtt_ns"),
        interrupt_throttle_ns: number(&at, "interrupt_throttle_ns"),
        counters: counters(&at, is_rail_counter),
    }
}

fn host(at: &Path, name: String) -> Host {
    Host {
        name,
        called: text(at, "device_name"),
        vendor: text(at, "vendor_name"),
        uuid: text(at, "unique_id"),
        tx_speed: text(at, "tx_speed"),
        rx_speed: text(at, "rx_speed"),
        tx_lanes: number(at, "tx_lanes"),
        rx_lanes: number(at, "rx_lanes"),
    }
}

fn controller(sys: &Path, at: &Path, domain: String) -> Controller {
    // A domain's folder is in its controller's.
    let name = fs::canonicalize(at).ok().and_then(|path| {
        let parent = path.parent()?.file_name()?;
        Some(parent.to_string_lossy().into_owned())
    });
    let name = name.unwrap_or_default();
    let pci = sys.join("bus/pci/devices").join(&name);
    let group = pci.join("iommu_group");
    Controller {
        vendor: text(&pci, "vendor"),
        device: text(&pci, "device"),
        iommu_group: target(&group),
        iommu_type: text(&group, "type"),
        dma_protection: number::<u8>(at, "iommu_dma_protection").map(|value| value != 0),
        name,
        domain,
    }
}

fn service(at: &Path, name: String, key: String) -> Service {
    Service {
        name,
        key,
        driver: target(&at.join("driver")),
        interfaces: names(&at.join("net")),
    }
}

/// Numbers in files of a folder whose names `wanted` takes.
fn counters(folder: &Path, wanted: fn(&str) -> bool) -> Counters {
    let names = names(folder).into_iter().filter(|name| wanted(name));
    names
        .filter_map(|name| Some((name.clone(), number(folder, &name)?)))
        .collect()
}

/// Names in a folder, in order; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return vec![];
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    // link10 comes after link9.
    names.sort_by_key(|name| (name.len(), name.clone()));
    names
}

/// What a file says.
fn text(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_string())
}

/// As [`text`], where `none` stands for nothing.
fn known(folder: &Path, name: &str) -> Option<String> {
    text(folder, name).filter(|text| text != "none")
}

fn number<T: FromStr>(folder: &Path, name: &str) -> Option<T> {
    text(folder, name)?.parse().ok()
}

/// The name of what a link leads to.
fn target(link: &Path) -> Option<String> {
    let path = fs::read_link(link).ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}
