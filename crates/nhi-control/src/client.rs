//! The client's end of the control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Request;

/// Name of the socket that takes any request.
pub const CONTROL_SOCKET: &str = "ctl.sock";
/// Name of the socket that takes only `mark` requests and answers nothing: what a guest's serial port may be joined to.
pub const MARK_SOCKET: &str = "mark.sock";

/// Nothing the emulator is asked for takes it longer than a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to an emulator.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no emulator at {path}: {error}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A path the line cannot carry.
    #[error("{0:?} has blanks in it")]
    Blanks(String),
    /// The emulator has gone.
    #[error("the emulator closed the connection")]
    Closed,
    /// The connection broke.
    #[error("the emulator does not answer: {0}")]
    Io(#[from] io::Error),
}

impl Client {
    /// Connects to the emulator whose sockets are in `dir`.
    pub fn connect(dir: &Path) -> Result<Self, ClientError> {
        let path = dir.join(CONTROL_SOCKET);
        let stream = UnixStream::connect(&path).map_err(|error| ClientError::Connect { path, error })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Puts a request and waits for the answer, a line of JSON.
    pub fn ask(&mut self, request: &Request) -> Result<String, ClientError> {
        let line = request.to_string();
        // A path is the only word that could hold any: it would come apart on the other side.
        if line.parse().as_ref() != Ok(request) {
            return Err(ClientError::Blanks(line));
        }
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 || !answer.ends_with('\n') {
            return Err(ClientError::Closed);
        }
        answer.truncate(answer.trim_end().len());
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Capture;

    fn pair() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let stream = BufReader::new(ours);
        (Client { stream }, theirs)
    }

    #[test]
    fn a_request_is_a_line_and_so_is_its_answer() {
        let (mut client, mut server) = pair();
        server.write_all(b"{\"ok\":true}\n").unwrap();
        assert_eq!(client.ask(&Request::Stats).unwrap(), "{\"ok\":true}");
        let mut line = String::new();
        BufReader::new(server).read_line(&mut line).unwrap();
        assert_eq!(line, "stats\n");
    }

    #[test]
    fn half_an_answer_is_none() {
        let (mut client, mut server) = pair();
        server.write_all(b"{\"ok\":").unwrap();
        drop(server);
        assert!(matches!(
            client.ask(&Request::Stats),
            Err(ClientError::Closed | ClientError::Io(_))
        ));
    }

    #[test]
    fn a_path_with_blanks_is_not_sent() {
        let (mut client, _server) = pair();
        let start = Request::Capture(Capture::Start {
            file: "/tmp/a b".into(),
            all: false,
        });
        assert!(matches!(client.ask(&start), Err(ClientError::Blanks(_))));
    }
}
