// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * States and attributes of queue pairs.
 *
 * In C because ib_core is. Which attributes go with which transition ib_core says;
 * the core, which has the state, checks the transition again.
 */
#include <linux/time64.h>

#include "ib.h"

/* How long a link that is coming up is waited for. Without, sends fail later. */
#define LINK_NS		(2 * NSEC_PER_SEC)

/* What the core of the module knows; the rest is ours, or nobody's. */
#define CORE_MASK	(USB4_CORE_QP_STATE | USB4_CORE_QP_ACCESS |	\
			 USB4_CORE_QP_QKEY | USB4_CORE_QP_AV |		\
			 USB4_CORE_QP_TIMEOUT | USB4_CORE_QP_RETRY_CNT |\
			 USB4_CORE_QP_RNR_RETRY |			\
			 USB4_CORE_QP_MAX_RD_ATOMIC |			\
			 USB4_CORE_QP_MIN_RNR_TIMER |			\
			 USB4_CORE_QP_MAX_DEST_RD_ATOMIC |		\
			 USB4_CORE_QP_DEST_QPN)

static_assert((int)IB_QP_STATE == (int)USB4_CORE_QP_STATE);
static_assert((int)IB_QP_ACCESS_FLAGS == (int)USB4_CORE_QP_ACCESS);
static_assert((int)IB_QP_QKEY == (int)USB4_CORE_QP_QKEY);
static_assert((int)IB_QP_AV == (int)USB4_CORE_QP_AV);
static_assert((int)IB_QP_TIMEOUT == (int)USB4_CORE_QP_TIMEOUT);
static_assert((int)IB_QP_RETRY_CNT == (int)USB4_CORE_QP_RETRY_CNT);
static_assert((int)IB_QP_RNR_RETRY == (int)USB4_CORE_QP_RNR_RETRY);
static_assert((int)IB_QP_MAX_QP_RD_ATOMIC == (int)USB4_CORE_QP_MAX_RD_ATOMIC);
static_assert((int)IB_QP_MIN_RNR_TIMER == (int)USB4_CORE_QP_MIN_RNR_TIMER);
static_assert((int)IB_QP_MAX_DEST_RD_ATOMIC ==
	      (int)USB4_CORE_QP_MAX_DEST_RD_ATOMIC);
static_assert((int)IB_QP_DEST_QPN == (int)USB4_CORE_QP_DEST_QPN);
static_assert((int)IB_QPS_RESET == (int)USB4_CORE_QPS_RESET);
static_assert((int)IB_QPS_ERR == (int)USB4_CORE_QPS_ERR);

static int check_values(const struct ib_qp_attr *attr, int mask)
{
	/* No queue changes its size, and there is one path. */
	if (mask & (IB_QP_CAP | IB_QP_ALT_PATH))
		return -EOPNOTSUPP;
	if (mask & IB_QP_PATH_MIG_STATE &&
	    attr->path_mig_state != IB_MIG_MIGRATED)
		return -EOPNOTSUPP;
	if (mask & IB_QP_PORT && attr->port_num != U4_IB_PORT)
		return -EINVAL;
	if (mask & IB_QP_PKEY_INDEX && attr->pkey_index)
		return -EINVAL;
	if (mask & IB_QP_PATH_MTU &&
	    (attr->path_mtu < IB_MTU_256 || attr->path_mtu > IB_MTU_4096))
		return -EINVAL;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC &&
	    attr->max_rd_atomic > U4_IB_MAX_READS)
		return -EINVAL;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC &&
	    attr->max_dest_rd_atomic > U4_IB_MAX_READS)
		return -EINVAL;
	if (mask & IB_QP_DEST_QPN && attr->dest_qp_num & ~IB_QPN_MASK)
		return -EINVAL;
	return 0;
}

/* The state is the core's, which may have left the one it was told. */
static int check_transition(struct u4_ib_qp *qp, const struct ib_qp_attr *attr,
			    int mask)
{
	struct usb4_core_qp_attr now;
	enum ib_qp_state next;
	enum ib_qp_state from;
	int ret;

	ret = u4_verbs_query_qp(qp->client, qp->id, &now);
	if (ret)
		return ret;
	from = now.state;
	if (mask & IB_QP_CUR_STATE && attr->cur_qp_state != from)
		return -EINVAL;
	next = mask & IB_QP_STATE ? attr->qp_state : from;
	if (!ib_modify_qp_is_ok(from, next, qp->ibqp.qp_type, mask))
		return -EINVAL;
	return 0;
}

/* That there is no link is said by sends, unless one is on its way. */
static int reach(const struct usb4_core_node *node)
{
	return u4_verbs_reach(node, LINK_NS) == -EINTR ? -EINTR : 0;
}

static int to_core(struct usb4_core_qp_attr *to, const struct ib_qp_attr *from,
		   int mask)
{
	*to = (struct usb4_core_qp_attr) {
		.mask = mask & CORE_MASK,
		.state = from->qp_state,
		.dest_qpn = from->dest_qp_num,
		.qkey = from->qkey,
		.access = u4_ib_remote_access(from->qp_access_flags),
		.timeout = from->timeout,
		.retry_cnt = from->retry_cnt,
		.rnr_retry = from->rnr_retry,
		.min_rnr_timer = from->min_rnr_timer,
		.max_rd_atomic = from->max_rd_atomic,
		.max_dest_rd_atomic = from->max_dest_rd_atomic,
	};
	if (!(mask & IB_QP_AV))
		return 0;
	if (!u4_ib_find(&from->ah_attr, &to->node))
		return -EHOSTUNREACH;
	return reach(&to->node);
}

/* What a query is to say: what the core does not keep, and how it was said. */
static void remember(struct ib_qp_attr *to, const struct ib_qp_attr *from,
		     int mask)
{
	if (mask & IB_QP_STATE && from->qp_state == IB_QPS_RESET) {
		*to = (struct ib_qp_attr) { .cap = to->cap };
		return;
	}
	if (mask & IB_QP_EN_SQD_ASYNC_NOTIFY)
		WRITE_ONCE(to->en_sqd_async_notify, from->en_sqd_async_notify);
	if (mask & IB_QP_ACCESS_FLAGS)
		to->qp_access_flags = from->qp_access_flags;
	if (mask & IB_QP_PORT)
		to->port_num = from->port_num;
	if (mask & IB_QP_QKEY)
		to->qkey = from->qkey;
	if (mask & IB_QP_AV) {
		to->ah_attr = from->ah_attr;
		/* That is ib_core's. */
		to->ah_attr.grh.sgid_attr = NULL;
	}
	if (mask & IB_QP_PATH_MTU)
		to->path_mtu = from->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		to->timeout = from->timeout;
	if (mask & IB_QP_RETRY_CNT)
		to->retry_cnt = from->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		to->rnr_retry = from->rnr_retry;
	if (mask & IB_QP_RQ_PSN)
		to->rq_psn = from->rq_psn;
	if (mask & IB_QP_SQ_PSN)
		to->sq_psn = from->sq_psn;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		to->max_rd_atomic = from->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		to->max_dest_rd_atomic = from->max_dest_rd_atomic;
	if (mask & IB_QP_MIN_RNR_TIMER)
		to->min_rnr_timer = from->min_rnr_timer;
	if (mask & IB_QP_DEST_QPN)
		to->dest_qp_num = from->dest_qp_num;
}

static int modify(struct u4_ib_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	struct usb4_core_qp_attr core;
	int ret;

	ret = check_transition(qp, attr, mask);
	if (ret)
		return ret;
	ret = to_core(&core, attr, mask);
	if (ret)
		return ret;
	ret = u4_verbs_modify_qp(qp->client, qp->id, &core);
	if (ret)
		return ret;
	remember(&qp->attr, attr, mask);
	return 0;
}

int u4_ib_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		    struct ib_udata *udata)
{
	struct u4_ib_qp *qp = u4_ib_qp(ibqp);
	int ret;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	if (udata) {
		ret = u4_ib_no_request(udata);
		if (ret)
			return ret;
	}
	if (qp->gsi)
		return u4_ib_gsi_modify(qp->gsi, attr, mask);
	ret = check_values(attr, mask);
	if (ret)
		return ret;
	mutex_lock(&qp->lock);
	ret = modify(qp, attr, mask);
	mutex_unlock(&qp->lock);
	if (ret || !udata)
		return ret;
	return u4_ib_respond(udata, NULL, 0);
}

int u4_ib_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		   struct ib_qp_init_attr *init)
{
	struct u4_ib_qp *qp = u4_ib_qp(ibqp);
	struct usb4_core_qp_attr now;
	int ret;

	if (qp->gsi) {
		u4_ib_gsi_query(qp->gsi, attr, init);
		return 0;
	}
	mutex_lock(&qp->lock);
	ret = u4_verbs_query_qp(qp->client, qp->id, &now);
	*attr = qp->attr;
	mutex_unlock(&qp->lock);
	if (ret)
		return ret;
	attr->qp_state = now.state;
	attr->cur_qp_state = now.state;
	attr->sq_draining = now.sq_draining;
	attr->path_mig_state = IB_MIG_MIGRATED;
	*init = (struct ib_qp_init_attr) {
		.event_handler = ibqp->event_handler,
		.qp_context = ibqp->qp_context,
		.send_cq = ibqp->send_cq,
		.recv_cq = ibqp->recv_cq,
		.srq = ibqp->srq,
		.cap = attr->cap,
		.sq_sig_type = qp->signal,
		.qp_type = ibqp->qp_type,
	};
	return 0;
}
