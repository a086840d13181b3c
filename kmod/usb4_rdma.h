/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the module's C files share. What decides is in Rust (usb4_core.h); here
 * is what touches the kernel: rings, threads, pages, user memory.
 *
 * Locks, outermost first:
 *
 *   client->lock           a client's objects, around everything that makes or
 *                          destroys one; mutex
 *   rail->work             a work item does not run twice at a time: the
 *                          state machine, paths, rings and link of a rail
 *   the core's own         see crates/device; spinlocks
 *   port->lock             free receive buffers; spinlock, a leaf but for
 *   ring->lock             tb_ring_*(), which disables interrupts
 *
 *   u4_rails_lock          list of rails, their inboxes; spinlock, a leaf
 *
 * A rail's link goes while clients may be about to drive it: they are inside of
 * an RCU read-side critical section, and its memory is freed after a grace
 * period.
 */
#ifndef USB4_RDMA_H
#define USB4_RDMA_H

#include <linux/completion.h>
#include <linux/hrtimer.h>
#include <linux/llist.h>
#include <linux/spinlock.h>
#include <linux/thunderbolt.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "usb4_core.h"

#define U4_VERSION	"0.1.0"

/*
 * PDF of a frame's first and last packet on the cable. The receiver ends a
 * frame with any packet whose PDF is in the ring's eof_mask, so the two differ
 * (docs/spec/usb4.md, section 3).
 */
#define U4_PDF_START	1
#define U4_PDF_END	2

/* Bytes of a frame buffer: the longest frame (docs/spec/wire.md, section 2). */
#define U4_FRAME_SIZE	4096

/* Bytes of the header that comes with a frame to be posted. */
#define U4_HEADER	40

/* printk format of a node id: its higher half, then its lower one. */
#define U4_NODE_FMT	"%016llx%016llx"

struct u4_link;
struct u4_rail;

/**
 * struct u4_frame - a frame buffer and its place in a ring
 * @ring: what tb_ring_*() know it by; @buffer_phy is set once
 * @done: on the list of consumed descriptors (&u4_port.done)
 * @port: its port
 * @data: the buffer, of U4_FRAME_SIZE bytes
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
 * struct u4_port - frame buffers and rings of a link
 * @rail: the rail whose rings these are, %NULL for the loopback port
 * @dev: the device the buffers are mapped for, %NULL for the loopback port
 * @tx: transmit ring
 * @rx: receive ring
 * @tx_frames: transmit buffers, by slot
 * @rx_frames: receive buffers, by token
 * @lock: protects @free and @free_count
 * @free: tokens of receive buffers that are neither in the ring nor the
 *	core's
 * @free_count: how many
 * @done: transmit buffers consumed, as far as callbacks told; see port.c
 * @posted: transmit buffers in the ring; used by the link's owner
 * @masked: bit 0: the receive ring's interrupt is masked
 * @rx_bad: frames dropped since the controller flagged them
 * @link: the link, while there is one
 * @loop: loopback: frames posted and not yet taken; used by the link's owner
 * @loop_head: place of the first one in @loop
 * @loop_count: how many
 */
struct u4_port {
	struct u4_rail *rail;
	struct device *dev;
	struct tb_ring *tx;
	struct tb_ring *rx;
	struct u4_frame *tx_frames;
	struct u4_frame *rx_frames;
	spinlock_t lock;	/* free, free_count */
	u32 *free;
	u32 free_count;
	struct llist_head done;
	u32 posted;
	unsigned long masked;
	u64 rx_bad;
	struct u4_link __rcu *link;
	struct u4_loop_entry *loop;
	u32 loop_head;
	u32 loop_count;
};

/**
 * struct u4_link - a link, its thread and its timer
 * @core: the link as the core knows it
 * @memory: the block it lives in
 * @peer: what its session was agreed with
 * @task: the thread that drives it when no client does
 * @timer: hands it over from a client that has left to the thread
 * @woken: the thread has something to look at; see link.c
 */
struct u4_link {
	struct usb4_core_link *core;
	void *memory;
	struct usb4_core_peer peer;
	struct task_struct *task;
	struct hrtimer timer;
	int woken;
};

/* The device; set before anything else can be called. */
extern struct usb4_core *u4_core;
extern struct usb4_core_limits u4_limits;
extern struct usb4_core_node u4_node;

/* Woken when a link comes up or goes down, or a peer becomes known. */
extern wait_queue_head_t u4_links_wait;

/* memory.c */
struct u4_mem;
struct u4_mem *u4_mem_pin(u64 addr, u64 len);
void u4_mem_unpin(struct u4_mem *mem);
void u4_mem_read(const struct u4_mem *mem, u64 offset, void *to, size_t len);
void u4_mem_write(const struct u4_mem *mem, u64 offset, const void *from,
		  size_t len);

/* port.c */
int u4_port_open(struct u4_port *port, struct tb_nhi *nhi);
void u4_port_close(struct u4_port *port);
int u4_port_start(struct u4_port *port);
void u4_port_drain(struct u4_port *port);
void u4_port_stop(struct u4_port *port);
int u4_port_open_loop(struct u4_port *port);

/* link.c */
struct u4_link *u4_link_start(struct u4_port *port,
			      const struct usb4_core_peer *peer);
void u4_link_stop(struct u4_port *port);
void u4_link_interrupt(struct u4_port *port);

/* loop.c */
int u4_loop_start(void);
void u4_loop_stop(void);

/* rail.c */
int u4_rails_init(void);
void u4_rails_exit(void);
struct u4_rail *u4_rail_new(struct tb_service *svc);
void u4_rail_start(struct u4_rail *rail);
void u4_rail_stop(struct u4_rail *rail);
void u4_rail_shutdown(struct u4_rail *rail);
void u4_rail_free(struct u4_rail *rail);
bool u4_rail_receive(u64 route, const uuid_t *local, const uuid_t *remote,
		     const u8 *message);
void u4_rail_strange(struct u4_rail *rail, u64 tag);
void u4_rail_down(struct u4_rail *rail);
bool u4_rails_expect(const struct usb4_core_node *node);
u32 u4_rails_list(struct usb4_core_peer *peers, bool *up, u32 room);

/* service.c */
int u4_service_init(void);
void u4_service_exit(void);
int u4_service_send(struct tb_xdomain *xd, void *packet, const u8 *message);
size_t u4_service_packet_size(void);

/* chardev.c */
int u4_chardev_init(void);
void u4_chardev_exit(void);

#endif /* USB4_RDMA_H */
