/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What older kernels do not have, by its newer name. Found by what the headers
 * define, not by version: distributions move things.
 */
#ifndef USB4_COMPAT_H
#define USB4_COMPAT_H

#include <linux/slab.h>

/* Since 7.0. */
#ifndef kzalloc_obj
#define kzalloc_obj(obj, gfp)	kzalloc(sizeof(obj), gfp)
#endif

#endif /* USB4_COMPAT_H */
