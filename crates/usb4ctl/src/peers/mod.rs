//! `usb4ctl peers`: which neighbours the kernel module lets in.
//!
//! What is said is told to the module and kept in a file, from which `apply` tells it again when it is loaded.

mod file;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use usb4_ring::{Cable, CableState, Device, Error, NodeId, Policy, RouterId, Rule, Rules};

use crate::output::{line, remark};
use crate::session;

/// Shows and says which neighbours are let in.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where it is kept what has been said
    #[arg(long, default_value = file::PATH, global = true)]
    file: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Shows the neighbours, the policy and the rules
    List {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Lets a host in: by the routers it is seen at now, unless others are named
    Allow {
        /// Its node id
        node: NodeId,
        /// UUID of a router by which it is let in, instead of those before; may be given several times
        #[arg(long, value_name = "UUID")]
        router: Vec<RouterId>,
        /// Lets it in by any router
        #[arg(long, conflicts_with = "router")]
        any_router: bool,
    },
    /// Forgets the rules for a host: what holds for it is the policy
    Forget {
        /// Its node id
        node: NodeId,
    },
    /// Says whether hosts without a rule are let in (open) or refused (listed)
    Policy {
        /// open or listed
        policy: Word,
    },
    /// Tells the module what the file says; done whenever it is loaded
    Apply,
}

/// A policy's name.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Word {
    Open,
    Listed,
}

pub(crate) fn run(device: Option<&str>, arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::List { json } => list(device, arguments, *json),
        Command::Allow {
            node,
            router,
            any_router,
        } => change(device, arguments, |rules, device| {
            let routers = if *any_router {
                vec![None]
            } else if router.is_empty() {
                seen(*node, device)?
            } else {
                router.iter().copied().map(Some).collect()
            };
            allow(rules, *node, &routers);
            Ok(())
        }),
        Command::Forget { node } => change(device, arguments, |rules, _| {
            let before = rules.rules.len();
            rules.rules.retain(|rule| rule.node != *node);
            ensure!(rules.rules.len() < before, "there is no rule for {node}");
            Ok(())
        }),
        Command::Policy { policy } => change(device, arguments, |rules, _| {
            rules.policy = match policy {
                Word::Open => Policy::Open,
                Word::Listed => Policy::Listed,
            };
            Ok(())
        }),
        Command::Apply => apply(&session::open(device)?, arguments),
    }
}

/// Changes what the file says, and tells the module, if it is there.
fn change(
    device: Option<&str>,
    arguments: &Arguments,
    f: impl FnOnce(&mut Rules, Option<&Device>) -> Result<()>,
) -> Result<()> {
    let device = match session::open(device) {
        Ok(device) => Some(device),
        Err(error) if matches!(error.downcast_ref(), Some(Error::NoDevice)) => None,
        Err(error) => return Err(error),
    };
    let mut rules = file::load(&arguments.file)?;
    f(&mut rules, device.as_ref())?;
    // Who may not tell the module keeps nothing, either.
    if let Some(device) = &device {
        device.set_rules(&rules)?;
    }
    file::save(&arguments.file, &rules).with_context(|| match device {
        Some(_) => "the module knows, but will have forgotten when it is loaded again",
        None => "nothing has changed",
    })?;
    line(format_args!(
        "policy {}; kept in {}",
        meaning(rules.policy),
        arguments.file.display()
    ))?;
    if device.is_none() {
        remark(format_args!(
            "usb4_rdma is not loaded: this will count when it is"
        ));
    }
    Ok(())
}

/// The routers at which a host is seen now.
fn seen(node: NodeId, device: Option<&Device>) -> Result<Vec<Option<RouterId>>> {
    let cables = device.map(Device::cables).transpose()?.unwrap_or_default();
    let routers: Vec<_> = cables
        .iter()
        .filter(|cable| cable.node == Some(node))
        .map(|cable| Some(cable.router))
        .collect();
    if routers.is_empty() {
        bail!(
            "{node} is at no cable now: name its routers (--router UUID), or let it in by any (--any-router)"
        );
    }
    Ok(routers)
}

/// Puts rules for a host in the place of those it has.
fn allow(rules: &mut Rules, node: NodeId, routers: &[Option<RouterId>]) {
    rules.rules.retain(|rule| rule.node != node);
    rules.rules.extend(routers.iter().map(|router| Rule {
        node,
        router: *router,
    }));
    rules.rules.sort_unstable();
    rules.rules.dedup();
}

/// A file that cannot be understood lets nobody in, rather than everybody.
fn apply(device: &Device, arguments: &Arguments) -> Result<()> {
    let loaded = file::load(&arguments.file);
    let nobody = Rules {
        policy: Policy::Listed,
        rules: vec![],
    };
    device.set_rules(loaded.as_ref().unwrap_or(&nobody))?;
    loaded
        .context("until it is mended no neighbour is let in")
        .map(drop)
}

#[derive(Serialize)]
struct Report {
    policy: &'static str,
    rules: Vec<ShownRule>,
    neighbours: Vec<ShownCable>,
}

#[derive(Serialize)]
struct ShownRule {
    node: String,
    router: String,
}

#[derive(Serialize)]
struct ShownCable {
    node: Option<String>,
    router: String,
    state: &'static str,
    refused: Option<String>,
}

fn list(device: Option<&str>, arguments: &Arguments, json: bool) -> Result<()> {
    let device = session::open(device)?;
    let (rules, cables) = (device.rules()?, device.cables()?);
    let report = Report {
        policy: name(rules.policy),
        rules: rules.rules.iter().map(shown_rule).collect(),
        neighbours: cables.iter().map(shown_cable).collect(),
    };
    if json {
        return line(serde_json::to_string_pretty(&report)?);
    }
    line(format_args!("policy     {}", meaning(rules.policy)))?;
    for rule in &report.rules {
        line(format_args!("allow      {} by router {}", rule.node, rule.router))?;
    }
    if report.neighbours.is_empty() {
        line("neighbour  none: is a cable plugged in, and usb4_rdma loaded at its other end?")?;
    }
    for cable in &report.neighbours {
        let node = cable.node.as_deref().unwrap_or("has not said who it is");
        let why = cable.refused.iter().map(|why| format!(": {why}"));
        line(format_args!(
            "neighbour  {node} by router {}, {}{}",
            cable.router,
            cable.state,
            why.collect::<String>()
        ))?;
    }
    match file::load(&arguments.file) {
        Ok(kept) if kept != rules => line(format_args!(
            "note       {} says otherwise: usb4ctl peers apply",
            arguments.file.display()
        )),
        Ok(_) if arguments.file.exists() => line(format_args!("kept in    {}", arguments.file.display())),
        Ok(_) => Ok(()),
        Err(error) => line(format_args!("note       {error:#}")),
    }
}

fn shown_rule(rule: &Rule) -> ShownRule {
    ShownRule {
        node: rule.node.to_string(),
        router: router(rule.router),
    }
}

fn shown_cable(cable: &Cable) -> ShownCable {
    ShownCable {
        node: cable.node.map(|node| node.to_string()),
        router: cable.router.to_string(),
        state: match cable.state {
            CableState::Up => "up",
            CableState::Connecting => "connecting",
            CableState::Refused(_) => "refused",
            _ => "unknown",
        },
        refused: match cable.state {
            CableState::Refused(why) => Some(why.to_string()),
            _ => None,
        },
    }
}

fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::Open => "open",
        Policy::Listed => "listed",
    }
}

fn meaning(policy: Policy) -> &'static str {
    match policy {
        Policy::Open => "open: hosts without a rule are let in",
        Policy::Listed => "listed: hosts without a rule are refused",
    }
}

fn router(router: Option<RouterId>) -> String {
    router.map_or_else(|| "any".into(), |router| router.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_for_a_host_replace_those_it_had() {
        let (one, two) = (RouterId([1; 16]), RouterId([2; 16]));
        let mut rules = Rules::default();
        allow(&mut rules, NodeId(9), &[None]);
        allow(&mut rules, NodeId(5), &[Some(two), Some(one), Some(two)]);
        allow(&mut rules, NodeId(9), &[Some(one)]);
        let rule = |node, router| Rule {
            node: NodeId(node),
            router: Some(router),
        };
        assert_eq!(rules.rules, [rule(5, one), rule(5, two), rule(9, one)]);
    }

    #[test]
    fn a_host_that_is_not_there_is_not_let_in_by_guess() {
        let said = seen(NodeId(5), None).unwrap_err().to_string();
        assert!(said.contains("--any-router"), "{said}");
    }
}
