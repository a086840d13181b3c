//! Which NCCL or RCCL a job would use, and what its version means for a plugin.

use super::facts::{Facts, Kind, Runtime, Version};
use super::finding::Finding;

/// The first with an interface (v6) that the plugin offers.
const OLDEST: Version = Version(2, 13, 0);

/// From here to [`MENDED`] the plugin is unloaded with the last communicator and not found for the next: nccl issue
/// 1978.
const FORGETFUL: Version = Version(2, 27, 0);
const MENDED: Version = Version(2, 30, 0);

/// What each runtime found is.
pub(crate) fn runtimes(facts: &Facts, findings: &mut Vec<Finding>) {
    if facts.runtimes.is_empty() {
        findings.push(Finding::note(
            "nccl",
            "neither the loader nor python3 has an NCCL or RCCL here: if jobs have one in an environment of their own, run this there",
            "pip install nvidia-nccl-cu12    # if they have none; RCCL comes with ROCm",
        ));
    }
    for runtime in &facts.runtimes {
        let Runtime {
            kind,
            path,
            version,
            by,
        } = runtime;
        let what = format!("{} {version}, {path} ({by})", kind.name());
        findings.push(if *version < OLDEST {
            Finding::problem(
                "nccl",
                format!("{what}: knows no interface that the plugin offers; {OLDEST} is the first that does"),
                "pip install --upgrade nvidia-nccl-cu12",
            )
        } else {
            Finding::ok("nccl", format!("{what}: loads {}", interface(*version)))
        });
    }
}

/// The newest interface a version asks for.
fn interface(version: Version) -> &'static str {
    match (version.0, version.1) {
        (..=1, _) | (2, ..=18) => "ncclNetPlugin_v6",
        (2, 19) => "ncclNetPlugin_v7",
        (2, 20..=23) => "ncclNetPlugin_v8",
        (2, 24..=25) => "ncclNetPlugin_v9",
        (2, 26..=27) => "ncclNetPlugin_v10",
        (2, 28..=29) => "ncclNetPlugin_v11",
        _ => "ncclNetPlugin_v12",
    }
}

/// Versions that forget the plugin once the last communicator is destroyed.
pub(crate) fn reload_bug(facts: &Facts, findings: &mut Vec<Finding>) {
    let set = |name| facts.variables.get(name);
    for kind in Kind::ALL {
        let affected = |one: &&Runtime| one.kind == kind && (FORGETFUL..MENDED).contains(&one.version);
        let Some(runtime) = facts.runtimes.iter().find(affected) else {
            continue;
        };
        let what = format!("{} {}", kind.name(), runtime.version);
        let default = facts
            .probe(&kind.default_plugin())
            .filter(|library| library.is_ours());
        findings.push(if set("NCCL_NET_PLUGIN_REF_COUNT") == Some("1") {
            Finding::ok(
                "reload",
                format!("{what} would lose the plugin with its last communicator; NCCL_NET_PLUGIN_REF_COUNT=1 prevents that"),
            )
        } else if let Some(library) = default {
            Finding::ok(
                "reload",
                format!("{what} loses the plugin with its last communicator and finds it again as {}", library.path),
            )
        } else {
            let then = if set("NCCL_NET").is_some_and(|net| net.eq_ignore_ascii_case(super::facts::OUR_NET)) {
                "the next one fails, as NCCL_NET=USB4 demands"
            } else {
                "the next one silently uses sockets"
            };
            Finding::problem(
                "reload",
                format!(
                    "{what} loses the plugin with its last communicator, and {then}; also cured by a link to it named {}",
                    kind.default_plugin()
                ),
                "export NCCL_NET_PLUGIN_REF_COUNT=1",
            )
        });
    }
}
