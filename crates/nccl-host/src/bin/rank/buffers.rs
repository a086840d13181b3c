//! Device memory with known content.

use anyhow::{Result, bail};
use std::slice;
use usb4_nccl_host::api::DataType;
use usb4_nccl_host::runtime::{Kind, allocate, free};

/// Device memory of this process.
pub(crate) struct Buffer {
    start: *mut u8,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Result<Buffer> {
        let start = allocate(len, Kind::Device(0));
        if start.is_null() {
            bail!("no memory for {len} bytes");
        }
        Ok(Buffer { start, len })
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    /// The bytes. No operation may be using them.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of an allocation of our own, which operations use only while the stream is not idle.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    /// The bytes, to be written. No operation may be using them.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for as long as the slice lives.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Fills with what no operation delivers.
    pub(crate) fn spoil(&mut self) {
        self.bytes_mut().fill(0xee);
    }

    /// Fills with elements that `value` gives by their index.
    pub(crate) fn fill(&mut self, of: DataType, value: impl Fn(usize) -> u32) {
        match of {
            DataType::U8 => (self.bytes_mut().iter_mut().enumerate())
                .for_each(|(at, byte)| *byte = value(at).to_le_bytes()[0]),
            _ => {
                for (at, word) in self.bytes_mut().chunks_exact_mut(4).enumerate() {
                    word.copy_from_slice(&encode(of, value(at)));
                }
            }
        }
    }

    /// Compares with elements that `value` gives by their index.
    pub(crate) fn check(&self, of: DataType, value: impl Fn(usize) -> u32) -> Result<()> {
        let wrong = match of {
            DataType::U8 => {
                (self.bytes().iter().enumerate()).position(|(at, byte)| *byte != value(at).to_le_bytes()[0])
            }
            _ => (self.bytes().chunks_exact(4).enumerate())
                .position(|(at, word)| *word != encode(of, value(at))),
        };
        let Some(at) = wrong else { return Ok(()) };
        let size = if of == DataType::U8 { 1 } else { 4 };
        let got = self.bytes().get(at * size..(at + 1) * size).unwrap_or_default();
        bail!("element {at} of {} is wrong: bytes {got:02x?}", self.len / size);
    }
}

/// An element with the value `n`.
fn encode(of: DataType, n: u32) -> [u8; 4] {
    match of {
        // Small integers, so that sums are exact in any order.
        DataType::F32 => f32::from(u16::try_from(n).unwrap_or(u16::MAX)).to_le_bytes(),
        _ => n.to_le_bytes(),
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: an allocation of our own; who drops it has waited for the operations.
        unsafe { free(self.start) };
    }
}
