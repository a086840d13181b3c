//! What this crate says about each structure, field and constant.

#![allow(clippy::expect_used)]

use std::mem::{offset_of, size_of};

use libfabric_sys::*;

/// One fact: its name, the C expression for it, the value here, and the header version it needs.
pub(crate) struct Fact {
    pub(crate) name: String,
    pub(crate) expression: String,
    pub(crate) value: i64,
    pub(crate) since: (u32, u32),
    pub(crate) until: Option<(u32, u32)>,
}

/// A structure that grew: its name, its C name, and its newer fields with offset and version.
type Grown<'a> = (&'a str, &'a str, &'a [(&'a str, usize, (u32, u32))]);

impl Fact {
    fn new(name: String, expression: String, value: i64) -> Self {
        Self {
            name,
            expression,
            value,
            since: (0, 0),
            until: None,
        }
    }
}

macro_rules! layout {
    ($facts:ident, $prefix:literal $ty:ident $(as $c:literal)?: $($field:ident $(= $cfield:literal)?),* $(,)?) => {{
        #[allow(unused_mut, unused_assignments)]
        let mut c_name = format!("{}{}", $prefix, stringify!($ty));
        $(c_name = $c.to_string();)?
        $facts.push(Fact::new(
            format!("sizeof({})", stringify!($ty)),
            format!("sizeof({c_name})"),
            size_of::<$ty>() as i64,
        ));
        $({
            #[allow(unused_mut, unused_assignments)]
            let mut field = stringify!($field);
            $(field = $cfield;)?
            $facts.push(Fact::new(
                format!("{}.{}", stringify!($ty), stringify!($field)),
                format!("offsetof({c_name}, {field})"),
                offset_of!($ty, $field) as i64,
            ));
        })*
    }};
}

macro_rules! constants {
    ($facts:ident: $($name:ident),* $(,)?) => {
        $($facts.push(Fact::new(stringify!($name).into(), stringify!($name).into(), $name as i64));)*
    };
}

/// All facts.
pub(crate) fn facts() -> Vec<Fact> {
    let mut facts = structures();
    // Growth: before a version, the structure ends where the first newer field begins.
    let grown: &[Grown] = &[
        (
            "fi_domain_attr",
            "struct fi_domain_attr",
            &[
                (
                    "max_ep_auth_key",
                    offset_of!(fi_domain_attr, max_ep_auth_key),
                    (1, 20),
                ),
                ("max_group_id", offset_of!(fi_domain_attr, max_group_id), (2, 0)),
                (
                    "max_cntr_value",
                    offset_of!(fi_domain_attr, max_cntr_value),
                    (2, 5),
                ),
                (
                    "max_err_cntr_value",
                    offset_of!(fi_domain_attr, max_err_cntr_value),
                    (2, 5),
                ),
            ],
        ),
        (
            "fi_mr_attr",
            "struct fi_mr_attr",
            &[
                ("hmem_data", offset_of!(fi_mr_attr, hmem_data), (1, 20)),
                ("page_size", offset_of!(fi_mr_attr, page_size), (2, 0)),
                ("base_mr", offset_of!(fi_mr_attr, base_mr), (2, 0)),
                ("sub_mr_cnt", offset_of!(fi_mr_attr, sub_mr_cnt), (2, 0)),
            ],
        ),
        (
            "fi_cq_err_entry",
            "struct fi_cq_err_entry",
            &[("src_addr", offset_of!(fi_cq_err_entry, src_addr), (1, 20))],
        ),
        (
            "fi_ops_av",
            "struct fi_ops_av",
            &[
                ("insert_auth_key", offset_of!(fi_ops_av, insert_auth_key), (1, 20)),
                ("lookup_auth_key", offset_of!(fi_ops_av, lookup_auth_key), (1, 20)),
                ("set_user_id", offset_of!(fi_ops_av, set_user_id), (1, 20)),
            ],
        ),
        (
            "fi_ops_fabric",
            "struct fi_ops_fabric",
            &[("domain2", offset_of!(fi_ops_fabric, domain2), (1, 17))],
        ),
        (
            "fi_ops_domain",
            "struct fi_ops_domain",
            &[("endpoint2", offset_of!(fi_ops_domain, endpoint2), (1, 17))],
        ),
    ];
    for (ty, c, fields) in grown {
        let size = facts
            .iter()
            .position(|f| f.name == format!("sizeof({ty})"))
            .expect("listed");
        facts[size].since = fields.last().expect("fields").2;
        let mut previous = None;
        for (field, offset, since) in *fields {
            if previous != Some(*since) {
                let mut old = Fact::new(
                    format!("sizeof({ty}) before {}.{}", since.0, since.1),
                    format!("sizeof({c})"),
                    *offset as i64,
                );
                old.since = previous.unwrap_or((0, 0));
                old.until = Some(*since);
                facts.push(old);
            }
            previous = Some(*since);
            let mut fact = Fact::new(
                format!("{ty}.{field}"),
                format!("offsetof({c}, {field})"),
                *offset as i64,
            );
            fact.since = *since;
            facts.push(fact);
        }
    }
    facts
}

fn structures() -> Vec<Fact> {
    let mut f = Vec::new();
    layout!(f, "struct " fi_info: next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr,
        handle, tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic);
    layout!(f, "struct " fi_tx_attr: caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit,
        rma_iov_limit, tclass);
    layout!(f, "struct " fi_rx_attr: caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size,
        iov_limit);
    layout!(f, "struct " fi_ep_attr: type_ = "type", protocol, protocol_version, max_msg_size, msg_prefix_size,
        max_order_raw_size, max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt,
        auth_key_size, auth_key);
    layout!(f, "struct " fi_domain_attr: domain, name, threading, control_progress, data_progress, resource_mgmt,
        av_type, mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx,
        max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key,
        auth_key_size, max_err_data, mr_cnt, tclass);
    layout!(f, "struct " fi_fabric_attr: fabric, name, prov_name, prov_version, api_version);
    layout!(f, "struct " fi_context: internal);
    layout!(f, "struct " fi_context2: internal);
    layout!(f, "struct " fid: fclass, context, ops);
    layout!(f, "struct " fid_fabric: fid, ops, api_version);
    layout!(f, "struct " fid_domain: fid, ops, mr);
    layout!(f, "struct " fid_ep: fid, ops, cm, msg, rma, tagged, atomic, collective);
    layout!(f, "struct " fid_pep: fid, ops, cm);
    layout!(f, "struct " fid_stx: fid, ops);
    layout!(f, "struct " fid_mc: fid, fi_addr);
    layout!(f, "struct " fid_av: fid, ops);
    layout!(f, "struct " fid_mr: fid, mem_desc, key);
    layout!(f, "struct " fid_eq: fid, ops);
    layout!(f, "struct " fid_cq: fid, ops);
    layout!(f, "struct " fid_cntr: fid, ops);
    layout!(f, "struct " fid_wait: fid, ops);
    layout!(f, "struct " fid_poll: fid, ops);
    layout!(f, "struct " fid_nic: fid, device_attr, bus_attr, link_attr, prov_attr);
    layout!(f, "struct " fi_ops: size, close, bind, control, ops_open, tostr, ops_set);
    layout!(f, "struct " fi_ops_fabric: size, domain, passive_ep, eq_open, wait_open, trywait);
    layout!(f, "struct " fi_ops_domain: size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open,
        stx_ctx, srx_ctx, query_atomic, query_collective);
    layout!(f, "struct " fi_ops_av: size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set);
    layout!(f, "struct " fi_ops_mr: size, reg, regv, regattr);
    layout!(f, "struct " fi_ops_ep: size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left);
    layout!(f, "struct " fi_ops_msg: size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata,
        injectdata);
    layout!(f, "struct " fi_ops_tagged: size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata,
        injectdata);
    layout!(f, "struct " fi_ops_rma: size, read, readv, readmsg, write, writev, writemsg, inject, writedata,
        injectdata);
    layout!(f, "struct " fi_ops_atomic: size, transfers = "write", valid = "writevalid");
    layout!(f, "struct " fi_ops_cm: size, setname, getname, getpeer, connect, listen, accept, reject, shutdown,
        join);
    layout!(f, "struct " fi_ops_eq: size, read, readerr, write, sread, strerror);
    layout!(f, "struct " fi_ops_cq: size, read, readfrom, readerr, sread, sreadfrom, signal, strerror);
    layout!(f, "struct " fi_ops_cntr: size, read, readerr, add, set, wait, adderr, seterr);
    layout!(f, "struct " fi_av_attr: type_ = "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags);
    layout!(f, "struct " fi_mr_attr: mr_iov, iov_count, access, offset, requested_key, context, auth_key_size,
        auth_key, iface, device);
    layout!(f, "struct " fi_eq_attr: size, flags, wait_obj, signaling_vector, wait_set);
    layout!(f, "struct " fi_wait_attr: wait_obj, flags);
    layout!(f, "struct " fi_poll_attr: flags);
    layout!(f, "struct " fi_eq_entry: fid, context, data);
    layout!(f, "struct " fi_eq_err_entry: fid, context, data, err, prov_errno, err_data, err_data_size);
    layout!(f, "struct " fi_cq_attr: size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set);
    layout!(f, "struct " fi_cntr_attr: events, wait_obj, wait_set, flags);
    layout!(f, "struct " fi_cq_entry: op_context);
    layout!(f, "struct " fi_cq_msg_entry: op_context, flags, len);
    layout!(f, "struct " fi_cq_data_entry: op_context, flags, len, buf, data);
    layout!(f, "struct " fi_cq_tagged_entry: op_context, flags, len, buf, data, tag);
    layout!(f, "struct " fi_cq_err_entry: op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data,
        err_data_size);
    layout!(f, "struct " fi_msg: msg_iov, desc, iov_count, addr, context, data);
    layout!(f, "struct " fi_msg_tagged: msg_iov, desc, iov_count, addr, tag, ignore, context, data);
    layout!(f, "struct " fi_msg_rma: msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data);
    layout!(f, "struct " fi_rma_iov: addr, len, key);
    layout!(f, "struct " fi_provider: version, fi_version, context, name, getinfo, fabric, cleanup);
    constants!(f: FI_MSG, FI_RMA, FI_TAGGED, FI_ATOMIC, FI_MULTICAST, FI_COLLECTIVE, FI_READ, FI_WRITE, FI_RECV,
        FI_SEND, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_MULTI_RECV, FI_REMOTE_CQ_DATA, FI_MORE, FI_PEEK, FI_TRIGGER,
        FI_FENCE, FI_COMPLETION, FI_INJECT, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE,
        FI_AFFINITY, FI_COMMIT_COMPLETE, FI_MATCH_COMPLETE, FI_HMEM, FI_RMA_PMEM, FI_SOURCE_ERR,
        FI_LOCAL_COMM, FI_REMOTE_COMM, FI_SHARED_AV, FI_PROV_ATTR_ONLY, FI_NUMERICHOST, FI_RMA_EVENT, FI_SOURCE,
        FI_NAMED_RX_CTX, FI_DIRECTED_RECV, FI_CLAIM, FI_DISCARD, FI_SELECTIVE_COMPLETION, FI_CONTEXT,
        FI_MSG_PREFIX, FI_ASYNC_IOV, FI_RX_CQ_DATA, FI_CONTEXT2, FI_ORDER_RAR, FI_ORDER_RAW, FI_ORDER_RAS,
        FI_ORDER_WAR, FI_ORDER_WAW, FI_ORDER_WAS, FI_ORDER_SAR, FI_ORDER_SAW, FI_ORDER_SAS, FI_FORMAT_UNSPEC,
        FI_ADDR_STR, FI_AV_UNSPEC, FI_AV_MAP, FI_AV_TABLE, FI_MR_LOCAL, FI_MR_RAW, FI_MR_VIRT_ADDR,
        FI_MR_ALLOCATED, FI_MR_PROV_KEY, FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT, FI_MR_ENDPOINT, FI_MR_HMEM,
        FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_THREAD_UNSPEC, FI_THREAD_SAFE,
        FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT, FI_RM_UNSPEC, FI_RM_DISABLED,
        FI_RM_ENABLED, FI_EP_UNSPEC, FI_EP_MSG, FI_EP_DGRAM, FI_EP_RDM, FI_LINK_UNKNOWN, FI_LINK_DOWN,
        FI_LINK_UP, FI_GETOPSFLAG, FI_SETOPSFLAG, FI_ALIAS, FI_GETWAIT, FI_ENABLE, FI_GETWAITOBJ,
        FI_PROTO_UNSPEC, FI_TC_UNSPEC, FI_CLASS_FABRIC, FI_CLASS_DOMAIN, FI_CLASS_EP, FI_CLASS_AV, FI_CLASS_MR,
        FI_CLASS_EQ, FI_CLASS_CQ, FI_CLASS_CNTR, FI_HMEM_SYSTEM, FI_SYNC_ERR, FI_OPT_ENDPOINT,
        FI_OPT_MIN_MULTI_RECV, FI_OPT_CM_DATA_SIZE, FI_OPT_FI_HMEM_P2P, FI_WAIT_NONE, FI_WAIT_UNSPEC,
        FI_WAIT_SET, FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_WAIT_POLLFD, FI_CQ_FORMAT_UNSPEC,
        FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED, FI_CNTR_EVENTS_COMP,
        FI_CQ_COND_NONE,
        FI_CQ_COND_THRESHOLD, FI_PARAM_STRING, FI_PARAM_INT, FI_PARAM_BOOL, FI_PARAM_SIZE_T, FI_LOG_WARN,
        FI_LOG_TRACE, FI_LOG_INFO, FI_LOG_DEBUG, FI_LOG_CORE, FI_SUCCESS, FI_ENOENT, FI_EIO, FI_E2BIG,
        FI_EAGAIN, FI_ENOMEM, FI_EACCES, FI_EBUSY, FI_ENODEV, FI_EINVAL, FI_ENOSPC, FI_ENOSYS, FI_ENOMSG,
        FI_ENODATA, FI_EMSGSIZE, FI_ENOPROTOOPT, FI_EOPNOTSUPP, FI_EADDRNOTAVAIL, FI_ECONNRESET,
        FI_ECONNABORTED, FI_ECONNREFUSED, FI_ENOBUFS, FI_ETIMEDOUT, FI_EHOSTUNREACH, FI_EHOSTDOWN,
        FI_EREMOTEIO, FI_ECANCELED, FI_EOTHER, FI_ETOOSMALL, FI_EOPBADSTATE, FI_EAVAIL, FI_EBADFLAGS, FI_ENOEQ,
        FI_EDOMAIN, FI_ENOCQ, FI_ECRC, FI_ETRUNC, FI_ENOKEY, FI_ENOAV, FI_EOVERRUN, FI_ENORX);
    for (name, value, since) in [
        (
            "FI_OPT_CUDA_API_PERMITTED",
            FI_OPT_CUDA_API_PERMITTED as i64,
            (1, 18),
        ),
        (
            "FI_OPT_SHARED_MEMORY_PERMITTED",
            FI_OPT_SHARED_MEMORY_PERMITTED as i64,
            (2, 0),
        ),
        ("FI_OPT_MAX_MSG_SIZE", FI_OPT_MAX_MSG_SIZE as i64, (2, 0)),
        ("FI_OPT_MAX_TAGGED_SIZE", FI_OPT_MAX_TAGGED_SIZE as i64, (2, 0)),
        ("FI_OPT_INJECT_MSG_SIZE", FI_OPT_INJECT_MSG_SIZE as i64, (2, 0)),
        (
            "FI_OPT_INJECT_TAGGED_SIZE",
            FI_OPT_INJECT_TAGGED_SIZE as i64,
            (2, 0),
        ),
        ("FI_PEER", FI_PEER as i64, (1, 17)),
        ("FI_EPROTO", FI_EPROTO as i64, (2, 0)),
        ("FI_MR_DMABUF", FI_MR_DMABUF as i64, (1, 20)),
        (
            "FI_PROGRESS_CONTROL_UNIFIED",
            FI_PROGRESS_CONTROL_UNIFIED as i64,
            (2, 0),
        ),
    ] {
        let mut fact = Fact::new(name.into(), name.into(), value);
        fact.since = since;
        f.push(fact);
    }
    f
}
