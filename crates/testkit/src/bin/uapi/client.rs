//! An open device, bare.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};
use usb4_ring_abi::{LOCAL_PROCESS, uapi};

use crate::Rig;

/// An open device.
pub(crate) struct Client(OwnedFd);

/// What the kernel said: a number, or why not.
pub(crate) type Said = Result<i32, Errno>;

impl Client {
    pub(crate) fn open(rig: &Rig) -> Result<Self> {
        Self::try_open(rig).with_context(|| format!("opening {}", rig.device))
    }

    pub(crate) fn try_open(rig: &Rig) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(&*rig.device, flags, Mode::empty()).map(Self)
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Keeps the descriptor open across `exec`.
    pub(crate) fn share(&self) -> Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.0, rustix::io::FdFlags::empty())?)
    }

    /// [`Client::cq`], and its memory.
    pub(crate) fn mapped_cq(&self, depth: u32) -> Result<(u32, Map), Errno> {
        let cq = self.cq(depth)?;
        Ok((cq.cq, self.map(cq.offset, cq.bytes, MapFlags::SHARED)?))
    }

    /// An ioctl with its own argument.
    pub(crate) fn call<T: uapi::Argument>(&self, number: u32, argument: &mut T) -> Said {
        // SAFETY: an argument of the ABI begins with its size, which its constructor sets and nobody here enlarges.
        unsafe { self.ioctl(number, ptr::from_mut(argument).cast()) }
    }

    /// An ioctl with bytes as its argument; their first four say how many there are, at most all of them.
    pub(crate) fn call_bytes(&self, number: u32, bytes: &mut [u8]) -> Said {
        let said = bytes.first_chunk().map_or(0, |size| u32::from_ne_bytes(*size));
        assert!(
            said as usize <= bytes.len(),
            "the kernel would write beyond the argument"
        );
        // SAFETY: the kernel writes at most as many bytes as are said, and there are so many.
        unsafe { self.ioctl(number, bytes.as_mut_ptr().cast()) }
    }

    /// An ioctl with an argument at an address where nothing is.
    pub(crate) fn call_nowhere(&self, number: u32) -> Said {
        // SAFETY: the kernel finds nothing at the last page of the address space, and says so.
        unsafe { self.ioctl(number, ptr::without_provenance_mut(usize::MAX & !0xfff)) }
    }

    /// # Safety
    /// `argument` is what the kernel may write to, or not mapped.
    unsafe fn ioctl(&self, number: u32, argument: *mut c_void) -> Said {
        // SAFETY: the caller's promise.
        unsafe { rustix::ioctl::ioctl(self.0.as_fd(), Raw { number, argument }) }
    }

    pub(crate) fn info(&self) -> Result<uapi::Info> {
        let mut info = uapi::Info::new();
        self.call(uapi::IOC_INFO, &mut info).context("INFO")?;
        Ok(info)
    }

    pub(crate) fn cq(&self, depth: u32) -> Result<uapi::CreateCq, Errno> {
        let mut cq = uapi::CreateCq {
            depth,
            event_fd: -1,
            ..uapi::CreateCq::new()
        };
        self.call(uapi::IOC_CREATE_CQ, &mut cq)?;
        Ok(cq)
    }

    /// An endpoint with queues of 8 on one completion queue.
    pub(crate) fn ep(&self, kind: u32, cq: u32) -> Result<uapi::CreateEp, Errno> {
        self.ep_of(kind, cq, 8)
    }

    /// The same with queues of another depth.
    pub(crate) fn ep_of(&self, kind: u32, cq: u32, depth: u32) -> Result<uapi::CreateEp, Errno> {
        let mut ep = uapi::CreateEp {
            kind,
            send_cq: cq,
            recv_cq: cq,
            sq_depth: depth,
            rq_depth: depth,
            max_ahs: 1,
            ..uapi::CreateEp::new()
        };
        self.call(uapi::IOC_CREATE_EP, &mut ep)?;
        Ok(ep)
    }

    pub(crate) fn destroy(&self, number: u32, id: u32) -> Said {
        let mut destroy = uapi::Destroy {
            id,
            ..uapi::Destroy::new()
        };
        self.call(number, &mut destroy)
    }

    /// A handle without waiting for a link.
    pub(crate) fn ah(&self, ep: u32, addr: uapi::Addr) -> Result<u32, Errno> {
        let mut ah = uapi::CreateAh {
            ep,
            addr,
            ..uapi::CreateAh::new()
        };
        self.call(uapi::IOC_CREATE_AH, &mut ah)?;
        Ok(ah.ah)
    }

    pub(crate) fn destroy_ah(&self, ep: u32, ah: u32) -> Said {
        let mut destroy = uapi::DestroyAh {
            ep,
            ah,
            ..uapi::DestroyAh::new()
        };
        self.call(uapi::IOC_DESTROY_AH, &mut destroy)
    }

    /// The address behind a completion's source.
    pub(crate) fn source(&self, src: u32) -> Result<uapi::Addr, Errno> {
        let mut source = uapi::Source {
            src,
            ..uapi::Source::new()
        };
        self.call(uapi::IOC_SOURCE, &mut source)?;
        Ok(source.addr)
    }

    pub(crate) fn reg(&self, addr: u64, len: u64, access: u32) -> Result<uapi::RegMr, Errno> {
        let mut mr = uapi::RegMr {
            addr,
            len,
            access,
            ..uapi::RegMr::new()
        };
        self.call(uapi::IOC_REG_MR, &mut mr)?;
        Ok(mr)
    }

    pub(crate) fn dereg(&self, local_key: u32) -> Said {
        let mut mr = uapi::DeregMr {
            local_key,
            ..uapi::DeregMr::new()
        };
        self.call(uapi::IOC_DEREG_MR, &mut mr)
    }

    pub(crate) fn enter(&self, flags: u32, ep: u32, cq: u32, timeout_ns: u64) -> Said {
        let mut enter = uapi::Enter {
            flags,
            ep,
            cq,
            timeout_ns,
            ..uapi::Enter::new()
        };
        self.call(uapi::IOC_ENTER, &mut enter)
    }

    /// Maps `bytes` at `offset`.
    pub(crate) fn map(&self, offset: u64, bytes: u64, flags: MapFlags) -> Result<Map, Errno> {
        self.map_for(ProtFlags::READ | ProtFlags::WRITE, offset, bytes, flags)
    }

    /// As [`Self::map`], with these rights.
    pub(crate) fn map_for(
        &self,
        prot: ProtFlags,
        offset: u64,
        bytes: u64,
        flags: MapFlags,
    ) -> Result<Map, Errno> {
        let len = usize::try_from(bytes).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(ptr::null_mut(), len, prot, flags, &self.0, offset)? };
        Ok(Map { start, len })
    }
}

/// Memory of a queue.
pub(crate) struct Map {
    start: *mut c_void,
    len: usize,
}

// SAFETY: it owns its pages like a box of atomics; the pointer is not its thread's.
unsafe impl Send for Map {}

impl Map {
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped until `self` goes, from the start of a page; others may write to it, as to atomics.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / 8) }
    }

    /// Asks for other rights to it, more than it has.
    pub(crate) fn protect(&self, rights: MprotectFlags) -> Result<(), Errno> {
        // SAFETY: our mapping, which stays readable.
        unsafe { mprotect(self.start, self.len, rights | MprotectFlags::READ) }
    }

    pub(crate) fn start(&self) -> usize {
        self.start.addr()
    }

    /// Gives back a page in the middle: two mappings are left.
    pub(crate) fn split(&self) -> Result<(), Errno> {
        let middle = (self.len / 2).next_multiple_of(4096);
        // SAFETY: within our mapping; whoever calls this uses its words no more.
        unsafe { munmap(self.start.wrapping_byte_add(middle), 4096) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody holds a reference into it any more.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

/// An ioctl as it is.
struct Raw {
    number: u32,
    argument: *mut c_void,
}

// SAFETY: number and pointer are those of one ioctl (`Client::ioctl`); the result is only a number.
unsafe impl Ioctl for Raw {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        Opcode::from(self.number)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _argument: *mut c_void) -> rustix::io::Result<i32> {
        Ok(output)
    }
}

/// An ioctl and its argument.
pub(crate) struct Call {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    /// Bytes of its argument in version 1: the kernel takes no fewer.
    pub(crate) least: u32,
    /// Bytes of it now.
    pub(crate) size: u32,
}

const fn call(number: u32, name: &'static str, size: u32) -> Call {
    Call {
        number,
        name,
        least: size,
        size,
    }
}

/// Every ioctl there is.
pub(crate) const ALL: [Call; 15] = [
    call(uapi::IOC_INFO, "INFO", uapi::Info::SIZE),
    call(uapi::IOC_CREATE_CQ, "CREATE_CQ", uapi::CreateCq::SIZE),
    call(uapi::IOC_DESTROY_CQ, "DESTROY_CQ", uapi::Destroy::SIZE),
    call(uapi::IOC_CREATE_EP, "CREATE_EP", uapi::CreateEp::SIZE),
    call(uapi::IOC_DESTROY_EP, "DESTROY_EP", uapi::Destroy::SIZE),
    call(uapi::IOC_CREATE_AH, "CREATE_AH", uapi::CreateAh::SIZE),
    call(uapi::IOC_DESTROY_AH, "DESTROY_AH", uapi::DestroyAh::SIZE),
    Call {
        // Before it could name a dma-buf.
        least: 56,
        ..call(uapi::IOC_REG_MR, "REG_MR", uapi::RegMr::SIZE)
    },
    call(uapi::IOC_DEREG_MR, "DEREG_MR", uapi::DeregMr::SIZE),
    call(uapi::IOC_SOURCE, "SOURCE", uapi::Source::SIZE),
    call(uapi::IOC_PEERS, "PEERS", uapi::Peers::SIZE),
    call(uapi::IOC_ENTER, "ENTER", uapi::Enter::SIZE),
    call(uapi::IOC_CABLES, "CABLES", uapi::Cables::SIZE),
    call(uapi::IOC_RULES, "RULES", uapi::Rules::SIZE),
    call(uapi::IOC_SET_RULES, "SET_RULES", uapi::Rules::SIZE),
];

/// Fails unless the kernel said `want`.
pub(crate) fn refused<T: std::fmt::Debug>(what: &str, said: Result<T, Errno>, want: Errno) -> Result<()> {
    ensure!(
        said.as_ref().err() == Some(&want),
        "{what}: {said:?}, not {want:?}"
    );
    Ok(())
}

/// A name or key that nothing has.
pub(crate) const NOTHING: u32 = LOCAL_PROCESS;
