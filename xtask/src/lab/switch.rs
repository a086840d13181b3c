//! The out-of-band network between guests: an Ethernet switch that sends every frame to all others.
//!
//! It carries what must not cross the USB4 cable, such as perftest's handshake. A guest that does not take its frames
//! (asleep, or not yet up) loses them, as on any network.

use anyhow::{Context, Result};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, recv, sendto};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest Ethernet frame with VLAN tag; guests' MTU is 1500.
const FRAME: usize = 2048;

/// The sockets of the switch. They live as long as their threads, which end when the run does.
pub(crate) struct Switch {
    ports: Vec<(PathBuf, PathBuf)>,
    sockets: Arc<[(UnixDatagram, SocketAddrUnix)]>,
}

impl Switch {
    /// A switch with `guests` ports, its sockets in `folder`.
    pub(crate) fn start(folder: &Path, guests: usize) -> Result<Switch> {
        let ports: Vec<(PathBuf, PathBuf)> = (0..guests)
            .map(|guest| {
                (
                    folder.join(format!("net{guest}")),
                    folder.join(format!("port{guest}")),
                )
            })
            .collect();
        let bind = |(own, port): &(PathBuf, PathBuf)| -> Result<(UnixDatagram, SocketAddrUnix)> {
            let socket = UnixDatagram::bind(port).context("bind a port of the network")?;
            Ok((
                socket,
                SocketAddrUnix::new(own).context("name a port of the network")?,
            ))
        };
        let sockets: Arc<[_]> = ports.iter().map(bind).collect::<Result<_>>()?;
        for guest in 0..guests {
            let sockets = Arc::clone(&sockets);
            std::thread::spawn(move || forward(&sockets, guest));
        }
        Ok(Switch { ports, sockets })
    }

    /// A guest's own socket and the one it sends to.
    pub(crate) fn port(&self, guest: usize) -> (PathBuf, PathBuf) {
        self.ports.get(guest).cloned().unwrap_or_default()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for (socket, _) in self.sockets.iter() {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Sends on what `guest` sends. Each frame leaves by the port of the guest it is for, as who has connected its socket
/// takes no other's.
fn forward(sockets: &[(UnixDatagram, SocketAddrUnix)], guest: usize) {
    let mut frame = [0; FRAME];
    let Some((from, _)) = sockets.get(guest) else {
        return;
    };
    // No frame is empty: that is the end.
    while let Ok((_, len @ 1..)) = recv(from, &mut frame, RecvFlags::empty()) {
        let bytes = frame.get(..len).unwrap_or_default();
        for (_, (socket, address)) in sockets.iter().enumerate().filter(|(other, _)| *other != guest) {
            let _ = sendto(socket, bytes, SendFlags::DONTWAIT, address);
        }
    }
}

/// The address of a guest on this network.
pub(crate) fn address(guest: usize) -> String {
    format!("10.99.0.{}", guest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reaches_all_others_and_not_its_sender() {
        let folder = super::super::folder::Folder::create().unwrap();
        let switch = Switch::start(folder.path(), 3).unwrap();
        let guests: Vec<UnixDatagram> = (0..3)
            .map(|guest| {
                let (own, other) = switch.port(guest);
                let socket = UnixDatagram::bind(own).unwrap();
                socket.connect(other).unwrap();
                socket
                    .set_read_timeout(Some(std::time::Duration::from_secs(20)))
                    .unwrap();
                socket
            })
            .collect();
        guests[1].send(b"hello").unwrap();
        let mut frame = [0; 16];
        for guest in [0, 2] {
            assert_eq!(guests[guest].recv(&mut frame).unwrap(), 5);
        }
        guests[0].send(b"back").unwrap();
        assert_eq!(
            guests[1].recv(&mut frame).unwrap(),
            4,
            "the sender got its own frame"
        );
        assert_eq!(address(0), "10.99.0.1");
    }
}
