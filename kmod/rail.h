/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Rails: cables to hosts that have this service, too.
 */
#ifndef USB4_RAIL_H
#define USB4_RAIL_H

#include <linux/completion.h>
#include <linux/dev_printk.h>
#include <linux/list.h>
#include <linux/printk.h>
#include <linux/workqueue.h>

#include "port.h"

/* Control messages that can wait; more are lost, as on the cable. */
#define INBOX		8

/* When to look for a ring or memory again that could not be had. */
#define RETRY_MS	2000

/* Bits of &u4_rail.events. */
enum {
	EVENT_CLOSE,		/* say BYE and end */
	EVENT_DOWN,		/* the core has given the link up */
	EVENT_STRANGE,		/* frames of an unknown session: @strange */
	EVENT_SHOW,		/* another join nonce is to be shown: @show */
	EVENT_JOINED,		/* the peer has given a nonce */
	EVENT_JUDGE,		/* the rules have changed (peers.c) */
	EVENT_SILENT,		/* the peer answers nothing on the rail */
	EVENT_STALLED,		/* the transmit ring does not move */
	EVENT_YIELD,		/* another rail has a use for the rings: @wanted */
};

/**
 * struct u4_rail - one cable's worth of rings and paths
 * @list: on the list of rails
 * @number: what the core knows it by
 * @svc: the service it belongs to
 * @xd: the host at the other end
 * @work: everything that is done for it
 * @closed: @work has ended, paths and rings are gone
 * @inbox: control messages not yet looked at, under u4_rails_lock
 * @inbox_head: the first of them
 * @inbox_count: how many
 * @control_dropped: control messages it had no room for, under u4_rails_lock
 * @events: what else has happened: EVENT_*
 * @strange: tag of frames of an unknown session
 * @show: join nonce to be shown
 * @running: between u4_rail_start() and u4_rail_stop()
 * @peer: what the last session was agreed with, under u4_rails_lock
 * @node_known: there has been one, under u4_rails_lock
 * @link_up: it carries data, under u4_rails_lock
 * @claimed: node id the other end has last given, under u4_rails_lock
 * @barred: our rules do not let that in
 * @port: rings and buffers
 * @opened: @port has them
 * @heard_at: when the other end has last said something that is no refusal, or
 *	@opened began, in jiffies; under u4_rails_lock
 * @wanted: the error of another rail that could have them instead, with
 *	EVENT_YIELD; under u4_rails_lock
 * @complained: it has been said that it has not
 * @error: why it has not, or why there was no link for its last session; 0 if
 *	it has, and there was
 * @ended: why its last session has ended, or %NULL
 * @rest_until: no session before this time, in jiffies
 * @out_hop: HopID of our frames
 * @in_hop: HopID of the peer's, 0 if none is reserved
 * @fsm: the state machine, %NULL if there is none
 * @fsm_memory: where it lives
 * @control_rx: control messages taken out of the inbox
 * @control_malformed: those of them that were not of the protocol
 * @refused: why there is no session, as was last said; 0 if there may be one
 * @lowest: the lowest version of frames the other end speaks, if that is why
 * @highest: the highest
 * @order: what it wants
 * @packet: a control message on its way out
 */
struct u4_rail {
	struct list_head list;
	u32 number;
	struct tb_service *svc;
	struct tb_xdomain *xd;
	struct delayed_work work;
	struct completion closed;

	u8 inbox[INBOX][USB4_CORE_CONTROL];
	u32 inbox_head;
	u32 inbox_count;
	u64 control_dropped;
	unsigned long events;
	u64 strange;
	u64 show;
	bool running;
	bool node_known;
	bool link_up;
	struct usb4_core_peer peer;
	struct usb4_core_node claimed;
	bool barred;

	struct u4_port port;
	bool opened;
	unsigned long heard_at;
	int wanted;
	bool complained;
	int error;
	const char *ended;
	unsigned long rest_until;
	int out_hop;
	int in_hop;
	struct usb4_core_rail *fsm;
	void *fsm_memory;
	u64 control_rx;
	u64 control_malformed;
	u32 refused;
	u32 lowest;
	u32 highest;
	struct usb4_core_order order;
	void *packet;
};

/*
 * The kernel log has one line for each event of a link, and one when a rail
 * begins to wait for something. A neighbour, who may have us say things, must not
 * fill it.
 */
#define u4_event(format, ...) \
	pr_info_ratelimited(format, ##__VA_ARGS__)
#define u4_trouble(rail, format, ...) \
	dev_warn_ratelimited(&(rail)->svc->dev, format, ##__VA_ARGS__)

extern struct list_head u4_rails;
extern spinlock_t u4_rails_lock;

/* Room for why there is no session, in words. */
#define U4_REFUSAL	80

/* rail.c */
void u4_rail_kick(struct u4_rail *rail);
void u4_rail_refusal(const struct u4_rail *rail, char text[U4_REFUSAL]);

/* rings.c */
bool u4_rings_get(struct u4_rail *rail);
void u4_rings_put(struct u4_rail *rail);
void u4_rings_ask(struct u4_rail *rail);
void u4_rings_give_way(struct u4_rail *rail);

/* rails.c */
int u4_rails_add(struct u4_rail *rail);
void u4_rails_del(struct u4_rail *rail);

/* join.c */
void u4_join_up(struct u4_rail *rail, struct usb4_core_peer *peer);
void u4_join_down(struct u4_rail *rail, u32 reason);
void u4_join_take(struct u4_rail *rail);
void u4_join_forget(struct u4_rail *rail);

#endif /* USB4_RAIL_H */
