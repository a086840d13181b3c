// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Registered memory: pages of a client, pinned, and copied by the processor.
 *
 * In C because of struct page. A byte of a region is found by one look into an
 * array of pages, wherever in the region it is.
 */
#include <linux/atomic.h>
#include <linux/capability.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "memory.h"
#include "usb4_rdma.h"

/* Pages pinned in one go; between two, signals are looked at. */
#define PIN_BATCH	512UL

/**
 * u4_mem_charge() - count pages that the calling process is to have pinned
 * @npages: how many
 *
 * As InfiniBand's ib_umem_get() counts them, for whose users limits are set: for
 * each address space by itself, beside what it has locked (mm->locked_vm).
 *
 * Return: whether RLIMIT_MEMLOCK allows it.
 */
bool u4_mem_charge(unsigned long npages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct mm_struct *mm = current->mm;

	if (atomic64_add_return(npages, &mm->pinned_vm) <= limit ||
	    capable(CAP_IPC_LOCK))
		return true;
	atomic64_sub(npages, &mm->pinned_vm);
	return false;
}

/**
 * u4_mem_uncharge() - they are pinned no more
 * @mm: the process' address space
 * @npages: how many
 */
void u4_mem_uncharge(struct mm_struct *mm, unsigned long npages)
{
	atomic64_sub(npages, &mm->pinned_vm);
}

/* Makes room for more pages. If there is none, @old is as it was. */
static struct u4_mem *grow(struct u4_mem *old, unsigned long npages)
{
	struct u4_mem *mem;

	mem = kvrealloc(old, struct_size(mem, pages, npages),
			GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (mem)
		mem->npages = npages;
	return mem;
}

/*
 * The array grows with what is pinned: for memory that is said to be large, and is
 * not there, none is to be taken that nobody is seen to have.
 */
static struct u4_mem *pin_all(unsigned long start, unsigned long npages,
			      bool writable)
{
	unsigned int flags = FOLL_LONGTERM | (writable ? FOLL_WRITE : 0);
	struct u4_mem *mem = NULL;
	struct u4_mem *larger;
	unsigned long done = 0;
	long got;

	while (done < npages) {
		if (!mem || done == mem->npages) {
			larger = grow(mem, min(npages, max(2 * done, PIN_BATCH)));
			if (!larger) {
				got = -ENOMEM;
				goto err_unpin;
			}
			mem = larger;
		}
		if (fatal_signal_pending(current)) {
			got = -EINTR;
			goto err_unpin;
		}
		got = pin_user_pages_fast(start + done * PAGE_SIZE,
					  min(mem->npages - done, PIN_BATCH),
					  flags, mem->pages + done);
		if (got <= 0) {
			got = got ?: -EFAULT;
			goto err_unpin;
		}
		done += got;
		cond_resched();
	}
	return mem;

err_unpin:
	if (mem)
		unpin_user_pages(mem->pages, done);
	kvfree(mem);
	return ERR_PTR(got);
}

/**
 * u4_mem_pin() - pin memory of the calling process
 * @addr: address of the first byte
 * @len: bytes
 * @writable: it will be written, and not only read
 *
 * Return: the memory, to be given back to u4_mem_unpin(); or an error: -EINVAL
 * for a range that is none, -EFAULT if not all of it is there and allows that,
 * -ENOMEM if RLIMIT_MEMLOCK does not allow it.
 */
struct u4_mem *u4_mem_pin(u64 addr, u64 len, bool writable)
{
	unsigned int first = offset_in_page(addr);
	unsigned long npages;
	struct u4_mem *mem;
	u64 end;

	if (!len || check_add_overflow(addr, len - 1, &end))
		return ERR_PTR(-EINVAL);
	if (!access_ok((void __user *)(uintptr_t)addr, len))
		return ERR_PTR(-EFAULT);
	npages = (end >> PAGE_SHIFT) - (addr >> PAGE_SHIFT) + 1;
	if (!u4_mem_charge(npages))
		return ERR_PTR(-ENOMEM);
	mem = pin_all(addr & PAGE_MASK, npages, writable);
	if (IS_ERR(mem)) {
		u4_mem_uncharge(current->mm, npages);
		return mem;
	}
	mem->mm = current->mm;
	mem->len = len;
	mem->charged = npages;
	mem->first = first;
	mem->writable = writable;
	mem->dmabuf = NULL;
	mem->mapped = NULL;
	mmgrab(mem->mm);
	return mem;
}

/**
 * u4_mem_own() - have memory of the kernel's own registered
 * @memory: the memory, of vmalloc(); freed with what this returns, or now if that is
 *	an error
 * @len: bytes
 *
 * Return: the memory, to be given back to u4_mem_unpin(); or an error.
 */
struct u4_mem *u4_mem_own(u8 *memory, u64 len)
{
	struct u4_mem *mem;

	mem = kzalloc_obj(*mem, GFP_KERNEL);
	if (!mem) {
		vfree(memory);
		return ERR_PTR(-ENOMEM);
	}
	mem->len = len;
	mem->writable = true;
	mem->mapped = memory;
	return mem;
}

/**
 * u4_mem_unpin() - give pinned memory back
 * @mem: the memory; nothing touches it any more
 */
void u4_mem_unpin(struct u4_mem *mem)
{
	if (!mem->mm) {
		vfree(mem->mapped);
		kvfree(mem);
		return;
	}
	if (mem->dmabuf)
		u4_dmabuf_put(mem->dmabuf);
	else
		unpin_user_pages_dirty_lock(mem->pages, mem->npages,
					    mem->writable);
	u4_mem_uncharge(mem->mm, mem->charged);
	mmdrop(mem->mm);
	kvfree(mem);
}

void usb4_home_unpin(size_t mem)
{
	u4_mem_unpin((struct u4_mem *)mem);
}

/*
 * The core has checked every range and right. Should it have erred, the region's
 * owner gets no data rather than the host a stray write.
 */
static bool within(const struct u4_mem *mem, u64 offset, u64 len)
{
	return !WARN_ON_ONCE(offset > mem->len || len > mem->len - offset);
}

static bool may_write(const struct u4_mem *mem, u64 offset, u64 len)
{
	return within(mem, offset, len) && !WARN_ON_ONCE(!mem->writable);
}

/**
 * u4_mem_read() - copy from pinned memory
 * @mem: the memory
 * @offset: where in it
 * @to: where to
 * @len: bytes
 */
void u4_mem_read(const struct u4_mem *mem, u64 offset, void *to, size_t len)
{
	u64 at = mem->first + offset;

	if (!within(mem, offset, len))
		return;
	if (mem->mapped) {
		memcpy(to, mem->mapped + offset, len);
		return;
	}
	while (len) {
		size_t in_page = offset_in_page(at);
		size_t n = min(len, PAGE_SIZE - in_page);

		memcpy_from_page(to, mem->pages[at >> PAGE_SHIFT], in_page, n);
		to += n;
		at += n;
		len -= n;
	}
}

/**
 * u4_mem_write() - copy to pinned memory
 * @mem: the memory
 * @offset: where in it
 * @from: where from
 * @len: bytes
 */
void u4_mem_write(const struct u4_mem *mem, u64 offset, const void *from,
		  size_t len)
{
	u64 at = mem->first + offset;

	if (!may_write(mem, offset, len))
		return;
	if (mem->mapped) {
		memcpy(mem->mapped + offset, from, len);
		return;
	}
	while (len) {
		size_t in_page = offset_in_page(at);
		size_t n = min(len, PAGE_SIZE - in_page);

		memcpy_to_page(mem->pages[at >> PAGE_SHIFT], in_page, from, n);
		from += n;
		at += n;
		len -= n;
	}
}

/* 8 bytes at a multiple of 8, so on one page; NULL if they are not. */
static atomic64_t *map_word(const struct u4_mem *mem, u64 offset)
{
	u64 at = mem->first + offset;

	if (!may_write(mem, offset, sizeof(u64)) ||
	    WARN_ON_ONCE(at % sizeof(u64)))
		return NULL;
	if (mem->mapped)
		return (atomic64_t *)(mem->mapped + offset);
	return kmap_local_page(mem->pages[at >> PAGE_SHIFT]) +
	       offset_in_page(at);
}

static void unmap_word(const struct u4_mem *mem, atomic64_t *word)
{
	if (!mem->mapped)
		kunmap_local(word);
}

u64 usb4_home_fetch_add(size_t handle, u64 offset, u64 add)
{
	struct u4_mem *mem = (struct u4_mem *)handle;
	atomic64_t *word = map_word(mem, offset);
	u64 old;

	if (!word)
		return 0;
	old = atomic64_fetch_add(add, word);
	unmap_word(mem, word);
	return old;
}

u64 usb4_home_compare_swap(size_t handle, u64 offset, u64 compare, u64 swap)
{
	struct u4_mem *mem = (struct u4_mem *)handle;
	atomic64_t *word = map_word(mem, offset);
	u64 old;

	if (!word)
		return 0;
	old = atomic64_cmpxchg(word, compare, swap);
	unmap_word(mem, word);
	return old;
}

void usb4_home_write(size_t mem, u64 offset, const u8 *bytes, size_t len)
{
	u4_mem_write((struct u4_mem *)mem, offset, bytes, len);
}
