//! An agent on another host, reached over a network that is not the one under test.
//!
//! A message is two lengths (`u32`, little endian), a call or answer in JSON, and bytes. The first answers a greeting.

use std::cell::RefCell;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call::{Answer, Call, Failure};
use super::{Agent, Ask, MAX_REGION};

/// Said first by both sides; changes with the calls.
const GREETING: &[u8; 24] = b"usb4-conformance agent 1";

/// Longest call or answer without its bytes.
const MAX_JSON: usize = 1 << 16;

/// One end of a connection.
struct Stream {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Stream {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            reader: BufReader::new(stream.try_clone()?),
            writer: stream,
        })
    }

    /// Greets, and is greeted.
    fn greet(&mut self) -> Result<()> {
        self.writer.write_all(GREETING)?;
        let mut said = [0; GREETING.len()];
        self.reader.read_exact(&mut said)?;
        ensure!(
            &said == GREETING,
            "that is no usb4-conformance of the same version"
        );
        Ok(())
    }

    fn send(&mut self, message: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
        let json = serde_json::to_vec(message)?;
        let mut all = Vec::with_capacity(8 + json.len() + bytes.len());
        for len in [json.len(), bytes.len()] {
            let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
            all.extend_from_slice(&len.to_le_bytes());
        }
        all.extend_from_slice(&json);
        all.extend_from_slice(bytes);
        self.writer.write_all(&all)
    }

    /// The next message; its bytes go to `bytes`.
    fn receive<T: DeserializeOwned>(&mut self, bytes: &mut Vec<u8>) -> io::Result<T> {
        let json = self.len(MAX_JSON)?;
        let len = self.len(MAX_REGION)?;
        let mut text = vec![0; json];
        self.reader.read_exact(&mut text)?;
        bytes.resize(len, 0);
        self.reader.read_exact(bytes)?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn len(&mut self, most: usize) -> io::Result<usize> {
        let mut len = [0; 4];
        self.reader.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message of that length is none",
            ));
        }
        Ok(len)
    }
}

/// An agent on another host.
pub struct Remote(RefCell<Stream>);

impl Remote {
    /// Connects to a host that serves. What is made through it goes when it is dropped.
    ///
    /// # Errors
    ///
    /// Nobody serves there.
    pub fn connect(address: impl ToSocketAddrs) -> Result<Self> {
        let mut stream = Stream::new(TcpStream::connect(address)?)?;
        stream.greet()?;
        Ok(Self(RefCell::new(stream)))
    }
}

impl Ask for Remote {
    fn ask(&self, call: &Call, bytes: &[u8], out: &mut Vec<u8>) -> Result<Answer, Failure> {
        let stream = &mut *self.0.borrow_mut();
        let lost = |error| Failure::other(format_args!("the other host's agent: {error}"));
        stream.send(call, bytes).map_err(lost)?;
        match stream.receive(out).map_err(lost)? {
            Answer::Failed(failure) => Err(failure),
            answer => Ok(answer),
        }
    }
}

/// Is the agent of whoever connects to `address` until the process ends. They can do with this host's devices what the
/// ring API can: `address` is to be on a network of friends.
///
/// # Errors
///
/// Nobody can listen there.
pub fn serve(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, from) = listener.accept().context("accepting a connection")?;
        std::thread::spawn(move || {
            if let Err(error) = converse(stream) {
                eprintln!("usb4-conformance: {from}: {error:#}");
            }
        });
    }
}

/// One connection, to its end.
fn converse(stream: TcpStream) -> Result<()> {
    let mut stream = Stream::new(stream)?;
    stream.greet()?;
    let mut agent = Agent::default();
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    loop {
        let call = match stream.receive::<Call>(&mut bytes) {
            Ok(call) => call,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        out.clear();
        let answer = agent.serve(&call, &bytes, &mut out);
        if answer.is_err() {
            out.clear();
        }
        stream.send(&answer.unwrap_or_else(Answer::Failed), &out)?;
    }
}
