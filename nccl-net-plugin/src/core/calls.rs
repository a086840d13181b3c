//! The calls of the tables, less what differs between versions.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::Duration;

use nccl_net_sys::NCCL_PTR_HOST;

use super::fault::{Blame, Fault};
use super::handle::{self, Address, BadHandle, Raw};
use super::hub::{Hub, Inner, Place};
use super::id::{Id, Kind};
use super::transfer::Piece;
use super::world::World;

/// How long a call that gives memory back waits for messages of that memory which are under way: they reach a peer that is
/// there in less.
const DRAIN: Duration = Duration::from_millis(2);

/// A message's bytes, or a receive's buffer, as NCCL gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) data: *mut c_void,
    pub(crate) size: u64,
    pub(crate) tag: i32,
    /// From [`reg_mr`].
    pub(crate) memory: *mut c_void,
}

type Where = (&'static Hub, Place, u64);

/// Makes a listener: it, and the handle that names it.
pub(crate) fn listen((hub, place, context): Where, device: i32) -> Result<(*mut c_void, Raw), Fault> {
    World::facts(device)?;
    let (key, address) = hub.with(|inner| inner.listen(context))??;
    Ok((place.id(Kind::Listen, key).to_pointer(), address.to_raw()))
}

/// Goes on connecting; NULL: not yet.
pub(crate) fn connect(
    (hub, place, context): Where,
    device: i32,
    raw: &mut Raw,
) -> Result<*mut c_void, Fault> {
    World::facts(device)?;
    let address = match Address::from_raw(raw) {
        Ok(address) => address,
        Err(BadHandle::Version(version, Some(node))) => {
            hub.with(|inner| inner.other_version(node, version))?;
            return Err(Fault::told(Blame::Usage));
        }
        Err(bad) => return Err(Fault::new(Blame::Usage, bad)),
    };
    let before = handle::state(raw);
    let mut begun = (before != 0).then(|| Id::from_raw(before));
    // Another thread may have begun, whose hub is another.
    let hub = match begun {
        Some(id) => World::hub_of(id, Kind::Comm)?,
        None => hub,
    };
    let connected = hub.attempt(|inner| {
        let id = match begun {
            Some(id) => id,
            None => {
                let Some(key) = inner.begin_connect(context, &address)? else {
                    return Ok(None);
                };
                let id = place.id(Kind::Comm, key);
                begun = Some(id);
                id
            }
        };
        Ok(inner.is_connected(id.key())?.then_some(id))
    });
    let next = match &connected {
        Ok(None) => begun.map_or(0, Id::raw),
        _ => 0,
    };
    handle::set_state(raw, next);
    Ok(connected?.map_or(std::ptr::null_mut(), Id::to_pointer))
}

/// Accepts; NULL: nobody yet.
pub(crate) fn accept(listener: *mut c_void) -> Result<*mut c_void, Fault> {
    let id = Id::from_pointer(listener);
    let hub = World::hub_of(id, Kind::Listen)?;
    let accepted = hub.attempt(|inner| {
        let key = inner.accept(id.key())?;
        Ok(key.map(|key| inner.place.id(Kind::Comm, key)))
    })?;
    Ok(accepted.map_or(std::ptr::null_mut(), Id::to_pointer))
}

/// Registers memory for a communicator.
///
/// # Safety
/// `size` bytes at `data` stay mapped until [`dereg_mr`], or the end of the communicator; sends read and receives write
/// them.
pub(crate) unsafe fn reg_mr(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: i32,
) -> Result<*mut c_void, Fault> {
    let id = Id::from_pointer(comm);
    let hub = World::hub_of(id, Kind::Comm)?;
    if kind != NCCL_PTR_HOST {
        return Err(Fault::internal(format_args!(
            "memory of kind {kind} cannot be registered: only that of the host is supported"
        )));
    }
    if data.is_null() || size == 0 {
        return Err(Fault::internal("no memory to register"));
    }
    let (device, access) = hub.with(|inner| inner.registrar(id.key()))??;
    data.expose_provenance();
    // SAFETY: the caller's promise: what holds the region is dropped by `dereg_mr`, or with the communicator.
    let memory = unsafe { device.register(data.cast(), size, access) };
    let memory = memory.map_err(|error| {
        Fault::new(
            Blame::System,
            format_args!("cannot register {size} bytes: {error}"),
        )
    })?;
    let added = hub.with(|inner| {
        let place = inner.place;
        inner
            .add_region(id.key(), memory)
            .map(|key| place.id(Kind::Region, key))
    })?;
    added
        .map(Id::to_pointer)
        .map_err(|_memory| Fault::internal("memory for a communicator that was closed meanwhile"))
}

/// Deregisters memory: nothing touches it afterwards.
pub(crate) fn dereg_mr(comm: *mut c_void, memory: *mut c_void) -> Result<(), Fault> {
    if memory.is_null() {
        return Ok(());
    }
    let (id, region) = (Id::from_pointer(comm), Id::from_pointer(memory));
    let hub = World::hub_of(id, Kind::Comm)?;
    World::hub_of(region, Kind::Region)?;
    if region.hub() != id.hub() {
        return Err(Fault::internal("memory of another communicator"));
    }
    let sending = |inner: &mut Inner| inner.is_sending(id.key(), Some(region.key().index));
    if hub.with(sending)? {
        hub.drain(DRAIN, |inner| !sending(inner))?;
    }
    // Dropped here, without the lock.
    hub.with(|inner| inner.remove_region(id.key(), region.key()))?
        .map(drop)
}

/// Posts a message; NULL: not now.
#[inline]
pub(crate) fn isend(comm: *mut c_void, buffer: &Buffer) -> Result<*mut c_void, Fault> {
    let id = Id::from_pointer(comm);
    let hub = World::hub_of(id, Kind::Comm)?;
    let piece = piece(id, buffer)?;
    let request = hub.attempt(|inner| inner.isend(id.key(), &piece))?;
    Ok(request.map_or(std::ptr::null_mut(), Id::to_pointer))
}

/// Posts a buffer; NULL: not now.
///
/// # Safety
/// The buffer may be written until the request is done, its memory deregistered or the communicator closed.
#[inline]
pub(crate) unsafe fn irecv(comm: *mut c_void, buffer: &Buffer) -> Result<*mut c_void, Fault> {
    let id = Id::from_pointer(comm);
    let hub = World::hub_of(id, Kind::Comm)?;
    let piece = piece(id, buffer)?;
    // SAFETY: the caller's promise.
    let request = hub.attempt(|inner| unsafe { inner.irecv(id.key(), &piece) })?;
    Ok(request.map_or(std::ptr::null_mut(), Id::to_pointer))
}

#[inline]
fn piece(comm: Id, buffer: &Buffer) -> Result<Piece, Fault> {
    let region = Id::from_pointer(buffer.memory);
    let region = match NonNull::new(buffer.memory) {
        None => None,
        Some(_)
            if region.is(Kind::Region) && (region.world(), region.hub()) == (comm.world(), comm.hub()) =>
        {
            Some(region.key())
        }
        Some(_) => {
            return Err(Fault::internal(
                "a memory handle that is none of this communicator's",
            ));
        }
    };
    Ok(Piece {
        addr: buffer.data.addr() as u64,
        size: buffer.size,
        tag: u32::from_ne_bytes(buffer.tag.to_ne_bytes()),
        region,
    })
}

/// How long the message of a request was, if it is done; the request is no more then.
#[inline]
pub(crate) fn test(request: *mut c_void) -> Result<Option<u64>, Fault> {
    let id = Id::from_pointer(request);
    let hub = World::hub_of(id, Kind::Request)?;
    hub.attempt(|inner| inner.test(id))
}

/// Closes a communicator of either kind.
pub(crate) fn close(comm: *mut c_void) -> Result<(), Fault> {
    if comm.is_null() {
        return Ok(());
    }
    let id = Id::from_pointer(comm);
    let hub = World::hub_of(id, Kind::Comm)?;
    let sending = |inner: &mut Inner| inner.is_sending(id.key(), None);
    if hub.with(sending)? {
        hub.drain(DRAIN, |inner| !sending(inner))?;
    }
    let regions = hub.with(|inner| inner.close(id.key()))?;
    // Dropped here, without the lock.
    regions
        .map(drop)
        .ok_or_else(|| Fault::internal("a communicator that has been closed, or never was"))
}

/// Closes a listener.
pub(crate) fn close_listen(listener: *mut c_void) -> Result<(), Fault> {
    if listener.is_null() {
        return Ok(());
    }
    let id = Id::from_pointer(listener);
    let hub = World::hub_of(id, Kind::Listen)?;
    if hub.with(|inner| inner.close_listener(id.key()))? {
        return Ok(());
    }
    Err(Fault::internal("a listener that has been closed, or never was"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::table::Key;

    #[test]
    fn memory_from_before_a_fork_or_of_another_hub_is_not_taken_for_a_communicators() {
        let key = Key {
            index: 1,
            generation: 2,
        };
        let comm = Id::new(Kind::Comm, 1, 0, key);
        let taken = |world, hub| {
            let buffer = Buffer {
                data: std::ptr::null_mut(),
                size: 0,
                tag: 0,
                memory: Id::new(Kind::Region, world, hub, key).to_pointer(),
            };
            piece(comm, &buffer).is_ok()
        };
        assert!(taken(1, 0));
        assert!(!taken(0, 0) && !taken(1, 1));
    }
}
