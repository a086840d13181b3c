// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Address handles: whom an endpoint sends to, and the link that leads there.
 *
 * In C because a link may have to be waited for.
 */
#include <linux/mutex.h>
#include <linux/wait.h>

#include "client.h"

static struct usb4_core_addr from_user_addr(const struct usb4_ring_addr *from)
{
	return (struct usb4_core_addr) {
		.node.low = from->node_low,
		.node.high = from->node_high,
		.ep = from->ep,
		.incarnation = from->incarnation,
	};
}

static bool is_own(const struct usb4_core_node *node)
{
	return node->low == u4_node.low && node->high == u4_node.high;
}

/* Waits until there is a link to a host, or none is to be expected. */
static int wait_for_link(const struct usb4_core_node *node, u64 timeout)
{
	long ret;

#define DECIDED (usb4_core_link_is_up(u4_core, node) || !u4_rails_expect(node))
	if (timeout == USB4_RING_FOREVER)
		ret = wait_event_interruptible(u4_links_wait, DECIDED);
	else
		ret = wait_event_interruptible_hrtimeout(u4_links_wait, DECIDED,
							 u4_ktime(timeout));
#undef DECIDED
	if (ret == -ETIME)
		return -ETIMEDOUT;
	return ret ? -EINTR : 0;
}

/**
 * u4_link_to() - see that there is a link to a host
 * @node: the host
 * @timeout: nanoseconds to wait for one, or USB4_RING_FOREVER
 *
 * A link may go down between two looks; the deadline does not move.
 *
 * Return: 0; -EHOSTUNREACH if none is to be expected, -EAGAIN if one is and
 * @timeout is 0, -ETIMEDOUT, -EINTR.
 */
int u4_link_to(const struct usb4_core_node *node, u64 timeout)
{
	if (is_own(node))
		return u4_loop_start();
	if (usb4_core_link_is_up(u4_core, node))
		return 0;
	if (!u4_rails_expect(node))
		return -EHOSTUNREACH;
	if (!timeout)
		return -EAGAIN;
	return wait_for_link(node, timeout);
}

static int make_ah(struct u4_client *client, struct usb4_ring_create_ah *arg)
{
	struct usb4_core_addr addr = from_user_addr(&arg->addr);
	struct u4_ep *ep;
	int ret = -ENOENT;

	mutex_lock(&client->lock);
	ep = xa_load(&client->eps, arg->ep);
	if (ep)
		ret = usb4_core_create_ah(u4_core, client->id, arg->ep,
					  ep->connected, &addr, &arg->ah);
	mutex_unlock(&client->lock);
	return ret;
}

/* Without the client's lock but for the last step: it may wait for long. */
int u4_create_ah(struct u4_client *client, void *data)
{
	struct usb4_ring_create_ah *arg = data;
	struct usb4_core_addr addr = from_user_addr(&arg->addr);
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (!xa_load(&client->eps, arg->ep))
		return -ENOENT;
	ret = u4_link_to(&addr.node, arg->timeout_ns);
	if (ret)
		return ret;
	return make_ah(client, arg);
}

int u4_destroy_ah(struct u4_client *client, void *data)
{
	struct usb4_ring_destroy_ah *arg = data;
	struct u4_ep *ep;
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	ep = xa_load(&client->eps, arg->ep);
	if (!ep)
		return -ENOENT;
	if (ep->connected)
		return -EISCONN;
	ret = usb4_core_destroy_ah(u4_core, client->id, arg->ep, arg->ah);
	u4_nudge();
	return ret;
}
