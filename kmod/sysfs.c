// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What sysfs shows: docs/abi/sysfs-usb4_rdma.md, which is to be kept.
 *
 * In C because attributes are. A rail is a service of the thunderbolt bus, and
 * shows itself in a folder there; a link is a device of the class "usb4_rdma";
 * the device itself is /dev/usb4ring's. All of it goes before what it reads, so
 * nothing here takes a lock that is held then: not u4_links_lock.
 */
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/sysfs.h>

#include "rail.h"
#include "usb4_ring.h"

/* Attributes that end with @name, of which there is a *_show(). */
#define DEFINE_U4_ATTR(prefix, name)					\
	static struct device_attribute prefix##_attr_##name =		\
		__ATTR(name, 0444, prefix##_##name##_show, NULL)

/* The device */

static ssize_t device_node_show(struct device *dev,
				struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, U4_NODE_FMT "\n", u4_node.high, u4_node.low);
}
DEFINE_U4_ATTR(device, node);

static ssize_t device_version_show(struct device *dev,
				   struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", U4_VERSION);
}
DEFINE_U4_ATTR(device, version);

static ssize_t device_abi_version_show(struct device *dev,
				       struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", u4_limits.abi_version);
}
DEFINE_U4_ATTR(device, abi_version);

static struct attribute *device_attrs[] = {
	&device_attr_node.attr,
	&device_attr_version.attr,
	&device_attr_abi_version.attr,
	NULL,
};

static const struct attribute_group device_group = {
	.attrs = device_attrs,
};

const struct attribute_group *u4_device_groups[] = {
	&device_group,
	NULL,
};

/* Links */

static struct u4_link *to_link(struct device *dev)
{
	return dev_get_drvdata(dev);
}

static ssize_t link_peer_show(struct device *dev, struct device_attribute *attr,
			      char *buf)
{
	struct u4_link *link = to_link(dev);

	return sysfs_emit(buf, U4_NODE_FMT "\n", link->node.high,
			  link->node.low);
}
DEFINE_U4_ATTR(link, peer);

static ssize_t link_state_show(struct device *dev,
			       struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n",
			  READ_ONCE(to_link(dev)->chosen) ? "up" : "joining");
}
DEFINE_U4_ATTR(link, state);

static ssize_t link_rails_show(struct device *dev,
			       struct device_attribute *attr, char *buf)
{
	struct u4_link *link = to_link(dev);
	u32 count = 0;
	u32 i;

	for (i = 0; i < U4_LINK_RAILS; i++)
		count += !!rcu_access_pointer(link->ports[i]);
	return sysfs_emit(buf, "%u\n", count);
}
DEFINE_U4_ATTR(link, rails);

static ssize_t link_age_ms_show(struct device *dev,
				struct device_attribute *attr, char *buf)
{
	ktime_t age = ktime_sub(ktime_get_boottime(), to_link(dev)->since);

	return sysfs_emit(buf, "%lld\n", ktime_to_ms(age));
}
DEFINE_U4_ATTR(link, age_ms);

static struct attribute *link_attrs[] = {
	&link_attr_peer.attr,
	&link_attr_state.attr,
	&link_attr_rails.attr,
	&link_attr_age_ms.attr,
	NULL,
};

static const struct attribute_group link_group = {
	.attrs = link_attrs,
};

static ssize_t show_count(struct device *dev, char *buf, size_t at)
{
	struct usb4_core_link_status status;

	if (!usb4_core_link_status(u4_core, to_link(dev)->core, &status))
		return -ENODEV;
	return sysfs_emit(buf, "%llu\n", *(u64 *)((u8 *)&status + at));
}

/* A member of struct usb4_core_link_status. */
#define LINK_COUNTER(name)						\
static ssize_t link_##name##_show(struct device *dev,			\
				  struct device_attribute *attr,	\
				  char *buf)				\
{									\
	return show_count(dev, buf,					\
			  offsetof(struct usb4_core_link_status, name));\
}									\
DEFINE_U4_ATTR(link, name)

LINK_COUNTER(tx_frames);
LINK_COUNTER(tx_bytes);
LINK_COUNTER(tx_acks);
LINK_COUNTER(tx_probes);
LINK_COUNTER(tx_resent);
LINK_COUNTER(tx_lost);
LINK_COUNTER(rx_frames);
LINK_COUNTER(rx_bytes);
LINK_COUNTER(rx_malformed);
LINK_COUNTER(rx_corrupt);
LINK_COUNTER(rx_wrong_tag);
LINK_COUNTER(rx_duplicate);
LINK_COUNTER(rx_no_room);
LINK_COUNTER(parked);
LINK_COUNTER(violations);
LINK_COUNTER(executed);
LINK_COUNTER(completed);
LINK_COUNTER(failed);
LINK_COUNTER(rnr_sent);
LINK_COUNTER(rnr_received);
LINK_COUNTER(nak_sent);
LINK_COUNTER(nak_received);

static struct attribute *link_counters[] = {
	&link_attr_tx_frames.attr,
	&link_attr_tx_bytes.attr,
	&link_attr_tx_acks.attr,
	&link_attr_tx_probes.attr,
	&link_attr_tx_resent.attr,
	&link_attr_tx_lost.attr,
	&link_attr_rx_frames.attr,
	&link_attr_rx_bytes.attr,
	&link_attr_rx_malformed.attr,
	&link_attr_rx_corrupt.attr,
	&link_attr_rx_wrong_tag.attr,
	&link_attr_rx_duplicate.attr,
	&link_attr_rx_no_room.attr,
	&link_attr_parked.attr,
	&link_attr_violations.attr,
	&link_attr_executed.attr,
	&link_attr_completed.attr,
	&link_attr_failed.attr,
	&link_attr_rnr_sent.attr,
	&link_attr_rnr_received.attr,
	&link_attr_nak_sent.attr,
	&link_attr_nak_received.attr,
	NULL,
};

static const struct attribute_group link_counter_group = {
	.name = "statistics",
	.attrs = link_counters,
};

static const struct attribute_group *link_groups[] = {
	&link_group,
	&link_counter_group,
	NULL,
};

static const struct class link_class = {
	.name = "usb4_rdma",
};

/**
 * u4_sysfs_add() - show a link
 * @link: the link, that has its number
 *
 * Return: 0 or an error.
 */
int u4_sysfs_add(struct u4_link *link)
{
	struct device *dev;

	dev = device_create_with_groups(&link_class, NULL, MKDEV(0, 0), link,
					link_groups, "link%u", link->number);
	if (IS_ERR(dev))
		return PTR_ERR(dev);
	link->dev = dev;
	return 0;
}

/**
 * u4_sysfs_remove() - show a link no more
 * @link: the link; nobody reads of it when this returns
 */
void u4_sysfs_remove(struct u4_link *link)
{
	if (link->dev)
		device_unregister(link->dev);
	link->dev = NULL;
}

/**
 * u4_sysfs_init() - be ready to show links
 *
 * Return: 0 or an error.
 */
int u4_sysfs_init(void)
{
	return class_register(&link_class);
}

/**
 * u4_sysfs_exit() - there are no links any more
 */
void u4_sysfs_exit(void)
{
	class_unregister(&link_class);
}

/* Rails */

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
