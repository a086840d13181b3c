/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT */
/*
 * The USB4 RDMA ring API, for the kernel and for user space: the layout of its
 * queues, and the ioctls of /dev/usb4ring. crates/ring-abi is the same in
 * Rust, and its src/uapi.rs documents the ioctls, their errors and how they
 * are extended; tests/uapi.rs compares every constant, size and offset.
 *
 * A queue is __u64 words: the producer's index at word 0, the consumer's at
 * word 8, flags at word 16, entries from word 32. Indices count entries ever
 * produced or consumed; the entry of index i is at i & (depth - 1). All fields
 * are little endian. Reserved fields are zero.
 */
#ifndef USB4_RING_H
#define USB4_RING_H

#include <linux/ioctl.h>
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
#define USB4_RING_ARMED_SOLICITED	2

#define USB4_RING_LOCAL_PROCESS		0
#define USB4_RING_PREFIX_MAX		24
#define USB4_RING_MAX_MESSAGE		(1U << 30)

enum usb4_ring_op {
	USB4_RING_OP_SEND		= 1,
	USB4_RING_OP_WRITE		= 2,
	USB4_RING_OP_READ		= 3,
	USB4_RING_OP_FETCH_ADD		= 4,
	USB4_RING_OP_COMPARE_SWAP	= 5,
	USB4_RING_OP_INVALIDATE		= 6,	/* queue pairs */
};

/* Flags of a submission entry. */
#define USB4_RING_SQE_IMM		1
#define USB4_RING_SQE_UNSIGNALED	2
/* Of queue pairs only. */
#define USB4_RING_SQE_FENCE		4
#define USB4_RING_SQE_SOLICITED		8
#define USB4_RING_SQE_LIST		16
#define USB4_RING_SQE_INLINE		32
#define USB4_RING_SQE_INVALIDATE	128

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

/* Receive entry. Of queue pairs: reserved is how many pieces a list has. */
struct usb4_ring_rqe {
	__u64	user_data;
	__u64	addr;
	__u32	local_key;
	__u32	len;
	__u64	reserved;
};

/*
 * Of queue pairs only: behind the entries of a queue there may be a slot for each
 * of them, of a multiple of USB4_RING_SLOT_ALIGN bytes. It has the pieces of an
 * entry that says so with SQE_LIST (in local_key, how many), or of a receive
 * entry; or the bytes of one with SQE_INLINE.
 */
#define USB4_RING_MAX_PIECES		16
#define USB4_RING_MAX_INLINE		256
#define USB4_RING_SLOT_ALIGN		64

struct usb4_ring_piece {
	__u64	addr;
	__u32	local_key;
	__u32	len;
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
	/* Of queue pairs only. */
	USB4_RING_STATUS_RETRY_EXCEEDED	= 11,
	USB4_RING_STATUS_RNR_RETRY_EXCEEDED = 12,
	USB4_RING_STATUS_PROTECTION	= 13,
	USB4_RING_STATUS_TOO_LONG	= 14,
};

/* Flags of a completion entry. */
#define USB4_RING_CQE_IMM		1
#define USB4_RING_CQE_RECV		2
#define USB4_RING_CQE_WRITE_IMM		4
#define USB4_RING_CQE_SOLICITED		8	/* queue pairs */
#define USB4_RING_CQE_INVALIDATED	16	/* queue pairs */

/* Completion entry. */
struct usb4_ring_cqe {
	__u64	user_data;
	__u8	op;
	__u8	status;
	__u16	flags;
	__u32	len;
	__u64	value;		/* immediate, or an atomic's old value */
	__u32	src;
	__u32	ep;		/* queue pairs: whose; else 0 */
};

/*
 * /dev/usb4ring. Every argument begins with its size in bytes as the caller
 * knows it, and flags. Reserved fields are zero.
 */
#define USB4_RING_IOC_TYPE		0xd4

#define USB4_RING_IOC_INFO		_IO(USB4_RING_IOC_TYPE, 0x00)
#define USB4_RING_IOC_CREATE_CQ		_IO(USB4_RING_IOC_TYPE, 0x01)
#define USB4_RING_IOC_DESTROY_CQ	_IO(USB4_RING_IOC_TYPE, 0x02)
#define USB4_RING_IOC_CREATE_EP		_IO(USB4_RING_IOC_TYPE, 0x03)
#define USB4_RING_IOC_DESTROY_EP	_IO(USB4_RING_IOC_TYPE, 0x04)
#define USB4_RING_IOC_CREATE_AH		_IO(USB4_RING_IOC_TYPE, 0x05)
#define USB4_RING_IOC_DESTROY_AH	_IO(USB4_RING_IOC_TYPE, 0x06)
#define USB4_RING_IOC_REG_MR		_IO(USB4_RING_IOC_TYPE, 0x07)
#define USB4_RING_IOC_DEREG_MR		_IO(USB4_RING_IOC_TYPE, 0x08)
#define USB4_RING_IOC_SOURCE		_IO(USB4_RING_IOC_TYPE, 0x09)
#define USB4_RING_IOC_PEERS		_IO(USB4_RING_IOC_TYPE, 0x0a)
#define USB4_RING_IOC_ENTER		_IO(USB4_RING_IOC_TYPE, 0x0b)
#define USB4_RING_IOC_CABLES		_IO(USB4_RING_IOC_TYPE, 0x0c)
#define USB4_RING_IOC_RULES		_IO(USB4_RING_IOC_TYPE, 0x0d)
#define USB4_RING_IOC_SET_RULES		_IO(USB4_RING_IOC_TYPE, 0x0e)

/* Address of an endpoint. */
struct usb4_ring_addr {
	__u64	node_low;
	__u64	node_high;
	__u32	ep;
	__u32	incarnation;
};

/* info.caps */
#define USB4_RING_CAP_PROCESS_MEMORY	1

/* Word of the notice page: links that are up and that nobody drives now. */
#define USB4_RING_NOTICE_UNDRIVEN_WORD	0

/* All written by the kernel. max_*: what this client may have. */
struct usb4_ring_info {
	__u32	size;
	__u32	flags;
	__u32	abi_version;
	__u32	caps;
	__u64	node_low;
	__u64	node_high;
	__u8	release[32];	/* of the module: text, zero-filled */
	__u32	max_message;
	__u32	max_depth;
	__u32	max_cqs;
	__u32	max_cq_entries;
	__u32	max_eps;
	__u32	max_ahs;
	__u32	max_mrs;
	__u32	notice_bytes;	/* 0: there is no notice page */
	__u64	max_mr_bytes;
	__u64	notice_offset;
};

struct usb4_ring_create_cq {
	__u32	size;
	__u32	flags;
	__u32	depth;
	__s32	event_fd;	/* or -1 */
	__u32	cq;		/* out */
	__u32	reserved;
	__u64	offset;		/* out: mmap */
	__u64	bytes;		/* out */
};

/* DESTROY_CQ and DESTROY_EP. */
struct usb4_ring_destroy {
	__u32	size;
	__u32	flags;
	__u32	id;
	__u32	reserved;
};

/* create_ep.kind */
#define USB4_RING_EP_DATAGRAM		0
#define USB4_RING_EP_CONNECTED		1

struct usb4_ring_create_ep {
	__u32	size;
	__u32	flags;
	__u32	kind;
	__u32	send_cq;
	__u32	recv_cq;
	__u32	sq_depth;
	__u32	rq_depth;
	__u32	max_ahs;	/* 0: as the device likes */
	__u32	ep;		/* out */
	__u32	reserved;
	struct usb4_ring_addr addr;	/* out */
	__u64	sq_offset;	/* out: mmap */
	__u64	sq_bytes;	/* out */
	__u64	rq_offset;	/* out: mmap */
	__u64	rq_bytes;	/* out */
};

/* A datagram endpoint's handle; or a connected endpoint's peer, handle 0. */
struct usb4_ring_create_ah {
	__u32	size;
	__u32	flags;
	__u32	ep;
	__u32	ah;		/* out */
	struct usb4_ring_addr addr;
	__u64	timeout_ns;	/* for a link that is coming up; 0: EAGAIN */
};

struct usb4_ring_destroy_ah {
	__u32	size;
	__u32	flags;
	__u32	ep;
	__u32	ah;
};

/* reg_mr.flags: the remote key is good for one host only. */
#define USB4_RING_REG_MR_PEER		1
/* reg_mr.flags: memory of a dma-buf; addr is only what operations call it. */
#define USB4_RING_REG_MR_DMABUF		2

/* reg_mr.access */
#define USB4_RING_ACCESS_REMOTE_READ	1
#define USB4_RING_ACCESS_REMOTE_WRITE	2
#define USB4_RING_ACCESS_REMOTE_ATOMIC	4
#define USB4_RING_ACCESS_READ_ONLY	8

struct usb4_ring_reg_mr {
	__u32	size;
	__u32	flags;
	__u64	addr;
	__u64	len;
	__u32	access;
	__u32	local_key;	/* out */
	__u64	remote_key;	/* out */
	__u64	node_low;	/* with USB4_RING_REG_MR_PEER */
	__u64	node_high;
	__u64	dmabuf_offset;	/* with USB4_RING_REG_MR_DMABUF */
	__s32	dmabuf_fd;
	__u32	reserved;
};

/*
 * dereg_mr.flags: work in flight may use the region to its end, its pages stay
 * pinned until then. Without, nothing touches the memory after the call.
 */
#define USB4_RING_DEREG_MR_LINGER	1

struct usb4_ring_dereg_mr {
	__u32	size;
	__u32	flags;
	__u32	local_key;
	__u32	reserved;
};

/* Whom a completion's src names. */
struct usb4_ring_source {
	__u32	size;
	__u32	flags;
	__u32	src;
	__u32	reserved;
	struct usb4_ring_addr addr;	/* out */
};

/* peer.state */
#define USB4_RING_PEER_CONNECTING	1
#define USB4_RING_PEER_UP		2

struct usb4_ring_peer {
	__u64	node_low;
	__u64	node_high;
	__u32	state;
	__u32	rails;
	__u32	rate_mbps;
	__u32	reserved;
};

struct usb4_ring_peers {
	__u32	size;
	__u32	flags;
	__u32	count;		/* in: room; out: peers there are */
	__u32	stride;		/* sizeof(struct usb4_ring_peer) */
	__u64	peers;		/* address of the first element */
};

/* cable.state */
#define USB4_RING_CABLE_CONNECTING	1
#define USB4_RING_CABLE_UP		2
#define USB4_RING_CABLE_REFUSED		3	/* by either side: reason */

/* cable.reason */
#define USB4_RING_REFUSED_VERSION	1	/* no version in common */
#define USB4_RING_REFUSED_NOT_ALLOWED	2	/* at the other end */
#define USB4_RING_REFUSED_RESOURCES	3
#define USB4_RING_REFUSED_SHUTDOWN	4
#define USB4_RING_REFUSED_BY_RULES	256	/* ours: SET_RULES */

/* A cable to a router whose host has this service. */
struct usb4_ring_cable {
	__u8	router[16];	/* UUID, in the order it is written in */
	__u64	node_low;	/* as the host calls itself; 0: not known yet */
	__u64	node_high;
	__u32	state;
	__u32	reason;
};

struct usb4_ring_cables {
	__u32	size;
	__u32	flags;
	__u32	count;		/* in: room; out: cables there are */
	__u32	stride;		/* sizeof(struct usb4_ring_cable) */
	__u64	cables;		/* address of the first element */
};

/* rules.policy: hosts without a rule */
#define USB4_RING_POLICY_OPEN		0	/* are let in */
#define USB4_RING_POLICY_LISTED		1	/* are refused */

#define USB4_RING_MAX_RULES		256

/* A host with rules is let in by the routers they name, and by no other. */
struct usb4_ring_rule {
	__u64	node_low;
	__u64	node_high;
	__u8	router[16];	/* UUID; zero: any router */
};

/* SET_RULES needs CAP_NET_ADMIN, and replaces them all. */
struct usb4_ring_rules {
	__u32	size;
	__u32	flags;
	__u32	policy;
	__u32	count;		/* RULES: in: room; out: rules there are */
	__u32	stride;		/* sizeof(struct usb4_ring_rule) */
	__u32	reserved;
	__u64	rules;		/* address of the first element */
};

/* enter.flags: what to do, in this order. */
#define USB4_RING_ENTER_SUBMIT		1	/* endpoint ep */
#define USB4_RING_ENTER_PROGRESS	2
#define USB4_RING_ENTER_WAIT		4	/* while cq is empty and armed */

/* Bits of what USB4_RING_IOC_ENTER returns. */
#define USB4_RING_ENTERED_PROGRESS	1
#define USB4_RING_ENTERED_READY		2

#define USB4_RING_FOREVER		(~0ULL)

struct usb4_ring_enter {
	__u32	size;
	__u32	flags;
	__u32	ep;
	__u32	cq;
	__u64	timeout_ns;
};

#endif /* USB4_RING_H */
