//! A host's memory: regions, and counted references to them that die when they are released.

use crate::rng::Rng;
use std::collections::HashMap;
use usb4_engine::{MemAt, MemRef, RemoteAccess};
use usb4_wire::NakCode;

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// RDMA read.
    pub read: bool,
    /// RDMA write.
    pub write: bool,
    /// Fetch-add and compare-swap.
    pub atomic: bool,
}

impl Access {
    /// Local use only.
    pub const LOCAL: Self = Self {
        read: false,
        write: false,
        atomic: false,
    };
    /// Everything.
    pub const ALL: Self = Self {
        read: true,
        write: true,
        atomic: true,
    };

    fn allows(self, what: RemoteAccess) -> bool {
        match what {
            RemoteAccess::Read => self.read,
            RemoteAccess::Write => self.write,
            RemoteAccess::Atomic => self.atomic,
        }
    }
}

/// A memory region of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The host's index in the world.
    pub host: usize,
    pub(crate) index: usize,
    /// The address peers name it by.
    pub addr: u64,
    /// The key peers must show.
    pub key: u64,
}

struct Bytes {
    bytes: Vec<u8>,
    addr: u64,
    access: Access,
}

#[derive(Clone, Copy)]
struct Grant {
    region: usize,
    generation: u32,
    live: bool,
}

/// All regions of a host. Every reference given out is a value of its own, so a use after its release is caught.
pub(crate) struct Memory {
    host: usize,
    regions: Vec<Bytes>,
    by_key: HashMap<u64, usize>,
    grants: Vec<Grant>,
    free: Vec<usize>,
    live: usize,
    rng: Rng,
}

impl Memory {
    pub(crate) fn new(host: usize, rng: Rng) -> Self {
        Self {
            host,
            regions: Vec::new(),
            by_key: HashMap::new(),
            grants: Vec::new(),
            free: Vec::new(),
            live: 0,
            rng,
        }
    }

    pub(crate) fn register(&mut self, bytes: Vec<u8>, access: Access) -> Region {
        let index = self.regions.len();
        let key = self.rng.next_u64();
        // Addresses are 1 TiB apart, so that an overrun never lands in the next region unseen.
        let addr = (index as u64 + 1) << 40;
        self.by_key.insert(key, index);
        self.regions.push(Bytes { bytes, addr, access });
        Region {
            host: self.host,
            index,
            addr,
            key,
        }
    }

    /// Kills the region's key: peers are refused from now on, references already given stay good.
    pub(crate) fn revoke(&mut self, region: Region) {
        self.by_key.remove(&region.key);
    }

    pub(crate) fn bytes(&self, region: Region) -> &[u8] {
        &self.regions[region.index].bytes
    }

    pub(crate) fn bytes_mut(&mut self, region: Region) -> &mut [u8] {
        &mut self.regions[region.index].bytes
    }

    /// References not yet released.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    pub(crate) fn grant(&mut self, region: Region, offset: u64) -> MemAt {
        self.grant_index(region.index, offset)
    }

    fn grant_index(&mut self, region: usize, offset: u64) -> MemAt {
        self.live += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.grants.push(Grant {
                region,
                generation: 0,
                live: false,
            });
            self.grants.len() - 1
        });
        let grant = &mut self.grants[slot];
        *grant = Grant {
            region,
            generation: grant.generation.wrapping_add(1),
            live: true,
        };
        MemAt {
            mem: MemRef(u64::from(grant.generation) << 32 | slot as u64),
            offset,
        }
    }

    pub(crate) fn remote(
        &mut self,
        key: u64,
        addr: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<MemAt, NakCode> {
        let &index = self.by_key.get(&key).ok_or(NakCode::Access)?;
        let region = &self.regions[index];
        if !region.access.allows(access) {
            return Err(NakCode::Access);
        }
        let offset = addr.checked_sub(region.addr).ok_or(NakCode::Access)?;
        let end = offset.checked_add(u64::from(len)).ok_or(NakCode::Access)?;
        if end > region.bytes.len() as u64 || (access == RemoteAccess::Atomic && offset % 8 != 0) {
            return Err(NakCode::Access);
        }
        Ok(self.grant_index(index, offset))
    }

    fn resolve(&self, mem: MemRef) -> Result<(usize, usize), String> {
        let slot = usize::try_from(mem.0 & 0xffff_ffff).unwrap_or(usize::MAX);
        match self.grants.get(slot) {
            Some(grant) if grant.live && u64::from(grant.generation) == mem.0 >> 32 => {
                Ok((slot, grant.region))
            }
            _ => Err(format!("memory reference {:#x} used after its release", mem.0)),
        }
    }

    pub(crate) fn release(&mut self, mem: MemRef) -> Result<(), String> {
        let (slot, _) = self.resolve(mem)?;
        self.grants[slot].live = false;
        self.free.push(slot);
        self.live -= 1;
        Ok(())
    }

    /// The `len` bytes at `at`, while a reference is held.
    pub(crate) fn at(&mut self, at: MemAt, len: usize) -> Result<&mut [u8], String> {
        let (_, region) = self.resolve(at.mem)?;
        let bytes = &mut self.regions[region].bytes;
        let size = bytes.len();
        let start = usize::try_from(at.offset).map_err(|e| e.to_string())?;
        start
            .checked_add(len)
            .and_then(|end| bytes.get_mut(start..end))
            .ok_or_else(|| format!("{len} bytes at offset {start} of a region of {size}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_reference_is_dead_even_if_its_slot_is_used_again() {
        let mut memory = Memory::new(0, Rng::new(1));
        let region = memory.register(vec![0; 64], Access::ALL);
        let old = memory.grant(region, 0);
        memory.release(old.mem).unwrap();
        let new = memory.grant(region, 0);
        assert!(memory.at(old, 8).is_err());
        assert!(memory.at(new, 64).is_ok());
        assert!(memory.at(new, 65).is_err());
        assert!(memory.release(old.mem).is_err());
        assert_eq!(memory.live(), 1);
    }

    #[test]
    fn an_address_that_wraps_is_refused() {
        let mut memory = Memory::new(0, Rng::new(1));
        let region = memory.register(vec![0; 64], Access::ALL);
        for (addr, len) in [
            (region.addr, 65),
            (region.addr - 1, 1),
            (u64::MAX, 2),
            (region.addr + 64, 1),
        ] {
            assert_eq!(
                memory.remote(region.key, addr, len, RemoteAccess::Write),
                Err(NakCode::Access)
            );
        }
        assert!(
            memory
                .remote(region.key, region.addr + 63, 1, RemoteAccess::Write)
                .is_ok()
        );
        assert!(
            memory
                .remote(region.key ^ 1, region.addr, 1, RemoteAccess::Read)
                .is_err()
        );
        assert!(
            memory
                .remote(region.key, region.addr + 4, 8, RemoteAccess::Atomic)
                .is_err()
        );
    }
}
