// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * /dev/usb4ring: the ring API of crates/ring-abi (usb4_ring.h), for clients.
 *
 * In C because of files, ioctls and mappings. What an ioctl means is said, and
 * what it may do decided, in the core; here its argument is copied once, the
 * objects a client names are looked up among its own, and memory is had.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/xarray.h>

#include "usb4_rdma.h"
#include "usb4_ring.h"

/*
 * Queue memory of one client: enough for sixteen endpoints with queues of the
 * largest depth, or all it may have with usual ones.
 */
#define MAX_QUEUE_BYTES	(128UL << 20)

/* A queue is mapped at its number times this; none is larger. */
#define OFFSET_SHIFT	32

/* Peers listed in one call. */
#define MAX_PEERS	64

/* Mark of regions that are deregistered and still in use. */
#define LINGERING	XA_MARK_0

/**
 * struct u4_queue - memory of a queue, shared with a client
 * @ref: of the client, and of the core
 * @words: its words
 * @bytes: how large it is
 */
struct u4_queue {
	struct kref ref;
	void *words;
	size_t bytes;
};

/**
 * struct u4_cq - a client's completion queue
 * @ref: of the client, and of whoever waits
 * @queue: its memory
 * @memory: what the core keeps for it
 * @event: signalled when it is armed and gets an entry, or %NULL
 * @wait: woken then as well
 * @number: of its mapping
 * @dead: it has been destroyed
 */
struct u4_cq {
	struct kref ref;
	struct u4_queue *queue;
	void *memory;
	struct eventfd_ctx *event;
	wait_queue_head_t wait;
	u32 number;
	bool dead;
};

/**
 * struct u4_ep - a client's endpoint
 * @sq: memory of its submission queue
 * @rq: memory of its receive queue
 * @memory: what the core keeps for it
 * @sq_number: of the submission queue's mapping
 * @rq_number: of the receive queue's mapping
 * @connected: it is of that kind
 */
struct u4_ep {
	struct u4_queue *sq;
	struct u4_queue *rq;
	void *memory;
	u32 sq_number;
	u32 rq_number;
	bool connected;
};

/**
 * struct u4_client - an open /dev/usb4ring
 * @list: on the list of clients
 * @id: its name in the core
 * @mm: the process it is of; only compared
 * @lock: around whatever makes or destroys its objects
 * @cqs: completion queues, by name
 * @eps: endpoints, by name
 * @mrs: memory regions, by local key; a value entry each
 * @queues: queue memory, by number of its mapping
 * @queue_bytes: bytes of it
 */
struct u4_client {
	struct list_head list;
	u32 id;
	struct mm_struct *mm;
	struct mutex lock;	/* what is below */
	struct xarray cqs;
	struct xarray eps;
	struct xarray mrs;
	struct xarray queues;
	size_t queue_bytes;
};

static LIST_HEAD(u4_clients);
static DEFINE_MUTEX(u4_clients_lock);

/* Arguments */

#define COPY_ARG(arg, user, last) \
	copy_arg(&(arg), sizeof(arg), offsetofend(typeof(arg), last), user)

/*
 * An argument begins with its size as the caller knows it. What is missing is
 * zero; what is too much must be. Every argument begins like this one.
 */
struct arg_head {
	__u32 size;
	__u32 flags;
};

static int copy_arg(void *arg, size_t size, size_t least, void __user *user)
{
	__u32 given;
	int ret;

	if (get_user(given, &((struct arg_head __user *)user)->size))
		return -EFAULT;
	if (given < least)
		return -EINVAL;
	ret = copy_struct_from_user(arg, size, user, given);
	/* Read again, for all we know: what was copied counts. */
	((struct arg_head *)arg)->size = given;
	return ret;
}

static int return_arg(void __user *user, const void *arg, size_t size)
{
	const struct arg_head *head = arg;

	if (copy_to_user(user, arg, min_t(size_t, head->size, size)))
		return -EFAULT;
	return 0;
}

/* Queues */

static void free_queue(struct kref *ref)
{
	struct u4_queue *queue = container_of(ref, struct u4_queue, ref);

	/* Pages that are mapped stay until they are unmapped. */
	vfree(queue->words);
	kfree(queue);
}

static void put_queue(struct u4_queue *queue)
{
	kref_put(&queue->ref, free_queue);
}

void usb4_home_put_queue(size_t handle)
{
	put_queue((struct u4_queue *)handle);
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
	if (bytes > MAX_QUEUE_BYTES - client->queue_bytes)
		return ERR_PTR(-EDQUOT);
	queue = kzalloc_obj(*queue, GFP_KERNEL_ACCOUNT);
	if (!queue)
		return ERR_PTR(ret);
	kref_init(&queue->ref);
	queue->bytes = bytes;
	queue->words = vmalloc_user(bytes);
	if (!queue->words)
		goto err_queue;
	ret = xa_alloc(&client->queues, number, queue,
		       XA_LIMIT(1, S32_MAX >> 1), GFP_KERNEL_ACCOUNT);
	if (ret)
		goto err_words;
	client->queue_bytes += bytes;
	return queue;

err_words:
	vfree(queue->words);
err_queue:
	kfree(queue);
	return ERR_PTR(ret);
}

static void drop_queue(struct u4_client *client, struct u4_queue *queue,
		       u32 number)
{
	xa_erase(&client->queues, number);
	client->queue_bytes -= queue->bytes;
	put_queue(queue);
}

/* The core gets a reference of its own. */
static struct usb4_core_queue lend_queue(struct u4_queue *queue)
{
	kref_get(&queue->ref);
	return (struct usb4_core_queue) {
		.words = queue->words,
		.count = queue->bytes / sizeof(u64),
		.handle = (size_t)queue,
	};
}

static u64 offset_of(u32 number)
{
	return (u64)number << OFFSET_SHIFT;
}

static int ring_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct u4_client *client = file->private_data;
	unsigned long shift = OFFSET_SHIFT - PAGE_SHIFT;
	unsigned long bytes = vma->vm_end - vma->vm_start;
	struct u4_queue *queue;
	int ret = -EINVAL;

	if (client->mm != current->mm)
		return -EPERM;
	if (!(vma->vm_flags & VM_SHARED) ||
	    vma->vm_pgoff & ((1UL << shift) - 1))
		return ret;
	mutex_lock(&client->lock);
	queue = xa_load(&client->queues, vma->vm_pgoff >> shift);
	if (queue && bytes <= PAGE_ALIGN(queue->bytes)) {
		/* A child has no use for it. */
		vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
		ret = remap_vmalloc_range(vma, queue->words, 0);
	}
	mutex_unlock(&client->lock);
	return ret;
}

/* Completion queues */

static void free_cq(struct kref *ref)
{
	struct u4_cq *cq = container_of(ref, struct u4_cq, ref);

	if (cq->event)
		eventfd_ctx_put(cq->event);
	kvfree(cq->memory);
	put_queue(cq->queue);
	kfree(cq);
}

void usb4_home_wake(size_t waker)
{
	struct u4_cq *cq = (struct u4_cq *)waker;

	if (cq->event)
		eventfd_signal(cq->event);
	wake_up_all(&cq->wait);
}

/* The core is done with it: nobody wakes it any more. */
static void drop_cq(struct u4_client *client, struct u4_cq *cq, u32 id)
{
	xa_erase(&client->cqs, id);
	xa_erase(&client->queues, cq->number);
	client->queue_bytes -= cq->queue->bytes;
	WRITE_ONCE(cq->dead, true);
	wake_up_all(&cq->wait);
	kref_put(&cq->ref, free_cq);
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

static int create_cq(struct u4_client *client, void __user *user)
{
	struct usb4_ring_create_cq arg;
	struct usb4_core_cq_params params;
	struct u4_cq *cq;
	u32 id;
	int ret;

	ret = COPY_ARG(arg, user, bytes);
	if (ret)
		return ret;
	if (arg.flags)
		return -EOPNOTSUPP;
	if (arg.reserved || arg.event_fd < -1)
		return -EINVAL;
	cq = new_cq(client, arg.depth, arg.event_fd);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	params = (struct usb4_core_cq_params) {
		.client = client->id,
		.depth = arg.depth,
		.queue = lend_queue(cq->queue),
		.waker = (size_t)cq,
		.memory = cq->memory,
		.size = usb4_core_cq_size(arg.depth),
	};
	ret = usb4_core_create_cq(u4_core, &params, &id);
	if (ret)
		goto err_cq;
	ret = xa_err(xa_store(&client->cqs, id, cq, GFP_KERNEL_ACCOUNT));
	if (ret)
		goto err_core;
	arg.cq = id;
	arg.offset = offset_of(cq->number);
	arg.bytes = cq->queue->bytes;
	ret = return_arg(user, &arg, sizeof(arg));
	if (ret)
		goto err_stored;
	return 0;

err_stored:
	xa_erase(&client->cqs, id);
err_core:
	usb4_core_destroy_cq(u4_core, client->id, id);
err_cq:
	xa_erase(&client->queues, cq->number);
	client->queue_bytes -= cq->queue->bytes;
	kref_put(&cq->ref, free_cq);
	return ret;
}

static int copy_destroy(struct usb4_ring_destroy *arg, void __user *user)
{
	int ret = COPY_ARG(*arg, user, reserved);

	if (ret)
		return ret;
	if (arg->flags)
		return -EOPNOTSUPP;
	return arg->reserved ? -EINVAL : 0;
}

static int destroy_cq(struct u4_client *client, void __user *user)
{
	struct usb4_ring_destroy arg;
	struct u4_cq *cq;
	int ret;

	ret = copy_destroy(&arg, user);
	if (ret)
		return ret;
	cq = xa_load(&client->cqs, arg.id);
	if (!cq)
		return -ENOENT;
	ret = usb4_core_destroy_cq(u4_core, client->id, arg.id);
	if (ret)
		return ret;
	drop_cq(client, cq, arg.id);
	return 0;
}

/* Endpoints */

static void free_ep(struct u4_client *client, struct u4_ep *ep)
{
	drop_queue(client, ep->rq, ep->rq_number);
	drop_queue(client, ep->sq, ep->sq_number);
	kvfree(ep->memory);
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
	ep->memory = kvzalloc(usb4_core_ep_size(handles), GFP_KERNEL_ACCOUNT);
	if (!ep->memory)
		goto err_ep;
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
err_ep:
	kfree(ep);
	return ERR_PTR(ret);
}

static void to_user_addr(struct usb4_ring_addr *to,
			 const struct usb4_core_addr *from)
{
	to->node_low = from->node.low;
	to->node_high = from->node.high;
	to->ep = from->ep;
	to->incarnation = from->incarnation;
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

static int copy_create_ep(struct usb4_ring_create_ep *arg, void __user *user)
{
	int ret = COPY_ARG(*arg, user, rq_bytes);

	if (ret)
		return ret;
	if (arg->flags || arg->kind > USB4_RING_EP_CONNECTED)
		return -EOPNOTSUPP;
	if (arg->reserved || arg->max_ahs > USB4_RING_MAX_DEPTH)
		return -EINVAL;
	return 0;
}

static int create_ep(struct u4_client *client, void __user *user)
{
	struct usb4_ring_create_ep arg;
	struct usb4_core_ep_params params;
	struct usb4_core_addr addr;
	struct u4_ep *ep;
	u32 handles = 1;
	u32 id;
	int ret;

	ret = copy_create_ep(&arg, user);
	if (ret)
		return ret;
	if (arg.kind == USB4_RING_EP_DATAGRAM)
		handles = arg.max_ahs ?: u4_limits.default_ahs;
	ep = new_ep(client, &arg, handles);
	if (IS_ERR(ep))
		return PTR_ERR(ep);
	params = (struct usb4_core_ep_params) {
		.client = client->id,
		.kind = arg.kind,
		.send_cq = arg.send_cq,
		.recv_cq = arg.recv_cq,
		.sq_depth = arg.sq_depth,
		.rq_depth = arg.rq_depth,
		.sq = lend_queue(ep->sq),
		.rq = lend_queue(ep->rq),
		.handles = handles,
		.memory = ep->memory,
		.size = usb4_core_ep_size(handles),
	};
	ret = usb4_core_create_ep(u4_core, &params, &id, &addr);
	if (ret)
		goto err_ep;
	ret = xa_err(xa_store(&client->eps, id, ep, GFP_KERNEL_ACCOUNT));
	if (ret)
		goto err_core;
	arg.ep = id;
	to_user_addr(&arg.addr, &addr);
	arg.sq_offset = offset_of(ep->sq_number);
	arg.sq_bytes = ep->sq->bytes;
	arg.rq_offset = offset_of(ep->rq_number);
	arg.rq_bytes = ep->rq->bytes;
	ret = return_arg(user, &arg, sizeof(arg));
	if (ret)
		goto err_stored;
	return 0;

err_stored:
	xa_erase(&client->eps, id);
err_core:
	usb4_core_destroy_ep(u4_core, client->id, id);
err_ep:
	free_ep(client, ep);
	return ret;
}

/* Links have something to say to the peers: flows that are closed. */
static void nudge(void)
{
	rcu_read_lock();
	usb4_core_nudge(u4_core);
	rcu_read_unlock();
}

static int destroy_ep(struct u4_client *client, void __user *user)
{
	struct usb4_ring_destroy arg;
	struct u4_ep *ep;
	int ret;

	ret = copy_destroy(&arg, user);
	if (ret)
		return ret;
	ep = xa_load(&client->eps, arg.id);
	if (!ep)
		return -ENOENT;
	ret = usb4_core_destroy_ep(u4_core, client->id, arg.id);
	if (ret)
		return ret;
	xa_erase(&client->eps, arg.id);
	free_ep(client, ep);
	nudge();
	return 0;
}

/* Address handles */

static bool is_own(const struct usb4_core_node *node)
{
	return node->low == u4_node.low && node->high == u4_node.high;
}

static ktime_t to_ktime(u64 ns)
{
	return ns_to_ktime(min_t(u64, ns, KTIME_MAX));
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
							 to_ktime(timeout));
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
static int create_ah(struct u4_client *client, void __user *user)
{
	struct usb4_ring_create_ah arg;
	struct usb4_core_addr addr;
	int ret;

	ret = COPY_ARG(arg, user, timeout_ns);
	if (ret)
		return ret;
	if (arg.flags)
		return -EOPNOTSUPP;
	if (!xa_load(&client->eps, arg.ep))
		return -ENOENT;
	addr = from_user_addr(&arg.addr);
	ret = link_to(&addr.node, arg.timeout_ns);
	if (ret)
		return ret;
	ret = make_ah(client, &arg);
	if (ret)
		return ret;
	ret = return_arg(user, &arg, sizeof(arg));
	if (ret)
		usb4_core_destroy_ah(u4_core, client->id, arg.ep, arg.ah);
	return ret;
}

static int destroy_ah(struct u4_client *client, void __user *user)
{
	struct usb4_ring_destroy_ah arg;
	struct u4_ep *ep;
	int ret;

	ret = COPY_ARG(arg, user, ah);
	if (ret)
		return ret;
	if (arg.flags)
		return -EOPNOTSUPP;
	ep = xa_load(&client->eps, arg.ep);
	if (!ep)
		return -ENOENT;
	if (ep->connected)
		return -EISCONN;
	ret = usb4_core_destroy_ah(u4_core, client->id, arg.ep, arg.ah);
	nudge();
	return ret;
}

/* Memory regions */

static int copy_reg_mr(struct usb4_ring_reg_mr *arg, void __user *user)
{
	int ret = COPY_ARG(*arg, user, node_high);

	if (ret)
		return ret;
	if (arg->flags & ~USB4_RING_REG_MR_PEER)
		return -EOPNOTSUPP;
	if (!(arg->flags & USB4_RING_REG_MR_PEER) &&
	    (arg->node_low || arg->node_high))
		return -EINVAL;
	if (arg->access & ~(USB4_RING_ACCESS_REMOTE_READ |
			    USB4_RING_ACCESS_REMOTE_WRITE |
			    USB4_RING_ACCESS_REMOTE_ATOMIC))
		return -EINVAL;
	if (arg->access & USB4_RING_ACCESS_REMOTE_ATOMIC &&
	    arg->addr % sizeof(u64))
		return -EINVAL;
	return 0;
}

static int reg_mr(struct u4_client *client, void __user *user)
{
	struct usb4_ring_reg_mr arg;
	struct usb4_core_mr_params params;
	struct u4_mem *mem;
	int ret;

	ret = copy_reg_mr(&arg, user);
	if (ret)
		return ret;
	mem = u4_mem_pin(arg.addr, arg.len);
	if (IS_ERR(mem))
		return PTR_ERR(mem);
	params = (struct usb4_core_mr_params) {
		.client = client->id,
		.access = arg.access,
		.addr = arg.addr,
		.len = arg.len,
		.mem = (size_t)mem,
		.bound = arg.flags & USB4_RING_REG_MR_PEER,
		.peer.low = arg.node_low,
		.peer.high = arg.node_high,
	};
	/* The memory is the core's from here on, whatever it returns. */
	ret = usb4_core_register(u4_core, &params);
	if (ret)
		return ret;
	ret = xa_err(xa_store(&client->mrs, params.local_key, xa_mk_value(0),
			      GFP_KERNEL_ACCOUNT));
	if (ret)
		goto err_core;
	arg.local_key = params.local_key;
	arg.remote_key = params.remote_key;
	ret = return_arg(user, &arg, sizeof(arg));
	if (ret)
		goto err_stored;
	return 0;

err_stored:
	xa_erase(&client->mrs, params.local_key);
err_core:
	usb4_core_reclaim(u4_core, client->id, params.local_key, true);
	return ret;
}

static int dereg_mr(struct u4_client *client, void __user *user)
{
	struct usb4_ring_dereg_mr arg;
	int ret;

	ret = COPY_ARG(arg, user, reserved);
	if (ret)
		return ret;
	if (arg.flags & ~USB4_RING_DEREG_MR_LINGER)
		return -EOPNOTSUPP;
	if (arg.reserved)
		return -EINVAL;
	if (!xa_load(&client->mrs, arg.local_key) ||
	    xa_get_mark(&client->mrs, arg.local_key, LINGERING))
		return -ENOENT;
	/* First: its last use may end before the core's answer is here. */
	xa_set_mark(&client->mrs, arg.local_key, LINGERING);
	ret = usb4_core_deregister(u4_core, client->id, arg.local_key);
	if (ret < 0)
		goto out;
	if (!ret && arg.flags & USB4_RING_DEREG_MR_LINGER)
		return 0;
	if (!ret)
		usb4_core_reclaim(u4_core, client->id, arg.local_key, true);
	ret = 0;
out:
	xa_erase(&client->mrs, arg.local_key);
	return ret;
}

/* Regions whose last use has ended. */
static void reclaim_work(struct work_struct *work)
{
	struct u4_client *client;
	unsigned long key;
	void *entry;

	mutex_lock(&u4_clients_lock);
	list_for_each_entry(client, &u4_clients, list) {
		mutex_lock(&client->lock);
		xa_for_each_marked(&client->mrs, key, entry, LINGERING)
			if (usb4_core_reclaim(u4_core, client->id, key, false))
				xa_erase(&client->mrs, key);
		mutex_unlock(&client->lock);
	}
	mutex_unlock(&u4_clients_lock);
}

static DECLARE_WORK(u4_reclaim_work, reclaim_work);

void usb4_home_region_idle(u32 client)
{
	schedule_work(&u4_reclaim_work);
}

/* What else there is to ask */

static int info(struct u4_client *client, void __user *user)
{
	struct usb4_ring_info arg;
	int ret;

	ret = COPY_ARG(arg, user, notice_offset);
	if (ret)
		return ret;
	if (arg.flags)
		return -EOPNOTSUPP;
	arg = (struct usb4_ring_info) {
		.size = arg.size,
		.abi_version = USB4_RING_ABI_VERSION,
		.node_low = u4_node.low,
		.node_high = u4_node.high,
		.max_message = u4_limits.max_message,
		.max_depth = u4_limits.max_depth,
		.max_cqs = u4_limits.max_cqs,
		.max_cq_entries = u4_limits.max_cq_entries,
		.max_eps = u4_limits.max_eps,
		.max_ahs = u4_limits.max_ahs,
		.max_mrs = u4_limits.max_mrs,
		.max_mr_bytes = u4_limits.max_mr_bytes,
	};
	strscpy_pad(arg.release, U4_VERSION, sizeof(arg.release));
	return return_arg(user, &arg, sizeof(arg));
}

static int source(struct u4_client *client, void __user *user)
{
	struct usb4_ring_source arg;
	struct usb4_core_addr addr;
	int ret;

	ret = COPY_ARG(arg, user, addr);
	if (ret)
		return ret;
	if (arg.flags)
		return -EOPNOTSUPP;
	if (arg.reserved)
		return -EINVAL;
	ret = usb4_core_source(u4_core, arg.src, &addr);
	if (ret)
		return ret;
	to_user_addr(&arg.addr, &addr);
	return return_arg(user, &arg, sizeof(arg));
}

static int put_peers(struct usb4_ring_peers *arg, u32 count,
		     const struct usb4_core_peer *peers, const bool *up)
{
	u8 __user *to = u64_to_user_ptr(arg->peers);
	struct usb4_ring_peer peer;
	size_t known = min_t(size_t, arg->stride, sizeof(peer));
	u32 i;

	for (i = 0; i < count; i++, to += arg->stride) {
		peer = (struct usb4_ring_peer) {
			.node_low = peers[i].node.low,
			.node_high = peers[i].node.high,
			.state = up[i] ? USB4_RING_PEER_UP :
					 USB4_RING_PEER_CONNECTING,
			.rails = up[i],
			.rate_mbps = up[i] ? peers[i].rate_mbps : 0,
		};
		if (copy_to_user(to, &peer, known) ||
		    clear_user(to + known, arg->stride - known))
			return -EFAULT;
	}
	return 0;
}

static int list_peers(struct u4_client *client, void __user *user)
{
	struct usb4_ring_peers arg;
	struct usb4_core_peer *peers;
	bool up[MAX_PEERS];
	u32 room;
	int ret;

	ret = COPY_ARG(arg, user, peers);
	if (ret)
		return ret;
	if (arg.flags)
		return -EOPNOTSUPP;
	/* An element is no larger than a page, however it may grow. */
	if (!arg.stride || arg.stride > PAGE_SIZE)
		return -EINVAL;
	peers = kcalloc(MAX_PEERS, sizeof(*peers), GFP_KERNEL);
	if (!peers)
		return -ENOMEM;
	room = min(arg.count, MAX_PEERS);
	arg.count = u4_rails_list(peers, up, room);
	ret = put_peers(&arg, min(arg.count, room), peers, up);
	kfree(peers);
	return ret ?: return_arg(user, &arg, sizeof(arg));
}

/* ENTER */

/* The indices of a queue's words; the client may have written anything there. */
static bool is_ready(const struct u4_cq *cq)
{
	const u64 *words = cq->queue->words;

	return READ_ONCE(words[USB4_RING_PRODUCER_WORD]) !=
	       READ_ONCE(words[USB4_RING_CONSUMER_WORD]);
}

/*
 * Whether nobody is to sleep on it. If it is not armed any more, it was woken
 * for something its client has taken since, and would not be woken again.
 */
static bool is_over(const struct u4_cq *cq)
{
	const u64 *words = cq->queue->words;

	return is_ready(cq) || READ_ONCE(cq->dead) ||
	       !(READ_ONCE(words[USB4_RING_FLAGS_WORD]) & USB4_RING_ARMED);
}

static struct u4_cq *get_cq(struct u4_client *client, u32 id)
{
	struct u4_cq *cq;

	xa_lock(&client->cqs);
	cq = xa_load(&client->cqs, id);
	if (cq)
		kref_get(&cq->ref);
	xa_unlock(&client->cqs);
	return cq;
}

static int wait_for_cq(struct u4_cq *cq, u64 timeout)
{
	long ret = 0;

	if (timeout == USB4_RING_FOREVER)
		ret = wait_event_interruptible(cq->wait, is_over(cq));
	else if (timeout)
		ret = wait_event_interruptible_hrtimeout(cq->wait, is_over(cq),
							 to_ktime(timeout));
	if (ret && ret != -ETIME)
		return -EINTR;
	if (READ_ONCE(cq->dead))
		return -ENOENT;
	return is_ready(cq) ? USB4_RING_ENTERED_READY : 0;
}

static int enter(struct u4_client *client, void __user *user)
{
	struct usb4_ring_enter arg;
	struct u4_cq *cq = NULL;
	bool any = false;
	int ret;

	ret = COPY_ARG(arg, user, timeout_ns);
	if (ret)
		return ret;
	if (arg.flags & ~(USB4_RING_ENTER_SUBMIT | USB4_RING_ENTER_PROGRESS |
			  USB4_RING_ENTER_WAIT))
		return -EOPNOTSUPP;
	if (arg.flags & USB4_RING_ENTER_SUBMIT &&
	    !xa_load(&client->eps, arg.ep))
		return -ENOENT;
	if (arg.flags & USB4_RING_ENTER_WAIT) {
		cq = get_cq(client, arg.cq);
		if (!cq)
			return -ENOENT;
	}
	/* Keeps the ports the core comes across; it does not sleep. */
	rcu_read_lock();
	if (arg.flags & USB4_RING_ENTER_SUBMIT)
		any |= usb4_core_submit(u4_core, arg.ep);
	if (arg.flags & USB4_RING_ENTER_PROGRESS)
		any |= usb4_core_progress(u4_core);
	rcu_read_unlock();
	if (cq) {
		ret = wait_for_cq(cq, arg.timeout_ns);
		kref_put(&cq->ref, free_cq);
	}
	if (ret < 0)
		return ret;
	return ret | (any ? USB4_RING_ENTERED_PROGRESS : 0);
}

/* Files */

static long locked(struct u4_client *client, void __user *user,
		   int (*call)(struct u4_client *client, void __user *user))
{
	long ret;

	mutex_lock(&client->lock);
	ret = call(client, user);
	mutex_unlock(&client->lock);
	return ret;
}

static long ring_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct u4_client *client = file->private_data;
	void __user *user = (void __user *)arg;

	/* A child of the process that opened it, or whoever was handed it. */
	if (client->mm != current->mm)
		return -EPERM;
	switch (cmd) {
	case USB4_RING_IOC_ENTER:
		return enter(client, user);
	case USB4_RING_IOC_INFO:
		return info(client, user);
	case USB4_RING_IOC_CREATE_CQ:
		return locked(client, user, create_cq);
	case USB4_RING_IOC_DESTROY_CQ:
		return locked(client, user, destroy_cq);
	case USB4_RING_IOC_CREATE_EP:
		return locked(client, user, create_ep);
	case USB4_RING_IOC_DESTROY_EP:
		return locked(client, user, destroy_ep);
	case USB4_RING_IOC_CREATE_AH:
		return create_ah(client, user);
	case USB4_RING_IOC_DESTROY_AH:
		return locked(client, user, destroy_ah);
	case USB4_RING_IOC_REG_MR:
		return locked(client, user, reg_mr);
	case USB4_RING_IOC_DEREG_MR:
		return locked(client, user, dereg_mr);
	case USB4_RING_IOC_SOURCE:
		return source(client, user);
	case USB4_RING_IOC_PEERS:
		return list_peers(client, user);
	default:
		return -ENOTTY;
	}
}

static int ring_open(struct inode *inode, struct file *file)
{
	struct u4_client *client;
	int ret;

	client = kzalloc_obj(*client, GFP_KERNEL_ACCOUNT);
	if (!client)
		return -ENOMEM;
	ret = usb4_core_add_client(u4_core, &client->id);
	if (ret) {
		kfree(client);
		return ret;
	}
	mutex_init(&client->lock);
	xa_init(&client->cqs);
	xa_init(&client->eps);
	xa_init(&client->mrs);
	xa_init_flags(&client->queues, XA_FLAGS_ALLOC1);
	client->mm = current->mm;
	mmgrab(client->mm);
	mutex_lock(&u4_clients_lock);
	list_add(&client->list, &u4_clients);
	mutex_unlock(&u4_clients_lock);
	file->private_data = client;
	return nonseekable_open(inode, file);
}

static int ring_release(struct inode *inode, struct file *file)
{
	struct u4_client *client = file->private_data;
	struct u4_cq *cq;
	struct u4_ep *ep;
	unsigned long id;

	mutex_lock(&u4_clients_lock);
	list_del(&client->list);
	mutex_unlock(&u4_clients_lock);
	/* Nothing touches its memory or queues when this returns. */
	usb4_core_remove_client(u4_core, client->id);
	xa_for_each(&client->eps, id, ep) {
		xa_erase(&client->eps, id);
		free_ep(client, ep);
	}
	xa_for_each(&client->cqs, id, cq)
		drop_cq(client, cq, id);
	xa_destroy(&client->cqs);
	xa_destroy(&client->eps);
	xa_destroy(&client->mrs);
	xa_destroy(&client->queues);
	mmdrop(client->mm);
	kfree(client);
	nudge();
	return 0;
}

static const struct file_operations ring_fops = {
	.owner = THIS_MODULE,
	.open = ring_open,
	.release = ring_release,
	.unlocked_ioctl = ring_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = ring_mmap,
};

static struct miscdevice ring_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "usb4ring",
	.fops = &ring_fops,
	/* As RDMA devices are: clients have quotas, and see their own only. */
	.mode = 0666,
};

/**
 * u4_chardev_init() - let clients in
 *
 * Return: 0 or an error.
 */
int u4_chardev_init(void)
{
	return misc_register(&ring_device);
}

/**
 * u4_chardev_exit() - no more clients; there are none
 */
void u4_chardev_exit(void)
{
	misc_deregister(&ring_device);
	cancel_work_sync(&u4_reclaim_work);
}
