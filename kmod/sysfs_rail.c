// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What sysfs shows of rails: docs/abi/sysfs-usb4_rdma.md, which is to be kept.
 *
 * In C because attributes are. A rail is a service of the thunderbolt bus, and
 * shows itself in a folder there, which goes before the rail does. So nothing here
 * takes a lock that is held then: not u4_links_lock.
 */
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/math64.h>
#include <linux/sysfs.h>

#include "rail.h"
#include "sysfs.h"

static struct u4_rail *to_rail(struct device *dev)
{
	return dev_get_drvdata(dev);
}

enum rail_state {
	RAIL_STOPPED,
	RAIL_NO_RING,
	RAIL_NO_BUFFERS,
	RAIL_WAITING,
	RAIL_CONNECTING,
	RAIL_REFUSED,
	RAIL_JOINING,
	RAIL_UP,
};

static const char *const rail_states[] = {
	[RAIL_STOPPED] = "stopped",
	[RAIL_NO_RING] = "no-ring",
	[RAIL_NO_BUFFERS] = "no-buffers",
	[RAIL_WAITING] = "waiting",
	[RAIL_CONNECTING] = "connecting",
	[RAIL_REFUSED] = "refused",
	[RAIL_JOINING] = "joining",
	[RAIL_UP] = "up",
};

/*
 * It may be another one by the time it is told. What is read here is written with
 * u4_rails_lock held, or by the rail's work item alone.
 */
static enum rail_state state_of(struct u4_rail *rail)
{
	if (!READ_ONCE(rail->running))
		return RAIL_STOPPED;
	if (READ_ONCE(rail->link_up))
		return RAIL_UP;
	if (rcu_access_pointer(rail->port.link))
		return RAIL_JOINING;
	if (!READ_ONCE(rail->opened))
		switch (READ_ONCE(rail->error)) {
		case 0:
			return RAIL_CONNECTING;
		case -EBUSY:
			return RAIL_NO_RING;
		default:
			return RAIL_NO_BUFFERS;
		}
	if (READ_ONCE(rail->error))
		return RAIL_WAITING;
	return READ_ONCE(rail->refused) ? RAIL_REFUSED : RAIL_CONNECTING;
}

static ssize_t rail_state_show(struct device *dev,
			       struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", rail_states[state_of(to_rail(dev))]);
}
DEFINE_U4_ATTR(rail, state);

static ssize_t rail_reason_show(struct device *dev,
				struct device_attribute *attr, char *buf)
{
	struct u4_rail *rail = to_rail(dev);
	const char *ended = READ_ONCE(rail->ended);
	char text[U4_REFUSAL];

	switch (state_of(rail)) {
	case RAIL_NO_RING:
		return sysfs_emit(buf, "all rings of the controller are taken or kept for thunderbolt_net\n");
	case RAIL_NO_BUFFERS:
		return sysfs_emit(buf, "no memory for frame buffers (error %d)\n",
				  READ_ONCE(rail->error));
	case RAIL_WAITING:
		return sysfs_emit(buf, "the link could not be made (error %d)\n",
				  READ_ONCE(rail->error));
	case RAIL_REFUSED:
		if (READ_ONCE(rail->barred))
			return sysfs_emit(buf, "no rule of this host lets it in\n");
		u4_rail_refusal(rail, text);
		return sysfs_emit(buf, "%s\n", text);
	case RAIL_CONNECTING:
		return sysfs_emit(buf, "%s\n", ended ?:
				  "the host at the other end has not answered");
	case RAIL_JOINING:
		return sysfs_emit(buf, "which link it belongs to is being agreed on\n");
	default:
		return sysfs_emit(buf, "none\n");
	}
}
DEFINE_U4_ATTR(rail, reason);

static ssize_t rail_retry_ms_show(struct device *dev,
				  struct device_attribute *attr, char *buf)
{
	struct u4_rail *rail = to_rail(dev);
	/* The timer's own; whatever it is in this instant will do. */
	unsigned long at = data_race(rail->work.timer.expires);
	unsigned long now = jiffies;
	unsigned int ms = 0;

	switch (state_of(rail)) {
	case RAIL_UP:
	case RAIL_STOPPED:
		break;
	default:
		if (delayed_work_pending(&rail->work) && time_after(at, now))
			ms = jiffies_to_msecs(at - now);
	}
	return sysfs_emit(buf, "%u\n", ms);
}
DEFINE_U4_ATTR(rail, retry_ms);

static ssize_t rail_peer_show(struct device *dev, struct device_attribute *attr,
			      char *buf)
{
	struct u4_rail *rail = to_rail(dev);
	struct usb4_core_node node;
	bool known;

	spin_lock(&u4_rails_lock);
	known = rail->node_known;
	node = rail->peer.node;
	spin_unlock(&u4_rails_lock);
	if (!known)
		return sysfs_emit(buf, "none\n");
	return sysfs_emit(buf, U4_NODE_FMT "\n", node.high, node.low);
}
DEFINE_U4_ATTR(rail, peer);

static ssize_t rail_link_show(struct device *dev, struct device_attribute *attr,
			      char *buf)
{
	struct u4_link *link;
	ssize_t ret;

	rcu_read_lock();
	link = rcu_dereference(to_rail(dev)->port.link);
	ret = link ? sysfs_emit(buf, "link%u\n", link->number) :
		     sysfs_emit(buf, "none\n");
	rcu_read_unlock();
	return ret;
}
DEFINE_U4_ATTR(rail, link);

static ssize_t rail_route_show(struct device *dev,
			       struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llx\n", to_rail(dev)->xd->route);
}
DEFINE_U4_ATTR(rail, route);

static ssize_t rail_local_uuid_show(struct device *dev,
				    struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%pUb\n", to_rail(dev)->xd->local_uuid);
}
DEFINE_U4_ATTR(rail, local_uuid);

static ssize_t rail_remote_uuid_show(struct device *dev,
				     struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%pUb\n", to_rail(dev)->xd->remote_uuid);
}
DEFINE_U4_ATTR(rail, remote_uuid);

static ssize_t rail_controller_show(struct device *dev,
				    struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n",
			  dev_name(u4_controller(to_rail(dev)->xd)));
}
DEFINE_U4_ATTR(rail, controller);

/* Something of its rings or paths; 0 while it has none. */
static ssize_t show_ring(struct u4_rail *rail, char *buf,
			 int (*value)(struct u4_rail *rail))
{
	int number = 0;

	/* Rings stay while this is held and it says that there are some. */
	spin_lock(&u4_rails_lock);
	if (rail->opened)
		number = value(rail);
	spin_unlock(&u4_rails_lock);
	return sysfs_emit(buf, "%d\n", number);
}

#define RAIL_RING(name, value)						\
static int rail_##name(struct u4_rail *rail)				\
{									\
	return READ_ONCE(value);					\
}									\
									\
static ssize_t rail_##name##_show(struct device *dev,			\
				  struct device_attribute *attr,	\
				  char *buf)				\
{									\
	return show_ring(to_rail(dev), buf, rail_##name);		\
}									\
DEFINE_U4_ATTR(rail, name)

RAIL_RING(tx_ring, rail->port.tx->hop);
RAIL_RING(rx_ring, rail->port.rx->hop);
RAIL_RING(tx_hop, rail->out_hop);
RAIL_RING(rx_hop, rail->in_hop);

/*
 * Since 7.2 each ring has its own; before, the driver sets one for all of them
 * (nhi_enable_int_throttling() in nhi.c).
 */
#ifdef U4_RING_THROTTLING
RAIL_RING(interrupt_throttle_ns, rail->port.rx->interval_nsec);
#else
static const unsigned int nhi_throttle_ns = 128000;

RAIL_RING(interrupt_throttle_ns, nhi_throttle_ns);
#endif

/* How it fares, if it belongs to a link; zeroes if not. */
static struct usb4_core_rail_status status_of(struct u4_rail *rail)
{
	struct usb4_core_rail_status status = {};
	struct u4_link *link;

	rcu_read_lock();
	link = rcu_dereference(rail->port.link);
	if (link)
		usb4_core_link_rail(u4_core, link->core, rail->port.index,
				    &status);
	rcu_read_unlock();
	return status;
}

static ssize_t rail_rate_mbps_show(struct device *dev,
				   struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n",
			  div_u64(status_of(to_rail(dev)).rate, 1000000));
}
DEFINE_U4_ATTR(rail, rate_mbps);

static ssize_t rail_rtt_ns_show(struct device *dev,
				struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", status_of(to_rail(dev)).rtt);
}
DEFINE_U4_ATTR(rail, rtt_ns);

static ssize_t rail_in_flight_show(struct device *dev,
				   struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", status_of(to_rail(dev)).in_flight);
}
DEFINE_U4_ATTR(rail, in_flight);

/* Those of the session that is on are the core's. */
static ssize_t rail_tx_lost_show(struct device *dev,
				 struct device_attribute *attr, char *buf)
{
	struct u4_rail *rail = to_rail(dev);

	return sysfs_emit(buf, "%llu\n",
			  READ_ONCE(rail->port.counters.tx_lost) +
			  status_of(rail).lost);
}
DEFINE_U4_ATTR(rail, tx_lost);

/* A member of struct u4_counters. */
#define RAIL_COUNTER(name)						\
static ssize_t rail_##name##_show(struct device *dev,			\
				  struct device_attribute *attr,	\
				  char *buf)				\
{									\
	return sysfs_emit(buf, "%llu\n",				\
			  READ_ONCE(to_rail(dev)->port.counters.name));	\
}									\
DEFINE_U4_ATTR(rail, name)

RAIL_COUNTER(tx_frames);
RAIL_COUNTER(tx_bytes);
RAIL_COUNTER(rx_frames);
RAIL_COUNTER(rx_bytes);
RAIL_COUNTER(rx_crc_errors);
RAIL_COUNTER(rx_overruns);
RAIL_COUNTER(interrupts);
RAIL_COUNTER(interrupts_lost);
RAIL_COUNTER(tx_kicks);
RAIL_COUNTER(rx_kicks);
RAIL_COUNTER(stalls);

/* Control messages, which no ring of ours carries. */
#define RAIL_CONTROL(name)						\
static ssize_t rail_##name##_show(struct device *dev,			\
				  struct device_attribute *attr,	\
				  char *buf)				\
{									\
	return sysfs_emit(buf, "%llu\n", READ_ONCE(to_rail(dev)->name));\
}									\
DEFINE_U4_ATTR(rail, name)

RAIL_CONTROL(control_rx);
RAIL_CONTROL(control_malformed);
RAIL_CONTROL(control_dropped);

static struct attribute *rail_attrs[] = {
	&rail_attr_state.attr,
	&rail_attr_reason.attr,
	&rail_attr_retry_ms.attr,
	&rail_attr_peer.attr,
	&rail_attr_link.attr,
	&rail_attr_route.attr,
	&rail_attr_local_uuid.attr,
	&rail_attr_remote_uuid.attr,
	&rail_attr_controller.attr,
	&rail_attr_tx_ring.attr,
	&rail_attr_rx_ring.attr,
	&rail_attr_tx_hop.attr,
	&rail_attr_rx_hop.attr,
	&rail_attr_interrupt_throttle_ns.attr,
	&rail_attr_rate_mbps.attr,
	&rail_attr_rtt_ns.attr,
	&rail_attr_in_flight.attr,
	&rail_attr_tx_frames.attr,
	&rail_attr_tx_bytes.attr,
	&rail_attr_tx_lost.attr,
	&rail_attr_rx_frames.attr,
	&rail_attr_rx_bytes.attr,
	&rail_attr_rx_crc_errors.attr,
	&rail_attr_rx_overruns.attr,
	&rail_attr_interrupts.attr,
	&rail_attr_interrupts_lost.attr,
	&rail_attr_tx_kicks.attr,
	&rail_attr_rx_kicks.attr,
	&rail_attr_stalls.attr,
	&rail_attr_control_rx.attr,
	&rail_attr_control_malformed.attr,
	&rail_attr_control_dropped.attr,
	NULL,
};

static const struct attribute_group rail_group = {
	.name = KBUILD_MODNAME,
	.attrs = rail_attrs,
};

const struct attribute_group *u4_rail_groups[] = {
	&rail_group,
	NULL,
};
