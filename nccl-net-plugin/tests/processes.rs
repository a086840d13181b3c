//! Ranks in processes of their own: what happens when they stop, die, close or leave.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands the plugin what its contract asks for"
)]

mod common;

use std::time::{Duration, Instant};

use common::process::*;
use common::*;
use nccl_net_sys::*;
use usb4_nccl::ncclNetPlugin_v12 as NET;

/// In which a failure has to be told.
const BOUND: Duration = Duration::from_secs(1);

/// Not a test: what a child process does.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let context = Context::new();
    let (listener, handle) = context.listen();
    say(&from_handle(&handle));
    let mut theirs = to_handle(&told().unwrap());
    let tx = context.connect(&mut theirs);
    let rx = until("accept", || try_accept(listener));
    let source = Memory::new(tx, pattern(1 << 20, 5));
    let target = Memory::new(rx, vec![0; 1 << 20]);
    match role.as_str() {
        // Sends back what it gets, until its parent closes.
        "echo" => loop {
            let request = recv(&target, 0, 1 << 20);
            let start = Instant::now();
            let len = loop {
                match request.test() {
                    Ok(Some(len)) => break len,
                    Ok(None) if start.elapsed() < Duration::from_secs(90) => {}
                    _ => return,
                }
            };
            let back = Memory::new(tx, target.bytes[..len.max(1)].to_vec());
            wait_all(&[send(&back, 0, len)]);
            back.dereg();
        },
        // Sends, and leaves as soon as the sends are done.
        "hasty" => {
            let sends = [send(&source, 0, 100), send(&source, 0, 1 << 20)];
            wait_all(&sends);
            close_send(tx);
            close_recv(rx);
            ok(context.finalize());
        }
        // As above, without a word.
        "rude" => {
            let sends = [send(&source, 0, 100), send(&source, 0, 1 << 20)];
            wait_all(&sends);
            std::process::exit(0);
        }
        // Posts and does nothing more.
        "idle" => {
            let _posted = recv(&target, 0, 1 << 20);
            told();
        }
        other => panic!("{other}"),
    }
}

/// A child and the connections with it.
struct Rank {
    process: Process,
    source: Memory,
    target: Memory,
}

fn start(context: Context, role: &str) -> Rank {
    let mut process = Process::start(role);
    let (listener, handle) = context.listen();
    let mut theirs = process.hear_handle();
    process.tell(&from_handle(&handle));
    let rx = until("accept", || try_accept(listener));
    let tx = context.connect(&mut theirs);
    ok(unsafe { (NET.closeListen)(listener.0) });
    Rank {
        process,
        source: Memory::new(tx, pattern(1 << 20, 5)),
        target: Memory::new(rx, vec![0; 1 << 20]),
    }
}

fn echo(rank: &Rank, len: usize) {
    let requests = [recv(&rank.target, 0, 1 << 20), send(&rank.source, 0, len)];
    assert_eq!(wait_all(&requests), [len, len]);
    assert!(rank.target.bytes[..len] == rank.source.bytes[..len]);
}

#[test]
fn ranks_of_three_processes_reach_each_other() {
    let _alone = alone();
    let context = Context::new();
    let ranks = [start(context, "echo"), start(context, "echo")];
    for len in [0, 1, 2000, 3000, 1 << 20] {
        ranks.iter().for_each(|rank| echo(rank, len));
    }
    for rank in ranks {
        close_send(rank.source.comm);
        close_recv(rank.target.comm);
    }
    ok(context.finalize());
}

#[test]
fn the_death_of_a_rank_is_an_error_in_bounded_time_and_of_its_communicators_alone() {
    let _alone = alone();
    let (one, two) = (Context::new(), Context::new());
    // All it has to do: wait for a message, or for one to be received.
    for (waits_for_message, context) in [(true, one), (false, one), (true, two)] {
        let (mut rank, other) = (start(one, "echo"), start(context, "echo"));
        echo(&rank, 10);
        let from = recv(&rank.target, 0, 1 << 20);
        let request = if waits_for_message {
            from
        } else {
            rank.process.stop();
            send(&rank.source, 0, 1 << 20)
        };
        assert_eq!(request.test(), Ok(None));
        rank.process.child.kill().unwrap();
        rank.process.child.wait().unwrap();
        let died = Instant::now();
        assert_eq!(failure(request), ncclRemoteError);
        assert!(died.elapsed() < BOUND, "{:?}", died.elapsed());
        let told = warnings("");
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("peer ")
                && told[0].contains("rail soft:")
                && told[0].contains("its process has ended")
        );
        // All its communicators, for ever.
        assert_eq!(try_send(&rank.source, 0, 1, 0), Err(ncclRemoteError));
        assert_eq!(try_recv(&rank.target, 0, 1, 0), Err(ncclRemoteError));
        assert_eq!(failure(from), ncclRemoteError);
        echo(&other, 3000);
        let start = Instant::now();
        let (tx, rx) = (rank.source.comm, rank.target.comm);
        drop((rank.source.dereg(), rank.target.dereg()));
        close_send(tx);
        close_recv(rx);
        assert!(
            start.elapsed() < Duration::from_millis(100),
            "{:?}",
            start.elapsed()
        );
        close_send(other.source.comm);
        close_recv(other.target.comm);
        assert_eq!(warnings(""), Vec::<String>::new());
    }
    ok(one.finalize());
    ok(two.finalize());
}

#[test]
fn a_stopped_rank_is_no_error_and_goes_on() {
    let _alone = alone();
    let context = Context::new();
    let rank = start(context, "echo");
    echo(&rank, 10);
    rank.process.stop();
    let requests = [recv(&rank.target, 0, 1 << 20), send(&rank.source, 0, 1 << 20)];
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        assert_eq!(requests.map(|request| request.test()), [Ok(None); 2]);
    }
    rank.process.signal(libc::SIGCONT);
    assert_eq!(wait_all(&requests), [1 << 20; 2]);
    assert_eq!(warnings(""), Vec::<String>::new());
    ok(context.finalize());
}

#[test]
fn what_was_sent_arrives_though_the_sender_has_left() {
    let _alone = alone();
    for role in ["hasty", "rude"] {
        let context = Context::new();
        let mut rank = start(context, role);
        let requests = [recv(&rank.target, 0, 100), recv(&rank.target, 100, 1 << 19)];
        // Their sends are done only when the bytes are here.
        assert_eq!(wait_all(&requests[..1]), [100]);
        assert_eq!(failure(requests[1]), ncclInvalidUsage);
        assert_eq!(
            warnings("a message of 1048576 bytes for a receive of 524288").len(),
            1
        );
        rank.process.child.kill().unwrap();
        rank.process.child.wait().unwrap();
        ok(context.finalize());
        let context = Context::new();
        let mut rank = start(context, role);
        let requests = [recv(&rank.target, 0, 100), recv(&rank.target, 0, 1 << 20)];
        assert_eq!(wait_all(&requests), [100, 1 << 20]);
        assert!(rank.process.child.wait().unwrap().success());
        assert!(rank.target.bytes == pattern(1 << 20, 5));
        // What comes never is an error.
        let more = recv(&rank.target, 0, 10);
        assert_eq!(failure(more), ncclRemoteError);
        ok(context.finalize());
    }
}

#[test]
fn a_rank_that_leaves_in_order_leaves_no_warning() {
    let _alone = alone();
    let (context, other) = (Context::new(), Context::new());
    let mut rank = start(context, "hasty");
    let wait = start(other, "idle");
    let requests = [recv(&rank.target, 0, 100), recv(&rank.target, 0, 1 << 20)];
    wait_all(&requests);
    assert!(rank.process.child.wait().unwrap().success());
    // Something else is waited for meanwhile.
    let pending = recv(&wait.target, 0, 10);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        assert_eq!(pending.test(), Ok(None));
    }
    assert_eq!(warnings(""), Vec::<String>::new());
    ok(other.finalize());
    ok(context.finalize());
}

#[test]
fn a_rank_that_is_gone_is_an_error_to_connect_to_and_its_successor_is_not() {
    let _alone = alone();
    let context = Context::new();
    let mut gone = Process::start("echo");
    let mut handle = gone.hear_handle();
    gone.child.kill().unwrap();
    gone.child.wait().unwrap();
    let code = until("connect", || context.try_connect(&mut handle).err());
    assert_eq!(code, ncclRemoteError);
    let told = warnings("");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("peer ") && told[0].contains("rail soft:"),
        "{told:?}"
    );
    echo(&start(context, "echo"), 100);
    ok(context.finalize());
}

#[test]
fn a_process_that_exits_without_destroying_anything_ends() {
    let _alone = alone();
    let context = Context::new();
    let mut rank = start(context, "idle");
    rank.process.tell("that is all");
    let start = Instant::now();
    assert!(rank.process.child.wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(5));
    let more = recv(&rank.target, 0, 10);
    assert_eq!(failure(more), ncclRemoteError);
    ok(context.finalize());
}
