// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The link of this host to itself, made when somebody first wants it.
 *
 * In C for the buffers it needs; a link like any other else.
 */
#include <linux/mutex.h>
#include <linux/slab.h>

#include "usb4_rdma.h"

/* Tag of all its frames: there is only ever one session. */
#define LOOP_TAG	1

/* What memory is taken to carry until that is measured. */
#define LOOP_MBPS	40000

static DEFINE_MUTEX(loop_lock);
static struct u4_port *loop_port;

/**
 * u4_loop_start() - have a link to this host
 *
 * Return: 0, or an error.
 */
int u4_loop_start(void)
{
	struct usb4_core_peer peer = {
		.node = u4_node,
		.tx_tag = LOOP_TAG,
		.rx_tag = LOOP_TAG,
		.max_flows = U32_MAX,
		.max_reads = 128,
		.ring = u4_limits.rx_ring,
		.rate_mbps = LOOP_MBPS,
	};
	struct u4_port *port;
	struct u4_link *link;
	int ret = 0;

	mutex_lock(&loop_lock);
	if (loop_port)
		goto out;
	ret = -ENOMEM;
	port = kzalloc_obj(*port, GFP_KERNEL);
	if (!port)
		goto out;
	ret = u4_port_open_loop(port);
	if (ret)
		goto err_port;
	link = u4_link_start(port, &peer);
	if (IS_ERR(link)) {
		ret = PTR_ERR(link);
		goto err_close;
	}
	loop_port = port;
out:
	mutex_unlock(&loop_lock);
	return ret;

err_close:
	u4_port_close(port);
err_port:
	kfree(port);
	goto out;
}

/**
 * u4_loop_stop() - end the link to this host, if there is one
 */
void u4_loop_stop(void)
{
	if (!loop_port)
		return;
	u4_link_stop(loop_port);
	u4_port_close(loop_port);
	kfree(loop_port);
	loop_port = NULL;
}
