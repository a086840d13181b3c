// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Which link a rail belongs to.
 *
 * In C because links are made of pages and threads. What belongs together is
 * decided in crates/engine/src/joins.rs (docs/spec/wire.md, section 6). A rail's
 * work item calls these.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/slab.h>

#include "rail.h"
#include "trace.h"

/* When to try again what could not be done. */
#define RETRY_MS	2000

/* Megabits per second on their way out. */
static u32 rate_of(const struct tb_xdomain *xd)
{
	/* Gb/s of one lane */
	u32 lane = xd->link_speed * 1000;

	switch (xd->link_width) {
	case TB_LINK_WIDTH_DUAL:
		return 2 * lane;
	case TB_LINK_WIDTH_ASYM_TX:
		return 3 * lane;
	default:
		return lane;
	}
}

/* Links the core has, by its numbers, under u4_links_lock. */
static struct u4_link *u4_links[16];

/* The link a rail belongs to; only this changes it, under u4_links_lock. */
static struct u4_link *link_of(struct u4_rail *rail)
{
	return rcu_dereference_protected(rail->port.link,
					 lockdep_is_held(&u4_links_lock));
}

static bool core_rail_gone(struct u4_rail *rail)
{
	bool last;

	rcu_read_lock();
	last = usb4_core_rail_gone(u4_core, rail->number);
	rcu_read_unlock();
	return last;
}

/* What has happened on links that have ended, under u4_links_lock. */
static struct usb4_core_link_status ended;

static void add_status(struct usb4_core_link_status *sum,
		       const struct u4_link *link)
{
	struct usb4_core_link_status status;
	const u64 *from = (const u64 *)&status;
	u64 *to = (u64 *)sum;
	size_t i;

	if (!usb4_core_link_status(u4_core, link->core, &status))
		return;
	for (i = 0; i < sizeof(status) / sizeof(u64); i++)
		to[i] += from[i];
}

/**
 * u4_links_count() - what has happened on all links so far
 * @sum: where to put that
 */
void u4_links_count(struct usb4_core_link_status *sum)
{
	u32 i;

	mutex_lock(&u4_links_lock);
	*sum = ended;
	for (i = 0; i < ARRAY_SIZE(u4_links); i++)
		if (u4_links[i])
			add_status(sum, u4_links[i]);
	mutex_unlock(&u4_links_lock);
}

static void end_link(struct u4_link *link)
{
	u32 i;

	add_status(&ended, link);

	for (i = 0; i < ARRAY_SIZE(u4_links); i++)
		if (u4_links[i] == link)
			u4_links[i] = NULL;
	u4_link_stop(link);
}

static int begin_link(struct u4_rail *rail, const struct usb4_core_peer *peer)
{
	struct u4_link *link;
	u32 number;
	int ret;

	link = u4_link_new(peer);
	if (IS_ERR(link))
		return PTR_ERR(link);
	number = link->number;
	ret = u4_link_attach(link, &rail->port, peer);
	if (!ret && WARN_ON_ONCE(number >= ARRAY_SIZE(u4_links)))
		ret = -EINVAL;
	if (ret) {
		if (link_of(rail))
			u4_link_detach(link, &rail->port, false);
		u4_link_stop(link);
		return ret;
	}
	ret = u4_sysfs_add(link);
	if (ret) {
		u4_link_detach(link, &rail->port, false);
		u4_link_stop(link);
		return ret;
	}
	u4_links[number] = link;
	u4_link_go(link);
	rcu_read_lock();
	usb4_core_rail_began(u4_core, rail->number, link->core, peer);
	rcu_read_unlock();
	return 0;
}

static int join_link(struct u4_rail *rail, const struct usb4_core_peer *peer,
		     u32 number)
{
	struct u4_link *link;
	int ret;

	link = number < ARRAY_SIZE(u4_links) ? u4_links[number] : NULL;
	if (WARN_ON_ONCE(!link))
		return -EINVAL;
	ret = u4_link_attach(link, &rail->port, peer);
	if (!ret)
		u4_rail_chosen(rail, link);
	return ret;
}

/* Puts a rail that has come up where it belongs. */
static int place_rail(struct u4_rail *rail, const struct usb4_core_peer *peer)
{
	s32 place;
	int ret;

	rcu_read_lock();
	place = usb4_core_rail_place(u4_core, rail->number, peer);
	rcu_read_unlock();
	switch (place) {
	case USB4_CORE_PLACE_NOWHERE:
		/* The session to come will show. */
		return 0;
	case USB4_CORE_PLACE_OWN:
		ret = begin_link(rail, peer);
		break;
	default:
		ret = join_link(rail, peer, place);
	}
	if (ret)
		core_rail_gone(rail);
	return ret;
}

/**
 * u4_join_up() - a session has come up
 * @rail: where
 * @peer: what it was agreed with
 */
void u4_join_up(struct u4_rail *rail, struct usb4_core_peer *peer)
{
	int ret;

	peer->rate_mbps = rate_of(rail->xd);
	spin_lock(&u4_rails_lock);
	rail->node_known = true;
	rail->peer = *peer;
	spin_unlock(&u4_rails_lock);
	mutex_lock(&u4_links_lock);
	ret = place_rail(rail, peer);
	mutex_unlock(&u4_links_lock);
	u4_links_changed();
	WRITE_ONCE(rail->error, ret);
	if (!ret)
		return;
	u4_trouble(rail, "no link to " U4_NODE_FMT ": error %d; trying again\n",
		   peer->node.high, peer->node.low, ret);
	/* A session without a link would look good to the peer. */
	rail->rest_until = jiffies + msecs_to_jiffies(RETRY_MS);
	usb4_core_rail_event(rail->fsm, USB4_CORE_RAIL_CLOSE, 0);
}

static const char *const down_reasons[] = {
	"", "replaced by a new session", "the peer has closed it",
	"the peer does not know it any more", "closed",
};

/**
 * u4_join_down() - a session has ended
 * @rail: where
 * @reason: why, as in &usb4_core_order.value
 *
 * Nothing is sent on the rail when this returns.
 */
void u4_join_down(struct u4_rail *rail, u32 reason)
{
	const char *why = reason < ARRAY_SIZE(down_reasons) ?
			  down_reasons[reason] : "";
	struct u4_link *link;
	bool last;
	bool up;

	if (rail->xd->is_unplugged)
		why = "the cable is gone";
	WRITE_ONCE(rail->ended, why);
	mutex_lock(&u4_links_lock);
	link = link_of(rail);
	if (link)
		u4_link_detach(link, &rail->port, !rail->xd->is_unplugged);
	/* Nobody looks at its rings any more; the next session's will move. */
	clear_bit(EVENT_SILENT, &rail->events);
	clear_bit(EVENT_STALLED, &rail->events);
	spin_lock(&u4_rails_lock);
	up = rail->link_up;
	WRITE_ONCE(rail->link_up, false);
	spin_unlock(&u4_rails_lock);
	last = core_rail_gone(rail);
	if (up && link)
		trace_u4_rail_down(dev_name(&rail->svc->dev), link->number,
				   rail->port.index, &rail->peer.node, why);
	if (up && last)
		u4_event("link to " U4_NODE_FMT " down: %s\n",
			 rail->peer.node.high, rail->peer.node.low, why);
	else if (up)
		u4_event("link to " U4_NODE_FMT " loses rail %u over %s: %s\n",
			 rail->peer.node.high, rail->peer.node.low,
			 rail->port.index, dev_name(&rail->xd->dev), why);
	if (link && last)
		end_link(link);
	mutex_unlock(&u4_links_lock);
	u4_links_changed();
}

/**
 * u4_join_take() - the peer has given a nonce over the rail's link
 * @rail: the rail
 */
void u4_join_take(struct u4_rail *rail)
{
	struct u4_link *link;

	mutex_lock(&u4_links_lock);
	link = link_of(rail);
	if (link) {
		rcu_read_lock();
		usb4_core_link_joined(u4_core, link->core);
		rcu_read_unlock();
	}
	mutex_unlock(&u4_links_lock);
}

/**
 * u4_join_forget() - a rail's state machine has ended
 * @rail: the rail
 *
 * What it was told to show has gone with it.
 */
void u4_join_forget(struct u4_rail *rail)
{
	mutex_lock(&u4_links_lock);
	rcu_read_lock();
	usb4_core_rail_closed(u4_core, rail->number);
	rcu_read_unlock();
	mutex_unlock(&u4_links_lock);
	clear_bit(EVENT_SHOW, &rail->events);
}
