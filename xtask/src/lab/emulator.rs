//! The emulator process: host routers on vfio-user sockets, and its control socket.

use super::child::Child;
use super::folder::Folder;
use crate::interrupt;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use usb4_nhi_control::{Client, Request};
use usb4_nhi_model::Topology;

/// How long the emulator may take to open its sockets.
const PATIENCE: Duration = Duration::from_secs(30);

/// How to start it.
pub(crate) struct Options<'a> {
    pub(crate) program: &'a Path,
    /// The fabric, in [`Topology`]'s text form, and what it says.
    pub(crate) text: &'a str,
    pub(crate) topology: &'a Topology,
    pub(crate) seed: u64,
    pub(crate) limit: Duration,
    pub(crate) log: &'a Path,
}

/// A running emulator.
pub(crate) struct Emulator {
    child: Child,
    client: Client,
    routers: Vec<PathBuf>,
}

impl Emulator {
    /// Starts it with its sockets in `folder`, and returns when it answers.
    pub(crate) fn start(folder: &Folder, options: &Options<'_>) -> Result<Emulator> {
        let mut command = Command::new(options.program);
        command.arg("--dir").arg(folder.path()).arg("-v");
        command.args(["--topology", options.text, "--seed", &options.seed.to_string()]);
        let mut child = Child::start(&command, options.limit, options.log)?;
        let deadline = Instant::now() + PATIENCE;
        let client = loop {
            interrupt::check()?;
            match Client::connect(folder.path()) {
                Ok(client) => break client,
                Err(_) if child.ended().is_none() && Instant::now() < deadline => {}
                Err(error) => bail!("the emulator does not start: {error}\n{}", child.words()),
            }
            // A socket appears; that is no event anybody could wait for.
            std::thread::sleep(Duration::from_millis(2));
        };
        let routers = (0..options.topology.nhis()).map(|nhi| folder.join(&format!("nhi{nhi}.sock")));
        let mut emulator = Emulator {
            child,
            client,
            routers: routers.collect(),
        };
        // It answers only when all of its sockets are there.
        emulator.ask("stats")?;
        Ok(emulator)
    }

    /// The socket of each host router.
    pub(crate) fn routers(&self) -> &[PathBuf] {
        &self.routers
    }

    /// See [`Child::waited`].
    pub(crate) fn waited(&self) -> Duration {
        self.child.waited()
    }

    /// Puts a request to it, as `usb4ctl lab` takes them, and returns what it answers.
    pub(crate) fn ask(&mut self, line: &str) -> Result<Value> {
        let request: Request = line.parse().with_context(|| format!("{line:?}"))?;
        let answer = self.client.ask(&request);
        let answer =
            answer.with_context(|| format!("send {line:?} to the emulator\n{}", self.child.words()))?;
        accepted(&answer).with_context(|| format!("the emulator refuses {line:?}"))
    }
}

/// The answer, unless it is a refusal.
fn accepted(answer: &str) -> Result<Value> {
    let answer: Value = serde_json::from_str(answer).with_context(|| format!("not JSON: {answer}"))?;
    if answer.get("ok") != Some(&Value::Bool(true)) {
        bail!(
            "{}",
            answer
                .get("error")
                .and_then(Value::as_str)
                .unwrap_or("no reason given")
        );
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_an_error_with_its_reason() {
        assert!(accepted(r#"{"ok":true}"#).is_ok());
        let error = accepted(r#"{"ok":false,"error":"no cable 7"}"#).unwrap_err();
        assert_eq!(error.to_string(), "no cable 7");
        assert!(accepted("?").is_err());
    }
}
