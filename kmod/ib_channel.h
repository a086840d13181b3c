/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Datagrams between the kernels of two hosts: what Ethernet frames (ib_netdev.c) and
 * management datagrams (ib_gsi.c) travel by.
 */
#ifndef USB4_IB_CHANNEL_H
#define USB4_IB_CHANNEL_H

#include <linux/atomic.h>
#include <linux/bitmap.h>
#include <linux/if_ether.h>
#include <linux/workqueue.h>

#include "verbs.h"

/* The longest datagram. */
#define U4_CHANNEL_BYTES	4096

/* Datagrams on their way, and room for such that arrive; powers of two. */
#define U4_CHANNEL_TX		64
#define U4_CHANNEL_RX		128

/* Hosts that datagrams are on their way to: as many as there are links. */
#define U4_CHANNEL_PEERS	16

/* Datagrams for one host that may wait for room. Whatever else comes is dropped. */
#define U4_CHANNEL_WAITING	64

struct u4_channel;

/**
 * struct u4_channel_ops - whose channel it is
 * @transmit: offers all that is to be sent; called after u4_channel_kick(), and
 *	whenever there is room again
 * @sent: a datagram has left its slot; or was lost, its host having been given up
 * @received: one has come from the same channel of the host with that address
 *
 * All of them are called by the channel's work item, so one at a time, and may sleep.
 */
struct u4_channel_ops {
	void (*transmit)(struct u4_channel *channel);
	void (*sent)(struct u4_channel *channel, u32 slot, bool lost);
	void (*received)(struct u4_channel *channel, const u8 *mac,
			 const u8 *data, u32 len);
};

/**
 * struct u4_channel_peer - a host that datagrams go to
 * @known: it is there
 * @made: there is a handle
 * @doubted: it has been given up, and nothing has come back since
 * @mac: its address
 * @node: the host
 * @ah: the handle that leads to it
 * @busy: slots that it has
 * @waiting: datagrams that this call of @transmit has found no room for
 * @used: when it last got a slot while it had none, or gave one back
 * @again: @doubted: not to be tried before
 * @rest: @doubted: how long it was left alone the last time
 */
struct u4_channel_peer {
	bool known;
	bool made;
	bool doubted;
	u8 mac[ETH_ALEN];
	struct usb4_core_node node;
	u32 ah;
	u32 busy;
	u32 waiting;
	unsigned long used;
	unsigned long again;
	unsigned long rest;
};

/**
 * struct u4_channel - a queue pair for datagrams, and buffers
 * @ops: whose it is
 * @work: does everything
 * @workqueue: where
 * @client: whose objects the others are
 * @number: the queue pair's, here and there
 * @qkey: what its datagrams show
 * @cq: completion queue
 * @ep: queue pair
 * @key: of @memory
 * @cq_words: the completion queue's memory
 * @sq_words: the submission queue's
 * @rq_words: the receive queue's
 * @taken: entries taken off the completion queue, ever
 * @sends: entries put on the submission queue, ever
 * @receives: entries put on the receive queue, ever
 * @posted: there are some that the core was not told of
 * @memory: slots to send from, then those to receive in
 * @free: which of the former nobody has
 * @owner: for each of the former, which of @peers it is for
 * @len: for each of them, bytes in it
 * @refused: which of them are to be posted again
 * @repost: not before
 * @peers: hosts that datagrams go to
 */
struct u4_channel {
	const struct u4_channel_ops *ops;
	struct delayed_work work;
	struct workqueue_struct *workqueue;
	struct u4_client *client;
	u32 number;
	u32 qkey;
	u32 cq;
	u32 ep;
	u32 key;
	u64 *cq_words;
	u64 *sq_words;
	u64 *rq_words;
	u64 taken;
	u64 sends;
	u64 receives;
	bool posted;
	u8 *memory;
	DECLARE_BITMAP(free, U4_CHANNEL_TX);
	u8 owner[U4_CHANNEL_TX];
	u32 len[U4_CHANNEL_TX];
	DECLARE_BITMAP(refused, U4_CHANNEL_TX);
	unsigned long repost;
	struct u4_channel_peer peers[U4_CHANNEL_PEERS];
};

/* ib_channel.c */
extern atomic64_t u4_channel_lost;

int u4_channel_open(struct u4_channel *channel,
		    const struct u4_channel_ops *ops, u32 number, u32 qkey);
void u4_channel_close(struct u4_channel *channel);
void u4_channel_kick(struct u4_channel *channel);
u8 *u4_channel_slot(struct u4_channel *channel,
		    const struct usb4_core_node *node, u32 *slot);
void u4_channel_send(struct u4_channel *channel,
		     const struct usb4_core_node *node, u32 slot, u32 len);

/* ib_channel_peers.c */
struct u4_channel_peer *u4_channel_peer_of(struct u4_channel *channel,
					   const struct usb4_core_node *node);
int u4_channel_peer_ready(struct u4_channel *channel,
			  const struct usb4_core_node *node);
void u4_channel_peer_done(struct u4_channel_peer *peer);
unsigned long u4_channel_peers_look(struct u4_channel *channel);
void u4_channel_peers_heard(struct u4_channel *channel, const u8 *mac);

/* The address that follows from a host's GUID, and back: EUI-64 */
static inline void u4_guid_to_mac(u64 guid, u8 *mac)
{
	mac[0] = (guid >> 56) ^ 2;
	mac[1] = guid >> 48;
	mac[2] = guid >> 40;
	mac[3] = guid >> 16;
	mac[4] = guid >> 8;
	mac[5] = guid;
}

static inline u64 u4_mac_to_guid(const u8 *mac)
{
	return (u64)(mac[0] ^ 2) << 56 | (u64)mac[1] << 48 |
	       (u64)mac[2] << 40 | 0xfffeULL << 24 | (u64)mac[3] << 16 |
	       (u64)mac[4] << 8 | mac[5];
}

#endif /* USB4_IB_CHANNEL_H */
