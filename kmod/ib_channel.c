// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Datagrams between the kernels of two hosts.
 *
 * In C because it is for C. A channel is a client of the ring API that is no
 * process': one queue pair with a number that nobody else can have, its queues, and
 * slots of kernel memory through which everything is copied. The core is called by
 * the work item alone, since it may not be in interrupts of any kind.
 *
 * Nothing here waits for a host (ib_channel_peers.c): what it has no slot for waits
 * with whoever transmits, who goes on with the others.
 */
#include <linux/jiffies.h>
#include <linux/log2.h>
#include <linux/unaligned.h>
#include <rdma/ib_verbs.h>

#include "ib_channel.h"

/* Bytes of the header in front of what is received. */
#define GRH_BYTES	40

/* Where a slot begins, as a multiple. */
#define SLOT_BYTES	ALIGN(U4_CHANNEL_BYTES + GRH_BYTES, 64)

/* The completion queue has room for whatever completes. */
#define CQ_DEPTH	roundup_pow_of_two(U4_CHANNEL_TX + U4_CHANNEL_RX)

/* Its only protection domain. */
#define CHANNEL_PD	1

/*
 * Nobody refuses datagrams for lack of a receive. One that does so is given up by its
 * flow a little later than here: codes for 4.3 s, and for 6 times 491 ms.
 */
#define REFUSAL_TIME		20
#define REFUSAL_RNR_TIME	31
#define REFUSALS		6

/* Completions in one go. */
#define BUDGET		U4_CHANNEL_RX

/* Datagrams of all channels that were not sent, or not received, ever. */
atomic64_t u4_channel_lost;

static u8 *tx_slot(struct u4_channel *channel, u32 slot)
{
	return channel->memory + (size_t)slot * SLOT_BYTES;
}

static u8 *rx_slot(struct u4_channel *channel, u32 slot)
{
	return tx_slot(channel, U4_CHANNEL_TX + slot);
}

static void *entry_at(u64 *words, u64 index, u32 depth, size_t size)
{
	u8 *entries = (u8 *)&words[USB4_RING_ENTRIES_WORD];

	return entries + (index & (depth - 1)) * size;
}

/* Sending */

/**
 * u4_channel_slot() - room for a datagram; for whoever transmits
 * @channel: the channel
 * @node: the host it goes to
 * @slot: where to put the slot's number
 *
 * Return: where to write it, or an error: -EAGAIN if there is no room for that host
 * now, and transmit() is called when there may be; others if it is to be dropped.
 */
u8 *u4_channel_slot(struct u4_channel *channel,
		    const struct usb4_core_node *node, u32 *slot)
{
	int ret = u4_channel_peer_ready(channel, node);

	if (ret) {
		if (ret != -EAGAIN)
			atomic64_inc(&u4_channel_lost);
		return ERR_PTR(ret);
	}
	*slot = find_first_bit(channel->free, U4_CHANNEL_TX);
	return tx_slot(channel, *slot);
}

static void post_send(struct u4_channel *channel, u32 slot)
{
	struct usb4_ring_sqe *sqe = entry_at(channel->sq_words, channel->sends,
					     U4_CHANNEL_TX, sizeof(*sqe));

	*sqe = (struct usb4_ring_sqe) {
		.op = USB4_RING_OP_SEND,
		.ah = channel->peers[channel->owner[slot]].ah,
		.user_data = slot,
		.local_addr = (uintptr_t)tx_slot(channel, slot),
		.local_key = channel->key,
		.len = channel->len[slot],
		.args[0] = channel->qkey,
	};
	channel->sends++;
	/* After the entry. There are as many places as slots. */
	smp_store_release(&channel->sq_words[USB4_RING_PRODUCER_WORD],
			  channel->sends);
	channel->posted = true;
}

/**
 * u4_channel_send() - send a datagram; for whoever transmits
 * @channel: the channel
 * @node: the host it goes to, as u4_channel_slot() was told just before
 * @slot: the slot it gave
 * @len: bytes
 */
void u4_channel_send(struct u4_channel *channel,
		     const struct usb4_core_node *node, u32 slot, u32 len)
{
	struct u4_channel_peer *peer = u4_channel_peer_of(channel, node);

	__clear_bit(slot, channel->free);
	channel->owner[slot] = peer - channel->peers;
	channel->len[slot] = len;
	if (!peer->busy++)
		peer->used = jiffies;
	post_send(channel, slot);
}

static void finish(struct u4_channel *channel, u32 slot)
{
	struct u4_channel_peer *peer = &channel->peers[channel->owner[slot]];
	/* What ends without a handle was flushed. */
	bool lost = !peer->made;

	if (lost)
		atomic64_inc(&u4_channel_lost);
	u4_channel_peer_done(peer);
	channel->ops->sent(channel, slot, lost);
	__set_bit(slot, channel->free);
}

static void sent(struct u4_channel *channel, const struct usb4_ring_cqe *cqe)
{
	u32 slot = cqe->user_data;

	if (WARN_ON_ONCE(slot >= U4_CHANNEL_TX ||
			 test_bit(slot, channel->free)))
		return;
	if (cqe->status != USB4_RING_STATUS_FLUSHED) {
		finish(channel, slot);
		return;
	}
	/* The link had no room; or it has no handle any more. */
	if (bitmap_empty(channel->refused, U4_CHANNEL_TX))
		channel->repost = jiffies + 1;
	__set_bit(slot, channel->refused);
}

/* Whether some are left, to be posted later. */
static bool repost(struct u4_channel *channel)
{
	bool due = time_after_eq(jiffies, channel->repost);
	u32 slot;

	for_each_set_bit(slot, channel->refused, U4_CHANNEL_TX) {
		bool made = channel->peers[channel->owner[slot]].made;

		if (made && !due)
			continue;
		__clear_bit(slot, channel->refused);
		if (made)
			post_send(channel, slot);
		else
			finish(channel, slot);
	}
	return !bitmap_empty(channel->refused, U4_CHANNEL_TX);
}

/* Receiving */

static void post_receive(struct u4_channel *channel, u32 slot)
{
	struct usb4_ring_rqe *rqe = entry_at(channel->rq_words,
					     channel->receives, U4_CHANNEL_RX,
					     sizeof(*rqe));

	*rqe = (struct usb4_ring_rqe) {
		.user_data = slot,
		.addr = (uintptr_t)rx_slot(channel, slot),
		.local_key = channel->key,
		.len = U4_CHANNEL_BYTES + GRH_BYTES,
	};
	channel->receives++;
	/* After the entry. There are as many places as slots. */
	smp_store_release(&channel->rq_words[USB4_RING_PRODUCER_WORD],
			  channel->receives);
	channel->posted = true;
}

/* The header is written by the core, which knows whose link it came by. */
static void received(struct u4_channel *channel,
		     const struct usb4_ring_cqe *cqe)
{
	u32 slot = cqe->user_data;
	const struct ib_grh *grh;
	u8 mac[ETH_ALEN];

	if (WARN_ON_ONCE(slot >= U4_CHANNEL_RX))
		return;
	if (cqe->status == USB4_RING_STATUS_OK && cqe->src == channel->number &&
	    cqe->len >= GRH_BYTES &&
	    cqe->len <= U4_CHANNEL_BYTES + GRH_BYTES) {
		grh = (const struct ib_grh *)rx_slot(channel, slot);
		u4_guid_to_mac(be64_to_cpu(grh->sgid.global.interface_id), mac);
		u4_channel_peers_heard(channel, mac);
		channel->ops->received(channel, mac, (const u8 *)(grh + 1),
				       cqe->len - GRH_BYTES);
	}
	post_receive(channel, slot);
}

/* Its work */

/* Whether there may be more. */
static bool take_completions(struct u4_channel *channel)
{
	u64 *words = channel->cq_words;
	struct usb4_ring_cqe cqe;
	u32 count = 0;

	while (count < BUDGET) {
		/* Before the entry. */
		if (smp_load_acquire(&words[USB4_RING_PRODUCER_WORD]) ==
		    channel->taken)
			return false;
		cqe = *(struct usb4_ring_cqe *)entry_at(words, channel->taken,
							CQ_DEPTH, sizeof(cqe));
		channel->taken++;
		/* After the entry: its place may be filled again. */
		smp_store_release(&words[USB4_RING_CONSUMER_WORD],
				  channel->taken);
		if (cqe.flags & USB4_RING_CQE_RECV)
			received(channel, &cqe);
		else
			sent(channel, &cqe);
		count++;
	}
	return true;
}

static void channel_work(struct work_struct *work)
{
	struct u4_channel *channel =
		container_of(work, struct u4_channel, work.work);
	unsigned long next;
	bool more;

	more = take_completions(channel);
	next = u4_channel_peers_look(channel);
	if (repost(channel))
		next = 1;
	channel->ops->transmit(channel);
	if (channel->posted) {
		channel->posted = false;
		u4_verbs_submit(channel->ep);
	}
	next = min(next, u4_channel_peers_look(channel));
	if (more ||
	    u4_verbs_arm_cq(channel->client, channel->cq, false) > 0)
		u4_channel_kick(channel);
	else if (next != MAX_JIFFY_OFFSET)
		/* Does nothing if it was kicked meanwhile. */
		queue_delayed_work(channel->workqueue, &channel->work, next);
}

/**
 * u4_channel_kick() - have a channel transmit
 * @channel: the channel
 *
 * In any context.
 */
void u4_channel_kick(struct u4_channel *channel)
{
	mod_delayed_work(channel->workqueue, &channel->work, 0);
}

/* With spinlocks held. */
static void completed(void *context)
{
	u4_channel_kick(context);
}

/* Its making and end */

static int make_ready(struct u4_channel *channel)
{
	static const u32 states[] = {
		USB4_CORE_QPS_INIT, USB4_CORE_QPS_RTR, USB4_CORE_QPS_RTS,
	};
	struct usb4_core_qp_attr attr = {
		.mask = USB4_CORE_QP_STATE | USB4_CORE_QP_QKEY |
			USB4_CORE_QP_TIMEOUT | USB4_CORE_QP_RETRY_CNT |
			USB4_CORE_QP_RNR_RETRY | USB4_CORE_QP_MIN_RNR_TIMER,
		.qkey = channel->qkey,
		.timeout = REFUSAL_TIME,
		.rnr_retry = REFUSALS,
		.min_rnr_timer = REFUSAL_RNR_TIME,
	};
	size_t i;
	int ret;

	for (i = 0; i < ARRAY_SIZE(states); i++) {
		attr.state = states[i];
		ret = u4_verbs_modify_qp(channel->client, channel->ep, &attr);
		if (ret)
			return ret;
	}
	return 0;
}

static int make_queues(struct u4_channel *channel)
{
	struct u4_cq_spec cq_spec = {
		.depth = CQ_DEPTH,
		.event_fd = -1,
		.notify = completed,
		.context = channel,
	};
	struct u4_ep_spec spec = {
		/* QPN 0 is enum ib_qp_type's SMI, 1 its GSI. */
		.kind = channel->number,
		.sq_depth = U4_CHANNEL_TX,
		.rq_depth = U4_CHANNEL_RX,
		.handles = U4_CHANNEL_PEERS,
		.pd = CHANNEL_PD,
	};
	struct u4_verbs_queue cq;
	struct u4_verbs_queue sq;
	struct u4_verbs_queue rq;
	u32 qpn;
	int ret;

	ret = u4_verbs_create_cq(channel->client, &cq_spec, &channel->cq, &cq);
	if (ret)
		return ret;
	spec.send_cq = channel->cq;
	spec.recv_cq = channel->cq;
	ret = u4_verbs_create_qp(channel->client, &spec, &channel->ep, &qpn,
				 &sq, &rq);
	if (ret)
		return ret;
	channel->cq_words = cq.words;
	channel->sq_words = sq.words;
	channel->rq_words = rq.words;
	return 0;
}

/**
 * u4_channel_open() - make a channel
 * @channel: the channel, zeroed
 * @ops: whose it is
 * @number: of its queue pair: 0 or 1
 * @qkey: what its datagrams show, there as here
 *
 * Return: 0 or an error: -ENOSPC if there is one with that number.
 */
int u4_channel_open(struct u4_channel *channel,
		    const struct u4_channel_ops *ops, u32 number, u32 qkey)
{
	size_t bytes = SLOT_BYTES * (U4_CHANNEL_TX + U4_CHANNEL_RX);
	struct u4_keys keys;
	u32 slot;
	int ret;

	channel->ops = ops;
	channel->number = number;
	channel->qkey = qkey;
	bitmap_fill(channel->free, U4_CHANNEL_TX);
	INIT_DELAYED_WORK(&channel->work, channel_work);
	channel->workqueue = alloc_workqueue("usb4_rdma_ib/%u", WQ_UNBOUND, 1,
					     number);
	if (!channel->workqueue)
		return -ENOMEM;
	channel->client = u4_verbs_open_kernel();
	if (IS_ERR(channel->client)) {
		ret = PTR_ERR(channel->client);
		goto err_workqueue;
	}
	channel->memory = u4_verbs_reg_kernel(channel->client, bytes,
					      CHANNEL_PD, &keys);
	if (IS_ERR(channel->memory)) {
		ret = PTR_ERR(channel->memory);
		goto err_client;
	}
	channel->key = keys.local;
	ret = make_queues(channel);
	if (ret)
		goto err_client;
	for (slot = 0; slot < U4_CHANNEL_RX; slot++)
		post_receive(channel, slot);
	ret = make_ready(channel);
	if (ret)
		goto err_client;
	u4_channel_kick(channel);
	return 0;

err_client:
	/* With whatever it has. */
	u4_verbs_close(channel->client);
err_workqueue:
	destroy_workqueue(channel->workqueue);
	return ret;
}

/**
 * u4_channel_close() - end a channel
 * @channel: the channel
 *
 * What is on its way is lost. None of its functions is called when this returns, and
 * none may be called.
 */
void u4_channel_close(struct u4_channel *channel)
{
	disable_delayed_work_sync(&channel->work);
	/* With its objects; nothing is received, or told of, from then on. */
	u4_verbs_close(channel->client);
	destroy_workqueue(channel->workqueue);
}
