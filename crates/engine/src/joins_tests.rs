use super::{JoinOrder, Joins, Place};
use crate::{PeerInfo, Slab};
use std::vec::Vec;
use usb4_wire::NodeId;

const ALICE: NodeId = NodeId(1);
const BOB: NodeId = NodeId(2);

fn session(node: NodeId, join: u64, shown: u64) -> PeerInfo {
    PeerInfo {
        node,
        version: 1,
        tx_tag: 1,
        rx_tag: 2,
        tx_hop: 8,
        ring_size: 1024,
        max_ack_delay: 0,
        features: 0,
        max_flows: 1,
        max_reads: 1,
        join,
        shown,
    }
}

fn host(node: NodeId) -> Joins {
    Joins::new(node, Slab::boxed(4), Slab::boxed(4))
}

/// A rail comes up as a link of its own, with the rail's number; its nonce is the given one.
fn begin(joins: &mut Joins, rail: usize, peer: NodeId, nonce: u64) {
    let info = session(peer, 0, 0);
    assert_eq!(joins.up(rail, &info), Place::Own);
    joins.began(rail, rail, &info, nonce);
}

fn orders(joins: &mut Joins) -> Vec<JoinOrder> {
    core::iter::from_fn(|| joins.next_order()).collect()
}

fn offer(link: usize, nonce: u64) -> JoinOrder {
    JoinOrder::Offer { link, nonce }
}

fn show(rail: usize, nonce: u64) -> JoinOrder {
    JoinOrder::Show { rail, nonce }
}

/// Both hosts with two rails to each other, each a link of its own; the rails came up in opposite order.
fn two_rails() -> (Joins, Joins) {
    let (mut alice, mut bob) = (host(ALICE), host(BOB));
    begin(&mut alice, 0, BOB, 0xa0);
    begin(&mut alice, 1, BOB, 0xa1);
    begin(&mut bob, 1, ALICE, 0xb1);
    begin(&mut bob, 0, ALICE, 0xb0);
    (alice, bob)
}

#[test]
fn rails_that_came_up_in_opposite_order_join_the_link_the_smaller_node_has_longest() {
    let (mut alice, mut bob) = two_rails();
    assert_eq!(orders(&mut bob), [], "the other side chooses");
    assert!(alice.is_chosen(0) && !bob.is_chosen(0) && !bob.is_chosen(1));
    assert_eq!(orders(&mut alice), [offer(0, 0xa0)]);
    bob.came(0, 0xa0);
    assert_eq!(orders(&mut bob), [offer(0, 0xb0), offer(1, 0xa0)]);
    assert!(bob.is_chosen(0) && !bob.is_chosen(1));
    alice.came(0, 0xb0);
    alice.came(1, 0xa0);
    assert_eq!(orders(&mut alice), [offer(1, 0xb0), show(1, 0xb0)]);
    bob.came(1, 0xb0);
    assert_eq!(orders(&mut bob), [show(1, 0xa0)]);
    // The session anew, with both nonces shown.
    assert_eq!((alice.down(1), bob.down(1)), (Some(1), Some(1)));
    assert_eq!(alice.up(1, &session(BOB, 0xa0, 0xb0)), Place::With(0));
    assert_eq!(bob.up(1, &session(ALICE, 0xb0, 0xa0)), Place::With(0));
    assert_eq!(
        (alice.down(0), alice.down(1)),
        (None, Some(0)),
        "a link lives as long as a rail does"
    );
}

#[test]
fn a_neighbour_under_anothers_name_who_makes_up_nonces_joins_nothing() {
    let (mut alice, _) = two_rails();
    orders(&mut alice);
    alice.came(0, 0xb0);
    alice.came(1, 0xbad);
    assert_eq!(orders(&mut alice), [offer(1, 0xb0)], "asked, and not answered");
    assert_eq!(alice.up(1, &session(BOB, 0xbad, 0xb0)), Place::Nowhere);
    assert_eq!(orders(&mut alice), [], "what it shows is still good");
}

#[test]
fn later_nonces_of_a_peer_are_ignored() {
    let (mut alice, _) = two_rails();
    orders(&mut alice);
    alice.came(0, 0xb0);
    alice.came(0, 0xbb);
    assert_eq!(orders(&mut alice), [offer(1, 0xb0)]);
}

#[test]
fn a_rail_that_shows_the_nonce_of_a_link_that_is_gone_stops_showing_it() {
    let (mut alice, _) = two_rails();
    orders(&mut alice);
    alice.came(0, 0xb0);
    alice.came(1, 0xa0);
    assert_eq!(orders(&mut alice).last(), Some(&show(1, 0xb0)));
    alice.down(1);
    alice.down(0);
    assert_eq!(alice.up(1, &session(BOB, 0xa0, 0xb0)), Place::Nowhere);
    assert_eq!(orders(&mut alice), [show(1, 0)]);
}

#[test]
fn a_rail_whose_peer_alone_has_shown_a_nonce_is_a_link_of_its_own_and_proved() {
    let (mut alice, _) = two_rails();
    orders(&mut alice);
    alice.came(0, 0xb0);
    alice.down(1);
    let info = session(BOB, 0xa0, 0);
    assert_eq!(alice.up(1, &info), Place::Own);
    alice.began(1, 1, &info, 0xa2);
    assert_eq!(orders(&mut alice), [offer(1, 0xb0), show(1, 0xb0)]);
}

#[test]
fn when_the_chosen_link_goes_the_next_one_is_chosen() {
    let (mut alice, mut bob) = two_rails();
    orders(&mut alice);
    bob.came(0, 0xa0);
    orders(&mut bob);
    assert_eq!((alice.down(0), bob.down(0)), (Some(0), Some(0)));
    assert!(alice.is_chosen(1));
    assert_eq!(orders(&mut alice), [offer(1, 0xa1)]);
    bob.came(1, 0xa1);
    assert_eq!(orders(&mut bob), [offer(1, 0xb1)]);
    assert!(bob.is_chosen(1));
}

#[test]
fn numbers_beyond_the_tables_are_nobodys() {
    let mut alice = host(ALICE);
    let info = session(BOB, 0, 0);
    alice.began(9, 9, &info, 1);
    alice.came(9, 1);
    alice.failed(9);
    alice.closed(9);
    assert_eq!(alice.down(9), None);
    assert!(!alice.is_chosen(9) && orders(&mut alice).is_empty());
}
