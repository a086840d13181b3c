//! One side's objects, from the device to a queue pair and the memory it works on.

use std::ffi::{CStr, c_int};
use std::ptr;

use anyhow::{Context, Result, bail, ensure};
use rdma_core_sys::client::{
    Address, DataPath, Gid, GidWords, LOCAL_WRITE, MTU_4096, QpAttr, RC, Verbs, done, made,
};
use rdma_core_sys::{
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_RECV, IBV_WR_SEND,
    ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_wc,
};

/// Bytes of the longest message.
pub(crate) const ROOM: usize = 1 << 20;

/// What has completed.
pub(crate) enum Completed {
    Sent,
    /// So many bytes have come.
    Received(usize),
}

/// A queue pair, its completion queue, and a registered buffer: the message to send, then room for one.
pub(crate) struct Side {
    verbs: Verbs,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    /// Twice [`ROOM`] bytes, registered. The device writes to the second half while a receive is posted, so no reference to
    /// that may live then.
    memory: *mut u8,
    gid_index: u8,
    data_path: DataPath,
}

impl Side {
    pub(crate) fn open(device: &str, gid_index: u8) -> Result<Self> {
        let verbs = Verbs::load()?;
        let context = open(&verbs, device)?;
        // SAFETY: an open device.
        let data_path = unsafe { DataPath::of(context) }.context("the provider does not post or poll")?;
        let mut side = Self {
            verbs,
            context,
            pd: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            mr: ptr::null_mut(),
            memory: Box::into_raw(vec![0; 2 * ROOM].into_boxed_slice()).cast(),
            gid_index,
            data_path,
        };
        side.make()?;
        Ok(side)
    }

    /// What is missing when this fails is null, and [`Drop`] leaves it out.
    fn make(&mut self) -> Result<()> {
        let verbs = self.verbs;
        // SAFETY: each takes what was made before it; the memory is there until it is deregistered.
        unsafe {
            self.pd = made((verbs.alloc_pd)(self.context), "allocate a protection domain")?;
            self.mr = made(
                (verbs.reg_mr)(self.pd, self.memory.cast(), 2 * ROOM, LOCAL_WRITE),
                "register memory",
            )?;
            self.cq = made(
                (verbs.create_cq)(self.context, 8, ptr::null_mut(), ptr::null_mut(), 0),
                "create a completion queue",
            )?;
        }
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: as above.
        self.qp = unsafe { made((verbs.create_qp)(self.pd, &raw mut init), "create a queue pair")? };
        let attr = QpAttr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            ..QpAttr::default()
        };
        self.modify(attr, RC.init, "initialise the queue pair")
    }

    fn modify(&self, mut attr: QpAttr, mask: c_int, what: &'static str) -> Result<()> {
        // SAFETY: an open queue pair, and attributes of its type.
        Ok(done(
            unsafe { (self.verbs.modify_qp)(self.qp, &raw mut attr, mask) },
            what,
        )?)
    }

    /// How others reach it.
    pub(crate) fn address(&self) -> Result<(Gid, u32)> {
        let mut gid = GidWords::default();
        // SAFETY: an open device, and room for a GID.
        let error = unsafe { (self.verbs.query_gid)(self.context, 1, self.gid_index.into(), &raw mut gid) };
        // A place of the port's table that has none is read as zeros.
        ensure!(
            error == 0 && gid.0 != [0; 16],
            "there is no GID {}: see ibv_devinfo -v",
            self.gid_index
        );
        // SAFETY: an open queue pair.
        Ok((gid.0, unsafe { (*self.qp).qp_num }))
    }

    /// To where it sends to that queue pair, and receives from it.
    pub(crate) fn connect(&self, gid: Gid, number: u32) -> Result<()> {
        let mut attr = QpAttr {
            qp_state: IBV_QPS_RTR,
            path_mtu: MTU_4096,
            dest_qp_num: number,
            max_dest_rd_atomic: 1,
            // 0.64 ms.
            min_rnr_timer: 12,
            address: Address {
                gid: GidWords(gid),
                sgid_index: self.gid_index,
                hop_limit: 64,
                is_global: 1,
                port_num: 1,
                ..Address::default()
            },
            ..QpAttr::default()
        };
        self.modify(attr, RC.rtr, "connect the queue pair")?;
        attr.qp_state = IBV_QPS_RTS;
        // 67 ms, each of the times that follow; a receive is waited for, for ever.
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (14, 7, 7, 1);
        self.modify(attr, RC.rts, "let the queue pair send")
    }

    /// The message to send.
    fn outgoing(&mut self) -> &mut [u8] {
        // SAFETY: the first half, which the device only reads.
        unsafe { std::slice::from_raw_parts_mut(self.memory, ROOM) }
    }

    /// The message that has come.
    fn incoming(&self) -> &[u8] {
        // SAFETY: the second half; it is looked at only when no receive is posted.
        unsafe { std::slice::from_raw_parts(self.memory.add(ROOM), ROOM) }
    }

    fn buffers(&self, at: usize, len: usize) -> Result<ibv_sge> {
        Ok(ibv_sge {
            addr: self.memory.expose_provenance() as u64 + at as u64,
            length: u32::try_from(len)?,
            // SAFETY: a registered region.
            lkey: unsafe { (*self.mr).lkey },
        })
    }

    pub(crate) fn post_receive(&mut self) -> Result<()> {
        let mut buffer = self.buffers(ROOM, ROOM)?;
        let mut request = ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: &raw mut buffer,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair, and a list of one request with one buffer, read before it returns.
        let error = unsafe { (self.data_path.post_recv)(self.qp, &raw mut request, &raw mut bad) };
        Ok(done(error, "post a receive")?)
    }

    /// Sends `len` bytes, each of which follows from `value`.
    pub(crate) fn send(&mut self, len: usize, value: u8) -> Result<()> {
        for (byte, place) in self.outgoing().iter_mut().take(len).enumerate() {
            *place = expected(value, byte);
        }
        let mut buffer = self.buffers(0, len)?;
        // SAFETY: all zero is a request: integers, null pointers and a union of these.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.sg_list = &raw mut buffer;
        request.num_sge = 1;
        request.opcode = IBV_WR_SEND;
        request.send_flags = IBV_SEND_SIGNALED;
        let mut bad = ptr::null_mut();
        // SAFETY: as for receives.
        let error = unsafe { (self.data_path.post_send)(self.qp, &raw mut request, &raw mut bad) };
        Ok(done(error, "post a send")?)
    }

    /// Waits for a send or a receive to complete.
    pub(crate) fn wait(&self) -> Result<Completed> {
        let mut completion = ibv_wc::default();
        loop {
            // SAFETY: a completion queue, and room for one completion.
            match unsafe { (self.data_path.poll_cq)(self.cq, 1, &raw mut completion) } {
                0 => {}
                1 => break,
                _ => bail!("polling the completion queue failed"),
            }
        }
        if completion.status != 0 {
            // SAFETY: it returns a string of the library's for any number.
            let words = unsafe { CStr::from_ptr((self.verbs.wc_status_str)(completion.status)) };
            bail!("a request ended with: {}", words.to_string_lossy());
        }
        if completion.opcode & IBV_WC_RECV == 0 {
            return Ok(Completed::Sent);
        }
        Ok(Completed::Received(usize::try_from(completion.byte_len)?))
    }

    /// Sees that what has come is what [`Self::send`] sends. No receive is posted.
    pub(crate) fn check(&self, len: usize, value: u8) -> Result<()> {
        let wrong = self.incoming().iter().take(len).enumerate();
        let wrong = wrong
            .into_iter()
            .find(|(byte, found)| **found != expected(value, *byte));
        ensure!(
            wrong.is_none(),
            "byte and value {wrong:?} of message {value} are wrong"
        );
        Ok(())
    }
}

fn expected(value: u8, byte: usize) -> u8 {
    let [low, ..] = byte.to_le_bytes();
    value.wrapping_add(low)
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

impl Drop for Side {
    fn drop(&mut self) {
        // SAFETY: what there is, each after what uses it.
        unsafe {
            if !self.qp.is_null() {
                (self.verbs.destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                (self.verbs.destroy_cq)(self.cq);
            }
            if !self.mr.is_null() {
                (self.verbs.dereg_mr)(self.mr);
            }
            if !self.pd.is_null() {
                (self.verbs.dealloc_pd)(self.pd);
            }
            (self.verbs.close_device)(self.context);
            drop(Box::from_raw(ptr::slice_from_raw_parts_mut(
                self.memory,
                2 * ROOM,
            )));
        }
    }
}

/// Reads what the other side says of itself.
pub(crate) fn context<T>(result: std::io::Result<T>) -> Result<T> {
    result.context("talk to the peer")
}
