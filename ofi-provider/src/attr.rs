//! What the provider offers, and whether it satisfies an application's hints.
//!
//! Applications compare what they get with what they asked for, so the answer repeats every hint that can be
//! met (threading, progress, address vector type, registration mode, capabilities) instead of naming the
//! strongest thing on offer.

use std::ffi::c_int;

use libfabric_sys::*;

use crate::addr::ADDR_FORMAT;
use crate::env::params;

const TX_CAPS: u64 = FI_MSG | FI_TAGGED | FI_SEND;
const RX_CAPS: u64 = FI_MSG | FI_TAGGED | FI_RECV | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE;
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const CAPS: u64 = TX_CAPS | RX_CAPS | DOMAIN_CAPS;

const TX_OP_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_MORE;
const RX_OP_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV | FI_MORE;

/// Sends of one endpoint arrive in order.
const ORDER: u64 = FI_ORDER_SAS;

/// Mode bits that can be granted because nothing depends on them: no remote access is offered yet, and local
/// buffers need no registration.
const MR_MODE: c_int = FI_MR_BASIC | FI_MR_SCALABLE | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// `protocol`: a value of this provider's own.
const PROTOCOL: u32 = FI_PROV_SPECIFIC | 0x5534;

/// Objects of a kind in a domain.
const COUNT: usize = 65536;

/// Receives that can be posted; more are taken too.
const RX_SIZE: usize = 4096;

/// The attributes of one answer, but for names and addresses.
pub(crate) struct Offer {
    pub(crate) caps: u64,
    pub(crate) tx: fi_tx_attr,
    pub(crate) rx: fi_rx_attr,
    pub(crate) ep: fi_ep_attr,
    pub(crate) domain: fi_domain_attr,
}

/// An application's hints; absent parts accept anything.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hints<'a> {
    pub(crate) info: Option<&'a fi_info>,
    pub(crate) tx: Option<&'a fi_tx_attr>,
    pub(crate) rx: Option<&'a fi_rx_attr>,
    pub(crate) ep: Option<&'a fi_ep_attr>,
    pub(crate) domain: Option<&'a fi_domain_attr>,
}

impl Offer {
    fn new() -> Self {
        Self {
            caps: CAPS,
            tx: fi_tx_attr {
                caps: TX_CAPS,
                mode: 0,
                op_flags: 0,
                msg_order: ORDER,
                comp_order: 0,
                inject_size: usb4_tagged::STAGE_LEN,
                size: params().tx_size,
                iov_limit: usb4_tagged::MAX_SEGMENTS,
                rma_iov_limit: 0,
                tclass: FI_TC_UNSPEC,
            },
            rx: fi_rx_attr {
                caps: RX_CAPS,
                mode: 0,
                op_flags: 0,
                msg_order: ORDER,
                comp_order: 0,
                total_buffered_recv: 0,
                size: RX_SIZE,
                iov_limit: usb4_tagged::MAX_SEGMENTS,
            },
            ep: fi_ep_attr {
                type_: FI_EP_RDM,
                protocol: PROTOCOL,
                protocol_version: 1,
                max_msg_size: usize::try_from(usb4_tagged::MAX_MESSAGE).unwrap_or(usize::MAX),
                msg_prefix_size: 0,
                max_order_raw_size: 0,
                max_order_war_size: 0,
                max_order_waw_size: 0,
                mem_tag_format: u64::MAX,
                tx_ctx_cnt: 1,
                rx_ctx_cnt: 1,
                auth_key_size: 0,
                auth_key: std::ptr::null_mut(),
            },
            domain: fi_domain_attr {
                domain: std::ptr::null_mut(),
                name: std::ptr::null_mut(),
                threading: FI_THREAD_SAFE,
                control_progress: FI_PROGRESS_MANUAL,
                data_progress: FI_PROGRESS_MANUAL,
                resource_mgmt: FI_RM_ENABLED,
                av_type: FI_AV_TABLE,
                mr_mode: 0,
                mr_key_size: 8,
                cq_data_size: 8,
                cq_cnt: COUNT,
                ep_cnt: COUNT,
                tx_ctx_cnt: COUNT,
                rx_ctx_cnt: COUNT,
                max_ep_tx_ctx: 1,
                max_ep_rx_ctx: 1,
                max_ep_stx_ctx: 0,
                max_ep_srx_ctx: 0,
                cntr_cnt: COUNT,
                mr_iov_limit: 1,
                caps: DOMAIN_CAPS,
                mode: 0,
                auth_key: std::ptr::null_mut(),
                auth_key_size: 0,
                max_err_data: 0,
                mr_cnt: COUNT,
                tclass: FI_TC_UNSPEC,
                max_ep_auth_key: 0,
                max_group_id: 0,
                max_cntr_value: u64::MAX,
                max_err_cntr_value: u64::MAX,
            },
        }
    }

    /// The answer to hints, or why there is none.
    pub(crate) fn answer(hints: &Hints<'_>) -> Result<Self, &'static str> {
        let mut offer = Self::new();
        if let Some(info) = hints.info {
            offer.narrow_info(info)?;
        }
        if let Some(ep) = hints.ep {
            offer.narrow_ep(ep)?;
        }
        if let Some(domain) = hints.domain {
            offer.narrow_domain(domain)?;
        }
        offer.tx.caps &= offer.caps;
        offer.rx.caps &= offer.caps;
        if let Some(tx) = hints.tx {
            offer.narrow_tx(tx)?;
        }
        if let Some(rx) = hints.rx {
            offer.narrow_rx(rx)?;
        }
        Ok(offer)
    }

    fn narrow_info(&mut self, hint: &fi_info) -> Result<(), &'static str> {
        check(hint.caps & !CAPS == 0, "capabilities")?;
        check(
            hint.addr_format == FI_FORMAT_UNSPEC || hint.addr_format == ADDR_FORMAT,
            "address format",
        )?;
        if hint.caps != 0 {
            self.caps = hint.caps;
            if hint.caps & (FI_SEND | FI_RECV) == 0 {
                self.caps |= FI_SEND | FI_RECV;
            }
            if hint.caps & DOMAIN_CAPS == 0 {
                self.caps |= DOMAIN_CAPS;
            }
        }
        Ok(())
    }

    fn narrow_tx(&mut self, hint: &fi_tx_attr) -> Result<(), &'static str> {
        check(hint.caps & !(CAPS | FI_RECV) == 0, "transmit capabilities")?;
        check(hint.op_flags & !TX_OP_FLAGS == 0, "transmit operation flags")?;
        check(hint.msg_order & !ORDER == 0, "transmit message order")?;
        check(hint.comp_order == 0, "transmit completion order")?;
        check(hint.inject_size <= self.tx.inject_size, "inject size")?;
        check(hint.size <= self.tx.size, "transmit queue size")?;
        check(hint.iov_limit <= self.tx.iov_limit, "transmit iov limit")?;
        if hint.caps != 0 {
            self.tx.caps &= hint.caps;
        }
        self.tx.op_flags = hint.op_flags;
        if hint.msg_order != 0 {
            self.tx.msg_order = hint.msg_order;
        }
        self.tx.tclass = hint.tclass;
        Ok(())
    }

    fn narrow_rx(&mut self, hint: &fi_rx_attr) -> Result<(), &'static str> {
        check(hint.caps & !(CAPS | FI_SEND) == 0, "receive capabilities")?;
        check(hint.op_flags & !RX_OP_FLAGS == 0, "receive operation flags")?;
        check(hint.msg_order & !ORDER == 0, "receive message order")?;
        check(hint.comp_order == 0, "receive completion order")?;
        check(hint.iov_limit <= self.rx.iov_limit, "receive iov limit")?;
        check(hint.size <= COUNT, "receive queue size")?;
        if hint.caps != 0 {
            self.rx.caps &= hint.caps;
        }
        self.rx.op_flags = hint.op_flags;
        if hint.msg_order != 0 {
            self.rx.msg_order = hint.msg_order;
        }
        self.rx.size = self.rx.size.max(hint.size);
        self.rx.total_buffered_recv = hint.total_buffered_recv;
        Ok(())
    }

    fn narrow_ep(&mut self, hint: &fi_ep_attr) -> Result<(), &'static str> {
        check(
            hint.type_ == FI_EP_UNSPEC || hint.type_ == FI_EP_RDM,
            "endpoint type",
        )?;
        check(
            hint.protocol == FI_PROTO_UNSPEC || hint.protocol == PROTOCOL,
            "protocol",
        )?;
        check(
            hint.protocol_version <= self.ep.protocol_version,
            "protocol version",
        )?;
        check(hint.max_msg_size <= self.ep.max_msg_size, "message size")?;
        check(hint.msg_prefix_size == 0, "message prefix")?;
        check(
            hint.max_order_raw_size | hint.max_order_war_size | hint.max_order_waw_size == 0,
            "order of remote access",
        )?;
        check(
            hint.tx_ctx_cnt <= 1 && hint.rx_ctx_cnt <= 1,
            "several or shared contexts",
        )?;
        check(hint.auth_key_size == 0, "authorization keys")
    }

    fn narrow_domain(&mut self, hint: &fi_domain_attr) -> Result<(), &'static str> {
        // FI_PROGRESS_AUTO (for data) would need a thread that matches messages.
        check(hint.data_progress != FI_PROGRESS_AUTO, "automatic data progress")?;
        check(hint.mr_key_size <= self.domain.mr_key_size, "key size")?;
        check(
            hint.cq_data_size <= self.domain.cq_data_size,
            "completion data size",
        )?;
        check(
            hint.cq_cnt <= COUNT && hint.ep_cnt <= COUNT && hint.mr_cnt <= COUNT && hint.cntr_cnt <= COUNT,
            "number of objects",
        )?;
        check(
            hint.tx_ctx_cnt <= COUNT && hint.rx_ctx_cnt <= COUNT,
            "number of contexts",
        )?;
        check(
            hint.max_ep_tx_ctx <= 1 && hint.max_ep_rx_ctx <= 1,
            "several contexts per endpoint",
        )?;
        check(
            hint.max_ep_stx_ctx == 0 && hint.max_ep_srx_ctx == 0,
            "shared contexts",
        )?;
        check(
            hint.mr_iov_limit <= self.domain.mr_iov_limit,
            "registration iov limit",
        )?;
        check(hint.caps & !DOMAIN_CAPS == 0, "domain capabilities")?;
        check(hint.auth_key_size == 0, "authorization keys")?;
        let domain = &mut self.domain;
        for (ours, hint) in [
            (&mut domain.threading, hint.threading),
            (&mut domain.control_progress, hint.control_progress),
            (&mut domain.data_progress, hint.data_progress),
            (&mut domain.av_type, hint.av_type),
        ] {
            if hint != 0 {
                *ours = hint;
            }
        }
        domain.mr_mode = hint.mr_mode & MR_MODE;
        domain.tclass = hint.tclass;
        Ok(())
    }
}

fn check(met: bool, what: &'static str) -> Result<(), &'static str> {
    if met { Ok(()) } else { Err(what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_that_can_be_met_are_repeated() {
        let mut wanted = Offer::new();
        wanted.domain.threading = FI_THREAD_DOMAIN;
        wanted.domain.av_type = FI_AV_MAP;
        wanted.domain.mr_mode = FI_MR_ALLOCATED | FI_MR_LOCAL;
        wanted.tx.op_flags = FI_DELIVERY_COMPLETE;
        let hints = Hints {
            tx: Some(&wanted.tx),
            rx: Some(&wanted.rx),
            ep: Some(&wanted.ep),
            domain: Some(&wanted.domain),
            info: None,
        };
        let offer = Offer::answer(&hints).unwrap();
        assert_eq!(offer.domain.threading, FI_THREAD_DOMAIN);
        assert_eq!(offer.domain.av_type, FI_AV_MAP);
        assert_eq!(
            offer.domain.mr_mode, FI_MR_ALLOCATED,
            "bits not needed are cleared"
        );
        assert_eq!(offer.tx.op_flags, FI_DELIVERY_COMPLETE);
    }

    #[test]
    fn what_is_not_offered_is_refused_with_its_name() {
        type Change = fn(&mut Offer);
        let cases: [(&str, Change); 8] = [
            ("endpoint type", |o| o.ep.type_ = FI_EP_MSG),
            ("automatic data progress", |o| {
                o.domain.data_progress = FI_PROGRESS_AUTO
            }),
            ("number of objects", |o| o.domain.cntr_cnt = usize::MAX),
            ("transmit message order", |o| o.tx.msg_order = FI_ORDER_RAW),
            ("inject size", |o| o.tx.inject_size = 4097),
            ("message size", |o| o.ep.max_msg_size = usize::MAX),
            ("receive capabilities", |o| o.rx.caps = FI_RMA),
            ("several or shared contexts", |o| o.ep.rx_ctx_cnt = usize::MAX),
        ];
        for (what, change) in cases {
            let mut wanted = Offer::new();
            change(&mut wanted);
            let hints = Hints {
                tx: Some(&wanted.tx),
                rx: Some(&wanted.rx),
                ep: Some(&wanted.ep),
                domain: Some(&wanted.domain),
                info: None,
            };
            assert_eq!(Offer::answer(&hints).err(), Some(what));
        }
    }
}
