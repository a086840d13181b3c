/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What usb4_rdma.ko has for usb4_rdma_ib.ko: clients without /dev/usb4ring, what
 * they own, and what is known of links.
 */
#ifndef USB4_VERBS_H
#define USB4_VERBS_H

#include "client.h"

struct notifier_block;

/* The platform device that usb4_rdma_ib.ko is the driver of. */
#define U4_VERBS_DEVICE	"usb4_rdma_ib"

/**
 * struct u4_verbs_queue - where a client maps a queue
 * @offset: through its file
 * @bytes: how many
 * @words: its memory, for who is in the kernel; there as long as what it is of
 */
struct u4_verbs_queue {
	u64 offset;
	u64 bytes;
	u64 *words;
};

/**
 * struct u4_verbs_links - the links to other hosts, together
 * @rails: rails that carry data
 * @rate_mbps: what they are taken to carry
 */
struct u4_verbs_links {
	u32 rails;
	u64 rate_mbps;
};

/* verbs.c */
struct u4_client *u4_verbs_open(struct file **file);
void u4_verbs_close(struct u4_client *client);
u64 u4_verbs_notice(void);
int u4_verbs_create_cq(struct u4_client *client, const struct u4_cq_spec *spec,
		       u32 *id, struct u4_verbs_queue *queue);
int u4_verbs_destroy_cq(struct u4_client *client, u32 id);
int u4_verbs_arm_cq(struct u4_client *client, u32 id, bool solicited);
int u4_verbs_create_qp(struct u4_client *client, const struct u4_ep_spec *spec,
		       u32 *id, u32 *qpn, struct u4_verbs_queue *sq,
		       struct u4_verbs_queue *rq);
int u4_verbs_modify_qp(struct u4_client *client, u32 id,
		       const struct usb4_core_qp_attr *attr);
int u4_verbs_query_qp(struct u4_client *client, u32 id,
		      struct usb4_core_qp_attr *attr);
int u4_verbs_create_srq(struct u4_client *client,
			const struct u4_srq_spec *spec, u32 *id,
			struct u4_verbs_queue *rq);
int u4_verbs_limit_srq(struct u4_client *client, u32 id, u32 limit);
int u4_verbs_srq_limit(struct u4_client *client, u32 id, u32 *limit);
int u4_verbs_destroy_qp(struct u4_client *client, u32 id);
int u4_verbs_reg_mr(struct u4_client *client, const struct u4_region_spec *spec,
		    struct u4_keys *keys);
int u4_verbs_dereg_mr(struct u4_client *client, u32 key);
int u4_verbs_reach(const struct usb4_core_node *node, u64 timeout);
u64 u4_verbs_guid(const struct usb4_core_node *node);
bool u4_verbs_find(u64 guid, struct usb4_core_node *node);
void u4_verbs_links(struct u4_verbs_links *links);
void u4_verbs_count(struct usb4_core_link_status *sum);
void u4_verbs_watch(struct notifier_block *watcher);
void u4_verbs_unwatch(struct notifier_block *watcher);
int u4_verbs_init(void);
void u4_verbs_exit(void);

/* verbs_kernel.c */
struct u4_client *u4_verbs_open_kernel(void);
u8 *u4_verbs_reg_kernel(struct u4_client *client, size_t len, u32 pd,
			struct u4_keys *keys);
int u4_verbs_create_ah(struct u4_client *client, u32 ep,
		       const struct usb4_core_node *node, u32 qpn, u32 *ah);
int u4_verbs_destroy_ah(struct u4_client *client, u32 ep, u32 ah);
void u4_verbs_submit(u32 ep);
u32 u4_verbs_peers(struct usb4_core_node *nodes, u32 room);

#endif /* USB4_VERBS_H */
