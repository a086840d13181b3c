// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What sysfs shows of links and of the device: docs/abi/sysfs-usb4_rdma.md, which
 * is to be kept.
 *
 * In C because attributes are. A link is a device of the class "usb4_rdma"; the
 * device itself is /dev/usb4ring's. All of it goes before what it reads, so
 * nothing here takes a lock that is held then: not u4_links_lock.
 */
#include <linux/device.h>
#include <linux/ktime.h>
#include <linux/sysfs.h>

#include "rail.h"
#include "sysfs.h"

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
