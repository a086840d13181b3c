//! Router operations: a request in ROUTER_CS_26, parameters from ROUTER_CS_9 on, metadata in ROUTER_CS_25 (USB4 1.0
//! section 8.3.1). All are done at once.

/// A request is pending.
const OV: u32 = 1 << 31;
/// The operation is not supported.
const ONS: u32 = 1 << 30;
/// `USB4_SWITCH_OP_BUFFER_ALLOC` in `tb_regs.h`.
const BUFFER_ALLOCATION: u32 = 0x33;
const DATA: usize = 9;
const METADATA: usize = 25;
/// Buffers a host interface path may have (baMaxHI).
const HOST_INTERFACE_BUFFERS: u32 = 32;

/// Runs what the new value of ROUTER_CS_26 asks for; returns what the register holds then.
pub(super) fn run(value: u32, words: &mut [u32]) -> u32 {
    let opcode = value & 0xffff;
    if value & OV == 0 {
        return value;
    }
    // DROM and NVM access are optional for a host router.
    if opcode != BUFFER_ALLOCATION {
        return opcode | ONS;
    }
    // Index (15:0) and value (31:16). Without index 5, baMaxHI, Linux falls back to fixed credits.
    let answers = [1, 2, 3, 4, 5 | HOST_INTERFACE_BUFFERS << 16];
    for (slot, answer) in words.iter_mut().skip(DATA).zip(answers) {
        *slot = answer;
    }
    if let Some(slot) = words.get_mut(METADATA) {
        *slot = crate::bits::word(answers.len());
    }
    opcode
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read, router};
    use super::super::{CS_26, space};
    use super::*;

    #[test]
    fn buffer_allocation_reports_the_host_interfaces_buffers() {
        let mut router = router(2);
        router
            .write(0, space::ROUTER, CS_26, &[OV | BUFFER_ALLOCATION])
            .unwrap();
        assert_eq!(read(&router, 0, space::ROUTER, CS_26), BUFFER_ALLOCATION);
        assert_eq!(read(&router, 0, space::ROUTER, METADATA), 5);
        assert_eq!(read(&router, 0, space::ROUTER, DATA + 4), 5 | 32 << 16);
    }

    #[test]
    fn other_operations_are_not_supported() {
        let mut router = router(2);
        router.write(0, space::ROUTER, CS_26, &[OV | 0x24]).unwrap();
        assert_eq!(read(&router, 0, space::ROUTER, CS_26), ONS | 0x24);
    }
}
