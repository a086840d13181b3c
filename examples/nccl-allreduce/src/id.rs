//! All ranks get the id that rank 0 has made, over TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::launcher::Place;
use crate::nccl::Id;

/// Ranks may be started one after the other.
const PATIENCE: Duration = Duration::from_secs(120);

/// The id, the same on every rank.
///
/// # Errors
///
/// When rank 0 cannot be reached, or not all of the others come.
pub(crate) fn agree(place: &Place, root: &str, make: impl FnOnce() -> Result<Id>) -> Result<Id> {
    if place.rank != 0 {
        return ask(root);
    }
    let id = make()?;
    if place.ranks > 1 {
        let port = root.rsplit(':').next().unwrap_or_default();
        let listener =
            TcpListener::bind(format!("0.0.0.0:{port}")).with_context(|| format!("listen on port {port}"))?;
        give(&listener, &id, place.ranks - 1)?;
    }
    Ok(id)
}

fn give(listener: &TcpListener, id: &Id, times: usize) -> Result<()> {
    listener.set_nonblocking(true).context("wait for ranks")?;
    let start = Instant::now();
    let mut given = 0;
    while given < times {
        match listener.accept() {
            Ok((mut rank, _)) => {
                rank.set_nonblocking(false).context("give a rank the id")?;
                given += usize::from(rank.write_all(id).is_ok());
            }
            Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            Err(_) => bail!("{} of {times} other ranks have not come", times - given),
        }
    }
    Ok(())
}

fn ask(root: &str) -> Result<Id> {
    let start = Instant::now();
    let mut rank0 = loop {
        match TcpStream::connect(root) {
            Ok(stream) => break stream,
            Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error).with_context(|| format!("reach rank 0 at {root}")),
        }
    };
    let mut id = [0; 128];
    rank0
        .read_exact(&mut id)
        .with_context(|| format!("hear from rank 0 at {root}"))?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_the_id() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = listener.local_addr().unwrap().to_string();
        let id = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let ranks: Vec<_> = (0..3)
            .map(|_| {
                let root = root.clone();
                std::thread::spawn(move || ask(&root).unwrap())
            })
            .collect();
        give(&listener, &id, 3).unwrap();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), id);
        }
    }
}
