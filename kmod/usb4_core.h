/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The border between the module's C and its core.
 *
 * usb4_core_*() are defined in Rust (crates/kobj), where each is described;
 * usb4_home_*() are what the core needs, defined here in C. Only plain C calls
 * cross, with integers, pointers and the structures below. `cargo test -p
 * xtask` compares every prototype with its other side, and both compilers
 * check the layouts.
 *
 * Unless it says "may sleep", a function of the core does not; unless it says
 * otherwise, it is called in process context. Functions marked "any context"
 * may be called with interrupts off.
 */
#ifndef USB4_CORE_H
#define USB4_CORE_H

#include <linux/build_bug.h>
#include <linux/stddef.h>
#include <linux/types.h>

struct usb4_core;
struct usb4_core_link;
struct usb4_core_rail;

/* Frames and descriptors taken off the rings at a time. */
#define USB4_CORE_BATCH		64

/* Bytes of a control message (docs/spec/wire.md, section 4). */
#define USB4_CORE_CONTROL	96

/**
 * struct usb4_core_node - a host's node id
 * @low: its lower 64 bits
 * @high: its upper 64 bits
 */
struct usb4_core_node {
	u64 low;
	u64 high;
};

/**
 * struct usb4_core_addr - an endpoint's address; struct usb4_ring_addr
 * @node: its host
 * @ep: its number
 * @incarnation: which of those that had the number
 */
struct usb4_core_addr {
	struct usb4_core_node node;
	u32 ep;
	u32 incarnation;
};

/**
 * struct usb4_core_limits - what the core is made for
 * @max_links: links, the loopback link included
 * @rx_ring: descriptors of a receive ring
 * @tx_ring: descriptors of a transmit ring
 * @tx_slots: transmit buffers of a link
 * @rx_tokens: receive buffers of a rail: those of a link's rail r begin with r
 *	times this
 * @max_rails: rails, of all links together
 * @max_depth: entries of a queue
 * @max_message: bytes of a message
 * @max_cqs: completion queues of a client
 * @max_cq_entries: entries of these together
 * @max_eps: endpoints of a client
 * @max_ahs: address handles of a client
 * @max_mrs: memory regions of a client
 * @default_ahs: address handles of an endpoint whose creator did not say
 * @max_mr_bytes: bytes of a client's memory regions
 * @link_rails: rails of a link
 * @frame_version: version of frames
 * @abi_version: version of the ring interface
 */
struct usb4_core_limits {
	u32 max_links;
	u32 rx_ring;
	u32 tx_ring;
	u32 tx_slots;
	u32 rx_tokens;
	u32 max_rails;
	u32 max_depth;
	u32 max_message;
	u32 max_cqs;
	u32 max_cq_entries;
	u32 max_eps;
	u32 max_ahs;
	u32 max_mrs;
	u32 default_ahs;
	u64 max_mr_bytes;
	u32 link_rails;
	u32 frame_version;
	u32 abi_version;
};

/**
 * struct usb4_core_peer - what a session was agreed with
 * @node: the host at the other end, as it calls itself
 * @tx_tag: tag of frames sent
 * @rx_tag: tag of frames received
 * @max_ack_delay: nanoseconds it holds an acknowledgment back
 * @tx_hop: HopID of its frames
 * @features: features in force
 * @max_flows: incoming flows it holds
 * @max_reads: reads and atomics it answers at a time
 * @ring: slots of its receive ring
 * @rate_mbps: what the rail is taken to carry until that is measured
 * @join: the join nonce the peer shows
 * @shown: the one this side shows
 */
struct usb4_core_peer {
	struct usb4_core_node node;
	u64 tx_tag;
	u64 rx_tag;
	u64 max_ack_delay;
	u32 tx_hop;
	u32 features;
	u32 max_flows;
	u32 max_reads;
	u32 ring;
	u32 rate_mbps;
	u64 join;
	u64 shown;
};

enum usb4_core_order_kind {
	USB4_CORE_ORDER_NONE	= 0,
	USB4_CORE_ORDER_SEND	= 1,
	USB4_CORE_ORDER_ENABLE	= 2,
	USB4_CORE_ORDER_DISABLE	= 3,
	USB4_CORE_ORDER_UP	= 4,
	USB4_CORE_ORDER_DOWN	= 5,
};

/**
 * struct usb4_core_order - what a rail's state machine wants done
 * @kind: enum usb4_core_order_kind
 * @value: ENABLE: HopID of the peer's frames; DOWN: why
 * @message: SEND: the control message
 * @peer: UP: the peer
 */
struct usb4_core_order {
	u32 kind;
	u32 value;
	u8 message[USB4_CORE_CONTROL];
	struct usb4_core_peer peer;
};

enum usb4_core_rail_event {
	USB4_CORE_RAIL_TIMER		= 0,
	USB4_CORE_RAIL_PATHS_ENABLED	= 1,
	USB4_CORE_RAIL_PATHS_DISABLED	= 2,
	USB4_CORE_RAIL_STRANGE		= 3,
	USB4_CORE_RAIL_CLOSE		= 4,
	USB4_CORE_RAIL_ABORT		= 5,
	USB4_CORE_RAIL_SHOW		= 6,
	USB4_CORE_RAIL_SILENT		= 7,
};

/**
 * struct usb4_core_frame - a received frame whose descriptor was replaced
 * @bytes: its bytes, which stay as they are until it is released
 * @token: its buffer
 * @len: how many
 * @rail: the rail it came on
 * @reserved: 0
 */
struct usb4_core_frame {
	const u8 *bytes;
	u32 token;
	u16 len;
	u8 rail;
	u8 reserved;
};

/**
 * struct usb4_core_sent - a transmit descriptor that was consumed
 * @slot: its buffer
 * @rail: the rail it was posted to
 * @reserved: 0
 */
struct usb4_core_sent {
	u16 slot;
	u8 rail;
	u8 reserved;
};

/**
 * struct usb4_core_arrived - what was found on a link's rings
 * @frames: room for USB4_CORE_BATCH frames
 * @sent: room for USB4_CORE_BATCH descriptors
 * @frame_count: frames found
 * @sent_count: descriptors found
 */
struct usb4_core_arrived {
	struct usb4_core_frame *frames;
	struct usb4_core_sent *sent;
	u32 frame_count;
	u32 sent_count;
};

/**
 * struct usb4_core_queue - memory of a queue
 * @words: the words, zeroed
 * @count: how many
 * @handle: what usb4_home_put_queue() is called with, once
 */
struct usb4_core_queue {
	u64 *words;
	size_t count;
	size_t handle;
};

/**
 * struct usb4_core_cq_params - a completion queue to be created
 * @client: whose
 * @depth: entries
 * @queue: its memory
 * @waker: what usb4_home_wake() is called with
 * @memory: a block of usb4_core_cq_size() bytes
 * @size: bytes of it
 */
struct usb4_core_cq_params {
	u32 client;
	u32 depth;
	struct usb4_core_queue queue;
	size_t waker;
	u8 *memory;
	size_t size;
};

/**
 * struct usb4_core_ep_params - an endpoint to be created
 * @client: whose
 * @kind: USB4_RING_EP_*, of a queue pair enum usb4_core_qp_kind
 * @send_cq: completion queue of its submissions
 * @recv_cq: completion queue of its receives
 * @sq_depth: entries of its submission queue
 * @rq_depth: entries of its receive queue
 * @sq: memory of its submission queue
 * @rq: memory of its receive queue
 * @handles: address handles
 * @pd: protection domain of a queue pair, else 0
 * @memory: a block of usb4_core_ep_size() bytes
 * @size: bytes of it
 * @srq: shared receive queue that a queue pair draws from, else 0
 * @reserved: 0
 * @sq_slot: bytes of the slots behind a queue pair's submission queue, else 0
 * @rq_slot: bytes of those behind its receive queue, else 0
 */
struct usb4_core_ep_params {
	u32 client;
	u32 kind;
	u32 send_cq;
	u32 recv_cq;
	u32 sq_depth;
	u32 rq_depth;
	struct usb4_core_queue sq;
	struct usb4_core_queue rq;
	u32 handles;
	u32 pd;
	u8 *memory;
	size_t size;
	u32 srq;
	u32 reserved;
	u32 sq_slot;
	u32 rq_slot;
};

/**
 * struct usb4_core_srq_params - a shared receive queue to be created
 * @client: whose
 * @pd: its protection domain, not 0
 * @depth: entries
 * @slot: bytes of the slots behind its entries
 * @rq: its memory
 * @memory: a block of usb4_core_ep_size() bytes, without handles or a submission
 *	queue
 * @size: bytes of it
 */
struct usb4_core_srq_params {
	u32 client;
	u32 pd;
	u32 depth;
	u32 slot;
	struct usb4_core_queue rq;
	u8 *memory;
	size_t size;
};

/**
 * struct usb4_core_mr_params - memory to be registered
 * @client: whose
 * @access: USB4_RING_ACCESS_*
 * @addr: address of its first byte
 * @len: bytes
 * @mem: what usb4_home_unpin() is called with, once
 * @bound: not 0: @peer is the only host that may use it
 * @narrow: not 0: it is for queue pairs, and @remote_key has 32 bits
 * @peer: see @bound
 * @local_key: written: key for the client's own entries
 * @pd: with @narrow: the protection domain, not 0; else 0
 * @remote_key: written: key for peers
 */
struct usb4_core_mr_params {
	u32 client;
	u32 access;
	u64 addr;
	u64 len;
	size_t mem;
	u32 bound;
	u32 narrow;
	struct usb4_core_node peer;
	u32 local_key;
	u32 pd;
	u64 remote_key;
};

/* Kinds of queue pairs: enum ib_qp_type; of SMI and GSI there is one, for datagrams */
enum usb4_core_qp_kind {
	USB4_CORE_QP_SMI	= 0,
	USB4_CORE_QP_GSI	= 1,
	USB4_CORE_QP_RC	= 2,
	USB4_CORE_QP_UC	= 3,
	USB4_CORE_QP_UD	= 4,
};

/* States of queue pairs: enum ib_qp_state */
enum usb4_core_qp_state {
	USB4_CORE_QPS_RESET	= 0,
	USB4_CORE_QPS_INIT	= 1,
	USB4_CORE_QPS_RTR	= 2,
	USB4_CORE_QPS_RTS	= 3,
	USB4_CORE_QPS_SQD	= 4,
	USB4_CORE_QPS_SQE	= 5,
	USB4_CORE_QPS_ERR	= 6,
};

/* Of enum ib_qp_attr_mask, what the core looks at; it ignores the rest */
enum usb4_core_qp_mask {
	USB4_CORE_QP_STATE		= 1,
	USB4_CORE_QP_ACCESS		= 8,
	USB4_CORE_QP_QKEY		= 64,
	USB4_CORE_QP_AV			= 128,
	USB4_CORE_QP_TIMEOUT		= 512,
	USB4_CORE_QP_RETRY_CNT		= 1024,
	USB4_CORE_QP_RNR_RETRY		= 2048,
	USB4_CORE_QP_MAX_RD_ATOMIC	= 8192,
	USB4_CORE_QP_MIN_RNR_TIMER	= 32768,
	USB4_CORE_QP_MAX_DEST_RD_ATOMIC	= 131072,
	USB4_CORE_QP_DEST_QPN		= 1048576,
};

/* What no completion tells: enum ib_event_type */
enum usb4_core_qp_event {
	USB4_CORE_QP_FATAL	= 1,
	USB4_CORE_QP_REQ_ERR	= 2,
	USB4_CORE_QP_ACCESS_ERR	= 3,
	USB4_CORE_QP_COMM_EST	= 4,
	USB4_CORE_QP_SQ_DRAINED	= 5,
	USB4_CORE_SRQ_ERR	= 14,
	USB4_CORE_SRQ_LIMIT	= 15,
	USB4_CORE_QP_LAST_WQE	= 16,
};

/**
 * struct usb4_core_qp_attr - attributes of a queue pair; struct ib_qp_attr
 * @mask: to modify: enum usb4_core_qp_mask, which of these count
 * @state: enum usb4_core_qp_state
 * @node: the peer's host; to modify together with @dest_qpn
 * @dest_qpn: the peer's number
 * @qkey: datagrams: the key messages must show
 * @access: what peers may do: USB4_RING_ACCESS_REMOTE_*
 * @timeout: code of the time to wait for a peer to be ready
 * @retry_cnt: how many times more
 * @rnr_retry: how many times to wait for a receive
 * @min_rnr_timer: code of the time each
 * @max_rd_atomic: reads and atomics outstanding
 * @max_dest_rd_atomic: the peer's reads and atomics outstanding
 * @sq_draining: queried: in SQD, and something sent is not finished
 * @reserved: 0
 * @qpn: queried: its number
 * @reserved2: 0
 */
struct usb4_core_qp_attr {
	u32 mask;
	u32 state;
	struct usb4_core_node node;
	u32 dest_qpn;
	u32 qkey;
	u32 access;
	u8 timeout;
	u8 retry_cnt;
	u8 rnr_retry;
	u8 min_rnr_timer;
	u8 max_rd_atomic;
	u8 max_dest_rd_atomic;
	u8 sq_draining;
	u8 reserved;
	u32 qpn;
	u64 reserved2;
};

/**
 * struct usb4_core_link_status - what has happened on a link
 * @tx_frames: frames with chunks posted, retransmissions included
 * @tx_bytes: bytes of all posted frames
 * @tx_acks: pure acknowledgments posted
 * @tx_probes: probes posted
 * @tx_resent: frames posted again
 * @tx_lost: frames declared lost
 * @rx_frames: frames accepted
 * @rx_bytes: bytes of them
 * @rx_malformed: frames dropped: their head was not valid
 * @rx_corrupt: frames dropped: a checksum was wrong
 * @rx_wrong_tag: frames dropped: of another session
 * @rx_duplicate: frames dropped: received before
 * @rx_no_room: frames dropped: no room to hold them
 * @parked: chunks that waited for an earlier one
 * @violations: what a peer that keeps the protocol does not do
 * @executed: requests of the peer executed, in chunks
 * @completed: operations of this side completed without error
 * @failed: operations of this side completed with an error
 * @rnr_sent: receiver-not-ready refusals sent
 * @rnr_received: receiver-not-ready refusals received
 * @nak_sent: other refusals sent
 * @nak_received: other refusals received
 */
struct usb4_core_link_status {
	u64 tx_frames;
	u64 tx_bytes;
	u64 tx_acks;
	u64 tx_probes;
	u64 tx_resent;
	u64 tx_lost;
	u64 rx_frames;
	u64 rx_bytes;
	u64 rx_malformed;
	u64 rx_corrupt;
	u64 rx_wrong_tag;
	u64 rx_duplicate;
	u64 rx_no_room;
	u64 parked;
	u64 violations;
	u64 executed;
	u64 completed;
	u64 failed;
	u64 rnr_sent;
	u64 rnr_received;
	u64 nak_sent;
	u64 nak_received;
};

/**
 * struct usb4_core_rail_status - how a rail of a link fares
 * @rtt: smoothed round-trip time in nanoseconds
 * @rate: bits per second it delivers: as configured until measured
 * @lost: frames declared lost in this session
 * @in_flight: frames whose fate is not known
 */
struct usb4_core_rail_status {
	u64 rtt;
	u64 rate;
	u64 lost;
	u64 in_flight;
};

/**
 * struct usb4_core_turn - what was counted since the last turn of a link
 * @lost: frames declared lost
 * @resent: frames posted again
 * @probes: probes posted
 * @malformed: frames dropped: their head was not valid
 * @corrupt: frames dropped: a checksum was wrong
 * @wrong_tag: frames dropped: of another session
 * @duplicate: frames dropped: received before
 * @no_room: frames dropped: no room to hold them
 * @parked: chunks that wait for an earlier one
 * @completed: operations completed without error
 * @failed: operations completed with an error
 * @executed: requests of the peer executed, in chunks
 */
struct usb4_core_turn {
	u64 lost;
	u64 resent;
	u64 probes;
	u64 malformed;
	u64 corrupt;
	u64 wrong_tag;
	u64 duplicate;
	u64 no_room;
	u64 parked;
	u64 completed;
	u64 failed;
	u64 executed;
};

enum usb4_core_queue_kind {
	USB4_CORE_QUEUE_SQ = 0,
	USB4_CORE_QUEUE_RQ = 1,
	USB4_CORE_QUEUE_CQ = 2,
};

/* The same numbers are asserted in crates/kobj/src/abi.rs. */
static_assert(sizeof(struct usb4_core_node) == 16);
static_assert(sizeof(struct usb4_core_addr) == 24);
static_assert(sizeof(struct usb4_core_limits) == 80);
static_assert(offsetof(struct usb4_core_limits, max_mr_bytes) == 56);
static_assert(offsetof(struct usb4_core_limits, abi_version) == 72);
static_assert(sizeof(struct usb4_core_peer) == 80);
static_assert(offsetof(struct usb4_core_peer, rate_mbps) == 60);
static_assert(offsetof(struct usb4_core_peer, shown) == 72);
static_assert(sizeof(struct usb4_core_order) == 184);
static_assert(offsetof(struct usb4_core_order, peer) == 104);
static_assert(sizeof(struct usb4_core_frame) == 16);
static_assert(sizeof(struct usb4_core_sent) == 4);
static_assert(sizeof(struct usb4_core_arrived) == 24);
static_assert(sizeof(struct usb4_core_queue) == 24);
static_assert(sizeof(struct usb4_core_cq_params) == 56);
static_assert(sizeof(struct usb4_core_ep_params) == 112);
static_assert(offsetof(struct usb4_core_ep_params, handles) == 72);
static_assert(offsetof(struct usb4_core_ep_params, pd) == 76);
static_assert(offsetof(struct usb4_core_ep_params, srq) == 96);
static_assert(offsetof(struct usb4_core_ep_params, rq_slot) == 108);
static_assert(sizeof(struct usb4_core_srq_params) == 56);
static_assert(offsetof(struct usb4_core_srq_params, rq) == 16);
static_assert(offsetof(struct usb4_core_srq_params, memory) == 40);
static_assert(sizeof(struct usb4_core_mr_params) == 72);
static_assert(offsetof(struct usb4_core_mr_params, narrow) == 36);
static_assert(offsetof(struct usb4_core_mr_params, pd) == 60);
static_assert(offsetof(struct usb4_core_mr_params, remote_key) == 64);
static_assert(sizeof(struct usb4_core_qp_attr) == 56);
static_assert(offsetof(struct usb4_core_qp_attr, access) == 32);
static_assert(offsetof(struct usb4_core_qp_attr, sq_draining) == 42);
static_assert(offsetof(struct usb4_core_qp_attr, reserved2) == 48);
static_assert(sizeof(struct usb4_core_link_status) == 176);
static_assert(offsetof(struct usb4_core_link_status, parked) == 104);
static_assert(sizeof(struct usb4_core_rail_status) == 32);
static_assert(sizeof(struct usb4_core_turn) == 96);
static_assert(offsetof(struct usb4_core_turn, parked) == 64);

/* The device: crates/kobj/src/device.rs */
void usb4_core_limits(struct usb4_core_limits *limits);
size_t usb4_core_size(void);
struct usb4_core *usb4_core_new(u8 *memory, size_t size,
				const struct usb4_core_node *node,
				u64 *undriven, u32 *tracing);

/* Rail bring-up: crates/kobj/src/bringup.rs */
size_t usb4_core_rail_size(void);
struct usb4_core_rail *usb4_core_rail_new(const struct usb4_core *core,
					  u8 *memory, size_t size, u32 tx_hop);
bool usb4_core_rail_speaker(const u8 *message, struct usb4_core_node *node);
bool usb4_core_rail_control(struct usb4_core_rail *rail, const u8 *message,
			    bool admitted);
void usb4_core_rail_event(struct usb4_core_rail *rail, u32 what, u64 value);
void usb4_core_rail_next(struct usb4_core_rail *rail,
			 struct usb4_core_order *order);
u64 usb4_core_rail_deadline(const struct usb4_core_rail *rail);
bool usb4_core_rail_is_up(const struct usb4_core_rail *rail);
bool usb4_core_rail_is_closed(const struct usb4_core_rail *rail);
void usb4_core_rail_versions(const struct usb4_core_rail *rail, u32 *lowest,
			     u32 *highest);
u32 usb4_core_rail_refused(const struct usb4_core_rail *rail);

/*
 * Links: crates/kobj/src/links.rs; usb4_core_link_end() may sleep, _detach() is
 * called inside of an RCU read-side critical section
 */
size_t usb4_core_link_size(const struct usb4_core *core,
			   const struct usb4_core_peer *peer);
struct usb4_core_link *usb4_core_link_new(const struct usb4_core *core,
					  u8 *memory, size_t size, size_t port,
					  const struct usb4_core_peer *peer,
					  s32 *error);
s32 usb4_core_link_end(const struct usb4_core *core,
		       const struct usb4_core_link *link);
s32 usb4_core_link_attach(const struct usb4_core *core,
			  const struct usb4_core_link *link, u8 rail,
			  const struct usb4_core_peer *peer);
s32 usb4_core_link_detach(const struct usb4_core *core,
			  const struct usb4_core_link *link, u8 rail);
u32 usb4_core_link_index(const struct usb4_core_link *link);
bool usb4_core_link_is_up(const struct usb4_core *core,
			  const struct usb4_core_node *node);
bool usb4_core_link_status(const struct usb4_core *core,
			   const struct usb4_core_link *link,
			   struct usb4_core_link_status *status);
bool usb4_core_link_rail(const struct usb4_core *core,
			 const struct usb4_core_link *link, u8 rail,
			 struct usb4_core_rail_status *status);

/*
 * Which rails belong to one link: crates/kobj/src/joins.rs; one at a time,
 * inside of an RCU read-side critical section
 */
enum { USB4_CORE_PLACE_OWN = -1, USB4_CORE_PLACE_NOWHERE = -2 };
s32 usb4_core_rail_place(const struct usb4_core *core, u32 rail,
			 const struct usb4_core_peer *peer);
void usb4_core_rail_began(const struct usb4_core *core, u32 rail,
			  const struct usb4_core_link *link,
			  const struct usb4_core_peer *peer);
bool usb4_core_rail_gone(const struct usb4_core *core, u32 rail);
void usb4_core_rail_closed(const struct usb4_core *core, u32 rail);
void usb4_core_link_joined(const struct usb4_core *core,
			   const struct usb4_core_link *link);

/*
 * Driving them: crates/kobj/src/drive.rs. usb4_core_submit(), _progress() and
 * _nudge() are called inside of an RCU read-side critical section, which keeps
 * the ports they come across; _link_notify() and _link_expired() in any
 * context.
 */
bool usb4_core_submit(const struct usb4_core *core, u32 ep);
bool usb4_core_progress(const struct usb4_core *core);
void usb4_core_nudge(const struct usb4_core *core);
u64 usb4_core_link_run(const struct usb4_core *core,
		       const struct usb4_core_link *link);
bool usb4_core_link_notify(const struct usb4_core *core,
			   const struct usb4_core_link *link);
u64 usb4_core_link_expired(const struct usb4_core *core,
			   const struct usb4_core_link *link, u64 late);

/* Clients and what they own: crates/kobj/src/objects.rs; these may sleep */
size_t usb4_core_queue_size(u32 what, u32 depth, u32 slot);
s32 usb4_core_add_client(const struct usb4_core *core, u32 user, bool exempt,
			 u32 *client);
s32 usb4_core_remove_client(const struct usb4_core *core, u32 client);
size_t usb4_core_cq_size(u32 depth);
s32 usb4_core_create_cq(const struct usb4_core *core,
			const struct usb4_core_cq_params *params, u32 *cq);
s32 usb4_core_destroy_cq(const struct usb4_core *core, u32 client, u32 cq);
size_t usb4_core_ep_size(u32 handles, u32 sq_depth, u32 sq_slot, u32 rq_depth,
			 u32 rq_slot);
s32 usb4_core_create_ep(const struct usb4_core *core,
			const struct usb4_core_ep_params *params, u32 *ep,
			struct usb4_core_addr *addr);
s32 usb4_core_destroy_ep(const struct usb4_core *core, u32 client, u32 ep);
s32 usb4_core_create_ah(const struct usb4_core *core, u32 client, u32 ep,
			bool connected, const struct usb4_core_addr *dst,
			u32 *ah);
s32 usb4_core_destroy_ah(const struct usb4_core *core, u32 client, u32 ep,
			 u32 ah);
s32 usb4_core_source(const struct usb4_core *core, u32 client, u32 src,
		     struct usb4_core_addr *addr);
s32 usb4_core_register(const struct usb4_core *core,
		       struct usb4_core_mr_params *params);
s32 usb4_core_deregister(const struct usb4_core *core, u32 client, u32 key);
s32 usb4_core_reclaim(const struct usb4_core *core, u32 client, u32 key,
		      bool force);

/*
 * Queue pairs: crates/kobj/src/qp.rs; these may sleep. One is destroyed by
 * usb4_core_destroy_ep(). usb4_core_nudge() follows what changes or ends one.
 */
s32 usb4_core_create_qp(const struct usb4_core *core,
			const struct usb4_core_ep_params *params, u32 *ep,
			u32 *qpn);
s32 usb4_core_modify_qp(const struct usb4_core *core, u32 client, u32 ep,
			const struct usb4_core_qp_attr *attr);
s32 usb4_core_query_qp(const struct usb4_core *core, u32 client, u32 ep,
		       struct usb4_core_qp_attr *attr);

/*
 * Shared receive queues of theirs. usb4_core_submit() takes the name of one that
 * something was posted to, and usb4_core_destroy_ep() destroys it.
 */
s32 usb4_core_create_srq(const struct usb4_core *core,
			 const struct usb4_core_srq_params *params, u32 *srq);
s32 usb4_core_limit_srq(const struct usb4_core *core, u32 client, u32 srq,
			u32 limit);
s32 usb4_core_srq_limit(const struct usb4_core *core, u32 client, u32 srq,
			u32 *limit);

/* Lower 64 bits of a host's GID 0, as a number, fe80::/64 being the upper */
u64 usb4_core_guid(const struct usb4_core_node *node);

/* What the core needs of a kernel: home.c; _relax() may sleep */
u64 usb4_home_now(void);
u64 usb4_home_random(void);
u32 usb4_home_crc32c(u32 crc, const u8 *bytes, size_t len);
void usb4_home_relax(void);
bool usb4_home_must_yield(void);
void usb4_home_lock_init(u64 *word);
void usb4_home_lock(u64 *word);
void usb4_home_unlock(u64 *word);

/*
 * Of a client: cqs.c, regions.c, queues.c, and of a queue pair or shared receive
 * queue: endpoints.c; _wake(), _cq_error(), _region_idle() and _qp_event() with a
 * lock held
 */
void usb4_home_wake(size_t waker);
void usb4_home_cq_error(size_t waker);
void usb4_home_qp_event(u32 client, u32 ep, u32 event);
void usb4_home_region_idle(u32 client);
void usb4_home_put_queue(size_t queue);

/* Of registered memory: memory.c */
void usb4_home_unpin(size_t mem);
u64 usb4_home_fetch_add(size_t mem, u64 offset, u64 add);
u64 usb4_home_compare_swap(size_t mem, u64 offset, u64 compare, u64 swap);
void usb4_home_write(size_t mem, u64 offset, const u8 *bytes, size_t len);

/* Of a rail: rail.c; with a lock held */
void usb4_home_rail_show(u32 rail, u64 nonce);

/*
 * Of a link, which is what @port names: frames.c and link.c. All of them inside
 * of an RCU read-side critical section, but for _release(), which may be called
 * without; with a lock held
 */
void usb4_home_port_write(size_t port, u16 slot, u16 at, const u8 *bytes,
			  size_t len);
void usb4_home_port_gather(size_t port, u16 slot, u16 at, u16 len, size_t mem,
			   u64 offset);
void usb4_home_port_seal(size_t port, u16 slot, u16 from, u16 to);
void usb4_home_port_post(size_t port, u8 rail, u16 slot, u16 len,
			 const u8 *header);
void usb4_home_port_scatter(size_t port, u32 token, u16 at, u16 len,
			    size_t mem, u64 offset);
void usb4_home_port_release(size_t port, u32 token);
void usb4_home_port_poll(size_t port, struct usb4_core_arrived *arrived);
void usb4_home_port_arm(size_t port);
void usb4_home_port_hand_over(size_t port, u32 grace);
void usb4_home_port_strange(size_t port, u8 rail, u64 tag);
void usb4_home_port_silent(size_t port, u8 rail);
void usb4_home_port_down(size_t port);
void usb4_home_port_joined(size_t port);
void usb4_home_port_chosen(size_t port);

/* The same, while the word that usb4_core_new() was given is not 0: trace.c */
void usb4_home_trace_turn(size_t port, const struct usb4_core_turn *turn);

#endif /* USB4_CORE_H */
