// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Frames in and out of a link's rails, as the core asks for them.
 *
 * In C because buffers are pages. The core names only buffers it has, and only
 * bytes within them. Should it have erred, a frame is lost or wrong, and nothing
 * else is touched.
 */
#include <linux/rcupdate.h>
#include <linux/string.h>
#include <linux/unaligned.h>

#include "port.h"
#include "trace.h"

/* Where a frame has its packet number (docs/spec/wire.md, section 2). */
#define FRAME_PACKET	16

static struct u4_link *to_link(size_t handle)
{
	return (struct u4_link *)handle;
}

static u8 *tx_bytes(struct u4_link *link, u16 slot, size_t at, size_t len)
{
	if (WARN_ON_ONCE(slot >= u4_limits.tx_slots ||
			 at + len > U4_FRAME_SIZE))
		return NULL;
	return link->tx[slot] + at;
}

/* The pool a token belongs to, and its number there. */
static struct u4_pool *to_pool(struct u4_link *link, u32 token, u32 *index)
{
	u32 rail = token / u4_limits.rx_tokens;

	if (WARN_ON_ONCE(rail >= U4_LINK_RAILS || !link->pools[rail]))
		return NULL;
	*index = token % u4_limits.rx_tokens;
	return link->pools[rail];
}

void usb4_home_port_write(size_t handle, u16 slot, u16 at, const u8 *bytes,
			  size_t len)
{
	u8 *to = tx_bytes(to_link(handle), slot, at, len);

	if (to)
		memcpy(to, bytes, len);
}

void usb4_home_port_gather(size_t handle, u16 slot, u16 at, u16 len, size_t mem,
			   u64 offset)
{
	u8 *to = tx_bytes(to_link(handle), slot, at, len);

	if (to)
		u4_mem_read((struct u4_mem *)mem, offset, to, len);
}

void usb4_home_port_seal(size_t handle, u16 slot, u16 from, u16 to)
{
	u8 *bytes = tx_bytes(to_link(handle), slot, 0, to + sizeof(__le32));
	__le32 crc;

	if (!bytes || WARN_ON_ONCE(from > to))
		return;
	crc = cpu_to_le32(usb4_home_crc32c(0, bytes + from, to - from));
	memcpy(bytes + to, &crc, sizeof(crc));
}

static u64 packet_of(const u8 *frame, u16 len)
{
	return len < U4_HEADER ? 0 : get_unaligned_le64(frame + FRAME_PACKET);
}

void usb4_home_port_post(size_t handle, u8 rail, u16 slot, u16 len,
			 const u8 *header)
{
	struct u4_link *link = to_link(handle);
	u8 *bytes = tx_bytes(link, slot, 0, len);
	struct u4_port *port;

	if (!bytes || WARN_ON_ONCE(len < U4_HEADER || rail >= U4_LINK_RAILS))
		return;
	memcpy(bytes, header, U4_HEADER);
	if (trace_u4_frame_tx_enabled())
		trace_u4_frame_tx(link->number, rail, slot, len,
				  packet_of(bytes, len));
	if (link->loop) {
		u4_loop_post(link, slot, len);
		return;
	}
	/* A rail that is leaving: the core is about to be told. */
	port = rcu_dereference(link->ports[rail]);
	if (port)
		u4_port_post(port, slot, len);
}

void usb4_home_port_scatter(size_t handle, u32 token, u16 at, u16 len,
			    size_t mem, u64 offset)
{
	struct u4_pool *pool;
	u32 index;

	pool = to_pool(to_link(handle), token, &index);
	if (!pool || WARN_ON_ONCE(at + len > U4_FRAME_SIZE))
		return;
	u4_mem_write((struct u4_mem *)mem, offset,
		     pool->frames[index].data + at, len);
}

void usb4_home_port_release(size_t handle, u32 token)
{
	struct u4_link *link = to_link(handle);
	struct u4_pool *pool;
	u32 index;

	pool = to_pool(link, token, &index);
	if (!pool)
		return;
	u4_pool_push(pool, index);
	/* Last: the rail's number is free when none is held. */
	atomic_dec_return_release(&link->held[token / u4_limits.rx_tokens]);
}

static void trace_arrived(struct u4_link *link,
			  const struct usb4_core_arrived *arrived)
{
	const struct usb4_core_frame *frame;
	const struct usb4_core_sent *sent;
	u32 i;

	for (i = 0; i < arrived->sent_count; i++) {
		sent = &arrived->sent[i];
		trace_u4_frame_sent(link->number, sent->rail, sent->slot);
	}
	for (i = 0; i < arrived->frame_count; i++) {
		frame = &arrived->frames[i];
		trace_u4_frame_rx(link->number, frame->rail, frame->token,
				  frame->len,
				  packet_of(frame->bytes, frame->len));
	}
}

static void poll_ports(struct u4_link *link, struct usb4_core_arrived *arrived)
{
	struct u4_port *port;
	u32 before;
	u32 i;

	/* Whichever is first may fill all the room. */
	link->first++;
	for (i = 0; i < U4_LINK_RAILS; i++) {
		port = rcu_dereference(link->ports[(link->first + i) %
						   U4_LINK_RAILS]);
		if (!port)
			continue;
		before = arrived->frame_count;
		u4_port_poll(port, arrived);
		atomic_add(arrived->frame_count - before,
			   &link->held[port->index]);
	}
}

void usb4_home_port_poll(size_t handle, struct usb4_core_arrived *arrived)
{
	struct u4_link *link = to_link(handle);

	if (link->loop)
		u4_loop_poll(link, arrived);
	else
		poll_ports(link, arrived);
	if (trace_u4_frame_sent_enabled() || trace_u4_frame_rx_enabled())
		trace_arrived(link, arrived);
}

void usb4_home_port_arm(size_t handle)
{
	struct u4_link *link = to_link(handle);
	struct u4_port *port;
	u32 i;

	for (i = 0; i < U4_LINK_RAILS; i++) {
		port = rcu_dereference(link->ports[i]);
		if (port)
			u4_port_arm(port);
	}
}

void usb4_home_port_strange(size_t handle, u8 rail, u64 tag)
{
	struct u4_port *port;

	if (WARN_ON_ONCE(rail >= U4_LINK_RAILS))
		return;
	port = rcu_dereference(to_link(handle)->ports[rail]);
	if (port)
		u4_rail_strange(port->rail, tag);
}

/*
 * The peer may have been stopped. Or what it says does not get here, for lack of
 * descriptors that the controller knows of.
 */
void usb4_home_port_silent(size_t handle, u8 rail)
{
	struct u4_port *port;

	if (WARN_ON_ONCE(rail >= U4_LINK_RAILS))
		return;
	port = rcu_dereference(to_link(handle)->ports[rail]);
	if (!port)
		return;
	u4_port_kick_rx(port);
	u4_rail_silent(port->rail);
}

void usb4_home_port_down(size_t handle)
{
	struct u4_link *link = to_link(handle);
	struct u4_port *port;
	u32 i;

	for (i = 0; i < U4_LINK_RAILS; i++) {
		port = rcu_dereference(link->ports[i]);
		if (port)
			u4_rail_down(port->rail);
	}
}

void usb4_home_port_chosen(size_t handle)
{
	struct u4_link *link = to_link(handle);
	struct u4_port *port;
	u32 i;

	WRITE_ONCE(link->chosen, true);
	for (i = 0; i < U4_LINK_RAILS; i++) {
		port = rcu_dereference(link->ports[i]);
		if (port)
			u4_rail_chosen(port->rail, link);
	}
}

/* Any rail will do, but it may be leaving. */
void usb4_home_port_joined(size_t handle)
{
	struct u4_link *link = to_link(handle);
	struct u4_port *port;
	u32 i;

	for (i = 0; i < U4_LINK_RAILS; i++) {
		port = rcu_dereference(link->ports[i]);
		if (port)
			u4_rail_joined(port->rail);
	}
}
