//! What the oracle checks when something completes, and at the end.

use super::flow::Op;
use super::{Failure, Kind, Traffic, receive_buffer};
use crate::host::Received;
use crate::memory::Region;
use crate::profile::SEC;
use crate::world::World;
use usb4_engine::{Status, WorkDone};

impl Traffic {
    /// A receive completed at `party`: it must be the next its flow expects, and its bytes must be there.
    pub(super) fn on_received(
        &mut self,
        world: &mut World,
        party: usize,
        got: &Received,
    ) -> Result<(), Failure> {
        let host = self.parties[party].host;
        let Some(&index) = self.by_address.get(&(got.from, host, got.ep)) else {
            return Err(Failure(format!(
                "host {host}: a receive from {:?}, which has no flow here",
                got.from
            )));
        };
        let flow = &mut self.flows[index];
        let Some(op) = flow.expected.pop_front() else {
            return Err(Failure(format!(
                "flow {index}: {:?} received, nothing was sent",
                got.done
            )));
        };
        let done = got.done;
        let write = op.kind == Kind::WriteImm;
        if (done.status, done.len, done.imm, done.write) != (Status::Ok, op.len, op.imm, write) {
            return Err(Failure(format!(
                "flow {index}: {done:?} received, expected {op:?}"
            )));
        }
        // Everything the flow did before is in memory too.
        for at in 0..flow.ops.len() {
            if self.flows[index].ops[at].seq > op.seq {
                break;
            }
            self.check_write(world, index, at)?;
        }
        let max = self.mix.sizes.longest();
        let sender = &self.parties[self.flows[index].from];
        let ep = got.ep as usize;
        let buffers = self.parties[party].endpoints[ep].buffers;
        let buf = receive_buffer(buffers, done.cookie, max);
        if !write {
            expect(world, buffers, buf.offset, sender.bytes(op.at, op.len), || {
                format!("flow {index}: {op:?} received")
            })?;
            wipe(world, buffers, buf.offset, op.len);
        }
        expect(world, buffers, buf.offset + u64::from(op.len), &[0; 8], || {
            format!("behind {op:?} of flow {index}")
        })?;
        self.give_receive_back(world, party, ep, done.cookie);
        Ok(())
    }

    fn give_receive_back(&mut self, world: &mut World, party: usize, ep: usize, slot: u64) {
        let endpoint = &mut self.parties[party].endpoints[ep];
        endpoint.idle.push(slot);
        let timer = (party as u64) << 32 | ep as u64;
        if self.mix.receive_delay == 0 {
            self.post_receives(world, timer);
        } else if endpoint.idle.len() == 1 {
            world.set_timer(world.now() + self.rng.below(self.mix.receive_delay), timer);
        }
    }

    /// Work completed: it must be its flow's oldest, and done.
    pub(super) fn on_finished(&mut self, world: &mut World, done: &WorkDone) -> Result<(), Failure> {
        let (index, seq) = ((done.cookie >> 40) as usize, done.cookie & 0xff_ffff_ffff);
        let front = self.flows.get(index).and_then(|flow| flow.ops.front());
        if front.is_none_or(|op| op.seq != seq) {
            return Err(Failure(format!(
                "flow {index}: {seq} completed, the oldest outstanding is {front:?}"
            )));
        }
        if done.status != Status::Ok {
            return Err(Failure(format!(
                "flow {index}: {front:?} completed with {:?}",
                done.status
            )));
        }
        self.check_write(world, index, 0)?;
        let flow = &mut self.flows[index];
        let Some(op) = flow.ops.pop_front() else {
            return Ok(());
        };
        if op.takes_receive() && flow.expected.front().is_some_and(|next| next.seq <= seq) {
            return Err(Failure(format!(
                "flow {index}: {op:?} completed before its receive"
            )));
        }
        self.check_result(world, index, &op, done)?;
        let flow = &mut self.flows[index];
        flow.window.free(op.frees_window);
        flow.reads.free(op.frees_reads);
        self.outstanding -= 1;
        self.totals.messages += 1;
        self.totals.bytes += u64::from(op.len);
        self.ready.push(index);
        self.ready.append(&mut self.blocked);
        Ok(())
    }

    /// If operation number `at` of the flow is a write nobody has looked at yet, its bytes must be in place.
    fn check_write(&mut self, world: &World, index: usize, at: usize) -> Result<(), Failure> {
        let flow = &self.flows[index];
        let op = flow.ops[at];
        if op.checked || !matches!(op.kind, Kind::Write | Kind::WriteImm) {
            return Ok(());
        }
        let bytes = self.parties[flow.from].bytes(op.at, op.len);
        expect(world, flow.window.region, op.place, bytes, || {
            format!("flow {index}: {op:?} written")
        })?;
        self.flows[index].ops[at].checked = true;
        Ok(())
    }

    /// Checks what an operation brought home, and wipes what has been checked.
    fn check_result(
        &mut self,
        world: &mut World,
        index: usize,
        op: &Op,
        done: &WorkDone,
    ) -> Result<(), Failure> {
        let flow = &self.flows[index];
        let (window, reads, to) = (flow.window.region, flow.reads.region, flow.to);
        let what = || format!("flow {index}: {op:?} completed");
        match op.kind {
            Kind::Send => (),
            Kind::Write | Kind::WriteImm if op.followed => (),
            Kind::Write | Kind::WriteImm => wipe(world, window, op.place, op.len),
            Kind::Read => {
                expect(
                    world,
                    reads,
                    op.place,
                    self.parties[to].bytes(op.at, op.len),
                    what,
                )?;
                wipe(world, reads, op.place, op.len);
            }
            Kind::ReadBack => {
                expect(
                    world,
                    reads,
                    op.place,
                    self.parties[flow.from].bytes(op.at, op.len),
                    what,
                )?;
                wipe(world, reads, op.place, op.len);
                wipe(world, window, op.source, op.len);
            }
            Kind::FetchAdd => {
                self.totals.atomics += 1;
                self.parties[to].saw(done.value, index)?;
                expect(world, reads, op.place, &done.value.to_le_bytes(), what)?;
                wipe(world, reads, op.place, 8);
            }
            Kind::CompareSwap => {
                self.totals.atomics += 1;
                if done.value != op.word {
                    return Err(Failure(format!("flow {index}: {op:?} found {:#x}", done.value)));
                }
                expect(world, reads, op.place, &done.value.to_le_bytes(), what)?;
                wipe(world, reads, op.place, 8);
            }
        }
        Ok(())
    }

    /// The world has come to rest: nothing may be left, and nothing may have changed that nobody asked to change.
    pub(super) fn check_end(&mut self, world: &mut World) -> Result<(), Failure> {
        self.check_memory(world)?;
        self.check_rest(world, "after the last completion")?;
        for flow in &self.flows {
            world.close_flow(flow.flow);
        }
        world.run_for(SEC / 5);
        for party in &self.parties {
            let open = world.host(party.host).incoming_flows();
            if open > 0 {
                return Err(Failure(format!(
                    "host {}: {open} incoming flows survive their closing",
                    party.host
                )));
            }
        }
        self.check_rest(world, "after all flows were closed")
    }

    fn check_rest(&self, world: &World, when: &str) -> Result<(), Failure> {
        let (violations, leaks) = (world.violations(), world.leaks());
        if violations.is_empty() && leaks.is_empty() {
            return Ok(());
        }
        Err(Failure(format!(
            "{when}: violations {violations:?}, leaks {leaks:?}"
        )))
    }

    fn check_memory(&self, world: &World) -> Result<(), Failure> {
        for party in &self.parties {
            let host = party.host;
            expect(world, party.pattern, 0, &party.original, || {
                format!("the pattern of host {host}")
            })?;
            expect(world, party.counter, 0, &party.added.to_le_bytes(), || {
                format!("the counter of host {host}")
            })?;
            let seen: u64 = party.seen.iter().map(|bits| u64::from(bits.count_ones())).sum();
            if seen != party.added {
                return Err(Failure(format!(
                    "host {host}: {} additions, {seen} old values",
                    party.added
                )));
            }
            for endpoint in &party.endpoints {
                expect_wiped(world, endpoint.buffers, || {
                    format!("a receive buffer of host {host}")
                })?;
            }
        }
        for (index, flow) in self.flows.iter().enumerate() {
            expect_wiped(world, flow.window.region, || {
                format!("the window of flow {index}")
            })?;
            expect_wiped(world, flow.reads.region, || {
                format!("the read buffer of flow {index}")
            })?;
            let word = flow.final_word().to_le_bytes();
            expect(world, flow.word, 0, &word, || format!("the word of flow {index}"))?;
        }
        Ok(())
    }
}

impl super::Party {
    /// An addition found `old`: nobody else may have, and it cannot exceed the number of additions.
    fn saw(&mut self, old: u64, flow: usize) -> Result<(), Failure> {
        let (word, bit) = (usize::try_from(old / 64).unwrap_or(usize::MAX), 1 << (old % 64));
        if old >= self.added {
            return Err(Failure(format!(
                "flow {flow}: fetch-add found {old}, only {} were posted",
                self.added
            )));
        }
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            return Err(Failure(format!(
                "flow {flow}: fetch-add found {old}, as another did before"
            )));
        }
        self.seen[word] |= bit;
        Ok(())
    }
}

fn expect(
    world: &World,
    region: Region,
    offset: u64,
    bytes: &[u8],
    what: impl Fn() -> String,
) -> Result<(), Failure> {
    let at = usize::try_from(offset).unwrap_or(usize::MAX);
    world.host(region.host).region(region, |memory| {
        let found = &memory[at..at + bytes.len()];
        if found == bytes {
            return Ok(());
        }
        let first = found.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0);
        let wrong = found.iter().zip(bytes).filter(|(a, b)| a != b).count();
        Err(Failure(format!(
            "{}: {wrong} bytes are wrong, the first at {first}",
            what()
        )))
    })
}

fn expect_wiped(world: &World, region: Region, what: impl Fn() -> String) -> Result<(), Failure> {
    world
        .host(region.host)
        .region(region, |memory| match memory.iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(at) => Err(Failure(format!(
                "{}: byte {at} was written after it had been checked",
                what()
            ))),
        })
}

fn wipe(world: &World, region: Region, offset: u64, len: u32) {
    let at = usize::try_from(offset).unwrap_or(usize::MAX);
    world
        .host(region.host)
        .with_region(region, |memory| memory[at..at + len as usize].fill(0));
}
