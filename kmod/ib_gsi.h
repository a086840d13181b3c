/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Queue pair 1: ib_gsi.c, and ib_gsi_io.c, which sends and receives.
 */
#ifndef USB4_IB_GSI_H
#define USB4_IB_GSI_H

#include "ib.h"

/* Scatter/gather elements of a send; a receive has one. */
#define U4_GSI_MAX_SGE		2

/**
 * struct u4_gsi_send - a request to send
 * @cqe: whose it is
 * @sge: where the MAD is
 * @sges: how many
 * @dmac: the host it goes to
 * @grh: the route header
 */
struct u4_gsi_send {
	struct ib_cqe *cqe;
	struct ib_sge sge[U4_GSI_MAX_SGE];
	int sges;
	u8 dmac[ETH_ALEN];
	struct ib_grh grh;
};

/**
 * struct u4_gsi_receive - a request to receive
 * @cqe: whose it is
 * @sge: where to
 */
struct u4_gsi_receive {
	struct ib_cqe *cqe;
	struct ib_sge sge;
};

/**
 * struct u4_ib_gsi - the queue pair
 * @channel: what its datagrams travel by
 * @qp: as ib_core knows it
 * @lock: around what follows
 * @state: as it was told
 * @sends: to be sent, a ring
 * @send_depth: how many there is room for
 * @send_head: the first
 * @send_count: how many there are, those in slots included
 * @unsent: how many of them are in no slot yet
 * @receives: to be filled, a ring
 * @receive_depth: how many there is room for
 * @receive_head: the first
 * @receive_count: how many there are
 * @slots: of each slot on its way, whose it is; the work item's alone
 */
struct u4_ib_gsi {
	struct u4_channel channel;
	struct ib_qp *qp;
	spinlock_t lock;	/* the rings, and state */
	enum ib_qp_state state;
	struct u4_gsi_send *sends;
	u32 send_depth;
	u32 send_head;
	u32 send_count;
	u32 unsent;
	struct u4_gsi_receive *receives;
	u32 receive_depth;
	u32 receive_head;
	u32 receive_count;
	struct ib_cqe *slots[U4_CHANNEL_TX];
};

/* ib_gsi_io.c */
extern const struct u4_channel_ops u4_gsi_channel_ops;
void u4_gsi_flush_receives(struct u4_ib_gsi *gsi);

#endif /* USB4_IB_GSI_H */
