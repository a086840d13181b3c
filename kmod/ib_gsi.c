// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Queue pair 1, for management datagrams (GSI), which ib_mad makes: by these ib_cm
 * connects queue pairs, for rdma_cm.
 *
 * In C because ib_core is. It is the only queue pair that the kernel can have here.
 */
#include <linux/slab.h>
#include <rdma/ib_mad.h>

#include "ib_gsi.h"

int u4_ib_gsi_modify(struct u4_ib_gsi *gsi, const struct ib_qp_attr *attr,
		     int mask)
{
	enum ib_qp_state next = mask & IB_QP_STATE ? attr->qp_state :
						     gsi->state;
	unsigned long flags;

	if (!ib_modify_qp_is_ok(gsi->state, next, IB_QPT_GSI, mask))
		return -EINVAL;
	/* The key is what everybody has. */
	if (mask & IB_QP_QKEY && attr->qkey != IB_QP1_QKEY)
		return -EINVAL;
	spin_lock_irqsave(&gsi->lock, flags);
	gsi->state = next;
	if (next == IB_QPS_RESET) {
		gsi->send_count -= gsi->unsent;
		gsi->unsent = 0;
		gsi->receive_count = 0;
	}
	spin_unlock_irqrestore(&gsi->lock, flags);
	if (next == IB_QPS_ERR) {
		u4_gsi_flush_receives(gsi);
		u4_channel_kick(&gsi->channel);
	}
	return 0;
}

void u4_ib_gsi_query(struct u4_ib_gsi *gsi, struct ib_qp_attr *attr,
		     struct ib_qp_init_attr *init)
{
	struct ib_qp *ibqp = gsi->qp;

	*attr = (struct ib_qp_attr) {
		.qp_state = gsi->state,
		.cur_qp_state = gsi->state,
		.qkey = IB_QP1_QKEY,
		.port_num = U4_IB_PORT,
		.path_mig_state = IB_MIG_MIGRATED,
		.cap = {
			.max_send_wr = gsi->send_depth,
			.max_recv_wr = gsi->receive_depth,
			.max_send_sge = U4_GSI_MAX_SGE,
			.max_recv_sge = 1,
		},
	};
	*init = (struct ib_qp_init_attr) {
		.event_handler = ibqp->event_handler,
		.qp_context = ibqp->qp_context,
		.send_cq = ibqp->send_cq,
		.recv_cq = ibqp->recv_cq,
		.cap = attr->cap,
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = IB_QPT_GSI,
	};
}

static int check(const struct ib_qp_init_attr *init)
{
	const struct ib_qp_cap *cap = &init->cap;

	if (init->qp_type != IB_QPT_GSI || init->create_flags || init->srq ||
	    init->rwq_ind_tbl || init->sq_sig_type != IB_SIGNAL_ALL_WR)
		return -EOPNOTSUPP;
	if (!init->send_cq || !init->recv_cq || !cap->max_send_wr ||
	    !cap->max_recv_wr || cap->max_send_wr > u4_limits.max_depth ||
	    cap->max_recv_wr > u4_limits.max_depth ||
	    cap->max_send_sge > U4_GSI_MAX_SGE || cap->max_recv_sge > 1)
		return -EINVAL;
	return 0;
}

/**
 * u4_ib_gsi_create() - make the kernel's queue pair
 * @qp: the queue pair
 * @init: what it is to be like
 *
 * Return: 0 or an error: -EOPNOTSUPP for any other than GSI.
 */
int u4_ib_gsi_create(struct u4_ib_qp *qp, const struct ib_qp_init_attr *init)
{
	struct u4_ib_gsi *gsi;
	int ret;

	ret = check(init);
	if (ret)
		return ret;
	gsi = kzalloc_obj(*gsi, GFP_KERNEL);
	if (!gsi)
		return -ENOMEM;
	gsi->qp = &qp->ibqp;
	spin_lock_init(&gsi->lock);
	gsi->send_depth = init->cap.max_send_wr;
	gsi->receive_depth = init->cap.max_recv_wr;
	ret = -ENOMEM;
	gsi->sends = kvcalloc(gsi->send_depth, sizeof(*gsi->sends), GFP_KERNEL);
	gsi->receives = kvcalloc(gsi->receive_depth, sizeof(*gsi->receives),
				 GFP_KERNEL);
	if (!gsi->sends || !gsi->receives)
		goto err_gsi;
	ret = u4_channel_open(&gsi->channel, &u4_gsi_channel_ops, 1, IB_QP1_QKEY);
	if (ret)
		goto err_gsi;
	qp->gsi = gsi;
	qp->ibqp.qp_num = 1;
	return 0;

err_gsi:
	kvfree(gsi->receives);
	kvfree(gsi->sends);
	kfree(gsi);
	return ret;
}

/**
 * u4_ib_gsi_destroy() - end it
 * @gsi: the queue pair; nothing completes when this returns
 */
void u4_ib_gsi_destroy(struct u4_ib_gsi *gsi)
{
	u4_channel_close(&gsi->channel);
	kvfree(gsi->receives);
	kvfree(gsi->sends);
	kfree(gsi);
}
