//! What this crate says about each structure, field, constant and function.

#![allow(clippy::expect_used)]

use std::mem::{offset_of, size_of};

use rdma_core_sys::*;

/// One fact: its name, the C expression for it, and its value here.
pub(crate) struct Fact {
    pub(crate) name: String,
    pub(crate) expression: String,
    pub(crate) value: u64,
}

/// Facts of one release.
struct Facts {
    major: u32,
    layout: Layout,
    list: Vec<Fact>,
}

impl Facts {
    fn add(&mut self, name: impl Into<String>, expression: impl Into<String>, value: u64) {
        self.list.push(Fact {
            name: name.into(),
            expression: expression.into(),
            value,
        });
    }

    fn size(&mut self, c_name: &str, value: usize) {
        self.add(
            format!("sizeof({c_name})"),
            format!("sizeof({c_name})"),
            value as u64,
        );
    }

    fn offset(&mut self, c_name: &str, field: &str, value: usize) {
        let name = format!("{c_name}.{field}");
        self.add(name, format!("offsetof({c_name}, {field})"), value as u64);
    }

    /// That `expression` is of the C type `kind`.
    fn is(&mut self, expression: &str, kind: &str) {
        self.add(
            format!("type of {expression}"),
            format!("__builtin_types_compatible_p(__typeof__({expression}), {kind})"),
            1,
        );
    }
}

macro_rules! layout {
    ($facts:ident, $ty:ident sized: $($rest:tt)*) => {{
        $facts.size(concat!("struct ", stringify!($ty)), size_of::<$ty>());
        layout!($facts, $ty: $($rest)*);
    }};
    ($facts:ident, $ty:ident: $($field:ident $(. $sub:ident)* $(as $c:literal)?),* $(,)?) => {{
        $({
            #[allow(unused_mut, unused_assignments)]
            let mut field = stringify!($field $(. $sub)*).replace(' ', "");
            $(field = $c.to_string();)?
            $facts.offset(
                concat!("struct ", stringify!($ty)),
                &field,
                offset_of!($ty, $field $(. $sub)*),
            );
        })*
    }};
}

macro_rules! constants {
    ($facts:ident: $($name:ident),* $(,)?) => {
        $($facts.add(stringify!($name), concat!("(long long)", stringify!($name)), $name as u64);)*
    };
}

/// What `infiniband/verbs.h` of release `major` has.
pub(crate) fn public(major: u32) -> Vec<Fact> {
    let layout = Layout::of_release(major).expect("a release of a known layout");
    let mut facts = Facts {
        major,
        layout,
        list: vec![],
    };
    objects(&mut facts);
    queues(&mut facts);
    requests(&mut facts);
    numbers(&mut facts);
    facts.list
}

/// What `libibverbs/driver.h` of release `major` has.
pub(crate) fn private(major: u32) -> Vec<Fact> {
    let layout = Layout::of_release(major).expect("a release of a known layout");
    let mut facts = Facts {
        major,
        layout,
        list: vec![],
    };
    driver(&mut facts);
    operations(&mut facts);
    commands(&mut facts);
    functions(&mut facts);
    facts.list
}

fn objects(facts: &mut Facts) {
    constants!(facts: IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX);
    layout!(facts, ibv_device sized: _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path);
    layout!(facts, ibv_context_ops sized:
        _compat_1 as "_compat_query_device", alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq,
        req_notify_cq, _compat_2 as "_compat_cq_event", post_srq_recv, _compat_3 as "_compat_create_qp",
        post_send, post_recv, _compat_4 as "_compat_create_ah");
    layout!(facts, ibv_context sized:
        device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat);
    let front = facts.layout.context_front();
    facts.size("struct verbs_context", facts.layout.context_size());
    facts.offset("struct verbs_context", "context", front);
    facts.offset("struct verbs_context", "sz", front - size_of::<usize>());
    layout!(facts, ibv_pd sized: context, handle);
    layout!(facts, ibv_mr sized: context, pd, addr, length, handle, lkey, rkey);
    layout!(facts, ibv_comp_channel sized: context, fd, refcnt);
    layout!(facts, ibv_ah sized: context, pd, handle);
    layout!(facts, ibv_device_attr_ex: fw_ver as "orig_attr.fw_ver");
    facts.add(
        "sizeof(ibv_device_attr.fw_ver)",
        "sizeof(((struct ibv_device_attr *)0)->fw_ver)",
        64,
    );
}

fn queues(facts: &mut Facts) {
    layout!(facts, ibv_cq sized:
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed);
    layout!(facts, ibv_poll_cq_attr sized: comp_mask);
    layout!(facts, ibv_cq_ex sized:
        base.context as "context", base.async_events_completed as "async_events_completed",
        comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len,
        read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
        read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns);
    layout!(facts, ibv_cq_init_attr_ex sized:
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain);
    layout!(facts, ibv_qp_cap sized:
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data);
    layout!(facts, ibv_qp_init_attr sized:
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all);
    layout!(facts, ibv_rx_hash_conf sized:
        rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask);
    layout!(facts, ibv_qp_init_attr_ex sized:
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags,
        max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags);
    layout!(facts, ibv_qp sized:
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
        events_completed);
    layout!(facts, ibv_srq sized:
        context, srq_context, pd, handle, mutex, cond, events_completed);
    layout!(facts, ibv_srq_attr sized: max_wr, max_sge, srq_limit);
    layout!(facts, ibv_srq_init_attr sized: srq_context, attr);
    layout!(facts, ibv_qp_attr:
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap);
    layout!(facts, ibv_data_buf sized: addr, length);
    layout!(facts, ibv_qp_ex:
        qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
        wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso,
        wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge,
        wr_set_sge_list, wr_start, wr_complete, wr_abort);
    let [without, with_write, with_flush] = QP_COMP_MASK;
    match facts.major {
        ..=43 => facts.size("struct ibv_qp_ex", without),
        44 => {
            layout!(facts, ibv_qp_ex: wr_atomic_write);
            facts.size("struct ibv_qp_ex", with_write);
        }
        _ => {
            layout!(facts, ibv_qp_ex: wr_atomic_write, wr_flush);
            facts.size("struct ibv_qp_ex", with_flush);
        }
    }
}

fn requests(facts: &mut Facts) {
    layout!(facts, ibv_sge sized: addr, length, lkey);
    layout!(facts, ibv_send_wr sized:
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, remote_srqn as "qp_type.xrc.remote_srqn",
        bind_mw, bind_mw.rkey, bind_mw.mr as "bind_mw.bind_info.mr", bind_mw.addr as "bind_mw.bind_info.addr",
        bind_mw.length as "bind_mw.bind_info.length",
        bind_mw.mw_access_flags as "bind_mw.bind_info.mw_access_flags");
    let wr = offset_of!(ibv_send_wr, wr);
    for (field, offset) in [
        ("wr.rdma.remote_addr", offset_of!(ibv_send_wr_rdma, remote_addr)),
        ("wr.rdma.rkey", offset_of!(ibv_send_wr_rdma, rkey)),
        (
            "wr.atomic.remote_addr",
            offset_of!(ibv_send_wr_atomic, remote_addr),
        ),
        (
            "wr.atomic.compare_add",
            offset_of!(ibv_send_wr_atomic, compare_add),
        ),
        ("wr.atomic.swap", offset_of!(ibv_send_wr_atomic, swap)),
        ("wr.atomic.rkey", offset_of!(ibv_send_wr_atomic, rkey)),
        ("wr.ud.ah", offset_of!(ibv_send_wr_ud, ah)),
        ("wr.ud.remote_qpn", offset_of!(ibv_send_wr_ud, remote_qpn)),
        ("wr.ud.remote_qkey", offset_of!(ibv_send_wr_ud, remote_qkey)),
    ] {
        facts.offset("struct ibv_send_wr", field, wr + offset);
    }
    layout!(facts, ibv_recv_wr sized: wr_id, next, sg_list, num_sge);
    layout!(facts, ibv_wc sized:
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits);
}

fn numbers(facts: &mut Facts) {
    constants!(facts:
        IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
        IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_FATAL_ERR, IBV_WC_GENERAL_ERR, IBV_WC_SEND,
        IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_RECV,
        IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_LOCAL_INV, IBV_WC_WITH_INV, IBV_SRQ_MAX_WR, IBV_SRQ_LIMIT, IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
        IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR,
        IBV_QP_STATE, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV,
        IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV, IBV_WR_TSO, IBV_SEND_FENCE, IBV_SEND_SIGNALED,
        IBV_SEND_SOLICITED, IBV_SEND_INLINE, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_IMM,
        IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SRC_QP, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SL,
        IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_QP_INIT_ATTR_PD,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_RDMA_READ,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_LOCAL_INV,
        IBV_QP_EX_WITH_SEND_WITH_INV);
}

fn driver(facts: &mut Facts) {
    constants!(facts: VERBS_MATCH_SENTINEL, VERBS_QP_EX);
    layout!(facts, list_node sized: next, prev);
    layout!(facts, verbs_sysfs_dev sized:
        entry, provider_data, r#match as "match", flags, sysfs_name, sysfs_cdev, ibdev_name, ibdev_path, modalias,
        node_guid, driver_id, node_type, ibdev_idx, num_ports, abi_ver, time_created);
    layout!(facts, verbs_match_ent sized: driver_data, u, vendor, device, kind);
    layout!(facts, verbs_device_ops sized:
        name, match_min_abi_version, match_max_abi_version, match_table, static_providers, match_device,
        alloc_context, import_context, alloc_device, uninit_device);
    layout!(facts, verbs_device sized: device, ops, refcount, entry, sysfs, core_support);
    layout!(facts, verbs_mr sized: ibv_mr, mr_type, access);
    layout!(facts, verbs_cq sized: cq_ex);
    let [without, with_write, with_flush] = QP_COMP_MASK;
    let comp_mask = match facts.major {
        ..=43 => without,
        44 => with_write,
        _ => with_flush,
    };
    facts.offset("struct verbs_qp", "comp_mask", comp_mask);
    facts.add(
        "room for verbs_qp",
        format!("sizeof(struct verbs_qp) <= {}", size_of::<verbs_qp>()),
        1,
    );
}

fn operations(facts: &mut Facts) {
    let layout = facts.layout;
    facts.size("struct verbs_context_ops", Op::count(layout) * size_of::<usize>());
    for op in Op::ALL {
        if let Some(index) = op.index(layout) {
            facts.offset("struct verbs_context_ops", op.name(), index * size_of::<usize>());
        }
    }
    const CONTEXT: &str = "struct ibv_context *";
    for (op, kind) in [
        ("alloc_pd", format!("struct ibv_pd *(*)({CONTEXT})")),
        (
            "create_ah",
            "struct ibv_ah *(*)(struct ibv_pd *, struct ibv_ah_attr *)".into(),
        ),
        (
            "create_cq",
            format!("struct ibv_cq *(*)({CONTEXT}, int, struct ibv_comp_channel *, int)"),
        ),
        (
            "create_cq_ex",
            format!("struct ibv_cq_ex *(*)({CONTEXT}, struct ibv_cq_init_attr_ex *)"),
        ),
        (
            "create_qp",
            "struct ibv_qp *(*)(struct ibv_pd *, struct ibv_qp_init_attr *)".into(),
        ),
        (
            "create_qp_ex",
            format!("struct ibv_qp *(*)({CONTEXT}, struct ibv_qp_init_attr_ex *)"),
        ),
        ("dealloc_pd", "int (*)(struct ibv_pd *)".into()),
        ("dereg_mr", "int (*)(struct verbs_mr *)".into()),
        ("destroy_ah", "int (*)(struct ibv_ah *)".into()),
        ("destroy_cq", "int (*)(struct ibv_cq *)".into()),
        ("destroy_qp", "int (*)(struct ibv_qp *)".into()),
        (
            "create_srq",
            "struct ibv_srq *(*)(struct ibv_pd *, struct ibv_srq_init_attr *)".into(),
        ),
        (
            "modify_srq",
            "int (*)(struct ibv_srq *, struct ibv_srq_attr *, int)".into(),
        ),
        (
            "query_srq",
            "int (*)(struct ibv_srq *, struct ibv_srq_attr *)".into(),
        ),
        ("destroy_srq", "int (*)(struct ibv_srq *)".into()),
        (
            "post_srq_recv",
            "int (*)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **)".into(),
        ),
        ("free_context", format!("void (*)({CONTEXT})")),
        (
            "modify_qp",
            "int (*)(struct ibv_qp *, struct ibv_qp_attr *, int)".into(),
        ),
        ("poll_cq", "int (*)(struct ibv_cq *, int, struct ibv_wc *)".into()),
        (
            "post_recv",
            "int (*)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **)".into(),
        ),
        (
            "post_send",
            "int (*)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **)".into(),
        ),
        (
            "query_device_ex",
            format!(
                "int (*)({CONTEXT}, const struct ibv_query_device_ex_input *, struct ibv_device_attr_ex *, size_t)"
            ),
        ),
        (
            "query_port",
            format!("int (*)({CONTEXT}, uint8_t, struct ibv_port_attr *)"),
        ),
        (
            "query_qp",
            "int (*)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *)".into(),
        ),
        (
            "reg_dmabuf_mr",
            "struct ibv_mr *(*)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int)".into(),
        ),
        (
            "reg_mr",
            "struct ibv_mr *(*)(struct ibv_pd *, void *, size_t, uint64_t, int)".into(),
        ),
        ("req_notify_cq", "int (*)(struct ibv_cq *, int)".into()),
    ] {
        facts.is(&format!("((struct verbs_context_ops *)0)->{op}"), &kind);
    }
}

fn commands(facts: &mut Facts) {
    macro_rules! sizes {
        ($($name:ident)*) => {
            $(facts.size(concat!("struct ", stringify!($name)), size_of::<$name>());)*
        };
    }
    sizes! {
        ib_uverbs_cmd_hdr ibv_get_context ibv_query_port ibv_alloc_pd ibv_reg_mr ibv_create_cq ibv_create_qp
        ibv_query_qp ibv_modify_qp ibv_create_srq ibv_modify_srq ibv_query_srq
    }
    layout!(facts, ib_uverbs_get_context_resp sized: async_fd, num_comp_vectors);
    layout!(facts, ib_uverbs_alloc_pd_resp sized: pd_handle);
    layout!(facts, ib_uverbs_reg_mr_resp sized: mr_handle, lkey, rkey);
    layout!(facts, ib_uverbs_create_cq_resp sized: cq_handle, cqe);
    layout!(facts, ib_uverbs_create_qp_resp sized:
        qp_handle, qpn, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, reserved);
    layout!(facts, ib_uverbs_create_srq_resp sized: srq_handle, max_wr, max_sge, srqn);
    layout!(facts, ib_uverbs_create_ah_resp sized: ah_handle);
    layout!(facts, ib_uverbs_ex_query_device_resp: fw_ver as "base.fw_ver");
    facts.add(
        "room for ib_uverbs_ex_query_device_resp",
        format!(
            "sizeof(struct ib_uverbs_ex_query_device_resp) <= {}",
            size_of::<ib_uverbs_ex_query_device_resp>()
        ),
        1,
    );
}

/// Functions, by the types they have in [`Library`].
fn functions(facts: &mut Facts) {
    let (major, layout) = (facts.major, facts.layout);
    let descriptors = if layout.takes_descriptors() {
        "struct ibv_fd_arr *, "
    } else {
        ""
    };
    let driver = if major >= 54 {
        ", struct ibv_command_buffer *"
    } else {
        ""
    };
    let mut functions = vec![
        (
            "_verbs_init_and_alloc_context",
            "void *(struct ibv_device *, int, size_t, struct verbs_context *, uint32_t)".to_string(),
        ),
        ("verbs_uninit_context", "void (struct verbs_context *)".into()),
        (
            "verbs_set_ops",
            "void (struct verbs_context *, const struct verbs_context_ops *)".into(),
        ),
        (
            "ibv_cmd_get_context",
            format!(
                "int (struct verbs_context *, struct ibv_get_context *, size_t, {descriptors}\
                 struct ib_uverbs_get_context_resp *, size_t)"
            ),
        ),
        (
            "ibv_cmd_query_device_any",
            "int (struct ibv_context *, const struct ibv_query_device_ex_input *, struct ibv_device_attr_ex *, \
             size_t, struct ib_uverbs_ex_query_device_resp *, size_t *)"
                .into(),
        ),
        (
            "ibv_cmd_query_port",
            "int (struct ibv_context *, uint8_t, struct ibv_port_attr *, struct ibv_query_port *, size_t)".into(),
        ),
        (
            "ibv_cmd_alloc_pd",
            "int (struct ibv_context *, struct ibv_pd *, struct ibv_alloc_pd *, size_t, \
             struct ib_uverbs_alloc_pd_resp *, size_t)"
                .into(),
        ),
        ("ibv_cmd_dealloc_pd", "int (struct ibv_pd *)".into()),
        (
            "ibv_cmd_reg_mr",
            "int (struct ibv_pd *, void *, size_t, uint64_t, int, struct verbs_mr *, struct ibv_reg_mr *, size_t, \
             struct ib_uverbs_reg_mr_resp *, size_t)"
                .into(),
        ),
        (
            "ibv_cmd_reg_dmabuf_mr",
            format!("int (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, struct verbs_mr *{driver})"),
        ),
        ("ibv_cmd_dereg_mr", "int (struct verbs_mr *)".into()),
        (
            "ibv_cmd_create_cq",
            "int (struct ibv_context *, int, struct ibv_comp_channel *, int, struct ibv_cq *, \
             struct ibv_create_cq *, size_t, struct ib_uverbs_create_cq_resp *, size_t)"
                .into(),
        ),
        ("ibv_cmd_destroy_cq", "int (struct ibv_cq *)".into()),
        (
            "ibv_cmd_create_qp",
            "int (struct ibv_pd *, struct ibv_qp *, struct ibv_qp_init_attr *, struct ibv_create_qp *, size_t, \
             struct ib_uverbs_create_qp_resp *, size_t)"
                .into(),
        ),
        (
            "ibv_cmd_create_qp_ex",
            "int (struct ibv_context *, struct verbs_qp *, struct ibv_qp_init_attr_ex *, struct ibv_create_qp *, \
             size_t, struct ib_uverbs_create_qp_resp *, size_t)"
                .into(),
        ),
        (
            "ibv_cmd_modify_qp",
            "int (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_modify_qp *, size_t)".into(),
        ),
        (
            "ibv_cmd_query_qp",
            "int (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *, struct ibv_query_qp *, \
             size_t)"
                .into(),
        ),
        ("ibv_cmd_destroy_qp", "int (struct ibv_qp *)".into()),
        (
            "ibv_cmd_create_srq",
            "int (struct ibv_pd *, struct ibv_srq *, struct ibv_srq_init_attr *, struct ibv_create_srq *, size_t, \
             struct ib_uverbs_create_srq_resp *, size_t)"
                .into(),
        ),
        (
            "ibv_cmd_modify_srq",
            "int (struct ibv_srq *, struct ibv_srq_attr *, int, struct ibv_modify_srq *, size_t)".into(),
        ),
        (
            "ibv_cmd_query_srq",
            "int (struct ibv_srq *, struct ibv_srq_attr *, struct ibv_query_srq *, size_t)".into(),
        ),
        ("ibv_cmd_destroy_srq", "int (struct ibv_srq *)".into()),
        (
            "ibv_cmd_create_ah",
            "int (struct ibv_pd *, struct ibv_ah *, struct ibv_ah_attr *, struct ib_uverbs_create_ah_resp *, size_t)"
                .into(),
        ),
        ("ibv_cmd_destroy_ah", "int (struct ibv_ah *)".into()),
        ("verbs_register_driver", "void (const struct verbs_device_ops *)".into()),
    ];
    if major >= 37 {
        functions.push((
            "__verbs_log",
            "void (struct verbs_context *, uint32_t, const char *, ...)".into(),
        ));
    }
    for (name, kind) in functions {
        facts.is(name, &kind);
    }
}
