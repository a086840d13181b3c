//! A guest's serial console: kept in a log file, watched for lines.

use crate::interrupt;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
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

/// What a guest has written to its console so far.
pub(crate) struct Console {
    stream: UnixStream,
    shared: Arc<(Mutex<Text>, Condvar)>,
}

impl Console {
    /// Takes over the stream on which QEMU passes on the guest's serial port.
    pub(crate) fn new(stream: UnixStream, log: &Path) -> Result<Console> {
        let mut file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let shared: Arc<(Mutex<Text>, Condvar)> = Arc::default();
        let writer = Arc::clone(&shared);
        let mut reader = stream.try_clone().context("share the console's socket")?;
        std::thread::spawn(move || {
            let mut block = [0; 4096];
            loop {
                let bytes = match reader.read(&mut block) {
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
        Ok(Console { stream, shared })
    }

    /// Types on the console.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        (&self.stream).write_all(bytes).context("type on the console")
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
        let log = std::env::temp_dir().join(format!("xtask-console-{}", std::process::id()));
        let (host, mut guest) = UnixStream::pair().unwrap();
        let console = Console::new(host, &log).unwrap();
        guest.write_all(b"one\r\ntw").unwrap();
        assert_eq!(console.wait("one", 0, Duration::from_secs(20)).unwrap(), 0);
        guest.write_all(b"o\r\nthree").unwrap();
        assert_eq!(console.wait("two", 1, Duration::from_secs(20)).unwrap(), 1);
        assert!(console.wait("one", 1, Duration::from_millis(1)).is_err());
        drop(guest);
        let error = console
            .wait("three", 0, Duration::from_secs(20))
            .unwrap_err()
            .to_string();
        assert!(error.contains("ended"), "{error}");
        assert_eq!(console.lines(0), ["one", "two"]);
        std::fs::remove_file(log).unwrap();
    }
}
