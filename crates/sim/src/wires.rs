//! Between the rings: what NICs and cables do on their own.

use crate::cable::Frame;
use crate::home::tag_of;
use crate::nic::Descriptor;
use crate::queue::Event;
use crate::world::World;
use usb4_engine::Nanos;

impl World {
    /// The host has written a descriptor at its own time `when` and rung the doorbell.
    pub(crate) fn post_tx(&mut self, port: usize, descriptor: Descriptor) {
        let faults = self.directions[port].faults;
        let ring = usize::from(self.profile.ring);
        let p = &mut self.ports[port];
        if p.tx.used() >= ring {
            self.violations.push(format!("port {port}: TX ring overrun"));
            return;
        }
        let when = descriptor.posted;
        let idle = !p.tx.busy;
        p.tx.queue.push_back(descriptor);
        if !idle {
            return;
        }
        if p.rng.chance(faults.ignored_doorbell) {
            p.counters.ignored_doorbells += 1;
            if !std::mem::replace(&mut p.rekick_pending, true) {
                self.queue
                    .at(when + self.profile.costs.fallback, Event::Rekick { port });
            }
            return;
        }
        self.start_tx(port);
    }

    /// The watchdog found a ring that does not move.
    pub(crate) fn rekick(&mut self, port: usize) {
        self.ports[port].rekick_pending = false;
        if !self.ports[port].tx.busy {
            self.start_tx(port);
        }
    }

    fn start_tx(&mut self, port: usize) {
        let faults = self.directions[port].faults;
        let now = self.queue.now();
        let p = &mut self.ports[port];
        let Some(&Descriptor { len, posted, .. }) = p.tx.queue.front() else {
            return;
        };
        if p.tx.wedged {
            return;
        }
        if p.rng.chance(faults.tx_stall) {
            p.counters.tx_stalls += 1;
            p.tx.stalled_until = now + p.rng.below(faults.stall);
        }
        p.tx.busy = true;
        let start = now.max(posted).max(p.tx.stalled_until);
        let end = start + self.directions[port].wire_time(len);
        let epoch = p.epoch;
        self.queue.at(end, Event::TxDone { port, epoch });
    }

    /// The NIC has read the frame out of the host's memory and put it on the cable.
    pub(crate) fn tx_done(&mut self, port: usize, epoch: u32) {
        let now = self.queue.now();
        let p = &mut self.ports[port];
        if p.epoch != epoch {
            return;
        }
        p.tx.busy = false;
        let Some(Descriptor { slot, len, .. }) = p.tx.queue.pop_front() else {
            return;
        };
        let Some(link) = p.link else { return };
        let frame = {
            let bytes = self.links[link].slot(slot);
            self.pool.frame(&bytes[..usize::from(len)])
        };
        self.transmit(port, frame);
        let faults = self.directions[port].faults;
        let p = &mut self.ports[port];
        if !p.tx.hidden.is_empty() {
            p.tx.hidden.push_back(slot);
        } else if p.rng.chance(faults.stranded) {
            p.counters.stranded += 1;
            p.tx.hidden.push_back(slot);
            self.queue
                .at(now + self.profile.costs.fallback, Event::Unstrand { port });
        } else {
            p.tx.done.push_back(slot);
            self.notify_tx(port);
        }
        self.start_tx(port);
    }

    /// The fallback timer sees completions that were never announced.
    pub(crate) fn unstrand(&mut self, port: usize) {
        let p = &mut self.ports[port];
        let hidden = std::mem::take(&mut p.tx.hidden);
        p.tx.done.extend(hidden);
        self.notify_tx(port);
    }

    /// Puts a frame on the cable out of `port`, faults and all.
    pub(crate) fn transmit(&mut self, port: usize, frame: Frame) {
        let peer = port ^ 1;
        if let Some(tap) = &mut self.ports[port].tap {
            tap.push(frame.bytes[..usize::from(frame.len)].to_vec());
        }
        if !self.ports[port].plugged {
            self.pool.give(frame.bytes);
            return;
        }
        if !self.ports[peer].path_up {
            self.ports[port].tx.wedged = true;
            self.ports[peer].counters.into_the_void += 1;
            if !self.ports[peer].forgetful {
                self.violations
                    .push(format!("port {port}: data into an absent path wedges the rail"));
            }
            self.pool.give(frame.bytes);
            return;
        }
        let (now, payload_crc) = (self.queue.now(), self.payload_crc);
        let arrivals = self.directions[port].send(now, frame, payload_crc, &mut self.pool);
        let flying = &self.directions[port].flying;
        for (when, _) in flying.iter().skip(flying.len() - arrivals) {
            self.queue.at(*when, Event::Arrive { port: peer });
        }
    }

    /// A frame reaches the port's RX ring.
    pub(crate) fn arrive(&mut self, port: usize) {
        let now = self.queue.now();
        let flying = &mut self.directions[port ^ 1].flying;
        // Each frame has its own event; what is not due yet was sent after the cable lost this event's frame.
        if flying.front().is_none_or(|(when, _)| *when > now) {
            return;
        }
        let Some((_, frame)) = flying.pop_front() else {
            return;
        };
        let p = &mut self.ports[port];
        if p.path_up && p.rx.free == 0 && p.link.is_none() {
            // No session yet, or none any more: the home only keeps the ring going.
            if let Some((_, oldest)) = p.rx.ready.pop_front() {
                p.rx.free += 1;
                self.pool.give(oldest.bytes);
            }
        }
        if !p.path_up {
            p.counters.into_the_void += 1;
            self.pool.give(frame.bytes);
        } else if p.rx.free == 0 {
            p.counters.overruns += 1;
            self.pool.give(frame.bytes);
        } else {
            p.rx.free -= 1;
            let tag = tag_of(&frame);
            p.rx.ready.push_back((now, frame));
            match p.link {
                Some(_) => self.notify_rx(port),
                None => self.unknown_tag(port, tag),
            }
        }
    }

    /// A frame has come: the thread polls, or is woken by an interrupt, or (that lost) by the fallback timer.
    fn notify_rx(&mut self, port: usize) {
        let Some(link) = self.ports[port].link else { return };
        let now = self.queue.now();
        if now < self.links[link].polling_until {
            self.request_service(link, now);
        } else {
            self.interrupt(port, link);
        }
    }

    /// A descriptor was consumed. The polling thread comes round to TX rings every few microseconds.
    fn notify_tx(&mut self, port: usize) {
        const ROUND: Nanos = 2_000;
        let Some(link) = self.ports[port].link else { return };
        let now = self.queue.now();
        if now < self.links[link].polling_until {
            self.request_service(link, now + ROUND);
        } else {
            self.interrupt(port, link);
        }
    }

    fn interrupt(&mut self, port: usize, link: usize) {
        let faults = self.directions[port].faults;
        let (moderation, costs) = (self.profile.moderation, self.profile.costs);
        let now = self.queue.now();
        let p = &mut self.ports[port];
        if std::mem::replace(&mut p.irq_pending, true) {
            return;
        }
        let delay = if p.rng.chance(faults.lost_irq) {
            p.counters.lost_irqs += 1;
            p.rng.below(costs.fallback)
        } else {
            p.counters.irqs += 1;
            p.rng.below(moderation + 1)
        };
        self.request_service(link, now + delay + costs.wake);
    }
}
