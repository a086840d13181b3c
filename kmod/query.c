// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What a client may ask: what the device is, who the peers are, who has sent.
 *
 * In C because the answers are structures of the user interface.
 */
#include <linux/string.h>
#include <linux/uaccess.h>

#include "client.h"

/* Peers listed in one call. */
#define MAX_PEERS	64

int u4_info(struct u4_client *client, void *data)
{
	struct usb4_ring_info *arg = data;

	if (arg->flags)
		return -EOPNOTSUPP;
	*arg = (struct usb4_ring_info) {
		.size = arg->size,
		.abi_version = USB4_RING_ABI_VERSION,
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
	ret = usb4_core_source(u4_core, arg->src, &addr);
	if (ret)
		return ret;
	u4_to_user(&arg->addr, &addr);
	return 0;
}

static int put_peers(struct usb4_ring_peers *arg, u32 count,
		     const struct u4_peer *peers)
{
	u8 __user *to = u64_to_user_ptr(arg->peers);
	struct usb4_ring_peer peer;
	size_t known = min_t(size_t, arg->stride, sizeof(peer));
	u32 i;

	for (i = 0; i < count; i++, to += arg->stride) {
		peer = (struct usb4_ring_peer) {
			.node_low = peers[i].node.low,
			.node_high = peers[i].node.high,
			.state = peers[i].rails ? USB4_RING_PEER_UP :
						  USB4_RING_PEER_CONNECTING,
			.rails = peers[i].rails,
			.rate_mbps = peers[i].rate_mbps,
		};
		if (copy_to_user(to, &peer, known) ||
		    clear_user(to + known, arg->stride - known))
			return -EFAULT;
	}
	return 0;
}

int u4_list_peers(struct u4_client *client, void *data)
{
	struct usb4_ring_peers *arg = data;
	struct u4_peer *peers;
	u32 room;
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	/* An element is no larger than a page, however it may grow. */
	if (!arg->stride || arg->stride > PAGE_SIZE)
		return -EINVAL;
	peers = kcalloc(MAX_PEERS, sizeof(*peers), GFP_KERNEL);
	if (!peers)
		return -ENOMEM;
	room = min(arg->count, MAX_PEERS);
	arg->count = u4_rails_list(peers, MAX_PEERS);
	ret = put_peers(arg, min(arg->count, room), peers);
	kfree(peers);
	return ret;
}
