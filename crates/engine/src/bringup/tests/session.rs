//! Sessions come and go as they should.

use super::*;

#[test]
fn both_sides_come_up_within_milliseconds_on_a_clean_channel() {
    let mut pair = Pair::new(1, CLEAN);
    pair.run(10 * MS);
    assert!(pair.both_up());
    let info = pair.sides[0].up.unwrap();
    assert_eq!((info.node, info.tx_hop), (local(1).node, 9));
    assert_eq!((info.ring_size, info.max_ack_delay, info.join), (1024, 20_000, 0));
}

#[test]
fn an_idle_rail_that_is_up_sends_nothing() {
    let mut pair = Pair::new(2, CLEAN);
    pair.run(SEC);
    let sent = pair.sent;
    pair.run(3_600 * SEC);
    assert_eq!(pair.sent, sent);
    assert!(pair.sides.iter().all(|side| side.fsm.deadline().is_none()));
}

#[test]
fn nothing_is_sent_before_the_peers_paths_are_up() {
    let mut pair = Pair::new(3, CLEAN);
    pair.home = 20 * SEC;
    pair.run(100 * SEC);
    assert!(pair.both_up());
    assert!(
        pair.sides.iter().all(|side| side.ups == 1),
        "a slow home starts no second session"
    );
}

#[test]
fn paths_up_is_not_said_before_our_own_paths_are_on() {
    let mut pair = Pair::new(17, CLEAN);
    pair.home = 20 * SEC;
    let said = |pair: &Pair, by: usize| {
        let paths_up =
            |(to, message): &(usize, Control)| *to == 1 - by && message.kind == ControlKind::PathsUp;
        pair.record.iter().any(paths_up)
    };
    while !pair.both_up() {
        for by in 0..2 {
            assert!(pair.sides[by].on || !said(&pair, by));
        }
        assert!(pair.step(pair.now + 60 * SEC));
    }
    assert!(said(&pair, 0) && said(&pair, 1));
}

#[test]
fn offers_into_the_void_slow_down_and_a_late_peer_is_up_at_once() {
    let mut pair = Pair::new(4, Channel { loss: 1000, ..CLEAN });
    pair.run(600 * SEC);
    assert!(pair.sent < 2 * 160, "{} offers in ten minutes", pair.sent);
    pair.channel = CLEAN;
    pair.restart(1);
    pair.run(300 * MS);
    assert!(pair.both_up());
}

#[test]
fn a_restarted_peer_replaces_the_session() {
    let mut pair = Pair::new(5, CLEAN);
    pair.run(SEC);
    let before = pair.sides[0].up.unwrap();
    pair.strict = false;
    pair.restart(1);
    pair.run(SEC);
    assert!(pair.both_up());
    assert_eq!(pair.sides[0].downs, [DownReason::Replaced]);
    let after = pair.sides[0].up.unwrap();
    assert!(before.tx_tag != after.tx_tag && before.rx_tag != after.rx_tag);
}

#[test]
fn both_restarting_at_the_same_moment_find_each_other() {
    let mut pair = Pair::new(6, CLEAN);
    pair.run(SEC);
    pair.strict = false;
    pair.restart(0);
    pair.restart(1);
    pair.run(SEC);
    assert!(pair.both_up());
}

#[test]
fn a_restart_between_accept_and_paths_up_does_not_strand_the_other_side() {
    for crash_at in 1..40 {
        let mut pair = Pair::new(100 + crash_at, CLEAN);
        pair.home = 5 * MS;
        pair.run(crash_at * MS / 4);
        pair.strict = false;
        pair.restart(1);
        pair.run(20 * SEC);
        assert!(pair.both_up(), "crash after {crash_at}/4 ms");
    }
}

#[test]
fn a_peer_that_says_bye_takes_the_rail_down_after_our_paths_are_off() {
    let mut pair = Pair::new(7, CLEAN);
    pair.home = 10 * MS;
    pair.run(SEC);
    pair.close(0);
    assert_eq!(pair.sides[0].downs, [DownReason::Closed]);
    pair.run(100 * MS);
    assert_eq!(pair.sides[1].downs, [DownReason::PeerClosed]);
    assert!(pair.sides[0].fsm.is_closed() && !pair.sides[0].on && !pair.sides[1].on);
    assert_eq!(pair.sides[0].fsm.deadline(), None);
    // And the peer may come back.
    pair.restart(0);
    pair.run(SEC);
    assert!(pair.both_up());
}

#[test]
fn an_unanswered_bye_ends_after_three_tries() {
    let mut pair = Pair::new(8, CLEAN);
    pair.run(SEC);
    pair.channel.loss = 1000;
    pair.strict = false;
    let sent = pair.sent;
    pair.close(0);
    pair.run(899 * MS);
    assert_eq!((pair.sent - sent, pair.sides[0].fsm.is_closed()), (3, false));
    pair.run(2 * MS);
    assert!(pair.sides[0].fsm.is_closed());
}

#[test]
fn both_closing_at_once_are_done_at_once() {
    let mut pair = Pair::new(9, CLEAN);
    pair.run(SEC);
    pair.close(0);
    pair.close(1);
    pair.run(10 * MS);
    assert!(pair.sides.iter().all(|side| side.fsm.is_closed()));
}

#[test]
fn closing_before_there_is_a_session_is_immediate() {
    let mut pair = Pair::new(10, Channel { loss: 1000, ..CLEAN });
    pair.close(0);
    assert!(pair.sides[0].fsm.is_closed());
}

#[test]
fn a_closed_side_confirms_nothing_but_lets_the_peer_go() {
    let mut pair = Pair::new(11, CLEAN);
    pair.run(SEC);
    let bye = Control {
        kind: ControlKind::Bye,
        ..pair.last(0, ControlKind::PathsUp)
    };
    pair.close(0);
    pair.run(10 * MS);
    let sent = pair.sent;
    for kind in [ControlKind::Offer, ControlKind::Accept, ControlKind::PathsUp] {
        let message = pair.last(0, kind);
        pair.inject(0, &message);
    }
    assert_eq!(pair.sent, sent);
    pair.inject(0, &bye);
    assert_eq!(pair.last(1, ControlKind::ByeAck).body.echo, bye.body.nonce);
}

#[test]
fn a_join_restarts_the_session_and_proves_the_nonce() {
    let mut pair = Pair::new(12, CLEAN);
    pair.run(SEC);
    pair.set_join(0, 0x1111);
    assert!(pair.sides[0].up.is_some(), "up until the peer accepts");
    pair.run(SEC);
    assert!(pair.both_up());
    assert_eq!(pair.sides[1].up.unwrap().join, 0x1111);
    assert_eq!(pair.sides[0].up.unwrap().join, 0);
    pair.set_join(1, 0x2222);
    pair.run(SEC);
    assert!(pair.both_up());
    assert_eq!(pair.sides[1].up.unwrap().join, 0x1111);
    assert_eq!(pair.sides[0].up.unwrap().join, 0x2222);
    assert!(
        pair.sides[0]
            .downs
            .iter()
            .all(|&reason| reason == DownReason::Replaced)
    );
}

#[test]
fn both_joining_at_once_agree_on_one_session() {
    for seed in 20..60 {
        let mut pair = Pair::new(seed, CLEAN);
        pair.home = 3 * MS;
        pair.run(SEC);
        pair.set_join(0, 0x1111);
        pair.run(pair.now % 7 * MS / 3);
        pair.set_join(1, 0x2222);
        pair.run(2 * SEC);
        assert!(pair.both_up());
        assert_eq!(pair.sides[0].up.unwrap().join, 0x2222);
        assert_eq!(pair.sides[1].up.unwrap().join, 0x1111);
    }
}

#[test]
fn a_join_nonce_known_before_the_session_needs_no_second_one() {
    let mut pair = Pair::new(13, CLEAN);
    pair.set_join(0, 0x1111);
    pair.run(SEC);
    assert_eq!(pair.sides[1].up.unwrap().join, 0x1111);
    assert!(pair.sides.iter().all(|side| side.ups == 1));
}

#[test]
fn paths_that_cannot_be_enabled_are_tried_again() {
    let mut pair = Pair::new(14, CLEAN);
    pair.home = 50 * MS;
    for _ in 0..5 {
        while pair.sides[0].order.is_none() {
            assert!(pair.step(pair.now + 20 * SEC));
        }
        pair.sides[0].order = None;
        pair.sides[0].fsm.paths_disabled(pair.now);
        pair.drain(0);
        assert!(pair.sides[0].up.is_none());
    }
    pair.run(20 * SEC);
    assert!(pair.both_up());
}

#[test]
fn a_peer_of_another_version_is_refused_and_both_can_say_why() {
    let newer = LocalInfo {
        ver_min: 2,
        ver_max: 3,
        ..local(1)
    };
    let mut pair = Pair::with(15, CLEAN, [local(0), newer]);
    pair.run(SEC);
    for (side, versions) in pair.sides.iter().zip([(2, 3), (1, 1)]) {
        assert_eq!(side.fsm.state(), RailState::Refused(Reason::Version));
        assert_eq!(side.fsm.refused_versions(), versions);
    }
    let sent = pair.sent;
    pair.run(100 * SEC);
    assert!((10..60).contains(&(pair.sent - sent)), "{}", pair.sent - sent);
    // Upgraded: comes up at once.
    pair.sides[0].fsm.local.ver_max = 2;
    pair.restart(0);
    pair.run(SEC);
    assert!(pair.both_up());
    assert_eq!(pair.sides[0].up.unwrap().version, 2);
}

#[test]
fn a_peer_of_our_own_name_is_refused() {
    let double = LocalInfo {
        node: local(0).node,
        ..local(1)
    };
    let mut pair = Pair::with(17, CLEAN, [local(0), double]);
    pair.run(100 * SEC);
    for side in &pair.sides {
        assert_eq!(side.fsm.state(), RailState::Refused(Reason::NotAllowed));
        assert_eq!(side.ups, 0);
    }
    // Renamed: comes up at once.
    pair.sides[1].fsm.local.node = local(1).node;
    pair.restart(1);
    pair.run(SEC);
    assert!(pair.both_up());
}

#[test]
fn a_peer_the_home_does_not_let_in_is_refused_and_both_can_say_why() {
    let mut pair = Pair::new(18, CLEAN);
    pair.sides[0].fsm.admit(false);
    pair.run(100 * SEC);
    for side in &pair.sides {
        assert_eq!(side.fsm.state(), RailState::Refused(Reason::NotAllowed));
        assert_eq!(side.ups, 0);
    }
    // Let in, with a new machine: comes up at once.
    pair.restart(0);
    pair.run(SEC);
    assert!(pair.both_up());
    // What there is stays until it is closed.
    pair.sides[0].fsm.admit(false);
    pair.run(10 * SEC);
    assert!(pair.both_up());
    let now = pair.now;
    pair.sides[0].fsm.close(now);
    pair.drain(0);
    pair.run(100 * SEC);
    assert!(pair.sides[0].fsm.is_closed() && pair.sides[1].up.is_none());
}

#[test]
fn features_are_in_force_only_when_both_want_them() {
    let with = |side, features| LocalInfo {
        features,
        ..local(side)
    };
    let mut pair = Pair::with(16, CLEAN, [with(0, 1), with(1, 3)]);
    pair.run(SEC);
    assert!(pair.sides.iter().all(|side| side.up.unwrap().features == 1));
}

/// Side 0's home finds the rail silent for `seconds`, once a second.
fn silent(pair: &mut Pair, seconds: u32) {
    for _ in 0..seconds {
        pair.sides[0].fsm.silent(pair.now);
        pair.drain(0);
        pair.run(SEC);
    }
}

#[test]
fn a_peer_that_answers_nowhere_is_waited_for() {
    let mut pair = Pair::new(31, CLEAN);
    pair.run(SEC);
    pair.channel = Channel { loss: 1000, ..CLEAN };
    let sent = pair.sent;
    silent(&mut pair, 7200);
    assert!(pair.both_up() && pair.sides[0].downs.is_empty());
    let asked = pair.sent - sent;
    assert!((1000..2000).contains(&asked), "asked {asked} times in two hours");
    // It was stopped, and answers here a moment before it does on the rail.
    pair.channel = CLEAN;
    silent(&mut pair, 3);
    pair.run(3_600 * SEC);
    assert!(pair.both_up() && pair.sides[0].downs.is_empty());
    assert_eq!(pair.sides[0].fsm.deadline(), None, "and nobody asks any more");
}

#[test]
fn a_rail_on_which_a_peer_that_is_there_stays_silent_is_closed() {
    let mut pair = Pair::new(32, CLEAN);
    pair.run(SEC);
    silent(&mut pair, 5);
    assert!(pair.both_up(), "it gets some time");
    silent(&mut pair, 3);
    assert_eq!(pair.sides[0].downs, [DownReason::Closed]);
    assert_eq!(pair.sides[1].downs, [DownReason::PeerClosed]);
    assert!(pair.sides[0].fsm.is_closed());
    // What the home does then.
    pair.restart(0);
    pair.run(SEC);
    assert!(pair.both_up());
}

#[test]
fn silences_with_answers_between_them_do_not_add_up() {
    let mut pair = Pair::new(33, CLEAN);
    pair.run(SEC);
    for _ in 0..20 {
        silent(&mut pair, 4);
        pair.run(6 * SEC);
    }
    assert!(pair.both_up() && pair.sides[0].downs.is_empty());
}
