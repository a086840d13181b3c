//! Which neighbours are let in: `usb4ctl peers`, and what it does to a link.

use super::limits::uapi;
use super::seen;
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Outcome, rdma};
use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What who refuses says, and who is refused (kmod/rail.c).
const REFUSES: &str = "no rule lets it in";
const REFUSED: &str = "not allowed";

pub(super) fn rules(lab: &mut Lab) -> Result<Outcome> {
    uapi(lab, "rules::")
}

/// A guest's neighbour as it lists it: node id, router, how it stands.
fn neighbour(guest: &Guest) -> Result<[String; 3]> {
    let text = guest.sh("usb4ctl peers list --json")?;
    let list: Value = serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))?;
    let Some([one]) = list["neighbours"].as_array().map(Vec::as_slice) else {
        bail!("one cable, and the list is {text}");
    };
    let word = |name: &str| one[name].as_str().unwrap_or("none").to_string();
    Ok([word("node"), word("router"), word("state")])
}

/// Does something in guest 0 that has its neighbour refused.
fn shut_out(lab: &Lab, script: &str) -> Result<()> {
    let from = rdma::ends(lab);
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    one.sh(script)?;
    rdma::down(lab, &from).with_context(|| script.to_string())?;
    one.console.wait(REFUSES, from[0], SETTLE)?;
    other.console.wait(REFUSED, from[1], SETTLE)?;
    Ok(())
}

/// Does something in guest 0 that lets it in again.
fn let_in(lab: &Lab, script: &str) -> Result<()> {
    let from = rdma::ends(lab);
    lab.guest(0)?.sh(script)?;
    rdma::up(lab, &from).with_context(|| script.to_string())
}

pub(super) fn peers(lab: &mut Lab) -> Result<Outcome> {
    let [node, router, state] = neighbour(lab.guest(0)?)?;
    if state != "up" {
        bail!("with the link up the neighbour is {state}");
    }
    let server = rdma::Server::start(lab.guest(1)?, "ping")?;
    shut_out(lab, "usb4ctl peers policy listed")?;
    let [_, _, state] = neighbour(lab.guest(0)?)?;
    if state != "refused" {
        bail!("a host without a rule is {state}");
    }
    // A client is told at once, at either end.
    let ping = format!("usb4ctl ping --count 1 {}", server.address);
    let told = lab.guest(0)?.run(&ping, SETTLE)?;
    let words = String::from_utf8_lossy(&told.stderr).trim().to_string();
    if told.ok() || !words.contains("no session with peer") || !words.contains("no rule lets it in") {
        bail!("ping of a host that is refused: {told}");
    }
    let_in(lab, &format!("usb4ctl peers allow {node}"))?;
    let kept = lab.guest(0)?.sh("cat /etc/usb4-rdma/peers")?;
    if !kept.contains(&format!("allow {node} {router}")) {
        bail!("the routers it is seen at are not kept: {kept}");
    }
    lab.guest(0)?.sh_for(&ping, SETTLE).context("let in again")?;
    // The node id of another, by a router that is not that one's.
    let elsewhere = "00000000-0000-4000-8000-00000000000a";
    shut_out(lab, &format!("usb4ctl peers allow {node} --router {elsewhere}"))?;
    let_in(
        lab,
        &format!("usb4ctl peers forget {node} && usb4ctl peers policy open"),
    )?;
    server.end()?;
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    seen(format!(
        "listed: refused at both ends ({:?}); allowed by its router: up; by another router: refused; open: {answered}",
        words.lines().last().unwrap_or_default()
    ))
}

/// What was said is kept while the module is away, and applied when it is told.
pub(super) fn peers_after_reload(lab: &mut Lab) -> Result<Outcome> {
    let [node, ..] = neighbour(lab.guest(0)?)?;
    let from = rdma::ends(lab);
    lab.guest(0)?.sh_for("rmmod usb4_rdma", SETTLE)?;
    rdma::down(lab, &from[..1])?;
    lab.guest(0)?.sh("usb4ctl peers policy listed")?;
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    rdma::up(lab, &from)?;
    shut_out(lab, "usb4ctl peers apply")?;
    let_in(lab, &format!("usb4ctl peers allow {node} --any-router"))?;
    let_in_place(
        lab,
        &format!("usb4ctl peers policy open && usb4ctl peers forget {node}"),
    )?;
    // A file that cannot be understood lets nobody in.
    lab.guest(0)?
        .sh("cp /etc/usb4-rdma/peers /dev/shm/peers && echo nonsense >> /etc/usb4-rdma/peers")?;
    shut_out(lab, "! usb4ctl peers apply")?;
    let_in(
        lab,
        "cp /dev/shm/peers /etc/usb4-rdma/peers && usb4ctl peers apply",
    )?;
    seen("kept while the module was not loaded, applied after; a file that makes no sense lets nobody in")
}

/// Does something in guest 0 that its neighbour does not notice.
fn let_in_place(lab: &Lab, script: &str) -> Result<()> {
    let guest = lab.guest(0)?;
    guest.sh(script)?;
    let [_, _, state] = neighbour(guest)?;
    if state != "up" {
        bail!("after {script} the neighbour is {state}");
    }
    Ok(())
}
