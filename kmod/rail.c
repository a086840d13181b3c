// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Rails: what happens between a cable's being there and its carrying data.
 *
 * In C because of paths and work items. What is said and done when is the state
 * machine's business (crates/engine/src/bringup.rs); a rail's work item feeds it
 * and carries out its orders. Only that work item touches the machine; everybody
 * else leaves word and queues it (rails.c).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "rail.h"

static struct workqueue_struct *u4_rails_wq;

/**
 * u4_rail_kick() - have a rail's work item run now
 * @rail: the rail
 */
void u4_rail_kick(struct u4_rail *rail)
{
	mod_delayed_work(u4_rails_wq, &rail->work, 0);
}

/* Orders of the state machine */

/* How often to look whether the domain's lock is free. */
#define DOMAIN_US	500

/*
 * Whoever takes a host away has locked its domain, and waits for this work item
 * (tb_handle_hotplug(), service_remove()); and paths are changed under that lock.
 * So it must not be waited for while the host may be going: what is left is the
 * instant between this look and its being taken.
 *
 * Return: whether the host is still there.
 */
static bool await_domain(struct u4_rail *rail)
{
	struct mutex *lock = &rail->xd->tb->lock;

	while (!READ_ONCE(rail->xd->is_unplugged)) {
		if (mutex_trylock(lock)) {
			mutex_unlock(lock);
			return true;
		}
		usleep_range(DOMAIN_US, 2 * DOMAIN_US);
	}
	return false;
}

static int enable_paths(struct u4_rail *rail, u32 peer_hop)
{
	int ret;

	ret = tb_xdomain_alloc_in_hopid(rail->xd, peer_hop);
	if (ret < 0)
		return ret;
	if (ret != peer_hop) {
		tb_xdomain_release_in_hopid(rail->xd, ret);
		return -EBUSY;
	}
	ret = u4_port_start(&rail->port);
	if (ret)
		goto err_hop;
	ret = -ENODEV;
	if (!await_domain(rail))
		goto err_port;
	ret = tb_xdomain_enable_paths(rail->xd, rail->out_hop,
				      rail->port.tx->hop, peer_hop,
				      rail->port.rx->hop);
	if (ret)
		goto err_port;
	WRITE_ONCE(rail->in_hop, peer_hop);
	return 0;

err_port:
	u4_port_stop(&rail->port);
err_hop:
	tb_xdomain_release_in_hopid(rail->xd, peer_hop);
	return ret;
}

static void disable_paths(struct u4_rail *rail)
{
	if (!rail->in_hop)
		return;
	/* Else there is nothing to do. */
	await_domain(rail);
	if (tb_xdomain_disable_paths(rail->xd, rail->out_hop,
				     rail->port.tx->hop, rail->in_hop,
				     rail->port.rx->hop))
		u4_trouble(rail, "paths could not be disabled\n");
	u4_port_stop(&rail->port);
	tb_xdomain_release_in_hopid(rail->xd, rail->in_hop);
	WRITE_ONCE(rail->in_hop, 0);
}

static const char *const order_names[] = {
	[USB4_CORE_ORDER_NONE] = "none",
	[USB4_CORE_ORDER_SEND] = "send",
	[USB4_CORE_ORDER_ENABLE] = "enable paths",
	[USB4_CORE_ORDER_DISABLE] = "disable paths",
	[USB4_CORE_ORDER_UP] = "up",
	[USB4_CORE_ORDER_DOWN] = "down",
};

static bool is_allowed(struct u4_rail *rail, const struct usb4_core_node *node)
{
	return u4_peers_allow(node, rail->xd->remote_uuid);
}

/* Where a control message has its kind (docs/spec/wire.md, section 4). */
#define MESSAGE_KIND	5

static void carry_out(struct u4_rail *rail)
{
	struct usb4_core_order *order = &rail->order;
	int ret;

	for (;;) {
		usb4_core_rail_next(rail->fsm, order);
		if (order->kind == USB4_CORE_ORDER_NONE)
			return;
		dev_dbg(&rail->svc->dev, "%s, message %u, value %u\n",
			order_names[order->kind], order->message[MESSAGE_KIND],
			order->value);
		switch (order->kind) {
		case USB4_CORE_ORDER_SEND:
			/* What is lost is sent again, or was the last. */
			u4_service_send(rail->xd, rail->packet, order->message);
			break;
		case USB4_CORE_ORDER_ENABLE:
			ret = enable_paths(rail, order->value);
			if (ret)
				u4_trouble(rail, "paths to HopID %u could not be enabled: error %d; trying again\n",
					   order->value, ret);
			usb4_core_rail_event(rail->fsm, ret ?
					     USB4_CORE_RAIL_PATHS_DISABLED :
					     USB4_CORE_RAIL_PATHS_ENABLED, 0);
			break;
		case USB4_CORE_ORDER_DISABLE:
			disable_paths(rail);
			usb4_core_rail_event(rail->fsm,
					     USB4_CORE_RAIL_PATHS_DISABLED, 0);
			break;
		case USB4_CORE_ORDER_UP:
			if (is_allowed(rail, &order->peer.node))
				u4_join_up(rail, &order->peer);
			else
				usb4_core_rail_event(rail->fsm,
						     USB4_CORE_RAIL_CLOSE, 0);
			break;
		case USB4_CORE_ORDER_DOWN:
			u4_join_down(rail, order->value);
			break;
		}
	}
}

/* The work item */

static bool take_message(struct u4_rail *rail, u8 *message)
{
	bool any;

	spin_lock(&u4_rails_lock);
	any = rail->inbox_count;
	if (any) {
		memcpy(message, rail->inbox[rail->inbox_head],
		       USB4_CORE_CONTROL);
		rail->inbox_head = (rail->inbox_head + 1) % INBOX;
		rail->inbox_count--;
	}
	spin_unlock(&u4_rails_lock);
	return any;
}

static void take_control(struct u4_rail *rail, const u8 *message)
{
	struct usb4_core_node node;

	dev_dbg(&rail->svc->dev, "message %u has come\n",
		message[MESSAGE_KIND]);
	WRITE_ONCE(rail->control_rx, rail->control_rx + 1);
	if (!usb4_core_rail_speaker(message, &node)) {
		WRITE_ONCE(rail->control_malformed, rail->control_malformed + 1);
		return;
	}
	spin_lock(&u4_rails_lock);
	rail->claimed = node;
	spin_unlock(&u4_rails_lock);
	WRITE_ONCE(rail->barred, !is_allowed(rail, &node));
	usb4_core_rail_control(rail->fsm, message, !rail->barred);
	if (usb4_core_rail_refused(rail->fsm))
		return;
	spin_lock(&u4_rails_lock);
	rail->heard_at = jiffies;
	spin_unlock(&u4_rails_lock);
}

/*
 * The rules have changed. A session with a host that is not let in any more ends;
 * and who was refused is to be asked again.
 */
static void judge(struct u4_rail *rail)
{
	bool ends = rail->refused;

	if (rail->node_known && !is_allowed(rail, &rail->peer.node))
		ends = true;
	if (ends)
		usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_CLOSE, 0);
}

/* A peer that was stopped is waited for; one that is there is asked for. */
static void silent(struct u4_rail *rail)
{
	bool up = usb4_core_rail_is_up(rail->fsm);

	usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_SILENT, 0);
	if (up && !usb4_core_rail_is_up(rail->fsm))
		u4_trouble(rail, "the host at the other end answers, but not on this rail; starting it anew\n");
}

static void feed(struct u4_rail *rail)
{
	u8 message[USB4_CORE_CONTROL];
	u32 i;

	if (test_and_clear_bit(EVENT_CLOSE, &rail->events))
		usb4_core_rail_event(rail->fsm, rail->xd->is_unplugged ?
				     USB4_CORE_RAIL_ABORT :
				     USB4_CORE_RAIL_CLOSE, 0);
	if (test_and_clear_bit(EVENT_DOWN, &rail->events))
		usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_ABORT, 0);
	if (test_bit(EVENT_YIELD, &rail->events)) {
		if (usb4_core_rail_is_up(rail->fsm))
			clear_bit(EVENT_YIELD, &rail->events);
		else
			usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_ABORT, 0);
	}
	if (test_and_clear_bit(EVENT_STALLED, &rail->events)) {
		u4_trouble(rail, "transmit ring %d of %s does not move; starting it anew\n",
			   rail->port.tx->hop,
			   dev_name(u4_controller(rail->xd)));
		usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_CLOSE, 0);
	}
	if (test_and_clear_bit(EVENT_SILENT, &rail->events))
		silent(rail);
	if (test_and_clear_bit(EVENT_STRANGE, &rail->events))
		usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_STRANGE,
				     READ_ONCE(rail->strange));
	if (test_and_clear_bit(EVENT_SHOW, &rail->events))
		usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_SHOW,
				     READ_ONCE(rail->show));
	if (test_and_clear_bit(EVENT_JOINED, &rail->events))
		u4_join_take(rail);
	if (test_and_clear_bit(EVENT_JUDGE, &rail->events))
		judge(rail);
	carry_out(rail);
	/*
	 * No more than there can have been when this began: what comes meanwhile
	 * has the work item queued again. A peer that never stops talking is not
	 * to keep it from events and deadlines.
	 */
	for (i = 0; i < INBOX && take_message(rail, message); i++) {
		take_control(rail, message);
		carry_out(rail);
	}
	if (usb4_core_rail_deadline(rail->fsm) <= ktime_get_ns()) {
		usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_TIMER, 0);
		carry_out(rail);
	}
}

/* By reason (docs/spec/wire.md, section 4). */
#define REFUSED_VERSION	1

static const char *const refusals[] = {
	"", "no version in common", "not allowed, or of the same node id",
	"no resources", "shutting down",
};

static void say_barred(struct u4_rail *rail)
{
	u4_trouble(rail, "host " U4_NODE_FMT " by router %pUb refused: no rule lets it in\n",
		   rail->claimed.high, rail->claimed.low,
		   rail->xd->remote_uuid);
}

/**
 * u4_rail_refusal() - why there is no session
 * @rail: of which @refused is not 0, or has just not been
 * @text: where to put it, in words
 */
void u4_rail_refusal(const struct u4_rail *rail, char text[U4_REFUSAL])
{
	u32 reason = READ_ONCE(rail->refused);
	u32 lowest = READ_ONCE(rail->lowest);
	u32 highest = READ_ONCE(rail->highest);

	if (reason != REFUSED_VERSION)
		strscpy(text, reason < ARRAY_SIZE(refusals) ?
			refusals[reason] : "unknown", U4_REFUSAL);
	else if (lowest == highest)
		scnprintf(text, U4_REFUSAL,
			  "it speaks version %u of the protocol, this host version %u",
			  highest, u4_limits.frame_version);
	else
		scnprintf(text, U4_REFUSAL,
			  "it speaks versions %u to %u of the protocol, this host version %u",
			  lowest, highest, u4_limits.frame_version);
}

/* It may stay so for long. */
static void say_refused(struct u4_rail *rail)
{
	u32 reason = usb4_core_rail_refused(rail->fsm);
	char text[U4_REFUSAL];
	u32 lowest;
	u32 highest;

	usb4_core_rail_versions(rail->fsm, &lowest, &highest);
	WRITE_ONCE(rail->lowest, lowest);
	WRITE_ONCE(rail->highest, highest);
	if (reason == rail->refused)
		return;
	WRITE_ONCE(rail->refused, reason);
	/* Nobody is to wait for it. */
	u4_links_changed();
	if (!reason)
		return;
	if (rail->barred) {
		say_barred(rail);
		return;
	}
	u4_rail_refusal(rail, text);
	u4_trouble(rail, "no session with the host at the other end: %s\n",
		   text);
}

static void again(struct u4_rail *rail, unsigned long delay)
{
	/* Unless somebody has queued it for now. */
	queue_delayed_work(u4_rails_wq, &rail->work, delay);
}

static void rail_work(struct work_struct *work)
{
	struct u4_rail *rail = container_of(work, struct u4_rail, work.work);
	bool running = READ_ONCE(rail->running);
	u64 deadline;
	u64 now;

	if (!rail->fsm) {
		if (!running) {
			complete_all(&rail->closed);
			return;
		}
		u4_rings_give_way(rail);
		if (time_before(jiffies, rail->rest_until)) {
			again(rail, rail->rest_until - jiffies);
			return;
		}
		if (!u4_rings_get(rail)) {
			if (READ_ONCE(rail->inbox_count))
				u4_rings_ask(rail);
			again(rail, msecs_to_jiffies(RETRY_MS));
			return;
		}
		rail->fsm = usb4_core_rail_new(u4_core, rail->fsm_memory,
					       usb4_core_rail_size(),
					       rail->out_hop);
		if (WARN_ON_ONCE(!rail->fsm))
			return;
		WRITE_ONCE(rail->error, 0);
	}
	feed(rail);
	say_refused(rail);
	if (usb4_core_rail_is_closed(rail->fsm)) {
		/* The next one begins anew, if there is to be one. */
		rail->fsm = NULL;
		u4_join_forget(rail);
		again(rail, 0);
		return;
	}
	deadline = usb4_core_rail_deadline(rail->fsm);
	now = ktime_get_ns();
	if (deadline == U64_MAX)
		return;
	again(rail, deadline > now ? nsecs_to_jiffies(deadline - now) + 1 : 0);
}

/* What others call */

/**
 * u4_rail_new() - a service has appeared
 * @svc: the service
 *
 * Return: the rail, stopped, or an error.
 */
struct u4_rail *u4_rail_new(struct tb_service *svc)
{
	struct u4_rail *rail;
	int ret = -ENOMEM;

	rail = kzalloc_obj(*rail, GFP_KERNEL);
	if (!rail)
		return ERR_PTR(ret);
	rail->svc = svc;
	rail->xd = tb_service_parent(svc);
	rail->port.rail = rail;
	dev_dbg(&svc->dev, "a cable to a host with this service\n");
	INIT_DELAYED_WORK(&rail->work, rail_work);
	init_completion(&rail->closed);
	rail->rest_until = jiffies;
	rail->fsm_memory = kvzalloc(usb4_core_rail_size(), GFP_KERNEL);
	if (!rail->fsm_memory)
		goto err_rail;
	rail->packet = kzalloc(u4_service_packet_size(), GFP_KERNEL);
	if (!rail->packet)
		goto err_fsm;
	ret = u4_rails_add(rail);
	if (ret)
		goto err_packet;
	return rail;

err_packet:
	kfree(rail->packet);
err_fsm:
	kvfree(rail->fsm_memory);
err_rail:
	kfree(rail);
	return ERR_PTR(ret);
}

/**
 * u4_rail_start() - bring a rail up, and up again whenever it goes down
 * @rail: the rail, stopped
 */
void u4_rail_start(struct u4_rail *rail)
{
	WRITE_ONCE(rail->running, true);
	/*
	 * A message may have it run already. Whoever has seen it stopped is to
	 * say so before, not after it counts as not closed.
	 */
	cancel_delayed_work_sync(&rail->work);
	reinit_completion(&rail->closed);
	u4_rail_kick(rail);
}

/**
 * u4_rail_stop() - take a rail down
 * @rail: the rail
 *
 * Takes leave of the peer, unless the cable is gone; about a second if it does
 * not answer. When this returns, paths and rings are off.
 */
void u4_rail_stop(struct u4_rail *rail)
{
	if (!READ_ONCE(rail->running))
		return;
	WRITE_ONCE(rail->running, false);
	set_bit(EVENT_CLOSE, &rail->events);
	u4_rail_kick(rail);
	wait_for_completion(&rail->closed);
	cancel_delayed_work_sync(&rail->work);
	clear_bit(EVENT_CLOSE, &rail->events);
	clear_bit(EVENT_YIELD, &rail->events);
}

/**
 * u4_rail_shutdown() - the machine is about to stop
 * @rail: the rail
 *
 * Its controller insists on rings that are freed.
 */
void u4_rail_shutdown(struct u4_rail *rail)
{
	u4_rail_stop(rail);
	u4_rings_put(rail);
}

/**
 * u4_rail_free() - a service has gone
 * @rail: the rail, stopped
 */
void u4_rail_free(struct u4_rail *rail)
{
	u4_rails_del(rail);
	/* Nobody finds it any more; somebody may just have. */
	cancel_delayed_work_sync(&rail->work);
	u4_rings_put(rail);
	kfree(rail->packet);
	kvfree(rail->fsm_memory);
	kfree(rail);
	u4_links_changed();
}

/**
 * u4_rails_init() - be ready for rails
 *
 * Return: 0 or -ENOMEM.
 */
int u4_rails_init(void)
{
	u4_rails_wq = alloc_workqueue("usb4_rdma", WQ_UNBOUND, 0);
	return u4_rails_wq ? 0 : -ENOMEM;
}

/**
 * u4_rails_exit() - no more rails
 */
void u4_rails_exit(void)
{
	destroy_workqueue(u4_rails_wq);
}
