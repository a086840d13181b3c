// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What the device and its port are, and when the port comes up.
 *
 * In C because ib_core is.
 *
 * All links are one port: whom a queue pair is connected to says which link it
 * uses. The port is one of RoCE, so programs address by GID, and ib_core takes GIDs
 * from the addresses of a network device (ib_netdev.c).
 *
 * It speaks both versions of RoCE, between which there is no difference on the
 * cable. A link-local GID of v1 is good without any setup: ib_core takes the MAC
 * address, by which we know the host, from the GID itself, where for v2 it asks the
 * IP stack. So GID 0, the first that programs try, is one of v1.
 */
#include <linux/string.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_verbs.h>

#include "ib.h"

/* The only one: what InfiniBand calls the default partition, all of it. */
#define PKEY		0xffff

/* An answer takes up to 4.096 us times 2^15 longer if the processors are busy. */
#define ACK_DELAY	15

/*
 * An OUI of those that nobody is assigned, "U4" in its lower half: software that
 * knows devices of one vendor by it knows none by this one.
 */
#define VENDOR 0x025534

int u4_ib_query_device(struct ib_device *ibdev, struct ib_device_attr *attr,
		       struct ib_udata *udata)
{
	u32 major = 0;
	u32 minor = 0;
	u32 patch = 0;
	int ret;

	if (udata) {
		ret = u4_ib_no_request(udata);
		if (ret)
			return ret;
	}
	/* Ours, so it parses. */
	if (sscanf(U4_VERSION, "%u.%u.%u", &major, &minor, &patch) != 3)
		return -EINVAL;
	*attr = (struct ib_device_attr) {
		.fw_ver = (u64)major << 32 | minor << 16 | patch,
		.sys_image_guid = ibdev->node_guid,
		.max_mr_size = u4_limits.max_mr_bytes,
		.page_size_cap = PAGE_MASK,
		.vendor_id = VENDOR,
		.max_qp = u4_limits.max_eps,
		.max_qp_wr = u4_limits.max_depth,
		.device_cap_flags = IB_DEVICE_RC_RNR_NAK_GEN |
				    IB_DEVICE_PORT_ACTIVE_EVENT |
				    IB_DEVICE_SYS_IMAGE_GUID,
		/* Addresses of the kernel's are the kernel's. */
		.kernel_cap_flags = IBK_LOCAL_DMA_LKEY,
		.max_send_sge = USB4_RING_MAX_PIECES,
		.max_recv_sge = USB4_RING_MAX_PIECES,
		.max_sge_rd = USB4_RING_MAX_PIECES,
		.max_srq = u4_limits.max_eps,
		.max_srq_wr = u4_limits.max_depth,
		.max_srq_sge = USB4_RING_MAX_PIECES,
		.max_cq = u4_limits.max_cqs,
		.max_cqe = u4_limits.max_depth,
		.max_mr = u4_limits.max_mrs,
		.max_pd = U4_IB_MAX_PDS,
		.max_qp_rd_atom = U4_IB_MAX_READS,
		.max_qp_init_rd_atom = U4_IB_MAX_READS,
		.max_res_rd_atom = U4_IB_MAX_READS * u4_limits.max_eps,
		/* Words are changed as by any processor of the host. */
		.atomic_cap = IB_ATOMIC_GLOB,
		.max_ah = u4_limits.max_ahs,
		.max_pkeys = 1,
		.local_ca_ack_delay = ACK_DELAY,
	};
	return udata ? u4_ib_respond(udata, NULL, 0) : 0;
}

void u4_ib_fw_str(struct ib_device *ibdev, char *text)
{
	strscpy(text, U4_VERSION, IB_FW_VERSION_NAME_MAX);
}

/**
 * struct rate - what a port can say that it carries
 * @mbps: megabits per second
 * @speed: of a lane
 * @width: lanes
 */
struct rate {
	u32 mbps;
	u16 speed;
	u8 width;
};

/* From the lowest. */
static const struct rate rates[] = {
	{ 2500, IB_SPEED_SDR, IB_WIDTH_1X },
	{ 5000, IB_SPEED_DDR, IB_WIDTH_1X },
	{ 10000, IB_SPEED_QDR, IB_WIDTH_1X },
	{ 20000, IB_SPEED_QDR, IB_WIDTH_2X },
	{ 40000, IB_SPEED_QDR, IB_WIDTH_4X },
	{ 50000, IB_SPEED_EDR, IB_WIDTH_2X },
	{ 80000, IB_SPEED_QDR, IB_WIDTH_8X },
	{ 100000, IB_SPEED_EDR, IB_WIDTH_4X },
	{ 120000, IB_SPEED_QDR, IB_WIDTH_12X },
	{ 200000, IB_SPEED_HDR, IB_WIDTH_4X },
	{ 300000, IB_SPEED_EDR, IB_WIDTH_12X },
	{ 400000, IB_SPEED_HDR, IB_WIDTH_8X },
	{ 600000, IB_SPEED_HDR, IB_WIDTH_12X },
};

/* No more than that; without a link, the least there is. */
static const struct rate *rate_for(u64 mbps)
{
	const struct rate *best = rates;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(rates) && rates[i].mbps <= mbps; i++)
		best = &rates[i];
	return best;
}

int u4_ib_query_port(struct ib_device *ibdev, u32 port,
		     struct ib_port_attr *attr)
{
	struct u4_verbs_links links;
	const struct rate *rate;

	u4_verbs_links(&links);
	rate = rate_for(links.rate_mbps);
	attr->state = links.rails ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = links.rails ? IB_PORT_PHYS_STATE_LINK_UP :
					 IB_PORT_PHYS_STATE_POLLING;
	attr->active_speed = rate->speed;
	attr->active_width = rate->width;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->phys_mtu = ib_mtu_enum_to_int(IB_MTU_4096);
	attr->max_msg_sz = u4_limits.max_message;
	attr->gid_tbl_len = U4_IB_GIDS;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 1;
	attr->ip_gids = true;
	attr->port_cap_flags = IB_PORT_CM_SUP;
	return 0;
}

int u4_ib_port_immutable(struct ib_device *ibdev, u32 port,
			 struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = U4_IB_GIDS;
	immutable->pkey_tbl_len = 1;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE |
				    RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	return 0;
}

enum rdma_link_layer u4_ib_link_layer(struct ib_device *ibdev, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

int u4_ib_query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = PKEY;
	return 0;
}

/* Changes of the port's state */

static void port_work(struct work_struct *work)
{
	struct u4_ib *dev = container_of(work, struct u4_ib, port_work);
	struct u4_verbs_links links;
	struct ib_event event = {
		.device = &dev->ibdev,
		.element.port_num = U4_IB_PORT,
	};

	u4_verbs_links(&links);
	u4_ib_netdev_carrier(dev->ndev, links.rails);
	if (dev->active == !!links.rails)
		return;
	dev->active = links.rails;
	event.event = dev->active ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR;
	ib_dispatch_event(&event);
}

/* With spinlocks held. */
static int links_changed(struct notifier_block *watcher, unsigned long action,
			 void *data)
{
	struct u4_ib *dev = container_of(watcher, struct u4_ib, watcher);

	schedule_work(&dev->port_work);
	return NOTIFY_OK;
}

/**
 * u4_ib_port_watch() - tell when the port comes up or goes down
 * @dev: the device, which is registered
 */
void u4_ib_port_watch(struct u4_ib *dev)
{
	INIT_WORK(&dev->port_work, port_work);
	dev->watcher.notifier_call = links_changed;
	u4_verbs_watch(&dev->watcher);
	/* A link may have been up before. */
	schedule_work(&dev->port_work);
}

/**
 * u4_ib_port_unwatch() - tell no more
 * @dev: the device
 */
void u4_ib_port_unwatch(struct u4_ib *dev)
{
	u4_verbs_unwatch(&dev->watcher);
	cancel_work_sync(&dev->port_work);
}
