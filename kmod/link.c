// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Links: the thread that drives one when no client does, and what wakes it.
 *
 * In C because of threads and timers. Who drives is decided in
 * crates/kobj/src/drive.rs.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/sched/task.h>
#include <linux/slab.h>

#include "usb4_rdma.h"

/* How much later than asked the thread may wake up. */
#define SLACK_NS	20000

/* What usb4_core_link_expired() returns. */
enum { EXPIRED_AGAIN, EXPIRED_TAKEN, EXPIRED_STOP };

static void wake(struct u4_link *link)
{
	/* Pairs with set_current_state() in sleep_until(). */
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
	WRITE_ONCE(link->woken, 0);
}

static int link_thread(void *data)
{
	struct u4_link *link = data;
	u64 at;

	while (!kthread_should_stop()) {
		at = usb4_core_link_run(u4_core, link->core);
		if (at)
			sleep_until(link, at);
		else
			/* Not cond_resched(), which lazy preemption ignores. */
			schedule();
	}
	return 0;
}

static void start_timer(struct u4_link *link)
{
	hrtimer_start(&link->timer, ns_to_ktime(u4_limits.grace),
		      HRTIMER_MODE_REL);
}

static enum hrtimer_restart link_timer(struct hrtimer *timer)
{
	struct u4_link *link = container_of(timer, struct u4_link, timer);

	switch (usb4_core_link_expired(u4_core, link->core)) {
	case EXPIRED_AGAIN:
		/*
		 * A client that leaves may have started it anew meanwhile, so
		 * this is no place for HRTIMER_RESTART.
		 */
		start_timer(link);
		break;
	case EXPIRED_TAKEN:
		wake(link);
		break;
	}
	return HRTIMER_NORESTART;
}

/**
 * u4_link_interrupt() - a frame has arrived
 * @port: where
 *
 * May be called in any context, and while there is no link: that one's thread
 * begins by looking.
 */
void u4_link_interrupt(struct u4_port *port)
{
	struct u4_link *link;

	rcu_read_lock();
	link = rcu_dereference(port->link);
	if (link && usb4_core_link_notify(u4_core, link->core))
		wake(link);
	rcu_read_unlock();
}

void usb4_home_port_hand_over(size_t handle)
{
	struct u4_port *port = (struct u4_port *)handle;
	struct u4_link *link;

	rcu_read_lock();
	link = rcu_dereference(port->link);
	if (link)
		start_timer(link);
	rcu_read_unlock();
}

/**
 * u4_link_start() - make a link over a port, and have it driven
 * @port: the port, whose rings run and whose paths are on
 * @peer: what the session was agreed with
 *
 * Return: the link, which is @port's now, or an error: -EEXIST if there is a
 * link to that host, -ENOSPC if there are too many, -ENOMEM.
 */
struct u4_link *u4_link_start(struct u4_port *port,
			      const struct usb4_core_peer *peer)
{
	size_t size = usb4_core_link_size(u4_core, peer);
	struct u4_link *link;
	int ret = -ENOMEM;

	link = kzalloc_obj(*link, GFP_KERNEL);
	if (!link)
		return ERR_PTR(ret);
	link->memory = kvzalloc(size, GFP_KERNEL);
	if (!link->memory)
		goto err_link;
	link->peer = *peer;
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
					(size_t)port, peer, &ret);
	if (!link->core)
		goto err_task;
	rcu_assign_pointer(port->link, link);
	wake_up_process(link->task);
	wake_up_all(&u4_links_wait);
	return link;

err_task:
	kthread_stop_put(link->task);
err_memory:
	kvfree(link->memory);
err_link:
	kfree(link);
	return ERR_PTR(ret);
}

/**
 * u4_link_stop() - end a port's link
 * @port: the port
 *
 * All its work has completed when this returns, and nothing is posted to the
 * port's rings any more.
 */
void u4_link_stop(struct u4_port *port)
{
	/* Only the caller changes it. */
	struct u4_link *link = rcu_dereference_protected(port->link, true);

	if (!link)
		return;
	kthread_stop(link->task);
	usb4_core_link_end(u4_core, link->core);
	rcu_assign_pointer(port->link, NULL);
	/* Clients who were about to drive it, and interrupts, are done. */
	synchronize_rcu();
	hrtimer_cancel(&link->timer);
	put_task_struct(link->task);
	kvfree(link->memory);
	kfree(link);
	wake_up_all(&u4_links_wait);
}
