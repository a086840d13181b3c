/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Rails as a link sees them: rings, and the buffers that travel on them.
 */
#ifndef USB4_PORT_H
#define USB4_PORT_H

#include <linux/kref.h>
#include <linux/llist.h>
#include <linux/spinlock.h>

#include "usb4_rdma.h"

/**
 * struct u4_frame - a frame buffer and its place in a ring
 * @ring: what tb_ring_*() know it by
 * @done: transmit: on the list of consumed descriptors (&u4_port.done)
 * @port: transmit: its port
 * @data: the buffer, of U4_FRAME_SIZE bytes; a transmit buffer is its link's
 * @busy: transmit: the ring has it
 */
struct u4_frame {
	struct ring_frame ring;
	struct llist_node done;
	struct u4_port *port;
	u8 *data;
	bool busy;
};

/**
 * struct u4_pool - receive buffers of a rail
 * @ref: of the port, and of the link its frames have gone to
 * @dev: the device the buffers are mapped for, if they are
 * @mapped: how many of them are
 * @frames: the buffers
 * @lock: protects @free and @free_count
 * @free: buffers that neither a ring nor the core has
 * @free_count: how many
 */
struct u4_pool {
	struct kref ref;
	struct device *dev;
	u32 mapped;
	struct u4_frame *frames;
	spinlock_t lock;	/* free, free_count */
	u32 *free;
	u32 free_count;
};

/**
 * struct u4_counters - what has happened on a rail's rings
 * @tx_frames: frames posted
 * @tx_bytes: bytes of them
 * @rx_frames: frames taken
 * @rx_bytes: bytes of them
 * @rx_crc_errors: frames the controller flagged: their checksum was wrong
 * @rx_overruns: frames the controller flagged: too long
 * @tx_lost: frames lost in sessions that have ended
 * @interrupts: interrupts of the receive ring
 * @interrupts_lost: those that have not come
 * @tx_kicks: doorbells rung again since the transmit ring did not move
 * @rx_kicks: doorbells rung again since the peer was silent
 * @stalls: how often kicks have not helped
 *
 * Each is written by one at a time: the rail's link's owner, its work item, or
 * its interrupt. Whoever reads sees some value it had.
 */
struct u4_counters {
	u64 tx_frames;
	u64 tx_bytes;
	u64 rx_frames;
	u64 rx_bytes;
	u64 rx_crc_errors;
	u64 rx_overruns;
	u64 tx_lost;
	u64 interrupts;
	u64 interrupts_lost;
	u64 tx_kicks;
	u64 rx_kicks;
	u64 stalls;
};

static inline void u4_count(u64 *counter, u64 more)
{
	WRITE_ONCE(*counter, *counter + more);
}

/**
 * struct u4_port - a rail's rings
 * @rail: the rail
 * @dev: the device buffers are mapped for
 * @tx: transmit ring
 * @rx: receive ring
 * @tx_running: the transmit ring is started: the rail belongs to a link
 * @rx_running: the receive ring is: the rail has paths
 * @tx_frames: places of the link's transmit buffers in the ring, by slot
 * @tx_mapped: how many of them are mapped
 * @pool: receive buffers
 * @done: transmit buffers consumed, as far as callbacks told; see port.c
 * @posted: transmit buffers in the ring
 * @masked: bit 0: the receive ring's interrupt is masked
 * @moved: when the transmit ring has last moved or been kicked, in jiffies
 * @kicks_in_row: kicks since it has moved
 * @untold: when frames were found of which no interrupt had told, in jiffies; 0
 *	if none were
 * @counters: what has happened on them; outlives them
 * @link: the link the rail belongs to, if it does
 * @index: its number there
 * @ready: the link knows the rail: what has arrived may be handed over
 *
 * @posted and both rings are its link's owner's while the rail belongs to one,
 * and the rail's work item's else.
 */
struct u4_port {
	struct u4_rail *rail;
	struct device *dev;
	struct tb_ring *tx;
	struct tb_ring *rx;
	bool tx_running;
	bool rx_running;
	struct u4_frame *tx_frames;
	u32 tx_mapped;
	struct u4_pool *pool;
	struct llist_head done;
	u32 posted;
	unsigned long masked;
	unsigned long moved;
	u32 kicks_in_row;
	unsigned long untold;
	struct u4_counters counters;
	struct u4_link __rcu *link;
	u8 index;
	bool ready;
};

/* pool.c */
struct u4_pool *u4_pool_new(void);
void u4_pool_put(struct u4_pool *pool);
int u4_pool_map(struct u4_pool *pool, struct device *dev);
void u4_pool_unmap(struct u4_pool *pool);
void u4_pool_reset(struct u4_pool *pool);
void u4_pool_push(struct u4_pool *pool, u32 index);
bool u4_pool_pop(struct u4_pool *pool, u32 *index);

/* port.c */
int u4_port_open(struct u4_port *port, struct tb_nhi *nhi);
void u4_port_close(struct u4_port *port);
int u4_port_start(struct u4_port *port);
void u4_port_stop(struct u4_port *port);
int u4_port_start_tx(struct u4_port *port, u8 *const *buffers);
void u4_port_drain(struct u4_port *port);
void u4_port_stop_tx(struct u4_port *port);
void u4_port_post(struct u4_port *port, u16 slot, u16 len);
void u4_port_poll(struct u4_port *port, struct usb4_core_arrived *arrived);
void u4_port_kick_rx(struct u4_port *port);
void u4_port_arm(struct u4_port *port);

#endif /* USB4_PORT_H */
