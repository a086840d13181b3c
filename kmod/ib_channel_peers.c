// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The hosts that a channel's datagrams go to, and what each may take up.
 *
 * In C because it is for C. A host has a share of the slots. One that gives none back
 * is given up: what it has is dropped, and so is what comes for it until it is tried
 * again, which is after a while, or when it is heard of.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/etherdevice.h>
#include <linux/jiffies.h>

#include "ib_channel.h"

/*
 * Slots that one host may have, and those of them that nobody else can take: a share
 * of half of all slots. The other half is for whoever comes.
 */
#define PEER_SLOTS	(U4_CHANNEL_TX / 4)
#define PEER_OWN	(U4_CHANNEL_TX / 2 / U4_CHANNEL_PEERS)

/*
 * A host that has slots and gives none back for so long is given up. It gives back
 * within microseconds, and within some 100 ms where frames are lost one after the
 * other; ARP repeats itself after a second, and ib_cm after some.
 */
#define PATIENCE	(2 * HZ)

/*
 * How long it is left alone then: twice as long each time. Each attempt takes a flow
 * of its link, which comes back only when the host does, and 256 such last for hours.
 */
#define SHORTEST_REST	HZ
#define LONGEST_REST	(64 * HZ)

static bool is_node(const struct usb4_core_node *a,
		    const struct usb4_core_node *b)
{
	return a->low == b->low && a->high == b->high;
}

/**
 * u4_channel_peer_of() - a host's place
 * @channel: the channel
 * @node: the host
 *
 * Return: its own place, a free one, or that of who was idle for longest; or %NULL.
 */
struct u4_channel_peer *u4_channel_peer_of(struct u4_channel *channel,
					   const struct usb4_core_node *node)
{
	struct u4_channel_peer *best = NULL;
	struct u4_channel_peer *peer;
	u32 i;

	for (i = 0; i < U4_CHANNEL_PEERS; i++) {
		peer = &channel->peers[i];
		if (peer->known && is_node(&peer->node, node))
			return peer;
		if (peer->busy || (best && !best->known))
			continue;
		if (!best || !peer->known || time_before(peer->used, best->used))
			best = peer;
	}
	return best;
}

/* Entries may still name a handle that is gone, and must not mean another one. */
static bool is_clearing(struct u4_channel *channel)
{
	u32 i;

	for (i = 0; i < U4_CHANNEL_PEERS; i++)
		if (channel->peers[i].busy && !channel->peers[i].made)
			return true;
	return false;
}

static void forget_ah(struct u4_channel *channel, struct u4_channel_peer *peer)
{
	if (peer->made)
		u4_verbs_destroy_ah(channel->client, channel->ep, peer->ah);
	peer->made = false;
}

static struct u4_channel_peer *get_peer(struct u4_channel *channel,
					const struct usb4_core_node *node)
{
	struct u4_channel_peer *peer = u4_channel_peer_of(channel, node);

	if (!peer || (peer->known && is_node(&peer->node, node)))
		return peer;
	forget_ah(channel, peer);
	*peer = (struct u4_channel_peer) {
		.known = true,
		.node = *node,
		.used = jiffies,
	};
	u4_guid_to_mac(u4_verbs_guid(node), peer->mac);
	return peer;
}

static int make_ah(struct u4_channel *channel, struct u4_channel_peer *peer)
{
	if (peer->made)
		return 0;
	if (peer->doubted && time_before(jiffies, peer->again))
		return -EHOSTUNREACH;
	if (is_clearing(channel))
		return -EAGAIN;
	if (u4_verbs_create_ah(channel->client, channel->ep, &peer->node,
			       channel->number, &peer->ah))
		return -EHOSTUNREACH;
	peer->made = true;
	return 0;
}

/* One that is doubted has to give back what it has before it gets another. */
static bool has_share(struct u4_channel *channel,
		      const struct u4_channel_peer *peer)
{
	u32 free = bitmap_weight(channel->free, U4_CHANNEL_TX);

	if (peer->doubted)
		return !peer->busy && free;
	if (peer->busy < PEER_OWN)
		return free;
	return peer->busy < PEER_SLOTS && free > PEER_OWN * U4_CHANNEL_PEERS;
}

/**
 * u4_channel_peer_ready() - whether a host can be sent a datagram
 * @channel: the channel
 * @node: the host
 *
 * Return: 0; -EAGAIN if there is no room for it now; another error if it is to be
 * dropped.
 */
int u4_channel_peer_ready(struct u4_channel *channel,
			  const struct usb4_core_node *node)
{
	struct u4_channel_peer *peer = get_peer(channel, node);
	int ret = peer ? make_ah(channel, peer) : -EHOSTUNREACH;

	if (!ret && !has_share(channel, peer))
		ret = -EAGAIN;
	if (ret == -EAGAIN && peer->waiting++ >= U4_CHANNEL_WAITING)
		ret = -ENOBUFS;
	return ret;
}

/**
 * u4_channel_peer_done() - a host gives back a slot
 * @peer: the host
 */
void u4_channel_peer_done(struct u4_channel_peer *peer)
{
	/* What ends without a handle was flushed. */
	if (peer->made && peer->doubted)
		pr_info_ratelimited("host " U4_NODE_FMT " takes datagrams again\n",
				    peer->node.high, peer->node.low);
	if (peer->made) {
		peer->doubted = false;
		peer->rest = 0;
	}
	peer->busy--;
	peer->used = jiffies;
}

/* What it has completes at once, as flushed. */
static void give_up(struct u4_channel *channel, struct u4_channel_peer *peer)
{
	if (!peer->doubted)
		pr_notice_ratelimited("host " U4_NODE_FMT " takes no datagrams: %u are dropped, and more until it does\n",
				      peer->node.high, peer->node.low,
				      peer->busy);
	peer->doubted = true;
	peer->rest = clamp(2 * peer->rest, SHORTEST_REST, LONGEST_REST);
	peer->again = jiffies + peer->rest;
	forget_ah(channel, peer);
}

/**
 * u4_channel_peers_look() - give up whoever it is time for
 * @channel: the channel
 *
 * Return: in how many jiffies to look again, or %MAX_JIFFY_OFFSET.
 */
unsigned long u4_channel_peers_look(struct u4_channel *channel)
{
	unsigned long next = MAX_JIFFY_OFFSET;
	struct u4_channel_peer *peer;
	unsigned long end;
	u32 i;

	for (i = 0; i < U4_CHANNEL_PEERS; i++) {
		peer = &channel->peers[i];
		peer->waiting = 0;
		if (!peer->busy || !peer->made)
			continue;
		end = peer->used + PATIENCE;
		if (time_after_eq(jiffies, end))
			give_up(channel, peer);
		else
			next = min(next, end - jiffies);
	}
	return next;
}

/**
 * u4_channel_peers_heard() - a host has sent something, so may as well be tried again
 * @channel: the channel
 * @mac: its address
 */
void u4_channel_peers_heard(struct u4_channel *channel, const u8 *mac)
{
	struct u4_channel_peer *peer;
	u32 i;

	for (i = 0; i < U4_CHANNEL_PEERS; i++) {
		peer = &channel->peers[i];
		if (peer->doubted && ether_addr_equal(peer->mac, mac))
			peer->again = jiffies;
	}
}
