//! Random faults; whatever happens, both sides end up in the same session.

use super::*;

/// What may happen besides the channel's faults.
#[derive(Clone, Copy)]
struct Events {
    restarts: bool,
    joins: bool,
    resets: bool,
    closes: bool,
}

fn chaos(seed: u64, events: Events) {
    let mut rng = Rng::new(seed);
    let channel = Channel {
        loss: [0, 50, 300, 600][rng.below(4) as usize],
        dup: [0, 100, 500][rng.below(3) as usize],
        delay: [MS, 20 * MS, 300 * MS][rng.below(3) as usize],
        late: [0, 2 * SEC, 8 * SEC][rng.below(3) as usize],
        replay: [0, 100, 500][rng.below(3) as usize],
    };
    let mut pair = Pair::new(seed, channel);
    pair.home = [0, 10 * MS, 3 * SEC][rng.below(3) as usize];
    pair.blocking = rng.chance(300);
    // A crash, or a BYE that does not come through in time, leaves the peer sending.
    let heard = channel.loss == 0 && channel.late == 0 && pair.home < 100 * MS;
    pair.strict = !events.restarts && !events.resets && (heard || !events.closes);
    for _ in 0..30 {
        pair.run(rng.below(2 * SEC));
        let side = rng.below(2) as usize;
        match rng.below(8) {
            0 | 1 if events.restarts => pair.restart(side),
            2 if events.restarts => {
                pair.restart(side);
                pair.restart(1 - side);
            }
            3 if events.joins => pair.set_join(side, rng.next() | 1),
            4 if events.resets => {
                let tag = pair.sides[1 - side].up.map_or(7, |info| info.tx_tag);
                pair.sides[side].fsm.unknown_tag(pair.now, tag);
                pair.drain(side);
            }
            5 if events.closes => {
                pair.close(side);
                pair.run(rng.below(SEC));
                if pair.sides[side].fsm.is_closed() {
                    pair.restart(side);
                }
            }
            _ => {}
        }
    }
    for side in 0..2 {
        if matches!(
            pair.sides[side].fsm.state(),
            RailState::Closing | RailState::Closed
        ) {
            pair.blocking = rng.chance(300);
            pair.strict = false;
            pair.restart(side);
        }
    }
    // The channel stays lossy, but messages are not held back for seconds any more.
    pair.channel.late = 0;
    pair.channel.loss = channel.loss.min(300);
    let mut waited = 0;
    while !pair.both_up() {
        pair.run(SEC);
        waited += 1;
        assert!(
            waited < 180,
            "seed {seed}: {:?} {:?}",
            pair.sides[0].fsm,
            pair.sides[1].fsm
        );
    }
    let ups = pair.sides[0].ups + pair.sides[1].ups;
    pair.run(120 * SEC);
    let later = pair.sides[0].ups + pair.sides[1].ups;
    assert!(
        pair.both_up() && later - ups <= 4,
        "seed {seed}: {} sessions",
        later - ups
    );
    let settled = later;
    pair.run(600 * SEC);
    assert!(pair.both_up());
    assert_eq!(
        pair.sides[0].ups + pair.sides[1].ups,
        settled,
        "seed {seed}: not stable"
    );
}

#[test]
fn loss_duplication_reordering_and_replay_only_delay_a_session() {
    let events = Events {
        restarts: false,
        joins: false,
        resets: false,
        closes: false,
    };
    (0..1500).for_each(|seed| chaos(seed, events));
}

#[test]
fn restarts_in_any_state_end_in_one_session() {
    let events = Events {
        restarts: true,
        joins: false,
        resets: true,
        closes: false,
    };
    (10_000..11_500).for_each(|seed| chaos(seed, events));
}

#[test]
fn joins_in_any_state_never_leave_a_sender_without_a_path() {
    let events = Events {
        restarts: false,
        joins: true,
        resets: false,
        closes: false,
    };
    (20_000..21_500).for_each(|seed| chaos(seed, events));
}

#[test]
fn a_goodbye_in_any_state_is_no_end() {
    let events = Events {
        restarts: false,
        joins: true,
        resets: false,
        closes: true,
    };
    (40_000..41_500).for_each(|seed| chaos(seed, events));
}

#[test]
fn everything_at_once_ends_in_one_session() {
    let events = Events {
        restarts: true,
        joins: true,
        resets: true,
        closes: true,
    };
    (30_000..31_500).for_each(|seed| chaos(seed, events));
}
