// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A client's queues, endpoints and address handles: crates/kobj/src/objects.rs.
 *
 * In C for the memory they need. The core says how much, gets it, and keeps
 * everything in it; names are its own, and what a client names is looked up
 * among the client's.
 */
#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/vmalloc.h>

#include "client.h"

/* Queues */

/* Memory that nobody but its clients knows of is to have an end for a user. */
static bool charge(struct u4_client *client, size_t bytes)
{
	atomic_long_t *own = &client->queue_bytes;
	atomic_long_t *all = &client->user->queue_bytes;

	if (atomic_long_add_return(bytes, own) > U4_QUEUE_BYTES)
		goto err_own;
	if (atomic_long_add_return(bytes, all) > U4_USER_QUEUE_BYTES &&
	    !client->exempt)
		goto err_all;
	return true;

err_all:
	atomic_long_sub(bytes, all);
err_own:
	atomic_long_sub(bytes, own);
	return false;
}

static void uncharge(struct u4_client *client, size_t bytes)
{
	atomic_long_sub(bytes, &client->user->queue_bytes);
	atomic_long_sub(bytes, &client->queue_bytes);
}

static void free_queue(struct kref *ref)
{
	struct u4_queue *queue = container_of(ref, struct u4_queue, ref);

	vfree(queue->words);
	uncharge(queue->client, queue->bytes);
	kfree(queue);
}

/**
 * u4_queue_get() - take another reference on queue memory
 * @queue: the queue
 */
void u4_queue_get(struct u4_queue *queue)
{
	kref_get(&queue->ref);
}

/**
 * u4_queue_put() - give back a reference on queue memory
 * @queue: the queue
 */
void u4_queue_put(struct u4_queue *queue)
{
	kref_put(&queue->ref, free_queue);
}

void usb4_home_put_queue(size_t handle)
{
	u4_queue_put((struct u4_queue *)handle);
}

/*
 * As vmalloc_user(), but charged to the client's memory cgroup. What vmap()
 * returns has the pages, and the array of them, freed with it.
 */
static void *alloc_words(size_t bytes)
{
	unsigned long count = PFN_UP(bytes);
	struct page **pages;
	unsigned long i;
	void *words;

	pages = kvmalloc_array(count, sizeof(*pages), GFP_KERNEL_ACCOUNT);
	if (!pages)
		return NULL;
	for (i = 0; i < count; i++) {
		pages[i] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!pages[i])
			goto err_pages;
	}
	words = vmap(pages, count, VM_MAP | VM_USERMAP | VM_MAP_PUT_PAGES,
		     PAGE_KERNEL);
	if (!words)
		goto err_pages;
	return words;

err_pages:
	while (i)
		__free_page(pages[--i]);
	kvfree(pages);
	return NULL;
}

/* Makes a queue, and a number to map it by. */
static struct u4_queue *new_queue(struct u4_client *client, u32 kind,
				  u32 depth, u32 *number)
{
	size_t bytes = usb4_core_queue_size(kind, depth);
	struct u4_queue *queue;
	int ret = -ENOMEM;

	if (!bytes)
		return ERR_PTR(-EINVAL);
	if (!charge(client, bytes))
		return ERR_PTR(-EDQUOT);
	queue = kzalloc_obj(*queue, GFP_KERNEL_ACCOUNT);
	if (!queue)
		goto err_charge;
	kref_init(&queue->ref);
	queue->client = client;
	queue->bytes = bytes;
	queue->words = alloc_words(bytes);
	if (!queue->words)
		goto err_queue;
	ret = xa_alloc(&client->queues, number, queue,
		       XA_LIMIT(1, S32_MAX >> 1), GFP_KERNEL_ACCOUNT);
	if (ret)
		goto err_words;
	return queue;

err_words:
	vfree(queue->words);
err_queue:
	kfree(queue);
err_charge:
	uncharge(client, bytes);
	return ERR_PTR(ret);
}

static void drop_queue(struct u4_client *client, struct u4_queue *queue,
		       u32 number)
{
	xa_erase(&client->queues, number);
	u4_queue_put(queue);
}

/* The core gets a reference of its own. */
static struct usb4_core_queue lend_queue(struct u4_queue *queue)
{
	u4_queue_get(queue);
	return (struct usb4_core_queue) {
		.words = queue->words,
		.count = queue->bytes / sizeof(u64),
		.handle = (size_t)queue,
	};
}

static u64 offset_of(u32 number)
{
	return (u64)number << U4_OFFSET_SHIFT;
}

/* Completion queues */

static void free_cq(struct kref *ref)
{
	struct u4_cq *cq = container_of(ref, struct u4_cq, ref);

	if (cq->event)
		eventfd_ctx_put(cq->event);
	kvfree(cq->memory);
	u4_queue_put(cq->queue);
	kfree(cq);
}

/**
 * u4_cq_put() - give back a reference on a completion queue
 * @cq: the queue
 */
void u4_cq_put(struct u4_cq *cq)
{
	kref_put(&cq->ref, free_cq);
}

void usb4_home_wake(size_t waker)
{
	struct u4_cq *cq = (struct u4_cq *)waker;

	if (cq->event)
		eventfd_signal(cq->event);
	wake_up_all(&cq->wait);
}

static void forget_cq(struct u4_client *client, struct u4_cq *cq)
{
	xa_erase(&client->queues, cq->number);
	u4_cq_put(cq);
}

/**
 * u4_cq_drop() - forget a completion queue
 * @client: whose
 * @cq: the queue; the core is done with it and wakes it no more
 * @id: its name
 */
void u4_cq_drop(struct u4_client *client, struct u4_cq *cq, u32 id)
{
	xa_erase(&client->cqs, id);
	WRITE_ONCE(cq->dead, true);
	wake_up_all(&cq->wait);
	forget_cq(client, cq);
}

static struct u4_cq *new_cq(struct u4_client *client, u32 depth, int event_fd)
{
	struct u4_cq *cq;
	int ret = -ENOMEM;

	cq = kzalloc_obj(*cq, GFP_KERNEL_ACCOUNT);
	if (!cq)
		return ERR_PTR(ret);
	kref_init(&cq->ref);
	init_waitqueue_head(&cq->wait);
	if (event_fd >= 0) {
		cq->event = eventfd_ctx_fdget(event_fd);
		if (IS_ERR(cq->event)) {
			ret = -EBADF;
			goto err_cq;
		}
	}
	cq->queue = new_queue(client, USB4_CORE_QUEUE_CQ, depth, &cq->number);
	if (IS_ERR(cq->queue)) {
		ret = PTR_ERR(cq->queue);
		goto err_event;
	}
	cq->memory = kvzalloc(usb4_core_cq_size(depth), GFP_KERNEL_ACCOUNT);
	if (!cq->memory)
		goto err_queue;
	return cq;

err_queue:
	drop_queue(client, cq->queue, cq->number);
err_event:
	if (cq->event)
		eventfd_ctx_put(cq->event);
err_cq:
	kfree(cq);
	return ERR_PTR(ret);
}

int u4_create_cq(struct u4_client *client, void *data)
{
	struct usb4_ring_create_cq *arg = data;
	struct usb4_core_cq_params params;
	struct u4_cq *cq;
	u32 id;
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (arg->reserved || arg->event_fd < -1)
		return -EINVAL;
	cq = new_cq(client, arg->depth, arg->event_fd);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	params = (struct usb4_core_cq_params) {
		.client = client->id,
		.depth = arg->depth,
		.queue = lend_queue(cq->queue),
		.waker = (size_t)cq,
		.memory = cq->memory,
		.size = usb4_core_cq_size(arg->depth),
	};
	ret = usb4_core_create_cq(u4_core, &params, &id);
	if (ret)
		goto err_cq;
	ret = xa_err(xa_store(&client->cqs, id, cq, GFP_KERNEL_ACCOUNT));
	if (ret)
		goto err_core;
	arg->cq = id;
	arg->offset = offset_of(cq->number);
	arg->bytes = cq->queue->bytes;
	return 0;

err_core:
	usb4_core_destroy_cq(u4_core, client->id, id);
err_cq:
	forget_cq(client, cq);
	return ret;
}

static int check_destroy(const struct usb4_ring_destroy *arg)
{
	if (arg->flags)
		return -EOPNOTSUPP;
	return arg->reserved ? -EINVAL : 0;
}

int u4_destroy_cq(struct u4_client *client, void *data)
{
	struct usb4_ring_destroy *arg = data;
	struct u4_cq *cq;
	int ret;

	ret = check_destroy(arg);
	if (ret)
		return ret;
	cq = xa_load(&client->cqs, arg->id);
	if (!cq)
		return -ENOENT;
	ret = usb4_core_destroy_cq(u4_core, client->id, arg->id);
	if (ret)
		return ret;
	u4_cq_drop(client, cq, arg->id);
	return 0;
}

/* Endpoints */

/**
 * u4_ep_free() - forget an endpoint
 * @client: whose
 * @ep: the endpoint; the core is done with it
 */
void u4_ep_free(struct u4_client *client, struct u4_ep *ep)
{
	drop_queue(client, ep->rq, ep->rq_number);
	drop_queue(client, ep->sq, ep->sq_number);
	kvfree(ep->memory);
	uncharge(client, ep->bytes);
	kfree(ep);
}

static struct u4_ep *new_ep(struct u4_client *client,
			    const struct usb4_ring_create_ep *arg, u32 handles)
{
	struct u4_ep *ep;
	int ret = -ENOMEM;

	ep = kzalloc_obj(*ep, GFP_KERNEL_ACCOUNT);
	if (!ep)
		return ERR_PTR(ret);
	ep->connected = arg->kind == USB4_RING_EP_CONNECTED;
	ep->bytes = usb4_core_ep_size(handles);
	if (!charge(client, ep->bytes)) {
		ret = -EDQUOT;
		goto err_ep;
	}
	ep->memory = kvzalloc(ep->bytes, GFP_KERNEL_ACCOUNT);
	if (!ep->memory)
		goto err_charge;
	ep->sq = new_queue(client, USB4_CORE_QUEUE_SQ, arg->sq_depth,
			   &ep->sq_number);
	if (IS_ERR(ep->sq)) {
		ret = PTR_ERR(ep->sq);
		goto err_memory;
	}
	ep->rq = new_queue(client, USB4_CORE_QUEUE_RQ, arg->rq_depth,
			   &ep->rq_number);
	if (IS_ERR(ep->rq)) {
		ret = PTR_ERR(ep->rq);
		goto err_sq;
	}
	return ep;

err_sq:
	drop_queue(client, ep->sq, ep->sq_number);
err_memory:
	kvfree(ep->memory);
err_charge:
	uncharge(client, ep->bytes);
err_ep:
	kfree(ep);
	return ERR_PTR(ret);
}

static struct usb4_core_addr from_user_addr(const struct usb4_ring_addr *from)
{
	return (struct usb4_core_addr) {
		.node.low = from->node_low,
		.node.high = from->node_high,
		.ep = from->ep,
		.incarnation = from->incarnation,
	};
}

static int check_create_ep(const struct usb4_ring_create_ep *arg)
{
	if (arg->flags || arg->kind > USB4_RING_EP_CONNECTED)
		return -EOPNOTSUPP;
	if (arg->reserved || arg->max_ahs > USB4_RING_MAX_DEPTH)
		return -EINVAL;
	return 0;
}

int u4_create_ep(struct u4_client *client, void *data)
{
	struct usb4_ring_create_ep *arg = data;
	struct usb4_core_ep_params params;
	struct usb4_core_addr addr;
	struct u4_ep *ep;
	u32 handles = 1;
	u32 id;
	int ret;

	ret = check_create_ep(arg);
	if (ret)
		return ret;
	if (arg->kind == USB4_RING_EP_DATAGRAM)
		handles = arg->max_ahs ?: u4_limits.default_ahs;
	ep = new_ep(client, arg, handles);
	if (IS_ERR(ep))
		return PTR_ERR(ep);
	params = (struct usb4_core_ep_params) {
		.client = client->id,
		.kind = arg->kind,
		.send_cq = arg->send_cq,
		.recv_cq = arg->recv_cq,
		.sq_depth = arg->sq_depth,
		.rq_depth = arg->rq_depth,
		.sq = lend_queue(ep->sq),
		.rq = lend_queue(ep->rq),
		.handles = handles,
		.memory = ep->memory,
		.size = ep->bytes,
	};
	ret = usb4_core_create_ep(u4_core, &params, &id, &addr);
	if (ret)
		goto err_ep;
	ret = xa_err(xa_store(&client->eps, id, ep, GFP_KERNEL_ACCOUNT));
	if (ret)
		goto err_core;
	arg->ep = id;
	u4_to_user(&arg->addr, &addr);
	arg->sq_offset = offset_of(ep->sq_number);
	arg->sq_bytes = ep->sq->bytes;
	arg->rq_offset = offset_of(ep->rq_number);
	arg->rq_bytes = ep->rq->bytes;
	return 0;

err_core:
	usb4_core_destroy_ep(u4_core, client->id, id);
err_ep:
	u4_ep_free(client, ep);
	return ret;
}

/**
 * u4_nudge() - something was destroyed: have the links tell the peers
 */
void u4_nudge(void)
{
	rcu_read_lock();
	usb4_core_nudge(u4_core);
	rcu_read_unlock();
}

int u4_destroy_ep(struct u4_client *client, void *data)
{
	struct usb4_ring_destroy *arg = data;
	struct u4_ep *ep;
	int ret;

	ret = check_destroy(arg);
	if (ret)
		return ret;
	ep = xa_load(&client->eps, arg->id);
	if (!ep)
		return -ENOENT;
	ret = usb4_core_destroy_ep(u4_core, client->id, arg->id);
	if (ret)
		return ret;
	xa_erase(&client->eps, arg->id);
	u4_ep_free(client, ep);
	u4_nudge();
	return 0;
}

/* Address handles */

static bool is_own(const struct usb4_core_node *node)
{
	return node->low == u4_node.low && node->high == u4_node.high;
}

/* Waits until there is a link to a host, or none is to be expected. */
static int wait_for_link(const struct usb4_core_node *node, u64 timeout)
{
	long ret;

#define DECIDED (usb4_core_link_is_up(u4_core, node) || !u4_rails_expect(node))
	if (timeout == USB4_RING_FOREVER)
		ret = wait_event_interruptible(u4_links_wait, DECIDED);
	else
		ret = wait_event_interruptible_hrtimeout(u4_links_wait, DECIDED,
							 u4_ktime(timeout));
#undef DECIDED
	if (ret == -ETIME)
		return -ETIMEDOUT;
	return ret ? -EINTR : 0;
}

/* A link may go down between two looks; the deadline does not move. */
static int link_to(const struct usb4_core_node *node, u64 timeout)
{
	if (is_own(node))
		return u4_loop_start();
	if (usb4_core_link_is_up(u4_core, node))
		return 0;
	if (!u4_rails_expect(node))
		return -EHOSTUNREACH;
	if (!timeout)
		return -EAGAIN;
	return wait_for_link(node, timeout);
}

static int make_ah(struct u4_client *client, struct usb4_ring_create_ah *arg)
{
	struct usb4_core_addr addr = from_user_addr(&arg->addr);
	struct u4_ep *ep;
	int ret = -ENOENT;

	mutex_lock(&client->lock);
	ep = xa_load(&client->eps, arg->ep);
	if (ep)
		ret = usb4_core_create_ah(u4_core, client->id, arg->ep,
					  ep->connected, &addr, &arg->ah);
	mutex_unlock(&client->lock);
	return ret;
}

/* Without the client's lock but for the last step: it may wait for long. */
int u4_create_ah(struct u4_client *client, void *data)
{
	struct usb4_ring_create_ah *arg = data;
	struct usb4_core_addr addr = from_user_addr(&arg->addr);
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (!xa_load(&client->eps, arg->ep))
		return -ENOENT;
	ret = link_to(&addr.node, arg->timeout_ns);
	if (ret)
		return ret;
	return make_ah(client, arg);
}

int u4_destroy_ah(struct u4_client *client, void *data)
{
	struct usb4_ring_destroy_ah *arg = data;
	struct u4_ep *ep;
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	ep = xa_load(&client->eps, arg->ep);
	if (!ep)
		return -ENOENT;
	if (ep->connected)
		return -EISCONN;
	ret = usb4_core_destroy_ah(u4_core, client->id, arg->ep, arg->ah);
	u4_nudge();
	return ret;
}
