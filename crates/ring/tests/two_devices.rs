//! Two devices of one process, over a cable.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{HANG, Host, bytes, fabric, next_ok};
use usb4_ring::{EndpointConfig, Op, Remote, Status, WorkRequest};

fn pair(test: &str) -> (Host, Host) {
    let spec = format!("soft:{}", fabric(test));
    (Host::open(&spec), Host::open(&spec))
}

#[test]
fn a_message_crosses_with_prefix_and_immediate() {
    let (mut a, mut b) = pair("send");
    let to = a.handle(&b);
    let (from, into) = (a.memory(64, 7), b.memory(100, 0));
    b.ep.post_recv(1, into.buffer(0, 100).unwrap()).unwrap();
    b.ep.submit().unwrap();
    let request = WorkRequest::send(to, from.buffer(0, 64).unwrap())
        .prefix(b"head")
        .imm(9)
        .user_data(2);
    a.ep.post(&request).unwrap();
    a.ep.submit().unwrap();
    let got = next_ok(&mut [&mut a, &mut b], 1);
    assert_eq!(
        (got.user_data, got.op, got.len, got.imm),
        (1, Op::Receive, 68, Some(9))
    );
    assert_eq!(b.ep.source(got.source), Some(a.ep.address()));
    let text = bytes(&into);
    assert_eq!(
        (&text[..4], &text[4..68], &text[68..]),
        (&b"head"[..], &[7; 64][..], &[0; 32][..])
    );
    let sent = next_ok(&mut [&mut a, &mut b], 0);
    assert_eq!((sent.user_data, sent.op, sent.len), (2, Op::Send, 68));
}

#[test]
fn a_small_queue_emptied_one_by_one_never_stays_full() {
    let (a, b) = pair("take");
    let into = b.memory(64, 0);
    let mut sent = a.device.create_cq(4).unwrap();
    let mut ep = a
        .device
        .create_endpoint(&EndpointConfig::default(), &sent, &sent)
        .unwrap();
    let remote = Remote {
        addr: into.addr(),
        key: into.remote_key(),
    };
    let to = ep.address_handle(&b.ep.address()).unwrap();
    let from = a.memory(64, 7);
    for n in 0..100 {
        let write = WorkRequest::write(to, from.buffer(0, 64).unwrap(), remote);
        ep.post(&write.user_data(n)).unwrap();
    }
    ep.submit().unwrap();
    let start = std::time::Instant::now();
    let mut seen = 0;
    while seen < 100 {
        a.device.progress();
        b.device.progress();
        if !sent.is_empty() {
            let done = sent.take().unwrap();
            assert_eq!((done.user_data, done.status), (seen, Status::Ok));
            seen += 1;
        }
        assert!(start.elapsed() < HANG, "{seen} of 100");
    }
    assert!(sent.take().is_none());
}

#[test]
fn one_sided_operations_reach_the_peer_s_memory() {
    let (mut a, mut b) = pair("rma");
    let to = a.handle(&b);
    let (mine, theirs) = (a.memory(1 << 20, 3), b.memory(1 << 20, 0));
    let remote = |offset| Remote {
        addr: theirs.addr() + offset,
        key: theirs.remote_key(),
    };
    let all = mine.buffer(0, 1 << 20).unwrap();
    a.ep.post(&WorkRequest::write(to, all, remote(0)).user_data(1))
        .unwrap();
    a.ep.submit().unwrap();
    assert_eq!(next_ok(&mut [&mut a, &mut b], 0).user_data, 1);
    assert!(bytes(&theirs).iter().all(|byte| *byte == 3));
    theirs.write(0, &[4; 4096]).unwrap();
    a.ep.post(&WorkRequest::read(to, mine.buffer(5, 4096).unwrap(), remote(1)).user_data(2))
        .unwrap();
    a.ep.submit().unwrap();
    assert_eq!(next_ok(&mut [&mut a, &mut b], 0).user_data, 2);
    let read = bytes(&mine);
    assert_eq!(
        (read[4], &read[5..4100], read[4100], read[4101]),
        (3, &[4; 4095][..], 3, 3)
    );
    theirs.write(8, &5u64.to_le_bytes()).unwrap();
    let old = mine.buffer(0, 8).unwrap();
    a.ep.post(&WorkRequest::fetch_add(to, old, remote(8), 10).user_data(3))
        .unwrap();
    a.ep.post(&WorkRequest::compare_swap(to, old, remote(8), 15, 1).user_data(4))
        .unwrap();
    a.ep.submit().unwrap();
    let (add, swap) = (
        next_ok(&mut [&mut a, &mut b], 0),
        next_ok(&mut [&mut a, &mut b], 0),
    );
    assert_eq!(
        (add.user_data, add.value, swap.user_data, swap.value),
        (3, 5, 4, 15)
    );
    assert_eq!(bytes(&theirs)[8..16], 1u64.to_le_bytes());
    assert_eq!(bytes(&mine)[..8], 15u64.to_le_bytes());
}

#[test]
fn an_endpoint_can_send_to_itself() {
    let (mut a, _) = pair("self");
    let to = a.ep.address_handle(&a.ep.address()).unwrap();
    let memory = a.memory(20_000, 1);
    memory.write(0, &[8; 10_000]).unwrap();
    a.ep.post_recv(1, memory.buffer(10_000, 10_000).unwrap()).unwrap();
    a.ep.post(&WorkRequest::send(to, memory.buffer(0, 10_000).unwrap()).user_data(2))
        .unwrap();
    a.ep.submit().unwrap();
    let mut seen = [
        next_ok(&mut [&mut a], 0).user_data,
        next_ok(&mut [&mut a], 0).user_data,
    ];
    seen.sort_unstable();
    assert_eq!(seen, [1, 2]);
    assert!(bytes(&memory).iter().all(|byte| *byte == 8));
}

#[test]
fn a_message_waits_for_its_receive() {
    let (mut a, mut b) = pair("rnr");
    let to = a.handle(&b);
    let (from, into) = (a.memory(8192, 7), b.memory(8192, 0));
    for message in 0..10 {
        a.ep.post(&WorkRequest::send(to, from.buffer(0, 8192).unwrap()).user_data(message))
            .unwrap();
    }
    a.ep.submit().unwrap();
    for _ in 0..2000 {
        assert_eq!(a.poll(), None);
        assert_eq!(b.poll(), None);
    }
    for message in 0..10 {
        b.ep.post_recv(100 + message, into.buffer(0, 8192).unwrap())
            .unwrap();
        b.ep.submit().unwrap();
        assert_eq!(next_ok(&mut [&mut a, &mut b], 1).user_data, 100 + message);
        assert_eq!(next_ok(&mut [&mut a, &mut b], 0).user_data, message);
    }
}
