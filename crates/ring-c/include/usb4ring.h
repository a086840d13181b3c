/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * libusb4ring: the ring API, RDMA over USB4, for C and C++.
 *
 * A device gives completion queues, endpoints and memory regions. Queues are
 * shared with the device by memory: posting is a store, and no system call is
 * made while somebody polls. One endpoint reaches every peer, each by a handle.
 *
 * Unless it says otherwise a function returns 0, or a negative errno, and
 * usb4ring_error() then has a sentence that says what to do (-EAGAIN is part of
 * the game, and has none). Pointers to
 * objects may not be NULL; a call that gives an object away leaves *out alone
 * when it fails.
 *
 * Threads: all functions of a device and of memory may be called by any number
 * of threads at a time. A completion queue, and an endpoint, is used by one
 * thread at a time.
 *
 * A child made by fork() opens its own device: with what its parent has open
 * functions return -ECHILD, or 0 where they count something; it may give that
 * back, which changes nothing for the parent.
 *
 * Objects may be given back in any order: the device closes with the last.
 */
#ifndef USB4RING_H
#define USB4RING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Objects. */
struct usb4ring_device;
struct usb4ring_cq;
struct usb4ring_ep;
struct usb4ring_mr;

/* A host: 128 bits. */
struct usb4ring_node {
	uint64_t low;
	uint64_t high;
};

/* An endpoint, anywhere: plain bytes, to be told to peers as they are. */
struct usb4ring_addr {
	struct usb4ring_node node;
	uint32_t ep;
	uint32_t incarnation;
};

/* The sentence about the last failure in this thread; "" if there was none. */
const char *usb4ring_error(void);

/* Version of the library, as text. */
const char *usb4ring_version(void);

/* ---- Devices ---- */

/*
 * Opens a device: "/dev/usb4ring", "soft:NAME", "soft:NAME,detached"; NULL is
 * what USB4_DEVICE says, or /dev/usb4ring.
 *
 * -ENODEV: there is none. -EACCES: it may not be opened. -EPROTO: the module
 * is of another version. -ENOTTY: it is something else. -EINVAL: the name does
 * not parse.
 */
int usb4ring_open(const char *name, struct usb4ring_device **out);
void usb4ring_close(struct usb4ring_device *device);

/* usb4ring_info.flags */
#define USB4RING_PROCESS_MEMORY	1	/* buffers need not be registered */

/* What a device is and can do. Limits given are limits enforced. */
struct usb4ring_info {
	struct usb4ring_node node;	/* this host */
	uint32_t flags;
	uint32_t max_message;		/* bytes */
	uint32_t max_queue_depth;	/* entries of any queue */
	uint32_t max_endpoints;
	uint32_t max_cqs;
	uint32_t max_regions;
};

void usb4ring_get_info(const struct usb4ring_device *device, struct usb4ring_info *info);

/* usb4ring_peer.state */
#define USB4RING_PEER_SEEN	0	/* no link yet */
#define USB4RING_PEER_CONNECTING	1
#define USB4RING_PEER_UP	2

/* Another host. */
struct usb4ring_peer {
	struct usb4ring_node node;
	uint32_t state;
	uint32_t rails;		/* that are up */
	uint32_t rate_mbps;	/* of these together; 0: not known */
	uint32_t reserved;
};

/* Writes up to `room` peers; returns how many there are. */
size_t usb4ring_get_peers(const struct usb4ring_device *device, struct usb4ring_peer *peers, size_t room);

/*
 * Drives the device: takes submissions and what has arrived, makes completions
 * visible. Never blocks. 1 if anything was done. Whoever waits for completions
 * calls it in a loop with usb4ring_poll(), and usb4ring_check() now and then:
 * from a device that has gone nothing comes any more. Where nobody calls it, the
 * device's own thread takes over within about a millisecond.
 */
int usb4ring_progress(const struct usb4ring_device *device);

/* 0 while the device is there; -ESHUTDOWN, -ECHILD. Cheap. */
int usb4ring_check(const struct usb4ring_device *device);

/* ---- Memory ---- */

/* access */
#define USB4RING_REMOTE_READ	1
#define USB4RING_REMOTE_WRITE	2
#define USB4RING_REMOTE_ATOMIC	4	/* the memory is 8-aligned */
/*
 * Nobody writes, neither peers nor receives and reads of one's own; the memory
 * need not be writable. Not with REMOTE_WRITE and REMOTE_ATOMIC.
 */
#define USB4RING_READ_ONLY	8

/* A memory region: what requests and peers name it by. */
struct usb4ring_region {
	void *start;
	uint64_t len;
	uint64_t remote_key;
	uint32_t local_key;
	uint32_t reserved;
};

/* Allocates zeroed memory and registers it. Works on every device. */
int usb4ring_alloc(const struct usb4ring_device *device, size_t len, uint32_t access, struct usb4ring_mr **out);

/*
 * Registers memory of this process, which stays mapped, and may be read (and,
 * unless READ_ONLY, written) by local and remote operations at any time, until it
 * is given back.
 *
 * -ENOMEM: more than the process may pin. -EOPNOTSUPP: on a detached device.
 */
int usb4ring_register(const struct usb4ring_device *device, void *start, size_t len, uint32_t access,
		      struct usb4ring_mr **out);

/*
 * Registers `len` bytes of a dma-buf, from `offset` on: another driver's memory,
 * a GPU's say. Requests and peers name the first of them `start`, which may be
 * any address: where this process has them mapped, if it has. The region keeps
 * the buffer, also when the descriptor is closed; all of it is pinned, and
 * counts.
 *
 * -EOPNOTSUPP: not on the kernel's device, or the processor cannot reach the
 * memory. -EINVAL: no dma-buf; not within it; to be written, and the descriptor
 * is for reading; atomics on what is not 8-aligned. -EBADF: no descriptor.
 * -ENOMEM: more than the process may pin.
 */
int usb4ring_register_dmabuf(const struct usb4ring_device *device, int fd, uint64_t offset, size_t len, void *start,
			     uint32_t access, struct usb4ring_mr **out);
void usb4ring_get_region(const struct usb4ring_mr *mr, struct usb4ring_region *region);

/* Gives it back: nothing touches registered memory after the call. */
void usb4ring_deregister(struct usb4ring_mr *mr);

/* ---- Completion queues ---- */

/* A queue of at least `depth` entries, which cannot overflow. */
int usb4ring_create_cq(const struct usb4ring_device *device, uint32_t depth, struct usb4ring_cq **out);
void usb4ring_destroy_cq(struct usb4ring_cq *cq);

/* usb4ring_request.op, usb4ring_completion.op */
#define USB4RING_SEND		1
#define USB4RING_WRITE		2
#define USB4RING_READ		3
#define USB4RING_FETCH_ADD	4	/* on 8 aligned bytes */
#define USB4RING_COMPARE_SWAP	5	/* on 8 aligned bytes */
#define USB4RING_RECV		16	/* a receive, by a peer's send */
#define USB4RING_RECV_WRITE	17	/* a receive, by a peer's write with immediate */

/* usb4ring_completion.status */
#define USB4RING_OK		0	/* for sends, writes, atomics: it is in the target's memory */
#define USB4RING_NOT_READY	1	/* no receive was posted, and the sender did not want to wait */
#define USB4RING_ACCESS		2	/* remote key, range or right */
#define USB4RING_LENGTH		3	/* the message did not fit the receive */
#define USB4RING_UNSUPPORTED	4	/* by the peer */
#define USB4RING_RESOURCE	5	/* the peer ran out of one */
#define USB4RING_GONE		6	/* the target endpoint is closed */
#define USB4RING_LINK_DOWN	7	/* the link died before the peer confirmed */
#define USB4RING_FLUSHED	8	/* the endpoint was closed, or is in error */
#define USB4RING_INVALID	9	/* malformed, or not the poster's buffer */
#define USB4RING_UNREACHABLE	10	/* the handle has no link to its peer */

/* usb4ring_completion.flags */
#define USB4RING_HAS_IMM	1	/* value is the sender's immediate */

struct usb4ring_completion {
	uint64_t user_data;
	uint64_t value;		/* immediate; of an atomic: the value before */
	uint32_t len;		/* bytes */
	uint32_t source;	/* receives: see usb4ring_source() */
	uint8_t op;
	uint8_t status;
	uint16_t flags;
	uint32_t reserved;
};

/* Takes up to `room` completions; returns how many. Does not drive the device. */
size_t usb4ring_poll(struct usb4ring_cq *cq, struct usb4ring_completion *out, size_t room);

/*
 * A descriptor for poll(2) and epoll(7), readable when a completion arrives
 * after usb4ring_arm(). Never read it, never close it. Negative errno if there
 * can be none.
 */
int usb4ring_wait_fd(struct usb4ring_cq *cq);

/* 1: armed, sleep. 0: completions are there, poll instead. */
int usb4ring_arm(struct usb4ring_cq *cq);

#define USB4RING_FOREVER	UINT64_MAX

/* Sleeps until a completion is there (1), or for the time given (0). */
int usb4ring_wait(struct usb4ring_cq *cq, uint64_t timeout_ns);

/* ---- Endpoints ---- */

/* usb4ring_ep_config.kind */
#define USB4RING_DATAGRAM	0	/* any peer, each by a handle; reliable and in order */
/*
 * One peer, whose handle is the only one. Who sends before the peer has opened
 * its own is refused with USB4RING_GONE. After an error everything is flushed,
 * for good: destroy the endpoint.
 */
#define USB4RING_CONNECTED	1

struct usb4ring_ep_config {
	uint32_t kind;
	uint32_t sq_depth;	/* entries; 0: 256 */
	uint32_t rq_depth;	/* entries; 0: 256 */
	uint32_t reserved;	/* 0 */
};

/*
 * Sends, writes, reads and atomics complete on `send_cq`, receives on
 * `recv_cq`, which may be the same. `config` may be NULL.
 */
int usb4ring_create_ep(const struct usb4ring_device *device, const struct usb4ring_ep_config *config,
		       const struct usb4ring_cq *send_cq, const struct usb4ring_cq *recv_cq,
		       struct usb4ring_ep **out);

/* Closes it: what has not completed is flushed. */
void usb4ring_destroy_ep(struct usb4ring_ep *ep);

/* Its address, to be told to peers. */
void usb4ring_get_addr(const struct usb4ring_ep *ep, struct usb4ring_addr *addr);

/*
 * A handle to send to a peer by. Connects to its host if there is no link yet:
 * with `wait` not 0 for at most some seconds, else -EINPROGRESS: ask again.
 *
 * -EHOSTUNREACH: there is no such host. -ETIMEDOUT: it does not answer.
 */
int usb4ring_open_handle(struct usb4ring_ep *ep, const struct usb4ring_addr *peer, int wait, uint32_t *handle);

/* Gives it back; what has not completed is flushed. */
void usb4ring_close_handle(struct usb4ring_ep *ep, uint32_t handle);

/* usb4ring_request.flags */
#define USB4RING_IMM		1	/* sends and writes: with `imm` */
#define USB4RING_UNSIGNALED	2	/* no completion unless it fails */

#define USB4RING_MAX_PREFIX	24

struct usb4ring_request {
	uint8_t op;
	uint8_t flags;
	uint8_t prefix_len;	/* sends: bytes of `prefix` that go first */
	uint8_t reserved;
	uint32_t handle;
	uint64_t user_data;
	const void *addr;	/* local buffer */
	uint32_t local_key;	/* of its region; 0: plain memory, see USB4RING_PROCESS_MEMORY */
	uint32_t len;		/* atomics: 8, or 0 if the completion's value is enough */
	uint64_t remote_addr;	/* all but sends */
	uint64_t remote_key;
	uint64_t imm;
	uint64_t compare;	/* COMPARE_SWAP */
	uint64_t operand;	/* what is added, or put in place */
	uint8_t prefix[USB4RING_MAX_PREFIX];
};

/*
 * Puts a request into the submission queue. The device sees it at the next
 * usb4ring_submit(); the buffer is the device's until the completion.
 *
 * -EAGAIN: the queue is full: submit, reap completions, post again.
 */
int usb4ring_post(struct usb4ring_ep *ep, const struct usb4ring_request *request);

/*
 * The same for a receive. Messages take receives in the order in which these
 * were posted, when they begin to arrive. Those of one sender complete in
 * order; of several senders, one that began later may be whole sooner.
 */
int usb4ring_post_recv(struct usb4ring_ep *ep, uint64_t user_data, void *addr, uint32_t local_key, uint32_t len);

/* Makes all of it visible to the device, and lets it start. Never blocks. */
int usb4ring_submit(struct usb4ring_ep *ep);

/* Free entries. */
uint32_t usb4ring_send_space(struct usb4ring_ep *ep);
uint32_t usb4ring_recv_space(struct usb4ring_ep *ep);

/* The address behind usb4ring_completion.source. -ENOENT: forgotten. */
int usb4ring_source(struct usb4ring_ep *ep, uint32_t source, struct usb4ring_addr *addr);

#ifdef __cplusplus
}
#endif

#endif /* USB4RING_H */
