//! A peer that says what it may not say, from an endpoint of its own.
#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test that cannot go on fails, and every call hands the plugin what its contract asks for"
)]

mod common;

use common::*;
use nccl_net_sys::*;
use usb4_nccl::ncclNetPlugin_v12 as NET;
use usb4_ring::{
    Access, AddressHandle, Buffer, Cq, Device, EP_ADDR_LEN, Endpoint, EndpointConfig, EpAddr, MemoryRegion,
    Remote, WorkRequest,
};

struct Peer {
    device: Device,
    cq: Cq,
    endpoint: Endpoint,
    to: AddressHandle,
}

impl Peer {
    /// With a handle of the hub that made this handle.
    fn new(handle: &Handle) -> Self {
        let mut address = [0; EP_ADDR_LEN];
        address.copy_from_slice(&handle[16..40]);
        let device = Device::open(common::device()).unwrap();
        let cq = device.create_cq(1024).unwrap();
        let mut endpoint = device
            .create_endpoint(&EndpointConfig::default(), &cq, &cq)
            .unwrap();
        let to = endpoint.address_handle(&EpAddr::from_bytes(&address)).unwrap();
        Self {
            device,
            cq,
            endpoint,
            to,
        }
    }

    /// Sends, and waits until the hub has it.
    fn say(&mut self, work: WorkRequest) {
        self.endpoint.post(&work).unwrap();
        self.endpoint.submit().unwrap();
        until("the ring", || {
            self.device.progress();
            self.cq.take()
        });
    }

    /// The words and the immediate of what the hub says next.
    fn hear(&mut self, memory: &MemoryRegion) -> ([u64; 3], u64) {
        let got = until("an answer", || {
            self.device.progress();
            self.cq.take()
        });
        let mut bytes = [0; 24];
        memory.read(0, &mut bytes).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        ([word(0), word(8), word(16)], got.imm.unwrap())
    }

    fn listen(&mut self) -> MemoryRegion {
        let memory = self.device.alloc(64, Access::LOCAL).unwrap();
        self.endpoint.post_recv(9, memory.buffer(0, 64).unwrap()).unwrap();
        memory
    }

    fn message(&mut self, words: [u64; 3], imm: u64) {
        self.say(
            WorkRequest::send(self.to, Buffer::EMPTY)
                .prefix_words(words)
                .imm(imm),
        );
    }
}

#[test]
fn nothing_a_stranger_says_disturbs_a_connection_or_crashes() {
    let _alone = alone();
    let context = Context::new();
    let (tx, rx) = pair(context, context);
    let (source, target) = (Memory::new(tx, pattern(5000, 1)), Memory::new(rx, vec![0; 5000]));
    let (_listener, handle) = context.listen();
    let mut peer = Peer::new(&handle);
    let listener = u64::from(u32::from_le_bytes(handle[12..16].try_into().unwrap()));
    // In flight meanwhile.
    let waiting = [recv(&target, 0, 5000), recv(&target, 0, 5000)];
    // Every kind and some that are none, to all numbers a first communicator or listener may have.
    for kind in 0..16_u64 {
        for to in [
            0,
            1,
            2,
            1 << 16,
            1 << 16 | 1,
            2 << 16,
            3 << 16,
            listener,
            u64::from(u32::MAX),
        ] {
            for word in [0, 1, 2, u64::from(u32::MAX), u64::MAX] {
                peer.message([word; 3], to | kind << 32);
                peer.message([word, 0, 0], to | kind << 32 | 7 << 48);
                assert_eq!(waiting[0].test(), Ok(None));
            }
        }
    }
    // No immediate, no words, too much, and a write with an immediate into nothing.
    let memory = peer.device.alloc(1 << 20, Access::LOCAL).unwrap();
    for len in [0, 1, 23, 24, 4096, 1 << 20] {
        let buffer = memory.buffer(0, len).unwrap();
        peer.say(WorkRequest::send(peer.to, buffer));
        peer.say(WorkRequest::send(peer.to, buffer).imm(6 << 32));
        peer.say(
            WorkRequest::send(peer.to, buffer)
                .prefix(&[6; 24])
                .imm(6 << 32 | listener),
        );
    }
    for imm in [0, 1 << 16, u64::MAX] {
        let nowhere = Remote { addr: 0, key: 0 };
        peer.say(WorkRequest::write(peer.to, Buffer::EMPTY, nowhere).imm(imm));
    }
    for (at, request) in [(0, &waiting[0]), (1, &waiting[1])] {
        let to = send(&source, 0, 4000 + at);
        assert_eq!(wait_all(&[to, *request]), [4000 + at, 4000 + at]);
        assert!(target.bytes[..4000] == source.bytes[..4000]);
    }
    let told = warnings("dropped");
    assert_eq!(told.len(), 1, "one line, however many there are: {told:?}");
    ok(context.finalize());
}

#[test]
fn a_peer_that_breaks_its_own_connection_breaks_only_that() {
    let _alone = alone();
    let context = Context::new();
    let good = pair(context, context);
    // What a connected peer may not do: to a receiver, as `kind`, these words.
    let eager = 6_u64;
    let written = 7_u64;
    let cases: [(&str, Vec<(u64, u64)>); 4] = [
        ("a message out of turn", vec![(eager, 1)]),
        ("a message out of turn", vec![(eager, 0), (eager, 0)]),
        (
            "a message without credit",
            (0..9).map(|seq| (eager, seq)).collect(),
        ),
        ("a message without credit", vec![(written, 0)]),
    ];
    for (what, messages) in cases {
        let (listener, handle) = context.listen();
        let mut peer = Peer::new(&handle);
        let to = u64::from(u32::from_le_bytes(handle[12..16].try_into().unwrap()));
        let nonce = u64::from_le_bytes(handle[40..48].try_into().unwrap());
        let memory = peer.listen();
        // CONNECT from number 5, version 1.
        peer.message([nonce, 5 | 1 << 32, 0], to | 1 << 32);
        let rx = until("accept", || try_accept(listener));
        let ([accept, ..], imm) = peer.hear(&memory);
        assert_eq!(imm, 5 | 2 << 32);
        let rx_number = accept & 0xffff_ffff;
        for (kind, seq) in messages {
            peer.message([seq, 0, 0], rx_number | kind << 32);
        }
        // It looks at them.
        assert_eq!(try_accept(listener), None);
        let target = Memory::new(rx, vec![0; 100]);
        let code = until("the error", || {
            try_recv(&target, 0, 100, 0)
                .and_then(|r| r.map_or(Ok(None), Request::test))
                .err()
        });
        assert_eq!(code, ncclRemoteError);
        let told = warnings(what);
        assert_eq!(told.len(), 1, "{told:?} {:?}", log());
        ok(unsafe { (NET.deregMr)(rx.0, target.handle) });
        close_recv(rx);
    }
    let (source, target) = (
        Memory::new(good.0, pattern(10, 1)),
        Memory::new(good.1, vec![0; 10]),
    );
    assert_eq!(wait_all(&[send(&source, 0, 10), recv(&target, 0, 10)]), [10, 10]);
    ok(context.finalize());
}

#[test]
fn a_peer_of_another_version_is_refused_and_told_of() {
    let _alone = alone();
    let context = Context::new();
    let (listener, handle) = context.listen();
    let mut peer = Peer::new(&handle);
    let memory = peer.listen();
    let to = u64::from(u32::from_le_bytes(handle[12..16].try_into().unwrap()));
    let nonce = u64::from_le_bytes(handle[40..48].try_into().unwrap());
    peer.message([nonce, 5 | 2 << 32, 0], to | 1 << 32);
    assert_eq!(try_accept(listener), None);
    assert_eq!(peer.hear(&memory), ([2, 0, 0], 5 | 3 << 32));
    let told = warnings("it runs version 2 of the USB4 plugin's protocol and this host version 1");
    assert_eq!(told.len(), 1, "{told:?} {:?}", log());
    ok(context.finalize());
}

#[test]
fn an_acceptance_nobody_waits_for_is_answered_with_a_close() {
    let _alone = alone();
    let context = Context::new();
    let (listener, handle) = context.listen();
    let mut peer = Peer::new(&handle);
    let memory = peer.listen();
    peer.message([77 | 8 << 32, 2048, 0], 1 << 16 | 2 << 32);
    assert_eq!(try_accept(listener), None);
    assert_eq!(peer.hear(&memory), ([0; 3], 77 | 8 << 32));
    ok(context.finalize());
}
