//! Messages through the provider's tables, over the soft device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands valid objects to the provider"
)]

mod common;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

use common::*;
use libfabric_sys::*;

/// An operation's context.
fn context(n: usize) -> *mut c_void {
    n as *mut c_void
}

/// The tests share the process's environment and its two cores.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    soft("fi-messages");
    guard
}

#[test]
fn tagged_messages_of_every_protocol_arrive_with_their_tag_data_and_sender() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    for len in [0, 1, 64, 256, 4096, 16384, 16385, 300_000, 3 << 20] {
        for expected in [true, false] {
            let message = bytes(len, 1);
            let mut buffer = vec![0; len];
            if expected {
                b.trecv(a.address, &mut buffer, 0x77, 0, 2);
            }
            let rc = unsafe {
                let (buf, to) = (message.as_ptr().cast(), b.address);
                ((*(*a.ep).tagged).senddata)(a.ep, buf, len, null_mut(), 99, to, 0x77, context(1))
            };
            assert_eq!(rc, 0);
            if !expected {
                b.drive();
                b.trecv(FI_ADDR_UNSPEC, &mut buffer, 0x70, 0xf, 2);
            }
            let (got, source) = b.next_or_error(&[&a]).unwrap();
            assert_eq!(
                (got.op_context as usize, got.len, got.tag, got.data),
                (2, len, 0x77, 99)
            );
            assert_eq!(got.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
            assert_eq!(source, a.address);
            let sent = a.next(&[&b]);
            assert_eq!((sent.op_context as usize, sent.flags), (1, FI_SEND | FI_TAGGED));
            assert_eq!(buffer, message, "{len}");
        }
    }
}

#[test]
fn a_constant_can_be_sent() {
    static CONSTANT: [u8; 200_000] = [0x5a; 200_000];
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    for len in [200, 9000, CONSTANT.len()] {
        let mut buffer = vec![0; len];
        b.trecv(a.address, &mut buffer, 1, 0, 2);
        assert_eq!(a.tsend(&b, &CONSTANT[..len], 1, 1), 0);
        b.next(&[&a]);
        a.next(&[&b]);
        assert_eq!(buffer, CONSTANT[..len]);
    }
}

#[test]
fn an_endpoint_reaches_itself() {
    let _alone = alone();
    let a = Opened::new().endpoint();
    for len in [64, 100_000] {
        let message = bytes(len, 3);
        let mut buffer = vec![0; len];
        a.trecv(a.address, &mut buffer, 1, 0, 5);
        assert_eq!(a.tsend(&a, &message, 1, 6), 0);
        let mut contexts = [a.next(&[]).op_context as usize, a.next(&[]).op_context as usize];
        contexts.sort_unstable();
        assert_eq!((contexts, buffer), ([5, 6], message));
    }
}

#[test]
fn untagged_messages_do_not_match_tagged_receives() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    let (mut tagged, mut plain) = ([0u8; 8], [0u8; 8]);
    b.trecv(FI_ADDR_UNSPEC, &mut tagged, 0, u64::MAX, 1);
    unsafe {
        let msg = &*(*b.ep).msg;
        let buf = plain.as_mut_ptr().cast();
        assert_eq!(
            (msg.recv)(b.ep, buf, 8, null_mut(), FI_ADDR_UNSPEC, 2 as *mut c_void),
            0
        );
        let msg = &*(*a.ep).msg;
        assert_eq!((msg.inject)(a.ep, [7u8; 8].as_ptr().cast(), 8, b.address), 0);
    }
    let got = b.next(&[&a]);
    assert_eq!(
        (got.op_context as usize, got.flags, plain),
        (2, FI_RECV | FI_MSG, [7; 8])
    );
    assert_eq!(
        a.poll().err(),
        Some(-(FI_EAGAIN as isize)),
        "an injected message reports nothing"
    );
}

#[test]
fn a_vector_goes_out_and_in_as_one_message() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    for len in [100, 9000, 90_000] {
        let message = bytes(len, 9);
        let mut buffer = vec![0u8; len];
        let iov = |base: *mut c_void, len| libc::iovec {
            iov_base: base,
            iov_len: len,
        };
        let cut = len / 3;
        let into = [
            iov(buffer.as_mut_ptr().cast(), cut * 2),
            iov(buffer[cut * 2..].as_mut_ptr().cast(), len - cut * 2),
        ];
        let out = [
            iov(message.as_ptr().cast_mut().cast(), cut),
            iov(message[cut..].as_ptr().cast_mut().cast(), len - cut),
        ];
        unsafe {
            let tagged = &*(*b.ep).tagged;
            let rc = (tagged.recvv)(b.ep, into.as_ptr(), null_mut(), 2, a.address, 1, 0, null_mut());
            assert_eq!(rc, 0);
            let tagged = &*(*a.ep).tagged;
            assert_eq!(
                (tagged.sendv)(a.ep, out.as_ptr(), null_mut(), 2, b.address, 1, null_mut()),
                0
            );
        }
        b.next(&[&a]);
        a.next(&[&b]);
        assert_eq!(buffer, message);
    }
}

#[test]
fn a_truncated_message_is_an_error_entry_between_its_neighbours() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    let message = bytes(100, 1);
    let mut buffers = [vec![0; 100], vec![0; 60], vec![0; 100]];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        b.trecv(a.address, buffer, 1, 0, n);
        assert_eq!(a.tsend(&b, &message, 1, n), 0);
        a.next(&[&b]);
    }
    assert_eq!(b.next(&[&a]).op_context as usize, 0);
    assert_eq!(b.next_or_error(&[&a]).err(), Some(-(FI_EAVAIL as isize)));
    let error = b.error();
    assert_eq!(
        (error.op_context as usize, error.err, error.len, error.olen),
        (1, FI_ETRUNC, 60, 40)
    );
    assert_eq!(b.next(&[&a]).op_context as usize, 2);
    assert_eq!(buffers[1], message[..60]);
}

#[test]
fn an_error_entry_of_an_old_application_is_not_overrun() {
    let _alone = alone();
    let a = Opened::new().endpoint();
    let mut buffer = [0u8; 8];
    a.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 4);
    assert_eq!(
        unsafe { ((*(*a.ep).ops).cancel)(a.ep.cast(), 4 as *mut c_void) },
        0
    );
    assert_eq!(a.poll().err(), Some(-(FI_EAVAIL as isize)));
    // The application asked for 1.17, whose structure ends before `src_addr`.
    let mut entry: fi_cq_err_entry = unsafe { std::mem::zeroed() };
    entry.src_addr = 0x5555;
    assert_eq!(unsafe { ((*(*a.cq).ops).readerr)(a.cq, &mut entry, 0) }, 1);
    assert_eq!(
        (entry.err, entry.op_context as usize, entry.src_addr),
        (FI_ECANCELED, 4, 0x5555)
    );
    let again = unsafe { ((*(*a.ep).ops).cancel)(a.ep.cast(), 4 as *mut c_void) };
    assert_eq!(again, -(FI_ENOENT as isize));
}

#[test]
fn a_peek_reports_finds_keeps_and_claims() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    let peek = |flags: u64, context: usize, buffer: &mut [u8]| unsafe {
        let iov = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let msg = fi_msg_tagged {
            msg_iov: &iov,
            desc: null_mut(),
            iov_count: 1,
            addr: FI_ADDR_UNSPEC,
            tag: 0x10,
            ignore: 0xf,
            context: context as *mut c_void,
            data: 0,
        };
        assert_eq!(((*(*b.ep).tagged).recvmsg)(b.ep, &msg, flags), 0);
    };
    let mut buffer = vec![0; 50_000];
    peek(FI_PEEK, 1, &mut buffer);
    assert_eq!(b.poll().err(), Some(-(FI_EAVAIL as isize)));
    assert_eq!(b.error().err, FI_ENOMSG);
    for len in [100, 50_000] {
        let message = bytes(len, 2);
        assert_eq!(a.tsend(&b, &message, 0x13, 9), 0);
        let found = loop {
            peek(FI_PEEK | FI_CLAIM, 2, &mut buffer);
            match b.poll() {
                Ok((entry, _)) => break entry,
                Err(_) => assert_eq!(b.error().err, FI_ENOMSG),
            }
            a.drive();
        };
        assert_eq!((found.len, found.tag), (len, 0x13));
        peek(FI_CLAIM, 2, &mut buffer);
        assert_eq!(b.next(&[&a]).len, len);
        assert_eq!(buffer[..len], message);
        a.next(&[&b]);
    }
}

#[test]
fn a_multi_receive_buffer_comes_back_with_its_last_message() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    let mut buffer = vec![0u8; 1000];
    let min: usize = 300;
    unsafe {
        let ops = &*(*b.ep).ops;
        let value = (&raw const min).cast();
        assert_eq!(
            (ops.setopt)(b.ep.cast(), FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, value, 8),
            0
        );
        let iov = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: 1000,
        };
        let msg = fi_msg {
            msg_iov: &iov,
            desc: null_mut(),
            iov_count: 1,
            addr: FI_ADDR_UNSPEC,
            context: 3 as *mut c_void,
            data: 0,
        };
        assert_eq!(((*(*b.ep).msg).recvmsg)(b.ep, &msg, FI_MULTI_RECV), 0);
        for seed in 0..2 {
            let message = bytes(400, seed);
            let msg = &*(*a.ep).msg;
            assert_eq!(
                (msg.send)(
                    a.ep,
                    message.as_ptr().cast(),
                    400,
                    null_mut(),
                    b.address,
                    null_mut()
                ),
                0
            );
            a.next(&[&b]);
            let got = b.next(&[&a]);
            assert_eq!(
                (got.buf as usize - buffer.as_ptr() as usize, got.len),
                (400 * seed as usize, 400)
            );
            assert_eq!(
                got.flags & FI_MULTI_RECV != 0,
                seed == 1,
                "given back with the second"
            );
            assert_eq!(buffer[400 * seed as usize..][..400], message);
        }
    }
}

#[test]
fn selective_completion_reports_only_what_asks_for_it() {
    let _alone = alone();
    let mut world = Opened::new();
    let cq = world.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE);
    let a = world.endpoint_on(cq, FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION);
    let b = world.endpoint();
    let mut buffers = [[0u8; 8]; 2];
    for buffer in &mut buffers {
        b.trecv(FI_ADDR_UNSPEC, buffer, 1, 0, 1);
    }
    let message = [1u8; 8];
    assert_eq!(a.tsend(&b, &message, 1, 1), 0);
    let iov = libc::iovec {
        iov_base: message.as_ptr().cast_mut().cast(),
        iov_len: 8,
    };
    let msg = fi_msg_tagged {
        msg_iov: &iov,
        desc: null_mut(),
        iov_count: 1,
        addr: b.address,
        tag: 1,
        ignore: 0,
        context: 2 as *mut c_void,
        data: 0,
    };
    let flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
    assert_eq!(unsafe { ((*(*a.ep).tagged).sendmsg)(a.ep, &msg, flags) }, 0);
    assert_eq!(a.next(&[&b]).op_context as usize, 2);
    b.next(&[&a]);
    b.next(&[&a]);
    assert_eq!(a.poll().err(), Some(-(FI_EAGAIN as isize)));
}

#[test]
fn a_sleeper_on_the_descriptor_is_woken_by_a_message_and_by_a_signal() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    let mut fd = -1;
    unsafe {
        assert_eq!(
            ((*(*b.cq).fid.ops).control)(b.cq.cast(), FI_GETWAIT, (&raw mut fd).cast()),
            0
        )
    };
    let mut buffer = [0u8; 8];
    b.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 1);
    let mut fids = [b.cq.cast::<fid>()];
    unsafe {
        let ops = &*(*world.fabric).ops;
        assert_eq!((ops.trywait)(world.fabric, fids.as_mut_ptr(), 1), 0);
        assert_eq!(a.tsend(&b, &[5; 8], 1, 1), 0);
        a.next(&[]);
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        assert_eq!(libc::poll(&mut poll, 1, 10_000), 1);
        assert_eq!((ops.trywait)(world.fabric, fids.as_mut_ptr(), 1), -FI_EAGAIN);
    }
    let entry = b.next(&[]);
    assert_eq!((entry.op_context as usize, buffer), (1, [5; 8]));

    let cq = b.cq as usize;
    let signaller = std::thread::spawn(move || unsafe {
        let cq = cq as *mut fid_cq;
        assert_eq!(((*(*cq).ops).signal)(cq), 0);
    });
    let mut entry = empty();
    let rc = unsafe { ((*(*b.cq).ops).sread)(b.cq, (&raw mut entry).cast(), 1, std::ptr::null(), 10_000) };
    assert_eq!(rc, -(FI_ECANCELED as isize));
    signaller.join().unwrap();
    let rc = unsafe { ((*(*b.cq).ops).sread)(b.cq, (&raw mut entry).cast(), 1, std::ptr::null(), 1) };
    assert_eq!(rc, -(FI_EAGAIN as isize), "the time is over");
}

#[test]
fn two_threads_exchange_while_both_sleep_for_completions() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    let side = |me: [usize; 3], other: [usize; 3], first: bool| {
        move || {
            let me = Endpoint {
                ep: me[0] as *mut _,
                cq: me[1] as *mut _,
                address: me[2] as u64,
            };
            let other = Endpoint {
                ep: other[0] as *mut _,
                cq: other[1] as *mut _,
                address: other[2] as u64,
            };
            let take = |wanted: usize| {
                let mut seen = 0;
                while seen < wanted {
                    let mut entry = empty();
                    let rc = unsafe {
                        ((*(*me.cq).ops).sread)(me.cq, (&raw mut entry).cast(), 1, std::ptr::null(), 20_000)
                    };
                    assert_eq!(rc, 1);
                    seen += 1;
                }
            };
            for n in 0..20u8 {
                let len = if n % 2 == 0 { 64 } else { 40_000 };
                let out = bytes(len, n);
                let mut into = vec![0; len];
                me.trecv(other.address, &mut into, n.into(), 0, 1);
                if first {
                    assert_eq!(me.tsend(&other, &out, n.into(), 2), 0);
                    take(2);
                } else {
                    take(1);
                    assert_eq!(me.tsend(&other, &out, n.into(), 2), 0);
                    take(1);
                }
                assert_eq!(into, out);
            }
        }
    };
    let raw = |e: &Endpoint| [e.ep as usize, e.cq as usize, e.address as usize];
    let other = std::thread::spawn(side(raw(&b), raw(&a), false));
    side(raw(&a), raw(&b), true)();
    other.join().unwrap();
}

#[test]
fn each_completion_format_has_its_own_size() {
    let _alone = alone();
    let mut world = Opened::new();
    for (format, size) in [
        (FI_CQ_FORMAT_CONTEXT, size_of::<fi_cq_entry>()),
        (FI_CQ_FORMAT_MSG, size_of::<fi_cq_msg_entry>()),
        (FI_CQ_FORMAT_DATA, size_of::<fi_cq_data_entry>()),
        (FI_CQ_FORMAT_TAGGED, size_of::<fi_cq_tagged_entry>()),
    ] {
        let cq = world.cq(format, FI_WAIT_NONE);
        let a = world.endpoint_on(cq, FI_SEND | FI_RECV);
        let mut buffer = [0u8; 8];
        a.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 0x1111);
        assert_eq!(a.tsend(&a, &[1; 8], 1, 0x1111), 0);
        let mut room = [0xa5u8; 160];
        let mut taken = 0;
        while taken < 2 {
            let at = room[taken as usize * size..].as_mut_ptr().cast();
            let rc = unsafe { ((*(*cq).ops).read)(cq, at, 2 - taken as usize) };
            taken += rc.max(0);
        }
        for n in 0..2 {
            let context = usize::from_ne_bytes(room[n * size..][..8].try_into().unwrap());
            assert_eq!(context, 0x1111);
        }
        assert!(
            room[2 * size..].iter().all(|b| *b == 0xa5),
            "format {format} writes past its entries"
        );
        a.close();
        assert_eq!(close(cq.cast()), 0);
    }
}

#[test]
fn objects_in_use_do_not_close_and_closed_ones_let_go() {
    let _alone = alone();
    let mut world = Opened::new();
    let a = world.endpoint();
    assert_eq!(close(world.av.cast()), -FI_EBUSY);
    assert_eq!(close(a.cq.cast()), -FI_EBUSY);
    assert_eq!(close(world.domain.cast()), -FI_EBUSY);
    assert_eq!(close(world.fabric.cast()), -FI_EBUSY);
    a.close();
    for fid in [
        a.cq.cast(),
        world.av.cast(),
        world.domain.cast(),
        world.fabric.cast(),
    ] {
        assert_eq!(close(fid), 0);
    }
}

#[test]
fn a_message_sent_just_before_close_arrives() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    for n in 0..100u8 {
        assert_eq!(a.tsend(&b, &[n; 64], 1, 1), 0);
    }
    a.close();
    for n in 0..100u8 {
        let mut buffer = [0u8; 64];
        b.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 1);
        b.next(&[]);
        assert_eq!(buffer, [n; 64]);
    }
}

#[test]
fn a_completion_another_thread_makes_wakes_who_sleeps_on_the_queue() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    let mut fd = -1;
    unsafe {
        let control = (*(*b.cq).fid.ops).control;
        assert_eq!(control(b.cq.cast(), FI_GETWAIT, (&raw mut fd).cast()), 0);
    }
    let sleep = || unsafe {
        let mut fids = [b.cq.cast::<fid>()];
        assert_eq!(
            ((*(*world.fabric).ops).trywait)(world.fabric, fids.as_mut_ptr(), 1),
            0
        );
    };
    let woken = || {
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    };
    let mut buffer = [0u8; 8];
    // A receive whose message is here already.
    assert_eq!(a.tsend(&b, &[1; 8], 1, 1), 0);
    a.next(&[&b]);
    b.drive();
    sleep();
    assert!(!woken());
    b.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 7);
    assert!(woken());
    assert_eq!(b.next(&[]).op_context as usize, 7);
    // A receive that is cancelled.
    b.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 8);
    sleep();
    assert!(!woken());
    assert_eq!(unsafe { ((*(*b.ep).ops).cancel)(b.ep.cast(), context(8)) }, 0);
    assert!(woken());
    assert_eq!(b.poll().err(), Some(-(FI_EAVAIL as isize)));
    assert_eq!(b.error().err, FI_ECANCELED);
    sleep();
    assert!(!woken());
}
