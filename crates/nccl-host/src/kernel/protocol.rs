//! Which collective, element type and protocol a kernel's name and function number mean.

use super::combine::Element;
use super::ring::Collective;
use super::{Protocol, unsupported};

/// What a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) what: Collective,
    pub(crate) element: Element,
    pub(crate) protocol: Protocol,
}

/// The function numbered `function` of the kernel called `name`.
pub(crate) fn kernel(name: &str, function: u32) -> Kernel {
    let Some(kernel) = read(name, function) else {
        unsupported(&format!("function {function} of kernel {name}"));
    };
    kernel
}

/// `ncclDevKernel_AllReduce_Sum_f32_RING_LL`: collective, sum and type, algorithm. The protocol in the name is that of
/// the first of the kernel's functions, which are numbered in threes: LL, LL128, Simple (`docs/spec/nccl-host.md`).
fn read(name: &str, function: u32) -> Option<Kernel> {
    let mut words = name.strip_prefix("ncclDevKernel_")?.split('_');
    let what = Collective::named(words.next()?)?;
    let element = match what {
        Collective::AllGather | Collective::Broadcast => Element::U8,
        Collective::AllReduce | Collective::ReduceScatter => {
            words.next().filter(|operation| *operation == "Sum")?;
            Element::named(words.next()?)?
        }
    };
    words.next().filter(|algorithm| *algorithm == "RING")?;
    // Slices and steps of a part in slots: seen, and what makes the step counters of both sides meet.
    let protocol = match (function % 3, what) {
        (0, _) => Protocol::Ll,
        (2, Collective::Broadcast) => Protocol::Simple { slices: 1, steps: 1 },
        (2, _) => Protocol::Simple { slices: 2, steps: 2 },
        _ => return None,
    };
    Some(Kernel {
        what,
        element,
        protocol,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_told_by_its_name_and_its_function() {
        let name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
        let kernel = read(name, 261).unwrap();
        assert_eq!(
            (kernel.what, kernel.element),
            (Collective::AllReduce, Element::F32)
        );
        assert_eq!(kernel.protocol, Protocol::Ll);
        let simple = read(name, 263).unwrap().protocol;
        assert_eq!(simple, Protocol::Simple { slices: 2, steps: 2 });
        let broadcast = read("ncclDevKernel_Broadcast_RING_LL", 347).unwrap();
        assert_eq!(broadcast.protocol, Protocol::Simple { slices: 1, steps: 1 });
    }

    #[test]
    fn what_is_not_emulated_is_told_apart() {
        for (name, function) in [
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 262),
            ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL", 261),
            ("ncclDevKernel_AllReduce_Prod_f32_RING_LL", 261),
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 261),
            ("ncclDevKernel_Generic", 0),
            ("ncclSymkDevKernel_AllGather_LL", 0),
        ] {
            assert_eq!(read(name, function), None, "{name} {function}");
        }
    }
}
