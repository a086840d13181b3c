//! System calls on an open device.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use usb4_ring_abi::uapi::Argument;
use usb4_soft::{Descriptor, QueueMemory, Sharing};

/// An open device: a file, or in tests what plays one.
#[derive(Debug)]
pub(crate) enum Line {
    Device(Descriptor),
    #[cfg(test)]
    Fake(Box<dyn super::fake::Kernel>),
}

impl Line {
    /// An open file, which is closed in children.
    pub(crate) fn new(device: OwnedFd) -> io::Result<Self> {
        Descriptor::new(device).map(Self::Device)
    }

    /// The ioctl `number`; what it returns.
    #[inline]
    pub(crate) fn call<T: Argument>(&self, number: u32, argument: &mut T) -> Result<i32, Errno> {
        debug_assert!(T::NUMBERS.contains(&number), "{number:#x} takes something else");
        match self {
            Self::Device(device) => {
                let call = Call { number, argument };
                // SAFETY: `argument` is what the kernel expects for `number`: the trait says so. It begins with its
                // size, beyond which the kernel does not write.
                unsafe { rustix::ioctl::ioctl(device.as_fd(), call) }
            }
            #[cfg(test)]
            Self::Fake(kernel) => {
                let start = ptr::from_mut(argument).cast::<u8>();
                // SAFETY: integers without padding, by the trait's contract: as bytes they are as good.
                kernel.call(number, unsafe {
                    std::slice::from_raw_parts_mut(start, size_of::<T>())
                })
            }
        }
    }

    /// `words` words of what the device has at `offset`.
    pub(crate) fn map(&self, offset: u64, words: usize, sharing: Sharing) -> io::Result<QueueMemory> {
        match self {
            Self::Device(device) => QueueMemory::device(device.as_fd(), offset, words, sharing),
            #[cfg(test)]
            Self::Fake(kernel) => kernel.map(offset),
        }
    }
}

/// An ioctl whose argument the kernel reads and writes, and whose result counts.
struct Call<'a, T> {
    number: u32,
    argument: &'a mut T,
}

// SAFETY: the opcode and the pointer are those of one ioctl (`Line::call`), and the result is only a number.
unsafe impl<T: Argument> Ioctl for Call<'_, T> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        Opcode::from(self.number)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::from_mut(self.argument).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _argument: *mut c_void) -> rustix::io::Result<i32> {
        Ok(output)
    }
}
