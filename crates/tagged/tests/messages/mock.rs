//! A network of endpoints in one thread. Messages of one pair and lane stay in order; which pair moves next, and when
//! a sender hears of it, the test decides. Payloads are read when they are delivered, as a device does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    dead_code
)]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use usb4_tagged::{
    Arrival, Control, Done, Failure, HEADER_LEN, HeaderWords, Lanes, PeerId, PostError, Remote, Segment,
    Transport,
};

/// Messages that need a receive slot, or the control lane.
type Lane = bool;

const MESSAGES: Lane = false;
const CONTROL: Lane = true;

enum Flight {
    Send {
        header: HeaderWords,
        payload: Segment,
        cookie: u64,
    },
    Read {
        remote: Remote,
        into: Segment,
        cookie: u64,
    },
}

#[derive(Default)]
struct Port {
    posted: VecDeque<u32>,
    staged: Vec<u32>,
    arrivals: VecDeque<Arrival>,
    done: VecDeque<Done>,
    control: VecDeque<Control>,
    control_done: VecDeque<Done>,
    slots: Vec<Box<[u8]>>,
    dead: bool,
}

pub(crate) struct Net {
    ports: Vec<Port>,
    staged: Vec<(u32, u32, Flight)>,
    flights: HashMap<(u32, u32, Lane), VecDeque<Flight>>,
    exposed: HashMap<u64, Segment>,
    next_key: u64,
    /// What may be outstanding on a lane.
    pub(crate) depth: usize,
    /// Most bytes of a read.
    pub(crate) read_max: u64,
}

impl Net {
    pub(crate) fn new(ports: usize, slots: u32, slot_size: usize) -> Rc<RefCell<Self>> {
        let port = |_| Port {
            slots: (0..slots)
                .map(|_| vec![0; slot_size].into_boxed_slice())
                .collect(),
            ..Port::default()
        };
        Rc::new(RefCell::new(Self {
            ports: (0..ports).map(port).collect(),
            staged: Vec::new(),
            flights: HashMap::new(),
            exposed: HashMap::new(),
            next_key: 1,
            depth: 64,
            read_max: u64::MAX,
        }))
    }

    pub(crate) fn exposed(&self) -> usize {
        self.exposed.len()
    }

    fn outstanding(&self, lane: Lane) -> usize {
        let flights = self.flights.iter().filter(|flight| flight.0.2 == lane);
        let staged = if lane == MESSAGES { self.staged.len() } else { 0 };
        staged + flights.map(|flight| flight.1.len()).sum::<usize>()
    }

    fn post_control(&mut self, from: u32, to: PeerId, flight: Flight) -> Result<(), PostError> {
        if self.outstanding(CONTROL) >= self.depth {
            return Err(PostError::Full);
        }
        let flights = self.flights.entry((from, to.0, CONTROL)).or_default();
        flights.push_back(flight);
        Ok(())
    }

    fn finish(&mut self, at: u32, lane: Lane, done: Done) {
        let port = &mut self.ports[at as usize];
        let queue = if lane == MESSAGES {
            &mut port.done
        } else {
            &mut port.control_done
        };
        queue.push_back(done);
    }

    /// All later traffic to and from `port` fails.
    pub(crate) fn kill(&mut self, port: u32) {
        self.ports[port as usize].dead = true;
        self.exposed.clear();
    }

    /// The link between two ports drops and is back at once: what is on its way is lost, and its senders hear of it.
    pub(crate) fn cut(&mut self, a: u32, b: u32) {
        for (from, to, lane) in [
            (a, b, MESSAGES),
            (b, a, MESSAGES),
            (a, b, CONTROL),
            (b, a, CONTROL),
        ] {
            for flight in self.flights.remove(&(from, to, lane)).unwrap_or_default() {
                let (Flight::Send { cookie, .. } | Flight::Read { cookie, .. }) = flight;
                let result = Err(Failure::PeerLost);
                self.finish(from, lane, Done { cookie, result });
            }
        }
    }

    /// Messages and reads on their way from one port to another.
    pub(crate) fn in_flight(&self, from: u32, to: u32) -> usize {
        let lane = |lane| self.flights.get(&(from, to, lane)).map_or(0, VecDeque::len);
        lane(MESSAGES) + lane(CONTROL)
    }

    /// Moves one message of the `choice`-th pair that has any; false if nothing can move.
    pub(crate) fn step(&mut self, choice: usize) -> bool {
        let mut pairs: Vec<(u32, u32, Lane)> = self
            .flights
            .iter()
            .filter(|f| !f.1.is_empty())
            .map(|f| *f.0)
            .collect();
        pairs.sort_unstable();
        for offset in 0..pairs.len() {
            if self.deliver(pairs[(choice + offset) % pairs.len()]) {
                return true;
            }
        }
        false
    }

    fn deliver(&mut self, pair: (u32, u32, Lane)) -> bool {
        let (from, to, lane) = pair;
        let dead = self.ports[to as usize].dead || self.ports[from as usize].dead;
        let flight = self.flights.get_mut(&pair).unwrap();
        if !dead && lane == MESSAGES && self.ports[to as usize].posted.is_empty() {
            return false;
        }
        match flight.pop_front().unwrap() {
            Flight::Send { cookie, .. } | Flight::Read { cookie, .. } if dead => {
                let result = Err(Failure::PeerLost);
                self.finish(from, lane, Done { cookie, result });
            }
            Flight::Send { header, cookie, .. } if lane == CONTROL => {
                let mut bytes = [0; HEADER_LEN];
                for (bytes, word) in bytes.chunks_exact_mut(8).zip(header) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
                let message = Control {
                    bytes,
                    from: PeerId(from),
                };
                self.ports[to as usize].control.push_back(message);
                let result = Ok(());
                self.finish(from, lane, Done { cookie, result });
            }
            Flight::Send {
                header,
                payload,
                cookie,
            } => {
                let port = &mut self.ports[to as usize];
                let slot = port.posted.pop_front().unwrap();
                let memory = &mut port.slots[slot as usize];
                for (bytes, word) in memory[..HEADER_LEN].chunks_exact_mut(8).zip(header) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
                let len = payload.len as usize;
                if len > 0 {
                    // SAFETY: the sender promised that the payload is readable until completion.
                    let bytes = unsafe { std::slice::from_raw_parts(payload.addr as *const u8, len) };
                    memory[HEADER_LEN..HEADER_LEN + len].copy_from_slice(bytes);
                }
                let len = (HEADER_LEN + len) as u32;
                port.arrivals.push_back(Arrival::Message {
                    slot,
                    len,
                    from: PeerId(from),
                });
                self.ports[from as usize].done.push_back(Done {
                    cookie,
                    result: Ok(()),
                });
            }
            Flight::Read { remote, into, cookie } => {
                let result = match self.exposed.get(&remote.key) {
                    Some(memory)
                        if remote.addr >= memory.addr
                            && remote.addr + into.len <= memory.addr + memory.len =>
                    {
                        // SAFETY: exposed memory is readable, and the reader promised `into`.
                        unsafe {
                            std::ptr::copy_nonoverlapping(
                                remote.addr as *const u8,
                                into.addr as *mut u8,
                                into.len as usize,
                            );
                        }
                        Ok(())
                    }
                    _ => Err(Failure::Access),
                };
                self.finish(from, lane, Done { cookie, result });
            }
        }
        true
    }
}

pub(crate) struct Wire {
    net: Rc<RefCell<Net>>,
    me: u32,
}

impl Wire {
    pub(crate) fn new(net: &Rc<RefCell<Net>>, me: u32) -> Self {
        Self { net: net.clone(), me }
    }
}

pub(crate) struct Exposure {
    net: Rc<RefCell<Net>>,
    remote: Remote,
}

impl Drop for Exposure {
    fn drop(&mut self) {
        self.net.borrow_mut().exposed.remove(&self.remote.key);
    }
}

impl Transport for Wire {
    type Exposed = Exposure;

    fn slots(&self) -> u32 {
        self.net.borrow().ports[self.me as usize].slots.len() as u32
    }

    fn slot_size(&self) -> u32 {
        self.net.borrow().ports[self.me as usize].slots[0].len() as u32
    }

    fn slot(&self, slot: u32, len: u32) -> &[u8] {
        let net = self.net.borrow();
        let memory = &net.ports[self.me as usize].slots[slot as usize][..len as usize];
        // SAFETY: slots are boxed and live as long as the network; a slot that is not posted is not written.
        unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) }
    }

    fn post_slot(&mut self, slot: u32) -> Result<(), PostError> {
        self.net.borrow_mut().ports[self.me as usize].staged.push(slot);
        Ok(())
    }

    unsafe fn send(
        &mut self,
        to: PeerId,
        header: HeaderWords,
        payload: Segment,
        cookie: u64,
    ) -> Result<(), PostError> {
        let mut net = self.net.borrow_mut();
        if net.outstanding(MESSAGES) >= net.depth {
            return Err(PostError::Full);
        }
        net.staged.push((
            self.me,
            to.0,
            Flight::Send {
                header,
                payload,
                cookie,
            },
        ));
        Ok(())
    }

    unsafe fn read(
        &mut self,
        from: PeerId,
        remote: Remote,
        into: Segment,
        cookie: u64,
    ) -> Result<u64, PostError> {
        let mut net = self.net.borrow_mut();
        let len = into.len.min(net.read_max);
        let into = Segment { len, ..into };
        net.post_control(self.me, from, Flight::Read { remote, into, cookie })?;
        Ok(len)
    }

    unsafe fn expose(&mut self, memory: Segment) -> Result<Exposure, PostError> {
        let mut net = self.net.borrow_mut();
        let key = net.next_key;
        net.next_key += 1;
        net.exposed.insert(key, memory);
        Ok(Exposure {
            net: self.net.clone(),
            remote: Remote {
                addr: memory.addr,
                key,
            },
        })
    }

    fn remote(exposed: &Exposure) -> Remote {
        exposed.remote
    }

    fn submit(&mut self) {
        let mut net = self.net.borrow_mut();
        let me = self.me;
        let slots = std::mem::take(&mut net.ports[me as usize].staged);
        net.ports[me as usize].posted.extend(slots);
        let (mine, others) = std::mem::take(&mut net.staged)
            .into_iter()
            .partition(|s| s.0 == me);
        net.staged = others;
        let mine: Vec<(u32, u32, Flight)> = mine;
        for (from, to, flight) in mine {
            net.flights
                .entry((from, to, MESSAGES))
                .or_default()
                .push_back(flight);
        }
    }

    fn drive(&mut self) -> bool {
        false
    }

    fn has_events(&mut self) -> bool {
        let net = self.net.borrow();
        let port = &net.ports[self.me as usize];
        !port.arrivals.is_empty() || !port.done.is_empty()
    }

    fn arrival(&mut self) -> Option<Arrival> {
        self.net.borrow_mut().ports[self.me as usize].arrivals.pop_front()
    }

    fn done(&mut self) -> Option<Done> {
        self.net.borrow_mut().ports[self.me as usize].done.pop_front()
    }
}

impl Lanes for Wire {
    fn lane(&self) -> u64 {
        u64::from(self.me)
    }

    fn introduce(&mut self, peer: PeerId, lane: u64) {
        assert_eq!(u64::from(peer.0), lane);
    }

    fn send_control(&mut self, to: PeerId, header: HeaderWords, cookie: u64) -> Result<(), PostError> {
        let payload = Segment::EMPTY;
        let flight = Flight::Send {
            header,
            payload,
            cookie,
        };
        self.net.borrow_mut().post_control(self.me, to, flight)
    }

    fn has_control(&mut self) -> bool {
        let net = self.net.borrow();
        let port = &net.ports[self.me as usize];
        !port.control.is_empty() || !port.control_done.is_empty()
    }

    fn control(&mut self) -> Option<Control> {
        self.net.borrow_mut().ports[self.me as usize].control.pop_front()
    }

    fn control_done(&mut self) -> Option<Done> {
        self.net.borrow_mut().ports[self.me as usize]
            .control_done
            .pop_front()
    }
}
