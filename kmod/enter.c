// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * ENTER: submit, drive, wait, in one system call.
 *
 * In C because of wait queues.
 */
#include <linux/hrtimer.h>
#include <linux/sched.h>

#include "client.h"
#include "trace.h"

/* The indices of a queue's words; the client may have written anything there. */
static bool is_ready(const struct u4_cq *cq)
{
	const u64 *words = cq->queue->words;

	return READ_ONCE(words[USB4_RING_PRODUCER_WORD]) !=
	       READ_ONCE(words[USB4_RING_CONSUMER_WORD]);
}

/*
 * Whether nobody is to sleep on it. If it is not armed any more, it was woken
 * for something its client has taken since, and would not be woken again.
 */
static bool is_over(const struct u4_cq *cq)
{
	const u64 *words = cq->queue->words;

	return is_ready(cq) || READ_ONCE(cq->dead) ||
	       !(READ_ONCE(words[USB4_RING_FLAGS_WORD]) &
		 (USB4_RING_ARMED | USB4_RING_ARMED_SOLICITED));
}

static struct u4_cq *get_cq(struct u4_client *client, u32 id)
{
	struct u4_cq *cq;

	xa_lock(&client->cqs);
	cq = xa_load(&client->cqs, id);
	if (cq)
		kref_get(&cq->ref);
	xa_unlock(&client->cqs);
	return cq;
}

static int wait_for_cq(struct u4_cq *cq, u64 timeout)
{
	long ret = 0;

	if (timeout == USB4_RING_FOREVER)
		ret = wait_event_interruptible(cq->wait, is_over(cq));
	else if (timeout)
		ret = wait_event_interruptible_hrtimeout(cq->wait, is_over(cq),
							 u4_ktime(timeout));
	if (ret && ret != -ETIME)
		return -EINTR;
	if (READ_ONCE(cq->dead))
		return -ENOENT;
	return is_ready(cq) ? USB4_RING_ENTERED_READY : 0;
}

int u4_enter(struct u4_client *client, void *data)
{
	const struct usb4_ring_enter *arg = data;
	struct u4_cq *cq = NULL;
	bool any = false;
	int ret = 0;

	if (arg->flags & ~(USB4_RING_ENTER_SUBMIT | USB4_RING_ENTER_PROGRESS |
			   USB4_RING_ENTER_WAIT))
		return -EOPNOTSUPP;
	if (arg->flags & USB4_RING_ENTER_SUBMIT &&
	    !xa_load(&client->eps, arg->ep))
		return -ENOENT;
	if (arg->flags & USB4_RING_ENTER_WAIT) {
		cq = get_cq(client, arg->cq);
		if (!cq)
			return -ENOENT;
	}
	/* Keeps the ports the core comes across; it does not sleep. */
	rcu_read_lock();
	if (arg->flags & USB4_RING_ENTER_SUBMIT)
		any |= usb4_core_submit(u4_core, arg->ep);
	if (arg->flags & USB4_RING_ENTER_PROGRESS)
		any |= usb4_core_progress(u4_core);
	rcu_read_unlock();
	trace_u4_enter(client->id, arg->flags, arg->ep, any);
	if (cq) {
		ret = wait_for_cq(cq, arg->timeout_ns);
		u4_cq_put(cq);
	}
	if (ret < 0)
		return ret;
	return ret | (any ? USB4_RING_ENTERED_PROGRESS : 0);
}
