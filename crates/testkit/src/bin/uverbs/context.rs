//! An open device: its context, its ring descriptor, and objects made through uverbs alone.

use std::ffi::c_void;
use std::fs;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use usb4_ring_abi::{Slots, uapi};

use crate::command::{Answer, Command, Number};
use crate::map::Map;

/// A GID, as it stands in a GRH.
pub(crate) type Gid = [u8; 16];

/// The only port.
pub(crate) const PORT: u8 = 1;

/// An open uverbs device with a context.
pub(crate) struct Context {
    pub(crate) uverbs: OwnedFd,
    pub(crate) ring: OwnedFd,
    pub(crate) events: OwnedFd,
    pub(crate) notice: (u64, u32),
    pub(crate) ring_abi: u32,
}

/// Opens `/dev/infiniband/uverbsN` of the device of that name.
pub(crate) fn open(device: &str) -> Result<OwnedFd> {
    let class = "/sys/class/infiniband_verbs";
    for entry in fs::read_dir(class).context(class)?.flatten() {
        let named = fs::read_to_string(entry.path().join("ibdev")).unwrap_or_default();
        if named.trim() == device {
            let path = format!("/dev/infiniband/{}", entry.file_name().to_string_lossy());
            return rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).context(path);
        }
    }
    bail!("there is no device {device}")
}

/// Reads a file of the device's port in sysfs.
pub(crate) fn port_file(device: &str, name: &str) -> Result<String> {
    let path = format!("/sys/class/infiniband/{device}/ports/{PORT}/{name}");
    Ok(fs::read_to_string(&path).context(path)?.trim().to_string())
}

/// GID 0.
pub(crate) fn gid(device: &str) -> Result<Gid> {
    let text = port_file(device, "gids/0")?;
    let digits: String = text.chars().filter(|letter| *letter != ':').collect();
    let number = u128::from_str_radix(&digits, 16).with_context(|| format!("the GID is {text}"))?;
    Ok(number.to_be_bytes())
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) handle: u32,
    pub(crate) depth: u32,
    pub(crate) map: Map,
}

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) handle: u32,
    pub(crate) number: u32,
    pub(crate) ep: u32,
    pub(crate) sq_depth: u32,
    pub(crate) rq_depth: u32,
    pub(crate) sq_slots: Slots,
    pub(crate) rq_slots: Slots,
    /// Elements of sends and receives.
    pub(crate) sge: (u32, u32),
    /// Bytes of inline data.
    pub(crate) inline: u32,
    pub(crate) sq: Map,
    /// Its own, or the shared one it draws from.
    pub(crate) rq: Map,
    /// What `ENTER` calls that.
    pub(crate) receives: u32,
}

/// A shared receive queue.
#[derive(Clone, Copy)]
pub(crate) struct Srq {
    pub(crate) handle: u32,
    pub(crate) name: u32,
    pub(crate) depth: u32,
    /// Elements of its receives.
    pub(crate) sge: u32,
    slots: Slots,
    place: (u64, u64),
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Context {
    pub(crate) fn new(device: &str) -> Result<Self> {
        let uverbs = open(device)?;
        let answer = Command::with_answer(Number::GetContext, 8 + 24)
            .run(&uverbs)
            .context("GET_CONTEXT")?;
        Ok(Self {
            uverbs,
            events: owned(answer.i32(0))?,
            ring_abi: answer.u32(8),
            ring: owned(answer.i32(12))?,
            notice: (answer.u64(24), answer.u32(20)),
        })
    }

    fn run(&self, command: Command) -> Result<Answer, Errno> {
        command.run(&self.uverbs)
    }

    pub(crate) fn query_device(&self) -> Result<Answer, Errno> {
        self.run(Command::with_answer(Number::QueryDevice, 176))
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<Answer, Errno> {
        self.run(Command::with_answer(Number::QueryPort, 40).u8(port).zeros(7))
    }

    pub(crate) fn pd(&self) -> Result<u32, Errno> {
        Ok(self.run(Command::with_answer(Number::AllocPd, 4))?.u32(0))
    }

    pub(crate) fn dealloc_pd(&self, pd: u32) -> Result<(), Errno> {
        self.run(Command::plain(Number::DeallocPd).u32(pd)).map(drop)
    }

    pub(crate) fn channel(&self) -> Result<OwnedFd> {
        let answer = self.run(Command::with_answer(Number::CreateCompChannel, 4))?;
        owned(answer.i32(0))
    }

    /// A completion queue, whose events go to `channel`, or nowhere.
    pub(crate) fn try_cq(&self, entries: u32, channel: i32) -> Result<Answer, Errno> {
        let command = Command::with_answer(Number::CreateCq, 8 + 24).u64(0x77);
        let command = command.u32(entries).u32(0).raw(&channel.to_le_bytes());
        self.run(command.u32(0))
    }

    pub(crate) fn cq(&self, entries: u32, channel: i32) -> Result<Cq> {
        let answer = self.try_cq(entries, channel).context("CREATE_CQ")?;
        let depth = answer.u32(12);
        ensure!(answer.u32(4) == depth, "the queue has two depths");
        Ok(Cq {
            handle: answer.u32(0),
            depth,
            map: Map::new(&self.ring, answer.u64(16), answer.u64(24)).context("map a completion queue")?,
        })
    }

    pub(crate) fn destroy_cq(&self, handle: u32) -> Result<(), Errno> {
        let command = Command::with_answer(Number::DestroyCq, 8);
        self.run(command.u32(handle).u32(0)).map(drop)
    }

    /// Has the kernel arm a completion queue.
    pub(crate) fn arm(&self, cq: u32, solicited: bool) -> Result<(), Errno> {
        let command = Command::plain(Number::ReqNotifyCq);
        self.run(command.u32(cq).u32(u32::from(solicited))).map(drop)
    }

    /// A queue pair of `kind` (`enum ib_uverbs_qp_type`) with `entries` of each queue.
    pub(crate) fn try_qp(&self, kind: u8, pd: u32, cq: u32, entries: u32, sge: u32) -> Result<Answer, Errno> {
        self.try_qp_of(kind, pd, cq, entries, (sge, 0), None)
    }

    /// The same with so many bytes of inline data, and a shared receive queue, perhaps.
    pub(crate) fn try_qp_of(
        &self,
        kind: u8,
        pd: u32,
        cq: u32,
        entries: u32,
        (sge, inline): (u32, u32),
        srq: Option<Srq>,
    ) -> Result<Answer, Errno> {
        let command = Command::with_answer(Number::CreateQp, 32 + 56).u64(0x88);
        let command = command
            .u32(pd)
            .u32(cq)
            .u32(cq)
            .u32(srq.map_or(0, |srq| srq.handle));
        let command = command.u32(entries).u32(entries).u32(sge).u32(sge).u32(inline);
        self.run(command.u8(0).u8(kind).u8(u8::from(srq.is_some())).u8(0))
    }

    pub(crate) fn qp(&self, kind: u8, pd: u32, cq: u32, entries: u32) -> Result<Qp> {
        self.qp_of(kind, pd, cq, entries, (1, 0), None)
    }

    /// A queue pair whose entries have room for so many elements and so many bytes of inline data, and that draws from a
    /// shared receive queue, perhaps.
    pub(crate) fn qp_of(
        &self,
        kind: u8,
        pd: u32,
        cq: u32,
        entries: u32,
        room: (u32, u32),
        srq: Option<Srq>,
    ) -> Result<Qp> {
        let answer = self
            .try_qp_of(kind, pd, cq, entries, room, srq)
            .context("CREATE_QP")?;
        let slots = |at: usize| Slots::of(answer.u32(at)).context("slots of another size");
        let map =
            |(offset, bytes)| Map::new(&self.ring, offset, bytes).context("map a queue of a queue pair");
        let place = |at: usize| (answer.u64(at), answer.u64(at + 8));
        let (ep, own) = (answer.u32(32), answer.u32(40));
        ensure!(
            srq.is_some() == (own == 0),
            "its own receive queue has {own} entries"
        );
        Ok(Qp {
            handle: answer.u32(0),
            number: answer.u32(4),
            ep,
            sq_depth: answer.u32(36),
            rq_depth: srq.map_or(own, |srq| srq.depth),
            sq_slots: slots(44)?,
            rq_slots: srq.map_or_else(|| slots(80), |srq| Ok(srq.slots))?,
            sge: (answer.u32(16), answer.u32(20)),
            inline: answer.u32(24),
            sq: map(place(48))?,
            rq: map(srq.map_or_else(|| place(64), |srq| srq.place))?,
            receives: srq.map_or(ep, |srq| srq.name),
        })
    }

    pub(crate) fn try_srq(&self, pd: u32, entries: u32, sge: u32) -> Result<Answer, Errno> {
        let command = Command::with_answer(Number::CreateSrq, 16 + 32).u64(0x66);
        self.run(command.u32(pd).u32(entries).u32(sge).u32(0))
    }

    /// One of a kind of its own (`enum ib_srq_type`).
    pub(crate) fn try_xsrq(&self, pd: u32, cq: u32, kind: u32) -> Result<Answer, Errno> {
        let command = Command::with_answer(Number::CreateXsrq, 16 + 32).u64(0x66);
        let command = command.u32(kind).u32(pd).u32(8).u32(1).u32(0).u32(4);
        self.run(command.u32(0).u32(cq))
    }

    pub(crate) fn srq(&self, pd: u32, entries: u32, sge: u32) -> Result<Srq> {
        let answer = self.try_srq(pd, entries, sge).context("CREATE_SRQ")?;
        let depth = answer.u32(20);
        ensure!(answer.u32(4) == depth, "the queue has two depths");
        Ok(Srq {
            handle: answer.u32(0),
            name: answer.u32(16),
            depth,
            sge: answer.u32(8),
            slots: Slots::of(answer.u32(40)).context("slots of another size")?,
            place: (answer.u64(24), answer.u64(32)),
        })
    }

    /// Sets what `mask` (`enum ib_srq_attr_mask`) says.
    pub(crate) fn modify_srq(&self, srq: u32, mask: u32, entries: u32, limit: u32) -> Result<(), Errno> {
        let command = Command::plain(Number::ModifySrq).u32(srq).u32(mask);
        self.run(command.u32(entries).u32(limit)).map(drop)
    }

    /// Entries, buffers of each, limit.
    pub(crate) fn query_srq(&self, srq: u32) -> Result<[u32; 3], Errno> {
        let answer = self.run(Command::with_answer(Number::QuerySrq, 16).u32(srq).u32(0))?;
        Ok([answer.u32(0), answer.u32(4), answer.u32(8)])
    }

    pub(crate) fn destroy_srq(&self, handle: u32) -> Result<(), Errno> {
        let command = Command::with_answer(Number::DestroySrq, 4);
        self.run(command.u32(handle).u32(0)).map(drop)
    }

    pub(crate) fn destroy_qp(&self, handle: u32) -> Result<(), Errno> {
        let command = Command::with_answer(Number::DestroyQp, 4);
        self.run(command.u32(handle).u32(0)).map(drop)
    }

    /// `struct ib_uverbs_query_qp_resp`.
    pub(crate) fn query_qp(&self, handle: u32) -> Result<Answer, Errno> {
        let command = Command::with_answer(Number::QueryQp, 128);
        self.run(command.u32(handle).u32(0x1f_ffff))
    }

    /// A region that is called `iova` by who uses it.
    pub(crate) fn reg_as(&self, pd: u32, start: u64, iova: u64, len: u64, access: u32) -> Result<Mr, Errno> {
        let command = Command::with_answer(Number::RegMr, 12);
        let answer = self.run(command.u64(start).u64(len).u64(iova).u32(pd).u32(access))?;
        Ok(Mr {
            handle: answer.u32(0),
            lkey: answer.u32(4),
            rkey: answer.u32(8),
        })
    }

    pub(crate) fn reg(&self, pd: u32, start: u64, len: u64, access: u32) -> Result<Mr, Errno> {
        self.reg_as(pd, start, start, len, access)
    }

    pub(crate) fn dereg(&self, handle: u32) -> Result<(), Errno> {
        self.run(Command::plain(Number::DeregMr).u32(handle)).map(drop)
    }

    /// An address handle, and the node it leads to.
    pub(crate) fn ah(&self, pd: u32, gid: &Gid) -> Result<(u32, [u64; 2]), Errno> {
        let command = Command::with_answer(Number::CreateAh, 4 + 16).u64(0x99);
        let command = command.u32(pd).u32(0).raw(gid).u32(0);
        // Index, hop limit, traffic class; LID, service level, path bits, rate, GRH, port.
        let command = command.u8(0).u8(1).u8(0).u8(0).u16(0).u8(0).u8(0);
        let answer = self.run(command.u8(0).u8(1).u8(PORT).u8(0))?;
        Ok((answer.u32(0), [answer.u64(4), answer.u64(12)]))
    }

    pub(crate) fn destroy_ah(&self, handle: u32) -> Result<(), Errno> {
        self.run(Command::plain(Number::DestroyAh).u32(handle)).map(drop)
    }

    /// A call of the ring API through the context's own descriptor.
    pub(crate) fn call<T: uapi::Argument>(&self, number: u32, argument: &mut T) -> Result<i32, Errno> {
        call(&self.ring, number, argument)
    }
}

/// A call of the ring API.
pub(crate) fn call<T: uapi::Argument>(fd: impl AsFd, number: u32, argument: &mut T) -> Result<i32, Errno> {
    let argument = ptr::from_mut(argument).cast();
    // SAFETY: an argument of the ABI begins with its size, which its constructor sets.
    unsafe { rustix::ioctl::ioctl(fd, Raw { number, argument }) }
}

/// A descriptor that the kernel has just made.
fn owned(fd: i32) -> Result<OwnedFd> {
    ensure!(fd > 2, "the kernel has made descriptor {fd}");
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An ioctl as it is.
struct Raw {
    number: u32,
    argument: *mut c_void,
}

// SAFETY: number and pointer are those of one ioctl (`call`); the result is only a number.
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
