//! Messages between communicators of one process.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails"
)]

mod common;

use common::*;

#[test]
fn bytes_of_every_size_arrive_whether_the_receive_or_the_message_is_first() {
    let (a, b) = (Context::new(), Context::new());
    let (tx, rx) = pair(a, b);
    for len in [0, 1, 7, 64, 2047, 2048, 2049, 4096, 65537, 1 << 20] {
        for recv_first in [true, false] {
            let source = Memory::new(tx, pattern(len + 3, len as u8));
            let target = Memory::new(rx, vec![0; len + 100]);
            let requests = if recv_first {
                let request = recv(&target, 1, len + 99);
                [send(&source, 3, len), request]
            } else {
                let request = send(&source, 3, len);
                [request, recv(&target, 1, len + 99)]
            };
            assert_eq!(wait_all(&requests), [len, len]);
            let (source, target) = (source.dereg(), target.dereg());
            assert!(target[1..=len] == source[3..], "{len}");
            assert!(target[0] == 0 && target[len + 1..].iter().all(|byte| *byte == 0));
        }
    }
    close_send(tx);
    close_recv(rx);
    ok(a.finalize());
    ok(b.finalize());
}
