// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Memory of a client's queues, which it maps.
 *
 * In C for pages and their accounting.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "client.h"

/**
 * u4_charge() - count memory for a client
 * @client: the client
 * @bytes: how many
 *
 * Memory that nobody but its clients knows of is to have an end for a user.
 *
 * Return: whether it may have that.
 */
bool u4_charge(struct u4_client *client, size_t bytes)
{
	atomic_long_t *own = &client->queue_bytes;
	atomic_long_t *all = &client->user->queue_bytes;

	if (atomic_long_add_return(bytes, own) > U4_QUEUE_BYTES)
		goto err_own;
	if (atomic_long_add_return(bytes, all) > U4_USER_QUEUE_BYTES &&
	    !client->exempt)
		goto err_all;
	return true;

err_all:
	atomic_long_sub(bytes, all);
err_own:
	atomic_long_sub(bytes, own);
	return false;
}

/**
 * u4_uncharge() - it is freed
 * @client: the client
 * @bytes: how many
 */
void u4_uncharge(struct u4_client *client, size_t bytes)
{
	atomic_long_sub(bytes, &client->user->queue_bytes);
	atomic_long_sub(bytes, &client->queue_bytes);
}

static void free_queue(struct kref *ref)
{
	struct u4_queue *queue = container_of(ref, struct u4_queue, ref);

	vfree(queue->words);
	u4_uncharge(queue->client, queue->bytes);
	kfree(queue);
}

/**
 * u4_queue_get() - take another reference on queue memory
 * @queue: the queue
 */
void u4_queue_get(struct u4_queue *queue)
{
	kref_get(&queue->ref);
}

/**
 * u4_queue_put() - give back a reference on queue memory
 * @queue: the queue
 */
void u4_queue_put(struct u4_queue *queue)
{
	kref_put(&queue->ref, free_queue);
}

void usb4_home_put_queue(size_t handle)
{
	u4_queue_put((struct u4_queue *)handle);
}

/*
 * As vmalloc_user(), but charged to the client's memory cgroup. What vmap()
 * returns has the pages, and the array of them, freed with it.
 */
static void *alloc_words(size_t bytes)
{
	unsigned long count = PFN_UP(bytes);
	struct page **pages;
	unsigned long i;
	void *words;

	pages = kvmalloc_array(count, sizeof(*pages), GFP_KERNEL_ACCOUNT);
	if (!pages)
		return NULL;
	for (i = 0; i < count; i++) {
		pages[i] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!pages[i])
			goto err_pages;
	}
	words = vmap(pages, count, VM_MAP | VM_USERMAP | VM_MAP_PUT_PAGES,
		     PAGE_KERNEL);
	if (!words)
		goto err_pages;
	return words;

err_pages:
	while (i)
		__free_page(pages[--i]);
	kvfree(pages);
	return NULL;
}

/**
 * u4_queue_new() - make a queue
 * @client: whose
 * @kind: USB4_CORE_QUEUE_*
 * @depth: entries
 * @slot: bytes of a slot that each entry has behind them, or 0
 * @number: where to put the number it is mapped by
 *
 * Return: the queue, to be given back to u4_queue_drop(); or an error: -EINVAL for
 * a depth that is none, -EDQUOT, -ENOMEM.
 */
struct u4_queue *u4_queue_new(struct u4_client *client, u32 kind, u32 depth,
			      u32 slot, u32 *number)
{
	size_t bytes = usb4_core_queue_size(kind, depth, slot);
	struct u4_queue *queue;
	int ret = -ENOMEM;

	if (!bytes)
		return ERR_PTR(-EINVAL);
	if (!u4_charge(client, bytes))
		return ERR_PTR(-EDQUOT);
	queue = kzalloc_obj(*queue, GFP_KERNEL_ACCOUNT);
	if (!queue)
		goto err_charge;
	kref_init(&queue->ref);
	queue->client = client;
	queue->bytes = bytes;
	queue->words = alloc_words(bytes);
	if (!queue->words)
		goto err_queue;
	ret = xa_alloc(&client->queues, number, queue,
		       XA_LIMIT(1, S32_MAX >> 1), GFP_KERNEL_ACCOUNT);
	if (ret)
		goto err_words;
	return queue;

err_words:
	vfree(queue->words);
err_queue:
	kfree(queue);
err_charge:
	u4_uncharge(client, bytes);
	return ERR_PTR(ret);
}

/**
 * u4_queue_drop() - have a queue mapped no more, and give it back
 * @client: whose
 * @queue: the queue
 * @number: of its mapping
 */
void u4_queue_drop(struct u4_client *client, struct u4_queue *queue, u32 number)
{
	xa_erase(&client->queues, number);
	u4_queue_put(queue);
}

/**
 * u4_queue_lend() - a queue for the core
 * @queue: the queue
 *
 * Return: what the core is given, with a reference of its own.
 */
struct usb4_core_queue u4_queue_lend(struct u4_queue *queue)
{
	u4_queue_get(queue);
	return (struct usb4_core_queue) {
		.words = queue->words,
		.count = queue->bytes / sizeof(u64),
		.handle = (size_t)queue,
	};
}
