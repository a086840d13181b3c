// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * RDMA over USB4 and Thunderbolt cables.
 *
 * In C because the kernel wants a module to begin and end in C. Here: the
 * host's name, the memory of the core, and the order in which the parts come
 * and go.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <crypto/sha2.h>
#include <linux/dmi.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/string.h>
#include <linux/unaligned.h>

#include "usb4_rdma.h"
#include "usb4_ring.h"
#include "verbs.h"

struct usb4_core *u4_core;
struct usb4_core_limits u4_limits;
EXPORT_SYMBOL_NS_GPL(u4_limits, "USB4_RDMA");
struct usb4_core_node u4_node;
EXPORT_SYMBOL_NS_GPL(u4_node, "USB4_RDMA");
u64 *u4_notice;
DECLARE_WAIT_QUEUE_HEAD(u4_links_wait);

static void *core_memory;

/* A UUID of one digit only is what firmware has that was given none. */
static bool is_uuid(const char *text)
{
	size_t len = text ? strlen(text) : 0;
	size_t at;

	if (len < 36)
		return false;
	for (at = 0; at < len; at++)
		if (text[at] != '-' && text[at] != text[0])
			return true;
	return false;
}

/*
 * A name that stays: from the machine's UUID, which is not shown to peers
 * itself. Random, until the next time, where there is none.
 */
static void make_node(struct usb4_core_node *node)
{
	static const char salt[] = "usb4_rdma node id";
	const char *uuid = dmi_get_system_info(DMI_PRODUCT_UUID);
	u8 digest[SHA256_DIGEST_SIZE];
	char text[sizeof(salt) + 64];

	if (!is_uuid(uuid)) {
		node->low = get_random_u64();
		node->high = get_random_u64();
		return;
	}
	scnprintf(text, sizeof(text), "%s %s", salt, uuid);
	sha256((const u8 *)text, strlen(text), digest);
	node->high = get_unaligned_be64(digest);
	node->low = get_unaligned_be64(digest + 8);
}

static int __init make_core(void)
{
	size_t size = usb4_core_size();
	int ret = -ENOMEM;

	usb4_core_limits(&u4_limits);
	make_node(&u4_node);
	core_memory = kvzalloc(size, GFP_KERNEL);
	if (!core_memory)
		return -ENOMEM;
	u4_notice = (u64 *)get_zeroed_page(GFP_KERNEL);
	if (!u4_notice)
		goto err_core;
	u4_core = usb4_core_new(core_memory, size, &u4_node,
				&u4_notice[USB4_RING_NOTICE_UNDRIVEN_WORD],
				&u4_tracing);
	if (!u4_core) {
		ret = -EINVAL;
		goto err_notice;
	}
	return 0;

err_notice:
	free_page((unsigned long)u4_notice);
err_core:
	kvfree(core_memory);
	return ret;
}

static void free_core(void)
{
	free_page((unsigned long)u4_notice);
	kvfree(core_memory);
}

static int __init usb4_rdma_init(void)
{
	int ret;

	ret = make_core();
	if (ret)
		return ret;
	ret = u4_sysfs_init();
	if (ret)
		goto err_core;
	ret = u4_rails_init();
	if (ret)
		goto err_sysfs;
	ret = u4_service_init();
	if (ret)
		goto err_rails;
	ret = u4_chardev_init();
	if (ret)
		goto err_service;
	ret = u4_verbs_init();
	if (ret)
		goto err_chardev;
	pr_info("version " U4_VERSION ", this host is " U4_NODE_FMT "\n",
		u4_node.high, u4_node.low);
	return 0;

err_chardev:
	u4_chardev_exit();
err_service:
	u4_service_exit();
err_rails:
	u4_rails_exit();
err_sysfs:
	u4_sysfs_exit();
err_core:
	free_core();
	return ret;
}

static void __exit usb4_rdma_exit(void)
{
	/*
	 * Nobody has the device open: each open file holds the module, and so
	 * does usb4_rdma_ib.ko.
	 */
	u4_verbs_exit();
	u4_chardev_exit();
	u4_service_exit();
	u4_rails_exit();
	u4_loop_stop();
	u4_peers_exit();
	u4_sysfs_exit();
	free_core();
}

module_init(usb4_rdma_init);
module_exit(usb4_rdma_exit);

MODULE_DESCRIPTION("RDMA over USB4 and Thunderbolt cables");
MODULE_AUTHOR("The usb4-rdma authors");
MODULE_VERSION(U4_VERSION);
MODULE_LICENSE("Dual MIT/GPL");
