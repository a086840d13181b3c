/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The toy's own interface, to which the tables of all versions lead. */
#ifndef TOY_H
#define TOY_H

#include <stdbool.h>

#include "../net_abi.h"

int toy_init(void **ctx, logger_t log);
int toy_finalize(void *ctx);
int toy_listen(int dev, void *handle, void **listen_comm);
int toy_connect(int dev, void *handle, void **send_comm);
int toy_accept(void *listen_comm, void **recv_comm);
int toy_reg(void *comm, void *data, size_t size, void **mhandle);
int toy_dereg(void *comm, void *mhandle);
int toy_isend(void *comm, void *data, size_t size, int tag, void **request);
int toy_irecv(void *comm, void *data, size_t size, int tag, void **request);
int toy_test(void *request, int *done, int *size);
int toy_close(void *comm);

#endif
