/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The binary interface between NCCL and a network plugin, versions 6 to 12, as this driver needs it. Written from a
 * description of the layouts; LP64 only.
 */
#ifndef NET_ABI_H
#define NET_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { OLDEST = 6, NEWEST = 12 };

enum result {
	SUCCESS = 0,
	SYSTEM_ERROR = 2,
	INTERNAL_ERROR = 3,
	INVALID_ARGUMENT = 4,
	INVALID_USAGE = 5,
	REMOTE_ERROR = 6,
};

enum { LEVEL_WARN = 2 };
enum { POINTER_HOST = 1 };
enum { HANDLE_BYTES = 128 };

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef int (*profiler_t)(void **event, int type, void *plugin_handle, int64_t plugin_id, void *data);

struct config {
	int traffic_class;
};

/* What getProperties fills, by version. The names are those of the table in NCCL's own documentation. */
#define PROPS_HEAD       \
	char *name;      \
	char *pci_path;  \
	uint64_t guid;   \
	int ptr_support

struct props_v6 {
	PROPS_HEAD;
	int speed, port;
	float latency;
	int max_comms, max_recvs;
};

struct props_v7 {
	PROPS_HEAD;
	int speed, port;
	float latency;
	int max_comms, max_recvs, device_type, device_version;
};

struct props_v8 {
	PROPS_HEAD;
	int reg_is_global, speed, port;
	float latency;
	int max_comms, max_recvs, device_type, device_version;
};

struct virtual_v9 {
	int count, devices[4];
};

struct props_v9 {
	PROPS_HEAD;
	int reg_is_global, force_flush, speed, port;
	float latency;
	int max_comms, max_recvs, device_type, device_version;
	struct virtual_v9 members;
	size_t max_p2p_bytes, max_coll_bytes;
};

struct props_v11 {
	struct props_v9 v9;
	int max_multi_request_size;
};

struct virtual_v12 {
	int count, devices[8];
};

struct props_v12 {
	PROPS_HEAD;
	int reg_is_global, force_flush, speed, port;
	float latency;
	int max_comms, max_recvs, device_type, device_version;
	struct virtual_v12 members;
	size_t max_p2p_bytes, max_coll_bytes;
	int max_multi_request_size;
	int16_t rail_id, plane_id;
};

_Static_assert(sizeof(struct props_v6) == 48 && offsetof(struct props_v6, max_recvs) == 44 && offsetof(struct props_v6, ptr_support) == 24, "v6");
_Static_assert(sizeof(struct props_v7) == 56 && offsetof(struct props_v7, device_version) == 52, "v7");
_Static_assert(sizeof(struct props_v8) == 64 && offsetof(struct props_v8, device_version) == 56, "v8");
_Static_assert(sizeof(struct props_v9) == 104 && offsetof(struct props_v9, max_p2p_bytes) == 88, "v9, v10");
_Static_assert(sizeof(struct props_v11) == 112, "v11");
_Static_assert(sizeof(struct props_v12) == 128 && offsetof(struct props_v12, plane_id) == 126, "v12");

/* Members of the table by position: the same in all versions, later ones only longer. */
enum slot {
	NAME,
	INIT,
	DEVICES,
	GET_PROPERTIES,
	LISTEN,
	CONNECT,
	ACCEPT,
	REG_MR,
	REG_MR_DMA_BUF,
	DEREG_MR,
	ISEND,
	IRECV,
	IFLUSH,
	TEST,
	CLOSE_SEND,
	CLOSE_RECV,
	CLOSE_LISTEN,
	GET_DEVICE_MR, /* from v7 */
	IRECV_CONSUMED,
	MAKE_VDEVICE, /* from v9 */
	FINALIZE, /* from v11 */
	SET_NET_ATTR,
	SLOTS,
};

typedef int (*init_v6_t)(logger_t);
typedef int (*init_v10_t)(logger_t, profiler_t);
typedef int (*init_v11_t)(void **ctx, uint64_t comm_id, struct config *, logger_t, profiler_t);
typedef int (*devices_t)(int *count);
typedef int (*get_properties_t)(int dev, void *props);
typedef int (*listen_v6_t)(int dev, void *handle, void **listen_comm);
typedef int (*listen_v11_t)(void *ctx, int dev, void *handle, void **listen_comm);
typedef int (*connect_v6_t)(int dev, void *handle, void **send_comm);
typedef int (*connect_v7_t)(int dev, void *handle, void **send_comm, void **device_handle);
typedef int (*connect_v10_t)(int dev, struct config *, void *handle, void **send_comm, void **device_handle);
typedef int (*connect_v11_t)(void *ctx, int dev, void *handle, void **send_comm, void **device_handle);
typedef int (*accept_v6_t)(void *listen_comm, void **recv_comm);
typedef int (*accept_v7_t)(void *listen_comm, void **recv_comm, void **device_handle);
typedef int (*reg_mr_v6_t)(void *comm, void *data, int size, int type, void **mhandle);
typedef int (*reg_mr_v8_t)(void *comm, void *data, size_t size, int type, void **mhandle);
typedef int (*dereg_mr_t)(void *comm, void *mhandle);
typedef int (*isend_v6_t)(void *comm, void *data, int size, int tag, void *mhandle, void **request);
typedef int (*isend_v9_t)(void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
typedef int (*isend_v10_t)(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
typedef int (*irecv_v6_t)(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
typedef int (*irecv_v9_t)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request);
typedef int (*irecv_v10_t)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
			   void **request);
typedef int (*test_t)(void *request, int *done, int *sizes);
typedef int (*close_t)(void *comm);

#endif
