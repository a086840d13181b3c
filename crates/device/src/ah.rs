//! Address handles: from an endpoint's small number straight to a flow on a link.

use usb4_engine::{EpAddr, FlowId, NodeId, Slab};

use crate::LinkId;

/// Place of an address handle (opaque; handed over with an endpoint).
#[derive(Clone, Copy, Debug, Default)]
pub struct AhSlot(pub(crate) Option<Ah>);

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ah {
    /// The destination; see [`Ah::dst`].
    pub(crate) node: NodeId,
    ep: u32,
    pub(crate) incarnation: u32,
    /// The link to the destination's host when it was last looked up.
    pub(crate) link: LinkId,
    /// The flow on that link, opened with the first entry that needs it.
    pub(crate) flow: Option<FlowId>,
    /// Of a datagram queue pair: the key that the flow shows, or will.
    pub(crate) qkey: u32,
}

impl Ah {
    /// The destination.
    pub(crate) fn dst(&self) -> EpAddr {
        EpAddr {
            node: self.node,
            ep: self.ep,
            incarnation: self.incarnation,
        }
    }

    /// A handle for `dst`, on `link`.
    pub(crate) fn new(dst: EpAddr, link: LinkId) -> Self {
        Self {
            node: dst.node,
            ep: dst.ep,
            incarnation: dst.incarnation,
            link,
            flow: None,
            qkey: 0,
        }
    }
}

impl AhSlot {
    /// The flow to close, if one is open; forgets it.
    pub(crate) fn take_flow(&mut self) -> Option<(LinkId, FlowId)> {
        let ah = self.0.as_mut()?;
        Some((ah.link, ah.flow.take()?))
    }
}

/// Puts a handle into a free place. `None` if there is none.
pub(crate) fn insert(handles: &mut Slab<AhSlot>, ah: Ah) -> Option<u32> {
    let index = handles.iter().position(|slot| slot.0.is_none())?;
    *handles.get_mut(index)? = AhSlot(Some(ah));
    u32::try_from(index).ok()
}
