//! `cargo xtask lab shell`: guests to play with, one terminal for all of them.

use super::agent::{Running, Said};
use super::run::Guests;
use super::session::Lab;
use crate::interrupt;
use crate::ui::Verdict;
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{IsTerminal, Read, Write};
use std::time::Duration;
use usb4_lab_agent::Terminal;

/// Ctrl-], as telnet has it.
const ESCAPE: u8 = 0x1d;
/// What a guest in the background may say before its oldest words are dropped.
const KEPT: usize = 64 << 10;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    guests: Guests,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    if !std::io::stdin().is_terminal() {
        bail!("standard input is no terminal; use `lab run -- COMMAND`");
    }
    let mut lab = args.guests.start("shell")?;
    say!(
        "guests 0 to {}; Ctrl-] N goes to guest N, Ctrl-] c sends the emulator a command, Ctrl-] q ends everything",
        lab.guests().len() - 1
    );
    say!("logs: {}", lab.logs.display());
    interact(&mut lab)?;
    let complaints = lab.complaints()?;
    complaints.iter().for_each(|line| say!("{line}"));
    Ok(Verdict::new(
        true,
        format!("{} complaints by kernels", complaints.len()),
    ))
}

/// What to do about what has been typed.
#[derive(Debug, PartialEq)]
enum Typed {
    Send(Vec<u8>),
    Switch(usize),
    Command,
    Quit,
}

/// Splits what has been typed. An escape and its letter may come apart.
#[derive(Default)]
struct Keys {
    escaped: bool,
}

impl Keys {
    fn take(&mut self, bytes: &[u8]) -> Vec<Typed> {
        let mut found = vec![];
        let mut plain = vec![];
        for byte in bytes {
            if !self.escaped {
                if *byte == ESCAPE {
                    self.escaped = true;
                } else {
                    plain.push(*byte);
                }
                continue;
            }
            self.escaped = false;
            let typed = match byte {
                b'0'..=b'9' => Typed::Switch(usize::from(byte - b'0')),
                b'c' => Typed::Command,
                b'q' => Typed::Quit,
                other => {
                    // Twice the escape is itself; anything else is a slip.
                    plain.extend((*other == ESCAPE).then_some(ESCAPE));
                    continue;
                }
            };
            if !plain.is_empty() {
                found.push(Typed::Send(std::mem::take(&mut plain)));
            }
            found.push(typed);
        }
        if !plain.is_empty() {
            found.push(Typed::Send(plain));
        }
        found
    }
}

/// The terminal, without echo and line editing while this lives.
struct Raw {
    before: Termios,
}

impl Raw {
    fn enter() -> Result<Raw> {
        let before = tcgetattr(std::io::stdin()).context("read the terminal's settings")?;
        let raw = Raw { before };
        raw.again()?;
        Ok(raw)
    }

    fn again(&self) -> Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).context("set the terminal to raw")
    }

    fn pause(&self) -> Result<()> {
        tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before).context("reset the terminal")
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.pause();
    }
}

fn size() -> Terminal {
    let size = tcgetwinsize(std::io::stdin()).ok();
    size.filter(|size| size.ws_row > 0).map_or(
        Terminal {
            rows: 24,
            columns: 80,
        },
        |size| Terminal {
            rows: size.ws_row,
            columns: size.ws_col,
        },
    )
}

/// A shell in a guest, and what it said while another was in front.
struct Shell<'a> {
    running: Option<Running<'a>>,
    unseen: Vec<u8>,
}

fn interact(lab: &mut Lab) -> Result<()> {
    let (guests, emulator) = lab.parts();
    let mut size_known = size();
    let mut shells: Vec<Shell<'_>> = guests
        .iter()
        .map(|guest| {
            Ok(Shell {
                running: Some(guest.agent().start(&["bash", "-i"], Some(size_known))?),
                unseen: vec![],
            })
        })
        .collect::<Result<_>>()?;
    let raw = Raw::enter()?;
    let mut keys = Keys::default();
    let mut front = 0;
    while shells.iter().any(|shell| shell.running.is_some()) {
        interrupt::check()?;
        listen(&mut shells, front)?;
        if shells.get(front).is_none_or(|shell| shell.running.is_none()) {
            // Its shell has ended: to the next that has not.
            let Some(next) = shells.iter().position(|shell| shell.running.is_some()) else {
                break;
            };
            front = next;
            show(shells.get_mut(front), front)?;
        }
        if size() != size_known {
            size_known = size();
            for running in shells.iter().filter_map(|shell| shell.running.as_ref()) {
                running.resize(size_known)?;
            }
        }
        for typed in keys.take(&typed()?) {
            match typed {
                Typed::Send(bytes) => {
                    if let Some(running) = shells.get(front).and_then(|shell| shell.running.as_ref()) {
                        running.write(&bytes)?;
                    }
                }
                Typed::Switch(guest) if guest < shells.len() => {
                    front = guest;
                    show(shells.get_mut(front), front)?;
                }
                Typed::Switch(_) => {}
                Typed::Command => {
                    raw.pause()?;
                    let mut line = String::new();
                    print(b"\r\nemulator> ")?;
                    std::io::stdin().read_line(&mut line).context("read a command")?;
                    match emulator.ask(line.trim()) {
                        Ok(reply) => say!("{reply}"),
                        Err(error) => say!("{error:#}"),
                    }
                    raw.again()?;
                }
                Typed::Quit => return Ok(()),
            }
        }
    }
    Ok(())
}

/// Shows what the shell in front says, keeps what the others do.
fn listen(shells: &mut [Shell<'_>], front: usize) -> Result<()> {
    for (number, shell) in shells.iter_mut().enumerate() {
        while let Some(running) = &mut shell.running {
            match running.said(Duration::ZERO)? {
                Said::Nothing => break,
                Said::End(_) => shell.running = None,
                Said::Output(bytes) if number == front => print(&bytes)?,
                Said::Output(bytes) => {
                    shell.unseen.extend(bytes);
                    let much = shell.unseen.len().saturating_sub(KEPT);
                    shell.unseen.drain(..much);
                }
            }
        }
    }
    Ok(())
}

fn show(shell: Option<&mut Shell<'_>>, number: usize) -> Result<()> {
    print(format!("\r\n[guest {number}]\r\n").as_bytes())?;
    shell.map_or(Ok(()), |shell| print(&std::mem::take(&mut shell.unseen)))
}

fn print(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .context("write to the terminal")
}

/// What has been typed, waiting for it for a moment only, since guests may speak.
fn typed() -> Result<Vec<u8>> {
    let slice = Timespec {
        tv_sec: 0,
        tv_nsec: 10_000_000,
    };
    let stdin = std::io::stdin();
    let mut wanted = [PollFd::new(&stdin, PollFlags::IN)];
    if poll(&mut wanted, Some(&slice)).unwrap_or(0) == 0 {
        return Ok(vec![]);
    }
    let mut block = [0; 4096];
    let len = stdin.lock().read(&mut block).context("read the terminal")?;
    if len == 0 {
        bail!("the terminal is gone");
    }
    Ok(block.get(..len).unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escape_is_understood_even_if_its_letter_comes_later() {
        let mut keys = Keys::default();
        let first = keys.take(&[b'a', ESCAPE]);
        assert_eq!(first, [Typed::Send(b"a".to_vec())]);
        let rest = keys.take(&[b'1', b'b', ESCAPE, b'q', ESCAPE, ESCAPE]);
        let wanted = [
            Typed::Switch(1),
            Typed::Send(b"b".to_vec()),
            Typed::Quit,
            Typed::Send(vec![ESCAPE]),
        ];
        assert_eq!(rest, wanted);
    }
}
