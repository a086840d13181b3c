//! The memory a link lives in.

use crate::Slab;
use crate::op::Op;
use crate::park::Parked;
use crate::plan::PlanEntry;
use crate::rail::Rail;
use crate::rx_flow::RxFlow;
use crate::slot::Slot;
use crate::stream::Stream;
use crate::token::Token;
use crate::tx_flow::TxFlow;

/// All state of a link, handed over at creation and handed back by [`crate::Link::into_storage`]. Every slab
/// begins as default elements; the element types are opaque. Shorter slabs than the configuration asks for lower
/// its limits.
#[derive(Debug, Default)]
pub struct LinkStorage {
    /// [`crate::LinkConfig::max_ops`] elements.
    pub ops: Slab<Op>,
    /// [`crate::LinkConfig::max_tx_flows`] elements.
    pub tx_flows: Slab<TxFlow>,
    /// [`crate::LinkConfig::max_rx_flows`] elements.
    pub rx_flows: Slab<RxFlow>,
    /// [`crate::LinkConfig::tx_slots`] elements.
    pub slots: Slab<Slot>,
    /// [`crate::LinkConfig::rx_tokens`] elements.
    pub tokens: Slab<Token>,
    /// [`crate::LinkConfig::max_parked`] elements.
    pub parked: Slab<Parked>,
    /// [`crate::LinkConfig::max_plans`] elements, rounded up to a power of two.
    pub plans: Slab<PlanEntry>,
    /// [`crate::LinkConfig::max_reads`] elements.
    pub streams: Slab<Stream>,
    /// [`crate::LinkConfig::max_rails`] elements, each made by [`Rail::new`] with a ring of
    /// [`crate::LinkConfig::rail_window`].
    pub rails: Slab<Rail>,
}

#[cfg(any(feature = "alloc", test))]
impl LinkStorage {
    /// Storage on the heap for a link with this configuration.
    pub fn boxed(config: &crate::LinkConfig) -> Self {
        let mut rails = Slab::boxed(usize::from(config.max_rails).min(crate::MAX_RAILS));
        for rail in rails.iter_mut() {
            *rail = Rail::new(Slab::boxed(usize::from(config.rail_window)));
        }
        Self {
            ops: Slab::boxed(config.max_ops as usize),
            tx_flows: Slab::boxed(config.max_tx_flows as usize),
            rx_flows: Slab::boxed(config.max_rx_flows as usize),
            slots: Slab::boxed(usize::from(config.tx_slots)),
            tokens: Slab::boxed(config.rx_tokens as usize),
            parked: Slab::boxed(config.max_parked as usize),
            plans: Slab::boxed(config.max_plans.next_power_of_two() as usize),
            streams: Slab::boxed(config.max_reads as usize),
            rails,
        }
    }
}
