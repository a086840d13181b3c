/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What registered memory is made of: memory.c, and dmabuf.c for that of others.
 */
#ifndef USB4_MEMORY_H
#define USB4_MEMORY_H

#include <linux/mm_types.h>
#include <linux/types.h>

struct u4_dmabuf;

/**
 * struct u4_mem - a pinned range of a client's memory
 * @mm: whose; the pages count against its RLIMIT_MEMLOCK. %NULL for the kernel's own
 * @len: bytes
 * @charged: pages that count
 * @first: where in the first page it begins
 * @writable: else it is only read
 * @dmabuf: the buffer it belongs to, or %NULL if it is the process' or the kernel's
 * @mapped: of a buffer, or of the kernel's own: where its first byte is
 * @npages: else, pages
 * @pages: the pages
 */
struct u4_mem {
	struct mm_struct *mm;
	u64 len;
	unsigned long charged;
	unsigned int first;
	bool writable;
	struct u4_dmabuf *dmabuf;
	u8 *mapped;
	unsigned long npages;
	struct page *pages[] __counted_by(npages);
};

/* memory.c */
bool u4_mem_charge(unsigned long npages);
void u4_mem_uncharge(struct mm_struct *mm, unsigned long npages);

/* dmabuf.c */
void u4_dmabuf_put(struct u4_dmabuf *dmabuf);

#endif /* USB4_MEMORY_H */
