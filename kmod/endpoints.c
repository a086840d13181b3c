// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A client's endpoints: crates/kobj/src/objects.rs.
 *
 * In C for the memory they need, as completion queues are (cqs.c).
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "client.h"

/**
 * u4_ep_free() - forget an endpoint
 * @client: whose
 * @ep: the endpoint; the core is done with it
 */
void u4_ep_free(struct u4_client *client, struct u4_ep *ep)
{
	u4_queue_drop(client, ep->rq, ep->rq_number);
	u4_queue_drop(client, ep->sq, ep->sq_number);
	kvfree(ep->memory);
	u4_uncharge(client, ep->bytes);
	kfree(ep);
}

static struct u4_ep *new_ep(struct u4_client *client,
			    const struct u4_ep_spec *spec)
{
	struct u4_ep *ep;
	int ret = -ENOMEM;

	ep = kzalloc_obj(*ep, GFP_KERNEL_ACCOUNT);
	if (!ep)
		return ERR_PTR(ret);
	ep->connected = spec->kind == USB4_RING_EP_CONNECTED;
	ep->bytes = usb4_core_ep_size(spec->handles);
	if (!u4_charge(client, ep->bytes)) {
		ret = -EDQUOT;
		goto err_ep;
	}
	ep->memory = kvzalloc(ep->bytes, GFP_KERNEL_ACCOUNT);
	if (!ep->memory)
		goto err_charge;
	ep->sq = u4_queue_new(client, USB4_CORE_QUEUE_SQ, spec->sq_depth,
			      &ep->sq_number);
	if (IS_ERR(ep->sq)) {
		ret = PTR_ERR(ep->sq);
		goto err_memory;
	}
	ep->rq = u4_queue_new(client, USB4_CORE_QUEUE_RQ, spec->rq_depth,
			      &ep->rq_number);
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

/**
 * u4_ep_make() - make an endpoint
 * @client: whose; locked
 * @spec: what it is to be like
 * @id: where to put its name
 * @addr: where to put its address
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
		.memory = ep->memory,
		.size = ep->bytes,
	};
	ret = usb4_core_create_ep(u4_core, &params, id, addr);
	if (ret)
		goto err_ep;
	ret = xa_err(xa_store(&client->eps, *id, ep, GFP_KERNEL_ACCOUNT));
	if (ret)
		goto err_core;
	return ep;

err_core:
	usb4_core_destroy_ep(u4_core, client->id, *id);
err_ep:
	u4_ep_free(client, ep);
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
	xa_erase(&client->eps, id);
	u4_ep_free(client, ep);
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
