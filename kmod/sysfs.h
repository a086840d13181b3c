/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * How attributes are made.
 */
#ifndef USB4_SYSFS_H
#define USB4_SYSFS_H

#include <linux/device.h>

/* Attributes that end with @name, of which there is a *_show(). */
#define DEFINE_U4_ATTR(prefix, name)					\
	static struct device_attribute prefix##_attr_##name =		\
		__ATTR(name, 0444, prefix##_##name##_show, NULL)

#endif /* USB4_SYSFS_H */
