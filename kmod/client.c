// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A client's beginning and its end.
 *
 * In C because of processes and their address spaces.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/slab.h>

#include "client.h"

#ifndef CONFIG_MMU_NOTIFIER
#error "Needs CONFIG_MMU_NOTIFIER, to be told when a client's process ends"
#endif

static void drop_objects(struct u4_client *client)
{
	struct u4_cq *cq;
	struct u4_ep *ep;
	unsigned long id;

	xa_for_each(&client->eps, id, ep)
		u4_ep_drop(client, ep, id);
	xa_for_each(&client->cqs, id, cq)
		u4_cq_drop(client, cq, id);
	u4_nudge();
}

static void end_client(struct u4_client *client)
{
	bool ended;

	/* Others than the process may destroy objects meanwhile: verbs.c. */
	mutex_lock(&client->lock);
	ended = test_and_set_bit(U4_CLIENT_ENDED, &client->state);
	if (!ended) {
		/* Nothing touches its memory or queues when this returns. */
		usb4_core_remove_client(u4_core, client->id);
		drop_objects(client);
	}
	mutex_unlock(&client->lock);
	/* Last: its user may then have another one. */
	if (!ended)
		u4_regions_remove(client);
}

/*
 * The client's process has ended, or become another by exec; or the last of those
 * who hold it is done with it. Perhaps both, at the same time: whoever comes second
 * finds nothing left to do.
 *
 * Without this, whoever is left with a copy of the descriptor would keep a dead
 * process' pages pinned, in nobody's name, and its endpoints open to peers.
 */
static void process_ended(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	end_client(container_of(notifier, struct u4_client, notifier));
}

static const struct mmu_notifier_ops client_notifier = {
	.release = process_ended,
};

static void free_client(struct u4_client *client)
{
	xa_destroy(&client->cqs);
	xa_destroy(&client->eps);
	xa_destroy(&client->mrs);
	xa_destroy(&client->queues);
	mutex_destroy(&client->lock);
	kfree(client);
}

/**
 * u4_client_new() - make a client
 * @kernel: it is the kernel's own; else, of the calling process
 *
 * Return: the client, to be given back to u4_client_put(); or an error: -ENOSPC
 * if its user has too many, -ENOMEM, -EINTR.
 */
struct u4_client *u4_client_new(bool kernel)
{
	struct u4_client *client;
	int ret;

	client = kzalloc_obj(*client, GFP_KERNEL_ACCOUNT);
	if (!client)
		return ERR_PTR(-ENOMEM);
	kref_init(&client->ref);
	mutex_init(&client->lock);
	xa_init_flags(&client->cqs, XA_FLAGS_ACCOUNT);
	xa_init_flags(&client->eps, XA_FLAGS_ACCOUNT);
	xa_init_flags(&client->mrs, XA_FLAGS_ACCOUNT);
	xa_init_flags(&client->queues, XA_FLAGS_ALLOC1 | XA_FLAGS_ACCOUNT);
	client->exempt = kernel || capable(CAP_SYS_RESOURCE);
	client->mm = kernel ? NULL : current->mm;
	client->notifier.ops = &client_notifier;
	ret = u4_regions_add(client);
	if (ret)
		goto err_client;
	ret = usb4_core_add_client(u4_core, __kuid_val(current_uid()),
				   client->exempt, &client->id);
	if (ret)
		goto err_regions;
	if (kernel)
		return client;
	/* Holds the mm_struct, so that no other has its address. */
	ret = mmu_notifier_register(&client->notifier, client->mm);
	if (ret)
		goto err_core;
	return client;

err_core:
	usb4_core_remove_client(u4_core, client->id);
err_regions:
	u4_regions_remove(client);
	u4_user_put(client->user);
err_client:
	free_client(client);
	return ERR_PTR(ret);
}

static void release_client(struct kref *ref)
{
	struct u4_client *client = container_of(ref, struct u4_client, ref);

	/* Ends it, if its process has not, and waits for whoever does. */
	if (client->mm)
		mmu_notifier_unregister(&client->notifier, client->mm);
	else
		end_client(client);
	u4_user_put(client->user);
	free_client(client);
}

/**
 * u4_client_get() - hold a client
 * @client: the client
 */
void u4_client_get(struct u4_client *client)
{
	kref_get(&client->ref);
}

/**
 * u4_client_put() - be done with a client, which ends with the last who holds it
 * @client: the client
 */
void u4_client_put(struct u4_client *client)
{
	kref_put(&client->ref, release_client);
}
