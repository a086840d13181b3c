// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What usb4_rdma_ib.ko calls (verbs.h), so that this module needs no ib_core.
 *
 * In C because it is for C. The device that is made here has udev load
 * usb4_rdma_ib.ko, where there is one.
 *
 * A client's process may end while its context is there still: somebody else has
 * the descriptor of that. What it had is gone then, and who destroys it succeeds.
 */
#include <linux/export.h>
#include <linux/file.h>
#include <linux/notifier.h>
#include <linux/platform_device.h>

#include "verbs.h"

static ATOMIC_NOTIFIER_HEAD(watchers);
static struct platform_device *device;

/* Clients */

/**
 * u4_verbs_open() - make a client of the calling process
 * @file: where to put the file through which it maps and calls
 *
 * Return: the client, to be given back to u4_verbs_close(), or an error.
 */
struct u4_client *u4_verbs_open(struct file **file)
{
	struct u4_client *client;

	client = u4_client_new(false);
	if (IS_ERR(client))
		return client;
	*file = u4_client_file(client);
	if (IS_ERR(*file)) {
		u4_client_put(client);
		return ERR_CAST(*file);
	}
	return client;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_open, "USB4_RDMA");

/**
 * u4_verbs_close() - be done with a client
 * @client: the client, of whose objects none is left
 */
void u4_verbs_close(struct u4_client *client)
{
	u4_client_put(client);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_close, "USB4_RDMA");

/**
 * u4_verbs_notice() - where the notice page is mapped
 */
u64 u4_verbs_notice(void)
{
	return u4_queue_offset(U4_NOTICE_NUMBER);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_notice, "USB4_RDMA");

/* The client's lock is taken, and there is a client. */
static int enter(struct u4_client *client)
{
	mutex_lock(&client->lock);
	if (!test_bit(U4_CLIENT_ENDED, &client->state))
		return 0;
	mutex_unlock(&client->lock);
	return -ENODEV;
}

/* The same for who makes something, which only its own process may. */
static int enter_own(struct u4_client *client)
{
	return u4_client_is_own(client) ? enter(client) : -EPERM;
}

static void leave(struct u4_client *client)
{
	mutex_unlock(&client->lock);
}

/* Its objects */

static struct u4_verbs_queue place_of(const struct u4_queue *queue, u32 number)
{
	return (struct u4_verbs_queue) {
		.offset = u4_queue_offset(number),
		.bytes = queue->bytes,
		.words = queue->words,
	};
}

/**
 * u4_verbs_create_cq() - make a completion queue
 * @client: whose
 * @spec: what it is to be like
 * @id: where to put its name
 * @queue: where to put where it is mapped
 *
 * Return: 0 or an error.
 */
int u4_verbs_create_cq(struct u4_client *client, const struct u4_cq_spec *spec,
		       u32 *id, struct u4_verbs_queue *queue)
{
	struct u4_cq *cq;
	int ret;

	ret = enter_own(client);
	if (ret)
		return ret;
	cq = u4_cq_make(client, spec, id);
	ret = PTR_ERR_OR_ZERO(cq);
	if (!ret)
		*queue = place_of(cq->queue, cq->number);
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_create_cq, "USB4_RDMA");

/**
 * u4_verbs_destroy_cq() - destroy a completion queue
 * @client: whose
 * @id: its name
 *
 * Nobody is notified of it when this returns.
 *
 * Return: 0 or an error: -EBUSY if a queue pair has it.
 */
int u4_verbs_destroy_cq(struct u4_client *client, u32 id)
{
	int ret;

	if (enter(client))
		return 0;
	ret = u4_cq_unmake(client, id);
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_destroy_cq, "USB4_RDMA");

/**
 * u4_verbs_arm_cq() - have a completion queue notify of its next entry
 * @client: whose
 * @id: its name
 * @solicited: only of one that is solicited, or an error
 *
 * As the client does it in its own memory.
 *
 * Return: whether there are entries, of which it may not notify; or an error.
 */
int u4_verbs_arm_cq(struct u4_client *client, u32 id, bool solicited)
{
	struct u4_cq *cq;
	int ret;

	ret = enter(client);
	if (ret)
		return ret;
	cq = xa_load(&client->cqs, id);
	ret = cq ? u4_cq_arm(cq, solicited) : -ENOENT;
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_arm_cq, "USB4_RDMA");

/**
 * u4_verbs_create_qp() - make a queue pair
 * @client: whose
 * @spec: what it is to be like
 * @id: where to put its name
 * @qpn: where to put its number
 * @sq: where to put where its submission queue is mapped
 * @rq: where to put where its receive queue is mapped
 *
 * Return: 0 or an error.
 */
int u4_verbs_create_qp(struct u4_client *client, const struct u4_ep_spec *spec,
		       u32 *id, u32 *qpn, struct u4_verbs_queue *sq,
		       struct u4_verbs_queue *rq)
{
	struct usb4_core_addr addr;
	struct u4_ep *ep;
	int ret;

	ret = enter_own(client);
	if (ret)
		return ret;
	ep = u4_ep_make(client, spec, id, &addr);
	ret = PTR_ERR_OR_ZERO(ep);
	if (!ret) {
		*qpn = addr.ep;
		*sq = place_of(ep->sq, ep->sq_number);
		*rq = place_of(ep->rq, ep->rq_number);
	}
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_create_qp, "USB4_RDMA");

/**
 * u4_verbs_modify_qp() - change a queue pair
 * @client: whose
 * @id: its name
 * @attr: what is to change
 *
 * Return: 0 or an error.
 */
int u4_verbs_modify_qp(struct u4_client *client, u32 id,
		       const struct usb4_core_qp_attr *attr)
{
	int ret;

	ret = enter(client);
	if (ret)
		return ret;
	ret = usb4_core_modify_qp(u4_core, client->id, id, attr);
	if (!ret && attr->mask & USB4_CORE_QP_STATE)
		u4_nudge();
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_modify_qp, "USB4_RDMA");

/**
 * u4_verbs_query_qp() - how a queue pair is
 * @client: whose
 * @id: its name
 * @attr: where to put it
 *
 * Return: 0 or an error.
 */
int u4_verbs_query_qp(struct u4_client *client, u32 id,
		      struct usb4_core_qp_attr *attr)
{
	int ret;

	ret = enter(client);
	if (ret)
		return ret;
	ret = usb4_core_query_qp(u4_core, client->id, id, attr);
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_query_qp, "USB4_RDMA");

/**
 * u4_verbs_create_srq() - make a shared receive queue
 * @client: whose
 * @spec: what it is to be like
 * @id: where to put its name
 * @rq: where to put where it is mapped
 *
 * Return: 0 or an error.
 */
int u4_verbs_create_srq(struct u4_client *client,
			const struct u4_srq_spec *spec, u32 *id,
			struct u4_verbs_queue *rq)
{
	struct u4_ep *ep;
	int ret;

	ret = enter_own(client);
	if (ret)
		return ret;
	ep = u4_srq_make(client, spec, id);
	ret = PTR_ERR_OR_ZERO(ep);
	if (!ret)
		*rq = place_of(ep->rq, ep->rq_number);
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_create_srq, "USB4_RDMA");

/**
 * u4_verbs_limit_srq() - have it told when few receives are left
 * @client: whose
 * @id: the shared receive queue's name
 * @limit: fewer than these, once; 0 for never
 *
 * Return: 0 or an error.
 */
int u4_verbs_limit_srq(struct u4_client *client, u32 id, u32 limit)
{
	int ret;

	ret = enter(client);
	if (ret)
		return ret;
	ret = usb4_core_limit_srq(u4_core, client->id, id, limit);
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_limit_srq, "USB4_RDMA");

/**
 * u4_verbs_srq_limit() - the limit that is in force
 * @client: whose
 * @id: the shared receive queue's name
 * @limit: where to put it; 0 if it has been told, or there was none
 *
 * Return: 0 or an error.
 */
int u4_verbs_srq_limit(struct u4_client *client, u32 id, u32 *limit)
{
	int ret;

	ret = enter(client);
	if (ret)
		return ret;
	ret = usb4_core_srq_limit(u4_core, client->id, id, limit);
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_srq_limit, "USB4_RDMA");

/**
 * u4_verbs_destroy_qp() - destroy a queue pair, or a shared receive queue
 * @client: whose
 * @id: its name
 *
 * Nobody is notified of it when this returns.
 *
 * Return: 0 or an error: -EBUSY if queue pairs draw from it.
 */
int u4_verbs_destroy_qp(struct u4_client *client, u32 id)
{
	int ret;

	if (enter(client))
		return 0;
	ret = u4_ep_unmake(client, id);
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_destroy_qp, "USB4_RDMA");

/**
 * u4_verbs_reg_mr() - register memory of the calling process
 * @client: whose
 * @spec: what memory, and what for
 * @keys: where to put its keys
 *
 * Return: 0 or an error.
 */
int u4_verbs_reg_mr(struct u4_client *client, const struct u4_region_spec *spec,
		    struct u4_keys *keys)
{
	if (!u4_client_is_own(client))
		return -EPERM;
	return u4_region_make(client, spec, keys);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_reg_mr, "USB4_RDMA");

/**
 * u4_verbs_dereg_mr() - deregister memory
 * @client: whose
 * @key: its local key
 *
 * Nothing touches it when this returns.
 *
 * Return: 0 or an error.
 */
int u4_verbs_dereg_mr(struct u4_client *client, u32 key)
{
	int ret;

	if (enter(client))
		return 0;
	ret = u4_region_unmake(client, key, false);
	leave(client);
	return ret;
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_dereg_mr, "USB4_RDMA");

/* Links */

/**
 * u4_verbs_reach() - see that there is a link to a host
 * @node: the host
 * @timeout: nanoseconds to wait for one that is expected
 *
 * Return: 0 or an error.
 */
int u4_verbs_reach(const struct usb4_core_node *node, u64 timeout)
{
	return u4_link_to(node, timeout);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_reach, "USB4_RDMA");

/**
 * u4_verbs_guid() - a host's GUID
 * @node: the host
 *
 * Return: the lower half of its GID, as a number.
 */
u64 u4_verbs_guid(const struct usb4_core_node *node)
{
	return usb4_core_guid(node);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_guid, "USB4_RDMA");

/**
 * u4_verbs_find() - the host of a GUID
 * @guid: the GUID
 * @node: where to put the host
 *
 * Return: whether it is this host, or one that a cable leads to.
 */
bool u4_verbs_find(u64 guid, struct usb4_core_node *node)
{
	if (usb4_core_guid(&u4_node) == guid) {
		*node = u4_node;
		return true;
	}
	return u4_rails_find(guid, node);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_find, "USB4_RDMA");

/**
 * u4_verbs_links() - the links to other hosts, together
 * @links: where to put that
 */
void u4_verbs_links(struct u4_verbs_links *links)
{
	u4_rails_sum(&links->rails, &links->rate_mbps);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_links, "USB4_RDMA");

/**
 * u4_verbs_count() - what has happened on links to other hosts since the beginning
 * @sum: where to put that
 *
 * May sleep.
 */
void u4_verbs_count(struct usb4_core_link_status *sum)
{
	u4_links_count(sum);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_count, "USB4_RDMA");

/**
 * u4_links_changed() - a link has come up or gone, or a peer has become known
 *
 * May be called with spinlocks held.
 */
void u4_links_changed(void)
{
	wake_up_all(&u4_links_wait);
	atomic_notifier_call_chain(&watchers, 0, NULL);
}

/**
 * u4_verbs_watch() - be told when links come and go
 * @watcher: who; called with spinlocks held
 */
void u4_verbs_watch(struct notifier_block *watcher)
{
	atomic_notifier_chain_register(&watchers, watcher);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_watch, "USB4_RDMA");

/**
 * u4_verbs_unwatch() - be told no more
 * @watcher: who; not called when this returns
 */
void u4_verbs_unwatch(struct notifier_block *watcher)
{
	atomic_notifier_chain_unregister(&watchers, watcher);
}
EXPORT_SYMBOL_NS_GPL(u4_verbs_unwatch, "USB4_RDMA");

/**
 * u4_verbs_init() - offer verbs
 *
 * Return: 0 or an error.
 */
int u4_verbs_init(void)
{
	device = platform_device_register_simple(U4_VERBS_DEVICE,
						 PLATFORM_DEVID_NONE, NULL, 0);
	return PTR_ERR_OR_ZERO(device);
}

/**
 * u4_verbs_exit() - offer them no more; usb4_rdma_ib.ko is gone
 */
void u4_verbs_exit(void)
{
	platform_device_unregister(device);
}
