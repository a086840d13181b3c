//! The other side, over TCP.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What sides say: something, or why there is nothing.
#[derive(Serialize, Deserialize)]
enum Line<T> {
    Said(T),
    Failed(String),
}

pub(crate) struct Peer {
    stream: BufReader<TcpStream>,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    fn put<T: Serialize>(&mut self, line: &Line<T>) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        Ok(self.stream.get_mut().write_all(&bytes)?)
    }

    pub(crate) fn say<T: Serialize>(&mut self, what: T) -> Result<()> {
        self.put(&Line::Said(what))
    }

    /// Says that there is nothing more to come.
    pub(crate) fn fail(&mut self, why: &anyhow::Error) {
        // It may have said the same, and be gone.
        let _ = self.put::<()>(&Line::Failed(format!("{why:#}")));
    }

    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the other side is gone");
        }
        match serde_json::from_str(&line).context("the other side says nonsense")? {
            Line::Said(what) => Ok(what),
            Line::Failed(why) => bail!("the other side: {why}"),
        }
    }

    /// Both sides say something of the same kind.
    pub(crate) fn exchange<T: Serialize + DeserializeOwned>(&mut self, what: T) -> Result<T> {
        self.say(what)?;
        self.hear()
    }
}
