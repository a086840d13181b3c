// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A client's completion queues: crates/kobj/src/objects.rs.
 *
 * In C for the memory they need, and for whoever is woken. The core says how much
 * memory, gets it, and keeps everything in it; names are its own, and what a client
 * names is looked up among the client's.
 */
#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "client.h"

static void free_cq(struct kref *ref)
{
	struct u4_cq *cq = container_of(ref, struct u4_cq, ref);

	if (cq->event)
		eventfd_ctx_put(cq->event);
	kvfree(cq->memory);
	u4_queue_put(cq->queue);
	kfree(cq);
}

/**
 * u4_cq_put() - give back a reference on a completion queue
 * @cq: the queue
 */
void u4_cq_put(struct u4_cq *cq)
{
	kref_put(&cq->ref, free_cq);
}

void usb4_home_wake(size_t waker)
{
	struct u4_cq *cq = (struct u4_cq *)waker;

	if (cq->event)
		eventfd_signal(cq->event);
	if (cq->notify)
		cq->notify(cq->context);
	wake_up_all(&cq->wait);
}

static void failed_work(struct work_struct *work)
{
	struct u4_cq *cq = container_of(work, struct u4_cq, failed_work);

	cq->failed(cq->context);
}

/* With spinlocks held, under which nobody can be told. */
void usb4_home_cq_error(size_t waker)
{
	struct u4_cq *cq = (struct u4_cq *)waker;

	if (cq->failed)
		schedule_work(&cq->failed_work);
}

static void forget_cq(struct u4_client *client, struct u4_cq *cq)
{
	cancel_work_sync(&cq->failed_work);
	xa_erase(&client->queues, cq->number);
	u4_cq_put(cq);
}

/**
 * u4_cq_drop() - forget a completion queue
 * @client: whose
 * @cq: the queue; the core is done with it and wakes it no more
 * @id: its name
 */
void u4_cq_drop(struct u4_client *client, struct u4_cq *cq, u32 id)
{
	xa_erase(&client->cqs, id);
	WRITE_ONCE(cq->dead, true);
	wake_up_all(&cq->wait);
	forget_cq(client, cq);
}

static struct u4_cq *new_cq(struct u4_client *client,
			    const struct u4_cq_spec *spec)
{
	struct u4_cq *cq;
	int ret = -ENOMEM;

	cq = kzalloc_obj(*cq, GFP_KERNEL_ACCOUNT);
	if (!cq)
		return ERR_PTR(ret);
	kref_init(&cq->ref);
	init_waitqueue_head(&cq->wait);
	INIT_WORK(&cq->failed_work, failed_work);
	cq->notify = spec->notify;
	cq->failed = spec->failed;
	cq->context = spec->context;
	if (spec->event_fd >= 0) {
		cq->event = eventfd_ctx_fdget(spec->event_fd);
		if (IS_ERR(cq->event)) {
			ret = -EBADF;
			goto err_cq;
		}
	}
	cq->queue = u4_queue_new(client, USB4_CORE_QUEUE_CQ, spec->depth, 0,
				 &cq->number);
	if (IS_ERR(cq->queue)) {
		ret = PTR_ERR(cq->queue);
		goto err_event;
	}
	cq->memory = kvzalloc(usb4_core_cq_size(spec->depth),
			      GFP_KERNEL_ACCOUNT);
	if (!cq->memory)
		goto err_queue;
	return cq;

err_queue:
	u4_queue_drop(client, cq->queue, cq->number);
err_event:
	if (cq->event)
		eventfd_ctx_put(cq->event);
err_cq:
	kfree(cq);
	return ERR_PTR(ret);
}

/**
 * u4_cq_make() - make a completion queue
 * @client: whose; locked
 * @spec: what it is to be like
 * @id: where to put its name
 *
 * Return: the queue, which the client has; or an error.
 */
struct u4_cq *u4_cq_make(struct u4_client *client,
			 const struct u4_cq_spec *spec, u32 *id)
{
	struct usb4_core_cq_params params;
	struct u4_cq *cq;
	int ret;

	lockdep_assert_held(&client->lock);
	cq = new_cq(client, spec);
	if (IS_ERR(cq))
		return cq;
	params = (struct usb4_core_cq_params) {
		.client = client->id,
		.depth = spec->depth,
		.queue = u4_queue_lend(cq->queue),
		.waker = (size_t)cq,
		.memory = cq->memory,
		.size = usb4_core_cq_size(spec->depth),
	};
	ret = usb4_core_create_cq(u4_core, &params, id);
	if (ret)
		goto err_cq;
	ret = xa_err(xa_store(&client->cqs, *id, cq, GFP_KERNEL_ACCOUNT));
	if (ret)
		goto err_core;
	return cq;

err_core:
	usb4_core_destroy_cq(u4_core, client->id, *id);
err_cq:
	forget_cq(client, cq);
	return ERR_PTR(ret);
}

/**
 * u4_cq_arm() - have a completion queue notify of its next entry
 * @cq: the queue
 * @solicited: only of one that is solicited, or an error
 *
 * As its client does.
 *
 * Return: whether it has entries.
 */
bool u4_cq_arm(struct u4_cq *cq, bool solicited)
{
	u64 *words = cq->queue->words;
	u64 flags = solicited ? USB4_RING_ARMED_SOLICITED : USB4_RING_ARMED;

	atomic64_or(flags, (atomic64_t *)&words[USB4_RING_FLAGS_WORD]);
	/* Before the look: who adds an entry sees it, or the entry is seen. */
	smp_mb__after_atomic();
	return READ_ONCE(words[USB4_RING_PRODUCER_WORD]) !=
	       READ_ONCE(words[USB4_RING_CONSUMER_WORD]);
}

/**
 * u4_cq_unmake() - destroy a completion queue
 * @client: whose; locked
 * @id: its name
 *
 * Return: 0; -ENOENT if the client has none of that name; -EBUSY if an endpoint
 * has it.
 */
int u4_cq_unmake(struct u4_client *client, u32 id)
{
	struct u4_cq *cq;
	int ret;

	lockdep_assert_held(&client->lock);
	cq = xa_load(&client->cqs, id);
	if (!cq)
		return -ENOENT;
	ret = usb4_core_destroy_cq(u4_core, client->id, id);
	if (ret)
		return ret;
	u4_cq_drop(client, cq, id);
	return 0;
}

int u4_create_cq(struct u4_client *client, void *data)
{
	struct usb4_ring_create_cq *arg = data;
	struct u4_cq_spec spec;
	struct u4_cq *cq;
	u32 id;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (arg->reserved || arg->event_fd < -1)
		return -EINVAL;
	spec = (struct u4_cq_spec) {
		.depth = arg->depth,
		.event_fd = arg->event_fd,
	};
	cq = u4_cq_make(client, &spec, &id);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	arg->cq = id;
	arg->offset = u4_queue_offset(cq->number);
	arg->bytes = cq->queue->bytes;
	return 0;
}

int u4_destroy_cq(struct u4_client *client, void *data)
{
	struct usb4_ring_destroy *arg = data;
	int ret;

	ret = u4_check_destroy(arg);
	return ret ?: u4_cq_unmake(client, arg->id);
}
