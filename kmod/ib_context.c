// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Contexts, each of which is a client of the ring API, and protection domains.
 *
 * In C because ib_core is.
 */
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/uaccess.h>
#include <rdma/uverbs_ioctl.h>

#include "ib.h"

/**
 * u4_ib_context_of() - the context of a call
 * @udata: the call's; %NULL if the kernel makes it
 *
 * Return: the context, or %NULL.
 */
struct u4_ib_ucontext *u4_ib_context_of(struct ib_udata *udata)
{
	return rdma_udata_to_drv_context(udata, struct u4_ib_ucontext, ibuc);
}

/**
 * u4_ib_no_request() - see that a call says nothing we would not understand
 * @udata: the call's
 *
 * Return: 0, or -EOPNOTSUPP.
 */
int u4_ib_no_request(struct ib_udata *udata)
{
	if (!udata->inlen || ib_is_udata_cleared(udata, 0, udata->inlen))
		return 0;
	return -EOPNOTSUPP;
}

/**
 * u4_ib_respond() - answer a call
 * @udata: the call's
 * @resp: the answer
 * @len: bytes of it
 *
 * Who has less room gets the beginning; what is more is zeroed.
 *
 * Return: 0 or -EFAULT.
 */
int u4_ib_respond(struct ib_udata *udata, const void *resp, size_t len)
{
	size_t known = min(len, udata->outlen);

	if (copy_to_user(udata->outbuf, resp, known) ||
	    clear_user(udata->outbuf + known, udata->outlen - known))
		return -EFAULT;
	return 0;
}

/*
 * The descriptor is the process' from the moment it is told of it. If the call
 * fails for a reason of uverbs' after that, the process is left with one that has
 * no objects and cannot get any.
 */
int u4_ib_alloc_ucontext(struct ib_ucontext *ibuc, struct ib_udata *udata)
{
	struct u4_ib_ucontext *context = u4_ib_ucontext(ibuc);
	struct usb4_ib_alloc_ucontext_resp resp = {
		.ring_abi = u4_limits.abi_version,
		.notice_bytes = PAGE_SIZE,
		.notice_offset = u4_verbs_notice(),
	};
	struct file *file;
	int fd;
	int ret;

	ret = u4_ib_no_request(udata);
	if (ret)
		return ret;
	/* Who is not told of the descriptor can do nothing. */
	if (udata->outlen < sizeof(resp))
		return -EINVAL;
	context->client = u4_verbs_open(&file);
	if (IS_ERR(context->client))
		return PTR_ERR(context->client);
	fd = get_unused_fd_flags(O_CLOEXEC);
	ret = fd;
	if (ret < 0)
		goto err_client;
	resp.ring_fd = fd;
	ret = u4_ib_respond(udata, &resp, sizeof(resp));
	if (ret)
		goto err_fd;
	ida_init(&context->pds);
	atomic_set(&context->ahs, 0);
	fd_install(fd, file);
	return 0;

err_fd:
	put_unused_fd(fd);
err_client:
	fput(file);
	u4_verbs_close(context->client);
	return ret;
}

/* Its objects are gone; its descriptor may be open still. */
void u4_ib_dealloc_ucontext(struct ib_ucontext *ibuc)
{
	struct u4_ib_ucontext *context = u4_ib_ucontext(ibuc);

	ida_destroy(&context->pds);
	u4_verbs_close(context->client);
}

/*
 * Nothing of a device is mapped. Queues stay mapped as long as the process likes;
 * uverbs destroys what they were of.
 */
void u4_ib_disassociate_ucontext(struct ib_ucontext *ibuc)
{
}

int u4_ib_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct u4_ib_ucontext *context = u4_ib_context_of(udata);
	struct u4_ib_pd *pd = u4_ib_pd(ibpd);
	int ret;

	if (!context)
		/* The kernel's: it is zeroed. */
		return 0;
	ret = u4_ib_no_request(udata);
	if (ret)
		return ret;
	ret = ida_alloc_range(&context->pds, 1, U4_IB_MAX_PDS, GFP_KERNEL);
	if (ret < 0)
		return ret;
	pd->context = context;
	pd->number = ret;
	ret = u4_ib_respond(udata, NULL, 0);
	if (ret)
		ida_free(&context->pds, pd->number);
	return ret;
}

int u4_ib_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct u4_ib_pd *pd = u4_ib_pd(ibpd);

	if (pd->context)
		ida_free(&pd->context->pds, pd->number);
	return 0;
}
