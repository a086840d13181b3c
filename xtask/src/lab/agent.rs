//! The host's end of the agent in a guest: runs commands there.

use crate::interrupt;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::HashMap;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use usb4_lab_agent::{BODY_MAX, End, Frame, GREETING, Kind, Start, Terminal};

/// How often a wait looks whether it has been interrupted.
const LOOK: Duration = Duration::from_millis(100);
/// How long a killed command may take to go, and a guest to take what it is sent.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a command did.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) end: End,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Output {
    /// The output of a command whose words went elsewhere.
    pub(crate) fn silent(end: End) -> Output {
        Output {
            end,
            stdout: vec![],
            stderr: vec![],
        }
    }

    pub(crate) fn ok(&self) -> bool {
        self.end == End::Status(0)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.end {
            End::Status(status) => write!(f, "exit status {status}")?,
            End::Signal(signal) => write!(f, "ended by signal {signal}")?,
            End::NotStarted(why) => write!(f, "not started: {why}")?,
        }
        for part in [&self.stdout, &self.stderr] {
            let text = String::from_utf8_lossy(part);
            let lines: Vec<&str> = text.trim_end().lines().collect();
            for line in lines.get(lines.len().saturating_sub(20)..).unwrap_or_default() {
                write!(f, "\n  {line}")?;
            }
        }
        Ok(())
    }
}

enum Event {
    Output(Kind, Vec<u8>),
    End(End),
}

/// The connection to one guest's agent.
pub(crate) struct Agent {
    stream: Mutex<UnixStream>,
    commands: Arc<Mutex<HashMap<u32, Sender<Event>>>>,
    greeted: Mutex<Receiver<Vec<u8>>>,
    next: AtomicU32,
    /// Limits are this many times as long.
    patience: u32,
}

impl Agent {
    /// Takes over the stream on which QEMU passes on the guest's port. Commands get `patience` times as long as they are
    /// given, for a guest that is slow.
    pub(crate) fn new(stream: UnixStream, patience: u32) -> Result<Agent> {
        stream
            .set_write_timeout(Some(PATIENCE))
            .context("set up the agent's socket")?;
        let mut reader = stream.try_clone().context("share the agent's socket")?;
        let commands: Arc<Mutex<HashMap<u32, Sender<Event>>>> = Arc::default();
        let (greet, greeted) = channel();
        let list = Arc::clone(&commands);
        std::thread::spawn(move || {
            while let Ok(Some(frame)) = Frame::read(&mut reader) {
                dispatch(frame, &list, &greet);
            }
            // Whoever waits for an event sees that there will be none.
            locked(&list).clear();
        });
        Ok(Agent {
            stream: Mutex::new(stream),
            commands,
            greeted: Mutex::new(greeted),
            next: AtomicU32::new(1),
            patience,
        })
    }

    /// Whether the agent has said that it is there, waiting for at most `span`.
    ///
    /// # Errors
    /// It is another version's, or the connection has ended.
    pub(crate) fn greeted(&self, span: Duration) -> Result<bool> {
        match locked(&self.greeted).recv_timeout(span) {
            Ok(words) if words == GREETING => Ok(true),
            Ok(words) => bail!("the guest's agent says {:?}", String::from_utf8_lossy(&words)),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => bail!("the guest went away"),
        }
    }

    /// Starts a command.
    pub(crate) fn start(&self, argv: &[&str], terminal: Option<Terminal>) -> Result<Running<'_>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (send, events) = channel();
        locked(&self.commands).insert(id, send);
        let argv = argv.iter().map(|word| word.to_string()).collect();
        self.send(id, Kind::Start, &Start { argv, terminal }.to_bytes())?;
        Ok(Running {
            agent: self,
            id,
            events,
            stdout: vec![],
            stderr: vec![],
            ended: false,
        })
    }

    /// Starts a command whose standard input is at its end, so that one that reads it by mistake does not wait for ever.
    pub(crate) fn start_without_input(&self, argv: &[&str]) -> Result<Running<'_>> {
        let running = self.start(argv, None)?;
        running.close_stdin()?;
        Ok(running)
    }

    fn send(&self, id: u32, kind: Kind, body: &[u8]) -> Result<()> {
        let body = body.to_vec();
        let frame = Frame { id, kind, body };
        frame
            .write(&mut *locked(&self.stream))
            .context("the guest does not take commands")
    }
}

fn dispatch(frame: Frame, commands: &Mutex<HashMap<u32, Sender<Event>>>, greet: &Sender<Vec<u8>>) {
    let mut commands = locked(commands);
    let event = match frame.kind {
        Kind::Hello => {
            let _ = greet.send(frame.body);
            return;
        }
        Kind::Stdout | Kind::Stderr => Event::Output(frame.kind, frame.body),
        Kind::End => {
            let end = End::from_bytes(&frame.body);
            Event::End(end.unwrap_or_else(|| End::NotStarted("the agent sent nonsense".into())))
        }
        Kind::Start | Kind::Stdin | Kind::Signal | Kind::Resize => return,
    };
    let over = matches!(event, Event::End(_));
    // Nobody may be interested any more.
    if let Some(command) = commands.get(&frame.id) {
        let _ = command.send(event);
    }
    if over {
        commands.remove(&frame.id);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a running command has to say.
pub(crate) enum Said {
    Nothing,
    Output(Vec<u8>),
    End(End),
}

/// A command that runs in a guest. Dropping it kills it.
pub(crate) struct Running<'a> {
    agent: &'a Agent,
    id: u32,
    events: Receiver<Event>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    ended: bool,
}

impl Running<'_> {
    /// Feeds its standard input; `close_stdin` ends it.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        bytes
            .chunks(BODY_MAX)
            .try_for_each(|chunk| self.agent.send(self.id, Kind::Stdin, chunk))
    }

    pub(crate) fn close_stdin(&self) -> Result<()> {
        self.agent.send(self.id, Kind::Stdin, &[])
    }

    /// Sends its process group a signal.
    pub(crate) fn signal(&self, number: u8) -> Result<()> {
        self.agent.send(self.id, Kind::Signal, &[number])
    }

    pub(crate) fn resize(&self, terminal: Terminal) -> Result<()> {
        self.agent.send(self.id, Kind::Resize, &terminal.to_bytes())
    }

    /// What it says next, waiting for at most `span`. Both outputs come as one.
    pub(crate) fn said(&mut self, span: Duration) -> Result<Said> {
        match self.events.recv_timeout(span) {
            Ok(Event::Output(_, bytes)) => Ok(Said::Output(bytes)),
            Ok(Event::End(end)) => {
                self.ended = true;
                Ok(Said::End(end))
            }
            Err(RecvTimeoutError::Timeout) => Ok(Said::Nothing),
            Err(RecvTimeoutError::Disconnected) => bail!("the guest went away"),
        }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It takes longer than `limit` (it is killed), the guest went away, or we were interrupted.
    pub(crate) fn wait(mut self, limit: Duration) -> Result<Output> {
        let limit = limit * self.agent.patience;
        match self.collect(limit)? {
            Some(end) => Ok(self.output(end)),
            None => {
                self.signal(SIGKILL)?;
                let killed = self.collect(PATIENCE * self.agent.patience)?;
                let what = match killed {
                    Some(_) => "was killed",
                    None => "cannot even be killed",
                };
                let end = killed.unwrap_or(End::Signal(i32::from(SIGKILL)));
                Err(anyhow!(
                    "it took longer than {} s and {what}: {}",
                    limit.as_secs(),
                    self.output(end)
                ))
            }
        }
    }

    fn output(&mut self, end: End) -> Output {
        Output {
            end,
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
        }
    }

    fn collect(&mut self, limit: Duration) -> Result<Option<End>> {
        let deadline = Instant::now() + limit;
        loop {
            interrupt::check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left.min(LOOK)) {
                Ok(Event::Output(Kind::Stderr, bytes)) => self.stderr.extend(bytes),
                Ok(Event::Output(_, bytes)) => self.stdout.extend(bytes),
                Ok(Event::End(end)) => {
                    self.ended = true;
                    return Ok(Some(end));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the guest went away"),
            }
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.signal(SIGKILL);
            locked(&self.agent.commands).remove(&self.id);
        }
    }
}

pub(crate) const SIGKILL: u8 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Agent, UnixStream) {
        let (host, guest) = UnixStream::pair().unwrap();
        (Agent::new(host, 1).unwrap(), guest)
    }

    fn answer(guest: &mut UnixStream, id: u32, kind: Kind, body: &[u8]) {
        let body = body.to_vec();
        Frame { id, kind, body }.write(guest).unwrap();
    }

    #[test]
    fn answers_of_two_commands_are_told_apart() {
        let (agent, mut guest) = pair();
        let one = agent.start(&["one"], None).unwrap();
        let two = agent.start(&["two"], None).unwrap();
        let ids = [(); 2].map(|()| Frame::read(&mut guest).unwrap().unwrap().id);
        answer(&mut guest, ids[1], Kind::Stdout, b"2");
        answer(&mut guest, ids[0], Kind::Stdout, b"1");
        answer(&mut guest, ids[0], Kind::Stderr, b"e");
        answer(&mut guest, ids[1], Kind::End, &End::Status(3).to_bytes());
        answer(&mut guest, ids[0], Kind::End, &End::Status(0).to_bytes());
        let (one, two) = (one.wait(PATIENCE).unwrap(), two.wait(PATIENCE).unwrap());
        assert_eq!(
            (one.text().as_str(), one.stderr.as_slice(), one.ok()),
            ("1", &b"e"[..], true)
        );
        assert_eq!((two.text().as_str(), two.end), ("2", End::Status(3)));
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed_and_what_it_said_is_shown() {
        let (agent, mut guest) = pair();
        let slow = agent.start(&["slow"], None).unwrap();
        let id = Frame::read(&mut guest).unwrap().unwrap().id;
        answer(&mut guest, id, Kind::Stdout, b"half way");
        let killer = std::thread::spawn(move || {
            let frame = Frame::read(&mut guest).unwrap().unwrap();
            answer(&mut guest, id, Kind::End, &End::Signal(9).to_bytes());
            (frame, guest)
        });
        let error = slow.wait(Duration::from_millis(10)).unwrap_err().to_string();
        assert!(
            error.contains("was killed") && error.contains("half way"),
            "{error}"
        );
        let (frame, _guest) = killer.join().unwrap();
        assert_eq!((frame.kind, frame.body.as_slice()), (Kind::Signal, &[9][..]));
    }

    #[test]
    fn a_command_without_input_is_told_that_there_is_none() {
        let (agent, mut guest) = pair();
        let running = agent.start_without_input(&["tail"]).unwrap();
        let frames = [(); 2].map(|()| Frame::read(&mut guest).unwrap().unwrap());
        let [start, end] = &frames;
        assert_eq!((start.kind, end.kind), (Kind::Start, Kind::Stdin));
        assert_eq!((end.id, end.body.len()), (start.id, 0));
        drop(running);
    }

    #[test]
    fn a_guest_that_goes_away_fails_what_runs_in_it() {
        let (agent, guest) = pair();
        let running = agent.start(&["x"], None).unwrap();
        drop(guest);
        let error = running.wait(PATIENCE).unwrap_err().to_string();
        assert!(error.contains("went away"), "{error}");
    }
}
