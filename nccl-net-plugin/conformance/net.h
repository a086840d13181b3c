/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A plugin, loaded as NCCL does, behind calls that are the same for all versions. Results are enum result. */
#ifndef NET_H
#define NET_H

#include <stdbool.h>

#include "net_abi.h"

struct net {
	void *library;
	int version;
	void *const *table;
	void *ctx; /* of the last init */
	int dev;
};

/* Bytes of the table and of its properties. */
size_t net_table_bytes(int version);
size_t net_props_bytes(int version);

/* dlopen as NCCL: the name as given, then libnccl-net-NAME.so. Fails the rule if there is none. */
void *net_library(void);
/* The table of one version, if the plugin has it. */
bool net_find(struct net *net, void *library, int version);
/* The newest version the driver is told to use, loaded; fails the rule if there is none. */
void net_load(struct net *net);
/* And initialised; fails the rule if that fails. */
void net_open(struct net *net);
void net_close(struct net *net);

int net_init(struct net *net);
int net_finalize(struct net *net, void *ctx);
int net_devices(struct net *net, int *count);
int net_properties(struct net *net, int dev, void *props);
int net_listen(struct net *net, void *handle, void **listen_comm);
int net_connect(struct net *net, void *handle, void **send_comm);
int net_accept(struct net *net, void *listen_comm, void **recv_comm);
int net_reg(struct net *net, void *comm, void *data, size_t size, void **mhandle);
int net_dereg(struct net *net, void *comm, void *mhandle);
int net_isend(struct net *net, void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
int net_irecv(struct net *net, void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
int net_test(struct net *net, void *request, int *done, int *size);
int net_close_send(struct net *net, void *comm);
int net_close_recv(struct net *net, void *comm);
int net_close_listen(struct net *net, void *comm);

/* Fields of the properties that the driver looks at, of any version; -1 where a version has none. */
struct facts {
	const char *name, *pci_path;
	uint64_t guid;
	int ptr_support, speed, max_comms, max_recvs, device_type, members, member, max_multi, rail, plane;
	int64_t max_p2p_bytes, max_coll_bytes;
	float latency;
};
void net_facts(int version, const void *props, struct facts *facts);

#endif
