// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The link of this host to itself, made when somebody first wants it.
 *
 * In C for the buffers it needs; a link like any other else, whose frames are
 * copied from transmit to receive buffers.
 */
#include <linux/mutex.h>
#include <linux/slab.h>

#include "port.h"

/* Tag of all its frames: there is only ever one session. */
#define LOOP_TAG	1

/* What memory is taken to carry until that is measured. */
#define LOOP_MBPS	40000

/* The one rail it has. */
#define LOOP_RAIL	0

/**
 * struct u4_loop_entry - a frame on its way from this host to itself
 * @token: the receive buffer it was copied to
 * @slot: the transmit buffer it came from
 * @len: bytes
 */
struct u4_loop_entry {
	u32 token;
	u16 slot;
	u16 len;
};

/**
 * struct u4_loop - frames on their way; used by the link's owner
 * @head: place of the first one
 * @count: how many
 * @entries: the frames, a ring
 */
struct u4_loop {
	u32 head;
	u32 count;
	struct u4_loop_entry entries[];
};

static DEFINE_MUTEX(loop_lock);
static struct u4_link *loop_link;

static struct u4_loop_entry *entry_at(struct u4_loop *loop, u32 i)
{
	return &loop->entries[(loop->head + i) % u4_limits.rx_ring];
}

/**
 * u4_loop_post() - send a frame
 * @link: the link of this host to itself
 * @slot: its buffer
 * @len: bytes
 *
 * No room is loss, from which the core recovers.
 */
void u4_loop_post(struct u4_link *link, u16 slot, u16 len)
{
	struct u4_pool *pool = link->pools[LOOP_RAIL];
	struct u4_loop *loop = link->loop;
	u32 token;

	if (loop->count == u4_limits.rx_ring || !u4_pool_pop(pool, &token))
		return;
	memcpy(pool->frames[token].data, link->tx[slot], len);
	*entry_at(loop, loop->count++) = (struct u4_loop_entry) {
		.token = token,
		.slot = slot,
		.len = len,
	};
}

/**
 * u4_loop_poll() - take what has arrived
 * @link: the link of this host to itself
 * @arrived: where to put it
 */
void u4_loop_poll(struct u4_link *link, struct usb4_core_arrived *arrived)
{
	struct u4_pool *pool = link->pools[LOOP_RAIL];
	struct u4_loop *loop = link->loop;
	struct u4_loop_entry *entry;
	u32 i;

	for (i = 0; i < USB4_CORE_BATCH && loop->count; i++) {
		entry = entry_at(loop, 0);
		arrived->frames[i] = (struct usb4_core_frame) {
			.bytes = pool->frames[entry->token].data,
			.token = entry->token,
			.len = entry->len,
		};
		arrived->sent[i] = (struct usb4_core_sent) {
			.slot = entry->slot,
		};
		loop->head = (loop->head + 1) % u4_limits.rx_ring;
		loop->count--;
	}
	arrived->frame_count = i;
	arrived->sent_count = i;
	atomic_add(i, &link->held[LOOP_RAIL]);
}

static void end(struct u4_link *link)
{
	struct u4_loop *loop = link->loop;

	u4_link_stop(link);
	kvfree(loop);
}

static struct u4_link *begin(void)
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
	struct u4_link *link;
	int ret = -ENOMEM;

	link = u4_link_new(&peer);
	if (IS_ERR(link))
		return link;
	link->loop = kvzalloc(struct_size(link->loop, entries,
					  u4_limits.rx_ring), GFP_KERNEL);
	link->pools[LOOP_RAIL] = u4_pool_new();
	if (!link->loop || !link->pools[LOOP_RAIL])
		goto err_link;
	ret = usb4_core_link_attach(u4_core, link->core, LOOP_RAIL, &peer);
	if (ret)
		goto err_link;
	u4_link_go(link);
	return link;

err_link:
	end(link);
	return ERR_PTR(ret);
}

/**
 * u4_loop_start() - have a link to this host
 *
 * Return: 0, or an error.
 */
int u4_loop_start(void)
{
	struct u4_link *link;
	int ret = 0;

	mutex_lock(&loop_lock);
	if (!loop_link) {
		link = begin();
		if (IS_ERR(link))
			ret = PTR_ERR(link);
		else
			loop_link = link;
	}
	mutex_unlock(&loop_lock);
	return ret;
}

/**
 * u4_loop_stop() - end the link to this host, if there is one
 */
void u4_loop_stop(void)
{
	if (loop_link)
		end(loop_link);
	loop_link = NULL;
}
