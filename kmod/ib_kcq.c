// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Completion queues of the kernel's: of whoever sends and receives by ib_gsi.c.
 *
 * In C because ib_core is. They have no counterpart in the core, which knows that
 * queue pair's channel only.
 */
#include <linux/slab.h>

#include "ib.h"

/**
 * u4_ib_kcq_create() - make a completion queue for the kernel
 * @cq: the queue
 * @attr: what it is to be like
 *
 * Return: 0 or an error.
 */
int u4_ib_kcq_create(struct u4_ib_cq *cq, const struct ib_cq_init_attr *attr)
{
	if (attr->flags)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > u4_limits.max_depth)
		return -EINVAL;
	cq->wcs = kvcalloc(attr->cqe, sizeof(*cq->wcs), GFP_KERNEL);
	if (!cq->wcs)
		return -ENOMEM;
	spin_lock_init(&cq->lock);
	cq->ibcq.cqe = attr->cqe;
	return 0;
}

/**
 * u4_ib_kcq_destroy() - be done with it
 * @cq: the queue; no queue pair has it
 */
void u4_ib_kcq_destroy(struct u4_ib_cq *cq)
{
	kvfree(cq->wcs);
}

/**
 * u4_ib_kcq_add() - something has completed
 * @cq: the queue; has room, if its owner keeps to what was agreed
 * @wc: what is to be told of it
 */
void u4_ib_kcq_add(struct u4_ib_cq *cq, const struct ib_wc *wc)
{
	u32 depth = cq->ibcq.cqe;
	unsigned long flags;
	bool tell = false;

	spin_lock_irqsave(&cq->lock, flags);
	if (!WARN_ON_ONCE(cq->count == depth)) {
		cq->wcs[(cq->head + cq->count++) % depth] = *wc;
		tell = cq->armed;
		cq->armed = false;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	if (tell)
		cq->ibcq.comp_handler(&cq->ibcq, cq->ibcq.cq_context);
}

int u4_ib_poll_cq(struct ib_cq *ibcq, int room, struct ib_wc *wcs)
{
	struct u4_ib_cq *cq = u4_ib_cq(ibcq);
	unsigned long flags;
	int count;

	/* Of a process, which polls itself. */
	if (!cq->wcs)
		return -EOPNOTSUPP;
	spin_lock_irqsave(&cq->lock, flags);
	for (count = 0; count < room && cq->count; count++) {
		wcs[count] = cq->wcs[cq->head];
		cq->head = (cq->head + 1) % ibcq->cqe;
		cq->count--;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	return count;
}

/**
 * u4_ib_kcq_arm() - notify of the next completion
 * @cq: the queue
 *
 * Return: whether there are some.
 */
bool u4_ib_kcq_arm(struct u4_ib_cq *cq)
{
	unsigned long flags;
	bool any;

	spin_lock_irqsave(&cq->lock, flags);
	cq->armed = true;
	any = cq->count;
	spin_unlock_irqrestore(&cq->lock, flags);
	return any;
}
