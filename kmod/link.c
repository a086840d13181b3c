// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Links: their rails, the thread that drives one when no client does, and what
 * wakes it.
 *
 * In C because of pages, threads and timers. Who drives is decided in
 * crates/kobj/src/drive.rs.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/sched/task.h>
#include <linux/slab.h>

#include "port.h"

/* How much later than asked the thread may wake up. */
#define SLACK_NS	20000

/* What usb4_core_link_expired() returns besides nanoseconds. */
#define EXPIRED_STOP	0
#define EXPIRED_TAKEN	U64_MAX

/* Links, and which rails they have. */
DEFINE_MUTEX(u4_links_lock);

/* Driving */

static void wake(struct u4_link *link)
{
	/* After what it is woken for. Pairs with the barriers in sleep_until(). */
	smp_store_mb(link->woken, 1);
	wake_up_process(link->task);
}

static void sleep_until(struct u4_link *link, u64 at)
{
	ktime_t expires = ns_to_ktime(min_t(u64, at, KTIME_MAX));

	set_current_state(TASK_IDLE);
	if (!READ_ONCE(link->woken) && !kthread_should_stop())
		schedule_hrtimeout_range(&expires, SLACK_NS, HRTIMER_MODE_ABS);
	__set_current_state(TASK_RUNNING);
	/*
	 * Before the thread looks for work: what a wake-up was for whose mark
	 * this wipes out is seen then.
	 */
	smp_store_mb(link->woken, 0);
}

static int link_thread(void *data)
{
	struct u4_link *link = data;
	u64 at;

	while (!kthread_should_stop()) {
		rcu_read_lock();
		at = usb4_core_link_run(u4_core, link->core);
		rcu_read_unlock();
		if (at)
			sleep_until(link, at);
		else
			/*
			 * RCU may want it. Others get the processor when the
			 * core has given the link up for them.
			 */
			cond_resched();
	}
	return 0;
}

static void start_timer(struct u4_link *link, u64 grace)
{
	hrtimer_start(&link->timer, ns_to_ktime(grace), HRTIMER_MODE_REL);
}

static enum hrtimer_restart link_timer(struct hrtimer *timer)
{
	struct u4_link *link = container_of(timer, struct u4_link, timer);
	/* Below zero if a client has started it anew meanwhile. */
	s64 late = ktime_to_ns(ktime_sub(ktime_get(),
					 hrtimer_get_expires(timer)));
	u64 grace = usb4_core_link_expired(u4_core, link->core,
					   max_t(s64, late, 0));

	if (grace == EXPIRED_TAKEN)
		wake(link);
	else if (grace != EXPIRED_STOP)
		/*
		 * A client that leaves may have started it anew meanwhile, so
		 * this is no place for HRTIMER_RESTART.
		 */
		start_timer(link, grace);
	return HRTIMER_NORESTART;
}

static void notify(struct u4_link *link)
{
	if (usb4_core_link_notify(u4_core, link->core))
		wake(link);
}

/**
 * u4_link_interrupt() - a frame has arrived
 * @port: where
 *
 * May be called in any context, and while there is no link: it is told when the
 * rail gets one.
 */
void u4_link_interrupt(struct u4_port *port)
{
	struct u4_link *link;

	rcu_read_lock();
	link = rcu_dereference(port->link);
	if (link)
		notify(link);
	rcu_read_unlock();
}

void usb4_home_port_hand_over(size_t handle, u32 grace)
{
	start_timer((struct u4_link *)handle, grace);
}

/* Rails */

/* Nothing is left of the rail that had that number. */
static bool is_free(struct u4_link *link, u32 index)
{
	if (rcu_access_pointer(link->ports[index]))
		return false;
	if (!link->pools[index])
		return true;
	/* Pairs with usb4_home_port_release(). */
	if (atomic_read_acquire(&link->held[index]))
		return false;
	u4_pool_put(link->pools[index]);
	link->pools[index] = NULL;
	return true;
}

/**
 * u4_link_attach() - a rail belongs to a link from now on
 * @link: the link
 * @port: the rail's rings, which run, and whose paths are on
 * @peer: what its session was agreed with
 *
 * Return: 0; -EBUSY if the link has as many rails as it may, -ENOMEM, or what
 * the core says.
 */
int u4_link_attach(struct u4_link *link, struct u4_port *port,
		   const struct usb4_core_peer *peer)
{
	u32 index = 0;
	int ret;

	lockdep_assert_held(&u4_links_lock);
	while (index < U4_LINK_RAILS && !is_free(link, index))
		index++;
	if (index == U4_LINK_RAILS)
		return -EBUSY;
	ret = u4_port_start_tx(port, link->tx);
	if (ret)
		return ret;
	port->index = index;
	port->ready = false;
	kref_get(&port->pool->ref);
	link->pools[index] = port->pool;
	rcu_assign_pointer(port->link, link);
	/* Before the core knows it, which posts from then on. */
	rcu_assign_pointer(link->ports[index], port);
	ret = usb4_core_link_attach(u4_core, link->core, index, peer);
	if (ret) {
		u4_link_detach(link, port, false);
		return ret;
	}
	/* The core knows it before it gets frames; see u4_port_poll(). */
	smp_store_release(&port->ready, true);
	/* For what came before, an interrupt has been and gone. */
	notify(link);
	return 0;
}

/**
 * u4_link_detach() - a rail belongs to its link no more
 * @link: the link
 * @port: the rail's rings
 * @drain: let what was posted leave first
 *
 * Nothing is sent on the rail when this returns. What it has not delivered goes
 * over the others; without another one the link's work has completed.
 */
void u4_link_detach(struct u4_link *link, struct u4_port *port, bool drain)
{
	struct usb4_core_rail_status status;
	u32 index = port->index;

	lockdep_assert_held(&u4_links_lock);
	RCU_INIT_POINTER(port->link, NULL);
	RCU_INIT_POINTER(link->ports[index], NULL);
	/* Whoever drives the link has done with the rail's rings. */
	synchronize_rcu_expedited();
	if (drain)
		u4_port_drain(port);
	/* The core may write to what was posted once it is told. */
	u4_port_stop_tx(port);
	rcu_read_lock();
	if (usb4_core_link_rail(u4_core, link->core, index, &status))
		u4_count(&port->counters.tx_lost, status.lost);
	usb4_core_link_detach(u4_core, link->core, index);
	rcu_read_unlock();
	/* Else when another rail needs the number, or with the link. */
	is_free(link, index);
	notify(link);
}

/* Their making and end */

static void free_tx(struct u4_link *link)
{
	u32 slot;

	if (!link->tx)
		return;
	for (slot = 0; slot < u4_limits.tx_slots && link->tx[slot]; slot++)
		free_page((unsigned long)link->tx[slot]);
	kvfree(link->tx);
}

static int alloc_tx(struct u4_link *link)
{
	u32 slot;

	link->tx = kvcalloc(u4_limits.tx_slots, sizeof(*link->tx), GFP_KERNEL);
	if (!link->tx)
		return -ENOMEM;
	for (slot = 0; slot < u4_limits.tx_slots; slot++) {
		link->tx[slot] = (u8 *)__get_free_page(GFP_KERNEL |
						       __GFP_NOWARN);
		if (!link->tx[slot])
			return -ENOMEM;
		cond_resched();
	}
	return 0;
}

/**
 * u4_link_new() - make a link
 * @peer: what the session of its first rail was agreed with
 *
 * Return: the link, without rails, which nobody drives before u4_link_go(), or
 * an error: -ENOSPC if there are too many, -ENOMEM.
 */
struct u4_link *u4_link_new(const struct usb4_core_peer *peer)
{
	size_t size = usb4_core_link_size(u4_core, peer);
	struct u4_link *link;
	int ret = -ENOMEM;

	link = kzalloc_obj(*link, GFP_KERNEL);
	if (!link)
		return ERR_PTR(ret);
	link->node = peer->node;
	link->since = ktime_get_boottime();
	if (alloc_tx(link))
		goto err_link;
	link->memory = kvzalloc(size, GFP_KERNEL);
	if (!link->memory)
		goto err_link;
	hrtimer_setup(&link->timer, link_timer, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL);
	link->task = kthread_create(link_thread, link, "usb4_rdma/%llx",
				    peer->node.low & 0xffff);
	if (IS_ERR(link->task)) {
		ret = PTR_ERR(link->task);
		goto err_memory;
	}
	/* Who wakes it may do so when it has ended. */
	get_task_struct(link->task);
	/* Begins with the thread as its owner: nobody else looks at it. */
	link->core = usb4_core_link_new(u4_core, link->memory, size,
					(size_t)link, peer, &ret);
	if (!link->core)
		goto err_task;
	link->number = usb4_core_link_index(link->core);
	return link;

err_task:
	kthread_stop_put(link->task);
err_memory:
	kvfree(link->memory);
err_link:
	free_tx(link);
	kfree(link);
	return ERR_PTR(ret);
}

/**
 * u4_link_go() - have a link driven
 * @link: the link, with its first rail
 */
void u4_link_go(struct u4_link *link)
{
	wake_up_process(link->task);
}

/**
 * u4_link_stop() - end a link
 * @link: the link, without rails
 */
void u4_link_stop(struct u4_link *link)
{
	u32 i;

	u4_sysfs_remove(link);
	kthread_stop(link->task);
	usb4_core_link_end(u4_core, link->core);
	/* Clients who were about to drive it, and interrupts, are done. */
	synchronize_rcu();
	hrtimer_cancel(&link->timer);
	put_task_struct(link->task);
	for (i = 0; i < U4_LINK_RAILS; i++)
		u4_pool_put(link->pools[i]);
	kvfree(link->memory);
	free_tx(link);
	kfree(link);
	u4_links_changed();
}
