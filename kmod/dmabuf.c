// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Registered memory that belongs to a dma-buf: another driver's, a GPU's say.
 *
 * In C because of struct dma_buf. The buffer is pinned and mapped for the
 * processor as a whole while it is registered, and so it does not move. It is
 * made accessible to the processor once, as copies cannot wait for exporters:
 * that is all where the processor's caches are coherent, as on x86.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/iosys-map.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "memory.h"
#include "usb4_rdma.h"

/**
 * struct u4_dmabuf - a buffer, ours while a region of it is registered
 * @buf: the buffer
 * @attach: our share of it
 * @pins: it moves unless pinned, and so is
 * @access: what the processor does there
 * @map: where the processor sees it
 */
struct u4_dmabuf {
	struct dma_buf *buf;
	struct dma_buf_attachment *attach;
	bool pins;
	enum dma_data_direction access;
	struct iosys_map map;
};

static void never_moves(struct dma_buf_attachment *attach)
{
	WARN_ON_ONCE(1);
}

/*
 * No access past the memory of the machine: what is in a device comes out of it
 * to be pinned, if it can. By position, as the second one is called move_notify
 * until 7.0 and invalidate_mappings since.
 */
static const struct dma_buf_attach_ops attach_ops = { false, never_moves };

static int pin(struct u4_dmabuf *dmabuf)
{
	int ret;

	dma_resv_lock(dmabuf->buf->resv, NULL);
	ret = dma_buf_pin(dmabuf->attach);
	dma_resv_unlock(dmabuf->buf->resv);
	return ret;
}

static void unpin(struct u4_dmabuf *dmabuf)
{
	dma_resv_lock(dmabuf->buf->resv, NULL);
	dma_buf_unpin(dmabuf->attach);
	dma_resv_unlock(dmabuf->buf->resv);
}

/* What cannot move is kept by being attached. */
static int attach(struct u4_dmabuf *dmabuf, struct device *dev)
{
	int ret;

	dmabuf->pins = dmabuf->buf->ops->pin;
	if (dmabuf->pins)
		dmabuf->attach = dma_buf_dynamic_attach(dmabuf->buf, dev,
							&attach_ops, NULL);
	else
		dmabuf->attach = dma_buf_attach(dmabuf->buf, dev);
	if (IS_ERR(dmabuf->attach))
		return PTR_ERR(dmabuf->attach);
	if (!dmabuf->pins)
		return 0;
	ret = pin(dmabuf);
	if (ret)
		dma_buf_detach(dmabuf->buf, dmabuf->attach);
	return ret;
}

static void detach(struct u4_dmabuf *dmabuf)
{
	if (dmabuf->pins)
		unpin(dmabuf);
	dma_buf_detach(dmabuf->buf, dmabuf->attach);
}

static int map(struct u4_dmabuf *dmabuf)
{
	int ret;

	if (!dmabuf->buf->ops->vmap)
		return -EOPNOTSUPP;
	ret = dma_buf_vmap_unlocked(dmabuf->buf, &dmabuf->map);
	if (ret)
		return ret;
	ret = -EOPNOTSUPP;
	/* Registers of a device, to the processor. */
	if (dmabuf->map.is_iomem)
		goto err_map;
	ret = dma_buf_begin_cpu_access(dmabuf->buf, dmabuf->access);
	if (ret)
		goto err_map;
	return 0;

err_map:
	dma_buf_vunmap_unlocked(dmabuf->buf, &dmabuf->map);
	return ret;
}

/**
 * u4_dmabuf_put() - a buffer is registered no more
 * @dmabuf: the buffer; nothing touches it
 */
void u4_dmabuf_put(struct u4_dmabuf *dmabuf)
{
	dma_buf_end_cpu_access(dmabuf->buf, dmabuf->access);
	dma_buf_vunmap_unlocked(dmabuf->buf, &dmabuf->map);
	detach(dmabuf);
	dma_buf_put(dmabuf->buf);
	kfree(dmabuf);
}

/* Takes over the reference on the buffer if it succeeds. */
static struct u4_dmabuf *hold(struct dma_buf *buf, struct device *dev,
			      bool writable)
{
	struct u4_dmabuf *dmabuf;
	int ret;

	dmabuf = kzalloc_obj(*dmabuf, GFP_KERNEL_ACCOUNT);
	if (!dmabuf)
		return ERR_PTR(-ENOMEM);
	dmabuf->buf = buf;
	/* DMA_FROM_DEVICE is the processor reading (dma_buf_ioctl()). */
	dmabuf->access = writable ? DMA_BIDIRECTIONAL : DMA_FROM_DEVICE;
	ret = attach(dmabuf, dev);
	if (ret)
		goto err_dmabuf;
	ret = map(dmabuf);
	if (ret)
		goto err_attach;
	return dmabuf;

err_attach:
	detach(dmabuf);
err_dmabuf:
	kfree(dmabuf);
	return ERR_PTR(ret);
}

/**
 * u4_mem_import() - pin memory of a dma-buf for the calling process
 * @dev: the device in whose name
 * @fd: the buffer's descriptor
 * @offset: where in it the memory begins
 * @len: bytes
 * @writable: it will be written, and not only read
 *
 * Return: the memory, to be given back to u4_mem_unpin(); or an error: -EBADF or
 * -EINVAL if that is no such buffer or the range not within it, -EACCES if it is
 * open for reading only, -EOPNOTSUPP if the processor cannot reach it, -ENOMEM
 * if RLIMIT_MEMLOCK does not allow it.
 */
struct u4_mem *u4_mem_import(struct device *dev, int fd, u64 offset, u64 len,
			     bool writable)
{
	unsigned long npages;
	struct dma_buf *buf;
	struct u4_mem *mem;
	u64 end;
	int ret;

	buf = dma_buf_get(fd);
	if (IS_ERR(buf))
		return ERR_PTR(PTR_ERR(buf) == -EINVAL ? -EBADF : PTR_ERR(buf));
	ret = -EINVAL;
	if (!len || check_add_overflow(offset, len, &end) || end > buf->size)
		goto err_buf;
	/* As mmap() has it: whose descriptor is for reading writes nothing. */
	ret = -EACCES;
	if (writable && !(buf->file->f_mode & FMODE_WRITE))
		goto err_buf;
	ret = -ENOMEM;
	npages = PFN_UP(buf->size);
	if (!u4_mem_charge(npages))
		goto err_buf;
	mem = kzalloc_obj(*mem, GFP_KERNEL_ACCOUNT);
	if (!mem)
		goto err_charge;
	mem->dmabuf = hold(buf, dev, writable);
	if (IS_ERR(mem->dmabuf)) {
		ret = PTR_ERR(mem->dmabuf);
		goto err_mem;
	}
	mem->mapped = (u8 *)mem->dmabuf->map.vaddr + offset;
	mem->first = offset_in_page(mem->mapped);
	mem->len = len;
	mem->charged = npages;
	mem->writable = writable;
	mem->mm = current->mm;
	mmgrab(mem->mm);
	return mem;

err_mem:
	kfree(mem);
err_charge:
	u4_mem_uncharge(current->mm, npages);
err_buf:
	dma_buf_put(buf);
	return ERR_PTR(ret);
}

MODULE_IMPORT_NS("DMA_BUF");
