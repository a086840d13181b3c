/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* R7 to R11: connections. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static int compare(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

/* Neither median nor worst of `count` calls is one that waits for something. */
static void quick(const char *call, double *seconds, int count)
{
	qsort(seconds, count, sizeof(*seconds), compare);
	double median = seconds[count / 2], worst = seconds[count - 1];

	remark("%s: median %.1f us, worst %.0f us of %d", call, median * 1e6, worst * 1e6, count);
	/* A millisecond is far above what is asked, and far below any wait; the worst may have been descheduled. */
	require(median < 1e-3 && worst < 0.25, "%s blocks: median %.0f us, worst %.0f us", call, median * 1e6,
		worst * 1e6);
}

enum { CALLS = 200 };

/* The other rank listens, and accepts only when it is told. */
static void r7_listener(struct side *side, struct net *net)
{
	static void *listens[CALLS];
	static double listen_s[CALLS], accept_s[CALLS];
	uint8_t handle[HANDLE_BYTES];
	void *recv = NULL;

	for (int i = 0; i < CALLS; i++) {
		double start = now();
		int result = net_listen(net, handle, &listens[i]);

		listen_s[i] = now() - start;
		require(result == SUCCESS && listens[i], "listen gave %d", result);
	}
	quick("listen", listen_s, CALLS);
	for (int i = 0; i < CALLS; i++) {
		void *none = NULL;
		double start = now();
		int result = net_accept(net, listens[i], &none);

		accept_s[i] = now() - start;
		require(result == SUCCESS && !none, "accept with nobody there gave %d and %p", result, none);
	}
	quick("accept", accept_s, CALLS);
	tell(side, 1, handle, sizeof(handle));
	barrier(side);
	struct wait wait = patience("accept");
	while (!recv && waiting(&wait))
		require(net_accept(net, listens[CALLS - 1], &recv) == SUCCESS, "accept: %s", last_warning());
	barrier(side);
	net_close_recv(net, recv);
	for (int i = 0; i < CALLS; i++)
		net_close_listen(net, listens[i]);
}

/* A spoilt handle is refused, at once or when tried again, with a warning. */
static void refused(struct net *net, const uint8_t *handle, const char *how)
{
	uint8_t copy[HANDLE_BYTES];
	void *send = NULL;
	int before = warnings(), result = SUCCESS;
	struct wait wait = patience("a bad handle to be refused");

	memcpy(copy, handle, sizeof(copy));
	while (result == SUCCESS && !send && waiting(&wait))
		result = net_connect(net, copy, &send);
	require(!send, "a handle %s is accepted", how);
	require(result == INVALID_USAGE, "a handle %s gives %d, not %d: %s", how, result, INVALID_USAGE, last_warning());
	require(warnings() > before, "a handle %s is refused without a warning", how);
}

static void r7_connecter(struct side *side, struct net *net)
{
	static double connect_s[CALLS];
	uint8_t handle[HANDLE_BYTES], spoilt[HANDLE_BYTES];
	void *send = NULL;

	hear(side, 0, handle, sizeof(handle));
	memset(spoilt, 0, sizeof(spoilt));
	refused(net, spoilt, "of zeros");
	memset(spoilt, 0xff, sizeof(spoilt));
	refused(net, spoilt, "of ones");
	fill(spoilt, sizeof(spoilt), 7);
	refused(net, spoilt, "of noise");
	for (int i = 0; i < 8; i++) {
		char how[40];

		/* Magic and version come first; zeros there are part of neither. */
		if (!handle[i])
			continue;
		memcpy(spoilt, handle, sizeof(spoilt));
		spoilt[i] ^= 0x55;
		snprintf(how, sizeof(how), "with byte %d changed", i);
		refused(net, spoilt, how);
	}
	/* Nobody accepts yet: it may be through, and must not wait. */
	int calls = 0;
	while (calls < CALLS && !send) {
		double start = now();
		int result = net_connect(net, handle, &send);

		connect_s[calls++] = now() - start;
		require(result == SUCCESS, "connect gave %d: %s", result, last_warning());
	}
	quick("connect", connect_s, calls);
	barrier(side);
	struct wait wait = patience("connect");
	while (!send && waiting(&wait))
		require(net_connect(net, handle, &send) == SUCCESS, "connect: %s", last_warning());
	barrier(side);
	net_close_send(net, send);
}

static void r7_never_blocks(struct side *side)
{
	struct net net;

	net_open(&net);
	if (side->rank == 0)
		r7_listener(side, &net);
	else
		r7_connecter(side, &net);
	net_close(&net);
}

static int entries(const char *folder)
{
	DIR *dir = opendir(folder);
	int count = 0;

	require(dir, "cannot list %s", folder);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void r8_abandoned(struct side *side)
{
	struct net net;
	struct pair pair;
	int files = 0, threads = 0;
	int rounds = options.full ? 300 : 40;

	for (int i = 0; i < rounds; i++) {
		uint8_t mine[HANDLE_BYTES], theirs[HANDLE_BYTES];
		void *listen = NULL, *send = NULL, *recv = NULL;

		net_open(&net);
		require(net_listen(&net, mine, &listen) == SUCCESS, "listen: %s", last_warning());
		tell(side, !side->rank, mine, sizeof(mine));
		hear(side, !side->rank, theirs, sizeof(theirs));
		/* Given up at every stage, without any close: not begun, begun, half accepted, done. */
		for (int call = 0; call < i % 8; call++) {
			if (!send)
				require(net_connect(&net, theirs, &send) == SUCCESS, "connect: %s", last_warning());
			if (!recv && i % 3)
				require(net_accept(&net, listen, &recv) == SUCCESS, "accept: %s", last_warning());
			pause_ms(i % 2);
		}
		barrier(side);
		net_close(&net);
		barrier(side);
		if (i == rounds / 2) {
			files = entries("/proc/self/fd");
			threads = entries("/proc/self/task");
		}
	}
	int files_now = entries("/proc/self/fd"), threads_now = entries("/proc/self/task");

	require(files_now <= files + 2, "%d descriptors after %d abandoned setups, %d after half", files_now, rounds, files);
	require(threads_now <= threads + 1, "%d threads after %d abandoned setups, %d after half", threads_now, rounds,
		threads);
	net_open(&net);
	pair_open(side, &net, !side->rank, &pair);
	exchange(&net, &pair, 70000, 8);
	barrier(side);
	pair_close(&net, &pair);
	net_close(&net);
}

static void r9_many(struct side *side)
{
	int count = options.full ? 4096 : 512;
	struct pair *pairs = calloc(count, sizeof(*pairs));
	struct net net;

	require(pairs, "out of memory");
	net_open(&net);
	for (int i = 0; i < count; i++)
		pair_open(side, &net, !side->rank, &pairs[i]);
	barrier(side);
	for (int i = 0; i < count; i++)
		exchange(&net, &pairs[(i * 7) % count], 1 + i % 3000, i);
	barrier(side);
	for (int i = 0; i < count; i++)
		pair_close(&net, &pairs[i]);
	net_close(&net);
	remark("%d connections each way between two processes; maxComms says 65536", count);
}

static void r10_myself(struct side *side)
{
	struct net net;
	struct pair pairs[3];

	net_open(&net);
	for (int i = 0; i < 3; i++)
		pair_open(side, &net, side->rank, &pairs[i]);
	for (int i = 0; i < 30; i++)
		exchange(&net, &pairs[i % 3], (size_t)1 << (i % 21), i);
	for (int i = 0; i < 3; i++)
		pair_close(&net, &pairs[i]);
	net_close(&net);
}

static void r11_mesh(struct side *side)
{
	struct net net;
	struct pair pairs[MAX_RANKS] = { { NULL, NULL } };
	int count = 0;

	net_open(&net);
	require(net_devices(&net, &count) == SUCCESS && count == 1, "%d devices, not one that reaches everybody", count);
	/* In an order in which nobody waits for one that waits for another. */
	for (int a = 0; a < side->ranks; a++)
		for (int b = a + 1; b < side->ranks; b++)
			if (side->rank == a || side->rank == b)
				pair_open(side, &net, side->rank == a ? b : a, &pairs[side->rank == a ? b : a]);
	for (int i = 0; i < 60; i++)
		for (int a = 0; a < side->ranks; a++)
			for (int b = a + 1; b < side->ranks; b++)
				if (side->rank == a || side->rank == b)
					exchange(&net, &pairs[side->rank == a ? b : a], 1 + i * 1000, a * 4 + b + i * 16);
	barrier(side);
	for (int rank = 0; rank < side->ranks; rank++)
		if (rank != side->rank)
			pair_close(&net, &pairs[rank]);
	net_close(&net);
}

const struct rule connect_rules[] = {
	{ 7, 2, 60, "listen, connect and accept never block; bad handles are refused with a warning", r7_never_blocks },
	{ 8, 2, 60, "a setup abandoned anywhere leaves nothing behind", r8_abandoned },
	{ 9, 2, 60, "many connections between two processes, both ways", r9_many },
	{ 10, 1, 30, "connections to oneself", r10_myself },
	{ 11, 3, 60, "three hosts, each reaches each through one device", r11_mesh },
	{ 0 },
};
