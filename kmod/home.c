// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What the core needs of any kernel: time, chance, checksums, locks.
 *
 * In C because these are macros and inline functions of C headers.
 */
/* For cpu_relax(), which <linux/bit_spinlock.h> uses and does not include in 6.18 and before. */
#include <linux/processor.h>
#include <linux/bit_spinlock.h>
#include <linux/crc32c.h>
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/lockdep.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/sched/stat.h>

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

/* Whether somebody else waits for this processor, urgently or not. */
bool usb4_home_must_yield(void)
{
	/*
	 * The scheduler asks only when our time is over, which is thousands of
	 * times as long as a client that polls would wait.
	 */
	return !single_task_running() || tif_need_resched() ||
	       test_thread_flag(TIF_NEED_RESCHED_LAZY);
}

/*
 * The core keeps each lock in a word of its own tables. A spinlock that is
 * checked by the kernel's debugging does not fit: there it is a bit, and one
 * lock to lockdep whichever it is.
 */
#ifdef CONFIG_PREEMPT_RT
#error "Not for PREEMPT_RT yet: what is done with these locks held may sleep there"
#endif

#if defined(CONFIG_DEBUG_SPINLOCK) || defined(CONFIG_DEBUG_LOCK_ALLOC)

#ifdef CONFIG_DEBUG_LOCK_ALLOC
static struct lock_class_key core_locks_key;

static struct lockdep_map core_locks = {
	.name = "usb4_core",
	.key = &core_locks_key,
	.wait_type_inner = LD_WAIT_CONFIG,
};

/*
 * In which order they are taken (submission queue, link, receive queue,
 * completion queue) the core sees to. So one that is taken with another held is
 * told as one that would not have been waited for; what is checked is where they
 * come among the kernel's. (Not as nested in the other: lockdep then counts both
 * as one, which must have been nested in something itself.)
 */
static void tell_locked(void)
{
	lock_acquire(&core_locks, 0, lock_is_held(&core_locks), 0, 1, NULL,
		     _RET_IP_);
}

static void tell_unlocked(void)
{
	lock_release(&core_locks, _RET_IP_);
}
#else
static void tell_locked(void)
{
}

static void tell_unlocked(void)
{
}
#endif

void usb4_home_lock_init(u64 *word)
{
	*word = 0;
}

static void lock_word(u64 *word)
{
	tell_locked();
	bit_spin_lock(0, (unsigned long *)word);
}

static void unlock_word(u64 *word)
{
	bit_spin_unlock(0, (unsigned long *)word);
	tell_unlocked();
}

#else

static_assert(sizeof(spinlock_t) <= sizeof(u64));

void usb4_home_lock_init(u64 *word)
{
	spin_lock_init((spinlock_t *)word);
}

static void lock_word(u64 *word)
{
	spin_lock((spinlock_t *)word);
}

static void unlock_word(u64 *word)
{
	spin_unlock((spinlock_t *)word);
}

#endif

/*
 * All who call the core are in process context (interrupts only announce), so
 * interrupts stay on.
 */
void usb4_home_lock(u64 *word)
{
	lock_word(word);
}

void usb4_home_unlock(u64 *word)
{
	unlock_word(word);
}
