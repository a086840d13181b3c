// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What usb4_rdma_ib.ko calls (verbs.h) for a client of its own, which is no
 * process': it fills and empties its queues where they are.
 *
 * In C because it is for C.
 */
#include <linux/export.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "verbs.h"

/**
 * u4_verbs_open_kernel() - make a client of the kernel's own
 *
 * Return: the client, to be given back to u4_verbs_close(), or an error.
 */
struct u4_client *u4_verbs_open_kernel(void)
{
	return u4_client_new(true);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_open_kernel, "USB4_RDMA");

/**
 * u4_verbs_reg_kernel() - make memory, and register it
 * @client: a client of the kernel's own
 * @len: bytes
 * @pd: of what protection domain
 * @keys: where to put its keys
 *
 * Entries name it by the address that this returns. It is freed when its key is
 * given to u4_verbs_dereg_mr(), or with the client.
 *
 * Return: the memory, zeroed, or an error.
 */
u8 *u4_verbs_reg_kernel(struct u4_client *client, size_t len, u32 pd,
			struct u4_keys *keys)
{
	struct u4_region_spec spec = {
		.len = len,
		.narrow = true,
		.pd = pd,
	};
	int ret;

	spec.kernel = vzalloc(len);
	if (!spec.kernel)
		return ERR_PTR(-ENOMEM);
	spec.addr = (uintptr_t)spec.kernel;
	ret = u4_region_make(client, &spec, keys);
	return ret ? ERR_PTR(ret) : spec.kernel;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_reg_kernel, "USB4_RDMA");

/**
 * u4_verbs_create_ah() - make an address handle
 * @client: a client
 * @ep: its queue pair for datagrams
 * @node: the host it is to lead to, with a link now
 * @qpn: the queue pair there
 * @ah: where to put the handle
 *
 * A link that comes back is found again.
 *
 * Return: 0 or an error.
 */
int u4_verbs_create_ah(struct u4_client *client, u32 ep,
		       const struct usb4_core_node *node, u32 qpn, u32 *ah)
{
	struct usb4_core_addr addr = { .node = *node, .ep = qpn };
	int ret;

	ret = u4_link_to(node, 0);
	if (ret)
		return ret;
	mutex_lock(&client->lock);
	ret = usb4_core_create_ah(u4_core, client->id, ep, false, &addr, ah);
	mutex_unlock(&client->lock);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_create_ah, "USB4_RDMA");

/**
 * u4_verbs_destroy_ah() - destroy an address handle
 * @client: a client
 * @ep: its queue pair
 * @ah: the handle
 *
 * Return: 0 or an error.
 */
int u4_verbs_destroy_ah(struct u4_client *client, u32 ep, u32 ah)
{
	int ret;

	mutex_lock(&client->lock);
	ret = usb4_core_destroy_ah(u4_core, client->id, ep, ah);
	mutex_unlock(&client->lock);
	u4_nudge();
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_destroy_ah, "USB4_RDMA");

/**
 * u4_verbs_submit() - have what is posted on a queue pair's queues seen to
 * @ep: the queue pair, which is there
 *
 * In process context.
 */
void u4_verbs_submit(u32 ep)
{
	rcu_read_lock();
	usb4_core_submit(u4_core, ep);
	rcu_read_unlock();
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_submit, "USB4_RDMA");

/**
 * u4_verbs_peers() - the hosts to which there is a link
 * @nodes: where to put them
 * @room: how many there is room for
 *
 * Return: how many were put there.
 */
u32 u4_verbs_peers(struct usb4_core_node *nodes, u32 room)
{
	u32 found;
	u32 count = 0;
	struct u4_peer *peers;
	u32 i;

	peers = kmalloc_array(u4_limits.max_rails, sizeof(*peers), GFP_KERNEL);
	if (!peers)
		return 0;
	found = min(u4_rails_list(peers, u4_limits.max_rails),
		    u4_limits.max_rails);
	for (i = 0; i < found && count < room; i++)
		if (peers[i].rails)
			nodes[count++] = peers[i].node;
	kfree(peers);
	return count;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_peers, "USB4_RDMA");
