// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The rails there are, and what others leave word of for their work items.
 *
 * In C because of lists and their lock.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
#include <linux/device.h>
#include <linux/uuid.h>

#include "rail.h"
#include "trace.h"
#include "usb4_ring.h"

/* Most rails: &usb4_core_limits.max_rails is no less. */
#define MAX_RAILS	64

LIST_HEAD(u4_rails);
DEFINE_SPINLOCK(u4_rails_lock);
static DECLARE_BITMAP(numbers, MAX_RAILS);

/**
 * u4_rails_add() - there is another rail
 * @rail: the rail; gets a number
 *
 * Return: 0, or -ENOSPC if there are too many.
 */
int u4_rails_add(struct u4_rail *rail)
{
	unsigned long number;

	spin_lock(&u4_rails_lock);
	number = find_first_zero_bit(numbers, MAX_RAILS);
	if (number < MAX_RAILS) {
		__set_bit(number, numbers);
		rail->number = number;
		list_add_tail(&rail->list, &u4_rails);
	}
	spin_unlock(&u4_rails_lock);
	return number < MAX_RAILS ? 0 : -ENOSPC;
}

/**
 * u4_rails_del() - a rail is there no more
 * @rail: the rail
 */
void u4_rails_del(struct u4_rail *rail)
{
	spin_lock(&u4_rails_lock);
	list_del(&rail->list);
	__clear_bit(rail->number, numbers);
	spin_unlock(&u4_rails_lock);
}

/**
 * u4_rails_first() - a rail of a controller
 * @controller: the controller
 * @xd: where to put the host at the other end, with a reference
 *
 * Return: the rail's service, with a reference, or %NULL if there is none.
 */
struct tb_service *u4_rails_first(struct device *controller,
				  struct tb_xdomain **xd)
{
	struct tb_service *svc = NULL;
	struct u4_rail *rail;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list) {
		if (u4_controller(rail->xd) != controller)
			continue;
		svc = rail->svc;
		get_device(&svc->dev);
		*xd = tb_xdomain_get(rail->xd);
		break;
	}
	spin_unlock(&u4_rails_lock);
	return svc;
}

/**
 * u4_rail_receive() - a control message has come
 * @route: from which direction
 * @local: UUID of the router it was for
 * @remote: UUID of the router it is from
 * @message: the message
 *
 * Return: whether there is such a rail.
 */
bool u4_rail_receive(u64 route, const uuid_t *local, const uuid_t *remote,
		     const u8 *message)
{
	struct u4_rail *rail;
	u32 at;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list) {
		if (rail->xd->route != route ||
		    !uuid_equal(rail->xd->local_uuid, local) ||
		    !uuid_equal(rail->xd->remote_uuid, remote))
			continue;
		if (rail->inbox_count < INBOX) {
			at = (rail->inbox_head + rail->inbox_count) % INBOX;
			memcpy(rail->inbox[at], message, USB4_CORE_CONTROL);
			rail->inbox_count++;
		} else {
			WRITE_ONCE(rail->control_dropped,
				   rail->control_dropped + 1);
		}
		u4_rail_kick(rail);
		spin_unlock(&u4_rails_lock);
		return true;
	}
	spin_unlock(&u4_rails_lock);
	return false;
}

/**
 * u4_rail_strange() - frames of a session nobody knows arrive
 * @rail: where
 * @tag: their tag
 */
void u4_rail_strange(struct u4_rail *rail, u64 tag)
{
	WRITE_ONCE(rail->strange, tag);
	set_bit(EVENT_STRANGE, &rail->events);
	u4_rail_kick(rail);
}

/**
 * u4_rail_silent() - the peer answers nothing on the rail
 * @rail: the rail
 *
 * Again and again while that goes on.
 */
void u4_rail_silent(struct u4_rail *rail)
{
	set_bit(EVENT_SILENT, &rail->events);
	u4_rail_kick(rail);
}

/**
 * u4_rail_stalled() - the rail's transmit ring does not move, kicked or not
 * @rail: the rail
 *
 * A ring that is stopped and started again does.
 */
void u4_rail_stalled(struct u4_rail *rail)
{
	if (!test_and_set_bit(EVENT_STALLED, &rail->events))
		u4_rail_kick(rail);
}

/**
 * u4_rail_down() - the core has given up the rail's link
 * @rail: the rail
 */
void u4_rail_down(struct u4_rail *rail)
{
	set_bit(EVENT_DOWN, &rail->events);
	u4_rail_kick(rail);
}

/**
 * u4_rail_joined() - the peer has given a nonce over the rail's link
 * @rail: the rail
 */
void u4_rail_joined(struct u4_rail *rail)
{
	if (!test_and_set_bit(EVENT_JOINED, &rail->events))
		u4_rail_kick(rail);
}

/**
 * u4_rail_chosen() - clients have the rail's link
 * @rail: the rail
 * @link: the link
 */
void u4_rail_chosen(struct u4_rail *rail, const struct u4_link *link)
{
	spin_lock(&u4_rails_lock);
	WRITE_ONCE(rail->link_up, true);
	spin_unlock(&u4_rails_lock);
	u4_event("link to " U4_NODE_FMT " up, rail %u over %s, %u Mb/s\n",
		 rail->peer.node.high, rail->peer.node.low, rail->port.index,
		 dev_name(&rail->xd->dev), rail->peer.rate_mbps);
	trace_u4_rail_up(dev_name(&rail->svc->dev), link->number,
			 rail->port.index, &rail->peer.node, "up");
	u4_links_changed();
}

void usb4_home_rail_show(u32 number, u64 nonce)
{
	struct u4_rail *rail;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list) {
		if (rail->number != number)
			continue;
		WRITE_ONCE(rail->show, nonce);
		set_bit(EVENT_SHOW, &rail->events);
		u4_rail_kick(rail);
	}
	spin_unlock(&u4_rails_lock);
}

static bool is_node(const struct usb4_core_node *a,
		    const struct usb4_core_node *b)
{
	return a->low == b->low && a->high == b->high;
}

/**
 * u4_rails_expect() - whether a host may yet show up
 * @node: the host
 *
 * Return: whether a cable leads there, or to somebody who has not said who, and
 * neither side refuses.
 */
bool u4_rails_expect(const struct usb4_core_node *node)
{
	struct u4_rail *rail;
	bool found = false;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list)
		if (!READ_ONCE(rail->refused) &&
		    (!rail->node_known || is_node(&rail->peer.node, node)))
			found = true;
	spin_unlock(&u4_rails_lock);
	return found;
}

/**
 * u4_rails_list() - the peers there are
 * @peers: where to put them
 * @room: how many there is room for
 *
 * Return: how many there are, or one more than there is room for.
 */
u32 u4_rails_list(struct u4_peer *peers, u32 room)
{
	struct u4_rail *rail;
	u32 count = 0;
	u32 i;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list) {
		if (!rail->node_known)
			continue;
		for (i = 0; i < count; i++)
			if (is_node(&peers[i].node, &rail->peer.node))
				break;
		if (i == room) {
			count = room + 1;
			break;
		}
		if (i == count)
			peers[count++] = (struct u4_peer) {
				.node = rail->peer.node,
			};
		if (rail->link_up) {
			peers[i].rails++;
			peers[i].rate_mbps += rail->peer.rate_mbps;
		}
	}
	spin_unlock(&u4_rails_lock);
	return count;
}

/**
 * u4_rails_find() - the host of a GUID
 * @guid: the GUID
 * @node: where to put the host
 *
 * Return: whether a cable leads to it.
 */
bool u4_rails_find(u64 guid, struct usb4_core_node *node)
{
	struct u4_rail *rail;
	bool found = false;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list) {
		if (!rail->node_known ||
		    usb4_core_guid(&rail->peer.node) != guid)
			continue;
		*node = rail->peer.node;
		found = true;
		break;
	}
	spin_unlock(&u4_rails_lock);
	return found;
}

/**
 * u4_rails_sum() - what rails there are that carry data
 * @count: where to put how many
 * @rate_mbps: where to put what they are taken to carry together
 */
void u4_rails_sum(u32 *count, u64 *rate_mbps)
{
	struct u4_rail *rail;

	*count = 0;
	*rate_mbps = 0;
	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list) {
		if (!rail->link_up)
			continue;
		*count += 1;
		*rate_mbps += rail->peer.rate_mbps;
	}
	spin_unlock(&u4_rails_lock);
}

static void describe(const struct u4_rail *rail, struct usb4_ring_cable *cable)
{
	u32 refused = READ_ONCE(rail->refused);

	memcpy(cable->router, rail->xd->remote_uuid->b, sizeof(cable->router));
	cable->node_low = rail->claimed.low;
	cable->node_high = rail->claimed.high;
	cable->state = USB4_RING_CABLE_CONNECTING;
	if (rail->link_up) {
		cable->state = USB4_RING_CABLE_UP;
	} else if (refused) {
		cable->state = USB4_RING_CABLE_REFUSED;
		cable->reason = READ_ONCE(rail->barred) ?
				USB4_RING_REFUSED_BY_RULES : refused;
	}
}

/**
 * u4_rails_cables() - the cables there are
 * @cables: where to put them, zeroed
 * @room: how many there is room for
 *
 * Return: how many there are, at most @room.
 */
u32 u4_rails_cables(struct usb4_ring_cable *cables, u32 room)
{
	struct u4_rail *rail;
	u32 count = 0;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list) {
		if (count == room)
			break;
		describe(rail, &cables[count++]);
	}
	spin_unlock(&u4_rails_lock);
	return count;
}

/**
 * u4_rails_judge() - other hosts than before may be let in
 */
void u4_rails_judge(void)
{
	struct u4_rail *rail;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list) {
		set_bit(EVENT_JUDGE, &rail->events);
		u4_rail_kick(rail);
	}
	spin_unlock(&u4_rails_lock);
}
