//! What a kernel holds, and whether it still held as much after something was done.

use crate::lab::session::Guest;
use crate::lab::suites::net::SETTLE;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Objects a cache may have gained that are nobody's fault: a kernel does other things, too. What is done is done some
/// hundreds of times or more, so a leak is larger.
const SLACK: u64 = 150;

/// What is freed by a grace period, a work item or a reaper takes a while to go.
const GONE: Duration = Duration::from_secs(30);

/// What a kernel holds.
#[derive(Debug, PartialEq)]
pub(super) struct Footprint {
    /// Objects in use of each cache of the slab allocator.
    slabs: BTreeMap<String, u64>,
    /// Areas of virtual memory (mm/vmalloc.c).
    areas: u64,
    /// Open files of the whole system.
    files: u64,
    /// Pages pinned by drivers, by `FOLL_PIN`.
    pinned: u64,
    /// Kernel threads of ours.
    threads: u64,
}

impl Footprint {
    pub(super) fn of(guest: &Guest) -> Result<Footprint> {
        // What is only cached is no leak; nor are objects that a slab cache keeps in hand for each processor, some
        // hundreds of a kind, and counts as in use until it is shrunk (mm/slub.c: sheaves).
        let text = guest.sh_for(
            "sync; echo 3 > /proc/sys/vm/drop_caches; sleep 1; echo 2 > /proc/sys/vm/drop_caches
             for cache in /sys/kernel/slab/*/shrink; do echo 1 > $cache; done
             cat /proc/slabinfo; echo; cat /proc/sys/fs/file-nr; echo
             grep -E '^nr_foll_pin_(acquired|released) ' /proc/vmstat; echo
             grep -vc ' unpurged ' /proc/vmallocinfo; echo
             cat /proc/[0-9]*/comm | grep -c '^usb4_rdma/' || true",
            SETTLE,
        )?;
        parse(&text).with_context(|| format!("what the kernel holds: {text}"))
    }

    /// Fails unless the guest still holds no more than this.
    pub(super) fn is_what_is_left_in(&self, guest: &Guest) -> Result<()> {
        let deadline = Instant::now() + GONE;
        loop {
            let more = self.gained(&Footprint::of(guest)?);
            if more.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "guest {} holds more than before: {}",
                    guest.number,
                    more.join(", ")
                );
            }
        }
    }

    fn gained(&self, after: &Footprint) -> Vec<String> {
        let mut more = vec![];
        for (cache, &count) in &after.slabs {
            let before = self.slabs.get(cache).copied().unwrap_or(0);
            if count > before + SLACK + before / 20 {
                more.push(format!("{cache} {before} -> {count}"));
            }
        }
        if after.areas > self.areas + SLACK {
            more.push(format!("virtual areas {} -> {}", self.areas, after.areas));
        }
        // Those who look have files open, too.
        if after.files > self.files + 32 {
            more.push(format!("files {} -> {}", self.files, after.files));
        }
        if after.pinned > self.pinned {
            more.push(format!("pinned pages {} -> {}", self.pinned, after.pinned));
        }
        if after.threads > self.threads {
            more.push(format!("threads {} -> {}", self.threads, after.threads));
        }
        more
    }
}

fn parse(text: &str) -> Option<Footprint> {
    let mut parts = text.split("\n\n");
    // "name  active_objs num_objs ...", after a line with the version and one with titles (mm/slab_common.c).
    let slabs = parts.next()?.lines().skip(2).filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_string(), words.next()?.parse().ok()?))
    });
    let mut slabs: BTreeMap<String, u64> = slabs.collect();
    // Also for areas that wait to be unmapped, many at once, and for gaps between others: these are no leak.
    slabs.remove("vmap_area");
    let files = parts.next()?.split_whitespace().next()?.parse().ok()?;
    let pins = parts.next()?;
    let count = |name: &str| {
        let line = pins.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    let pinned = count("nr_foll_pin_acquired")?.checked_sub(count("nr_foll_pin_released")?)?;
    let areas = parts.next()?.trim().parse().ok()?;
    let threads = parts.next()?.trim().parse().ok()?;
    (!slabs.is_empty()).then_some(Footprint {
        slabs,
        areas,
        files,
        pinned,
        threads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "slabinfo - version: 2.1\n# name <active_objs> <num_objs>\n\
        kmalloc-64 1000 1024 64\nvmap_area 900 1024 64\nfilp 100 128 256\n\n128 0 50000\n\n\
        nr_foll_pin_acquired 10\nnr_foll_pin_released 8\n\n500\n\n2\n";

    #[test]
    fn what_a_kernel_holds_is_read() {
        let read = parse(TEXT).unwrap();
        assert_eq!(read.slabs["kmalloc-64"], 1000);
        assert_eq!((read.areas, read.files), (500, 128));
        assert_eq!((read.pinned, read.threads), (2, 2));
        assert!(!read.slabs.contains_key("vmap_area"));
        assert_eq!(
            parse("cat: /proc/slabinfo: no such file\n\n1 0 2\n\n\n\n\n\n"),
            None
        );
    }

    #[test]
    fn a_leak_is_told_from_noise() {
        let before = parse(TEXT).unwrap();
        assert!(before.gained(&before).is_empty());
        let after = |from: &str, to: &str| parse(&TEXT.replace(from, to)).unwrap();
        assert!(
            before
                .gained(&after("kmalloc-64 1000", "kmalloc-64 1100"))
                .is_empty()
        );
        let more = before.gained(&after("kmalloc-64 1000", "kmalloc-64 1300"));
        assert_eq!(more, ["kmalloc-64 1000 -> 1300"]);
        assert_eq!(before.gained(&after("acquired 10", "acquired 11")).len(), 1);
        assert_eq!(before.gained(&after("\n\n500\n", "\n\n900\n")).len(), 1);
        assert_eq!(before.gained(&after("\n2\n", "\n3\n")).len(), 1);
    }
}
