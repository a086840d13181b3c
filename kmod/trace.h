/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Tracepoints: /sys/kernel/tracing/events/usb4_rdma/.
 *
 * Links and rails have the numbers they have in sysfs. A frame's packet number
 * is what its header says, which for a received one is the peer's word.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM usb4_rdma

#if !defined(USB4_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define USB4_TRACE_H

#include <linux/tracepoint.h>

#include "usb4_rdma.h"

/* A client has entered: has posted, drives, or is about to wait. */
TRACE_EVENT(u4_enter,
	TP_PROTO(u32 client, u32 flags, u32 ep, bool any),
	TP_ARGS(client, flags, ep, any),
	TP_STRUCT__entry(
		__field(u32, client)
		__field(u32, flags)
		__field(u32, ep)
		__field(bool, any)
	),
	TP_fast_assign(
		__entry->client = client;
		__entry->flags = flags;
		__entry->ep = ep;
		__entry->any = any;
	),
	TP_printk("client=%u flags=%s ep=%u any=%d", __entry->client,
		  __print_flags(__entry->flags, "|",
				{ USB4_RING_ENTER_SUBMIT, "submit" },
				{ USB4_RING_ENTER_PROGRESS, "progress" },
				{ USB4_RING_ENTER_WAIT, "wait" }),
		  __entry->ep, __entry->any)
);

DECLARE_EVENT_CLASS(u4_frame,
	TP_PROTO(u32 link, u8 rail, u32 buffer, u16 len, u64 packet),
	TP_ARGS(link, rail, buffer, len, packet),
	TP_STRUCT__entry(
		__field(u64, packet)
		__field(u32, link)
		__field(u32, buffer)
		__field(u16, len)
		__field(u8, rail)
	),
	TP_fast_assign(
		__entry->packet = packet;
		__entry->link = link;
		__entry->buffer = buffer;
		__entry->len = len;
		__entry->rail = rail;
	),
	TP_printk("link=%u rail=%u buffer=%u len=%u packet=%llu",
		  __entry->link, __entry->rail, __entry->buffer, __entry->len,
		  __entry->packet)
);

/* A frame is posted on a rail. */
DEFINE_EVENT(u4_frame, u4_frame_tx,
	TP_PROTO(u32 link, u8 rail, u32 buffer, u16 len, u64 packet),
	TP_ARGS(link, rail, buffer, len, packet)
);

/* A frame has been taken off a rail's ring. */
DEFINE_EVENT(u4_frame, u4_frame_rx,
	TP_PROTO(u32 link, u8 rail, u32 buffer, u16 len, u64 packet),
	TP_ARGS(link, rail, buffer, len, packet)
);

/* A posted frame's descriptor has been consumed. */
TRACE_EVENT(u4_frame_sent,
	TP_PROTO(u32 link, u8 rail, u32 buffer),
	TP_ARGS(link, rail, buffer),
	TP_STRUCT__entry(
		__field(u32, link)
		__field(u32, buffer)
		__field(u8, rail)
	),
	TP_fast_assign(
		__entry->link = link;
		__entry->buffer = buffer;
		__entry->rail = rail;
	),
	TP_printk("link=%u rail=%u buffer=%u", __entry->link, __entry->rail,
		  __entry->buffer)
);

/*
 * What the core counted in one turn of a link: &struct usb4_core_turn. It looks
 * for that only while one of these is enabled.
 */

/* Frames were lost, sent again, or the peer was asked whether it is there. */
TRACE_EVENT_FN(u4_loss,
	TP_PROTO(u32 link, const struct usb4_core_turn *turn),
	TP_ARGS(link, turn),
	TP_STRUCT__entry(
		__field(u64, lost)
		__field(u64, resent)
		__field(u64, probes)
		__field(u32, link)
	),
	TP_fast_assign(
		__entry->lost = turn->lost;
		__entry->resent = turn->resent;
		__entry->probes = turn->probes;
		__entry->link = link;
	),
	TP_printk("link=%u lost=%llu resent=%llu probes=%llu", __entry->link,
		  __entry->lost, __entry->resent, __entry->probes),
	u4_trace_core, u4_trace_core_end
);

/* Frames were dropped. */
TRACE_EVENT_FN(u4_drop,
	TP_PROTO(u32 link, const struct usb4_core_turn *turn),
	TP_ARGS(link, turn),
	TP_STRUCT__entry(
		__field(u64, malformed)
		__field(u64, corrupt)
		__field(u64, wrong_tag)
		__field(u64, duplicate)
		__field(u64, no_room)
		__field(u32, link)
	),
	TP_fast_assign(
		__entry->malformed = turn->malformed;
		__entry->corrupt = turn->corrupt;
		__entry->wrong_tag = turn->wrong_tag;
		__entry->duplicate = turn->duplicate;
		__entry->no_room = turn->no_room;
		__entry->link = link;
	),
	TP_printk("link=%u malformed=%llu corrupt=%llu wrong_tag=%llu duplicate=%llu no_room=%llu",
		  __entry->link, __entry->malformed, __entry->corrupt,
		  __entry->wrong_tag, __entry->duplicate, __entry->no_room),
	u4_trace_core, u4_trace_core_end
);

/* Chunks wait for an earlier one. */
TRACE_EVENT_FN(u4_park,
	TP_PROTO(u32 link, const struct usb4_core_turn *turn),
	TP_ARGS(link, turn),
	TP_STRUCT__entry(
		__field(u64, chunks)
		__field(u32, link)
	),
	TP_fast_assign(
		__entry->chunks = turn->parked;
		__entry->link = link;
	),
	TP_printk("link=%u chunks=%llu", __entry->link, __entry->chunks),
	u4_trace_core, u4_trace_core_end
);

/* Operations of this host have completed, or requests of the peer's are done. */
TRACE_EVENT_FN(u4_complete,
	TP_PROTO(u32 link, const struct usb4_core_turn *turn),
	TP_ARGS(link, turn),
	TP_STRUCT__entry(
		__field(u64, completed)
		__field(u64, failed)
		__field(u64, executed)
		__field(u32, link)
	),
	TP_fast_assign(
		__entry->completed = turn->completed;
		__entry->failed = turn->failed;
		__entry->executed = turn->executed;
		__entry->link = link;
	),
	TP_printk("link=%u completed=%llu failed=%llu executed=%llu",
		  __entry->link, __entry->completed, __entry->failed,
		  __entry->executed),
	u4_trace_core, u4_trace_core_end
);

DECLARE_EVENT_CLASS(u4_rail,
	TP_PROTO(const char *dev, u32 link, u8 rail,
		 const struct usb4_core_node *node, const char *why),
	TP_ARGS(dev, link, rail, node, why),
	TP_STRUCT__entry(
		__string(dev, dev)
		__string(why, why)
		__field(u64, high)
		__field(u64, low)
		__field(u32, link)
		__field(u8, rail)
	),
	TP_fast_assign(
		__assign_str(dev);
		__assign_str(why);
		__entry->high = node->high;
		__entry->low = node->low;
		__entry->link = link;
		__entry->rail = rail;
	),
	TP_printk("%s link=%u rail=%u peer=" U4_NODE_FMT " %s",
		  __get_str(dev), __entry->link, __entry->rail, __entry->high,
		  __entry->low, __get_str(why))
);

/* A rail carries data for clients. */
DEFINE_EVENT(u4_rail, u4_rail_up,
	TP_PROTO(const char *dev, u32 link, u8 rail,
		 const struct usb4_core_node *node, const char *why),
	TP_ARGS(dev, link, rail, node, why)
);

/* A rail leaves its link. */
DEFINE_EVENT(u4_rail, u4_rail_down,
	TP_PROTO(const char *dev, u32 link, u8 rail,
		 const struct usb4_core_node *node, const char *why),
	TP_ARGS(dev, link, rail, node, why)
);

#endif /* USB4_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
