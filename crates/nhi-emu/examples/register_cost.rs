//! What a register access costs the emulator, and the client that makes it.
//!
//!     usb4-nhi-emu --dir DIR & cargo run --release -p usb4-nhi-emu --example register_cost DIR
//!
//! Talks to controller 0 as QEMU does: posted writes one message each, or as many as fit in one; reads one by one. Prints
//! nanoseconds per access: as the client sees them, and of the emulator's processor time, which other work on the machine
//! disturbs less.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};

const VERSION: u16 = 1;
const READ: u16 = 9;
const WRITE: u16 = 10;
const WRITE_MULTI: u16 = 15;
const NO_REPLY: u32 = 1 << 4;
/// Doorbell of TX ring 1, which is not running, and the capability register.
const DOORBELL: u64 = 0x18;
const CAPABILITIES: u64 = 0x39640;
/// Most writes QEMU puts into one message.
const MULTI: u64 = 200;

fn main() -> Result<()> {
    let dir: PathBuf = std::env::args_os()
        .nth(1)
        .context("usage: register_cost DIR")?
        .into();
    let mut client = Client::connect(dir.join("nhi0.sock"))?;
    client.measure("write, posted one by one", 400_000, |client, index| {
        let body = [
            &DOORBELL.to_le_bytes()[..],
            &words(&[0, 4, u32::try_from(index & 0xff)? << 16]),
        ]
        .concat();
        client.send(WRITE, NO_REPLY, &body)
    })?;
    client.measure("write, 200 in a message", 400_000, |client, index| {
        if index % MULTI != 0 {
            return Ok(());
        }
        let entry = [&DOORBELL.to_le_bytes()[..], &words(&[0, 4, 1 << 16, 0])].concat();
        let entries = entry.repeat(usize::try_from(MULTI)?);
        client.send(
            WRITE_MULTI,
            NO_REPLY,
            &[&MULTI.to_le_bytes()[..], &entries].concat(),
        )
    })?;
    client.measure("read", 100_000, |client, _| client.read_register())
}

struct Client {
    socket: UnixStream,
    emulator: u32,
}

impl Client {
    fn connect(path: PathBuf) -> Result<Self> {
        let socket = UnixStream::connect(&path).with_context(|| path.display().to_string())?;
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        let emulator = u32::try_from(peer.pid.as_raw_nonzero().get())?;
        let mut client = Self { socket, emulator };
        client.send(VERSION, 0, &[0; 4])?;
        client.reply()?;
        Ok(client)
    }

    fn measure(
        &mut self,
        name: &str,
        count: u64,
        mut access: impl FnMut(&mut Self, u64) -> Result<()>,
    ) -> Result<()> {
        self.read_register()?;
        let (start, cpu) = (Instant::now(), self.processor_time()?);
        for index in 0..count {
            access(self, index)?;
        }
        // Answered after everything before it.
        self.read_register()?;
        let wall = u64::try_from(start.elapsed().as_nanos())?;
        let cpu = self.processor_time()?.saturating_sub(cpu);
        println!(
            "{name:<25} {:>7} ns, emulator {:>7} ns",
            wall / count,
            cpu / count
        );
        Ok(())
    }

    /// Of the emulator's first thread and all others, nanoseconds.
    fn processor_time(&self) -> Result<u64> {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.emulator))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            sum += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(sum)
    }

    fn read_register(&mut self) -> Result<()> {
        let body = [&CAPABILITIES.to_le_bytes()[..], &words(&[0, 4])].concat();
        self.send(READ, 0, &body)?;
        self.reply()
    }

    fn send(&mut self, command: u16, flags: u32, body: &[u8]) -> Result<()> {
        let size = u32::try_from(16 + body.len())?;
        let mut message = [0, 0].to_vec();
        message.extend_from_slice(&command.to_le_bytes());
        message.extend_from_slice(&words(&[size, flags, 0]));
        message.extend_from_slice(body);
        Ok(self.socket.write_all(&message)?)
    }

    fn reply(&mut self) -> Result<()> {
        let mut head = [0; 16];
        self.socket.read_exact(&mut head)?;
        let [.., s0, s1, s2, s3, f0, _, _, _, _, _, _, _] = head;
        if f0 & 0x20 != 0 {
            bail!("the emulator refuses an access");
        }
        let mut body = vec![0; usize::try_from(u32::from_le_bytes([s0, s1, s2, s3]))? - head.len()];
        Ok(self.socket.read_exact(&mut body)?)
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
