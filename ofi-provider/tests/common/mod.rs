//! An application's side of libfabric, as the header's inline calls do it: jumps through the tables the
//! provider returns. Endpoints of one process reach each other over the device's loopback.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    dead_code
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands valid objects to the provider"
)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use libfabric_sys::*;

/// Sets the device before anything opens it.
pub(crate) fn soft(name: &str) {
    let kind = match env!("CARGO_CRATE_NAME") {
        "registered" => ",registered",
        _ => "",
    };
    let device = format!("soft:{name}-{}{kind}", std::process::id());
    unsafe { std::env::set_var("USB4_DEVICE", device) };
}

pub(crate) fn provider() -> &'static fi_provider {
    unsafe { &*usb4_fi::fi_prov_ini() }
}

/// `fi_getinfo` with hints; the structures are leaked.
pub(crate) fn getinfo(hints: Option<&fi_info>) -> Result<&'static mut fi_info, c_int> {
    let mut info = null_mut();
    let hints = hints.map_or(std::ptr::null(), |hints| hints as *const fi_info);
    let version = fi_version(1, 17);
    match unsafe { (provider().getinfo)(version, std::ptr::null(), std::ptr::null(), 0, hints, &mut info) } {
        0 => Ok(unsafe { &mut *info }),
        rc => Err(rc),
    }
}

pub(crate) struct Opened {
    pub(crate) info: &'static mut fi_info,
    pub(crate) fabric: *mut fid_fabric,
    pub(crate) domain: *mut fid_domain,
    pub(crate) av: *mut fid_av,
}

impl Opened {
    pub(crate) fn new() -> Self {
        let info = getinfo(None).expect("the soft device is offered");
        let (mut fabric, mut domain) = (null_mut(), null_mut());
        unsafe {
            (*info.fabric_attr).api_version = fi_version(1, 17);
            assert_eq!((provider().fabric)(info.fabric_attr, &mut fabric, null_mut()), 0);
            assert_eq!(
                ((*(*fabric).ops).domain)(fabric, info, &mut domain, null_mut()),
                0
            );
        }
        let mut attr = fi_av_attr {
            type_: FI_AV_TABLE,
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            name: std::ptr::null(),
            map_addr: null_mut(),
            flags: 0,
        };
        let mut av = null_mut();
        unsafe {
            assert_eq!(
                ((*(*domain).ops).av_open)(domain, &mut attr, &mut av, null_mut()),
                0
            )
        };
        Self {
            info,
            fabric,
            domain,
            av,
        }
    }

    pub(crate) fn cq(&self, format: c_int, wait_obj: c_int) -> *mut fid_cq {
        let mut attr = fi_cq_attr {
            size: 0,
            flags: 0,
            format,
            wait_obj,
            signaling_vector: 0,
            wait_cond: FI_CQ_COND_NONE,
            wait_set: null_mut(),
        };
        let mut cq = null_mut();
        unsafe {
            assert_eq!(
                ((*(*self.domain).ops).cq_open)(self.domain, &mut attr, &mut cq, null_mut()),
                0
            )
        };
        cq
    }

    /// An enabled endpoint, its queue (tagged format) and its entry in the address vector.
    pub(crate) fn endpoint(&mut self) -> Endpoint {
        let cq = self.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_FD);
        self.endpoint_on(cq, FI_SEND | FI_RECV)
    }

    pub(crate) fn endpoint_on(&mut self, cq: *mut fid_cq, bind: u64) -> Endpoint {
        let mut ep = null_mut();
        unsafe {
            assert_eq!(
                ((*(*self.domain).ops).endpoint)(self.domain, self.info, &mut ep, null_mut()),
                0
            );
            let fid = ep.cast::<fid>();
            assert_eq!(((*(*fid).ops).bind)(fid, self.av.cast(), 0), 0);
            assert_eq!(((*(*fid).ops).bind)(fid, cq.cast(), bind), 0);
            assert_eq!(((*(*fid).ops).control)(fid, FI_ENABLE, null_mut()), 0);
        }
        let mut endpoint = Endpoint { ep, cq, address: 0 };
        endpoint.address = self.insert(&endpoint.name());
        endpoint
    }

    pub(crate) fn insert(&self, name: &[u8]) -> fi_addr_t {
        let mut address = FI_ADDR_NOTAVAIL;
        let rc = unsafe {
            ((*(*self.av).ops).insert)(self.av, name.as_ptr().cast(), 1, &mut address, 0, null_mut())
        };
        assert_eq!(rc, 1);
        address
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Endpoint {
    pub(crate) ep: *mut fid_ep,
    pub(crate) cq: *mut fid_cq,
    pub(crate) address: fi_addr_t,
}

impl Endpoint {
    pub(crate) fn name(&self) -> Vec<u8> {
        let mut name = vec![0; 64];
        let mut len = name.len();
        unsafe {
            assert_eq!(
                ((*(*self.ep).cm).getname)(self.ep.cast(), name.as_mut_ptr().cast(), &mut len),
                0
            );
        }
        name.truncate(len);
        name
    }

    pub(crate) fn tsend(&self, to: &Endpoint, bytes: &[u8], tag: u64, context: usize) -> isize {
        unsafe {
            let (buf, len) = (bytes.as_ptr().cast(), bytes.len());
            ((*(*self.ep).tagged).send)(
                self.ep,
                buf,
                len,
                null_mut(),
                to.address,
                tag,
                context as *mut c_void,
            )
        }
    }

    pub(crate) fn trecv(&self, from: fi_addr_t, bytes: &mut [u8], tag: u64, ignore: u64, context: usize) {
        let rc = unsafe {
            let (buf, len) = (bytes.as_mut_ptr().cast(), bytes.len());
            let context = context as *mut c_void;
            ((*(*self.ep).tagged).recv)(self.ep, buf, len, null_mut(), from, tag, ignore, context)
        };
        assert_eq!(rc, 0);
    }

    /// One call of `fi_cq_readfrom`.
    pub(crate) fn poll(&self) -> Result<(fi_cq_tagged_entry, fi_addr_t), isize> {
        let mut entry = empty();
        let mut source = 0;
        match unsafe { ((*(*self.cq).ops).readfrom)(self.cq, (&raw mut entry).cast(), 1, &mut source) } {
            1 => Ok((entry, source)),
            rc => Err(rc),
        }
    }

    /// The next completion; what else goes on is driven too.
    pub(crate) fn next(&self, others: &[&Endpoint]) -> fi_cq_tagged_entry {
        match self.next_or_error(others) {
            Ok((entry, _)) => entry,
            Err(rc) => panic!("fi_cq_read: {rc}"),
        }
    }

    pub(crate) fn next_or_error(
        &self,
        others: &[&Endpoint],
    ) -> Result<(fi_cq_tagged_entry, fi_addr_t), isize> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match self.poll() {
                Err(rc) if rc == -(FI_EAGAIN as isize) => {}
                other => return other,
            }
            for other in others {
                other.drive();
            }
            assert!(Instant::now() < deadline, "no completion");
        }
    }

    /// Progress without taking anything.
    pub(crate) fn drive(&self) {
        unsafe { ((*(*self.cq).ops).read)(self.cq, null_mut(), 0) };
    }

    pub(crate) fn error(&self) -> fi_cq_err_entry {
        let mut entry: fi_cq_err_entry = unsafe { std::mem::zeroed() };
        assert_eq!(unsafe { ((*(*self.cq).ops).readerr)(self.cq, &mut entry, 0) }, 1);
        entry
    }

    pub(crate) fn close(self) {
        assert_eq!(close(self.ep.cast()), 0);
    }
}

pub(crate) fn empty() -> fi_cq_tagged_entry {
    fi_cq_tagged_entry {
        op_context: null_mut(),
        flags: 0,
        len: 0,
        buf: null_mut(),
        data: 0,
        tag: 0,
    }
}

pub(crate) fn close(fid: *mut fid) -> c_int {
    unsafe { ((*(*fid).ops).close)(fid) }
}

pub(crate) fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|n| (n as u8).wrapping_mul(37).wrapping_add(seed))
        .collect()
}
