// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Datagrams between the kernels of two hosts.
 *
 * In C because it is for C. A channel is a client of the ring API that is no
 * process': one queue pair with a number that nobody else can have, its queues, and
 * slots of kernel memory through which everything is copied. The core is called by
 * the work item alone, since it may not be in interrupts of any kind.
 *
 * What cannot be sent soon is dropped: a host whose link has died must not keep the
 * slots that others need.
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

/* Slots that one host may have. */
#define PEER_SLOTS	(U4_CHANNEL_TX / 2)

/* A host that has given none back for so long gets no more. */
#define PATIENCE	(HZ / 10)

/* Completions in one go. */
#define BUDGET		U4_CHANNEL_RX

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

static bool is_node(const struct usb4_core_node *a,
		    const struct usb4_core_node *b)
{
	return a->low == b->low && a->high == b->high;
}

/* The peer's place: its own, a free one, or that of who was idle for longest. */
static struct u4_channel_peer *place_for(struct u4_channel *channel,
					 const struct usb4_core_node *node)
{
	struct u4_channel_peer *best = NULL;
	struct u4_channel_peer *peer;
	u32 i;

	for (i = 0; i < U4_CHANNEL_PEERS; i++) {
		peer = &channel->peers[i];
		if (peer->made && is_node(&peer->node, node))
			return peer;
		if (peer->busy || (best && !best->made))
			continue;
		if (!best || !peer->made || time_before(peer->used, best->used))
			best = peer;
	}
	return best;
}

static struct u4_channel_peer *get_peer(struct u4_channel *channel,
					const struct usb4_core_node *node)
{
	struct u4_channel_peer *peer = place_for(channel, node);
	int ret;

	if (!peer)
		return ERR_PTR(-EHOSTUNREACH);
	if (peer->made && is_node(&peer->node, node))
		return peer;
	if (peer->made)
		u4_verbs_destroy_ah(channel->client, channel->ep, peer->ah);
	peer->made = false;
	ret = u4_verbs_create_ah(channel->client, channel->ep, node,
				 channel->number, &peer->ah);
	if (ret)
		return ERR_PTR(-EHOSTUNREACH);
	peer->node = *node;
	peer->made = true;
	peer->used = jiffies;
	return peer;
}

/**
 * u4_channel_slot() - room for a datagram; for whoever transmits
 * @channel: the channel
 * @node: the host it goes to
 * @slot: where to put the slot's number
 *
 * Return: where to write it, or an error: -EAGAIN if there is no room now, and
 * transmit() is called when there may be; -EHOSTUNREACH if it is to be dropped.
 */
u8 *u4_channel_slot(struct u4_channel *channel,
		    const struct usb4_core_node *node, u32 *slot)
{
	struct u4_channel_peer *peer = get_peer(channel, node);

	if (IS_ERR(peer))
		return ERR_CAST(peer);
	*slot = find_first_bit(channel->free, U4_CHANNEL_TX);
	if (*slot == U4_CHANNEL_TX || peer->busy >= PEER_SLOTS) {
		if (time_after(jiffies, peer->used + PATIENCE))
			return ERR_PTR(-EHOSTUNREACH);
		channel->blocked = true;
		return ERR_PTR(-EAGAIN);
	}
	return tx_slot(channel, *slot);
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
	struct u4_channel_peer *peer = place_for(channel, node);
	struct usb4_ring_sqe *sqe = entry_at(channel->sq_words, channel->sends,
					     U4_CHANNEL_TX, sizeof(*sqe));

	__clear_bit(slot, channel->free);
	channel->owner[slot] = peer - channel->peers;
	if (!peer->busy++)
		peer->used = jiffies;
	*sqe = (struct usb4_ring_sqe) {
		.op = USB4_RING_OP_SEND,
		.ah = peer->ah,
		.user_data = slot,
		.local_addr = (uintptr_t)tx_slot(channel, slot),
		.local_key = channel->key,
		.len = len,
		.args[0] = channel->qkey,
	};
	channel->sends++;
	/* After the entry. There are as many places as slots. */
	smp_store_release(&channel->sq_words[USB4_RING_PRODUCER_WORD],
			  channel->sends);
	channel->posted = true;
}

static void sent(struct u4_channel *channel, u32 slot)
{
	struct u4_channel_peer *peer;

	if (WARN_ON_ONCE(slot >= U4_CHANNEL_TX ||
			 test_bit(slot, channel->free)))
		return;
	peer = &channel->peers[channel->owner[slot]];
	peer->busy--;
	peer->used = jiffies;
	if (channel->ops->sent)
		channel->ops->sent(channel, slot);
	__set_bit(slot, channel->free);
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
			sent(channel, cqe.user_data);
		count++;
	}
	return true;
}

static void channel_work(struct work_struct *work)
{
	struct u4_channel *channel =
		container_of(work, struct u4_channel, work.work);
	bool more;

	more = take_completions(channel);
	channel->blocked = false;
	channel->ops->transmit(channel);
	if (channel->posted) {
		channel->posted = false;
		u4_verbs_submit(channel->ep);
	}
	if (more ||
	    u4_verbs_arm_cq(channel->client, channel->cq, false) > 0)
		u4_channel_kick(channel);
	else if (channel->blocked)
		/* Does nothing if it was kicked meanwhile. */
		queue_delayed_work(channel->workqueue, &channel->work,
				   PATIENCE + 1);
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
		.mask = USB4_CORE_QP_STATE | USB4_CORE_QP_QKEY,
		.qkey = channel->qkey,
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
