// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Which rails have rings, of which a controller has few: thunderbolt_net is to
 * have some, and two hosts are to give theirs to the same cable.
 *
 * In C because of rings and the properties of hosts.
 */
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/random.h>
#include <linux/string.h>

#include "rail.h"

/* How long a rail nobody is heard on keeps what another one could use. */
#define YIELD_MS	1000

/* The service of hosts that want a network over the cable (thunderbolt_net). */
#define NETWORK_KEY	"network"

/* The first ring is the control channel's (nhi.c). */
#define CONTROL_RINGS	1

static struct tb_nhi *to_nhi(struct u4_rail *rail)
{
	return rail->xd->tb->nhi;
}

/* Rings come and go under this: who looks for one sees all that are left. */
static DEFINE_MUTEX(rings_lock);

/**
 * struct budget - who has a controller's rings
 * @nhi: the controller
 * @usable: those that are not the control channel's
 * @networks: hosts that thunderbolt_net wants one for
 * @taken: rails of ours that have one
 * @holder: name of the host at the other end of one of these
 */
struct budget {
	struct tb_nhi *nhi;
	u32 usable;
	u32 networks;
	u32 taken;
	char holder[32];
};

/*
 * By the properties that the host has announced, which come all at once; devices
 * for its services appear one after the other.
 */
static int count_network(struct device *dev, void *data)
{
	struct tb_xdomain *xd = tb_to_xdomain(dev);
	struct budget *budget = data;

	if (!xd || xd->tb->nhi != budget->nhi || xd->is_unplugged)
		return 0;
	mutex_lock(&xd->lock);
	if (tb_property_find(xd->remote_properties, NETWORK_KEY,
			     TB_PROPERTY_TYPE_DIRECTORY))
		budget->networks++;
	mutex_unlock(&xd->lock);
	return 0;
}

static void count_rings(struct u4_rail *rail, struct budget *budget)
{
	struct u4_rail *other;

	*budget = (struct budget) {
		.nhi = to_nhi(rail),
		.usable = to_nhi(rail)->hop_count - CONTROL_RINGS,
	};
	bus_for_each_dev(rail->svc->dev.bus, NULL, budget, count_network);
	spin_lock(&u4_rails_lock);
	list_for_each_entry(other, &u4_rails, list) {
		if (to_nhi(other) != budget->nhi || !other->opened)
			continue;
		budget->taken++;
		strscpy(budget->holder, dev_name(&other->xd->dev));
	}
	spin_unlock(&u4_rails_lock);
}

/*
 * Of a controller's rings thunderbolt_net gets one for each host that wants it;
 * we get the others, and at least one. Returns whether one is left for us.
 */
static bool may_have_ring(struct u4_rail *rail)
{
	struct budget budget;

	count_rings(rail, &budget);
	return budget.taken < max(budget.usable > budget.networks ?
				  budget.usable - budget.networks : 0, 1U);
}

static int open_port(struct u4_rail *rail)
{
	int ret;

	if (!may_have_ring(rail))
		return -EBUSY;
	ret = u4_port_open(&rail->port, to_nhi(rail));
	if (ret)
		return ret;
	ret = tb_xdomain_alloc_out_hopid(rail->xd, -1);
	if (ret < 0) {
		u4_port_close(&rail->port);
		return ret;
	}
	rail->out_hop = ret;
	spin_lock(&u4_rails_lock);
	WRITE_ONCE(rail->opened, true);
	rail->heard_at = jiffies;
	spin_unlock(&u4_rails_lock);
	return 0;
}

/*
 * A ring may have come free for rails that have none. Whoever is just finding out
 * that there is none looks again.
 */
static void wake_waiting(struct tb_nhi *nhi)
{
	struct u4_rail *rail;

	spin_lock(&u4_rails_lock);
	list_for_each_entry(rail, &u4_rails, list)
		if (to_nhi(rail) == nhi && !rail->opened)
			u4_rail_kick(rail);
	spin_unlock(&u4_rails_lock);
}

/**
 * u4_rings_put() - give rings and receive buffers back
 * @rail: the rail, without paths
 */
void u4_rings_put(struct u4_rail *rail)
{
	if (!rail->opened)
		return;
	mutex_lock(&rings_lock);
	spin_lock(&u4_rails_lock);
	WRITE_ONCE(rail->opened, false);
	spin_unlock(&u4_rails_lock);
	tb_xdomain_release_out_hopid(rail->xd, rail->out_hop);
	u4_port_close(&rail->port);
	mutex_unlock(&rings_lock);
	wake_waiting(to_nhi(rail));
}

static const char *nhi_name(struct u4_rail *rail)
{
	return dev_name(u4_controller(rail->xd));
}

static void complain(struct u4_rail *rail, int error)
{
	struct budget budget;

	if (error != -EBUSY) {
		u4_trouble(rail, "no frame buffers for %s: error %d; trying again\n",
			   nhi_name(rail), error);
		return;
	}
	count_rings(rail, &budget);
	u4_trouble(rail, "%s has no ring left for this host: of its %u, one is the control channel's, %u for thunderbolt_net, and ours for %s; waiting\n",
		   nhi_name(rail), budget.usable + CONTROL_RINGS,
		   min(budget.networks, budget.usable - budget.taken),
		   budget.taken ? budget.holder : "nobody");
}

/**
 * u4_rings_get() - get rings and receive buffers, unless the rail has them
 * @rail: the rail
 *
 * To have none is a state rather than a failure: rings come free when others go.
 *
 * Return: whether it has them; @error says why not.
 */
bool u4_rings_get(struct u4_rail *rail)
{
	int ret;

	if (rail->opened)
		return true;
	mutex_lock(&rings_lock);
	ret = open_port(rail);
	mutex_unlock(&rings_lock);
	WRITE_ONCE(rail->error, ret);
	if (!ret) {
		rail->complained = false;
		return true;
	}
	if (!rail->complained)
		complain(rail, ret);
	rail->complained = true;
	return false;
}

/* Rings are a controller's, memory is everybody's. */
static bool has_what_lacks(struct u4_rail *other, struct u4_rail *rail)
{
	return other->opened &&
	       (rail->error != -EBUSY || to_nhi(other) == to_nhi(rail));
}

/**
 * u4_rings_ask() - have another rail give its ring and buffers away
 * @rail: a rail that could not get them, on which the peer is heard
 *
 * Two hosts that have one ring each for two cables, or memory for one, may have
 * chosen different ones. So a rail that has them, and on which nobody is heard, is
 * to give them away. When, is left to chance, lest both hosts do.
 */
void u4_rings_ask(struct u4_rail *rail)
{
	unsigned long patience = msecs_to_jiffies(YIELD_MS +
						  get_random_u32_below(YIELD_MS));
	struct u4_rail *other;

	spin_lock(&u4_rails_lock);
	rail->inbox_count = 0;
	list_for_each_entry(other, &u4_rails, list) {
		if (!has_what_lacks(other, rail) || other->link_up ||
		    time_before(jiffies, other->heard_at + patience))
			continue;
		other->wanted = rail->error;
		set_bit(EVENT_YIELD, &other->events);
		u4_rail_kick(other);
		break;
	}
	spin_unlock(&u4_rails_lock);
}

/**
 * u4_rings_give_way() - give ring and buffers away if that was asked for
 * @rail: the rail, without a session
 *
 * They are to be had again later.
 */
void u4_rings_give_way(struct u4_rail *rail)
{
	int wanted;

	if (!test_and_clear_bit(EVENT_YIELD, &rail->events))
		return;
	spin_lock(&u4_rails_lock);
	wanted = rail->wanted;
	spin_unlock(&u4_rails_lock);
	rail->rest_until = jiffies + msecs_to_jiffies(RETRY_MS);
	u4_rings_put(rail);
	/* Why it has none now. */
	WRITE_ONCE(rail->error, wanted);
}
