//! Sleeping on completion queues.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{HANG, Host, fabric, next_ok};
use rustix::event::{PollFd, PollFlags, Timespec};
use usb4_ring::{Buffer, Completion, WorkRequest};

fn pair(test: &str) -> (Host, Host) {
    let spec = format!("soft:{}", fabric(test));
    (Host::open(&spec), Host::open(&spec))
}

#[test]
fn sleepers_on_both_sides_pass_a_message_to_and_fro() {
    let (mut a, mut b) = pair("pingpong");
    let (to, back) = (a.handle(&b), b.handle(&a));
    let play = |host: &mut Host, to, first: bool| {
        for round in 0..500 {
            if !first || round != 0 {
                assert!(host.cq.wait(Some(HANG)).unwrap());
                assert_eq!(host.cq.poll(&mut [Completion::default()]), 1);
            }
            host.ep.post_recv(1, Buffer::EMPTY).unwrap();
            host.ep
                .post(&WorkRequest::send(to, Buffer::EMPTY).unsignaled())
                .unwrap();
            host.ep.submit().unwrap();
        }
    };
    b.ep.post_recv(1, Buffer::EMPTY).unwrap();
    b.ep.submit().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| play(&mut a, to, true));
        scope.spawn(|| play(&mut b, back, false));
    });
}

#[test]
fn a_timeout_is_kept_and_leaves_the_queue_usable() {
    let (mut a, _) = pair("timeout");
    let to = a.ep.address_handle(&a.ep.address()).unwrap();
    let start = Instant::now();
    assert!(!a.cq.wait(Some(Duration::from_millis(30))).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(!a.cq.wait(Some(Duration::ZERO)).unwrap());
    a.ep.post_recv(1, Buffer::EMPTY).unwrap();
    a.ep.post(&WorkRequest::send(to, Buffer::EMPTY).unsignaled())
        .unwrap();
    a.ep.submit().unwrap();
    assert!(a.cq.wait(None).unwrap());
    assert_eq!(next_ok(&mut [&mut a], 0).user_data, 1);
}

#[test]
fn a_completion_between_arming_and_the_first_look_at_the_descriptor_is_not_missed() {
    let (mut a, _) = pair("firstlook");
    let to = a.ep.address_handle(&a.ep.address()).unwrap();
    assert!(a.cq.arm().unwrap());
    a.ep.post_recv(1, Buffer::EMPTY).unwrap();
    a.ep.post(&WorkRequest::send(to, Buffer::EMPTY).unsignaled())
        .unwrap();
    a.ep.submit().unwrap();
    let start = Instant::now();
    let mut done = [Completion::default()];
    while a.cq.poll(&mut done) == 0 {
        a.device.progress();
        assert!(start.elapsed() < HANG);
    }
    let fd = a.cq.wait_fd().unwrap();
    let zero = Timespec::try_from(Duration::ZERO).unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, Some(&zero)).unwrap(), 1);
}

#[test]
fn who_finds_completions_while_arming_leaves_the_queue_armed_for_other_sleepers() {
    let (mut a, _) = pair("sleepers");
    let to = a.ep.address_handle(&a.ep.address()).unwrap();
    let message = |a: &mut Host| {
        a.ep.post_recv(1, Buffer::EMPTY).unwrap();
        a.ep.post(&WorkRequest::send(to, Buffer::EMPTY).unsignaled())
            .unwrap();
        a.ep.submit().unwrap();
    };
    // One thread sleeps on the descriptor; the completion that wakes it is taken by another that arms, too.
    assert!(a.cq.arm().unwrap());
    message(&mut a);
    let start = Instant::now();
    while a.cq.arm().unwrap() {
        a.device.progress();
        assert!(start.elapsed() < HANG);
    }
    assert_eq!(next_ok(&mut [&mut a], 0).user_data, 1);
    message(&mut a);
    let fd = a.cq.wait_fd().unwrap();
    let limit = Timespec::try_from(HANG).unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    assert_eq!(
        rustix::event::poll(&mut fds, Some(&limit)).unwrap(),
        1,
        "the first sleeps on"
    );
}

#[test]
fn the_descriptor_is_readable_after_arming_and_not_before() {
    let (mut a, mut b) = pair("fd");
    let to = a.handle(&b);
    let readable = |host: &mut Host, wait: Duration| {
        let fd = host.cq.wait_fd().unwrap();
        let wait = Timespec::try_from(wait).unwrap();
        rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&wait)).unwrap() == 1
    };
    for round in 0..20 {
        b.ep.post_recv(round, Buffer::EMPTY).unwrap();
        b.ep.submit().unwrap();
        assert!(!readable(&mut b, Duration::ZERO));
        assert!(b.cq.arm().unwrap());
        a.ep.post(&WorkRequest::send(to, Buffer::EMPTY).unsignaled())
            .unwrap();
        a.ep.submit().unwrap();
        assert!(readable(&mut b, HANG));
        assert!(!b.cq.arm().unwrap(), "a completion is there");
        assert_eq!(next_ok(&mut [&mut a, &mut b], 1).user_data, round);
    }
}

/// The receiver computes and looks at its queue only: its device's thread does the rest.
#[test]
fn a_device_nobody_drives_drives_itself() {
    let (mut a, mut b) = pair("computing");
    let to = a.handle(&b);
    let memory = a.memory(1 << 20, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let computing = scope.spawn(|| {
            let mut out = [Completion::default()];
            for round in 0..50 {
                b.ep.post_recv(round, Buffer::EMPTY).unwrap();
                b.ep.submit().unwrap();
                while b.cq.poll(&mut out) == 0 && !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                assert_eq!(out[0].user_data, round);
            }
        });
        for round in 0..50 {
            let len = if round % 2 == 0 { 0 } else { 1 << 20 };
            a.ep.post(&WorkRequest::send(to, memory.buffer(0, len).unwrap()).user_data(round))
                .unwrap();
            a.ep.submit().unwrap();
            assert_eq!(next_ok_or_short(&mut a), round);
        }
        stop.store(true, Ordering::Relaxed);
        computing.join().unwrap();
    });
}

/// The next completion's user data; a message that does not fit the receive has arrived, too.
fn next_ok_or_short(host: &mut Host) -> u64 {
    common::next(&mut [host], 0).user_data
}
