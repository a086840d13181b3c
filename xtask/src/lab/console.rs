//! A guest's serial console: kept in a log file, watched for lines.

use crate::interrupt;
use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_setfl, mknodat};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Text {
    lines: Vec<String>,
    /// The line that is not finished.
    rest: Vec<u8>,
    closed: bool,
}

/// The pipes between QEMU and a guest's console. A pipe keeps what is written byte by byte as bytes. In a socket each is a
/// message that takes half a kilobyte of its buffer, which is soon full; and what the serial port cannot pass on within
/// 10 ms the kernel throws away (wait_for_xmitr in drivers/tty/serial/8250/8250_port.c).
pub(crate) struct Pipes {
    path: PathBuf,
}

impl Pipes {
    /// Makes them; QEMU puts `.in` and `.out` after the path.
    pub(crate) fn create(path: PathBuf) -> Result<Pipes> {
        let pipes = Pipes { path };
        for end in ["in", "out"] {
            let path = pipes.end(end);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .with_context(|| format!("make the pipe {}", path.display()))?;
        }
        Ok(pipes)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn end(&self, end: &str) -> PathBuf {
        PathBuf::from(format!("{}.{end}", self.path.display()))
    }
}

/// What a guest has written to its console so far.
pub(crate) struct Console {
    input: File,
    shared: Arc<(Mutex<Text>, Condvar)>,
    /// Limits are this many times as long.
    patience: u32,
}

impl Console {
    /// Takes over the pipes of a guest whose QEMU has opened them. It gets `patience` times as long for what it is waited
    /// for.
    pub(crate) fn new(pipes: &Pipes, log: &Path, patience: u32) -> Result<Console> {
        // Not to wait for a QEMU that has just ended.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).context("flags")?;
        let open = |end: &str, options: &mut OpenOptions| {
            let path = pipes.end(end);
            let file = options.custom_flags(flags).open(&path);
            file.with_context(|| format!("open {}", path.display()))
        };
        let input = open("in", File::options().write(true))?;
        let mut output = open("out", File::options().read(true))?;
        fcntl_setfl(&output, OFlags::empty()).context("have reads of the console wait")?;
        let mut file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let shared: Arc<(Mutex<Text>, Condvar)> = Arc::default();
        let writer = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut block = [0; 4096];
            loop {
                let bytes = match output.read(&mut block) {
                    Ok(n) if n > 0 => block.get(..n).unwrap_or_default(),
                    _ => break,
                };
                // A full disk must not stop the guest.
                let _ = file.write_all(bytes);
                locked(&writer.0).take(bytes);
                writer.1.notify_all();
            }
            locked(&writer.0).closed = true;
            writer.1.notify_all();
        });
        Ok(Console {
            input,
            shared,
            patience,
        })
    }

    /// Types on the console.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        (&self.input).write_all(bytes).context("type on the console")
    }

    /// The number of lines so far.
    pub(crate) fn len(&self) -> usize {
        locked(&self.shared.0).lines.len()
    }

    /// The lines from number `from` on.
    pub(crate) fn lines(&self, from: usize) -> Vec<String> {
        locked(&self.shared.0)
            .lines
            .get(from..)
            .unwrap_or_default()
            .to_vec()
    }

    /// Waits for a line from number `from` on that has `pattern` in it, and returns its number.
    ///
    /// # Errors
    /// None comes within `limit`, the console is closed, or we were interrupted.
    pub(crate) fn wait(&self, pattern: &str, from: usize, limit: Duration) -> Result<usize> {
        self.wait_for(pattern, from, limit, |line| line.contains(pattern))
    }

    /// The same for a line that ends with `pattern`.
    pub(crate) fn wait_end(&self, pattern: &str, from: usize, limit: Duration) -> Result<usize> {
        self.wait_for(pattern, from, limit, |line| line.ends_with(pattern))
    }

    fn wait_for(
        &self,
        pattern: &str,
        from: usize,
        limit: Duration,
        fits: impl Fn(&str) -> bool,
    ) -> Result<usize> {
        let limit = limit * self.patience;
        let deadline = Instant::now() + limit;
        let mut text = locked(&self.shared.0);
        let mut next = from;
        loop {
            interrupt::check()?;
            for (at, line) in text.lines.iter().enumerate().skip(next) {
                if fits(line) {
                    return Ok(at);
                }
            }
            next = text.lines.len().max(from);
            let left = deadline.saturating_duration_since(Instant::now());
            if text.closed {
                bail!("the guest ended before its console said {pattern:?}");
            }
            if left.is_zero() {
                bail!(
                    "the console has not said {pattern:?} within {} s",
                    limit.as_secs()
                );
            }
            let waited = self.shared.1.wait_timeout(text, left.min(LOOK));
            text = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Text {
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(at) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=at).collect();
            let line = String::from_utf8_lossy(&line);
            self.lines.push(line.trim_end_matches(['\r', '\n']).to_string());
        }
    }
}

fn locked(mutex: &Mutex<Text>) -> MutexGuard<'_, Text> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_however_they_arrive() {
        let folder = super::super::folder::Folder::create().unwrap();
        let pipes = Pipes::create(folder.join("console")).unwrap();
        // As QEMU opens them.
        let qemu = |end| {
            File::options()
                .read(true)
                .write(true)
                .open(pipes.end(end))
                .unwrap()
        };
        let (typed, mut guest) = (qemu("in"), qemu("out"));
        guest.write_all(b"ze").unwrap();
        let console = Console::new(&pipes, &folder.join("log"), 1).unwrap();
        console.write(b"x").unwrap();
        let mut byte = [0];
        (&typed).read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        guest.write_all(b"ro\r\n").unwrap();
        assert_eq!(console.wait("zero", 0, Duration::from_secs(20)).unwrap(), 0);
        guest.write_all(b"one\r\ntw").unwrap();
        assert_eq!(console.wait("one", 0, Duration::from_secs(20)).unwrap(), 1);
        guest.write_all(b"o\r\nthree").unwrap();
        assert_eq!(console.wait("two", 1, Duration::from_secs(20)).unwrap(), 2);
        assert!(console.wait("one", 2, Duration::from_millis(1)).is_err());
        drop(guest);
        let error = console
            .wait("three", 0, Duration::from_secs(20))
            .unwrap_err()
            .to_string();
        assert!(error.contains("ended"), "{error}");
        assert_eq!(console.lines(0), ["zero", "one", "two"]);
    }
}
