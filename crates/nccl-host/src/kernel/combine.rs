//! What a kernel does with data: copies and sums.

use std::ptr;

/// Types of elements, as kernels' names have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    U8,
    U32,
    U64,
    F32,
    F64,
}

impl Element {
    pub(crate) fn named(name: &str) -> Option<Element> {
        Some(match name {
            "u8" | "i8" => Element::U8,
            "u32" | "i32" => Element::U32,
            "u64" | "i64" => Element::U64,
            "f32" => Element::F32,
            "f64" => Element::F64,
            _ => return None,
        })
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Element::U8 => 1,
            Element::U32 | Element::F32 => 4,
            Element::U64 | Element::F64 => 8,
        }
    }
}

/// Writes `len` bytes of what was received, or its sum with `input`, or `input`, to each of `outputs` that is there.
///
/// # Safety
/// Every pointer is valid for `len` bytes, a whole number of elements where there is something to add; an output is
/// either one of the inputs or apart from them.
pub(crate) unsafe fn combine(
    element: Element,
    received: Option<*const u8>,
    input: Option<*const u8>,
    outputs: [Option<*mut u8>; 2],
    len: usize,
) {
    let [first, second] = outputs;
    let (target, other) = match (first, second) {
        (Some(first), other) => (first, other),
        (None, Some(second)) => (second, None),
        (None, None) => return,
    };
    // SAFETY: as the caller vouches.
    unsafe {
        match (received, input) {
            (Some(received), Some(input)) => add(element, received, input, target, len),
            (Some(source), None) | (None, Some(source)) => {
                if source != target.cast_const() {
                    ptr::copy(source, target, len);
                }
            }
            (None, None) => return,
        }
        if let Some(other) = other {
            ptr::copy_nonoverlapping(target, other, len);
        }
    }
}

/// Elements added at once: all are read before any is written, so that the output may be an input.
const LANES: usize = 32;

trait Sum: Copy + Default {
    fn sum(self, other: Self) -> Self;
}

macro_rules! sums {
    ($($t:ty: $sum:expr;)*) => {
        $(impl Sum for $t {
            fn sum(self, other: Self) -> Self {
                let sum: fn($t, $t) -> $t = $sum;
                sum(self, other)
            }
        })*
    };
}

sums! {
    u8: u8::wrapping_add;
    u32: u32::wrapping_add;
    u64: u64::wrapping_add;
    f32: |a, b| a + b;
    f64: |a, b| a + b;
}

unsafe fn add(element: Element, a: *const u8, b: *const u8, out: *mut u8, len: usize) {
    // SAFETY: as the caller of `combine` vouches.
    unsafe {
        match element {
            Element::U8 => add_as::<u8>(a, b, out, len),
            Element::U32 => add_as::<u32>(a, b, out, len),
            Element::U64 => add_as::<u64>(a, b, out, len),
            Element::F32 => add_as::<f32>(a, b, out, len),
            Element::F64 => add_as::<f64>(a, b, out, len),
        }
    }
}

unsafe fn add_as<T: Sum>(a: *const u8, b: *const u8, out: *mut u8, len: usize) {
    let (a, b, out) = (a.cast::<T>(), b.cast::<T>(), out.cast::<T>());
    let count = len / size_of::<T>();
    let mut at = 0;
    while at + LANES <= count {
        // SAFETY: LANES elements from `at` on lie within `len` bytes.
        unsafe {
            let x = a.add(at).cast::<[T; LANES]>().read_unaligned();
            let mut y = b.add(at).cast::<[T; LANES]>().read_unaligned();
            for (y, x) in y.iter_mut().zip(x) {
                *y = x.sum(*y);
            }
            out.add(at).cast::<[T; LANES]>().write_unaligned(y);
        }
        at += LANES;
    }
    while at < count {
        // SAFETY: the element at `at` lies within `len` bytes.
        unsafe {
            let sum = a.add(at).read_unaligned().sum(b.add(at).read_unaligned());
            out.add(at).write_unaligned(sum);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn a_sum_may_be_written_over_an_input() {
        let a = bytes(&(0..100_u8).map(f32::from).collect::<Vec<_>>());
        let mut b = bytes(&[0.5; 100]);
        let mut sent = vec![0; b.len()];
        let target = b.as_mut_ptr();
        // SAFETY: all have the length of `b`.
        unsafe {
            combine(
                Element::F32,
                Some(a.as_ptr()),
                Some(target),
                [Some(target), Some(sent.as_mut_ptr())],
                sent.len(),
            );
        }
        let wanted = bytes(&(0..100_u8).map(|n| f32::from(n) + 0.5).collect::<Vec<_>>());
        assert_eq!(b, wanted);
        assert_eq!(sent, wanted);
    }

    #[test]
    fn integers_wrap_as_on_a_gpu() {
        let mut out = [0_u8; 3];
        // SAFETY: all have three bytes.
        unsafe {
            combine(
                Element::U8,
                Some([250, 1, 2].as_ptr()),
                Some([10, 1, 1].as_ptr()),
                [None, Some(out.as_mut_ptr())],
                3,
            );
        }
        assert_eq!(out, [4, 2, 3]);
    }
}
