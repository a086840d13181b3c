/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "net.h"

size_t net_table_bytes(int version)
{
	if (version >= 11)
		return 22 * sizeof(void *);
	if (version >= 9)
		return 20 * sizeof(void *);
	return (version >= 7 ? 19 : 17) * sizeof(void *);
}

size_t net_props_bytes(int version)
{
	switch (version) {
	case 6:
		return sizeof(struct props_v6);
	case 7:
		return sizeof(struct props_v7);
	case 8:
		return sizeof(struct props_v8);
	case 9:
	case 10:
		return sizeof(struct props_v9);
	case 11:
		return sizeof(struct props_v11);
	default:
		return sizeof(struct props_v12);
	}
}

void *net_library(void)
{
	const char *name = options.plugin;
	char file[PATH_MAX];
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	size_t length = strlen(name);
	bool is_file = strchr(name, '/') ||
		       (!strncmp(name, "lib", 3) && length > 3 && !strcmp(name + length - 3, ".so"));

	if (!library && !is_file) {
		snprintf(file, sizeof(file), "libnccl-net-%s.so", name);
		library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	}
	if (!library)
		fail("cannot load the plugin: %s", dlerror());
	return library;
}

bool net_find(struct net *net, void *library, int version)
{
	char symbol[32];

	snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
	memset(net, 0, sizeof(*net));
	net->library = library;
	net->version = version;
	net->table = dlsym(library, symbol);
	return net->table != NULL;
}

void net_load(struct net *net)
{
	void *library = net_library();

	for (int version = options.version; version >= OLDEST; version--)
		if (net_find(net, library, version))
			return;
	fail("the plugin has no ncclNetPlugin_v%d or older", options.version);
}

void net_open(struct net *net)
{
	int result, count = 0;

	net_load(net);
	result = net_init(net);
	require(result == SUCCESS, "init gave %d: %s", result, last_warning());
	result = net_devices(net, &count);
	require(result == SUCCESS && count > 0, "devices gave %d and %d devices", result, count);
}

void net_close(struct net *net)
{
	int result = net_finalize(net, net->ctx);

	require(result == SUCCESS, "finalize gave %d", result);
}

static int no_profiler(void **event, int type, void *plugin_handle, int64_t plugin_id, void *data)
{
	(void)event, (void)type, (void)plugin_handle, (void)plugin_id, (void)data;
	return SUCCESS;
}

int net_init(struct net *net)
{
	static uint64_t comm_id = 0x5eed;
	struct config config = { .traffic_class = -1 };
	void *init = net->table[INIT];

	if (net->version >= 11)
		return ((init_v11_t)init)(&net->ctx, ++comm_id, &config, record, no_profiler);
	if (net->version == 10)
		return ((init_v10_t)init)(record, no_profiler);
	return ((init_v6_t)init)(record);
}

int net_finalize(struct net *net, void *ctx)
{
	return net->version >= 11 ? ((close_t)net->table[FINALIZE])(ctx) : SUCCESS;
}

int net_devices(struct net *net, int *count)
{
	return ((devices_t)net->table[DEVICES])(count);
}

int net_properties(struct net *net, int dev, void *props)
{
	return ((get_properties_t)net->table[GET_PROPERTIES])(dev, props);
}

int net_listen(struct net *net, void *handle, void **listen_comm)
{
	void *listen = net->table[LISTEN];

	if (net->version >= 11)
		return ((listen_v11_t)listen)(net->ctx, net->dev, handle, listen_comm);
	return ((listen_v6_t)listen)(net->dev, handle, listen_comm);
}

int net_connect(struct net *net, void *handle, void **send_comm)
{
	struct config config = { .traffic_class = -1 };
	void *connect = net->table[CONNECT], *device_handle = NULL;

	if (net->version >= 11)
		return ((connect_v11_t)connect)(net->ctx, net->dev, handle, send_comm, &device_handle);
	if (net->version == 10)
		return ((connect_v10_t)connect)(net->dev, &config, handle, send_comm, &device_handle);
	if (net->version >= 7)
		return ((connect_v7_t)connect)(net->dev, handle, send_comm, &device_handle);
	return ((connect_v6_t)connect)(net->dev, handle, send_comm);
}

int net_accept(struct net *net, void *listen_comm, void **recv_comm)
{
	void *accept = net->table[ACCEPT], *device_handle = NULL;

	if (net->version >= 7)
		return ((accept_v7_t)accept)(listen_comm, recv_comm, &device_handle);
	return ((accept_v6_t)accept)(listen_comm, recv_comm);
}

int net_reg(struct net *net, void *comm, void *data, size_t size, void **mhandle)
{
	void *reg = net->table[REG_MR];

	if (net->version >= 8)
		return ((reg_mr_v8_t)reg)(comm, data, size, POINTER_HOST, mhandle);
	return ((reg_mr_v6_t)reg)(comm, data, (int)size, POINTER_HOST, mhandle);
}

int net_dereg(struct net *net, void *comm, void *mhandle)
{
	return ((dereg_mr_t)net->table[DEREG_MR])(comm, mhandle);
}

int net_isend(struct net *net, void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
	void *isend = net->table[ISEND];

	if (net->version >= 10)
		return ((isend_v10_t)isend)(comm, data, size, tag, mhandle, NULL, request);
	if (net->version == 9)
		return ((isend_v9_t)isend)(comm, data, size, tag, mhandle, request);
	return ((isend_v6_t)isend)(comm, data, (int)size, tag, mhandle, request);
}

int net_irecv(struct net *net, void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
	void *irecv = net->table[IRECV];
	int narrow = (int)size;

	if (net->version >= 10)
		return ((irecv_v10_t)irecv)(comm, 1, &data, &size, &tag, &mhandle, NULL, request);
	if (net->version == 9)
		return ((irecv_v9_t)irecv)(comm, 1, &data, &size, &tag, &mhandle, request);
	return ((irecv_v6_t)irecv)(comm, 1, &data, &narrow, &tag, &mhandle, request);
}

int net_test(struct net *net, void *request, int *done, int *size)
{
	return ((test_t)net->table[TEST])(request, done, size);
}

int net_close_send(struct net *net, void *comm)
{
	return ((close_t)net->table[CLOSE_SEND])(comm);
}

int net_close_recv(struct net *net, void *comm)
{
	return ((close_t)net->table[CLOSE_RECV])(comm);
}

int net_close_listen(struct net *net, void *comm)
{
	return ((close_t)net->table[CLOSE_LISTEN])(comm);
}

/* What versions have under the same names. */
#define COMMON(p)                                                                                             \
	do {                                                                                                  \
		facts->name = (p)->name;                                                                 \
		facts->pci_path = (p)->pci_path;                                                         \
		facts->guid = (p)->guid;                                                                 \
		facts->ptr_support = (p)->ptr_support;                                                   \
		facts->speed = (p)->speed;                                                                    \
		facts->latency = (p)->latency;                                                                \
		facts->max_comms = (p)->max_comms;                                                            \
		facts->max_recvs = (p)->max_recvs;                                                            \
	} while (0)
#define LARGE(p)                                                                                              \
	do {                                                                                                  \
		facts->device_type = (p)->device_type;                                                        \
		facts->members = (p)->members.count;                                                          \
		facts->member = (p)->members.devices[0];                                                      \
		facts->max_p2p_bytes = (int64_t)(p)->max_p2p_bytes;                                           \
		facts->max_coll_bytes = (int64_t)(p)->max_coll_bytes;                                         \
	} while (0)

void net_facts(int version, const void *props, struct facts *facts)
{
	*facts = (struct facts){ .device_type = -1, .members = -1, .max_multi = -1, .rail = -1, .plane = -1,
				 .max_p2p_bytes = -1, .max_coll_bytes = -1 };
	if (version == 6) {
		COMMON((const struct props_v6 *)props);
	} else if (version == 7) {
		COMMON((const struct props_v7 *)props);
		facts->device_type = ((const struct props_v7 *)props)->device_type;
	} else if (version == 8) {
		COMMON((const struct props_v8 *)props);
		facts->device_type = ((const struct props_v8 *)props)->device_type;
	} else if (version < 12) {
		COMMON((const struct props_v9 *)props);
		LARGE((const struct props_v9 *)props);
		if (version == 11)
			facts->max_multi = ((const struct props_v11 *)props)->max_multi_request_size;
	} else {
		const struct props_v12 *v12 = props;

		COMMON(v12);
		LARGE(v12);
		facts->max_multi = v12->max_multi_request_size;
		facts->rail = v12->rail_id;
		facts->plane = v12->plane_id;
	}
}
