//! `fi_getinfo`: cheap, without opening the device or starting anything.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::size_of;
use std::sync::atomic::{AtomicBool, Ordering};

use libfabric_sys::*;
use usb4_ffi::{Level, boundary_or, log};
use usb4_ring::{DEVICE_VARIABLE, Device, KERNEL_DEVICE, SoftKind, Spec};

use crate::addr::{self, ADDR_FORMAT, ADDR_LEN};
use crate::attr::{Hints, Offer};
use crate::init::{NAME, PANICKED, VERSION};

/// Bytes allocated per structure. The host copies them with the size its own version knows, which may be
/// more than ours.
const ROOM: usize = 512;

/// Answers an application.
///
/// # Safety
/// Called by the core with a valid `info` and hints that are null or valid.
pub(crate) unsafe extern "C" fn getinfo(
    _version: u32,
    node: *const c_char,
    _service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: promised by the caller.
        let (node, hints) = unsafe { (text(node), hints.as_ref()) };
        // SAFETY: the hints are valid.
        match unsafe { answer(node, flags, hints) } {
            Ok(answer) => {
                // SAFETY: promised by the caller.
                unsafe { *info = answer };
                0
            }
            Err(error) => error,
        }
    })
}

/// # Safety
/// The parts of the hints are null or valid.
unsafe fn answer(node: Option<&CStr>, flags: u64, hints: Option<&fi_info>) -> Result<*mut fi_info, c_int> {
    // SAFETY: promised by the caller.
    let (parts, names) = unsafe { (split(hints), Names::of(hints)) };
    let offer = Offer::answer(&parts).map_err(|what| {
        log(Level::Debug, format_args!("not offered: {what}"));
        -FI_ENODATA
    })?;
    let domain = match device_name() {
        Ok(name) => name,
        Err(_) if flags & FI_PROV_ATTR_ONLY != 0 => "usb4".into(),
        Err(why) => {
            static TOLD: AtomicBool = AtomicBool::new(false);
            if !TOLD.swap(true, Ordering::Relaxed) {
                log(Level::Warn, format_args!("{why}"));
            }
            return Err(-FI_ENODATA);
        }
    };
    if names
        .domain
        .is_some_and(|name| name.to_bytes() != domain.as_bytes())
        || names.fabric.is_some_and(|name| name != NAME)
    {
        return Err(-FI_ENODATA);
    }
    let (mut source, mut destination) = (names.source, names.destination);
    if let Some(node) = node {
        let address = addr::from_text(&node.to_string_lossy()).ok_or(-FI_ENODATA)?;
        let place = if flags & FI_SOURCE != 0 {
            &mut source
        } else {
            &mut destination
        };
        *place = Some(addr::to_bytes(&address));
    }
    // An endpoint gets its address when it is opened; until then it is the unspecified one, all zero.
    let source = source.unwrap_or([0; ADDR_LEN]);
    Build::info(&offer, &domain, source, destination).ok_or(-FI_ENOMEM)
}

/// What `USB4_DEVICE` names, if it can exist and carry messages from anywhere in the process's memory.
fn device_name() -> Result<String, String> {
    let spec = std::env::var_os(DEVICE_VARIABLE).filter(|spec| !spec.is_empty());
    let spec = match spec {
        Some(spec) => spec.to_string_lossy().into_owned(),
        None if std::path::Path::new(KERNEL_DEVICE).exists() => KERNEL_DEVICE.into(),
        None => {
            return Err(
                "no device named: set USB4_DEVICE=soft:NAME for the software cable between processes of this \
                 machine (the kernel module's /dev/usb4ring is not here)"
                    .into(),
            );
        }
    };
    match spec.parse::<Spec>().map_err(|error| error.to_string())? {
        Spec::Soft {
            name,
            kind: SoftKind::Detached(_),
        } => Err(format!(
            "USB4_DEVICE={spec}: a device in another process cannot reach the memory of this one, which messages \
             need; use soft:{name}"
        )),
        // Whether this user may open it, and what module is behind it, is known only when it is tried.
        Spec::Kernel(_) => match Device::open(&spec) {
            Ok(_) => Ok(spec),
            Err(error) => Err(error.to_string()),
        },
        Spec::Soft { .. } => Ok(spec),
    }
}

/// Names and addresses in hints.
#[derive(Default)]
struct Names<'a> {
    domain: Option<&'a CStr>,
    fabric: Option<&'a CStr>,
    source: Option<[u8; ADDR_LEN]>,
    destination: Option<[u8; ADDR_LEN]>,
}

impl<'a> Names<'a> {
    /// # Safety
    /// The parts of the hints are null or valid.
    unsafe fn of(hints: Option<&'a fi_info>) -> Self {
        let Some(hints) = hints else {
            return Self::default();
        };
        // SAFETY: promised by the caller; addresses are read only if their length is that of an address.
        unsafe {
            Self {
                domain: hints.domain_attr.as_ref().and_then(|a| text(a.name)),
                fabric: hints.fabric_attr.as_ref().and_then(|a| text(a.name)),
                source: address(hints.src_addr.cast(), hints.src_addrlen),
                destination: address(hints.dest_addr.cast(), hints.dest_addrlen),
            }
        }
    }
}

/// # Safety
/// `bytes` is null or points to `len` bytes.
unsafe fn address(bytes: *const u8, len: usize) -> Option<[u8; ADDR_LEN]> {
    if bytes.is_null() || len != ADDR_LEN {
        return None;
    }
    let mut address = [0; ADDR_LEN];
    // SAFETY: promised by the caller.
    address.copy_from_slice(unsafe { std::slice::from_raw_parts(bytes, len) });
    Some(address)
}

/// # Safety
/// The parts of the hints are null or valid.
unsafe fn split(hints: Option<&fi_info>) -> Hints<'_> {
    let Some(info) = hints else {
        return Hints::default();
    };
    // SAFETY: promised by the caller. Only fields that every version has are read.
    unsafe {
        Hints {
            info: Some(info),
            tx: info.tx_attr.as_ref(),
            rx: info.rx_attr.as_ref(),
            ep: info.ep_attr.as_ref(),
            domain: old_domain(info.domain_attr),
        }
    }
}

/// A reference to domain attributes that may end before our newest fields: those are never read.
///
/// # Safety
/// `attr` is null or valid in some version's layout.
unsafe fn old_domain<'a>(attr: *const fi_domain_attr) -> Option<&'a fi_domain_attr> {
    // SAFETY: promised by the caller, for the fields up to `tclass`, the only ones read.
    unsafe { attr.as_ref() }
}

/// # Safety
/// `raw` is null or a C string that lives long enough.
unsafe fn text<'a>(raw: *const c_char) -> Option<&'a CStr> {
    // SAFETY: promised by the caller.
    (!raw.is_null()).then(|| unsafe { CStr::from_ptr(raw) })
}

/// Builds structures with the C allocator, since the host frees them.
struct Build;

impl Build {
    fn info(
        offer: &Offer,
        domain: &str,
        source: [u8; ADDR_LEN],
        destination: Option<[u8; ADDR_LEN]>,
    ) -> Option<*mut fi_info> {
        let mut fabric_attr = fi_fabric_attr {
            fabric: std::ptr::null_mut(),
            name: std::ptr::null_mut(),
            prov_name: std::ptr::null_mut(),
            prov_version: VERSION,
            api_version: 0,
        };
        let mut domain_attr = offer.domain;
        fabric_attr.name = Self::string(NAME)?;
        domain_attr.name = Self::string(&CString::new(domain).ok()?)?;
        // The provider's name is left to the core, which fills it in.
        let info = fi_info {
            next: std::ptr::null_mut(),
            caps: offer.caps,
            mode: 0,
            addr_format: ADDR_FORMAT,
            src_addrlen: source.len(),
            dest_addrlen: destination.map_or(0, |a| a.len()),
            src_addr: Self::copy(source)?.cast(),
            dest_addr: Self::address(destination)?,
            handle: std::ptr::null_mut(),
            tx_attr: Self::copy(offer.tx)?,
            rx_attr: Self::copy(offer.rx)?,
            ep_attr: Self::copy(offer.ep)?,
            domain_attr: Self::copy(domain_attr)?,
            fabric_attr: Self::copy(fabric_attr)?,
            nic: std::ptr::null_mut(),
        };
        Self::copy(info)
    }

    fn address(address: Option<[u8; ADDR_LEN]>) -> Option<*mut c_void> {
        match address {
            Some(address) => Some(Self::copy(address)?.cast()),
            None => Some(std::ptr::null_mut()),
        }
    }

    /// A copy in C memory; `None` when there is none (the process is about to fail anyway, so what was
    /// allocated before is not freed).
    fn copy<T>(value: T) -> Option<*mut T> {
        let room = size_of::<T>().max(ROOM);
        // SAFETY: plain allocation.
        let raw: *mut T = unsafe { libc::calloc(1, room) }.cast();
        if raw.is_null() {
            return None;
        }
        // SAFETY: the memory is large enough, and `calloc` aligns for every type here.
        unsafe { raw.write(value) };
        Some(raw)
    }

    fn string(text: &CStr) -> Option<*mut c_char> {
        // SAFETY: a C string.
        let raw = unsafe { libc::strdup(text.as_ptr()) };
        (!raw.is_null()).then_some(raw)
    }
}
