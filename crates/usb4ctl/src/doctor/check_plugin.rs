//! Whether NCCL finds the plugin, and takes it.

use super::facts::{Built, Facts, INSTALLED, Kind, OUR_NET, Probe, Version};
use super::finding::Finding;

/// The first that takes a list of plugins.
const LISTS: Version = Version(2, 27, 0);

/// The first that takes a path.
const PATHS: Version = Version(2, 21, 0);

/// What each runtime loads with these variables.
pub(crate) fn plugins(facts: &Facts, findings: &mut Vec<Finding>) {
    for kind in facts.kinds() {
        findings.push(plugin(facts, kind));
    }
}

fn plugin(facts: &Facts, kind: Kind) -> Finding {
    let value = facts.variables.get("NCCL_NET_PLUGIN");
    let name = kind.name();
    let set = "export NCCL_NET_PLUGIN=usb4";
    let oldest = facts
        .runtimes
        .iter()
        .filter(|one| one.kind == kind)
        .map(|one| one.version)
        .min();
    if value == Some("none") {
        return Finding::problem(
            "plugin",
            format!("NCCL_NET_PLUGIN=none: {name} loads no plugin"),
            set,
        );
    }
    if let (Some(value), Some(version)) = (value, oldest) {
        if value.contains(',') && version < LISTS {
            let text = format!("{name} {version} takes one name in NCCL_NET_PLUGIN, not the list {value}");
            return Finding::problem("plugin", text, set);
        }
        if value.contains('/') && version < PATHS {
            let text = format!("{name} {version} takes a name in NCCL_NET_PLUGIN, not the path {value}");
            return Finding::problem("plugin", text, set);
        }
    }
    let candidates = kind.candidates(value);
    let hits = candidates
        .iter()
        .filter_map(|names| names.iter().find_map(|name| facts.probe(name)));
    let libraries: Vec<_> = hits.collect();
    let because = value.map_or_else(
        || "NCCL_NET_PLUGIN is not set".to_string(),
        |value| format!("NCCL_NET_PLUGIN={value}"),
    );
    if let Some(library) = libraries.iter().find(|library| library.is_ours()) {
        return Finding::ok(
            "plugin",
            format!("{because}: {name} loads {} (net {OUR_NET})", library.path),
        );
    }
    if let Some(library) = libraries.first() {
        let net = match &library.net {
            Some(net) => format!("net {net}"),
            None => "no net plugin".to_string(),
        };
        return Finding::problem(
            "plugin",
            format!(
                "{because}: {name} loads {} ({net}), which is not this one",
                library.path
            ),
            set,
        );
    }
    let ours = kind.our_plugin();
    if let Some(library) = facts.probe(&ours) {
        return Finding::problem(
            "plugin",
            format!(
                "{because}: {name} finds no plugin by that, though {} is there",
                library.path
            ),
            set,
        );
    }
    not_found(facts, kind, &because)
}

/// Our plugin is not where the loader looks.
fn not_found(facts: &Facts, kind: Kind, because: &str) -> Finding {
    let ours = kind.our_plugin();
    let reason = match facts.probes.get(&ours) {
        Some(Probe::Failed(reason)) => format!(": {reason}"),
        _ => String::new(),
    };
    let inside = if facts.container.is_some() {
        "; in a container it has to be inside"
    } else {
        ""
    };
    let export = |folder: &str| {
        format!("export NCCL_NET_PLUGIN=usb4 LD_LIBRARY_PATH={folder}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}")
    };
    let install = |library: &str| {
        format!(
            "sudo install -D {library} {INSTALLED}/{ours} && {}",
            export(INSTALLED)
        )
    };
    let (state, mend) = match &facts.built {
        Built::Named(folder) => ("", export(folder)),
        Built::Unnamed(library) => (
            ": it is built, and not installed",
            format!("{}    # on every host", install(library)),
        ),
        Built::No => (
            "; it seems to have been neither built nor installed here",
            format!(
                "cargo build --release --package usb4-nccl && {}    # in a checkout; on every host",
                install("target/release/libusb4_nccl.so")
            ),
        ),
    };
    Finding::problem(
        "plugin",
        format!(
            "{because}: {} finds no {ours} in LD_LIBRARY_PATH or the loader's cache{reason}{state}{inside}",
            kind.name()
        ),
        mend,
    )
}

/// What `NCCL_NET` makes of a plugin that was found or not.
pub(crate) fn network_choice(facts: &Facts, findings: &mut Vec<Finding>) {
    let loud = "export NCCL_NET=USB4";
    findings.push(match facts.variables.get("NCCL_NET") {
        None => Finding::note(
            "fallback",
            "NCCL_NET is not set: where the plugin is not found or cannot start, NCCL silently uses sockets",
            loud,
        ),
        Some(net) if net.eq_ignore_ascii_case(OUR_NET) => Finding::ok(
            "fallback",
            format!("NCCL_NET={net}: without USB4 the job fails rather than use sockets"),
        ),
        Some(net) => Finding::problem(
            "fallback",
            format!("NCCL_NET={net} keeps NCCL from every net but {net}"),
            loud,
        ),
    });
}
