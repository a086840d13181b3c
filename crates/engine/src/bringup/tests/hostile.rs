//! Messages that are old, forged, misdirected or absurd.

use super::*;

/// A pair that is up, had sessions before that ended in every way, and all that was ever said.
fn veterans(seed: u64) -> Pair {
    let mut pair = Pair::new(seed, CLEAN);
    pair.run(SEC);
    pair.strict = false;
    pair.restart(1);
    pair.run(SEC);
    pair.set_join(0, 5);
    pair.run(SEC);
    pair.close(1);
    pair.run(SEC);
    pair.restart(1);
    pair.run(SEC);
    assert!(pair.both_up());
    pair.strict = true;
    pair
}

#[test]
fn replaying_everything_ever_said_does_not_disturb_a_live_session() {
    let mut pair = veterans(1);
    let info = pair.sides.iter().map(|side| side.up).collect::<Vec<_>>();
    let downs = pair.sides[0].downs.len();
    for round in 0..3 {
        let mut record = pair.record.clone();
        if round == 1 {
            record.reverse();
        }
        for (to, message) in record {
            pair.inject(to, &message);
        }
        pair.run(10 * SEC);
    }
    assert_eq!(info, pair.sides.iter().map(|side| side.up).collect::<Vec<_>>());
    assert_eq!(pair.sides[0].downs.len(), downs);
}

#[test]
fn replayed_offers_do_not_keep_a_restarted_peer_out() {
    let mut pair = veterans(2);
    pair.strict = false;
    let old = pair.last(0, ControlKind::Offer);
    pair.restart(1);
    for _ in 0..400 {
        pair.inject(0, &old);
        pair.run(MS / 4);
    }
    assert!(pair.both_up());
}

#[test]
fn a_reset_that_does_not_name_our_tag_is_ignored() {
    let mut pair = veterans(3);
    let tag = pair.sides[0].up.unwrap().rx_tag;
    for wrong in [0, 1, tag] {
        let reset = Control {
            kind: ControlKind::Reset,
            body: ControlBody {
                tag: wrong,
                ..Default::default()
            },
        };
        pair.inject(0, &reset);
        assert!(pair.both_up());
    }
}

#[test]
fn a_reset_for_the_live_tag_starts_a_new_session() {
    let mut pair = veterans(4);
    let lost = pair.sides[0].up.unwrap();
    // The peer has lost the session and does not offer yet: it only sees our frames.
    pair.strict = false;
    pair.restart(1);
    pair.wire.clear();
    pair.sides[1].fsm.unknown_tag(pair.now, lost.tx_tag);
    pair.drain(1);
    pair.run(MS * 50);
    assert!(pair.sides[0].downs.contains(&DownReason::PeerReset));
    assert!(pair.both_up());
}

#[test]
fn a_flood_of_wrong_tags_makes_ten_resets_a_second() {
    let mut pair = veterans(5);
    pair.channel.loss = 1000;
    let sent = pair.sent;
    for i in 0..10_000 {
        pair.sides[0].fsm.unknown_tag(pair.now + i * MS / 10, i);
        pair.drain(0);
    }
    assert!((9..=11).contains(&(pair.sent - sent)), "{}", pair.sent - sent);
}

#[test]
fn frames_of_the_live_session_do_not_cause_a_reset() {
    let mut pair = veterans(6);
    let (sent, tag) = (pair.sent, pair.sides[0].up.unwrap().rx_tag);
    pair.sides[0].fsm.unknown_tag(pair.now, tag);
    pair.drain(0);
    assert_eq!(pair.sent, sent);
}

#[test]
fn our_own_messages_come_back_and_mean_nothing() {
    let mut pair = Pair::new(7, Channel { loss: 1000, ..CLEAN });
    for _ in 0..50 {
        for (to, message) in pair.record.clone() {
            pair.inject(1 - to, &message);
        }
        pair.run(SEC);
    }
    assert!(
        pair.sides
            .iter()
            .all(|side| side.fsm.state() == RailState::Offering && !side.on)
    );
}

#[test]
fn absurd_parameters_begin_no_session() {
    let pair = Pair::new(8, CLEAN);
    let good = pair.record[0].1.body;
    for absurd in [
        ControlBody {
            ring_size: 32,
            ..good
        },
        ControlBody { ring_size: 0, ..good },
        ControlBody {
            max_ack_delay_us: u32::MAX,
            ..good
        },
        ControlBody { tag: 0, ..good },
        ControlBody { nonce: 0, ..good },
        ControlBody {
            ver_min: 9,
            ver_max: 3,
            ..good
        },
        ControlBody {
            node_id: local(1).node,
            ..good
        },
    ] {
        for kind in [ControlKind::Accept, ControlKind::PathsUp] {
            let mut pair = Pair::new(9, Channel { loss: 1000, ..CLEAN });
            let echo = pair.last(0, ControlKind::Offer).body.nonce;
            pair.inject(
                1,
                &Control {
                    kind,
                    body: ControlBody { echo, ..absurd },
                },
            );
            assert!(pair.sides[1].order.is_none() && pair.sides[1].fsm.session.is_none());
        }
    }
}

#[test]
fn messages_of_another_session_do_not_confirm_or_end_this_one() {
    let mut pair = veterans(10);
    let live = pair.last(0, ControlKind::PathsUp).body;
    for kind in 1..=8 {
        let kind = ControlKind::from_code(kind).unwrap();
        for body in [
            ControlBody {
                echo: live.echo ^ 1,
                tag: 1,
                ..live
            },
            ControlBody {
                nonce: live.nonce ^ 1,
                tag: 1,
                ..live
            },
            ControlBody {
                nonce: 0,
                echo: 0,
                tag: 1,
                ..live
            },
        ] {
            // Only the peer knows our nonce: a BYE that echoes it is the peer's.
            if kind != ControlKind::Bye || body.echo != live.echo {
                pair.inject(0, &Control { kind, body });
            }
        }
    }
    pair.run(10 * SEC);
    assert!(pair.both_up());
}

#[test]
fn a_goodbye_from_a_session_we_had_no_time_to_follow_counts() {
    let mut pair = veterans(13);
    pair.set_join(1, 9);
    while pair.sides[1].fsm.state() == RailState::Up {
        pair.step(pair.now + SEC);
    }
    pair.close(1);
    pair.wire
        .retain(|(_, _, message)| message.kind != ControlKind::PathsUp);
    pair.run(SEC);
    assert_eq!(pair.sides[0].downs.last(), Some(&DownReason::PeerClosed));
    assert!(pair.sides[1].fsm.is_closed());
}

#[test]
fn a_refusal_that_answers_no_offer_of_ours_is_ignored() {
    let mut pair = Pair::new(11, Channel { loss: 1000, ..CLEAN });
    let refuse = |echo| Control {
        kind: ControlKind::Refuse,
        body: ControlBody {
            echo,
            reason: 77,
            ..Default::default()
        },
    };
    pair.inject(0, &refuse(123));
    assert_eq!(pair.sides[0].fsm.state(), RailState::Offering);
    let echo = pair.last(1, ControlKind::Offer).body.nonce;
    pair.inject(0, &refuse(echo));
    assert_eq!(pair.sides[0].fsm.state(), RailState::Refused(Reason::NotAllowed));
}

#[test]
fn a_home_that_takes_no_messages_loses_messages_only() {
    let mut pair = Pair::new(12, CLEAN);
    let offer = pair.last(0, ControlKind::Offer);
    let mut rng = Rng::new(1);
    for i in 0..100 {
        let body = ControlBody {
            nonce: 1000 + i,
            ..offer.body
        };
        let message = Control {
            kind: ControlKind::Offer,
            body,
        };
        pair.sides[0]
            .fsm
            .on_control(pair.now, &message, &mut || rng.next());
    }
    pair.drain(0);
    pair.run(SEC);
    assert!(pair.both_up());
}
