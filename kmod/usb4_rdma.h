/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the module's C files share. What decides is in Rust (usb4_core.h); here
 * is what touches the kernel: rings, threads, pages, user memory.
 *
 * Locks, outermost first:
 *
 *   controllers_lock       services that come, controllers that go (service.c);
 *                          mutex, around nothing but the list of rails
 *   client->lock           a client's objects, around everything that makes or
 *                          destroys one; mutex
 *   u4_qps                 queue pairs with work items of their events
 *                          (endpoints.c); an xarray's spinlock, a leaf
 *   rail->work             a work item does not run twice at a time: the
 *                          state machine, paths and rings of a rail
 *   rings_lock             which rails have rings (rings.c); mutex
 *   u4_links_lock          links, and which rails they have; mutex
 *   the core's own         see crates/device; spinlocks
 *   pool->lock             free receive buffers; spinlock, a leaf but for
 *   ring->lock             tb_ring_*(), which disables interrupts
 *
 *   u4_rails_lock          list of rails, their inboxes; spinlock, a leaf
 *
 * Links, and rails of links, go while somebody may be about to drive them: that
 * is done inside of an RCU read-side critical section. A rail's rings are touched
 * by its work item alone once a grace period has passed since it left its link;
 * a link's memory is freed after one.
 */
#ifndef USB4_RDMA_H
#define USB4_RDMA_H

#include <linux/completion.h>
#include <linux/atomic.h>
#include <linux/hrtimer.h>
#include <linux/mutex.h>
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

/* Rails of a link: &usb4_core_limits.link_rails. */
#define U4_LINK_RAILS	4

struct attribute_group;
struct u4_link;
struct u4_loop;
struct u4_pool;
struct u4_port;
struct u4_rail;
struct usb4_ring_cable;

/**
 * struct u4_link - a link with its rails, its thread and its timer
 * @core: the link as the core knows it
 * @memory: the block it lives in
 * @node: the host at the other end
 * @tx: transmit buffers, by slot
 * @ports: its rails; changed under u4_links_lock
 * @pools: receive buffers of its rails, and of those it had whose frames are
 *	not all done with
 * @held: for each, how many of its buffers the core has
 * @first: the rail that is polled first; its owner's
 * @chosen: clients have it; only ever set
 * @number: the core's, that of its device
 * @since: when it was made, on the clock that goes on while the host sleeps
 * @dev: its device, which shows it; %NULL for that of this host to itself
 * @loop: frames under way, if it is the link of this host to itself
 * @task: the thread that drives it when no client does
 * @timer: hands it over from a client that has left to the thread
 * @woken: the thread has something to look at; see link.c
 */
struct u4_link {
	struct usb4_core_link *core;
	void *memory;
	struct usb4_core_node node;
	u8 **tx;
	struct u4_port __rcu *ports[U4_LINK_RAILS];
	struct u4_pool *pools[U4_LINK_RAILS];
	atomic_t held[U4_LINK_RAILS];
	u32 first;
	bool chosen;
	u32 number;
	ktime_t since;
	struct device *dev;
	struct u4_loop *loop;
	struct task_struct *task;
	struct hrtimer timer;
	int woken;
};

/**
 * struct u4_peer - a host that has been heard of
 * @node: its name
 * @rails: rails of the link to it, 0 if there is none
 * @rate_mbps: what they are taken to carry together
 */
struct u4_peer {
	struct usb4_core_node node;
	u32 rails;
	u32 rate_mbps;
};

/* A cable's controller, which struct tb_nhi names in different ways. */
static inline struct device *u4_controller(const struct tb_xdomain *xd)
{
	return xd->tb->dev.parent;
}

/* The device; set before anything else can be called. */
extern struct usb4_core *u4_core;
extern struct usb4_core_limits u4_limits;
extern struct usb4_core_node u4_node;

/* A page that clients may look at (&usb4_ring_info.notice_offset). */
extern u64 *u4_notice;

/* Woken when a link comes up or goes down, or a peer becomes known. */
extern wait_queue_head_t u4_links_wait;

/* dmabuf.c */
struct u4_mem;
struct u4_mem *u4_mem_import(struct device *dev, int fd, u64 offset, u64 len,
			     bool writable);

/* memory.c */
struct u4_mem *u4_mem_pin(u64 addr, u64 len, bool writable);
struct u4_mem *u4_mem_own(u8 *memory, u64 len);
void u4_mem_unpin(struct u4_mem *mem);
void u4_mem_read(const struct u4_mem *mem, u64 offset, void *to, size_t len);
void u4_mem_write(const struct u4_mem *mem, u64 offset, const void *from,
		  size_t len);

/* link.c */
extern struct mutex u4_links_lock;
struct u4_link *u4_link_new(const struct usb4_core_peer *peer);
void u4_link_go(struct u4_link *link);
void u4_link_stop(struct u4_link *link);
int u4_link_attach(struct u4_link *link, struct u4_port *port,
		   const struct usb4_core_peer *peer);
void u4_link_detach(struct u4_link *link, struct u4_port *port, bool drain);
void u4_link_interrupt(struct u4_port *port);

/* join.c */
void u4_links_count(struct usb4_core_link_status *sum);

/* loop.c */
int u4_loop_start(void);
void u4_loop_stop(void);
void u4_loop_post(struct u4_link *link, u16 slot, u16 len);
void u4_loop_poll(struct u4_link *link, struct usb4_core_arrived *arrived);

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
void u4_rail_silent(struct u4_rail *rail);
void u4_rail_stalled(struct u4_rail *rail);
void u4_rail_down(struct u4_rail *rail);
void u4_rail_joined(struct u4_rail *rail);
void u4_rail_chosen(struct u4_rail *rail, const struct u4_link *link);
struct tb_service *u4_rails_first(struct device *controller,
				  struct tb_xdomain **xd);
bool u4_rails_expect(const struct usb4_core_node *node);
u32 u4_rails_list(struct u4_peer *peers, u32 room);
u32 u4_rails_cables(struct usb4_ring_cable *cables, u32 room);
bool u4_rails_find(u64 guid, struct usb4_core_node *node);
void u4_rails_sum(u32 *count, u64 *rate_mbps);
void u4_rails_judge(void);

/* peers.c */
bool u4_peers_allow(const struct usb4_core_node *node, const uuid_t *router);
void u4_peers_exit(void);

/* service.c */
int u4_service_init(void);
void u4_service_exit(void);
int u4_service_send(struct tb_xdomain *xd, void *packet, const u8 *message);
size_t u4_service_packet_size(void);

/* trace.c */
extern u32 u4_tracing;
int u4_trace_core(void);
void u4_trace_core_end(void);

/* sysfs.c */
extern const struct attribute_group *u4_device_groups[];
int u4_sysfs_init(void);
void u4_sysfs_exit(void);
int u4_sysfs_add(struct u4_link *link);
void u4_sysfs_remove(struct u4_link *link);

/* sysfs_rail.c */
extern const struct attribute_group *u4_rail_groups[];

/* verbs.c */
void u4_links_changed(void);

/* chardev.c */
struct device *u4_chardev_device(void);
int u4_chardev_init(void);
void u4_chardev_exit(void);

#endif /* USB4_RDMA_H */
