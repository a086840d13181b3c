//! Flows opened and closed in quick succession, under loss and while rails come and go: what is told to the sender agrees
//! with what the receiver saw, nothing arrives twice or on the wrong flow, and nothing is left at the end.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

use usb4_engine::{Operation, Status};
use usb4_sim::{Access, Endpoint, Faults, Flow, MS, Profile, Region, Rng, SEC, US, World, seeds};

const EPS: usize = 3;
const SLOTS: u64 = 256;
const SLOT: u32 = 9_000;

/// One life of a flow.
struct Life {
    flow: Flow,
    to: usize,
    open: bool,
    posted: u64,
    /// Work that has ended, in order.
    ended: Vec<Status>,
    /// Messages received, in order.
    received: Vec<u64>,
}

struct Churn {
    world: World,
    rng: Rng,
    from: Vec<Endpoint>,
    to: Vec<Endpoint>,
    source: Region,
    target: Region,
    lives: Vec<Life>,
    tolerant: bool,
}

impl Churn {
    fn new(seed: u64, rails: usize, faults: Faults) -> Self {
        let (mut world, a, b) = World::pair(seed, &Profile::STRIX, rails, faults).unwrap();
        let from = (0..EPS).map(|_| world.endpoint(a)).collect();
        let to: Vec<_> = (0..EPS).map(|_| world.endpoint(b)).collect();
        let source = world.memory(a, vec![3; SLOT as usize], Access::LOCAL);
        let target = world.memory(b, vec![0; (SLOTS * u64::from(SLOT)) as usize], Access::LOCAL);
        let mut churn = Self {
            world,
            rng: Rng::new(seed),
            from,
            to,
            source,
            target,
            lives: Vec::new(),
            tolerant: false,
        };
        for slot in 0..SLOTS {
            churn.post_receive(slot);
        }
        churn
    }

    /// Slots belong to endpoints in turn.
    fn post_receive(&mut self, slot: u64) {
        let ep = self.to[slot as usize % EPS];
        self.world
            .post_receive(ep, self.target.at(slot * u64::from(SLOT), SLOT), slot);
    }

    fn open(&mut self) {
        let (from, to) = (self.from[self.rng.index(EPS)], self.rng.index(EPS));
        if let Ok(flow) = self.world.open_flow(from, self.to[to]) {
            let life = Life {
                flow,
                to,
                open: true,
                posted: 0,
                ended: Vec::new(),
                received: Vec::new(),
            };
            self.lives.push(life);
        }
    }

    fn living(&mut self) -> Option<usize> {
        let open: Vec<usize> = (0..self.lives.len())
            .filter(|&life| self.lives[life].open)
            .collect();
        if open.is_empty() {
            None
        } else {
            Some(open[self.rng.index(open.len())])
        }
    }

    fn send(&mut self) {
        let Some(index) = self.living() else { return };
        let life = &mut self.lives[index];
        let mut prefix = [0; 24];
        prefix[..8].copy_from_slice(&(index as u64).to_le_bytes());
        prefix[8..16].copy_from_slice(&life.posted.to_le_bytes());
        let op = Operation::Send {
            imm: None,
            prefix,
            prefix_len: 16,
        };
        let len = u32::try_from(self.rng.below(u64::from(SLOT) - 16)).unwrap();
        let cookie = (index as u64) << 32 | life.posted;
        match self
            .world
            .post(life.flow, cookie, op, Some(self.source.at(0, len)))
        {
            Ok(()) => life.posted += 1,
            Err(_) if self.tolerant => life.open = false,
            Err(error) => panic!("{error}"),
        }
    }

    fn close(&mut self) {
        if let Some(index) = self.living() {
            self.lives[index].open = false;
            self.world.close_flow(self.lives[index].flow);
        }
    }

    /// Takes completions in and checks each against what was posted.
    fn look(&mut self) {
        let (a, b) = (self.from[0].host, self.to[0].host);
        while let Some(got) = self.world.host(b).next_received() {
            if got.done.status == Status::Ok {
                let at = got.done.cookie * u64::from(SLOT);
                let word = |offset: u64| {
                    let at = (at + offset) as usize;
                    self.world.host(b).region(self.target, |bytes| {
                        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
                    })
                };
                let (index, number) = (word(0) as usize, word(8));
                let life = &mut self.lives[index];
                assert_eq!(
                    self.to[life.to].index, got.ep,
                    "life {index} came to the wrong endpoint"
                );
                assert_eq!(
                    number,
                    life.received.len() as u64,
                    "life {index} has a gap or a repetition"
                );
                life.received.push(number);
            }
            self.post_receive(got.done.cookie);
        }
        while let Some(done) = self.world.host(a).next_finished() {
            let (index, number) = ((done.cookie >> 32) as usize, done.cookie & 0xffff_ffff);
            let life = &mut self.lives[index];
            assert_eq!(
                number,
                life.ended.len() as u64,
                "life {index}: work ends out of order or twice"
            );
            let received = life.received.len() as u64 > number;
            assert!(
                done.status != Status::Ok || received,
                "life {index}: {number} is done and was not received"
            );
            life.ended.push(done.status);
        }
    }

    /// Random steps, each followed by a little time.
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.rng.below(10) {
                0 => self.open(),
                1 => self.close(),
                _ => self.send(),
            }
            let pause = self.rng.below(20 * US);
            self.world.run_for(pause);
            self.look();
        }
    }

    fn end(&mut self, seed: u64) {
        while self.living().is_some() {
            self.close();
        }
        self.world.run_for(5 * SEC);
        self.look();
        for (index, life) in self.lives.iter().enumerate() {
            assert_eq!(
                life.ended.len() as u64,
                life.posted,
                "seed {seed}, life {index}: work has not ended"
            );
        }
        assert_eq!(
            self.world.host(self.to[0].host).incoming_flows(),
            0,
            "seed {seed}"
        );
        assert_eq!(self.world.violations(), [""; 0], "seed {seed}");
        assert_eq!(self.world.leaks(), [""; 0], "seed {seed}\n{}", self.world);
    }
}

#[test]
fn flows_opened_and_closed_in_quick_succession() {
    let faults = Faults {
        loss: 0.02,
        dup: 0.05,
        plan_delay: 30 * US,
        ..Faults::NONE
    };
    for seed in seeds(20) {
        let mut churn = Churn::new(seed, 2, faults);
        churn.run(2_000);
        churn.end(seed);
    }
}

#[test]
fn flows_opened_and_closed_while_links_come_and_go() {
    let faults = Faults {
        loss: 0.02,
        dup: 0.05,
        plan_delay: 30 * US,
        control_loss: 0.1,
        ..Faults::NONE
    };
    for seed in seeds(20) {
        let mut churn = Churn::new(seed, 2, faults);
        churn.tolerant = true;
        for _ in 0..8 {
            churn.run(200);
            let both = churn.rng.chance(0.7);
            for cable in 0..1 + usize::from(both) {
                churn.world.unplug(cable);
            }
            churn.run(20);
            for cable in 0..1 + usize::from(both) {
                churn.world.plug(cable);
            }
            churn.world.run_for(50 * MS);
            churn.look();
        }
        churn
            .world
            .bring_up()
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", churn.world));
        churn.run(200);
        churn.end(seed);
    }
}
