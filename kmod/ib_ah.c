// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Address handles, and which host a GID is of.
 *
 * In C because ib_core is.
 */
#include <rdma/ib_verbs.h>

#include "ib.h"

/**
 * u4_ib_find() - the host an address leads to
 * @attr: the address
 * @node: where to put the host
 *
 * Return: whether there is one: this host, or one that a cable leads to.
 */
bool u4_ib_find(const struct rdma_ah_attr *attr, struct usb4_core_node *node)
{
	if (attr->type != RDMA_AH_ATTR_TYPE_ROCE)
		return false;
	/* Which is the GID's: ib_core has found it. */
	return u4_verbs_find(u4_mac_to_guid(attr->roce.dmac), node);
}

/* In any context. Where it leads is looked up when something is sent. */
static int create_for_kernel(struct u4_ib_ah *ah,
			     const struct rdma_ah_attr *attr)
{
	const struct ib_gid_attr *sgid = rdma_ah_read_grh(attr)->sgid_attr;

	if (attr->type != RDMA_AH_ATTR_TYPE_ROCE || !sgid)
		return -EINVAL;
	ah->attr = *attr;
	ah->attr.grh.sgid_attr = NULL;
	ah->sgid = sgid->gid;
	ah->v2 = sgid->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP;
	return 0;
}

static bool count(struct u4_ib_ucontext *context)
{
	if (atomic_inc_return(&context->ahs) <= u4_limits.max_ahs)
		return true;
	atomic_dec(&context->ahs);
	return false;
}

int u4_ib_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init,
		    struct ib_udata *udata)
{
	struct u4_ib_ucontext *context = u4_ib_context_of(udata);
	struct usb4_ib_create_ah_resp resp;
	struct u4_ib_ah *ah = u4_ib_ah(ibah);
	struct usb4_core_node node;
	int ret;

	if (!context)
		return create_for_kernel(ah, init->ah_attr);
	ret = u4_ib_no_request(udata);
	if (ret)
		return ret;
	if (!u4_ib_find(init->ah_attr, &node))
		return -EHOSTUNREACH;
	if (!count(context))
		return -EDQUOT;
	resp = (struct usb4_ib_create_ah_resp) {
		.node_low = node.low,
		.node_high = node.high,
	};
	ret = u4_ib_respond(udata, &resp, sizeof(resp));
	if (ret)
		goto err_count;
	ah->context = context;
	ah->attr = *init->ah_attr;
	/* That is the core's. */
	ah->attr.grh.sgid_attr = NULL;
	return 0;

err_count:
	atomic_dec(&context->ahs);
	return ret;
}

int u4_ib_query_ah(struct ib_ah *ibah, struct rdma_ah_attr *attr)
{
	*attr = u4_ib_ah(ibah)->attr;
	return 0;
}

int u4_ib_destroy_ah(struct ib_ah *ibah, u32 flags)
{
	struct u4_ib_ah *ah = u4_ib_ah(ibah);

	if (ah->context)
		atomic_dec(&ah->context->ahs);
	return 0;
}
