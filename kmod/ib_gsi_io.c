// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What queue pair 1 sends and receives.
 *
 * In C because ib_core is. A datagram is a route header, in which sender and receiver
 * are called by the GIDs that they use with each other, and a MAD (wire.md, W-92).
 */
#include <linux/etherdevice.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <net/ipv6.h>
#include <rdma/ib_mad.h>

#include "ib_gsi.h"

/* What says whether a GID is one of RoCE v1 or v2: the next header. */
#define NEXT_IBA	0x1b
#define NEXT_UDP	IPPROTO_UDP

#define DATAGRAM_BYTES	(sizeof(struct ib_grh) + IB_MGMT_MAD_SIZE)

/* Sending */

static void send_done(struct u4_ib_gsi *gsi, struct ib_cqe *cqe,
		      enum ib_wc_status status)
{
	struct ib_wc wc = {
		.wr_cqe = cqe,
		.status = status,
		.opcode = IB_WC_SEND,
		.qp = gsi->qp,
		.port_num = U4_IB_PORT,
	};
	unsigned long flags;

	spin_lock_irqsave(&gsi->lock, flags);
	gsi->send_count--;
	spin_unlock_irqrestore(&gsi->lock, flags);
	u4_ib_kcq_add(u4_ib_cq(gsi->qp->send_cq), &wc);
}

/* The next that is in no slot, which then is the caller's. */
static bool take_send(struct u4_ib_gsi *gsi, struct u4_gsi_send *send,
		      enum ib_qp_state *state)
{
	unsigned long flags;
	bool any;

	spin_lock_irqsave(&gsi->lock, flags);
	*state = gsi->state;
	any = gsi->unsent;
	if (any) {
		*send = gsi->sends[gsi->send_head];
		gsi->send_head = (gsi->send_head + 1) % gsi->send_depth;
		gsi->unsent--;
	}
	spin_unlock_irqrestore(&gsi->lock, flags);
	return any;
}

/* There was no room, so it is the last now. There is a place for it: it still counts. */
static void put_back(struct u4_ib_gsi *gsi, const struct u4_gsi_send *send)
{
	unsigned long flags;

	spin_lock_irqsave(&gsi->lock, flags);
	gsi->sends[(gsi->send_head + gsi->unsent++) % gsi->send_depth] = *send;
	spin_unlock_irqrestore(&gsi->lock, flags);
}

static void fill(u8 *to, const struct u4_gsi_send *send)
{
	u32 room = IB_MGMT_MAD_SIZE;
	int i;

	memcpy(to, &send->grh, sizeof(send->grh));
	to += sizeof(send->grh);
	/* Not longer than a MAD: check_send(). */
	for (i = 0; i < send->sges; i++) {
		u32 len = min(send->sge[i].length, room);

		memcpy(to, ib_virt_dma_to_ptr(send->sge[i].addr), len);
		to += len;
		room -= len;
	}
	memset(to, 0, room);
}

static int send_one(struct u4_ib_gsi *gsi, const struct u4_gsi_send *send)
{
	struct usb4_core_node node;
	u32 slot;
	u8 *to;

	if (!u4_verbs_find(u4_mac_to_guid(send->dmac), &node))
		return -EHOSTUNREACH;
	to = u4_channel_slot(&gsi->channel, &node, &slot);
	if (IS_ERR(to))
		return PTR_ERR(to);
	fill(to, send);
	gsi->slots[slot] = send->cqe;
	u4_channel_send(&gsi->channel, &node, slot, DATAGRAM_BYTES);
	return 0;
}

static void transmit(struct u4_channel *channel)
{
	struct u4_ib_gsi *gsi = container_of(channel, struct u4_ib_gsi, channel);
	u32 count = READ_ONCE(gsi->unsent);
	enum ib_qp_state state;
	struct u4_gsi_send send;
	int ret;

	/* Each once. Whoever posts more kicks. */
	while (count-- && take_send(gsi, &send, &state)) {
		if (state != IB_QPS_RTS) {
			send_done(gsi, send.cqe, IB_WC_WR_FLUSH_ERR);
			continue;
		}
		ret = send_one(gsi, &send);
		/* What is lost is not told of. */
		if (ret == -EAGAIN)
			put_back(gsi, &send);
		else if (ret)
			send_done(gsi, send.cqe, IB_WC_SUCCESS);
	}
}

static void sent(struct u4_channel *channel, u32 slot, bool lost)
{
	struct u4_ib_gsi *gsi = container_of(channel, struct u4_ib_gsi, channel);

	send_done(gsi, gsi->slots[slot], IB_WC_SUCCESS);
}

static int check_send(const struct ib_ud_wr *wr)
{
	u32 len = 0;
	int i;

	if (wr->wr.opcode != IB_WR_SEND || wr->remote_qpn != 1 || !wr->ah ||
	    wr->wr.send_flags & IB_SEND_INLINE ||
	    wr->wr.num_sge > U4_GSI_MAX_SGE)
		return -EINVAL;
	for (i = 0; i < wr->wr.num_sge; i++)
		if (check_add_overflow(len, wr->wr.sg_list[i].length, &len))
			return -EINVAL;
	return len <= IB_MGMT_MAD_SIZE ? 0 : -EMSGSIZE;
}

static struct u4_gsi_send make_send(const struct ib_ud_wr *wr)
{
	const struct u4_ib_ah *ah = u4_ib_ah(wr->ah);
	const struct ib_global_route *route = rdma_ah_read_grh(&ah->attr);
	struct u4_gsi_send send = {
		.cqe = wr->wr.wr_cqe,
		.sges = wr->wr.num_sge,
		.grh = {
			.version_tclass_flow =
				cpu_to_be32(6U << 28 |
					    route->traffic_class << 20 |
					    (route->flow_label & 0xfffff)),
			.paylen = cpu_to_be16(IB_MGMT_MAD_SIZE),
			.next_hdr = ah->v2 ? NEXT_UDP : NEXT_IBA,
			.hop_limit = route->hop_limit,
			.sgid = ah->sgid,
			.dgid = route->dgid,
		},
	};

	memcpy(send.sge, wr->wr.sg_list, send.sges * sizeof(send.sge[0]));
	ether_addr_copy(send.dmac, ah->attr.roce.dmac);
	return send;
}

static int post_one_send(struct u4_ib_gsi *gsi, const struct ib_ud_wr *wr)
{
	struct u4_gsi_send send;
	unsigned long flags;
	int ret;

	ret = check_send(wr);
	if (ret)
		return ret;
	send = make_send(wr);
	spin_lock_irqsave(&gsi->lock, flags);
	if (gsi->state < IB_QPS_RTS) {
		ret = -EINVAL;
	} else if (gsi->send_count == gsi->send_depth) {
		ret = -ENOMEM;
	} else {
		gsi->sends[(gsi->send_head + gsi->unsent++) %
			   gsi->send_depth] = send;
		gsi->send_count++;
	}
	spin_unlock_irqrestore(&gsi->lock, flags);
	return ret;
}

int u4_ib_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		    const struct ib_send_wr **bad_wr)
{
	struct u4_ib_gsi *gsi = u4_ib_qp(ibqp)->gsi;
	int ret = 0;

	if (!gsi)
		ret = -EOPNOTSUPP;
	for (; wr && !ret; wr = ret ? wr : wr->next)
		ret = post_one_send(gsi, ud_wr(wr));
	if (ret)
		*bad_wr = wr;
	/* In whatever context, so the work item sends. */
	if (gsi)
		u4_channel_kick(&gsi->channel);
	return ret;
}

/* Receiving */

static void receive_done(struct u4_ib_gsi *gsi, struct ib_cqe *cqe,
			 struct ib_wc *wc)
{
	wc->wr_cqe = cqe;
	wc->opcode = IB_WC_RECV;
	wc->qp = gsi->qp;
	wc->port_num = U4_IB_PORT;
	u4_ib_kcq_add(u4_ib_cq(gsi->qp->recv_cq), wc);
}

static bool take_receive(struct u4_ib_gsi *gsi,
			 struct u4_gsi_receive *receive, bool flush)
{
	unsigned long flags;
	bool any;

	spin_lock_irqsave(&gsi->lock, flags);
	any = gsi->receive_count && gsi->state >= IB_QPS_RTR &&
	      (gsi->state == IB_QPS_ERR) == flush;
	if (any) {
		*receive = gsi->receives[gsi->receive_head];
		gsi->receive_head = (gsi->receive_head + 1) %
				    gsi->receive_depth;
		gsi->receive_count--;
	}
	spin_unlock_irqrestore(&gsi->lock, flags);
	return any;
}

/*
 * From whoever is at the other end, so of any content. Whose a link-local GID is
 * everybody knows; any other may have been given to anybody.
 */
static bool is_valid(const u8 *mac, const struct ib_grh *grh, u32 len)
{
	const struct in6_addr *from = (const struct in6_addr *)&grh->sgid;

	if (len != DATAGRAM_BYTES ||
	    be32_to_cpu(grh->version_tclass_flow) >> 28 != 6 ||
	    (grh->next_hdr != NEXT_UDP && grh->next_hdr != NEXT_IBA))
		return false;
	return !(ipv6_addr_type(from) & IPV6_ADDR_LINKLOCAL) ||
	       be64_to_cpu(grh->sgid.global.interface_id) ==
	       u4_mac_to_guid(mac);
}

static void received(struct u4_channel *channel, const u8 *mac, const u8 *data,
		     u32 len)
{
	struct u4_ib_gsi *gsi = container_of(channel, struct u4_ib_gsi, channel);
	const struct ib_grh *grh = (const struct ib_grh *)data;
	struct u4_gsi_receive receive;
	struct ib_wc wc = {
		.byte_len = len,
		.src_qp = 1,
		.wc_flags = IB_WC_GRH | IB_WC_WITH_SMAC |
			    IB_WC_WITH_NETWORK_HDR_TYPE,
	};

	if (!is_valid(mac, grh, len) || !take_receive(gsi, &receive, false))
		return;
	if (receive.sge.length < len) {
		wc.status = IB_WC_LOC_LEN_ERR;
	} else {
		memcpy(ib_virt_dma_to_ptr(receive.sge.addr), data, len);
		ether_addr_copy(wc.smac, mac);
		wc.network_hdr_type = grh->next_hdr == NEXT_UDP ?
				      RDMA_NETWORK_IPV6 : RDMA_NETWORK_ROCE_V1;
	}
	receive_done(gsi, receive.cqe, &wc);
}

/**
 * u4_gsi_flush_receives() - give back what is to be filled, if it is in error
 * @gsi: the queue pair
 */
void u4_gsi_flush_receives(struct u4_ib_gsi *gsi)
{
	struct u4_gsi_receive receive;
	struct ib_wc wc = { .status = IB_WC_WR_FLUSH_ERR };

	while (take_receive(gsi, &receive, true))
		receive_done(gsi, receive.cqe, &wc);
}

static int post_one_receive(struct u4_ib_gsi *gsi, const struct ib_recv_wr *wr)
{
	unsigned long flags;
	int ret = 0;

	if (wr->num_sge != 1)
		return -EINVAL;
	spin_lock_irqsave(&gsi->lock, flags);
	if (gsi->state < IB_QPS_INIT)
		ret = -EINVAL;
	else if (gsi->receive_count == gsi->receive_depth)
		ret = -ENOMEM;
	else
		gsi->receives[(gsi->receive_head + gsi->receive_count++) %
			      gsi->receive_depth] = (struct u4_gsi_receive) {
			.cqe = wr->wr_cqe,
			.sge = wr->sg_list[0],
		};
	spin_unlock_irqrestore(&gsi->lock, flags);
	return ret;
}

int u4_ib_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		    const struct ib_recv_wr **bad_wr)
{
	struct u4_ib_gsi *gsi = u4_ib_qp(ibqp)->gsi;
	int ret = 0;

	if (!gsi)
		ret = -EOPNOTSUPP;
	for (; wr && !ret; wr = ret ? wr : wr->next)
		ret = post_one_receive(gsi, wr);
	if (ret)
		*bad_wr = wr;
	/* Nothing, unless it is in error. */
	if (gsi)
		u4_gsi_flush_receives(gsi);
	return ret;
}

const struct u4_channel_ops u4_gsi_channel_ops = {
	.transmit = transmit,
	.sent = sent,
	.received = received,
};
