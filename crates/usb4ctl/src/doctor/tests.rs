//! One machine on which all is well, and each thing that may be wrong with it.

use std::collections::BTreeMap;

use usb4_ring::Backend;

use super::examine;
use super::facts::{
    Built, Device, DeviceState, Facts, Interface, Kind, Library, Peer, Probe, Runtime, Standing, Variables,
    Version,
};
use super::finding::{Finding, Level};

const OURS: &str = "/usr/lib/libnccl-net-usb4.so";

fn plugin(path: &str, net: &str) -> Probe {
    Probe::Loaded(Library {
        path: path.into(),
        tables: vec![12, 11],
        net: Some(net.into()),
        version: None,
    })
}

fn nccl(major: i32, minor: i32, patch: i32) -> Runtime {
    Runtime {
        kind: Kind::Nccl,
        path: "/venv/nvidia/nccl/lib/libnccl.so.2".into(),
        version: Version(major, minor, patch),
        by: "a package of python3",
    }
}

fn peer(standing: Standing) -> Peer {
    Peer {
        node: "00c0ffee".into(),
        standing,
    }
}

fn open(backend: Backend, peers: Vec<Peer>) -> DeviceState {
    DeviceState::Open {
        backend,
        node: "0042".into(),
        peers,
    }
}

fn eth0() -> Interface {
    Interface {
        name: "eth0".into(),
        up: true,
        loopback: false,
        addresses: vec!["192.0.2.2".parse().unwrap()],
    }
}

fn well() -> Facts {
    Facts {
        device: Device {
            spec: "/dev/usb4ring".into(),
            named: false,
            state: open(Backend::Kernel, vec![peer(Standing::Up { rails: 2 })]),
            module: true,
        },
        variables: Variables(BTreeMap::from([
            ("NCCL_NET_PLUGIN", "usb4".into()),
            ("NCCL_NET", "USB4".into()),
        ])),
        probes: BTreeMap::from([("libnccl-net-usb4.so".into(), plugin(OURS, "USB4"))]),
        runtimes: vec![nccl(2, 30, 7)],
        built: Built::No,
        interfaces: vec![eth0()],
        memlock: None,
        container: None,
    }
}

/// What is said about `about` once `change` has been made.
fn said(about: &str, change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = well();
    change(&mut facts);
    let mut found = examine(&facts);
    found.retain(|finding| finding.about == about);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Asserts a problem whose text has `part` and whose cure has `cure`.
#[track_caller]
fn problem(about: &str, part: &str, cure: &str, change: impl FnOnce(&mut Facts)) {
    let finding = said(about, change);
    let mend = finding.mend.clone().unwrap_or_default();
    assert_eq!(finding.level, Level::Problem, "{finding}");
    assert!(finding.text.contains(part) && mend.contains(cure), "{finding}");
}

#[track_caller]
fn level(about: &str, level: Level, part: &str, change: impl FnOnce(&mut Facts)) {
    let finding = said(about, change);
    assert!(finding.level == level && finding.text.contains(part), "{finding}");
}

fn set(facts: &mut Facts, name: &'static str, value: &str) {
    facts.variables.0.insert(name, value.into());
}

#[test]
fn a_machine_on_which_all_is_well_has_no_problem_and_no_note() {
    for finding in examine(&well()) {
        assert_eq!(
            (finding.level, finding.mend.as_deref()),
            (Level::Ok, None),
            "{finding}"
        );
    }
}

#[test]
fn a_device_that_does_not_open_says_why() {
    problem("device", "not loaded", "modprobe usb4_rdma", |facts| {
        facts.device.module = false;
        facts.device.state = DeviceState::Missing;
    });
    problem("device", "is loaded", "dmesg", |facts| {
        facts.device.state = DeviceState::Missing
    });
    problem("device", "in this container", "--device /dev/usb4ring", |facts| {
        facts.device.state = DeviceState::Missing;
        facts.container = Some("a Docker container");
    });
    problem("device", "no permission", "ls -l /dev/usb4ring", |facts| {
        facts.device.state = DeviceState::Permission("no permission: join its group".into());
    });
    problem("device", "bad device name", "USB4_DEVICE", |facts| {
        facts.device.state = DeviceState::BadSpec("bad device name \"x\"".into());
    });
    problem("device", "does not exist", "unset USB4_DEVICE", |facts| {
        facts.device.spec = "/dev/other".into();
        facts.device.state = DeviceState::Missing;
    });
    problem("version", "version 2", "modinfo", |facts| {
        facts.device.state = DeviceState::Version("the module speaks version 2".into());
    });
    problem("device", "broken", "usb4ctl devices", |facts| {
        facts.device.state = DeviceState::Failed("broken".into());
    });
}

#[test]
fn a_detached_device_cannot_reach_nccl_s_memory() {
    problem("device", "another process", "USB4_DEVICE=soft:a", |facts| {
        facts.device.spec = "soft:a,detached".into();
        facts.device.state = open(Backend::SoftDetached, vec![]);
    });
}

#[test]
fn a_cable_with_nobody_at_its_other_end_is_a_problem_unless_it_is_a_soft_one() {
    problem("link", "no host", "modprobe", |facts| {
        facts.device.state = open(Backend::Kernel, vec![]);
    });
    level("link", Level::Note, "as soon as the ranks run", |facts| {
        facts.device.spec = "soft:a".into();
        facts.device.state = open(Backend::SoftInline, vec![]);
    });
}

#[test]
fn a_peer_without_a_session_is_named() {
    problem("link", "00c0ffee", "dmesg", |facts| {
        facts.device.state = open(Backend::Kernel, vec![peer(Standing::Connecting)]);
    });
    problem("link", "refused", "usb4ctl peers allow 00c0ffee", |facts| {
        let standing = Standing::Refused {
            ours: true,
            why: "no rule lets it in".into(),
        };
        facts.device.state = open(Backend::Kernel, vec![peer(standing)]);
    });
    problem("link", "does not let", "usb4ctl peers list", |facts| {
        let standing = Standing::Refused {
            ours: false,
            why: "it does not let this host in".into(),
        };
        facts.device.state = open(Backend::Kernel, vec![peer(standing)]);
    });
    problem("version", "another version", "--version", |facts| {
        let standing = Standing::Version("peer 00c0ffee was built from another version".into());
        facts.device.state = open(Backend::SoftInline, vec![peer(standing)]);
    });
    problem("link", "stopped", "devices", |facts| {
        let standing = Standing::Failed("is its process stopped?".into());
        facts.device.state = open(Backend::SoftInline, vec![peer(standing)]);
    });
}

#[test]
fn a_limit_on_pinned_memory_matters_where_memory_is_pinned() {
    problem("memlock", "8192 KiB", "limits.d", |facts| {
        facts.memlock = Some(8 << 20)
    });
    problem("memlock", "8192 KiB", "--ulimit", |facts| {
        facts.memlock = Some(8 << 20);
        facts.container = Some("a Podman container");
    });
    level("memlock", Level::Note, "128 MiB", |facts| {
        facts.memlock = Some(128 << 20)
    });
    level("memlock", Level::Ok, "2048 MiB", |facts| {
        facts.memlock = Some(2 << 30)
    });
    let mut soft = well();
    soft.device.spec = "soft:a".into();
    soft.memlock = Some(1);
    assert!(examine(&soft).iter().all(|finding| finding.about != "memlock"));
}

#[test]
fn a_container_is_told_what_has_to_be_inside() {
    level("container", Level::Note, "have to be inside", |facts| {
        facts.container = Some("a Docker container");
    });
    level("container", Level::Note, "network namespace", |facts| {
        facts.container = Some("a Docker container");
        facts.device.spec = "soft:a".into();
    });
}

#[test]
fn a_machine_without_nccl_is_said_to_have_none() {
    level("nccl", Level::Note, "neither", |facts| facts.runtimes.clear());
    problem("nccl", "no interface", "upgrade", |facts| {
        facts.runtimes = vec![nccl(2, 12, 12)]
    });
    level("nccl", Level::Ok, "ncclNetPlugin_v8", |facts| {
        facts.runtimes = vec![nccl(2, 21, 5)]
    });
}

#[test]
fn a_plugin_that_nccl_would_not_find_is_a_problem() {
    let failed = |reason: &str| Probe::Failed(reason.into());
    problem("plugin", "No such file", "LD_LIBRARY_PATH=/b/nccl", |facts| {
        facts.probes = BTreeMap::from([("libnccl-net-usb4.so".into(), failed("No such file"))]);
        facts.built = Built::Named("/b/nccl".into());
    });
    problem("plugin", "it has to be inside", "cargo build", |facts| {
        facts.probes.clear();
        facts.container = Some("a Docker container");
    });
    let install = "sudo install -D /t/libusb4_nccl.so /opt/usb4/lib/libnccl-net-usb4.so && \
        export NCCL_NET_PLUGIN=usb4 LD_LIBRARY_PATH=/opt/usb4/lib$";
    problem("plugin", "built, and not installed", install, |facts| {
        facts.probes.clear();
        facts.built = Built::Unnamed("/t/libusb4_nccl.so".into());
    });
    problem("plugin", "librccl-net-usb4.so", "LD_LIBRARY_PATH", |facts| {
        facts.runtimes = vec![Runtime {
            kind: Kind::Rccl,
            ..nccl(2, 30, 4)
        }];
    });
}

#[test]
fn a_variable_that_leads_past_the_plugin_is_a_problem() {
    problem("plugin", "is not set", "NCCL_NET_PLUGIN=usb4", |facts| {
        facts.variables.0.remove("NCCL_NET_PLUGIN");
    });
    problem("plugin", "loads no plugin", "NCCL_NET_PLUGIN=usb4", |facts| {
        set(facts, "NCCL_NET_PLUGIN", "none");
    });
    problem(
        "plugin",
        "finds no plugin by that",
        "NCCL_NET_PLUGIN=usb4",
        |facts| {
            set(facts, "NCCL_NET_PLUGIN", "ubs4");
        },
    );
    problem("plugin", "net Other", "NCCL_NET_PLUGIN=usb4", |facts| {
        set(facts, "NCCL_NET_PLUGIN", "other");
        facts
            .probes
            .insert("libnccl-net-other.so".into(), plugin("/o.so", "Other"));
    });
    problem("plugin", "one name", "NCCL_NET_PLUGIN=usb4", |facts| {
        set(facts, "NCCL_NET_PLUGIN", "usb4,other");
        facts.runtimes = vec![nccl(2, 26, 2)];
    });
    problem("plugin", "not the path", "NCCL_NET_PLUGIN=usb4", |facts| {
        set(facts, "NCCL_NET_PLUGIN", OURS);
        facts.runtimes = vec![nccl(2, 20, 3)];
    });
}

#[test]
fn a_path_a_list_and_the_default_name_find_the_plugin() {
    level("plugin", Level::Ok, OURS, |facts| {
        set(facts, "NCCL_NET_PLUGIN", "other,usb4");
    });
    level("plugin", Level::Ok, OURS, |facts| {
        set(facts, "NCCL_NET_PLUGIN", OURS);
        facts.probes = BTreeMap::from([(OURS.into(), plugin(OURS, "USB4"))]);
    });
    level("plugin", Level::Ok, "is not set", |facts| {
        facts.variables.0.remove("NCCL_NET_PLUGIN");
        facts.probes = BTreeMap::from([("libnccl-net.so".into(), plugin(OURS, "USB4"))]);
    });
}

#[test]
fn a_choice_of_net_that_leaves_usb4_out_is_a_problem_and_none_is_a_note() {
    problem("fallback", "NCCL_NET=Socket", "NCCL_NET=USB4", |facts| {
        set(facts, "NCCL_NET", "Socket");
    });
    level("fallback", Level::Note, "uses sockets", |facts| {
        facts.variables.0.remove("NCCL_NET");
    });
    level("fallback", Level::Ok, "fails rather", |facts| {
        set(facts, "NCCL_NET", "usb4")
    });
}

#[test]
fn a_version_that_forgets_plugins_is_a_problem_until_it_is_cured() {
    for version in [nccl(2, 27, 0), nccl(2, 27, 5), nccl(2, 28, 9), nccl(2, 29, 7)] {
        problem("reload", "the next one fails", "REF_COUNT=1", |facts| {
            facts.runtimes = vec![version];
        });
    }
    problem("reload", "silently", "REF_COUNT=1", |facts| {
        facts.runtimes = vec![nccl(2, 28, 9)];
        facts.variables.0.remove("NCCL_NET");
    });
    problem("reload", "librccl-net.so", "REF_COUNT=1", |facts| {
        facts.runtimes = vec![Runtime {
            kind: Kind::Rccl,
            ..nccl(2, 27, 7)
        }];
    });
    level("reload", Level::Ok, "prevents", |facts| {
        facts.runtimes = vec![nccl(2, 28, 9)];
        set(facts, "NCCL_NET_PLUGIN_REF_COUNT", "1");
    });
    level("reload", Level::Ok, "/usr/lib/libnccl-net.so", |facts| {
        facts.runtimes = vec![nccl(2, 28, 9)];
        facts
            .probes
            .insert("libnccl-net.so".into(), plugin("/usr/lib/libnccl-net.so", "USB4"));
    });
    for healthy in [nccl(2, 26, 2), nccl(2, 30, 3)] {
        let mut facts = well();
        facts.runtimes = vec![healthy];
        assert!(examine(&facts).iter().all(|finding| finding.about != "reload"));
    }
}

#[test]
fn ranks_that_cannot_find_each_other_are_a_problem() {
    let lo = || Interface {
        name: "lo".into(),
        loopback: true,
        addresses: vec!["127.0.0.1".parse().unwrap()],
        ..eth0()
    };
    problem("bootstrap", "besides lo", "thunderbolt_net", |facts| {
        facts.interfaces = vec![lo()]
    });
    level("bootstrap", Level::Note, "only lo", |facts| {
        facts.interfaces = vec![lo()];
        facts.device.spec = "soft:a".into();
    });
    problem(
        "bootstrap",
        "NCCL_SOCKET_IFNAME=ib",
        "NCCL_SOCKET_IFNAME=eth0",
        |facts| {
            set(facts, "NCCL_SOCKET_IFNAME", "ib");
        },
    );
    problem("bootstrap", "lo alone", "NCCL_SOCKET_IFNAME=eth0", |facts| {
        facts.interfaces.push(lo());
        set(facts, "NCCL_SOCKET_IFNAME", "lo");
    });
    problem("bootstrap", "besides lo", "thunderbolt_net", |facts| {
        facts.interfaces[0].addresses = vec!["fe80::1".parse().unwrap()];
    });
    problem("bootstrap", "besides lo", "thunderbolt_net", |facts| {
        facts.interfaces[0].name = "docker0".into();
    });
    level("bootstrap", Level::Ok, "eth0", |facts| {
        set(facts, "NCCL_SOCKET_IFNAME", "^lo")
    });
}

#[test]
fn versions_read_as_ncclgetversion_gives_them() {
    assert_eq!(Version::from_code(22_705), Version(2, 27, 5));
    assert_eq!(Version::from_code(2_804), Version(2, 8, 4));
}
