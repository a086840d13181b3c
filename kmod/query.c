// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What a client may ask: what the device is, who the peers are, who has sent.
 *
 * In C because the answers are structures of the user interface.
 */
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "client.h"

/* Peers, or cables, listed in one call: there are no more rails. */
#define MAX_PEERS	64

int u4_info(struct u4_client *client, void *data)
{
	struct usb4_ring_info *arg = data;

	if (arg->flags)
		return -EOPNOTSUPP;
	*arg = (struct usb4_ring_info) {
		.size = arg->size,
		.abi_version = u4_limits.abi_version,
		.node_low = u4_node.low,
		.node_high = u4_node.high,
		.max_message = u4_limits.max_message,
		.max_depth = u4_limits.max_depth,
		.max_cqs = u4_limits.max_cqs,
		.max_cq_entries = u4_limits.max_cq_entries,
		.max_eps = u4_limits.max_eps,
		.max_ahs = u4_limits.max_ahs,
		.max_mrs = u4_limits.max_mrs,
		.max_mr_bytes = u4_limits.max_mr_bytes,
		.notice_bytes = PAGE_SIZE,
		.notice_offset = (u64)U4_NOTICE_NUMBER << U4_OFFSET_SHIFT,
	};
	strscpy_pad(arg->release, U4_VERSION, sizeof(arg->release));
	return 0;
}

int u4_source(struct u4_client *client, void *data)
{
	struct usb4_ring_source *arg = data;
	struct usb4_core_addr addr;
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (arg->reserved)
		return -EINVAL;
	ret = usb4_core_source(u4_core, client->id, arg->src, &addr);
	if (ret)
		return ret;
	u4_to_user(&arg->addr, &addr);
	return 0;
}

/**
 * u4_put_list() - copy a list to a client
 * @to: address of the client's elements
 * @stride: bytes of each, as the client knows them
 * @from: our elements
 * @size: bytes of each
 * @count: how many
 *
 * What we do not know of the client's elements is zeroed.
 *
 * Return: 0 or -EFAULT.
 */
int u4_put_list(u64 to, u32 stride, const void *from, size_t size, u32 count)
{
	size_t known = min_t(size_t, stride, size);
	u8 __user *at = u64_to_user_ptr(to);
	u32 i;

	for (i = 0; i < count; i++, at += stride, from += size)
		if (copy_to_user(at, from, known) ||
		    clear_user(at + known, stride - known))
			return -EFAULT;
	return 0;
}

/* An element is no larger than a page, however it may grow. */
static bool is_stride(u32 stride)
{
	return stride && stride <= PAGE_SIZE;
}

int u4_list_peers(struct u4_client *client, void *data)
{
	struct usb4_ring_peers *arg = data;
	struct usb4_ring_peer *list;
	struct u4_peer *peers;
	int ret = -ENOMEM;
	u32 room;
	u32 i;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (!is_stride(arg->stride))
		return -EINVAL;
	peers = kcalloc(MAX_PEERS, sizeof(*peers), GFP_KERNEL);
	list = kcalloc(MAX_PEERS, sizeof(*list), GFP_KERNEL);
	if (!peers || !list)
		goto out;
	room = min(arg->count, MAX_PEERS);
	arg->count = u4_rails_list(peers, MAX_PEERS);
	room = min(arg->count, room);
	for (i = 0; i < room; i++)
		list[i] = (struct usb4_ring_peer) {
			.node_low = peers[i].node.low,
			.node_high = peers[i].node.high,
			.state = peers[i].rails ? USB4_RING_PEER_UP :
						  USB4_RING_PEER_CONNECTING,
			.rails = peers[i].rails,
			.rate_mbps = peers[i].rate_mbps,
		};
	ret = u4_put_list(arg->peers, arg->stride, list, sizeof(*list), room);
out:
	kfree(list);
	kfree(peers);
	return ret;
}

int u4_list_cables(struct u4_client *client, void *data)
{
	struct usb4_ring_cables *arg = data;
	struct usb4_ring_cable *list;
	u32 room = arg->count;
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (!is_stride(arg->stride))
		return -EINVAL;
	list = kcalloc(MAX_PEERS, sizeof(*list), GFP_KERNEL);
	if (!list)
		return -ENOMEM;
	arg->count = u4_rails_cables(list, MAX_PEERS);
	ret = u4_put_list(arg->cables, arg->stride, list, sizeof(*list),
			  min(room, arg->count));
	kfree(list);
	return ret;
}
