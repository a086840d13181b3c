// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A client's endpoints, and queue pairs of verbs and their shared receive queues:
 * crates/kobj/src/objects.rs, qp.rs.
 *
 * In C for the memory they need, as completion queues are (cqs.c), and for who is
 * told of what happens to a queue pair.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "client.h"

/* Queue pairs and shared receive queues that somebody is told about, by name. */
static DEFINE_XARRAY(u4_qps);

/* With spinlocks held, under which nobody can be told. */
void usb4_home_qp_event(u32 client, u32 id, u32 event)
{
	struct u4_ep *ep;

	xa_lock(&u4_qps);
	ep = xa_load(&u4_qps, id);
	if (ep && ep->client_id == client && event < BITS_PER_LONG) {
		set_bit(event, &ep->events);
		schedule_work(&ep->work);
	}
	xa_unlock(&u4_qps);
}

static void event_work(struct work_struct *work)
{
	struct u4_ep *ep = container_of(work, struct u4_ep, work);
	unsigned long events = xchg(&ep->events, 0);
	unsigned long event;

	for_each_set_bit(event, &events, BITS_PER_LONG)
		ep->event(ep->context, event);
}

static int watch_qp(struct u4_ep *ep, u32 id)
{
	if (!ep->event)
		return 0;
	return xa_err(xa_store(&u4_qps, id, ep, GFP_KERNEL));
}

static void unwatch_qp(struct u4_ep *ep, u32 id)
{
	if (!ep->event)
		return;
	/* Its name may be another's already. */
	xa_cmpxchg(&u4_qps, id, ep, NULL, 0);
	cancel_work_sync(&ep->work);
}

static void free_ep(struct u4_client *client, struct u4_ep *ep)
{
	u4_queue_drop(client, ep->rq, ep->rq_number);
	if (ep->sq)
		u4_queue_drop(client, ep->sq, ep->sq_number);
	kvfree(ep->memory);
	u4_uncharge(client, ep->bytes);
	kfree(ep);
}

/**
 * u4_ep_drop() - forget an endpoint that the client has
 * @client: whose
 * @ep: the endpoint; the core is done with it
 * @id: its name
 *
 * Nobody is told about it when this returns.
 */
void u4_ep_drop(struct u4_client *client, struct u4_ep *ep, u32 id)
{
	xa_erase(&client->eps, id);
	unwatch_qp(ep, id);
	free_ep(client, ep);
}

static struct u4_ep *new_ep(struct u4_client *client,
			    const struct u4_ep_spec *spec)
{
	struct u4_ep *ep;
	int ret = -ENOMEM;

	ep = kzalloc_obj(*ep, GFP_KERNEL_ACCOUNT);
	if (!ep)
		return ERR_PTR(ret);
	ep->connected = !spec->pd && spec->kind == USB4_RING_EP_CONNECTED;
	ep->client_id = client->id;
	ep->event = spec->event;
	ep->context = spec->context;
	INIT_WORK(&ep->work, event_work);
	ep->bytes = usb4_core_ep_size(spec->handles, spec->sq_depth,
				      spec->sq_slot, spec->rq_depth,
				      spec->rq_slot);
	if (!u4_charge(client, ep->bytes)) {
		ret = -EDQUOT;
		goto err_ep;
	}
	ep->memory = kvzalloc(ep->bytes, GFP_KERNEL_ACCOUNT);
	if (!ep->memory)
		goto err_charge;
	ep->sq = u4_queue_new(client, USB4_CORE_QUEUE_SQ, spec->sq_depth,
			      spec->sq_slot, &ep->sq_number);
	if (IS_ERR(ep->sq)) {
		ret = PTR_ERR(ep->sq);
		goto err_memory;
	}
	ep->rq = u4_queue_new(client, USB4_CORE_QUEUE_RQ, spec->rq_depth,
			      spec->rq_slot, &ep->rq_number);
	if (IS_ERR(ep->rq)) {
		ret = PTR_ERR(ep->rq);
		goto err_sq;
	}
	return ep;

err_sq:
	u4_queue_drop(client, ep->sq, ep->sq_number);
err_memory:
	kvfree(ep->memory);
err_charge:
	u4_uncharge(client, ep->bytes);
err_ep:
	kfree(ep);
	return ERR_PTR(ret);
}

/* What the core has made is the client's, or is no more. */
static int keep(struct u4_client *client, struct u4_ep *ep, u32 id)
{
	int ret;

	ret = watch_qp(ep, id);
	if (ret)
		goto err_core;
	ret = xa_err(xa_store(&client->eps, id, ep, GFP_KERNEL_ACCOUNT));
	if (ret)
		goto err_watch;
	return 0;

err_watch:
	unwatch_qp(ep, id);
err_core:
	usb4_core_destroy_ep(u4_core, client->id, id);
	return ret;
}

static int create(const struct usb4_core_ep_params *params, u32 *id,
		  struct usb4_core_addr *addr)
{
	if (!params->pd)
		return usb4_core_create_ep(u4_core, params, id, addr);
	*addr = (struct usb4_core_addr) { .node = u4_node };
	return usb4_core_create_qp(u4_core, params, id, &addr->ep);
}

/**
 * u4_ep_make() - make an endpoint
 * @client: whose; locked
 * @spec: what it is to be like
 * @id: where to put its name
 * @addr: where to put its address; a queue pair's number is @ep of it
 *
 * Return: the endpoint, which the client has; or an error.
 */
struct u4_ep *u4_ep_make(struct u4_client *client,
			 const struct u4_ep_spec *spec, u32 *id,
			 struct usb4_core_addr *addr)
{
	struct usb4_core_ep_params params;
	struct u4_ep *ep;
	int ret;

	lockdep_assert_held(&client->lock);
	ep = new_ep(client, spec);
	if (IS_ERR(ep))
		return ep;
	params = (struct usb4_core_ep_params) {
		.client = client->id,
		.kind = spec->kind,
		.send_cq = spec->send_cq,
		.recv_cq = spec->recv_cq,
		.sq_depth = spec->sq_depth,
		.rq_depth = spec->rq_depth,
		.sq = u4_queue_lend(ep->sq),
		.rq = u4_queue_lend(ep->rq),
		.handles = spec->handles,
		.pd = spec->pd,
		.memory = ep->memory,
		.size = ep->bytes,
		.srq = spec->srq,
		.sq_slot = spec->sq_slot,
		.rq_slot = spec->rq_slot,
	};
	ret = create(&params, id, addr);
	if (ret)
		goto err_ep;
	ret = keep(client, ep, *id);
	if (ret)
		goto err_ep;
	return ep;

err_ep:
	free_ep(client, ep);
	return ERR_PTR(ret);
}

/**
 * u4_srq_make() - make a shared receive queue
 * @client: whose; locked
 * @spec: what it is to be like
 * @id: where to put its name
 *
 * What else is done with an endpoint by its name is done with it, too.
 *
 * Return: the queue, which the client has; or an error.
 */
struct u4_ep *u4_srq_make(struct u4_client *client,
			  const struct u4_srq_spec *spec, u32 *id)
{
	struct usb4_core_srq_params params;
	struct u4_ep *ep;
	int ret;

	lockdep_assert_held(&client->lock);
	ep = kzalloc_obj(*ep, GFP_KERNEL_ACCOUNT);
	if (!ep)
		return ERR_PTR(-ENOMEM);
	ep->client_id = client->id;
	ep->event = spec->event;
	ep->context = spec->context;
	INIT_WORK(&ep->work, event_work);
	ep->bytes = usb4_core_ep_size(0, 0, 0, spec->depth, spec->slot);
	if (!u4_charge(client, ep->bytes)) {
		ret = -EDQUOT;
		goto err_free;
	}
	ret = -ENOMEM;
	ep->memory = kvzalloc(ep->bytes, GFP_KERNEL_ACCOUNT);
	if (!ep->memory)
		goto err_charge;
	ep->rq = u4_queue_new(client, USB4_CORE_QUEUE_RQ, spec->depth,
			      spec->slot, &ep->rq_number);
	if (IS_ERR(ep->rq)) {
		ret = PTR_ERR(ep->rq);
		goto err_memory;
	}
	params = (struct usb4_core_srq_params) {
		.client = client->id,
		.pd = spec->pd,
		.depth = spec->depth,
		.slot = spec->slot,
		.rq = u4_queue_lend(ep->rq),
		.memory = ep->memory,
		.size = ep->bytes,
	};
	ret = usb4_core_create_srq(u4_core, &params, id);
	if (ret)
		goto err_ep;
	ret = keep(client, ep, *id);
	if (ret)
		goto err_ep;
	return ep;

err_ep:
	free_ep(client, ep);
	return ERR_PTR(ret);
err_memory:
	kvfree(ep->memory);
err_charge:
	u4_uncharge(client, ep->bytes);
err_free:
	kfree(ep);
	return ERR_PTR(ret);
}

/**
 * u4_nudge() - something was destroyed: have the links tell the peers
 */
void u4_nudge(void)
{
	rcu_read_lock();
	usb4_core_nudge(u4_core);
	rcu_read_unlock();
}

/**
 * u4_ep_unmake() - destroy an endpoint
 * @client: whose; locked
 * @id: its name
 *
 * Return: 0; -ENOENT if the client has none of that name.
 */
int u4_ep_unmake(struct u4_client *client, u32 id)
{
	struct u4_ep *ep;
	int ret;

	lockdep_assert_held(&client->lock);
	ep = xa_load(&client->eps, id);
	if (!ep)
		return -ENOENT;
	ret = usb4_core_destroy_ep(u4_core, client->id, id);
	if (ret)
		return ret;
	u4_ep_drop(client, ep, id);
	u4_nudge();
	return 0;
}

static int check_create_ep(const struct usb4_ring_create_ep *arg)
{
	if (arg->flags || arg->kind > USB4_RING_EP_CONNECTED)
		return -EOPNOTSUPP;
	if (arg->reserved || arg->max_ahs > USB4_RING_MAX_DEPTH)
		return -EINVAL;
	return 0;
}

int u4_create_ep(struct u4_client *client, void *data)
{
	struct usb4_ring_create_ep *arg = data;
	struct usb4_core_addr addr;
	struct u4_ep_spec spec;
	struct u4_ep *ep;
	u32 id;
	int ret;

	ret = check_create_ep(arg);
	if (ret)
		return ret;
	spec = (struct u4_ep_spec) {
		.kind = arg->kind,
		.send_cq = arg->send_cq,
		.recv_cq = arg->recv_cq,
		.sq_depth = arg->sq_depth,
		.rq_depth = arg->rq_depth,
		.handles = 1,
	};
	if (arg->kind == USB4_RING_EP_DATAGRAM)
		spec.handles = arg->max_ahs ?: u4_limits.default_ahs;
	ep = u4_ep_make(client, &spec, &id, &addr);
	if (IS_ERR(ep))
		return PTR_ERR(ep);
	arg->ep = id;
	u4_to_user(&arg->addr, &addr);
	arg->sq_offset = u4_queue_offset(ep->sq_number);
	arg->sq_bytes = ep->sq->bytes;
	arg->rq_offset = u4_queue_offset(ep->rq_number);
	arg->rq_bytes = ep->rq->bytes;
	return 0;
}

int u4_destroy_ep(struct u4_client *client, void *data)
{
	struct usb4_ring_destroy *arg = data;
	int ret;

	ret = u4_check_destroy(arg);
	return ret ?: u4_ep_unmake(client, arg->id);
}
