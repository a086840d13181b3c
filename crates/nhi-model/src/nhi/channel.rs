//! The control channel towards the host: packets waiting for ring 0, plug events waiting for acknowledgement.

use super::{Arrival, Controller, add, take};
use crate::control::{CONTROL_MAX, ControlPacket};
use crate::{Env, Event, Fate, Nanos, Place, Towards};

/// Control packets that may wait for the host. More are not made: ring 0 waits; those of peers are dropped.
const OUTGOING_MAX: usize = 64;
/// Plug events that may wait; the oldest are dropped.
const PLUGS_MAX: usize = 32;

/// A control packet on its way up.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pdf: u8,
    bytes: Vec<u8>,
}

/// A plug event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plug {
    /// Lane adapter.
    pub(crate) adapter: u32,
    pub(crate) unplug: bool,
    /// When it is sent again; None: not sent yet.
    pub(crate) resend: Option<Nanos>,
}

impl Controller {
    /// No more control packets can wait for this host.
    pub(crate) fn channel_full(&self) -> bool {
        self.outgoing.len() >= OUTGOING_MAX
    }

    /// Sends a packet of the router's own to the host.
    pub(crate) fn reply(&mut self, packet: &ControlPacket, now: Nanos, env: &mut dyn Env) {
        self.tell_host(packet.pdf, packet.encode(), now, env);
    }

    /// Queues a packet for ring 0; false if it was dropped.
    pub(crate) fn tell_host(&mut self, pdf: u8, bytes: Vec<u8>, now: Nanos, env: &mut dyn Env) -> bool {
        let [_, lose] = &mut self.lose_control;
        let fate = if take(lose) {
            Fate::Dropped("injected loss")
        } else if !self.listening() {
            Fate::Dropped("ring 0 not enabled")
        } else if self.channel_full() || bytes.len() > CONTROL_MAX {
            Fate::Dropped("the host does not take its control packets")
        } else {
            Fate::Passed
        };
        env.observe(
            now,
            &Event::Control {
                at: Place::ToHost(self.id),
                pdf,
                bytes: &bytes,
                fate,
            },
        );
        if fate != Fate::Passed {
            add(&mut self.counters.control_lost, 1);
            return false;
        }
        self.outgoing.push_back(Outgoing { pdf, bytes });
        self.flush_control(env);
        true
    }

    /// Moves waiting packets into buffers of ring 0.
    pub(crate) fn flush_control(&mut self, env: &mut dyn Env) {
        while let Some(packet) = self.outgoing.pop_front() {
            // Raw rings carry the packet type in EOF; Linux wants SOF to be 0.
            let arrival = Arrival {
                sof: 0,
                eof: packet.pdf,
                bytes: &packet.bytes,
                crc_error: false,
            };
            match self.put_frame(0, arrival, env) {
                Ok(_) => add(&mut self.counters.control_in, 1),
                Err(super::frames::NO_BUFFER) => {
                    self.outgoing.push_front(packet);
                    return;
                }
                Err(_) => add(&mut self.counters.control_lost, 1),
            }
        }
    }

    /// Whether the next packet from the host is lost to a fault.
    pub(crate) fn lose_from_host(&mut self) -> bool {
        let [lose, _] = &mut self.lose_control;
        take(lose)
    }

    /// Loses the next `count` packets one way.
    pub(crate) fn set_lose_control(&mut self, towards: Towards, count: u32) {
        let [router, host] = &mut self.lose_control;
        match towards {
            Towards::Router => *router = count,
            Towards::Host => *host = count,
        }
    }

    pub(crate) fn queue_plug(&mut self, adapter: u32, unplug: bool) {
        if self.plugs.len() >= PLUGS_MAX {
            self.plugs.pop_front();
        }
        self.plugs.push_back(Plug {
            adapter,
            unplug,
            resend: None,
        });
    }
}
