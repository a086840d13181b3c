use std::sync::atomic::Ordering;

use super::*;

/// Both ends of a cable, and the doorbells that wake the first and the second.
fn pair() -> (Cable, Cable, OwnedFd, OwnedFd) {
    let (a, b) = (CableEnd::new().unwrap(), CableEnd::new().unwrap());
    let (a_fd, b_fd) = (
        a.fd().try_clone_to_owned().unwrap(),
        b.fd().try_clone_to_owned().unwrap(),
    );
    let (a_bell, b_bell) = (socket::doorbell().unwrap(), socket::doorbell().unwrap());
    let a = a.join(b_fd, b_bell.try_clone().unwrap()).unwrap();
    let b = b.join(a_fd, a_bell.try_clone().unwrap()).unwrap();
    (a, b, a_bell, b_bell)
}

// SAFETY, for these four: a test has one thread, and drops each half before it takes the next.

fn tx(cable: &Cable) -> Sender<'_> {
    // SAFETY: see above.
    unsafe { cable.sender() }
}

fn rx(cable: &Cable) -> Receiver<'_> {
    // SAFETY: see above.
    unsafe { cable.receiver() }
}

fn kick(cable: &Cable) {
    if usb4_device::Port::must_kick(cable) {
        usb4_device::Port::kick(cable);
    }
}

fn arm(cable: &Cable) -> bool {
    // SAFETY: see above.
    unsafe { cable.arm() }
}

fn rung(bell: &OwnedFd) -> bool {
    rustix::io::read(bell, &mut [0; 8]).is_ok()
}

#[test]
fn a_frame_crosses_and_its_slot_comes_back() {
    let (a, b, _, _) = pair();
    // SAFETY: our slot, not posted.
    unsafe { a.slot(3).unwrap().as_ptr().write_bytes(0x5a, 100) };
    assert!(tx(&a).send(3, 100));
    assert!(!tx(&a).send(3, 100), "posted already");
    let frame = rx(&b).arrival().unwrap().unwrap();
    assert_eq!(frame, Arrival { slot: 3, len: 100 });
    let mut copy = [0u8; 100];
    let from = b.arrived(3, 0, 100).unwrap();
    // SAFETY: within the neighbour's region.
    unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), 100) };
    assert_eq!(copy, [0x5a; 100]);
    assert_eq!(tx(&a).completed(), Ok(None));
    rx(&b).release(3);
    rx(&b).release(3);
    assert_eq!(tx(&a).completed(), Ok(None));
    rx(&b).hand_back();
    assert_eq!(tx(&a).completed(), Ok(Some(3)));
    assert_eq!(tx(&a).completed(), Ok(None));
}

#[test]
fn ranges_outside_a_slot_are_none() {
    const END: u16 = 256;
    assert_eq!(usize::from(END), SLOTS);
    let (a, b, _, _) = pair();
    assert!(a.slot(END).is_none() && a.slot(u16::MAX).is_none());
    assert!(b.arrived(END, 0, 1).is_none());
    assert!(b.arrived(0, SLOT, 1).is_none() && b.arrived(0, 1, SLOT).is_none());
    assert!(b.arrived(0, usize::MAX, 2).is_none());
}

#[test]
fn a_neighbour_that_announces_nonsense_is_hostile() {
    let entry = |slot: u64, len: u64| 1 << 32 | len << 16 | slot;
    for word in [entry(SLOTS as u64, 64), entry(0, 4097), entry(0xffff, 0xffff)] {
        let (a, b, _, _) = pair();
        a.ours.words(TX_RING, 1)[0].store(word, Ordering::Release);
        assert_eq!(rx(&b).arrival(), Err(Hostile), "{word:#x}");
    }
}

#[test]
fn a_slot_announced_twice_or_completed_unposted_is_hostile() {
    let (a, b, _, _) = pair();
    for (position, entry) in a.ours.words(TX_RING, 2).iter().enumerate() {
        entry.store((position as u64 + 1) << 32 | 64 << 16 | 5, Ordering::Release);
    }
    assert!(rx(&b).arrival().is_ok());
    assert_eq!(rx(&b).arrival(), Err(Hostile));
    b.ours.words(DONE_RING, 1)[0].store(1 << 32 | 9, Ordering::Release);
    assert_eq!(tx(&a).completed(), Err(Hostile));
}

#[test]
fn a_sleeping_neighbour_is_woken_once() {
    let (a, b, _a_bell, b_bell) = pair();
    kick(&a);
    assert!(!rung(&b_bell));
    assert!(arm(&b));
    assert!(tx(&a).send(0, 64));
    kick(&a);
    kick(&a);
    assert!(rung(&b_bell));
    assert!(!rung(&b_bell));
    assert!(!arm(&b), "a frame is there");
    b.disarm();
}
