/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* R19 to R22, and what eighteen connections cost each other. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "harness.h"

enum { SENDER, RECEIVER };

/* Sends until the plugin puts one off, or `most` are taken; returns how many. */
static int send_all_it_takes(struct net *net, struct buffer *from, size_t size, void **requests, int most)
{
	int count = 0;

	for (int put_off = 0; put_off < 100 && count < most;) {
		void *request = NULL;
		int result = net_isend(net, from->comm, from->at, size, 0, from->mhandle, &request);

		require(result == SUCCESS, "isend with no receive posted gave %d: %s", result, last_warning());
		if (request)
			requests[count++] = request;
		else
			put_off++;
	}
	return count;
}

/* The receiver takes what was sent before. */
static void drain(struct side *side, struct net *net, struct pair *pair, struct buffer *buffer, void **requests, int count,
		  size_t size)
{
	if (side->rank == SENDER) {
		tell(side, RECEIVER, &count, sizeof(count));
		for (int i = 0; i < count; i++)
			finish(net, requests[i]);
		return;
	}
	(void)pair;
	hear(side, SENDER, &count, sizeof(count));
	for (int i = 0; i < count; i++)
		require(finish(net, recv_start(net, buffer, buffer->size, 0)) == (int)size, "message %d of %d is lost", i,
			count);
}

static void r19_no_blocking(struct side *side)
{
	static const size_t sizes[] = { 0, 64, 8192, 1 << 20 };
	struct net net;
	struct pair stuck[4], flowing;
	struct buffer buffers[4];
	void *requests[4][64];
	int counts[4] = { 0 };

	net_open(&net);
	pair_open(side, &net, !side->rank, &flowing);
	for (int i = 0; i < 4; i++) {
		pair_open(side, &net, !side->rank, &stuck[i]);
		buffers[i] = buffer_new(&net, side->rank == SENDER ? stuck[i].send : stuck[i].recv, 1 << 20);
		if (side->rank == SENDER)
			counts[i] = send_all_it_takes(&net, &buffers[i], sizes[i], requests[i], 64);
	}
	barrier(side);
	for (int i = 0; i < 200; i++)
		exchange(&net, &flowing, (size_t)1 << (i % 18), i);
	barrier(side);
	for (int i = 0; i < 4; i++)
		drain(side, &net, &stuck[i], &buffers[i], requests[i], counts[i], sizes[i]);
	barrier(side);
	net_close(&net);
}

static void r20_both_first(struct side *side)
{
	enum { COUNT = 48, SIZE = 1 << 20, AT_ONCE = 8 };
	struct net net;
	struct pair pair;
	void *sends[COUNT] = { NULL }, *recvs[COUNT] = { NULL };
	int sent = 0, received = 0, posted = 0, taken = 0;

	net_open(&net);
	pair_open(side, &net, !side->rank, &pair);
	struct buffer from = buffer_new(&net, pair.send, (size_t)AT_ONCE * SIZE);
	struct buffer into = buffer_new(&net, pair.recv, (size_t)AT_ONCE * SIZE);
	fill(from.at, (size_t)AT_ONCE * SIZE, side->rank);
	barrier(side);
	double until = now() + 0.2;
	struct wait wait = patience("both directions at once");
	while ((sent < COUNT || received < COUNT) && waiting(&wait)) {
		int size, result;

		if (taken < COUNT && taken - sent < AT_ONCE) {
			uint8_t *at = from.at + taken % AT_ONCE * (size_t)SIZE;

			require(net_isend(&net, pair.send, at, SIZE, 0, from.mhandle, &sends[taken]) == SUCCESS, "isend: %s",
				last_warning());
			taken += sends[taken] != NULL;
		}
		/* Receives only when both have tried to send for a while. */
		if (posted < COUNT && posted - received < AT_ONCE && now() > until) {
			uint8_t *at = into.at + posted % AT_ONCE * (size_t)SIZE;

			require(net_irecv(&net, pair.recv, at, SIZE, 0, into.mhandle, &recvs[posted]) == SUCCESS, "irecv: %s",
				last_warning());
			posted += recvs[posted] != NULL;
		}
		if (sent < taken) {
			sent += tested(&net, sends[sent], &size, &result);
			require(result == SUCCESS, "test of a send gave %d: %s", result, last_warning());
		}
		if (received < posted) {
			received += tested(&net, recvs[received], &size, &result);
			require(result == SUCCESS, "test of a receive gave %d: %s", result, last_warning());
		}
	}
	require(differs(into.at, (size_t)AT_ONCE * SIZE, !side->rank) < 0, "what came is wrong");
	barrier(side);
	pair_close(&net, &pair);
	net_close(&net);
}

static void r21_pointers(struct side *side)
{
	struct net net;
	struct pair pair;
	bool sender = side->rank == SENDER;

	net_open(&net);
	pair_open(side, &net, !side->rank, &pair);
	struct buffer buffer = buffer_new(&net, sender ? pair.send : pair.recv, 1 << 18);
	for (int i = 0; i < 64; i++) {
		uint8_t *at = buffer.at + (i * 37) % 4096 + 1;
		size_t size = 1 + (size_t)i * 1021;
		void *request = NULL;
		struct wait wait = patience("a message at an odd address");
		int done = 0;

		if (sender)
			fill(at, size, i);
		while (!request && waiting(&wait))
			require((sender ? net_isend(&net, pair.send, at, size, -1, buffer.mhandle, &request) :
					  net_irecv(&net, pair.recv, at, size, -1, buffer.mhandle, &request)) == SUCCESS,
				"message %d: %s", i, last_warning());
		while (!done && waiting(&wait))
			require(net_test(&net, request, &done, NULL) == SUCCESS, "test without sizes: %s", last_warning());
		require(sender || differs(at, size, i) < 0, "a message at an odd address is wrong");
	}
	barrier(side);
	pair_close(&net, &pair);
	net_close(&net);
	remark("phandles are NULL in every rule here, and n is 1, which is maxRecvs");
}

/* Registers, uses and gives back memory while a receive into other memory is posted. */
static void reg_while_live(struct side *side, struct net *net, struct pair *pair)
{
	bool sender = side->rank == SENDER;
	void *comm = sender ? pair->send : pair->recv;
	struct buffer live = buffer_new(net, comm, 65536);
	void *request = sender ? NULL : recv_start(net, &live, 65536, 0);

	for (int i = 0; i < 100; i++) {
		size_t size = i % 3 ? 240 : 1 + (size_t)i * 40000; /* an odd block, and large ones */
		uint8_t *at = malloc(size + 1);
		void *mhandle = NULL;

		require(at, "out of memory");
		require(net_reg(net, comm, at + 1, size, &mhandle) == SUCCESS, "regMr of %zu bytes with a request live: %s",
			size, last_warning());
		require(net_dereg(net, comm, mhandle) == SUCCESS, "deregMr with a request live");
		free(at);
	}
	barrier(side);
	if (sender) {
		fill(live.at, 65536, 22);
		request = send_start(net, &live, 65536, 0);
	}
	finish(net, request);
	require(sender || differs(live.at, 65536, 22) < 0, "a receive that was live meanwhile is wrong");
	buffer_free(net, &live);
}

/* As NCCL aborts: memory is given back and unmapped while requests on it live; then the comm is closed. */
static void dereg_live(struct side *side, struct net *net, bool stopped)
{
	enum { COUNT = 8, SIZE = 1 << 20 };
	struct pair pair;
	bool sender = side->rank == SENDER;
	void *mhandle = NULL, *requests[COUNT];
	uint8_t *at = mmap(NULL, COUNT * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	require(at != MAP_FAILED, "mmap");
	memset(at, sender ? 0x5a : 0xa5, COUNT * SIZE);
	pair_open(side, net, !side->rank, &pair);
	void *comm = sender ? pair.send : pair.recv;
	require(net_reg(net, comm, at, COUNT * SIZE, &mhandle) == SUCCESS, "regMr: %s", last_warning());
	int live = 0;
	if (sender == stopped) {
		/* This side gives its memory back with requests live; the other does what it would have done. */
		for (int i = 0; i < COUNT; i++) {
			void *request = NULL;
			int result = sender ? net_isend(net, comm, at + i * SIZE, SIZE, 0, mhandle, &request) :
					      net_irecv(net, comm, at + i * SIZE, SIZE, 0, mhandle, &request);

			require(result == SUCCESS, "request %d: %s", i, last_warning());
			if (request)
				requests[live++] = request;
		}
		barrier(side);
		pause_ms(1);
		double start = now();
		require(net_dereg(net, comm, mhandle) == SUCCESS, "deregMr with %d live requests", live);
		double took = now() - start;
		require(took < 0.5, "deregMr with live requests took %.0f ms", took * 1e3);
		static uint8_t before[COUNT * SIZE];
		memcpy(before, at, COUNT * SIZE);
		barrier(side);
		/* The other side goes on meanwhile, and this one drives what is left. */
		for (int k = 0; k < 100; k++) {
			int size, result;

			if (live)
				tested(net, requests[k % live], &size, &result);
			pause_ms(1);
		}
		require(!memcmp(before, at, COUNT * SIZE), "memory was written to after its deregMr");
		require(!munmap(at, COUNT * SIZE), "munmap");
	} else {
		barrier(side);
		barrier(side);
		for (int i = 0; i < COUNT * 50; i++) {
			void *request = NULL;
			int result = sender ? net_isend(net, comm, at, SIZE, 0, mhandle, &request) :
					      net_irecv(net, comm, at, SIZE, 0, mhandle, &request);
			int size;

			if (result == SUCCESS && request)
				tested(net, request, &size, &result);
			if (result != SUCCESS)
				break;
			pause_ms(i % 10 == 0);
		}
		require(net_dereg(net, comm, mhandle) == SUCCESS, "deregMr");
		munmap(at, COUNT * SIZE);
	}
	require(net_close_send(net, pair.send) == SUCCESS && net_close_recv(net, pair.recv) == SUCCESS,
		"close with live requests");
	barrier(side);
}

static void r22_memory(struct side *side)
{
	int rounds = options.full ? 50 : 6;
	struct net net;
	struct pair pair;

	net_open(&net);
	pair_open(side, &net, !side->rank, &pair);
	reg_while_live(side, &net, &pair);
	for (int i = 0; i < rounds; i++)
		dereg_live(side, &net, i % 2);
	exchange(&net, &pair, 123456, 22);
	barrier(side);
	pair_close(&net, &pair);
	net_close(&net);
}

enum { COMMS = 18, STUCK = COMMS - 1, WINDOW = 4, SIZE = 4096 };

struct lane {
	struct pair pair;
	struct buffer buffer;
	void *requests[WINDOW];
	int started, done;
};

/* `count` messages on each of the first `lanes`; with `stuck`, this side goes on trying to send on it. */
static double run_lanes(struct side *side, struct net *net, struct lane *all, int lanes, int count, struct lane *stuck,
			void **stuck_requests, int *stuck_count)
{
	double start = now();
	bool sender = side->rank == SENDER;
	int left = lanes;
	struct wait wait = patience("messages on the other connections");

	for (int i = 0; i < lanes; i++)
		all[i].started = all[i].done = 0;
	while (left && waiting(&wait)) {
		for (int i = 0; i < lanes; i++) {
			struct lane *lane = &all[i];
			int slot = lane->started % WINDOW, size, result = SUCCESS;

			if (lane->started < count && lane->started - lane->done < WINDOW) {
				uint8_t *at = lane->buffer.at + slot * SIZE;

				result = sender ? net_isend(net, lane->buffer.comm, at, SIZE, 0, lane->buffer.mhandle,
							    &lane->requests[slot]) :
						  net_irecv(net, lane->buffer.comm, at, SIZE, 0, lane->buffer.mhandle,
							    &lane->requests[slot]);
				require(result == SUCCESS, "connection %d: %s", i, last_warning());
				lane->started += lane->requests[slot] != NULL;
			}
			if (lane->done < lane->started && tested(net, lane->requests[lane->done % WINDOW], &size, &result))
				left -= ++lane->done == count;
			require(result == SUCCESS, "connection %d: %s", i, last_warning());
		}
		if (stuck && sender && *stuck_count < 64) {
			void *request = NULL;

			require(net_isend(net, stuck->buffer.comm, stuck->buffer.at, SIZE, 0, stuck->buffer.mhandle, &request) ==
					SUCCESS,
				"isend on the connection nobody receives on: %s", last_warning());
			if (request)
				stuck_requests[(*stuck_count)++] = request;
		}
	}
	return now() - start;
}

static int compare(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static void c18_one_stuck(struct side *side)
{
	/* Many short rounds of each kind in turn, so that what else the machine does meets both alike. */
	enum { ROUNDS = 101, COUNT = 40 };
	struct net net;
	static struct lane lanes[COMMS];
	double healthy[ROUNDS], hindered[ROUNDS];

	net_open(&net);
	for (int i = 0; i < COMMS; i++) {
		pair_open(side, &net, !side->rank, &lanes[i].pair);
		lanes[i].buffer =
			buffer_new(&net, side->rank == SENDER ? lanes[i].pair.send : lanes[i].pair.recv, WINDOW * SIZE);
	}
	for (int round = -5; round < ROUNDS; round++) {
		int at = round < 0 ? 0 : round; /* the first ones warm up */
		void *requests[64];
		int stuck = 0;
		struct lane *last = &lanes[STUCK];

		barrier(side);
		healthy[at] = run_lanes(side, &net, lanes, COMMS, COUNT, NULL, NULL, NULL) * STUCK / COMMS;
		barrier(side);
		if (side->rank == SENDER)
			stuck = send_all_it_takes(&net, &last->buffer, SIZE, requests, 64);
		barrier(side);
		hindered[at] = run_lanes(side, &net, lanes, STUCK, COUNT, last, requests, &stuck);
		barrier(side);
		drain(side, &net, &last->pair, &last->buffer, requests, stuck, SIZE);
	}
	qsort(healthy, ROUNDS, sizeof(*healthy), compare);
	qsort(hindered, ROUNDS, sizeof(*hindered), compare);
	if (side->rank == SENDER) {
		double before = healthy[ROUNDS / 2], after = hindered[ROUNDS / 2];

		remark("17 connections, %d messages of 4 KiB each: %.2f ms when all 18 flow (their share), %.2f ms when the "
		       "18th's receiver never posts: %.2f of the speed; medians of %d rounds of each kind in turn",
		       COUNT, before * 1e3, after * 1e3, before / after, ROUNDS);
		/* A wait for the stuck one would leave a small part. */
		require(before / after > 0.75, "17 connections lose speed to the 18th: %.2f of it is left", before / after);
	}
	barrier(side);
	net_close(&net);
}

const struct rule flow_rules[] = {
	{ 19, 2, 60, "a connection nobody receives on holds up no other, and loses nothing", r19_no_blocking },
	{ 20, 2, 60, "both sides send first and both get on", r20_both_first },
	{ 21, 2, 30, "odd addresses, no sizes, no phandles", r21_pointers },
	{ 22, 2, 60, "memory comes and goes with requests live, and is not touched once given back", r22_memory },
	{ 118, 2, 120, "of 18 connections one whose receiver never posts costs the others no speed", c18_one_stuck },
	{ 0 },
};
