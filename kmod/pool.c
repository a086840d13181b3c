// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Pools: the receive buffers of a rail.
 *
 * In C because of pages and their mapping for DMA. Frames that wait for others,
 * or to be copied, outlive the rail they came on while their link has another
 * one; so the link holds a reference on the pools of its rails, and a rail whose
 * pool has been left with a link gets itself another.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "port.h"

static void free_frames(struct u4_pool *pool)
{
	u32 i;

	if (!pool->frames)
		return;
	for (i = 0; i < u4_limits.rx_tokens && pool->frames[i].data; i++)
		free_page((unsigned long)pool->frames[i].data);
	kvfree(pool->frames);
}

static void free_pool(struct kref *ref)
{
	struct u4_pool *pool = container_of(ref, struct u4_pool, ref);

	u4_pool_unmap(pool);
	free_frames(pool);
	kvfree(pool->free);
	kfree(pool);
}

/**
 * u4_pool_put() - give back a reference on a pool
 * @pool: the pool, or %NULL
 */
void u4_pool_put(struct u4_pool *pool)
{
	if (pool)
		kref_put(&pool->ref, free_pool);
}

/**
 * u4_pool_new() - get receive buffers
 *
 * Return: a pool of which all buffers are free, or %NULL.
 */
struct u4_pool *u4_pool_new(void)
{
	struct u4_pool *pool;
	u32 i;

	static_assert(U4_FRAME_SIZE <= PAGE_SIZE);

	pool = kzalloc_obj(*pool, GFP_KERNEL);
	if (!pool)
		return NULL;
	kref_init(&pool->ref);
	spin_lock_init(&pool->lock);
	pool->free = kvcalloc(u4_limits.rx_tokens, sizeof(*pool->free),
			      GFP_KERNEL);
	pool->frames = kvcalloc(u4_limits.rx_tokens, sizeof(*pool->frames),
				GFP_KERNEL);
	if (!pool->free || !pool->frames)
		goto err_pool;
	for (i = 0; i < u4_limits.rx_tokens; i++) {
		struct u4_frame *frame = &pool->frames[i];

		frame->data = (u8 *)__get_free_page(GFP_KERNEL | __GFP_NOWARN);
		if (!frame->data)
			goto err_pool;
		INIT_LIST_HEAD(&frame->ring.list);
		cond_resched();
	}
	u4_pool_reset(pool);
	return pool;

err_pool:
	u4_pool_put(pool);
	return NULL;
}

/**
 * u4_pool_map() - let a controller write to the buffers
 * @pool: the pool, mapped for none
 * @dev: the controller's device
 *
 * Return: 0 or -ENOMEM.
 */
int u4_pool_map(struct u4_pool *pool, struct device *dev)
{
	dma_addr_t addr;
	u32 i;

	pool->dev = dev;
	for (i = 0; i < u4_limits.rx_tokens; i++) {
		addr = dma_map_single(dev, pool->frames[i].data, U4_FRAME_SIZE,
				      DMA_FROM_DEVICE);
		if (dma_mapping_error(dev, addr)) {
			u4_pool_unmap(pool);
			return -ENOMEM;
		}
		pool->frames[i].ring.buffer_phy = addr;
		pool->mapped = i + 1;
		cond_resched();
	}
	return 0;
}

/**
 * u4_pool_unmap() - no controller writes to the buffers any more
 * @pool: the pool
 *
 * What has arrived was made visible when it did, and may be in use: it is not
 * to be written again.
 */
void u4_pool_unmap(struct u4_pool *pool)
{
	u32 i;

	for (i = 0; i < pool->mapped; i++)
		dma_unmap_single_attrs(pool->dev,
				       pool->frames[i].ring.buffer_phy,
				       U4_FRAME_SIZE, DMA_FROM_DEVICE,
				       DMA_ATTR_SKIP_CPU_SYNC);
	pool->mapped = 0;
	pool->dev = NULL;
}

/**
 * u4_pool_reset() - all buffers are free again
 * @pool: the pool, of which neither a ring nor a link has any
 */
void u4_pool_reset(struct u4_pool *pool)
{
	u32 i;

	for (i = 0; i < u4_limits.rx_tokens; i++)
		pool->free[i] = i;
	pool->free_count = u4_limits.rx_tokens;
}

/**
 * u4_pool_push() - a buffer is free again
 * @pool: the pool
 * @index: the buffer
 */
void u4_pool_push(struct u4_pool *pool, u32 index)
{
	spin_lock(&pool->lock);
	if (!WARN_ON_ONCE(pool->free_count >= u4_limits.rx_tokens)) {
		pool->free[pool->free_count] = index;
		/* Read without the lock, in poll_rx(). */
		WRITE_ONCE(pool->free_count, pool->free_count + 1);
	}
	spin_unlock(&pool->lock);
}

/**
 * u4_pool_pop() - take a free buffer
 * @pool: the pool
 * @index: where to put which
 *
 * Only a link's owner takes any, so there are no fewer than it has seen.
 *
 * Return: whether there was one.
 */
bool u4_pool_pop(struct u4_pool *pool, u32 *index)
{
	bool any;

	spin_lock(&pool->lock);
	any = pool->free_count;
	if (any) {
		WRITE_ONCE(pool->free_count, pool->free_count - 1);
		*index = pool->free[pool->free_count];
	}
	spin_unlock(&pool->lock);
	return any;
}
