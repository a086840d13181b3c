//! The other side: in this process, or on another host, over TCP.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context as _, Result, bail};

use crate::context::Gid;
use crate::party::{Completion, Party, Place, Reply, Request};
use crate::states::Kind;

/// One.
pub(crate) enum Peer {
    Here(Box<Party>),
    There(BufReader<TcpStream>),
}

impl Peer {
    pub(crate) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self::There(BufReader::new(stream)))
    }

    fn ask(&mut self, request: &Request) -> Result<Reply> {
        let reply = match self {
            Peer::Here(party) => party.handle(request),
            Peer::There(stream) => {
                say(stream.get_mut(), request)?;
                let mut line = String::new();
                if stream.read_line(&mut line)? == 0 {
                    bail!("the peer is gone");
                }
                serde_json::from_str(&line).context("the peer says nonsense")?
            }
        };
        match reply {
            Reply::Failed(why) => bail!("the peer, asked for {request:?}: {why}"),
            reply => Ok(reply),
        }
    }

    pub(crate) fn make(&mut self, kind: Kind, access: u32) -> Result<Place> {
        match self.ask(&Request::Make { kind, access })? {
            Reply::Made(place) => Ok(place),
            other => bail!("{other:?}"),
        }
    }

    pub(crate) fn connect_to(&mut self, gid: Gid, number: u32) -> Result<()> {
        self.done(&Request::Connect { gid, number })
    }

    /// Something without an answer.
    pub(crate) fn done(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            other => bail!("{other:?}"),
        }
    }

    /// Something that ends with a completion.
    pub(crate) fn completion(&mut self, request: &Request) -> Result<Completion> {
        match self.ask(request)? {
            Reply::Completion(completion) => Ok(completion),
            other => bail!("{other:?}"),
        }
    }

    /// Something that is answered with a number.
    pub(crate) fn number(&mut self, request: &Request) -> Result<u64> {
        match self.ask(request)? {
            Reply::Word(value) => Ok(value),
            Reply::State(state) => Ok(u64::from(state)),
            other => bail!("{other:?}"),
        }
    }
}

fn say(stream: &mut TcpStream, what: &impl serde::Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

/// Is the other side, for one after the other, without end.
pub(crate) fn serve(device: &str, address: &str) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_nodelay(true)?;
        let mut party = Party::new(device)?;
        let reader = BufReader::new(stream.try_clone()?);
        for line in reader.lines() {
            let Ok(line) = line else { break };
            let request = serde_json::from_str(&line).context("nonsense")?;
            let reply = party.handle(&request);
            if say(&mut stream, &reply).is_err() {
                break;
            }
        }
    }
    Ok(())
}
