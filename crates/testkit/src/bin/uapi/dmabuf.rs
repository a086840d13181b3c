//! Memory of a dma-buf, made by the kernel's udmabuf of pages of a file in memory.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use usb4_ring_abi::{Op, Sqe, uapi};
use usb4ring::{
    usb4ring_alloc, usb4ring_check, usb4ring_close, usb4ring_create_cq, usb4ring_create_ep,
    usb4ring_deregister, usb4ring_destroy_cq, usb4ring_destroy_ep, usb4ring_get_addr, usb4ring_get_region,
    usb4ring_open, usb4ring_open_handle, usb4ring_poll, usb4ring_post, usb4ring_progress,
    usb4ring_register_dmabuf, usb4ring_request, usb4ring_submit,
};

use crate::client::refused;
use crate::party::Party;
use crate::{Rig, read_only};

const BYTES: usize = 64 << 10;

/// Where in the buffer the region begins, and its bytes: neither a whole page.
const OFFSET: usize = 4096 + 512;
const LEN: usize = 20_000;

/// What operations call the region's first byte: nothing is there in this process.
const ADDR: u64 = 0x5_0000_0000;

/// `struct udmabuf_create` of the kernel's `linux/udmabuf.h`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
const CREATE: libc::c_ulong = 0x4018_7542;

/// A file in memory, and a dma-buf of its pages.
fn buffer() -> Result<(OwnedFd, OwnedFd)> {
    let file = memfd_create("dma-buf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, BYTES as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let maker = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")
        .context("/dev/udmabuf, which makes dma-bufs of memory")?;
    let create = Create {
        memfd: u32::try_from(file.as_fd().as_raw_fd())?,
        flags: 1,
        offset: 0,
        size: BYTES as u64,
    };
    // SAFETY: the argument is what the ioctl reads, and nothing is written to it.
    let made = unsafe { libc::ioctl(maker.as_raw_fd(), CREATE, &raw const create) };
    ensure!(made >= 0, "UDMABUF_CREATE: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just made it for us.
    Ok((file, unsafe { OwnedFd::from_raw_fd(made) }))
}

/// A region of `len` bytes of a dma-buf, from `offset`.
fn region(fd: i32, offset: u64, len: u64) -> uapi::RegMr {
    uapi::RegMr {
        flags: uapi::REG_MR_DMABUF,
        addr: ADDR,
        len,
        access: uapi::ACCESS_REMOTE_READ | uapi::ACCESS_REMOTE_WRITE | uapi::ACCESS_REMOTE_ATOMIC,
        dmabuf_fd: fd,
        dmabuf_offset: offset,
        ..uapi::RegMr::new()
    }
}

pub(crate) fn memory_of_a_dma_buf_is_written_read_and_counted_on(rig: &Rig) -> Result<()> {
    let (file, buffer) = buffer()?;
    let mut party = Party::new(rig)?;
    party.address(party.ep.addr)?;
    let mut shared = region(buffer.as_raw_fd(), OFFSET as u64, LEN as u64);
    party.client.call(uapi::IOC_REG_MR, &mut shared)?;
    // The region keeps the buffer.
    drop(buffer);
    let pattern: Vec<u8> = (0..=250).cycle().take(LEN).collect();
    let mut local = pattern.clone();
    let start = local.as_mut_ptr();
    let mine = party.client.reg(start.addr() as u64, LEN as u64, 0)?;
    let remote = |op: Op, len: usize, at: u64, args: [u64; 2]| -> Result<Sqe> {
        Ok(Sqe {
            op: op.code(),
            local_addr: mine.addr,
            local_key: mine.local_key,
            len: u32::try_from(len)?,
            args: [ADDR + at, shared.remote_key, args[0], args[1]],
            ..Sqe::default()
        })
    };
    run(&mut party, "WRITE", &remote(Op::Write, LEN, 0, [0, 0])?)?;
    let mut found = vec![0; LEN];
    pread(&file, &mut found, OFFSET as u64)?;
    ensure!(found == pattern, "what was written is not in the file");
    let mut around = [0xff; 16];
    pread(&file, &mut around[..8], OFFSET as u64 - 8)?;
    pread(&file, &mut around[8..], (OFFSET + LEN) as u64)?;
    ensure!(around == [0; 16], "bytes around the region have changed");

    let other: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
    pwrite(&file, &other, OFFSET as u64)?;
    run(&mut party, "READ", &remote(Op::Read, LEN, 0, [0, 0])?)?;
    // SAFETY: ours, as long as `local`; the device has completed what it did there.
    let read = (0..LEN).all(|at| unsafe { start.add(at).read_volatile() } == other[at]);
    ensure!(read, "what was read is not what is in the file");

    pwrite(&file, &40_u64.to_le_bytes(), OFFSET as u64 + 8)?;
    run(&mut party, "FETCH_ADD", &remote(Op::FetchAdd, 8, 8, [2, 0])?)?;
    let mut sum = [0; 8];
    pread(&file, &mut sum, OFFSET as u64 + 8)?;
    ensure!(
        u64::from_le_bytes(sum) == 42,
        "40 and 2 are {}",
        u64::from_le_bytes(sum)
    );
    let beyond = party.status_of(&remote(Op::Write, LEN, 1, [0, 0])?)?;
    ensure!(beyond != 0, "a WRITE past the region's end succeeded");
    party.client.dereg(shared.local_key)?;
    Ok(())
}

fn run(party: &mut Party, name: &str, entry: &Sqe) -> Result<()> {
    let status = party.status_of(entry)?;
    ensure!(status == 0, "{name} ended with status {status}");
    Ok(())
}

/// `struct dma_heap_allocation_data` of the kernel's `linux/dma-heap.h`.
#[repr(C)]
struct Allocate {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// `DMA_HEAP_IOCTL_ALLOC`: `_IOWR('H', 0, struct dma_heap_allocation_data)`.
const ALLOCATE: libc::c_ulong = 0xc018_4800;

/// A buffer of the kernel's heap, whose makers say what its descriptor is for.
fn of_the_heap(access: libc::c_int) -> Result<OwnedFd> {
    let heap = std::fs::File::open("/dev/dma_heap/system").context("/dev/dma_heap/system")?;
    let mut allocate = Allocate {
        len: BYTES as u64,
        fd: 0,
        fd_flags: (access | libc::O_CLOEXEC).unsigned_abs(),
        heap_flags: 0,
    };
    // SAFETY: the argument is what the ioctl reads and writes.
    let made = unsafe { libc::ioctl(heap.as_raw_fd(), ALLOCATE, &raw mut allocate) };
    ensure!(
        made >= 0,
        "DMA_HEAP_IOCTL_ALLOC: {}",
        std::io::Error::last_os_error()
    );
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(allocate.fd)?) })
}

pub(crate) fn what_is_open_for_reading_is_only_read(rig: &Rig) -> Result<()> {
    let mut party = Party::new(rig)?;
    party.address(party.ep.addr)?;
    let both = of_the_heap(libc::O_RDWR)?;
    let mut region = region(both.as_raw_fd(), 0, BYTES as u64);
    party
        .client
        .call(uapi::IOC_REG_MR, &mut region)
        .context("for both")?;
    let buffer = of_the_heap(libc::O_RDONLY)?;
    for access in [
        0,
        uapi::ACCESS_REMOTE_READ,
        uapi::ACCESS_REMOTE_WRITE,
        uapi::ACCESS_REMOTE_ATOMIC,
    ] {
        let mut region = uapi::RegMr {
            access,
            dmabuf_fd: buffer.as_raw_fd(),
            ..region
        };
        refused(
            &format!("access {access} to what is open for reading"),
            party.client.call(uapi::IOC_REG_MR, &mut region),
            Errno::ACCESS,
        )?;
    }
    let mut shared = uapi::RegMr {
        access: uapi::ACCESS_REMOTE_READ | uapi::ACCESS_READ_ONLY,
        dmabuf_fd: buffer.as_raw_fd(),
        ..region
    };
    party
        .client
        .call(uapi::IOC_REG_MR, &mut shared)
        .context("to read it")?;
    read_only::only_reads(&mut party, &shared, &[0; BYTES])
}

/// What the C library said, or its sentence.
fn c(what: &str, said: libc::c_int) -> Result<()> {
    // SAFETY: the library's string of this thread's last failure, copied before it is called again.
    let why = unsafe { CStr::from_ptr(usb4ring::usb4ring_error()) };
    ensure!(said == 0, "{what}: {said}, {}", why.to_string_lossy());
    Ok(())
}

/// What is said to the kernel above, said to libusb4ring.
pub(crate) fn the_c_library_registers_one(rig: &Rig) -> Result<()> {
    const WRITE: u8 = 2;
    let (file, buffer) = buffer()?;
    let fd = buffer.as_raw_fd();
    let name = CString::new(rig.device.as_str())?;
    let start = ptr::without_provenance_mut(usize::try_from(ADDR)?);
    let (mut device, mut cq, mut ep) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (mut mine, mut shared) = (ptr::null_mut(), ptr::null_mut());
    let mut addr = MaybeUninit::uninit();
    let (mut from, mut to) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let mut handle = 0;
    // SAFETY: in each call, pointers that the library has given and that are not given back yet, and places for what it
    // writes, of which nothing is read unless it has.
    unsafe {
        c("open", usb4ring_open(name.as_ptr(), &raw mut device))?;
        let open = device.as_ref();
        c("create_cq", usb4ring_create_cq(open, 16, &raw mut cq))?;
        let made = usb4ring_create_ep(open, None, cq.as_ref(), cq.as_ref(), &raw mut ep);
        c("create_ep", made)?;
        c("alloc", usb4ring_alloc(open, LEN, 0, &raw mut mine))?;
        let said = usb4ring_register_dmabuf(open, file.as_raw_fd(), 0, 8, start, 0, &raw mut shared);
        ensure!(said == -libc::EINVAL, "a file for a dma-buf: {said}");
        let said = usb4ring_register_dmabuf(open, fd, 8, BYTES, start, 0, &raw mut shared);
        ensure!(said == -libc::EINVAL, "more than a dma-buf has: {said}");
        c(
            "register_dmabuf",
            usb4ring_register_dmabuf(open, fd, OFFSET as u64, LEN, start, WRITE.into(), &raw mut shared),
        )?;
        drop(buffer);
        usb4ring_get_region(mine.as_ref(), from.as_mut_ptr());
        usb4ring_get_region(shared.as_ref(), to.as_mut_ptr());
        let (from, to) = (from.assume_init(), to.assume_init());
        ensure!(
            to.start == start && to.len == LEN as u64,
            "the region is {} bytes at {:?}",
            to.len,
            to.start
        );
        from.start.cast::<u8>().write_bytes(0x5a, LEN);
        usb4ring_get_addr(ep.as_ref(), addr.as_mut_ptr());
        let peer = addr.assume_init();
        let opened = usb4ring_open_handle(ep.as_mut(), Some(&peer), 1, &raw mut handle);
        c("open_handle", opened)?;
        let write = usb4ring_request {
            op: WRITE,
            flags: 0,
            prefix_len: 0,
            reserved: 0,
            handle,
            user_data: 0,
            addr: from.start,
            local_key: from.local_key,
            len: u32::try_from(LEN)?,
            remote_addr: ADDR,
            remote_key: to.remote_key,
            imm: 0,
            compare: 0,
            operand: 0,
            prefix: [0; 24],
        };
        c("post", usb4ring_post(ep.as_mut(), Some(&write)))?;
        c("submit", usb4ring_submit(ep.as_mut()))?;
        let mut done = MaybeUninit::uninit();
        while usb4ring_poll(cq.as_mut(), done.as_mut_ptr(), 1) == 0 {
            usb4ring_progress(open);
            c("check", usb4ring_check(open))?;
        }
        let status = done.assume_init().status;
        ensure!(status == 0, "the write ended with status {status}");
        let mut found = vec![0; LEN];
        pread(&file, &mut found, OFFSET as u64)?;
        ensure!(found == [0x5a; LEN], "what was written is not in the file");
        usb4ring_deregister(shared);
        usb4ring_deregister(mine);
        usb4ring_destroy_ep(ep);
        usb4ring_destroy_cq(cq);
        usb4ring_close(device);
    }
    Ok(())
}

pub(crate) fn what_is_no_dma_buf_or_not_within_it_is_refused(rig: &Rig) -> Result<()> {
    let (file, buffer) = buffer()?;
    let party = Party::new(rig)?;
    let fd = buffer.as_raw_fd();
    let whole = BYTES as u64;
    let bad = [
        ("a file", region(file.as_raw_fd(), 0, 4096), Errno::BADF),
        ("no descriptor", region(-1, 0, 4096), Errno::BADF),
        ("no bytes", region(fd, 0, 0), Errno::INVAL),
        ("more than it has", region(fd, 8, whole), Errno::INVAL),
        (
            "a range that wraps",
            region(fd, u64::MAX - 7, whole),
            Errno::INVAL,
        ),
        ("atomics askew", region(fd, 4, 4096), Errno::INVAL),
        (
            "a descriptor without the flag",
            uapi::RegMr {
                flags: 0,
                ..region(fd, 0, 4096)
            },
            Errno::INVAL,
        ),
        (
            "a reserved field",
            uapi::RegMr {
                reserved: 1,
                ..region(fd, 0, 4096)
            },
            Errno::INVAL,
        ),
    ];
    for (what, mut mr, want) in bad {
        refused(what, party.client.call(uapi::IOC_REG_MR, &mut mr), want)?;
    }
    Ok(())
}
