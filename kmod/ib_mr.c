// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Memory regions.
 *
 * In C because ib_core is. Pages are pinned and counted as for any client of the
 * ring API (memory.c, dmabuf.c), so there is no struct ib_umem.
 */
#include <linux/slab.h>
#include <rdma/uverbs_ioctl.h>

#include "ib.h"

/* What is of no use for memory that the processor copies, and does no harm. */
#define HARMLESS	(IB_ACCESS_RELAXED_ORDERING | IB_ACCESS_HUGETLB | \
			 IB_ACCESS_OPTIONAL)

#define REMOTE		(IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | \
			 IB_ACCESS_REMOTE_ATOMIC)

/**
 * u4_ib_remote_access() - what peers may do
 * @flags: as in enum ib_access_flags
 *
 * Return: USB4_RING_ACCESS_REMOTE_*.
 */
u32 u4_ib_remote_access(int flags)
{
	u32 access = 0;

	if (flags & IB_ACCESS_REMOTE_READ)
		access |= USB4_RING_ACCESS_REMOTE_READ;
	if (flags & IB_ACCESS_REMOTE_WRITE)
		access |= USB4_RING_ACCESS_REMOTE_WRITE;
	if (flags & IB_ACCESS_REMOTE_ATOMIC)
		access |= USB4_RING_ACCESS_REMOTE_ATOMIC;
	return access;
}

static struct ib_mr *reg(struct ib_pd *ibpd, struct u4_region_spec *spec,
			 int access, struct ib_udata *udata)
{
	struct u4_ib_ucontext *context = u4_ib_context_of(udata);
	struct u4_keys keys;
	struct u4_ib_mr *mr;
	int ret;

	ret = u4_ib_no_request(udata);
	if (ret)
		return ERR_PTR(ret);
	if (access & ~(REMOTE | HARMLESS | IB_ACCESS_LOCAL_WRITE))
		return ERR_PTR(-EOPNOTSUPP);
	spec->access = u4_ib_remote_access(access);
	if (!(access & IB_ACCESS_LOCAL_WRITE))
		spec->access |= USB4_RING_ACCESS_READ_ONLY;
	spec->narrow = true;
	spec->pd = u4_ib_pd(ibpd)->number;
	mr = kzalloc_obj(*mr, GFP_KERNEL_ACCOUNT);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->client = context->client;
	ret = u4_verbs_reg_mr(mr->client, spec, &keys);
	if (ret)
		goto err_mr;
	mr->ibmr.lkey = keys.local;
	mr->ibmr.rkey = lower_32_bits(keys.remote);
	mr->ibmr.iova = spec->addr;
	mr->ibmr.length = spec->len;
	ret = u4_ib_respond(udata, NULL, 0);
	if (ret)
		goto err_reg;
	return &mr->ibmr;

err_reg:
	u4_verbs_dereg_mr(mr->client, keys.local);
err_mr:
	kfree(mr);
	return ERR_PTR(ret);
}

struct ib_mr *u4_ib_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 len,
				u64 iova, int access,
#ifdef U4_IB_DMAH
				struct ib_dmah *dmah,
#endif
				struct ib_udata *udata)
{
	struct u4_region_spec spec = {
		.addr = iova,
		.start = start,
		.len = len,
	};

#ifdef U4_IB_DMAH
	if (dmah)
		return ERR_PTR(-EOPNOTSUPP);
#endif
	/* A word is to be one wherever it is looked at. */
	if (access & IB_ACCESS_REMOTE_ATOMIC && (start ^ iova) % sizeof(u64))
		return ERR_PTR(-EINVAL);
	return reg(ibpd, &spec, access, udata);
}

struct ib_mr *u4_ib_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 len,
				       u64 iova, int fd, int access,
#ifdef U4_IB_DMAH
				       struct ib_dmah *dmah,
#endif
				       struct uverbs_attr_bundle *attrs)
{
	struct u4_region_spec spec = {
		.addr = iova,
		.len = len,
		.dmabuf = true,
		.fd = fd,
		.offset = offset,
	};

#ifdef U4_IB_DMAH
	if (dmah)
		return ERR_PTR(-EOPNOTSUPP);
#endif
	if (access & IB_ACCESS_REMOTE_ATOMIC && (offset ^ iova) % sizeof(u64))
		return ERR_PTR(-EINVAL);
	return reg(ibpd, &spec, access, &attrs->driver_udata);
}

/* There is a key for all of the kernel's own memory, so nobody asks for one. */
struct ib_mr *u4_ib_get_dma_mr(struct ib_pd *ibpd, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

int u4_ib_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct u4_ib_mr *mr = u4_ib_mr(ibmr);
	int ret;

	ret = u4_verbs_dereg_mr(mr->client, ibmr->lkey);
	if (ret)
		return ret;
	kfree(mr);
	return 0;
}
