//! A host that keeps account of everything it lends to a link.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use usb4_engine::{
    Admission, EpAddr, Host, MemAt, MemRef, NakCode, Receive, ReceiveDone, RemoteAccess, Target, WorkDone,
};

/// Endpoints that exist.
pub const ENDPOINTS: usize = 2;
/// The key that opens everything, and the one that only reads.
pub const KEY: u64 = 7;
pub const READ_KEY: u64 = 8;
/// Bytes the keys open.
pub const REGION: u64 = 1 << 16;

/// A range lent under a reference.
#[derive(Clone, Copy)]
struct Grant {
    from: u64,
    len: u64,
}

#[derive(Default)]
struct Books {
    grants: BTreeMap<u64, Grant>,
    next: u64,
    receives: [VecDeque<Receive>; ENDPOINTS],
    gone: [bool; ENDPOINTS],
    /// Receives a link has taken.
    taken: BTreeMap<u64, usize>,
    /// Work posted and not complete, per flow.
    works: BTreeMap<u32, VecDeque<u64>>,
    targets: BTreeSet<(u32, u32)>,
    refuse_flows: bool,
    /// What becomes of requests on flows that have not taken any.
    admission: u8,
}

/// The host. Every method panics when the link breaks the contract of [`Host`].
#[derive(Default)]
pub struct TinyHost(RefCell<Books>);

impl Books {
    fn lend(&mut self, from: u64, len: u64) -> MemAt {
        self.next += 1;
        self.grants.insert(self.next, Grant { from, len });
        MemAt {
            mem: MemRef(self.next),
            offset: from,
        }
    }
}

impl TinyHost {
    /// Lends `len` bytes for a piece of work.
    pub fn lend(&self, len: u32) -> MemAt {
        self.0.borrow_mut().lend(0x10_0000, u64::from(len))
    }

    /// Takes back what [`TinyHost::lend`] gave, for work that was not accepted.
    pub fn take_back(&self, at: MemAt) {
        self.release(at.mem);
    }

    /// Notes work that a link has accepted.
    pub fn posted(&self, flow: u32, cookie: u64) {
        self.0
            .borrow_mut()
            .works
            .entry(flow)
            .or_default()
            .push_back(cookie);
    }

    /// Forgets work that was not accepted after all.
    pub fn unpost(&self, flow: u32, cookie: u64) {
        let last = self.0.borrow_mut().works.entry(flow).or_default().pop_back();
        assert_eq!(last, Some(cookie), "completes work it has refused");
    }

    /// Posts a receive to an endpoint.
    pub fn post_receive(&self, ep: usize, capacity: u32) {
        let mut books = self.0.borrow_mut();
        if books.receives[ep].len() < 64 {
            let at = match capacity {
                0 => MemAt {
                    mem: MemRef(u64::MAX),
                    offset: 0,
                },
                _ => books.lend(0x20_0000, u64::from(capacity)),
            };
            books.next += 1;
            let cookie = books.next;
            books.receives[ep].push_back(Receive { at, capacity, cookie });
        }
    }

    /// Closes an endpoint, or opens it again.
    pub fn set_gone(&self, ep: usize, gone: bool) {
        self.0.borrow_mut().gone[ep] = gone;
    }

    /// Refuses new flows, or not any more.
    pub fn refuse_flows(&self, refuse: bool) {
        self.0.borrow_mut().refuse_flows = refuse;
    }

    /// Takes requests on new flows, puts them off, drops them, or serves one read at a time.
    pub fn set_admission(&self, admission: u8) {
        self.0.borrow_mut().admission = admission;
    }

    /// Checks that `len` bytes at `at` are on loan.
    pub fn check_access(&self, at: MemAt, len: u64) {
        let books = self.0.borrow();
        let Some(grant) = books.grants.get(&at.mem.0) else {
            panic!("access under {:?}, which is not lent", at.mem);
        };
        let end = at.offset.checked_add(len).expect("an access that wraps");
        assert!(
            at.offset >= grant.from && end <= grant.from + grant.len,
            "access to {:#x}..{end:#x} of a grant of {} bytes at {:#x}",
            at.offset,
            grant.len,
            grant.from
        );
    }

    /// Whether all work is complete.
    pub fn all_done(&self) -> bool {
        self.0.borrow().works.values().all(VecDeque::is_empty)
    }

    /// Checks that nothing is on loan but the receives nobody has taken.
    pub fn check_settled(&self) {
        let books = self.0.borrow();
        let posted = books
            .receives
            .iter()
            .flatten()
            .filter(|receive| receive.capacity != 0)
            .count();
        assert_eq!(books.grants.len(), posted, "references that never came back");
        assert!(
            books.taken.is_empty(),
            "receives that never completed: {:?}",
            books.taken
        );
        assert!(
            books.works.values().all(VecDeque::is_empty),
            "work that never completed: {:?}",
            books.works
        );
        assert!(
            books.targets.is_empty(),
            "flows never closed: {:?}",
            books.targets
        );
    }
}

impl Host for TinyHost {
    fn open_flow(&self, _src: &EpAddr, dst_ep: u32, _dst_inc: u32) -> Result<Target, NakCode> {
        let mut books = self.0.borrow_mut();
        let gone = usize::try_from(dst_ep)
            .ok()
            .and_then(|ep| books.gone.get(ep).copied())
            .unwrap_or(true);
        if gone {
            return Err(NakCode::Gone);
        }
        if books.refuse_flows {
            return Err(NakCode::Resource);
        }
        books.next += 1;
        let src = u32::try_from(books.next).expect("a short run");
        books.targets.insert((dst_ep, src));
        Ok(Target { ep: dst_ep, src })
    }

    fn admit(&self, target: Target) -> Result<Admission, NakCode> {
        let books = self.0.borrow();
        assert!(
            books.targets.contains(&(target.ep, target.src)),
            "asks for a closed flow"
        );
        if books.gone[target.ep as usize] {
            return Err(NakCode::Gone);
        }
        Ok(match books.admission {
            0 => Admission::Reads(u32::MAX),
            1 => Admission::Later,
            2 => Admission::Drop,
            _ => Admission::Reads(1),
        })
    }

    fn refused(&self, target: Target, _code: NakCode) {
        let known = self.0.borrow().targets.contains(&(target.ep, target.src));
        assert!(known, "refuses for a closed flow");
    }

    fn close_flow(&self, target: Target) {
        let known = self.0.borrow_mut().targets.remove(&(target.ep, target.src));
        assert!(known, "closes a flow that is not open: {target:?}");
    }

    fn remote_access(
        &self,
        target: Target,
        key: u64,
        addr: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<MemAt, NakCode> {
        let mut books = self.0.borrow_mut();
        assert!(
            books.targets.contains(&(target.ep, target.src)),
            "access through a closed flow"
        );
        let allowed = key == KEY || (key == READ_KEY && access == RemoteAccess::Read);
        match addr.checked_add(u64::from(len)) {
            Some(end) if allowed && end <= REGION => Ok(books.lend(addr, u64::from(len))),
            _ => Err(NakCode::Access),
        }
    }

    fn take_receive(&self, target: Target, _len: u32) -> Result<Receive, NakCode> {
        let mut books = self.0.borrow_mut();
        assert!(
            books.targets.contains(&(target.ep, target.src)),
            "a receive for a closed flow"
        );
        let ep = target.ep as usize;
        if books.gone[ep] {
            return Err(NakCode::Gone);
        }
        let receive = books.receives[ep].pop_front().ok_or(NakCode::Rnr)?;
        books.taken.insert(receive.cookie, ep);
        Ok(receive)
    }

    fn lives(&self, _mem: MemRef) -> bool {
        true
    }

    fn release(&self, mem: MemRef) {
        let known = self.0.borrow_mut().grants.remove(&mem.0).is_some();
        assert!(known, "releases {mem:?}, which is not lent");
    }

    fn complete_receive(&self, target: Target, done: ReceiveDone) {
        let mut books = self.0.borrow_mut();
        assert!(
            books.targets.contains(&(target.ep, target.src)),
            "completes a receive of a closed flow"
        );
        let ep = books.taken.remove(&done.cookie);
        assert_eq!(
            ep,
            Some(target.ep as usize),
            "completes a receive it has not taken"
        );
    }

    fn complete_work(&self, done: WorkDone) {
        let mut books = self.0.borrow_mut();
        let queue = books
            .works
            .values_mut()
            .find(|queue| queue.contains(&done.cookie));
        let first = queue.and_then(VecDeque::pop_front);
        assert_eq!(
            first,
            Some(done.cookie),
            "completes work out of order, twice, or never posted"
        );
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc, bytes)
    }
}
