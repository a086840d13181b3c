// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A client's memory regions.
 *
 * In C for their pages (memory.c). A region that is deregistered while work in
 * flight uses it may linger: its last use has it reclaimed.
 */
#include <linux/cred.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/uidgid.h>
#include <linux/workqueue.h>

#include "client.h"

/* Mark of regions that are deregistered and still in use. */
#define LINGERING	XA_MARK_0

static LIST_HEAD(u4_clients);
static LIST_HEAD(u4_users);
static DEFINE_MUTEX(u4_clients_lock);	/* both */

static int check_reg_mr(const struct usb4_ring_reg_mr *arg)
{
	if (arg->flags & ~(USB4_RING_REG_MR_PEER | USB4_RING_REG_MR_DMABUF))
		return -EOPNOTSUPP;
	if (!(arg->flags & USB4_RING_REG_MR_PEER) &&
	    (arg->node_low || arg->node_high))
		return -EINVAL;
	if (arg->access & ~(USB4_RING_ACCESS_REMOTE_READ |
			    USB4_RING_ACCESS_REMOTE_WRITE |
			    USB4_RING_ACCESS_REMOTE_ATOMIC |
			    USB4_RING_ACCESS_READ_ONLY))
		return -EINVAL;
	if (arg->access & USB4_RING_ACCESS_READ_ONLY &&
	    arg->access & (USB4_RING_ACCESS_REMOTE_WRITE |
			   USB4_RING_ACCESS_REMOTE_ATOMIC))
		return -EINVAL;
	if (arg->access & USB4_RING_ACCESS_REMOTE_ATOMIC &&
	    (arg->addr % sizeof(u64) || arg->dmabuf_offset % sizeof(u64)))
		return -EINVAL;
	if (arg->reserved)
		return -EINVAL;
	if (!(arg->flags & USB4_RING_REG_MR_DMABUF) &&
	    (arg->dmabuf_fd || arg->dmabuf_offset))
		return -EINVAL;
	return 0;
}

/* The memory is the core's from here on, whatever this returns. */
static int store_mr(struct u4_client *client, struct usb4_core_mr_params *mr)
{
	int ret;

	ret = usb4_core_register(u4_core, mr);
	if (ret)
		return ret;
	ret = xa_err(xa_store(&client->mrs, mr->local_key, xa_mk_value(0),
			      GFP_KERNEL_ACCOUNT));
	if (ret)
		usb4_core_reclaim(u4_core, client->id, mr->local_key, true);
	return ret;
}

static struct u4_mem *take_memory(const struct u4_region_spec *spec)
{
	bool writable = !(spec->access & USB4_RING_ACCESS_READ_ONLY);

	if (spec->kernel)
		return u4_mem_own(spec->kernel, spec->len);
	if (spec->dmabuf)
		return u4_mem_import(u4_chardev_device(), spec->fd,
				     spec->offset, spec->len, writable);
	return u4_mem_pin(spec->start, spec->len, writable);
}

/**
 * u4_region_make() - register memory of the calling process
 * @client: whose; the process is its own
 * @spec: what memory, and what for
 * @keys: where to put its keys
 *
 * Without the client's lock but for the last step: it may wait for pages.
 *
 * Return: 0 or an error.
 */
int u4_region_make(struct u4_client *client, const struct u4_region_spec *spec,
		   struct u4_keys *keys)
{
	struct usb4_core_mr_params params;
	struct u4_mem *mem;
	int ret;

	mem = take_memory(spec);
	if (IS_ERR(mem))
		return PTR_ERR(mem);
	params = (struct usb4_core_mr_params) {
		.client = client->id,
		.access = spec->access,
		.addr = spec->addr,
		.len = spec->len,
		.mem = (size_t)mem,
		.bound = spec->bound,
		.narrow = spec->narrow,
		.peer = spec->peer,
		.pd = spec->pd,
	};
	mutex_lock(&client->lock);
	ret = store_mr(client, &params);
	mutex_unlock(&client->lock);
	keys->local = params.local_key;
	keys->remote = params.remote_key;
	return ret;
}

int u4_reg_mr(struct u4_client *client, void *data)
{
	struct usb4_ring_reg_mr *arg = data;
	struct u4_region_spec spec;
	struct u4_keys keys = {};
	int ret;

	ret = check_reg_mr(arg);
	if (ret)
		return ret;
	spec = (struct u4_region_spec) {
		.addr = arg->addr,
		.start = arg->addr,
		.len = arg->len,
		.access = arg->access,
		.dmabuf = arg->flags & USB4_RING_REG_MR_DMABUF,
		.fd = arg->dmabuf_fd,
		.offset = arg->dmabuf_offset,
		.bound = arg->flags & USB4_RING_REG_MR_PEER,
		.peer.low = arg->node_low,
		.peer.high = arg->node_high,
	};
	ret = u4_region_make(client, &spec, &keys);
	arg->local_key = keys.local;
	arg->remote_key = keys.remote;
	return ret;
}

/**
 * u4_region_unmake() - deregister memory
 * @client: whose; locked
 * @key: its local key
 * @linger: work in flight may use it to its end; else nothing touches it when this
 *	returns
 *
 * Return: 0, or -ENOENT if the client has no such region.
 */
int u4_region_unmake(struct u4_client *client, u32 key, bool linger)
{
	int ret;

	lockdep_assert_held(&client->lock);
	if (!xa_load(&client->mrs, key) ||
	    xa_get_mark(&client->mrs, key, LINGERING))
		return -ENOENT;
	/* First: its last use may end before the core's answer is here. */
	xa_set_mark(&client->mrs, key, LINGERING);
	ret = usb4_core_deregister(u4_core, client->id, key);
	if (!ret && linger)
		return 0;
	if (!ret)
		usb4_core_reclaim(u4_core, client->id, key, true);
	xa_erase(&client->mrs, key);
	return min(ret, 0);
}

int u4_dereg_mr(struct u4_client *client, void *data)
{
	struct usb4_ring_dereg_mr *arg = data;

	if (arg->flags & ~USB4_RING_DEREG_MR_LINGER)
		return -EOPNOTSUPP;
	if (arg->reserved)
		return -EINVAL;
	return u4_region_unmake(client, arg->local_key,
				arg->flags & USB4_RING_DEREG_MR_LINGER);
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

/* With the lists' lock, which this gives back. */
static void free_user(struct kref *ref)
{
	struct u4_user *user = container_of(ref, struct u4_user, ref);

	list_del(&user->list);
	mutex_unlock(&u4_clients_lock);
	kfree(user);
}

/**
 * u4_user_put() - give back a client's reference on its user
 * @user: the user
 */
void u4_user_put(struct u4_user *user)
{
	kref_put_mutex(&user->ref, free_user, &u4_clients_lock);
}

/*
 * With the lists' lock, which keeps users. One whose clients have all ended is the
 * same still while a child has queues of theirs mapped, if it was let have them
 * (MADV_DOFORK).
 */
static struct u4_user *get_user_of(kuid_t uid)
{
	struct u4_user *user;

	list_for_each_entry(user, &u4_users, list) {
		if (uid_eq(user->uid, uid)) {
			kref_get(&user->ref);
			return user;
		}
	}
	user = kzalloc_obj(*user, GFP_KERNEL_ACCOUNT);
	if (!user)
		return NULL;
	kref_init(&user->ref);
	user->uid = uid;
	list_add(&user->list, &u4_users);
	return user;
}

/**
 * u4_regions_add() - a client may have regions from now on
 * @client: the client; gets its user, to be given back to u4_user_put()
 *
 * Return: 0; -ENOSPC if the user has too many clients; -ENOMEM.
 */
int u4_regions_add(struct u4_client *client)
{
	struct u4_user *user;
	bool full;

	mutex_lock(&u4_clients_lock);
	user = get_user_of(current_uid());
	full = user && user->clients >= U4_USER_CLIENTS && !client->exempt;
	if (user && !full) {
		user->clients++;
		client->user = user;
		list_add(&client->list, &u4_clients);
	}
	mutex_unlock(&u4_clients_lock);
	if (!user)
		return -ENOMEM;
	if (full) {
		u4_user_put(user);
		return -ENOSPC;
	}
	return 0;
}

/**
 * u4_regions_remove() - a client has gone; the core took care of its regions
 * @client: the client
 */
void u4_regions_remove(struct u4_client *client)
{
	mutex_lock(&u4_clients_lock);
	list_del(&client->list);
	client->user->clients--;
	mutex_unlock(&u4_clients_lock);
}

/**
 * u4_regions_exit() - there are no more clients
 */
void u4_regions_exit(void)
{
	cancel_work_sync(&u4_reclaim_work);
}
