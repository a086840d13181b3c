// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Queues, and the notice page, in a client's address space.
 *
 * In C because of mappings.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/vmalloc.h>

#include "client.h"

/* For everybody to read. A mapping holds its file, and so the page. */
static int map_notice(struct vm_area_struct *vma)
{
	if (vma->vm_flags & VM_WRITE)
		return -EPERM;
	if (vma->vm_end - vma->vm_start != PAGE_SIZE)
		return -EINVAL;
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
		     VM_MAYWRITE);
	return vm_insert_page(vma, vma->vm_start, virt_to_page(u4_notice));
}

static void queue_open(struct vm_area_struct *vma)
{
	u4_queue_get(vma->vm_private_data);
}

static void queue_close(struct vm_area_struct *vma)
{
	u4_queue_put(vma->vm_private_data);
}

/* What is mapped counts, also when its object has gone. */
static const struct vm_operations_struct queue_vm_ops = {
	.open = queue_open,
	.close = queue_close,
};

/**
 * u4_client_mmap() - map a queue, or the notice page
 * @file: a client's
 * @vma: where, and which
 *
 * Called with the process' memory map locked, which whoever holds the client's
 * lock may wait for: so without that.
 *
 * Return: 0 or an error.
 */
int u4_client_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct u4_client *client = file->private_data;
	unsigned long shift = U4_OFFSET_SHIFT - PAGE_SHIFT;
	unsigned long bytes = vma->vm_end - vma->vm_start;
	struct u4_queue *queue;
	int ret = -EINVAL;

	if (!u4_client_is_own(client))
		return -EPERM;
	if (!(vma->vm_flags & VM_SHARED) ||
	    vma->vm_pgoff & ((1UL << shift) - 1))
		return ret;
	if (vma->vm_pgoff >> shift == U4_NOTICE_NUMBER)
		return map_notice(vma);
	xa_lock(&client->queues);
	queue = xa_load(&client->queues, vma->vm_pgoff >> shift);
	if (queue)
		u4_queue_get(queue);
	xa_unlock(&client->queues);
	if (!queue)
		return ret;
	if (bytes > PAGE_ALIGN(queue->bytes))
		goto err_queue;
	/* A child has no use for it. */
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	ret = remap_vmalloc_range(vma, queue->words, 0);
	if (ret)
		goto err_queue;
	vma->vm_private_data = queue;
	vma->vm_ops = &queue_vm_ops;
	return 0;

err_queue:
	u4_queue_put(queue);
	return ret;
}
