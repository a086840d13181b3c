// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * /dev/usb4ring: the ring API of crates/ring-abi (usb4_ring.h), for clients.
 *
 * In C because of files, ioctls and mappings. An argument is copied once, here,
 * before anything is looked at.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "client.h"

#ifndef CONFIG_MMU_NOTIFIER
#error "Needs CONFIG_MMU_NOTIFIER, to be told when a client's process ends"
#endif

/* Calls */

/* How every argument begins. */
struct arg_head {
	__u32 size;
	__u32 flags;
};

union argument {
	struct arg_head head;
	struct usb4_ring_info info;
	struct usb4_ring_create_cq create_cq;
	struct usb4_ring_create_ep create_ep;
	struct usb4_ring_destroy destroy;
	struct usb4_ring_create_ah create_ah;
	struct usb4_ring_destroy_ah destroy_ah;
	struct usb4_ring_reg_mr reg_mr;
	struct usb4_ring_dereg_mr dereg_mr;
	struct usb4_ring_source source;
	struct usb4_ring_peers peers;
	struct usb4_ring_enter enter;
	struct usb4_ring_cables cables;
	struct usb4_ring_rules rules;
};

/**
 * struct call - an ioctl
 * @run: what it does with its argument, a copy in the kernel
 * @size: bytes of the argument
 * @least: bytes of it in the first version
 * @locked: it makes or destroys something: @run has the client's lock, and so
 *	must not touch user memory, for which whoever provides that may let it
 *	wait
 * @returns: the argument goes back
 */
struct call {
	int (*run)(struct u4_client *client, void *arg);
	size_t size;
	size_t least;
	bool locked;
	bool returns;
};

#define CALL(function, type, last, with_lock, with_answer) {	\
	.run = (function),					\
	.size = sizeof(struct type),				\
	.least = offsetofend(struct type, last),		\
	.locked = (with_lock),					\
	.returns = (with_answer),				\
}

static const struct call calls[] = {
	[_IOC_NR(USB4_RING_IOC_INFO)] =
		CALL(u4_info, usb4_ring_info, notice_offset, false, true),
	[_IOC_NR(USB4_RING_IOC_CREATE_CQ)] =
		CALL(u4_create_cq, usb4_ring_create_cq, bytes, true, true),
	[_IOC_NR(USB4_RING_IOC_DESTROY_CQ)] =
		CALL(u4_destroy_cq, usb4_ring_destroy, reserved, true, false),
	[_IOC_NR(USB4_RING_IOC_CREATE_EP)] =
		CALL(u4_create_ep, usb4_ring_create_ep, rq_bytes, true, true),
	[_IOC_NR(USB4_RING_IOC_DESTROY_EP)] =
		CALL(u4_destroy_ep, usb4_ring_destroy, reserved, true, false),
	[_IOC_NR(USB4_RING_IOC_CREATE_AH)] =
		CALL(u4_create_ah, usb4_ring_create_ah, timeout_ns, false, true),
	[_IOC_NR(USB4_RING_IOC_DESTROY_AH)] =
		CALL(u4_destroy_ah, usb4_ring_destroy_ah, ah, true, false),
	[_IOC_NR(USB4_RING_IOC_REG_MR)] =
		CALL(u4_reg_mr, usb4_ring_reg_mr, node_high, false, true),
	[_IOC_NR(USB4_RING_IOC_DEREG_MR)] =
		CALL(u4_dereg_mr, usb4_ring_dereg_mr, reserved, true, false),
	[_IOC_NR(USB4_RING_IOC_SOURCE)] =
		CALL(u4_source, usb4_ring_source, addr, false, true),
	[_IOC_NR(USB4_RING_IOC_PEERS)] =
		CALL(u4_list_peers, usb4_ring_peers, peers, false, true),
	[_IOC_NR(USB4_RING_IOC_ENTER)] =
		CALL(u4_enter, usb4_ring_enter, timeout_ns, false, false),
	[_IOC_NR(USB4_RING_IOC_CABLES)] =
		CALL(u4_list_cables, usb4_ring_cables, cables, false, true),
	[_IOC_NR(USB4_RING_IOC_RULES)] =
		CALL(u4_get_rules, usb4_ring_rules, rules, false, true),
	[_IOC_NR(USB4_RING_IOC_SET_RULES)] =
		CALL(u4_set_rules, usb4_ring_rules, rules, false, false),
};

/*
 * An argument begins with its size as the caller knows it. What is missing is
 * zero; what is too much must be.
 */
static int copy_arg(const struct call *call, union argument *arg,
		    void __user *user)
{
	__u32 given;
	int ret;

	if (get_user(given, &((struct arg_head __user *)user)->size))
		return -EFAULT;
	if (given < call->least)
		return -EINVAL;
	ret = copy_struct_from_user(arg, call->size, user, given);
	/* The caller may have changed it since; what was copied counts. */
	arg->head.size = given;
	return ret;
}

static long ring_ioctl(struct file *file, unsigned int cmd, unsigned long addr)
{
	struct u4_client *client = file->private_data;
	void __user *user = (void __user *)addr;
	const struct call *call;
	union argument arg;
	int ret;

	/* A child of the process that opened it, or whoever was handed it. */
	if (client->mm != current->mm)
		return -EPERM;
	if (_IOC_TYPE(cmd) != USB4_RING_IOC_TYPE || _IOC_SIZE(cmd) ||
	    _IOC_DIR(cmd) != _IOC_NONE || _IOC_NR(cmd) >= ARRAY_SIZE(calls))
		return -ENOTTY;
	call = &calls[array_index_nospec(_IOC_NR(cmd), ARRAY_SIZE(calls))];
	ret = copy_arg(call, &arg, user);
	if (ret)
		return ret;
	if (call->locked)
		mutex_lock(&client->lock);
	ret = call->run(client, &arg);
	if (call->locked)
		mutex_unlock(&client->lock);
	/* What was made stays, whether or not the caller can be told. */
	if (ret >= 0 && call->returns &&
	    copy_to_user(user, &arg, min_t(size_t, arg.head.size, call->size)))
		return -EFAULT;
	return ret;
}

/* Files */

/* For everybody to read. A mapping holds its file, and so the page. */
static int map_notice(struct vm_area_struct *vma)
{
	if (vma->vm_flags & VM_WRITE)
		return -EPERM;
	if (vma->vm_end - vma->vm_start != PAGE_SIZE)
		return -EINVAL;
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
		     VM_MAYWRITE);
	return vm_insert_page(vma, vma->vm_start, virt_to_page(u4_notice));
}

static void queue_open(struct vm_area_struct *vma)
{
	u4_queue_get(vma->vm_private_data);
}

static void queue_close(struct vm_area_struct *vma)
{
	u4_queue_put(vma->vm_private_data);
}

/* What is mapped counts, also when its object has gone. */
static const struct vm_operations_struct queue_vm_ops = {
	.open = queue_open,
	.close = queue_close,
};

/*
 * Called with the process' memory map locked, which whoever holds the client's
 * lock may wait for: so without that.
 */
static int ring_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct u4_client *client = file->private_data;
	unsigned long shift = U4_OFFSET_SHIFT - PAGE_SHIFT;
	unsigned long bytes = vma->vm_end - vma->vm_start;
	struct u4_queue *queue;
	int ret = -EINVAL;

	if (client->mm != current->mm)
		return -EPERM;
	if (!(vma->vm_flags & VM_SHARED) ||
	    vma->vm_pgoff & ((1UL << shift) - 1))
		return ret;
	if (vma->vm_pgoff >> shift == U4_NOTICE_NUMBER)
		return map_notice(vma);
	xa_lock(&client->queues);
	queue = xa_load(&client->queues, vma->vm_pgoff >> shift);
	if (queue)
		u4_queue_get(queue);
	xa_unlock(&client->queues);
	if (!queue)
		return ret;
	if (bytes > PAGE_ALIGN(queue->bytes))
		goto err_queue;
	/* A child has no use for it. */
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	ret = remap_vmalloc_range(vma, queue->words, 0);
	if (ret)
		goto err_queue;
	vma->vm_private_data = queue;
	vma->vm_ops = &queue_vm_ops;
	return 0;

err_queue:
	u4_queue_put(queue);
	return ret;
}

/*
 * The client's process has ended, or become another by exec; or the last copy of
 * the descriptor was closed. Perhaps both, at the same time: whoever comes second
 * goes on, and mmu_notifier_unregister() and exit_mmap() wait for the first.
 *
 * Without this, whoever is left with a copy of the descriptor would keep a dead
 * process' pages pinned, in nobody's name, and its endpoints open to peers.
 */
static void client_end(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	struct u4_client *client =
		container_of(notifier, struct u4_client, notifier);
	struct u4_cq *cq;
	struct u4_ep *ep;
	unsigned long id;

	if (test_and_set_bit(U4_CLIENT_ENDED, &client->state))
		return;
	/* Nothing touches its memory or queues when this returns. */
	usb4_core_remove_client(u4_core, client->id);
	xa_for_each(&client->eps, id, ep) {
		xa_erase(&client->eps, id);
		u4_ep_free(client, ep);
	}
	xa_for_each(&client->cqs, id, cq)
		u4_cq_drop(client, cq, id);
	u4_nudge();
	/* Last: its user may then have another one. */
	u4_regions_remove(client);
}

static const struct mmu_notifier_ops client_notifier = {
	.release = client_end,
};

static int ring_open(struct inode *inode, struct file *file)
{
	struct u4_client *client;
	int ret;

	client = kzalloc_obj(*client, GFP_KERNEL_ACCOUNT);
	if (!client)
		return -ENOMEM;
	mutex_init(&client->lock);
	xa_init_flags(&client->cqs, XA_FLAGS_ACCOUNT);
	xa_init_flags(&client->eps, XA_FLAGS_ACCOUNT);
	xa_init_flags(&client->mrs, XA_FLAGS_ACCOUNT);
	xa_init_flags(&client->queues, XA_FLAGS_ALLOC1 | XA_FLAGS_ACCOUNT);
	client->exempt = capable(CAP_SYS_RESOURCE);
	client->mm = current->mm;
	client->notifier.ops = &client_notifier;
	ret = u4_regions_add(client);
	if (ret)
		goto err_client;
	ret = usb4_core_add_client(u4_core, __kuid_val(current_uid()),
				   client->exempt, &client->id);
	if (ret)
		goto err_regions;
	/* Holds the mm_struct, so that no other has its address. */
	ret = mmu_notifier_register(&client->notifier, client->mm);
	if (ret)
		goto err_core;
	file->private_data = client;
	return nonseekable_open(inode, file);

err_core:
	usb4_core_remove_client(u4_core, client->id);
err_regions:
	u4_regions_remove(client);
	u4_user_put(client->user);
err_client:
	kfree(client);
	return ret;
}

static int ring_release(struct inode *inode, struct file *file)
{
	struct u4_client *client = file->private_data;

	mmu_notifier_unregister(&client->notifier, client->mm);
	xa_destroy(&client->cqs);
	xa_destroy(&client->eps);
	xa_destroy(&client->mrs);
	xa_destroy(&client->queues);
	u4_user_put(client->user);
	kfree(client);
	return 0;
}

static const struct file_operations ring_fops = {
	.owner = THIS_MODULE,
	.open = ring_open,
	.release = ring_release,
	.unlocked_ioctl = ring_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = ring_mmap,
};

static struct miscdevice ring_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "usb4ring",
	.fops = &ring_fops,
	.groups = u4_device_groups,
	/* packaging/udev says who else may. */
	.mode = 0660,
};

/**
 * u4_chardev_device() - the device, for a client of it
 */
struct device *u4_chardev_device(void)
{
	return ring_device.this_device;
}

/**
 * u4_chardev_init() - let clients in
 *
 * Return: 0 or an error.
 */
int u4_chardev_init(void)
{
	return misc_register(&ring_device);
}

/**
 * u4_chardev_exit() - no more clients; there are none
 */
void u4_chardev_exit(void)
{
	misc_deregister(&ring_device);
	u4_regions_exit();
}
