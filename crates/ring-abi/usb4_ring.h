/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT */
/*
 * Queues of the USB4 RDMA ring API: the layout of crates/ring-abi, for C.
 * tests/uapi.rs compares every constant, size and offset with the Rust side.
 *
 * A queue is __u64 words: the producer's index at word 0, the consumer's at
 * word 8, flags at word 16, entries from word 32. Indices count entries ever
 * produced or consumed; the entry of index i is at i & (depth - 1). All fields
 * are little endian. Reserved fields are zero.
 */
#ifndef USB4_RING_H
#define USB4_RING_H

#include <linux/types.h>

#define USB4_RING_ABI_VERSION		1

#define USB4_RING_PRODUCER_WORD		0
#define USB4_RING_CONSUMER_WORD		8
#define USB4_RING_FLAGS_WORD		16
#define USB4_RING_ENTRIES_WORD		32
#define USB4_RING_MAX_DEPTH		65536

/* Flags of submission and receive queues, set by the device. */
#define USB4_RING_NEED_WAKEUP		1
/* Flags of completion queues, set by the client. */
#define USB4_RING_ARMED			1

#define USB4_RING_LOCAL_PROCESS		0
#define USB4_RING_PREFIX_MAX		24
#define USB4_RING_MAX_MESSAGE		(1U << 30)

enum usb4_ring_op {
	USB4_RING_OP_SEND		= 1,
	USB4_RING_OP_WRITE		= 2,
	USB4_RING_OP_READ		= 3,
	USB4_RING_OP_FETCH_ADD		= 4,
	USB4_RING_OP_COMPARE_SWAP	= 5,
};

/* Flags of a submission entry. */
#define USB4_RING_SQE_IMM		1
#define USB4_RING_SQE_UNSIGNALED	2

/*
 * Submission entry. args by operation:
 *   SEND         prefix (24 bytes), immediate
 *   WRITE        remote address, remote key, 0, immediate
 *   READ         remote address, remote key, 0, 0
 *   FETCH_ADD    remote address, remote key, addend, 0
 *   COMPARE_SWAP remote address, remote key, swap, compare
 */
struct usb4_ring_sqe {
	__u8	op;
	__u8	flags;
	__u8	prefix_len;
	__u8	reserved;
	__u32	ah;
	__u64	user_data;
	__u64	local_addr;
	__u32	local_key;
	__u32	len;
	__u64	args[4];
};

/* Receive entry. */
struct usb4_ring_rqe {
	__u64	user_data;
	__u64	addr;
	__u32	local_key;
	__u32	len;
	__u64	reserved;
};

enum usb4_ring_status {
	USB4_RING_STATUS_OK		= 0,
	USB4_RING_STATUS_RNR		= 1,
	USB4_RING_STATUS_ACCESS		= 2,
	USB4_RING_STATUS_LENGTH		= 3,
	USB4_RING_STATUS_UNSUPPORTED	= 4,
	USB4_RING_STATUS_RESOURCE	= 5,
	USB4_RING_STATUS_GONE		= 6,
	USB4_RING_STATUS_LINK_DOWN	= 7,
	USB4_RING_STATUS_FLUSHED	= 8,
	USB4_RING_STATUS_INVALID	= 9,
	USB4_RING_STATUS_UNREACHABLE	= 10,
};

/* Flags of a completion entry. */
#define USB4_RING_CQE_IMM		1
#define USB4_RING_CQE_RECV		2
#define USB4_RING_CQE_WRITE_IMM		4

/* Completion entry. */
struct usb4_ring_cqe {
	__u64	user_data;
	__u8	op;
	__u8	status;
	__u16	flags;
	__u32	len;
	__u64	value;		/* immediate, or an atomic's old value */
	__u32	src;
	__u32	reserved;
};

#endif /* USB4_RING_H */
