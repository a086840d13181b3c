//! The device, its links, and what keeps a process from it.

use usb4_ring::Backend;

use super::facts::{DeviceState, Facts, Standing};
use super::finding::Finding;

/// What two ranks of one communicator register, rounded up: four connections of collectives with 9.6 MB of buffers and
/// two of point-to-point with 4 MiB, as NCCL 2.27 to 2.30 were seen to do.
const COMMUNICATOR: u64 = 64 << 20;

/// What lets a container use the kernel's device.
const DOCKER: &str = "docker run --device /dev/usb4ring --ulimit memlock=-1:-1 ...";

/// Whether the device opens.
pub(crate) fn device(facts: &Facts, findings: &mut Vec<Finding>) {
    let device = &facts.device;
    let spec = &device.spec;
    findings.push(match &device.state {
        DeviceState::BadSpec(why) => Finding::problem("device", why, "export USB4_DEVICE=/dev/usb4ring"),
        DeviceState::Missing if facts.container.is_some() => {
            Finding::problem("device", format!("{spec} is not in this container"), DOCKER)
        }
        DeviceState::Missing if !device.is_default() => {
            Finding::problem("device", format!("{spec} does not exist"), "unset USB4_DEVICE")
        }
        DeviceState::Missing if device.module => Finding::problem(
            "device",
            format!("the module usb4_rdma is loaded and yet there is no {spec}"),
            "sudo dmesg | grep usb4_rdma",
        ),
        DeviceState::Missing => Finding::problem(
            "device",
            format!("{spec} is not there, as the module usb4_rdma is not loaded"),
            "sudo modprobe usb4_rdma",
        ),
        DeviceState::Permission(why) => Finding::problem("device", why, format!("ls -l {spec}; id")),
        DeviceState::Version(why) => {
            Finding::problem("version", why, "modinfo -F version usb4_rdma; usb4ctl --version")
        }
        DeviceState::Failed(why) => Finding::problem("device", why, "usb4ctl devices"),
        DeviceState::Open {
            backend: Backend::SoftDetached,
            ..
        } => Finding::problem(
            "device",
            format!("{spec} runs in another process, which cannot reach the memory that NCCL sends from"),
            format!("export USB4_DEVICE={}", spec.split(',').next().unwrap_or(spec)),
        ),
        DeviceState::Open { node, backend, .. } => {
            let by = if device.named { "" } else { ", by default" };
            let what = crate::session::backend(*backend).1;
            Finding::ok("device", format!("{spec} ({what}{by}) opens, node {node}"))
        }
    });
}

/// Whether there is anybody to talk to.
pub(crate) fn links(facts: &Facts, findings: &mut Vec<Finding>) {
    let DeviceState::Open { backend, peers, .. } = &facts.device.state else {
        return;
    };
    if peers.is_empty() {
        findings.push(match backend {
            Backend::Kernel => Finding::problem(
                "link",
                "no host is at the other end of any cable, or none with usb4_rdma loaded",
                "sudo modprobe usb4_rdma    # at the other end",
            ),
            _ => Finding::note(
                "link",
                "no other process is on this software cable: there are peers as soon as the ranks run",
                format!(
                    "USB4_DEVICE={} usb4ctl ping --serve    # is one",
                    facts.device.spec
                ),
            ),
        });
    }
    for peer in peers {
        let node = &peer.node;
        findings.push(match &peer.standing {
            Standing::Up { rails: 1 } => Finding::ok("link", format!("up to {node}, 1 rail")),
            Standing::Up { rails } => Finding::ok("link", format!("up to {node}, {rails} rails")),
            Standing::Connecting => Finding::problem(
                "link",
                format!("{node} is on the cable and no session comes up with it"),
                "sudo dmesg | grep usb4_rdma    # here and there: versions, rings and paths are named",
            ),
            Standing::Refused { ours: true, why } => Finding::problem(
                "link",
                format!("{node} is on the cable and refused: {why}"),
                format!("sudo usb4ctl peers allow {node}    # if it is to be let in"),
            ),
            Standing::Refused { ours: false, why } => Finding::problem(
                "link",
                format!("{node} is on the cable, and no session comes up: {why}"),
                "sudo usb4ctl peers list    # here and there",
            ),
            Standing::Version(why) => Finding::problem(
                "version",
                why,
                "usb4ctl --version    # here and there: install the same release",
            ),
            Standing::Failed(why) => Finding::problem("link", why, "usb4ctl devices"),
        });
    }
}

/// Whether NCCL's buffers may be pinned. Only the kernel module pins.
pub(crate) fn memlock(facts: &Facts, findings: &mut Vec<Finding>) {
    if !facts.device.is_kernel() {
        return;
    }
    let mib = |bytes: u64| bytes >> 20;
    findings.push(match facts.memlock {
        Some(limit) if limit < COMMUNICATOR => Finding::problem(
            "memlock",
            format!(
                "this user may pin {} KiB and a communicator of two ranks wants about {} MiB",
                limit >> 10,
                mib(COMMUNICATOR)
            ),
            if facts.container.is_some() {
                DOCKER.into()
            } else {
                "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/usb4.conf    # and log in again"
                    .to_string()
            },
        ),
        Some(limit) if limit < 16 * COMMUNICATOR => Finding::note(
            "memlock",
            format!(
                "this user may pin {} MiB, room for about {} communicators of two ranks",
                mib(limit),
                limit / COMMUNICATOR
            ),
            "ulimit -l unlimited",
        ),
        Some(limit) => Finding::ok("memlock", format!("this user may pin {} MiB", mib(limit))),
        None => Finding::ok("memlock", "no limit on pinned memory"),
    });
}

/// What to know in a container.
pub(crate) fn container(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(kind) = facts.container else { return };
    findings.push(if facts.device.is_kernel() {
        Finding::note(
            "container",
            format!("this is {kind}: device, limit and plugin have to be inside"),
            DOCKER,
        )
    } else {
        Finding::note(
            "container",
            format!("this is {kind}: a software cable does not leave its network namespace"),
            "docker run --network host ...",
        )
    });
}
