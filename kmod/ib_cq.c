// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Completion queues.
 *
 * In C because ib_core is. They are the ring API's; what is special is that whoever
 * waits for one does so at a completion channel.
 */
#include <linux/log2.h>
#include <rdma/uverbs_ioctl.h>

#include "ib.h"

/* With spinlocks held. */
static void notify(void *context)
{
	struct ib_cq *ibcq = context;

	ibcq->comp_handler(ibcq, ibcq->cq_context);
}

/* From a work item that has ended when the queue has. */
static void failed(void *context)
{
	struct ib_cq *ibcq = context;
	struct ib_event told = {
		.device = ibcq->device,
		.element.cq = ibcq,
		.event = IB_EVENT_CQ_ERR,
	};

	if (ibcq->event_handler)
		ibcq->event_handler(&told, ibcq->cq_context);
}

int u4_ib_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
		    struct uverbs_attr_bundle *attrs)
{
	struct usb4_ib_create_cq_resp resp = {};
	struct u4_ib_cq *cq = u4_ib_cq(ibcq);
	struct u4_ib_ucontext *context;
	struct u4_verbs_queue queue;
	struct ib_udata *udata;
	struct u4_cq_spec spec;
	int ret;

	if (!attrs)
		return u4_ib_kcq_create(cq, attr);
	udata = &attrs->driver_udata;
	context = u4_ib_context_of(udata);
	ret = u4_ib_no_request(udata);
	if (ret)
		return ret;
	if (attr->flags)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > u4_limits.max_depth)
		return -EINVAL;
	spec = (struct u4_cq_spec) {
		.depth = roundup_pow_of_two(attr->cqe),
		.event_fd = -1,
		.notify = notify,
		.failed = failed,
		.context = ibcq,
	};
	ret = u4_verbs_create_cq(context->client, &spec, &cq->id, &queue);
	if (ret)
		return ret;
	cq->client = context->client;
	ibcq->cqe = spec.depth;
	resp.cq = cq->id;
	resp.depth = spec.depth;
	resp.offset = queue.offset;
	resp.bytes = queue.bytes;
	ret = u4_ib_respond(udata, &resp, sizeof(resp));
	if (ret)
		u4_verbs_destroy_cq(cq->client, cq->id);
	return ret;
}

int u4_ib_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct u4_ib_cq *cq = u4_ib_cq(ibcq);

	if (cq->wcs) {
		u4_ib_kcq_destroy(cq);
		return 0;
	}
	return u4_verbs_destroy_cq(cq->client, cq->id);
}

/*
 * The provider arms a queue itself, in memory that it has mapped; this is for who
 * has not.
 */
int u4_ib_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	bool solicited = (flags & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED;
	struct u4_ib_cq *cq = u4_ib_cq(ibcq);
	int ret;

	if (cq->wcs)
		return u4_ib_kcq_arm(cq) && flags & IB_CQ_REPORT_MISSED_EVENTS;
	ret = u4_verbs_arm_cq(cq->client, cq->id, solicited);
	if (ret < 0 || flags & IB_CQ_REPORT_MISSED_EVENTS)
		return ret;
	return 0;
}
