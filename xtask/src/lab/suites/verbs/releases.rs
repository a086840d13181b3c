//! One provider for every rdma-core: the examples in C and Rust with Debian's releases of libibverbs, in roots that have nothing of the
//! guest's but sysfs and `/dev/infiniband`, and nothing of ours but the provider's files.

use super::{prepare, seen};
use crate::lab::session::{Guest, Lab};
use crate::lab::shared;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Check, Group, Outcome, Tag, rdma};
use crate::lab::switch;
use crate::provider;
use crate::rdma_core::{self, Release};
use anyhow::{Context, Result, bail};
use once_cell::sync::OnceCell;
use std::path::PathBuf;
use std::time::Duration;

pub(super) const GROUPS: &[Group] = &[Group {
    name: "releases",
    topology: "pair,lanes=1",
    plan: |plan| {
        shared::plan(plan);
        plan.memory_mib = 512;
    },
    prepare: |lab| {
        prepare(lab)?;
        lab.guests().iter().try_for_each(rdma::network)
    },
    checks: &[
        check("between-hosts", between_hosts),
        check("in-a-container", in_a_container),
        check("renamed", renamed),
    ],
}];

const fn check(name: &'static str, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check {
        name,
        tag: Tag::Ci,
        run,
    }
}

const PORT: u16 = 18516;

/// How long a ping-pong may take.
const LIMIT: Duration = Duration::from_secs(60);

/// What the example says in the end.
const WORDS: &str = "100 messages of 5000 bytes each way, every byte right";

/// What this machine has for the guests.
struct Things {
    releases: Vec<Release>,
    provider: PathBuf,
    example: PathBuf,
    in_rust: PathBuf,
}

/// Fetched and built once.
fn things() -> Result<&'static Things> {
    static THINGS: OnceCell<Things> = OnceCell::new();
    THINGS.get_or_try_init(|| {
        let releases = rdma_core::releases()?;
        Ok(Things {
            example: provider::verbs_example(&releases)?,
            in_rust: provider::verbs_example_in_rust()?,
            provider: provider::verbs_folder()?,
            releases,
        })
    })
}

/// Where a guest has what is put into every root: once, as its memory holds it.
const FILES: &str = "/tmp/usb4-files";

/// Makes the root of a release in a guest, and returns where. The provider is found by the path in `usb4.driver`, as where a
/// distribution has no folder for it.
fn make_root(guest: &Guest, things: &Things, release: &Release) -> Result<String> {
    let Things {
        provider,
        example,
        in_rust,
        ..
    } = things;
    let at = format!("/tmp/rdma-core-{}", release.major);
    let script = format!(
        "set -e; [ ! -e {at}/made ] || exit 0
         mkdir -p {at}; cd {at}; mkdir -p dev/infiniband sys proc etc/libibverbs.d usb4
         for folder in {tree}/*; do
             name=$(basename $folder)
             if [ -L $folder ]; then cp -d $folder .; elif [ $name != etc ]; then mkdir -p $name; mount --bind $folder $name; fi
         done
         for folder in lib lib64; do [ -e $folder ] || ln -s usr/$folder $folder; done
         mount --bind /dev/infiniband dev/infiniband; mount --bind /sys sys; mount --bind /proc proc
         if [ ! -e {FILES} ]; then
             mkdir -p {FILES}; cp -d {provider}/libusb4-rdmav* {example} {FILES}; cp {in_rust} {FILES}/in-rust
         fi
         mount --bind {FILES} usb4; echo 'driver /usb4/libusb4' > etc/libibverbs.d/usb4.driver
         touch made",
        tree = release.root.display(),
        provider = provider.display(),
        example = example.display(),
        in_rust = in_rust.display(),
    );
    guest.sh_for(&script, SETTLE)?;
    Ok(at)
}

/// An example, in a root.
fn command(root: &str, example: &str, device: &str, arguments: &str) -> String {
    format!("IBV_SHOW_WARNINGS=1 IBV_DEVICE={device} chroot {root} /usb4/{example} {arguments}")
}

const IN_C: &str = "verbs-pingpong";
const IN_RUST: &str = "in-rust";

/// Plays from one guest to another, whose example is the one in C.
fn play(lab: &Lab, example: &str, roots: [&str; 2], devices: [&str; 2]) -> Result<()> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let [client_root, server_root] = roots;
    let [client_device, server_device] = devices;
    let server = command(server_root, IN_C, server_device, "");
    let server = other.start(&["sh", "-c", &server])?;
    other.listening(PORT)?;
    let address = switch::address(other.number);
    let said = one.sh_for(
        &command(
            client_root,
            example,
            client_device,
            &format!("{address} 100 5000"),
        ),
        LIMIT,
    );
    let served = server.wait(LIMIT)?;
    let said = said.with_context(|| format!("server: {served}"))?;
    if !said.contains(WORDS) || !served.ok() {
        bail!("the client says: {said}\nserver: {served}");
    }
    Ok(())
}

/// Each release, with itself at the other end.
fn between_hosts(lab: &mut Lab) -> Result<Outcome> {
    let things = things()?;
    let mut names = vec![];
    for release in &things.releases {
        let one = make_root(lab.guest(0)?, things, release)?;
        let other = make_root(lab.guest(1)?, things, release)?;
        for example in [IN_C, IN_RUST] {
            play(lab, example, [&one, &other], ["usb4_0"; 2])
                .with_context(|| format!("{example}, rdma-core {}", release.major))?;
        }
        names.push(release.major.to_string());
    }
    seen(format!("rdma-core {}", names.join(", ")))
}

/// With namespaces of its own for everything a container has, and no privilege; so with itself.
fn in_a_container(lab: &mut Lab) -> Result<Outcome> {
    let things = things()?;
    let guest = lab.guest(0)?;
    for release in &things.releases {
        let root = make_root(guest, things, release)?;
        let play = format!("unshare --root={root} --setgid=65534 --setuid=65534 /usb4/verbs-pingpong");
        let script = format!(
            "chmod 0666 /dev/infiniband/*; ulimit -l unlimited
             unshare --mount --net --ipc --uts sh -c '
                 ip link set lo up
                 {play} > /tmp/server.log 2>&1 & server=$!
                 until grep -q :{PORT:04X} /proc/net/tcp /proc/net/tcp6; do
                     [ -e /proc/$server ] || {{ cat /tmp/server.log; exit 1; }}
                 done
                 {play} 127.0.0.1 100 5000 && wait $server'",
        );
        let said = guest
            .sh_for(&script, LIMIT)
            .with_context(|| format!("rdma-core {}", release.major))?;
        if !said.contains(WORDS) {
            bail!("rdma-core {}: {said}", release.major);
        }
    }
    seen(format!("{} releases", things.releases.len()))
}

/// As udev's rules do: the device has another name.
fn renamed(lab: &mut Lab) -> Result<Outcome> {
    const OTHER: &str = "rocep0s6";
    let things = things()?;
    lab.guest(0)?.sh(&format!("rdma dev set usb4_0 name {OTHER}"))?;
    for release in &things.releases {
        let one = make_root(lab.guest(0)?, things, release)?;
        let other = make_root(lab.guest(1)?, things, release)?;
        play(lab, IN_C, [&one, &other], [OTHER, "usb4_0"])
            .with_context(|| format!("rdma-core {}", release.major))?;
    }
    lab.guest(0)?.sh(&format!("rdma dev set {OTHER} name usb4_0"))?;
    seen(OTHER)
}
