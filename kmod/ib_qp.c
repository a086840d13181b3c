// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Queue pairs: their making and end. ib_modify.c is about what is between.
 *
 * In C because ib_core is.
 */
#include <linux/log2.h>
#include <rdma/uverbs_ioctl.h>

#include "ib.h"

/* Not everybody wants to know that sends are drained. */
static bool is_wanted(struct u4_ib_qp *qp, u32 event)
{
	return event != USB4_CORE_QP_SQ_DRAINED ||
	       READ_ONCE(qp->attr.en_sqd_async_notify);
}

/* From a work item that has ended when the queue pair has. */
static void tell(void *context, u32 event)
{
	struct u4_ib_qp *qp = context;
	struct ib_event told = {
		.device = qp->ibqp.device,
		.element.qp = &qp->ibqp,
		.event = event,
	};

	if (is_wanted(qp, event) && qp->ibqp.event_handler)
		qp->ibqp.event_handler(&told, qp->ibqp.qp_context);
}

static int check(const struct ib_qp_init_attr *init)
{
	const struct ib_qp_cap *cap = &init->cap;

	switch (init->qp_type) {
	case IB_QPT_RC:
	case IB_QPT_UC:
	case IB_QPT_UD:
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (init->create_flags || init->rwq_ind_tbl)
		return -EOPNOTSUPP;
	if (!init->send_cq || !init->recv_cq)
		return -EINVAL;
	if (cap->max_send_wr > u4_limits.max_depth ||
	    cap->max_send_sge > USB4_RING_MAX_PIECES ||
	    cap->max_inline_data > USB4_RING_MAX_INLINE)
		return -EINVAL;
	/* With a shared receive queue it has none of its own, whatever is asked. */
	if (!init->srq && (cap->max_recv_wr > u4_limits.max_depth ||
			   cap->max_recv_sge > USB4_RING_MAX_PIECES))
		return -EINVAL;
	return 0;
}

static u32 srq_of(const struct ib_qp_init_attr *init)
{
	return init->srq ? u4_ib_srq(init->srq)->id : 0;
}

#define PIECE	sizeof(struct usb4_ring_piece)

/* The largest slots have room for as much as there may be of either. */
static_assert(USB4_RING_MAX_PIECES * PIECE == USB4_RING_MAX_INLINE);

/**
 * u4_ib_slot_for() - the slots behind a queue's entries
 * @pieces: elements that an entry may have
 * @inline_bytes: inline data that it may have
 *
 * A SEND that is short would have room in its entry, a WRITE would not.
 *
 * Return: bytes of each; 0 if there need be none.
 */
u32 u4_ib_slot_for(u32 pieces, u32 inline_bytes)
{
	u32 list = pieces > 1 ? pieces * PIECE : 0;

	return round_up(max(list, inline_bytes), USB4_RING_SLOT_ALIGN);
}

/**
 * u4_ib_pieces_in() - elements that an entry may have
 * @slot: bytes of the slots behind its queue's entries, or 0
 */
u32 u4_ib_pieces_in(u32 slot)
{
	return slot ? slot / PIECE : 1;
}

/* A queue of the ring API has room for something. */
static u32 depth_for(u32 entries)
{
	return roundup_pow_of_two(max(entries, 1U));
}

static_assert((int)IB_QPT_RC == (int)USB4_CORE_QP_RC);
static_assert((int)IB_QPT_UC == (int)USB4_CORE_QP_UC);
static_assert((int)IB_QPT_UD == (int)USB4_CORE_QP_UD);
static_assert((int)IB_EVENT_QP_FATAL == (int)USB4_CORE_QP_FATAL);
static_assert((int)IB_EVENT_QP_REQ_ERR == (int)USB4_CORE_QP_REQ_ERR);
static_assert((int)IB_EVENT_QP_ACCESS_ERR == (int)USB4_CORE_QP_ACCESS_ERR);
static_assert((int)IB_EVENT_COMM_EST == (int)USB4_CORE_QP_COMM_EST);
static_assert((int)IB_EVENT_SQ_DRAINED == (int)USB4_CORE_QP_SQ_DRAINED);
static_assert((int)IB_EVENT_QP_LAST_WQE_REACHED == (int)USB4_CORE_QP_LAST_WQE);

int u4_ib_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *init,
		    struct ib_udata *udata)
{
	struct u4_ib_ucontext *context = u4_ib_context_of(udata);
	struct usb4_ib_create_qp_resp resp = {};
	struct u4_ib_qp *qp = u4_ib_qp(ibqp);
	struct u4_verbs_queue sq;
	struct u4_verbs_queue rq;
	struct u4_ep_spec spec;
	int ret;

	if (!context)
		return u4_ib_gsi_create(qp, init);
	ret = u4_ib_no_request(udata);
	if (ret)
		return ret;
	ret = check(init);
	if (ret)
		return ret;
	mutex_init(&qp->lock);
	qp->client = context->client;
	qp->signal = init->sq_sig_type;
	spec = (struct u4_ep_spec) {
		.kind = init->qp_type,
		.send_cq = u4_ib_cq(init->send_cq)->id,
		.recv_cq = u4_ib_cq(init->recv_cq)->id,
		.sq_depth = depth_for(init->cap.max_send_wr),
		.rq_depth = depth_for(init->srq ? 0 : init->cap.max_recv_wr),
		.sq_slot = u4_ib_slot_for(init->cap.max_send_sge,
				    init->cap.max_inline_data),
		.rq_slot = u4_ib_slot_for(init->srq ? 0 : init->cap.max_recv_sge, 0),
		.handles = init->qp_type == IB_QPT_UD ? U4_IB_UD_HANDLES : 1,
		.pd = u4_ib_pd(ibqp->pd)->number,
		.srq = srq_of(init),
		.event = tell,
		.context = qp,
	};
	ret = u4_verbs_create_qp(qp->client, &spec, &qp->id, &ibqp->qp_num,
				 &sq, &rq);
	if (ret)
		goto err_lock;
	init->cap.max_send_wr = spec.sq_depth;
	init->cap.max_recv_wr = init->srq ? 0 : spec.rq_depth;
	init->cap.max_send_sge = u4_ib_pieces_in(spec.sq_slot);
	init->cap.max_recv_sge = init->srq ? 0 : u4_ib_pieces_in(spec.rq_slot);
	init->cap.max_inline_data = spec.sq_slot;
	qp->attr.cap = init->cap;
	resp.ep = qp->id;
	resp.sq_depth = spec.sq_depth;
	resp.sq_slot = spec.sq_slot;
	resp.rq_slot = spec.rq_slot;
	resp.sq_offset = sq.offset;
	resp.sq_bytes = sq.bytes;
	if (!init->srq) {
		resp.rq_depth = spec.rq_depth;
		resp.rq_offset = rq.offset;
		resp.rq_bytes = rq.bytes;
	}
	ret = u4_ib_respond(udata, &resp, sizeof(resp));
	if (ret)
		goto err_qp;
	return 0;

err_qp:
	u4_verbs_destroy_qp(qp->client, qp->id);
err_lock:
	mutex_destroy(&qp->lock);
	return ret;
}

int u4_ib_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct u4_ib_qp *qp = u4_ib_qp(ibqp);
	int ret;

	if (qp->gsi) {
		u4_ib_gsi_destroy(qp->gsi);
		return 0;
	}
	ret = u4_verbs_destroy_qp(qp->client, qp->id);
	if (ret)
		return ret;
	mutex_destroy(&qp->lock);
	return 0;
}
