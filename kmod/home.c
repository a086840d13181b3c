// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What the core needs of any kernel: time, chance, checksums, locks.
 *
 * In C because these are macros and inline functions of C headers.
 */
#include <linux/cpumask.h>
#include <linux/crc32c.h>
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "usb4_rdma.h"

u64 usb4_home_now(void)
{
	return ktime_get_ns();
}

u64 usb4_home_random(void)
{
	return get_random_u64();
}

/* The kernel's crc32c() leaves out the inversions at both ends. */
u32 usb4_home_crc32c(u32 crc, const u8 *bytes, size_t len)
{
	return ~crc32c(~crc, bytes, len);
}

/*
 * Somebody else is copying, at most some hundred KiB. To sleep rather than
 * spin lets that one have this processor, whatever the priorities.
 */
void usb4_home_relax(void)
{
	usleep_range(20, 50);
}

#if defined(CONFIG_DEBUG_SPINLOCK) || defined(CONFIG_DEBUG_LOCK_ALLOC) || \
	defined(CONFIG_PREEMPT_RT)

/*
 * Locks that do not fit their word: it points to them. They are made with the
 * core and go with it.
 */
struct u4_lock {
	spinlock_t lock;
	struct list_head list;
};

static LIST_HEAD(u4_locks);

void usb4_home_lock_init(u64 *word)
{
	struct u4_lock *lock;

	/* While the module is loaded, a few thousand: there is no way back. */
	lock = kmalloc(sizeof(*lock), GFP_KERNEL | __GFP_NOFAIL);
	spin_lock_init(&lock->lock);
	/*
	 * The core's order (submission queue, link, receive queue, completion
	 * queue) is within what looks like one class from here.
	 */
	lockdep_set_novalidate_class(&lock->lock);
	list_add(&lock->list, &u4_locks);
	*word = (uintptr_t)&lock->lock;
}

static spinlock_t *u4_lock(u64 *word)
{
	return (spinlock_t *)(uintptr_t)*word;
}

void u4_home_exit(void)
{
	struct u4_lock *lock, *next;

	list_for_each_entry_safe(lock, next, &u4_locks, list)
		kfree(lock);
	INIT_LIST_HEAD(&u4_locks);
}

#else

static_assert(sizeof(spinlock_t) <= sizeof(u64));

void usb4_home_lock_init(u64 *word)
{
	spin_lock_init((spinlock_t *)word);
}

static spinlock_t *u4_lock(u64 *word)
{
	return (spinlock_t *)word;
}

void u4_home_exit(void)
{
}

#endif

/*
 * All who call the core are in process context (interrupts only announce), so
 * interrupts stay on.
 */
void usb4_home_lock(u64 *word)
	__acquires(u4_lock(word))
{
	spin_lock(u4_lock(word));
}

void usb4_home_unlock(u64 *word)
	__releases(u4_lock(word))
{
	spin_unlock(u4_lock(word));
}
