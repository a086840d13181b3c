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

/// All state of a link, handed over at creation and handed back by [`crate::Link::into_storage`].
#[derive(Debug, Default)]
pub struct LinkStorage {
    pub(crate) ops: Slab<Op>,
    pub(crate) tx_flows: Slab<TxFlow>,
    pub(crate) rx_flows: Slab<RxFlow>,
    pub(crate) slots: Slab<Slot>,
    pub(crate) tokens: Slab<Token>,
    pub(crate) parked: Slab<Parked>,
    pub(crate) plans: Slab<PlanEntry>,
    pub(crate) streams: Slab<Stream>,
    pub(crate) rails: Slab<Rail>,
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
