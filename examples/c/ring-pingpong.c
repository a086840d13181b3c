/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Ping-pong over the ring API, in C.
 *
 *	ring-pingpong                        waits for a ping-pong, and prints where
 *	ring-pingpong ADDRESS [COUNT [SIZE]] plays it with whoever printed that
 *
 * USB4_DEVICE names the device on both sides: /dev/usb4ring if unset,
 * soft:NAME for the software cable between processes of one machine.
 *
 *	cc -O2 ring-pingpong.c $(pkg-config --cflags --libs usb4ring) -o ring-pingpong
 */
#include <usb4ring.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROOM	(1 << 20)

/* What one side works with. */
struct side {
	struct usb4ring_device *device;
	struct usb4ring_cq *cq;
	struct usb4ring_ep *ep;
	struct usb4ring_mr *mr;
	struct usb4ring_region region;	/* the message to send, then room for one */
};

static void require(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, usb4ring_error());
		exit(1);
	}
}

static void open_side(struct side *side)
{
	require(usb4ring_open(NULL, &side->device), "open the device");
	require(usb4ring_create_cq(side->device, 64, &side->cq), "create a completion queue");
	require(usb4ring_create_ep(side->device, NULL, side->cq, side->cq, &side->ep), "create an endpoint");
	require(usb4ring_alloc(side->device, 2 * ROOM, 0, &side->mr), "allocate memory");
	usb4ring_get_region(side->mr, &side->region);
}

static void close_side(struct side *side)
{
	usb4ring_destroy_ep(side->ep);
	usb4ring_deregister(side->mr);
	usb4ring_destroy_cq(side->cq);
	usb4ring_close(side->device);
}

static unsigned char *outgoing(struct side *side)
{
	return side->region.start;
}

static unsigned char *incoming(struct side *side)
{
	return outgoing(side) + ROOM;
}

/* Posts room for the next message. */
static void expect(struct side *side)
{
	require(usb4ring_post_recv(side->ep, 0, incoming(side), side->region.local_key, ROOM), "post a receive");
	require(usb4ring_submit(side->ep), "submit");
}

/* With `flags`: USB4RING_UNSIGNALED for one whose arrival is not to be heard of. */
static void send_to(struct side *side, uint32_t handle, uint32_t size, uint64_t last, uint8_t flags)
{
	struct usb4ring_request request = {
		.op = USB4RING_SEND,
		.flags = USB4RING_IMM | flags,
		.handle = handle,
		.addr = outgoing(side),
		.local_key = side->region.local_key,
		.len = size,
		.imm = last,
	};

	require(usb4ring_post(side->ep, &request), "post a send");
	require(usb4ring_submit(side->ep), "submit");
}

/* Waits for a message, or for the arrival of one of ours. */
static struct usb4ring_completion next(struct side *side)
{
	struct usb4ring_completion done;

	while (usb4ring_poll(side->cq, &done, 1) == 0) {
		if (!usb4ring_progress(side->device))
			require(usb4ring_check(side->device), "wait for a message");
	}
	if (done.status != USB4RING_OK) {
		fprintf(stderr, "the peer is gone, or does not want us: status %d (USB4RING_GONE is %d, LINK_DOWN %d)\n",
			done.status, USB4RING_GONE, USB4RING_LINK_DOWN);
		exit(1);
	}
	return done;
}

static int serve(void)
{
	struct side side;
	struct usb4ring_addr own, peer;
	struct usb4ring_completion done;
	uint32_t handle = 0;
	int known = 0;

	open_side(&side);
	usb4ring_get_addr(side.ep, &own);
	printf("%016" PRIx64 "%016" PRIx64 "/%" PRIu32 ".%08" PRIx32 "\n", own.node.high, own.node.low, own.ep,
	       own.incarnation);
	fflush(stdout);
	do {
		expect(&side);
		/* The first may be long in coming: sleep. */
		if (!known)
			require(usb4ring_wait(side.cq, USB4RING_FOREVER), "wait for a peer");
		done = next(&side);
		if (!known) {
			require(usb4ring_source(side.ep, done.source, &peer), "ask who it is");
			require(usb4ring_open_handle(side.ep, &peer, 1, &handle), "answer the peer");
			known = 1;
		}
		memcpy(outgoing(&side), incoming(&side), done.len);
		/* What has not arrived when the endpoint closes never does: the last one is waited for. */
		send_to(&side, handle, done.len, 0, done.value ? 0 : USB4RING_UNSIGNALED);
	} while (!done.value);
	next(&side);
	close_side(&side);
	return 0;
}

static int play(const char *address, unsigned long count, uint32_t size)
{
	struct side side;
	struct usb4ring_addr peer;
	struct timespec from, to;
	unsigned long i;
	uint32_t handle, at;
	double us;

	if (sscanf(address, "%16" SCNx64 "%16" SCNx64 "/%" SCNu32 ".%" SCNx32, &peer.node.high, &peer.node.low, &peer.ep,
		   &peer.incarnation) != 4 || count == 0 || size > ROOM) {
		fprintf(stderr, "usage: ring-pingpong [ADDRESS [COUNT [SIZE]]]; a size is at most %d\n", ROOM);
		return 2;
	}
	open_side(&side);
	require(usb4ring_open_handle(side.ep, &peer, 1, &handle), "reach the peer");
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (i = 0; i < count; i++) {
		for (at = 0; at < size && at < 8; at++)
			outgoing(&side)[at] = (unsigned char)(i >> (8 * at));
		expect(&side);
		send_to(&side, handle, size, i + 1 == count, USB4RING_UNSIGNALED);
		if (next(&side).len != size || memcmp(incoming(&side), outgoing(&side), size) != 0) {
			fprintf(stderr, "message %lu came back changed\n", i);
			return 1;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	us = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3;
	printf("%lu times %u bytes there and back, all as sent: %.2f us one way\n", count, size, us / (double)count / 2);
	close_side(&side);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 1)
		return serve();
	return play(argv[1], argc > 2 ? strtoul(argv[2], NULL, 10) : 10000,
		    argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 64);
}
