/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A client, which is an open /dev/usb4ring or a context of verbs, and what it owns.
 */
#ifndef USB4_CLIENT_H
#define USB4_CLIENT_H

#include <linux/atomic.h>
#include <linux/kref.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/uidgid.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "usb4_rdma.h"
#include "usb4_ring.h"

/*
 * Queue memory of one client, and its endpoints' room for address handles: enough
 * for sixteen endpoints with queues of the largest depth, or all it may have with
 * usual ones.
 */
#define U4_QUEUE_BYTES	(128UL << 20)

/* Of all clients of one user together, unless it may exceed limits. */
#define U4_USER_QUEUE_BYTES	(1024UL << 20)

/* Clients of one user: a quarter of the core's. */
#define U4_USER_CLIENTS	64

/* A queue is mapped at its number times this; none is larger. */
#define U4_OFFSET_SHIFT	32

/* What is mapped there instead of a queue: &u4_notice. No queue has it. */
#define U4_NOTICE_NUMBER	S32_MAX

/**
 * struct u4_queue - memory of a queue, shared with a client
 * @ref: of the client, of the core, and of each mapping
 * @client: whom it counts for until it is freed; there as long, since the core
 *	gives its reference back when the client ends, and a mapping has the file
 * @words: its words
 * @bytes: how large it is
 */
struct u4_queue {
	struct kref ref;
	struct u4_client *client;
	void *words;
	size_t bytes;
};

/**
 * struct u4_cq - a client's completion queue
 * @ref: of the client, and of whoever waits
 * @queue: its memory
 * @memory: what the core keeps for it
 * @event: signalled when it is armed and gets an entry, or %NULL
 * @notify: called then with @context, or %NULL; with a spinlock held
 * @failed: called with @context when its client has corrupted it, or %NULL
 * @context: see @notify
 * @failed_work: calls @failed
 * @wait: woken then as well
 * @number: of its mapping
 * @dead: it has been destroyed
 */
struct u4_cq {
	struct kref ref;
	struct u4_queue *queue;
	void *memory;
	struct eventfd_ctx *event;
	void (*notify)(void *context);
	void (*failed)(void *context);
	void *context;
	struct work_struct failed_work;
	wait_queue_head_t wait;
	u32 number;
	bool dead;
};

/**
 * struct u4_cq_spec - a completion queue to be made
 * @depth: entries
 * @event_fd: descriptor of an eventfd, or -1: see &u4_cq.event
 * @notify: see &u4_cq.notify
 * @failed: see &u4_cq.failed
 * @context: see &u4_cq.context
 */
struct u4_cq_spec {
	u32 depth;
	int event_fd;
	void (*notify)(void *context);
	void (*failed)(void *context);
	void *context;
};

/**
 * struct u4_ep - a client's endpoint, queue pair or shared receive queue
 * @sq: memory of its submission queue; %NULL of a shared receive queue
 * @rq: memory of its receive queue
 * @memory: what the core keeps for it
 * @bytes: bytes of that
 * @sq_number: of the submission queue's mapping
 * @rq_number: of the receive queue's mapping
 * @connected: it is of that kind
 * @client_id: the client in the core
 * @event: called with @context and what has happened to a queue pair or shared
 *	receive queue, or %NULL
 * @context: see @event
 * @events: what has: a bit each of enum usb4_core_qp_event
 * @work: calls it
 */
struct u4_ep {
	struct u4_queue *sq;
	struct u4_queue *rq;
	void *memory;
	size_t bytes;
	u32 sq_number;
	u32 rq_number;
	bool connected;
	u32 client_id;
	void (*event)(void *context, u32 event);
	void *context;
	unsigned long events;
	struct work_struct work;
};

/**
 * struct u4_ep_spec - an endpoint, or a queue pair of verbs, to be made
 * @kind: USB4_RING_EP_*; if @pd is not 0: enum usb4_core_qp_kind
 * @send_cq: completion queue of its submissions
 * @recv_cq: completion queue of its receives
 * @sq_depth: entries of its submission queue
 * @rq_depth: entries of its receive queue
 * @sq_slot: of a queue pair: bytes of a slot of its submission queue, or 0
 * @rq_slot: the same of its receive queue
 * @handles: address handles
 * @pd: its protection domain; 0 for an endpoint
 * @srq: shared receive queue that a queue pair draws from; else 0
 * @event: see &u4_ep.event
 * @context: see &u4_ep.event
 */
struct u4_ep_spec {
	u32 kind;
	u32 send_cq;
	u32 recv_cq;
	u32 sq_depth;
	u32 rq_depth;
	u32 sq_slot;
	u32 rq_slot;
	u32 handles;
	u32 pd;
	u32 srq;
	void (*event)(void *context, u32 event);
	void *context;
};

/**
 * struct u4_srq_spec - a shared receive queue of verbs to be made
 * @pd: its protection domain, not 0
 * @depth: entries
 * @slot: bytes of the slots behind them, or 0
 * @event: see &u4_ep.event
 * @context: see &u4_ep.event
 */
struct u4_srq_spec {
	u32 pd;
	u32 depth;
	u32 slot;
	void (*event)(void *context, u32 event);
	void *context;
};

/**
 * struct u4_region_spec - memory to be registered
 * @addr: what operations call its first byte
 * @start: where that is in the process
 * @len: bytes
 * @access: USB4_RING_ACCESS_*
 * @kernel: it is this memory of the kernel's own instead, which vfree() is called
 *	for when it is deregistered, or cannot be registered
 * @dmabuf: it is a dma-buf's instead: @fd and @offset say which, @start nothing
 * @fd: descriptor of the dma-buf
 * @offset: where in it the memory begins
 * @bound: @peer is the only host that may use it
 * @peer: see @bound
 * @narrow: its remote key is to have 32 bits
 * @pd: its protection domain; 0 for endpoints
 */
struct u4_region_spec {
	u64 addr;
	u64 start;
	u64 len;
	u32 access;
	u8 *kernel;
	bool dmabuf;
	int fd;
	u64 offset;
	bool bound;
	struct usb4_core_node peer;
	bool narrow;
	u32 pd;
};

/**
 * struct u4_keys - what registered memory is named by
 * @local: in the client's own entries
 * @remote: by peers
 */
struct u4_keys {
	u32 local;
	u64 remote;
};

/**
 * struct u4_user - somebody with clients
 * @list: on the list of users
 * @ref: of each of the clients
 * @uid: who
 * @clients: how many have not ended, under the lock of the list of clients
 * @queue_bytes: bytes of their memory that are not freed: &u4_client.queue_bytes
 */
struct u4_user {
	struct list_head list;
	struct kref ref;
	kuid_t uid;
	u32 clients;
	atomic_long_t queue_bytes;
};

/* Bits of &u4_client.state. */
enum {
	U4_CLIENT_ENDED,	/* it has nothing any more */
};

/**
 * struct u4_client - an open /dev/usb4ring, or a context of verbs
 * @ref: of its file, and of its context
 * @list: on the list of clients
 * @id: its name in the core
 * @user: who made it
 * @exempt: who made it may exceed limits on what a user has; what it has
 *	counts all the same
 * @mm: the process it is of; only compared. %NULL for one of the kernel's own, to
 *	which no file leads
 * @notifier: tells when that has ended
 * @state: U4_CLIENT_*
 * @lock: around whatever makes or destroys its objects
 * @cqs: completion queues, by name
 * @eps: endpoints, by name
 * @mrs: memory regions, by local key; a value entry each
 * @queues: queue memory, by number of its mapping
 * @queue_bytes: bytes of it, and of what was destroyed and is mapped still; and of
 *	endpoints' room for address handles
 */
struct u4_client {
	struct kref ref;
	struct list_head list;
	u32 id;
	struct u4_user *user;
	bool exempt;
	struct mm_struct *mm;
	struct mmu_notifier notifier;
	unsigned long state;
	struct mutex lock;	/* what is below */
	struct xarray cqs;
	struct xarray eps;
	struct xarray mrs;
	struct xarray queues;
	atomic_long_t queue_bytes;
};

static inline ktime_t u4_ktime(u64 ns)
{
	return ns_to_ktime(min_t(u64, ns, KTIME_MAX));
}

static inline void u4_to_user(struct usb4_ring_addr *to,
			      const struct usb4_core_addr *from)
{
	to->node_low = from->node.low;
	to->node_high = from->node.high;
	to->ep = from->ep;
	to->incarnation = from->incarnation;
}

/* Whether the calling process is the client's: no child, and nobody it was handed to. */
static inline bool u4_client_is_own(const struct u4_client *client)
{
	return !client->mm || client->mm == current->mm;
}

/* Where a queue is mapped. */
static inline u64 u4_queue_offset(u32 number)
{
	return (u64)number << U4_OFFSET_SHIFT;
}

static inline int u4_check_destroy(const struct usb4_ring_destroy *arg)
{
	if (arg->flags)
		return -EOPNOTSUPP;
	return arg->reserved ? -EINVAL : 0;
}

/* client.c */
struct u4_client *u4_client_new(bool kernel);
void u4_client_get(struct u4_client *client);
void u4_client_put(struct u4_client *client);

/* chardev.c */
struct file *u4_client_file(struct u4_client *client);

/* calls.c */
long u4_client_call(struct u4_client *client, unsigned int cmd,
		    unsigned long addr, bool lent);

/* mapping.c */
int u4_client_mmap(struct file *file, struct vm_area_struct *vma);

/* queues.c */
bool u4_charge(struct u4_client *client, size_t bytes);
void u4_uncharge(struct u4_client *client, size_t bytes);
struct u4_queue *u4_queue_new(struct u4_client *client, u32 kind, u32 depth,
			      u32 slot, u32 *number);
void u4_queue_drop(struct u4_client *client, struct u4_queue *queue,
		   u32 number);
struct usb4_core_queue u4_queue_lend(struct u4_queue *queue);
void u4_queue_get(struct u4_queue *queue);
void u4_queue_put(struct u4_queue *queue);

/*
 * Calls of the user interface (calls.c has the list): each gets its argument as the
 * kernel's copy, and returns 0, or for ENTER what it found, or an error. And what
 * these are made of.
 */

/* cqs.c */
int u4_create_cq(struct u4_client *client, void *data);
int u4_destroy_cq(struct u4_client *client, void *data);
struct u4_cq *u4_cq_make(struct u4_client *client,
			 const struct u4_cq_spec *spec, u32 *id);
int u4_cq_unmake(struct u4_client *client, u32 id);
bool u4_cq_arm(struct u4_cq *cq, bool solicited);
void u4_cq_put(struct u4_cq *cq);
void u4_cq_drop(struct u4_client *client, struct u4_cq *cq, u32 id);

/* endpoints.c */
int u4_create_ep(struct u4_client *client, void *data);
int u4_destroy_ep(struct u4_client *client, void *data);
struct u4_ep *u4_ep_make(struct u4_client *client,
			 const struct u4_ep_spec *spec, u32 *id,
			 struct usb4_core_addr *addr);
struct u4_ep *u4_srq_make(struct u4_client *client,
			  const struct u4_srq_spec *spec, u32 *id);
int u4_ep_unmake(struct u4_client *client, u32 id);
void u4_ep_drop(struct u4_client *client, struct u4_ep *ep, u32 id);
void u4_nudge(void);

/* handles.c */
int u4_create_ah(struct u4_client *client, void *data);
int u4_destroy_ah(struct u4_client *client, void *data);
int u4_link_to(const struct usb4_core_node *node, u64 timeout);

/* regions.c */
int u4_reg_mr(struct u4_client *client, void *data);
int u4_dereg_mr(struct u4_client *client, void *data);
int u4_region_make(struct u4_client *client, const struct u4_region_spec *spec,
		   struct u4_keys *keys);
int u4_region_unmake(struct u4_client *client, u32 key, bool linger);
void u4_user_put(struct u4_user *user);
int u4_regions_add(struct u4_client *client);
void u4_regions_remove(struct u4_client *client);
void u4_regions_exit(void);

/* query.c */
int u4_info(struct u4_client *client, void *data);
int u4_source(struct u4_client *client, void *data);
int u4_list_peers(struct u4_client *client, void *data);
int u4_list_cables(struct u4_client *client, void *data);
int u4_put_list(u64 to, u32 stride, const void *from, size_t size, u32 count);

/* peers.c */
int u4_set_rules(struct u4_client *client, void *data);
int u4_get_rules(struct u4_client *client, void *data);

/* enter.c */
int u4_enter(struct u4_client *client, void *data);

#endif /* USB4_CLIENT_H */
