// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Shared receive queues.
 *
 * In C because ib_core is, which sees to it that none goes while queue pairs draw
 * from it.
 */
#include <linux/log2.h>
#include <rdma/uverbs_ioctl.h>

#include "ib.h"

static_assert((int)IB_EVENT_SRQ_ERR == (int)USB4_CORE_SRQ_ERR);
static_assert((int)IB_EVENT_SRQ_LIMIT_REACHED == (int)USB4_CORE_SRQ_LIMIT);

/* From a work item that has ended when the queue has. */
static void tell(void *context, u32 event)
{
	struct u4_ib_srq *srq = context;
	struct ib_event told = {
		.device = srq->ibsrq.device,
		.element.srq = &srq->ibsrq,
		.event = event,
	};

	if (srq->ibsrq.event_handler)
		srq->ibsrq.event_handler(&told, srq->ibsrq.srq_context);
}

int u4_ib_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *init,
		     struct ib_udata *udata)
{
	struct u4_ib_ucontext *context = u4_ib_context_of(udata);
	struct usb4_ib_create_srq_resp resp = {};
	struct u4_ib_srq *srq = u4_ib_srq(ibsrq);
	struct ib_srq_attr *attr = &init->attr;
	struct u4_verbs_queue rq;
	struct u4_srq_spec spec;
	int ret;

	if (!context || init->srq_type != IB_SRQT_BASIC)
		return -EOPNOTSUPP;
	ret = u4_ib_no_request(udata);
	if (ret)
		return ret;
	if (!attr->max_wr || attr->max_wr > u4_limits.max_depth ||
	    attr->max_sge > USB4_RING_MAX_PIECES)
		return -EINVAL;
	spec = (struct u4_srq_spec) {
		.pd = u4_ib_pd(ibsrq->pd)->number,
		.depth = roundup_pow_of_two(attr->max_wr),
		.slot = u4_ib_slot_for(attr->max_sge, 0),
		.event = tell,
		.context = srq,
	};
	srq->client = context->client;
	srq->depth = spec.depth;
	srq->slot = spec.slot;
	ret = u4_verbs_create_srq(srq->client, &spec, &srq->id, &rq);
	if (ret)
		return ret;
	attr->max_wr = spec.depth;
	attr->max_sge = u4_ib_pieces_in(spec.slot);
	resp.srq = srq->id;
	resp.depth = spec.depth;
	resp.slot = spec.slot;
	resp.offset = rq.offset;
	resp.bytes = rq.bytes;
	ret = u4_ib_respond(udata, &resp, sizeof(resp));
	if (ret)
		u4_verbs_destroy_qp(srq->client, srq->id);
	return ret;
}

int u4_ib_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
		     enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	struct u4_ib_srq *srq = u4_ib_srq(ibsrq);
	int ret;

	/* It does not change its size. */
	if (mask & ~IB_SRQ_LIMIT)
		return -EOPNOTSUPP;
	if (udata) {
		ret = u4_ib_no_request(udata);
		if (ret)
			return ret;
	}
	if (!(mask & IB_SRQ_LIMIT))
		return 0;
	return u4_verbs_limit_srq(srq->client, srq->id, attr->srq_limit);
}

int u4_ib_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr)
{
	struct u4_ib_srq *srq = u4_ib_srq(ibsrq);

	attr->max_wr = srq->depth;
	attr->max_sge = u4_ib_pieces_in(srq->slot);
	return u4_verbs_srq_limit(srq->client, srq->id, &attr->srq_limit);
}

int u4_ib_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata)
{
	struct u4_ib_srq *srq = u4_ib_srq(ibsrq);

	return u4_verbs_destroy_qp(srq->client, srq->id);
}
