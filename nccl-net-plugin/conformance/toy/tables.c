/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The toy's tables, v6 to v12. */
#include <stdlib.h>
#include <string.h>

#include "toy.h"

static bool wrong(void)
{
	const char *all = getenv("TOY_BREAK");

	return all && !strcmp(all, "props");
}

static int devices(int *count)
{
	*count = 1;
	return SUCCESS;
}

#define COMMON                                                                                                \
	.name = "toy", .pci_path = NULL, .guid = 1, .ptr_support = POINTER_HOST, .speed = 1000, .port = 1,    \
	.latency = 1, .max_comms = 65536, .max_recvs = 1
#define LARGE .members = { 1, { 0 } }, .max_p2p_bytes = 1ull << 40, .max_coll_bytes = 1ull << 40

#define PROPERTIES(version, type, ...)                                                                        \
	static int properties_v##version(int dev, void *out)                                                  \
	{                                                                                                     \
		struct type props;                                                                            \
                                                                                                              \
		if (dev)                                                                                      \
			return INVALID_ARGUMENT;                                                              \
		memset(&props, 0, sizeof(props));                                                             \
		props = (struct type){ __VA_ARGS__ };                                                         \
		memset(out, 0, sizeof(props));                                                                \
		memcpy(out, &props, sizeof(props) - (wrong() ? 8 : 0));                                       \
		return SUCCESS;                                                                               \
	}

PROPERTIES(6, props_v6, COMMON)
PROPERTIES(7, props_v7, COMMON)
PROPERTIES(8, props_v8, COMMON)
PROPERTIES(9, props_v9, COMMON, LARGE)
PROPERTIES(11, props_v11, { COMMON, LARGE }, 1)
PROPERTIES(12, props_v12, COMMON, LARGE, .max_multi_request_size = 1, .rail_id = -1, .plane_id = -1)

static int init_v6(logger_t log)
{
	return toy_init(NULL, log);
}

static int init_v10(logger_t log, profiler_t profiler)
{
	(void)profiler;
	return toy_init(NULL, log);
}

static int init_v11(void **ctx, uint64_t comm_id, struct config *config, logger_t log, profiler_t profiler)
{
	(void)comm_id, (void)config, (void)profiler;
	return toy_init(ctx, log);
}

static int listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
	return toy_listen(dev, handle, listen_comm);
}

static int connect_v7(int dev, void *handle, void **send_comm, void **device_handle)
{
	(void)device_handle;
	return toy_connect(dev, handle, send_comm);
}

static int connect_v10(int dev, struct config *config, void *handle, void **send_comm, void **device_handle)
{
	(void)config, (void)device_handle;
	return toy_connect(dev, handle, send_comm);
}

static int connect_v11(void *ctx, int dev, void *handle, void **send_comm, void **device_handle)
{
	(void)ctx, (void)device_handle;
	return toy_connect(dev, handle, send_comm);
}

static int accept_v7(void *listen_comm, void **recv_comm, void **device_handle)
{
	(void)device_handle;
	return toy_accept(listen_comm, recv_comm);
}

static int reg_v6(void *comm, void *data, int size, int type, void **mhandle)
{
	(void)type;
	return size < 0 ? INVALID_ARGUMENT : toy_reg(comm, data, size, mhandle);
}

static int reg_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
	(void)type;
	return toy_reg(comm, data, size, mhandle);
}

static int isend_v6(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
	(void)mhandle;
	return toy_isend(comm, data, size, tag, request);
}

#ifndef TOY_NO_V9
static int isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
	(void)mhandle;
	return toy_isend(comm, data, size, tag, request);
}
#endif

static int isend_v10(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request)
{
	(void)mhandle, (void)phandle;
	return toy_isend(comm, data, size, tag, request);
}

static int irecv_v6(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
	(void)n, (void)mhandles;
	return toy_irecv(comm, data[0], sizes[0], tags[0], request);
}

#ifndef TOY_NO_V9
static int irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
	(void)n, (void)mhandles;
	return toy_irecv(comm, data[0], sizes[0], tags[0], request);
}
#endif

static int irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
		     void **request)
{
	(void)n, (void)mhandles, (void)phandles;
	return toy_irecv(comm, data[0], sizes[0], tags[0], request);
}

static int iflush(void)
{
	return INTERNAL_ERROR;
}

/* Name, init, devices, getProperties, listen, connect, accept, regMr, -, deregMr, isend, irecv, iflush, test, closes. */
#define TABLE(version, slots, init, props, listen, connect, accept, reg, isend, irecv, ...)                   \
	extern void *const ncclNetPlugin_v##version[slots];                                                   \
	void *const ncclNetPlugin_v##version[slots] = {                                                       \
		"toy",	init,	  devices, properties_v##props, listen,	   connect,   accept,	 reg, NULL,  \
		toy_dereg, isend, irecv,   iflush,		toy_test, toy_close, toy_close, toy_close,   \
		__VA_ARGS__                                                                                   \
	};

TABLE(6, 17, init_v6, 6, toy_listen, toy_connect, toy_accept, reg_v6, isend_v6, irecv_v6)
TABLE(7, 19, init_v6, 7, toy_listen, connect_v7, accept_v7, reg_v6, isend_v6, irecv_v6)
TABLE(8, 19, init_v6, 8, toy_listen, connect_v7, accept_v7, reg_v8, isend_v6, irecv_v6)
#ifndef TOY_NO_V9
TABLE(9, 20, init_v6, 9, toy_listen, connect_v7, accept_v7, reg_v8, isend_v9, irecv_v9)
#endif
TABLE(10, 20, init_v10, 9, toy_listen, connect_v10, accept_v7, reg_v8, isend_v10, irecv_v10)
TABLE(11, 22, init_v11, 11, listen_v11, connect_v11, accept_v7, reg_v8, isend_v10, irecv_v10, NULL, NULL, NULL,
      toy_finalize)
TABLE(12, 22, init_v11, 12, listen_v11, connect_v11, accept_v7, reg_v8, isend_v10, irecv_v10, NULL, NULL, NULL,
      toy_finalize)
