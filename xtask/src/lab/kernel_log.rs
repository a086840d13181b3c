//! What a kernel says when something is wrong with it.

/// Parts of lines that a healthy kernel never prints. Sources: `include/asm-generic/bug.h` and `kernel/panic.c` (WARNING,
/// BUG, panic), `arch/x86/kernel/dumpstack.c` (Oops, Call Trace), `arch/x86/mm/fault.c`, `kernel/locking/lockdep.c`,
/// `kernel/hung_task.c`, `kernel/watchdog.c`, `kernel/rcu/tree_stall.h`, `mm/kasan/report.c`, `lib/ubsan.c`,
/// `lib/refcount.c`, `kernel/dma/debug.c`, `mm/slub.c`, `mm/page_alloc.c`, `lib/list_debug.c`,
/// `drivers/iommu/intel/dmar.c`, `mm/kmemleak.c`, `mm/page_poison.c`.
const COMPLAINTS: &[&str] = &[
    "WARNING: ",
    "BUG: ",
    "kernel BUG at",
    "Kernel panic",
    "Oops: ",
    "general protection fault",
    "Call Trace:",
    "unable to handle",
    "INFO: task ",
    "INFO: possible ",
    "possible circular locking dependency",
    "inconsistent lock state",
    "suspicious RCU usage",
    "held lock freed",
    "soft lockup",
    "hard LOCKUP",
    "detected stall",
    "self-detected stall",
    "KASAN: ",
    "UBSAN: ",
    "refcount_t: ",
    "DMA-API: ",
    "page allocation failure",
    "Out of memory",
    "list_add corruption",
    "list_del corruption",
    "DMAR: [DMA",
    "new suspected memory leaks",
    "pagealloc: ",
    "irq event stamp",
    "nobody cared",
    "sleeping function called from invalid context",
    "scheduling while atomic",
];

/// What a kernel that looks for mistakes says of that (`kernel/dma/debug.c`).
const ANNOUNCEMENTS: &[&str] = &[
    "DMA-API: preallocated ",
    "DMA-API: debugging enabled ",
    "DMA-API: dma_debug_entry pool grown ",
];

/// How `mm/slub.c` begins: "BUG kmalloc-64 (Not tainted): Poison overwritten".
const SLAB: &str = "BUG ";

/// A data race, `in FUNCTION [MODULE] / FUNCTION [MODULE]` (`kernel/kcsan/report.c`). The kernel has many of its own, which
/// are not looked into.
const RACE: &str = "BUG: KCSAN: ";
const OURS: &[&str] = &["[usb4_rdma]", "[usb4_rdma_ib]"];

/// The lines that are complaints, each once.
pub(crate) fn complaints(lines: &[String]) -> Vec<String> {
    let mut found: Vec<String> = vec![];
    for line in lines.iter().filter(|line| is_complaint(line)) {
        let text = without_time(line);
        if !found.iter().any(|known| known == text) {
            found.push(text.to_string());
        }
    }
    found
}

fn is_complaint(line: &str) -> bool {
    if line.contains(RACE) {
        return has_any(line, OURS);
    }
    without_time(line).starts_with(SLAB) || has_any(line, COMPLAINTS) && !has_any(line, ANNOUNCEMENTS)
}

fn has_any(line: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| line.contains(part))
}

/// The line without the time and the CPU the kernel puts before it: `[    1.266] `, `[    1.266][  T12] `.
fn without_time(line: &str) -> &str {
    let mut rest = line;
    while let Some((_, after)) = rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        rest = after;
    }
    rest.trim_start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Vec<String> {
        complaints(&lines.iter().map(|line| line.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn a_warning_is_found_once_and_without_its_time() {
        let lines = [
            "[    1.266071] thunderbolt 0000:00:02.0: using software connection manager",
            "[    4.000000] ------------[ cut here ]------------",
            "[    4.000001] WARNING: CPU: 0 PID: 7 at drivers/thunderbolt/nhi.c:1 nhi_shutdown+0x1/0x2",
            "[    5.000001] WARNING: CPU: 0 PID: 7 at drivers/thunderbolt/nhi.c:1 nhi_shutdown+0x1/0x2",
            "[    5.000002][   T12] Call Trace:",
        ];
        let warning = "WARNING: CPU: 0 PID: 7 at drivers/thunderbolt/nhi.c:1 nhi_shutdown+0x1/0x2";
        assert_eq!(of(&lines), [warning, "Call Trace:"]);
    }

    #[test]
    fn a_slab_that_was_written_after_it_was_freed_is_found() {
        let lines = [
            "[    5.000000] =============================================================================",
            "[    5.000001] BUG kmalloc-64 (Tainted: G           O       ): Poison overwritten",
        ];
        assert_eq!(of(&lines).len(), 1);
    }

    #[test]
    fn races_of_others_are_theirs() {
        let ours = "BUG: KCSAN: data-race in rx_start_poll [usb4_rdma] / u4_port_arm [usb4_rdma]";
        let lines = [
            "[    2.000000][  T12] BUG: KCSAN: data-race in tick_nohz_stop_tick / tick_sched_do_timer",
            &format!("[    3.000000][  T12] {ours}"),
        ];
        assert_eq!(of(&lines), [ours]);
    }

    #[test]
    fn what_a_healthy_kernel_says_is_no_complaint() {
        let lines = [
            "[    0.100000] Spectre V2 : Mitigation: Retpolines",
            "[    0.200000] thunderbolt 0000:00:02.0: device links to tunneled native ports are missing!",
            "[    0.300000] rcu: Hierarchical RCU implementation.",
            "[    0.400000] NMI watchdog: Perf NMI watchdog permanently disabled",
            "[    0.500000][    T1] DMA-API: preallocated 65536 debug entries",
            "[    0.500001][    T1] DMA-API: debugging enabled by kernel config",
            "lab: mark 1",
        ];
        assert!(of(&lines).is_empty());
    }
}
