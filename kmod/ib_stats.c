// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What has happened on the port: the counters of all links, those that have ended
 * included (docs/abi/sysfs-usb4_rdma.md says what each counts).
 *
 * In C because ib_core is.
 */
#include <rdma/ib_verbs.h>

#include "ib.h"

/* A member of struct usb4_core_link_status, all of which are 64 bits. */
#define COUNTER(member) \
	[offsetof(struct usb4_core_link_status, member) / sizeof(u64)] = \
		{ .name = #member }

/* Behind these: what the kernel has not sent to hosts that take nothing. */
#define LINK_COUNTERS	(sizeof(struct usb4_core_link_status) / sizeof(u64))

static const struct rdma_stat_desc counters[] = {
	COUNTER(tx_frames),
	COUNTER(tx_bytes),
	COUNTER(tx_acks),
	COUNTER(tx_probes),
	COUNTER(tx_resent),
	COUNTER(tx_lost),
	COUNTER(rx_frames),
	COUNTER(rx_bytes),
	COUNTER(rx_malformed),
	COUNTER(rx_corrupt),
	COUNTER(rx_wrong_tag),
	COUNTER(rx_duplicate),
	COUNTER(rx_no_room),
	COUNTER(parked),
	COUNTER(violations),
	COUNTER(executed),
	COUNTER(completed),
	COUNTER(failed),
	COUNTER(rnr_sent),
	COUNTER(rnr_received),
	COUNTER(nak_sent),
	COUNTER(nak_received),
	[LINK_COUNTERS] = { .name = "datagrams_lost" },
};

static_assert(ARRAY_SIZE(counters) == LINK_COUNTERS + 1);

struct rdma_hw_stats *u4_ib_alloc_stats(struct ib_device *ibdev, u32 port)
{
	return rdma_alloc_hw_stats_struct(counters, ARRAY_SIZE(counters),
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

int u4_ib_get_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats,
		    u32 port, int index)
{
	struct usb4_core_link_status sum;

	/* The device as such counts nothing. */
	if (port != U4_IB_PORT)
		return -EOPNOTSUPP;
	u4_verbs_count(&sum);
	memcpy(stats->value, &sum, sizeof(sum));
	stats->value[LINK_COUNTERS] = atomic64_read(&u4_channel_lost);
	return ARRAY_SIZE(counters);
}
