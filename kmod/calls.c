// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The calls of clients: the ioctls of the ring API (usb4_ring.h).
 *
 * In C because of user memory. An argument is copied once, here, before anything
 * is looked at.
 */
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "client.h"

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

/* What is to be known of a call. */
enum {
	/*
	 * It makes or destroys something: it has the client's lock, and so must
	 * not touch user memory, for which whoever provides that may let it wait.
	 */
	LOCKED	= BIT(0),
	/* The argument goes back. */
	RETURNS	= BIT(1),
	/* It is of use where others make the objects, too: verbs.c. */
	LENT	= BIT(2),
};

/**
 * struct call - an ioctl
 * @run: what it does with its argument, a copy in the kernel
 * @size: bytes of the argument
 * @least: bytes of it in the first version
 * @traits: LOCKED, RETURNS, LENT
 */
struct call {
	int (*run)(struct u4_client *client, void *arg);
	size_t size;
	size_t least;
	u32 traits;
};

#define CALL(function, type, last, what) {			\
	.run = (function),					\
	.size = sizeof(struct type),				\
	.least = offsetofend(struct type, last),		\
	.traits = (what),					\
}

static const struct call calls[] = {
	[_IOC_NR(USB4_RING_IOC_INFO)] =
		CALL(u4_info, usb4_ring_info, notice_offset,
		     RETURNS | LENT),
	[_IOC_NR(USB4_RING_IOC_CREATE_CQ)] =
		CALL(u4_create_cq, usb4_ring_create_cq, bytes,
		     LOCKED | RETURNS),
	[_IOC_NR(USB4_RING_IOC_DESTROY_CQ)] =
		CALL(u4_destroy_cq, usb4_ring_destroy, reserved,
		     LOCKED),
	[_IOC_NR(USB4_RING_IOC_CREATE_EP)] =
		CALL(u4_create_ep, usb4_ring_create_ep, rq_bytes,
		     LOCKED | RETURNS),
	[_IOC_NR(USB4_RING_IOC_DESTROY_EP)] =
		CALL(u4_destroy_ep, usb4_ring_destroy, reserved,
		     LOCKED),
	[_IOC_NR(USB4_RING_IOC_CREATE_AH)] =
		CALL(u4_create_ah, usb4_ring_create_ah, timeout_ns,
		     RETURNS | LENT),
	[_IOC_NR(USB4_RING_IOC_DESTROY_AH)] =
		CALL(u4_destroy_ah, usb4_ring_destroy_ah, ah,
		     LOCKED | LENT),
	[_IOC_NR(USB4_RING_IOC_REG_MR)] =
		CALL(u4_reg_mr, usb4_ring_reg_mr, node_high,
		     RETURNS),
	[_IOC_NR(USB4_RING_IOC_DEREG_MR)] =
		CALL(u4_dereg_mr, usb4_ring_dereg_mr, reserved,
		     LOCKED),
	[_IOC_NR(USB4_RING_IOC_SOURCE)] =
		CALL(u4_source, usb4_ring_source, addr,
		     RETURNS | LENT),
	[_IOC_NR(USB4_RING_IOC_PEERS)] =
		CALL(u4_list_peers, usb4_ring_peers, peers,
		     RETURNS),
	[_IOC_NR(USB4_RING_IOC_ENTER)] =
		CALL(u4_enter, usb4_ring_enter, timeout_ns,
		     LENT),
	[_IOC_NR(USB4_RING_IOC_CABLES)] =
		CALL(u4_list_cables, usb4_ring_cables, cables,
		     RETURNS),
	[_IOC_NR(USB4_RING_IOC_RULES)] =
		CALL(u4_get_rules, usb4_ring_rules, rules,
		     RETURNS),
	[_IOC_NR(USB4_RING_IOC_SET_RULES)] =
		CALL(u4_set_rules, usb4_ring_rules, rules,
		     0),
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

/**
 * u4_client_call() - carry out a call
 * @client: whose
 * @cmd: the ioctl
 * @addr: the address of its argument
 * @lent: others make the client's objects
 *
 * Return: what is said to the caller.
 */
long u4_client_call(struct u4_client *client, unsigned int cmd,
		    unsigned long addr, bool lent)
{
	void __user *user = (void __user *)addr;
	const struct call *call;
	union argument arg;
	int ret;

	/* A child of the process that opened it, or whoever was handed it. */
	if (!u4_client_is_own(client))
		return -EPERM;
	if (_IOC_TYPE(cmd) != USB4_RING_IOC_TYPE || _IOC_SIZE(cmd) ||
	    _IOC_DIR(cmd) != _IOC_NONE || _IOC_NR(cmd) >= ARRAY_SIZE(calls))
		return -ENOTTY;
	call = &calls[array_index_nospec(_IOC_NR(cmd), ARRAY_SIZE(calls))];
	if (lent && !(call->traits & LENT))
		return -EPERM;
	ret = copy_arg(call, &arg, user);
	if (ret)
		return ret;
	if (call->traits & LOCKED)
		mutex_lock(&client->lock);
	ret = call->run(client, &arg);
	if (call->traits & LOCKED)
		mutex_unlock(&client->lock);
	/* What was made stays, whether or not the caller can be told. */
	if (ret >= 0 && call->traits & RETURNS &&
	    copy_to_user(user, &arg, min_t(size_t, arg.head.size, call->size)))
		return -EFAULT;
	return ret;
}
