//! libibverbs' objects: a device with its registered memory, and what one case has of it.

use std::ffi::{CStr, c_int};
use std::ptr;

use anyhow::{Context as _, Result, bail, ensure};
use rdma_core_sys::client::{
    Address, DataPath, Gid, GidWords, LOCAL_WRITE, Masks, QpAttr, RC, REMOTE_ATOMIC, REMOTE_READ,
    REMOTE_WRITE, UC, UD, Verbs, done, made,
};
use rdma_core_sys::{
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_ah, ibv_context, ibv_cq,
    ibv_mr, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
};

use crate::case::{Case, INLINE, Transport};
use crate::memory::Memory;

/// Of datagrams.
pub(crate) const QKEY: u32 = 0x1234_5678;

/// Which device, and how it is used.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) gid_index: u8,
    /// Bytes of a frame: 256 to 4096.
    pub(crate) mtu: u32,
}

/// An open device, and memory registered with it.
pub(crate) struct Device {
    verbs: Verbs,
    data_path: DataPath,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    wanted: Wanted,
    pub(crate) memory: Memory,
    pub(crate) gid: Gid,
}

impl Device {
    pub(crate) fn open(wanted: &Wanted, bytes: usize) -> Result<Self> {
        let verbs = Verbs::load()?;
        let context = open(&verbs, &wanted.name)?;
        // SAFETY: an open device.
        let data_path = unsafe { DataPath::of(context) }.context("the provider does not post or poll")?;
        let mut device = Self {
            verbs,
            data_path,
            context,
            pd: ptr::null_mut(),
            mr: ptr::null_mut(),
            wanted: wanted.clone(),
            memory: Memory::new(bytes),
            gid: [0; 16],
        };
        let (address, len) = (device.memory.address(), device.memory.bytes());
        let start = ptr::with_exposed_provenance_mut(usize::try_from(address)?);
        let access = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
        let mut gid = GidWords::default();
        // SAFETY: each takes what was made before it; the memory is there until it is deregistered, and is atomics.
        unsafe {
            device.pd = made((verbs.alloc_pd)(context), "allocate a protection domain")?;
            device.mr = made((verbs.reg_mr)(device.pd, start, len, access), "register memory")?;
            let error = (verbs.query_gid)(context, 1, wanted.gid_index.into(), &raw mut gid);
            // A place of the port's table that has none is read as zeros.
            ensure!(
                error == 0 && gid.0 != [0; 16],
                "there is no GID {}: see ibv_devinfo -v",
                wanted.gid_index
            );
        }
        device.gid = gid.0;
        Ok(device)
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: a registered region.
        unsafe { (*self.mr).rkey }
    }

    /// A buffer at byte `at` of the memory.
    pub(crate) fn buffer(&self, at: usize, len: u32) -> ibv_sge {
        ibv_sge {
            addr: self.memory.address() + at as u64,
            length: len,
            // SAFETY: a registered region.
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    fn way(&self, gid: Gid) -> Address {
        Address {
            gid: GidWords(gid),
            sgid_index: self.wanted.gid_index,
            hop_limit: 64,
            is_global: 1,
            port_num: 1,
            ..Address::default()
        }
    }

    fn words(&self, status: c_int) -> String {
        // SAFETY: it returns a string of the library's for any number.
        let words = unsafe { CStr::from_ptr((self.verbs.wc_status_str)(status)) };
        words.to_string_lossy().into_owned()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: what there is, each after what uses it.
        unsafe {
            if !self.mr.is_null() {
                (self.verbs.dereg_mr)(self.mr);
            }
            if !self.pd.is_null() {
                (self.verbs.dealloc_pd)(self.pd);
            }
            (self.verbs.close_device)(self.context);
        }
    }
}

/// What helps where there is no device.
const HELP: &str =
    "modprobe usb4_rdma_ib && modprobe ib_uverbs; a container needs --device /dev/infiniband, too";

/// Opens the device of that name.
fn open(verbs: &Verbs, name: &str) -> Result<*mut ibv_context> {
    let mut count = 0;
    // SAFETY: room for a number.
    let list = made(
        unsafe { (verbs.get_device_list)(&raw mut count) },
        "list the devices",
    )
    .context(HELP)?;
    let mut context = Ok(ptr::null_mut());
    for index in 0..usize::try_from(count)? {
        // SAFETY: within the list, whose devices have names that end with a zero.
        let (device, found) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr((*device).name.as_ptr()))
        };
        if found.to_bytes() == name.as_bytes() {
            // SAFETY: a device of the list.
            context = made(
                unsafe { (verbs.open_device)(device) },
                "open the device: may /dev/infiniband/uverbs* be opened?",
            );
        }
    }
    // SAFETY: the list, once; an open device outlives it.
    unsafe { (verbs.free_device_list)(list) };
    let context = context?;
    ensure!(!context.is_null(), "no device {name} among {count}: {HELP}");
    Ok(context)
}

/// Queue pairs of a case, and what they share.
pub(crate) struct Queues<'a> {
    device: &'a Device,
    transport: Transport,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    qps: Vec<*mut ibv_qp>,
    ah: *mut ibv_ah,
    /// Bytes of inline data that a request may have.
    pub(crate) inline: u32,
}

impl<'a> Queues<'a> {
    /// In INIT.
    pub(crate) fn new(device: &'a Device, case: &Case) -> Result<Self> {
        let mut queues = Self {
            device,
            transport: case.transport,
            cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            qps: vec![],
            ah: ptr::null_mut(),
            inline: if case.inline { INLINE } else { 0 },
        };
        queues.make(case)?;
        Ok(queues)
    }

    fn masks(&self) -> (c_int, Masks) {
        match self.transport {
            Transport::Rc => (IBV_QPT_RC, RC),
            Transport::Uc => (IBV_QPT_UC, UC),
            Transport::Ud => (IBV_QPT_UD, UD),
        }
    }

    fn make(&mut self, case: &Case) -> Result<()> {
        let (verbs, device) = (self.device.verbs, self.device);
        let depth = case.window() + 1;
        let cqe = c_int::try_from(2 * depth * case.queues)?;
        // SAFETY: an open device.
        let cq = unsafe { (verbs.create_cq)(device.context, cqe, ptr::null_mut(), ptr::null_mut(), 0) };
        self.cq = made(cq, "create a completion queue")?;
        if case.shared {
            let mut init = ibv_srq_init_attr {
                srq_context: ptr::null_mut(),
                attr: ibv_srq_attr {
                    max_wr: depth * case.queues,
                    max_sge: 1,
                    srq_limit: 0,
                },
            };
            // SAFETY: a protection domain, and attributes.
            let srq = unsafe { (verbs.create_srq)(device.pd, &raw mut init) };
            self.srq = made(srq, "create a shared receive queue")?;
        }
        let (qp_type, masks) = self.masks();
        for _ in 0..case.queues {
            let mut init = ibv_qp_init_attr {
                qp_context: ptr::null_mut(),
                send_cq: self.cq,
                recv_cq: self.cq,
                srq: self.srq,
                cap: ibv_qp_cap {
                    max_send_wr: depth,
                    max_recv_wr: if case.shared { 0 } else { depth },
                    max_send_sge: 1,
                    max_recv_sge: u32::from(!case.shared),
                    max_inline_data: self.inline,
                },
                qp_type,
                sq_sig_all: 0,
            };
            // SAFETY: as above.
            let qp = made(
                unsafe { (verbs.create_qp)(device.pd, &raw mut init) },
                "create a queue pair",
            )?;
            self.qps.push(qp);
            let access = match self.transport {
                Transport::Rc => REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC,
                Transport::Uc => REMOTE_WRITE,
                Transport::Ud => 0,
            };
            let attr = QpAttr {
                qp_state: IBV_QPS_INIT,
                qp_access_flags: u32::try_from(access)?,
                port_num: 1,
                qkey: QKEY,
                ..QpAttr::default()
            };
            self.modify(qp, attr, masks.init, "initialise a queue pair")?;
        }
        Ok(())
    }

    fn modify(&self, qp: *mut ibv_qp, mut attr: QpAttr, mask: c_int, what: &'static str) -> Result<()> {
        // SAFETY: an open queue pair, and attributes of its type.
        let error = unsafe { (self.device.verbs.modify_qp)(qp, &raw mut attr, mask) };
        Ok(done(error, what)?)
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        // SAFETY: open queue pairs.
        self.qps.iter().map(|qp| unsafe { (**qp).qp_num }).collect()
    }

    /// To where each sends to that of the same place at the other side, and receives from it.
    pub(crate) fn connect(&mut self, gid: Gid, numbers: &[u32]) -> Result<()> {
        ensure!(
            numbers.len() == self.qps.len(),
            "the other side has {} queue pairs",
            numbers.len()
        );
        let (_, masks) = self.masks();
        for (qp, number) in self.qps.iter().zip(numbers) {
            let mut attr = QpAttr {
                qp_state: IBV_QPS_RTR,
                // `enum ibv_mtu`: 256 is 1.
                path_mtu: c_int::try_from(self.device.wanted.mtu.ilog2())? - 7,
                dest_qp_num: *number,
                max_dest_rd_atomic: 16,
                // 0.64 ms.
                min_rnr_timer: 12,
                address: self.device.way(gid),
                ..QpAttr::default()
            };
            self.modify(*qp, attr, masks.rtr, "connect a queue pair")?;
            attr.qp_state = IBV_QPS_RTS;
            (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (16, 7, 7, 16);
            self.modify(*qp, attr, masks.rts, "let a queue pair send")?;
        }
        if self.transport == Transport::Ud {
            let mut address = self.device.way(gid);
            // SAFETY: a protection domain, and an address.
            let ah = unsafe { (self.device.verbs.create_ah)(self.device.pd, &raw mut address) };
            self.ah = made(ah, "create an address handle")?;
        }
        Ok(())
    }

    pub(crate) fn handle(&self) -> *mut ibv_ah {
        self.ah
    }

    /// Posts a request with one buffer, or none.
    pub(crate) fn send(&self, queue: usize, request: &mut ibv_send_wr, mut buffer: ibv_sge) -> Result<()> {
        let qp = *self.qps.get(queue).context("no such queue pair")?;
        if buffer.length != 0 {
            (request.sg_list, request.num_sge) = (&raw mut buffer, 1);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair, and a list of one request with its buffer, read before it returns.
        let error = unsafe { (self.device.data_path.post_send)(qp, request, &raw mut bad) };
        (request.sg_list, request.num_sge) = (ptr::null_mut(), 0);
        Ok(done(error, "post a send")?)
    }

    /// Posts a receive, to the shared receive queue if there is one.
    pub(crate) fn receive(&self, queue: usize, wr_id: u64, mut buffer: ibv_sge) -> Result<()> {
        let mut request = ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: &raw mut buffer,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        let path = &self.device.data_path;
        let error = if self.srq.is_null() {
            let qp = *self.qps.get(queue).context("no such queue pair")?;
            // SAFETY: as for sends.
            unsafe { (path.post_recv)(qp, &raw mut request, &raw mut bad) }
        } else {
            // SAFETY: as for sends.
            unsafe { (path.post_srq_recv)(self.srq, &raw mut request, &raw mut bad) }
        };
        Ok(done(error, "post a receive")?)
    }

    /// The next completion, which is of success, if there is one.
    pub(crate) fn poll(&self) -> Result<Option<ibv_wc>> {
        let mut completion = ibv_wc::default();
        // SAFETY: a completion queue, and room for one completion.
        match unsafe { (self.device.data_path.poll_cq)(self.cq, 1, &raw mut completion) } {
            0 => Ok(None),
            1 if completion.status == 0 => Ok(Some(completion)),
            1 => bail!("{}: {completion:?}", self.device.words(completion.status)),
            _ => bail!("polling the completion queue failed"),
        }
    }
}

impl Drop for Queues<'_> {
    fn drop(&mut self) {
        let verbs = &self.device.verbs;
        // SAFETY: what there is, each after what uses it.
        unsafe {
            for qp in self.qps.drain(..) {
                (verbs.destroy_qp)(qp);
            }
            if !self.ah.is_null() {
                (verbs.destroy_ah)(self.ah);
            }
            if !self.srq.is_null() {
                (verbs.destroy_srq)(self.srq);
            }
            if !self.cq.is_null() {
                (verbs.destroy_cq)(self.cq);
            }
        }
    }
}
