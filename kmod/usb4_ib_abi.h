/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT */
/*
 * What uverbs calls of the device usb4_0 answer its provider, besides what they
 * answer anybody: version 1. Requests have nothing of the provider's.
 *
 * A context has a file descriptor of its own, of an anonymous inode, on which the
 * calls of the ring API (usb4_ring.h) work that make no object: ENTER, INFO,
 * CREATE_AH, DESTROY_AH, SOURCE; the others answer EPERM. Queues are mapped through
 * it. It belongs to the process that made the context, as /dev/usb4ring does.
 */
#ifndef USB4_IB_ABI_H
#define USB4_IB_ABI_H

#include <linux/types.h>

#define USB4_IB_ABI_VERSION	1

struct usb4_ib_alloc_ucontext_resp {
	__u32	ring_abi;	/* USB4_RING_ABI_VERSION */
	__s32	ring_fd;	/* close-on-exec; the process' to close */
	__u32	caps;		/* 0 */
	__u32	notice_bytes;	/* of the notice page, for reading */
	__aligned_u64 notice_offset;
};

struct usb4_ib_create_cq_resp {
	__u32	cq;		/* what ENTER calls it */
	__u32	depth;		/* entries; no less than asked for */
	__aligned_u64 offset;	/* mmap */
	__aligned_u64 bytes;
};

struct usb4_ib_create_qp_resp {
	__u32	ep;		/* what ENTER and CREATE_AH call it */
	__u32	sq_depth;
	__u32	rq_depth;	/* 0: it draws from a shared receive queue */
	__u32	sq_slot;	/* bytes of the slots behind its entries, or 0 */
	__aligned_u64 sq_offset;
	__aligned_u64 sq_bytes;
	__aligned_u64 rq_offset;
	__aligned_u64 rq_bytes;
	__u32	rq_slot;
	__u32	reserved;
};

struct usb4_ib_create_srq_resp {
	__u32	srq;		/* what ENTER calls it, as @ep */
	__u32	depth;		/* entries; no less than asked for */
	__aligned_u64 offset;	/* mmap */
	__aligned_u64 bytes;
	__u32	slot;		/* bytes of the slots behind its entries, or 0 */
	__u32	reserved;
};

/* The host of a GID, for CREATE_AH. */
struct usb4_ib_create_ah_resp {
	__aligned_u64 node_low;
	__aligned_u64 node_high;
};

#endif /* USB4_IB_ABI_H */
