/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * usb4_rdma_ib.ko: the ib_device usb4_0 on top of usb4_rdma.ko.
 */
#ifndef USB4_IB_H
#define USB4_IB_H

#include <linux/idr.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "ib_channel.h"
#include "usb4_ib_abi.h"
#include "verbs.h"

/* The only port. */
#define U4_IB_PORT	1

/* GIDs: two for each address of the network device (RoCE v1 and v2). */
#define U4_IB_GIDS	128

/* Of a context. */
#define U4_IB_MAX_PDS	1024

/* Of a queue pair, each way. */
#define U4_IB_MAX_READS	128

/* Address handles that a UD queue pair has room for in the device. */
#define U4_IB_UD_HANDLES	256

/**
 * struct u4_ib - the device
 * @ibdev: as the core knows it
 * @watcher: is told when links come and go
 * @port_work: looks what that means for the port
 * @active: the port's state as was last told
 * @ndev: the Ethernet device that its GIDs are of
 */
struct u4_ib {
	struct ib_device ibdev;
	struct notifier_block watcher;
	struct work_struct port_work;
	bool active;
	struct net_device *ndev;
};

/**
 * struct u4_ib_ucontext - a context
 * @ibuc: as the core knows it
 * @client: what its objects are made of; of the process that made it
 * @pds: numbers of its protection domains
 * @ahs: how many address handles it has
 */
struct u4_ib_ucontext {
	struct ib_ucontext ibuc;
	struct u4_client *client;
	struct ida pds;
	atomic_t ahs;
};

/**
 * struct u4_ib_pd - a protection domain
 * @ibpd: as the core knows it
 * @context: whose; %NULL if it is the kernel's
 * @number: which of these; not 0, but of the kernel's
 */
struct u4_ib_pd {
	struct ib_pd ibpd;
	struct u4_ib_ucontext *context;
	u32 number;
};

/**
 * struct u4_ib_ah - an address handle
 * @ibah: as the core knows it
 * @context: whose; %NULL if it is the kernel's
 * @attr: where it leads
 * @sgid: of the kernel's: this host's GID with it
 * @v2: and whether that is one of RoCE v2
 *
 * What sends by it is a handle of the ring API, which the provider makes for each
 * queue pair.
 */
struct u4_ib_ah {
	struct ib_ah ibah;
	struct u4_ib_ucontext *context;
	struct rdma_ah_attr attr;
	union ib_gid sgid;
	bool v2;
};

/**
 * struct u4_ib_cq - a completion queue
 * @ibcq: as the core knows it
 * @client: whose; %NULL if it is the kernel's
 * @id: its name there
 * @lock: of the kernel's: around the rest
 * @wcs: completions, a ring of &ib_cq.cqe; %NULL if it is not the kernel's
 * @head: the first
 * @count: how many there are
 * @armed: the next is to be told of
 */
struct u4_ib_cq {
	struct ib_cq ibcq;
	struct u4_client *client;
	u32 id;
	spinlock_t lock;	/* what follows */
	struct ib_wc *wcs;
	u32 head;
	u32 count;
	bool armed;
};

/**
 * struct u4_ib_qp - a queue pair
 * @ibqp: as the core knows it
 * @client: whose
 * @id: its name there
 * @signal: which sends complete, for whoever asks
 * @lock: around what changes it
 * @attr: what it was told, under @lock; not its state
 * @gsi: it is that of the kernel, and nothing else here is of use; else %NULL
 */
struct u4_ib_qp {
	struct ib_qp ibqp;
	struct u4_client *client;
	u32 id;
	enum ib_sig_type signal;
	struct mutex lock;	/* attr, and changes of the queue pair */
	struct ib_qp_attr attr;
	struct u4_ib_gsi *gsi;
};

/**
 * struct u4_ib_srq - a shared receive queue
 * @ibsrq: as the core knows it
 * @client: whose
 * @id: its name there
 * @depth: its entries
 * @slot: bytes of the slots behind them, or 0
 */
struct u4_ib_srq {
	struct ib_srq ibsrq;
	struct u4_client *client;
	u32 id;
	u32 depth;
	u32 slot;
};

/**
 * struct u4_ib_mr - a memory region
 * @ibmr: as the core knows it; its lkey is the region's local key
 * @client: whose
 */
struct u4_ib_mr {
	struct ib_mr ibmr;
	struct u4_client *client;
};

struct u4_ib_gsi;

#define U4_IB_TO(name, type, member)					\
static inline struct u4_ib_##name *u4_ib_##name(struct type *object)	\
{									\
	return container_of(object, struct u4_ib_##name, member);	\
}

U4_IB_TO(ucontext, ib_ucontext, ibuc)
U4_IB_TO(pd, ib_pd, ibpd)
U4_IB_TO(ah, ib_ah, ibah)
U4_IB_TO(cq, ib_cq, ibcq)
U4_IB_TO(qp, ib_qp, ibqp)
U4_IB_TO(srq, ib_srq, ibsrq)
U4_IB_TO(mr, ib_mr, ibmr)

/* ib_context.c */
struct u4_ib_ucontext *u4_ib_context_of(struct ib_udata *udata);
int u4_ib_no_request(struct ib_udata *udata);
int u4_ib_respond(struct ib_udata *udata, const void *resp, size_t len);
int u4_ib_alloc_ucontext(struct ib_ucontext *ibuc, struct ib_udata *udata);
void u4_ib_dealloc_ucontext(struct ib_ucontext *ibuc);
void u4_ib_disassociate_ucontext(struct ib_ucontext *ibuc);
int u4_ib_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata);
int u4_ib_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata);

/* ib_ah.c */
bool u4_ib_find(const struct rdma_ah_attr *attr, struct usb4_core_node *node);
int u4_ib_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init,
		    struct ib_udata *udata);
int u4_ib_query_ah(struct ib_ah *ibah, struct rdma_ah_attr *attr);
int u4_ib_destroy_ah(struct ib_ah *ibah, u32 flags);

/* ib_cq.c */
int u4_ib_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
		    struct uverbs_attr_bundle *attrs);
int u4_ib_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata);
int u4_ib_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags);

/* ib_qp.c */
u32 u4_ib_slot_for(u32 pieces, u32 inline_bytes);
u32 u4_ib_pieces_in(u32 slot);
int u4_ib_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *init,
		    struct ib_udata *udata);
int u4_ib_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata);

/* ib_kcq.c */
int u4_ib_kcq_create(struct u4_ib_cq *cq, const struct ib_cq_init_attr *attr);
void u4_ib_kcq_destroy(struct u4_ib_cq *cq);
void u4_ib_kcq_add(struct u4_ib_cq *cq, const struct ib_wc *wc);
int u4_ib_poll_cq(struct ib_cq *ibcq, int room, struct ib_wc *wcs);
bool u4_ib_kcq_arm(struct u4_ib_cq *cq);

/* ib_gsi.c */
int u4_ib_gsi_create(struct u4_ib_qp *qp, const struct ib_qp_init_attr *init);
void u4_ib_gsi_destroy(struct u4_ib_gsi *gsi);
int u4_ib_gsi_modify(struct u4_ib_gsi *gsi, const struct ib_qp_attr *attr,
		     int mask);
void u4_ib_gsi_query(struct u4_ib_gsi *gsi, struct ib_qp_attr *attr,
		     struct ib_qp_init_attr *init);
int u4_ib_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		    const struct ib_send_wr **bad_wr);
int u4_ib_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		    const struct ib_recv_wr **bad_wr);

/* ib_modify.c */
int u4_ib_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		    struct ib_udata *udata);
int u4_ib_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		   struct ib_qp_init_attr *init);

/* ib_srq.c */
int u4_ib_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *init,
		     struct ib_udata *udata);
int u4_ib_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
		     enum ib_srq_attr_mask mask, struct ib_udata *udata);
int u4_ib_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr);
int u4_ib_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata);

/* ib_mr.c */
u32 u4_ib_remote_access(int flags);
struct ib_mr *u4_ib_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 len,
				u64 iova, int access,
#ifdef U4_IB_DMAH
				struct ib_dmah *dmah,
#endif
				struct ib_udata *udata);
struct ib_mr *u4_ib_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 len,
				       u64 iova, int fd, int access,
#ifdef U4_IB_DMAH
				       struct ib_dmah *dmah,
#endif
				       struct uverbs_attr_bundle *attrs);
struct ib_mr *u4_ib_get_dma_mr(struct ib_pd *ibpd, int access);
int u4_ib_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata);

/* ib_netdev.c */
struct net_device *u4_ib_netdev_add(struct device *parent);
void u4_ib_netdev_remove(struct net_device *ndev);
void u4_ib_netdev_up(struct net_device *ndev);
void u4_ib_netdev_carrier(struct net_device *ndev, bool on);

/* ib_port.c */
int u4_ib_query_device(struct ib_device *ibdev, struct ib_device_attr *attr,
		       struct ib_udata *udata);
void u4_ib_fw_str(struct ib_device *ibdev, char *text);
int u4_ib_query_port(struct ib_device *ibdev, u32 port,
		     struct ib_port_attr *attr);
int u4_ib_port_immutable(struct ib_device *ibdev, u32 port,
			 struct ib_port_immutable *immutable);
enum rdma_link_layer u4_ib_link_layer(struct ib_device *ibdev, u32 port);
int u4_ib_query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey);
void u4_ib_port_watch(struct u4_ib *dev);
void u4_ib_port_unwatch(struct u4_ib *dev);

/* ib_stats.c */
struct rdma_hw_stats *u4_ib_alloc_stats(struct ib_device *ibdev, u32 port);
int u4_ib_get_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats,
		    u32 port, int index);

#endif /* USB4_IB_H */
