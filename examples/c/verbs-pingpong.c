/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Ping-pong over libibverbs, in C: a reliable connection, each message looked
 * at by who gets it. Nothing here is special to USB4.
 *
 *	verbs-pingpong                          waits for a ping-pong
 *	verbs-pingpong HOST [COUNT [SIZE]]      plays it with whoever waits at HOST
 *
 * HOST is an IPv4 address, or a name that has one. IBV_DEVICE names the device
 * on both sides (usb4_0 if unset), IBV_GID the index of its GID (0). Both sides
 * first tell each other by TCP, port 18516, how their queue pairs are reached:
 * any network between the two will do.
 *
 *	cc -O2 verbs-pingpong.c -libverbs -o verbs-pingpong
 */
#include <infiniband/verbs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT	"18516"
#define ROOM	(1 << 20)

/* How a queue pair is reached, and what is to be played; in network order. */
struct card {
	uint8_t gid[16];
	uint32_t qpn;
	uint32_t count;
	uint32_t size;
};

/* What one side works with. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned char *out;	/* the message to send */
	unsigned char *in;	/* room for one */
	int gid_index;
	struct card card;
};

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* For calls that return an errno value. */
static void require(int error, const char *what)
{
	if (error) {
		errno = error;
		fail(what);
	}
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list;
	int i, count = 0, found = 0;

	list = ibv_get_device_list(&count);
	if (!list)
		fprintf(stderr, "list the devices: %s\n", strerror(errno));
	for (i = 0; i < count && !found; i++) {
		if (strcmp(ibv_get_device_name(list[i]), name))
			continue;
		found = 1;
		context = ibv_open_device(list[i]);
		if (!context)
			fail("open the device: may /dev/infiniband/uverbs* be opened?");
	}
	if (!found) {
		fprintf(stderr, "no device %s: modprobe usb4_rdma_ib && modprobe ib_uverbs; "
			"a container needs --device /dev/infiniband, too\n", name);
		exit(1);
	}
	ibv_free_device_list(list);
	return context;
}

/* A place of the port's table that has no GID is read as zeros. */
static void find_gid(struct side *side)
{
	static const uint8_t none[16];
	union ibv_gid gid;

	if (ibv_query_gid(side->context, 1, side->gid_index, &gid) ||
	    !memcmp(gid.raw, none, sizeof(none))) {
		fprintf(stderr, "there is no GID %d: see ibv_devinfo -v\n", side->gid_index);
		exit(1);
	}
	memcpy(side->card.gid, gid.raw, sizeof(side->card.gid));
}

static void open_side(struct side *side)
{
	const char *name = getenv("IBV_DEVICE"), *index = getenv("IBV_GID");
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
	};

	side->context = open_device(name ? name : "usb4_0");
	side->gid_index = index ? atoi(index) : 0;
	find_gid(side);
	side->pd = ibv_alloc_pd(side->context);
	side->out = calloc(2, ROOM);
	if (!side->pd || !side->out)
		fail("allocate");
	side->in = side->out + ROOM;
	side->mr = ibv_reg_mr(side->pd, side->out, 2 * ROOM, IBV_ACCESS_LOCAL_WRITE);
	if (!side->mr)
		fail("register memory");
	side->cq = ibv_create_cq(side->context, 8, NULL, NULL, 0);
	if (!side->cq)
		fail("create a completion queue");
	init.send_cq = init.recv_cq = side->cq;
	side->qp = ibv_create_qp(side->pd, &init);
	if (!side->qp)
		fail("create a queue pair");
	side->card.qpn = htonl(side->qp->qp_num);
	require(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						       IBV_QP_ACCESS_FLAGS),
		"initialise the queue pair");
}

static void close_side(struct side *side)
{
	ibv_destroy_qp(side->qp);
	ibv_destroy_cq(side->cq);
	ibv_dereg_mr(side->mr);
	ibv_dealloc_pd(side->pd);
	ibv_close_device(side->context);
	free(side->out);
}

static void connect_to(struct side *side, const struct card *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = ntohl(peer->qpn),
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,		/* 0.64 ms */
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .sgid_index = side->gid_index, .hop_limit = 64 },
		},
	};

	memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof(peer->gid));
	require(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
		"connect the queue pair");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;			/* 67 ms, each of the times that follow */
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;			/* for ever */
	attr.max_rd_atomic = 1;
	require(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						       IBV_QP_MAX_QP_RD_ATOMIC),
		"let the queue pair send");
}

static void post_receive(struct side *side)
{
	struct ibv_sge sge = { .addr = (uintptr_t)side->in, .length = ROOM, .lkey = side->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	require(ibv_post_recv(side->qp, &wr, &bad), "post a receive");
}

static void post_send(struct side *side, uint32_t size)
{
	struct ibv_sge sge = { .addr = (uintptr_t)side->out, .length = size, .lkey = side->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	require(ibv_post_send(side->qp, &wr, &bad), "post a send");
}

/* Waits until the message on its way out is done (sent), or one has come. */
static void wait_for(struct side *side, int *sent, int *received, uint32_t size)
{
	struct ibv_wc wc;
	int found;

	do {
		found = ibv_poll_cq(side->cq, 1, &wc);
	} while (!found);
	if (found < 0)
		fail("poll the completion queue");
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "a request ended with: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	if (!(wc.opcode & IBV_WC_RECV)) {
		*sent += 1;
	} else if (wc.byte_len != size) {
		fprintf(stderr, "%u bytes came, not %u\n", wc.byte_len, size);
		exit(1);
	} else {
		*received += 1;
	}
}

static void check(const struct side *side, uint32_t size, unsigned char value)
{
	uint32_t i;

	for (i = 0; i < size; i++) {
		if (side->in[i] != (unsigned char)(value + i)) {
			fprintf(stderr, "byte %u of message %u is wrong\n", i, value);
			exit(1);
		}
	}
}

/* One message each way for each of count; the client begins. */
static void play(struct side *side, uint32_t count, uint32_t size, int first)
{
	int sent = 0, received = 0;
	uint32_t i, byte;

	for (i = 0; i < count; i++) {
		if (!first) {
			while (received <= (int)i)
				wait_for(side, &sent, &received, size);
			check(side, size, (unsigned char)i);
			if (i + 1 < count)
				post_receive(side);
		}
		for (byte = 0; byte < size; byte++)
			side->out[byte] = (unsigned char)(i + byte);
		post_send(side, size);
		while (sent <= (int)i || (first && received <= (int)i))
			wait_for(side, &sent, &received, size);
		if (first) {
			check(side, size, (unsigned char)i);
			if (i + 1 < count)
				post_receive(side);
		}
	}
}

/* A connection to HOST, or from whoever comes. */
static int meet(const char *host)
{
	struct addrinfo hints = {
		.ai_family = AF_INET,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = host ? 0 : AI_PASSIVE,
	};
	struct addrinfo *found;
	int error, listener, one = 1, fd;

	error = getaddrinfo(host, PORT, &hints, &found);
	if (error) {
		fprintf(stderr, "%s: %s\n", host ? host : "listen", gai_strerror(error));
		exit(1);
	}
	fd = socket(found->ai_family, SOCK_STREAM, 0);
	if (fd < 0)
		fail("socket");
	if (host) {
		if (connect(fd, found->ai_addr, found->ai_addrlen))
			fail(host);
	} else {
		listener = fd;
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(listener, found->ai_addr, found->ai_addrlen) || listen(listener, 1))
			fail("listen at port " PORT);
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			fail("accept");
		close(listener);
	}
	freeaddrinfo(found);
	return fd;
}

static void exchange(int fd, const void *mine, void *theirs, size_t size)
{
	if (send(fd, mine, size, MSG_NOSIGNAL) != (ssize_t)size ||
	    recv(fd, theirs, size, MSG_WAITALL) != (ssize_t)size)
		fail("talk to the peer");
}

int main(int argc, char **argv)
{
	const char *host = argc > 1 ? argv[1] : NULL;
	unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000;
	unsigned long size = argc > 3 ? strtoul(argv[3], NULL, 10) : 64;
	struct timespec begin, end;
	struct side side = { 0 };
	struct card peer;
	char ready = 0;
	double us;
	int fd;

	if (!count || count > 1000000 || size > ROOM) {
		fprintf(stderr, "at most 1000000 messages of at most %d bytes, and at least one\n", ROOM);
		return 1;
	}
	open_side(&side);
	post_receive(&side);
	fd = meet(host);
	side.card.count = htonl(count);
	side.card.size = htonl(size);
	exchange(fd, &side.card, &peer, sizeof(peer));
	connect_to(&side, &peer);
	if (!host) {
		/* The client says what is played. */
		count = ntohl(peer.count);
		size = ntohl(peer.size);
		if (!count || count > 1000000 || size > ROOM) {
			fprintf(stderr, "the client asks for %lu messages of %lu bytes\n", count, size);
			return 1;
		}
	}
	exchange(fd, &ready, &ready, 1);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	play(&side, count, size, !!host);
	clock_gettime(CLOCK_MONOTONIC, &end);
	/* Who leaves first would take what the other still waits for along. */
	exchange(fd, &ready, &ready, 1);
	close(fd);
	close_side(&side);
	us = (end.tv_sec - begin.tv_sec) * 1e6 + (end.tv_nsec - begin.tv_nsec) / 1e3;
	printf("%lu messages of %lu bytes each way, every byte right: %.2f us each\n", count, size,
	       us / (2.0 * count));
	return 0;
}
