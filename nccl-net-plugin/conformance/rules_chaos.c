/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* C19: connections come, carry messages of all sizes, and are given up in the middle of it, at random. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { COMMS = 6, DEPTH = 16, ROOM = 1 << 18 };

static uint32_t next(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

struct lane {
	struct pair pair;
	struct buffer out[DEPTH], in[DEPTH];
	void *sends[DEPTH], *recvs[DEPTH];
	unsigned sent, send_done, posted, recv_done;
	uint32_t key; /* what is in its messages */
	bool over;
};

/* Size and content of the k-th message of a direction, known to both. */
static size_t size_of(uint32_t key, unsigned k)
{
	uint32_t state = key * 2654435761u + k * 40503u + 1;
	unsigned bits = next(&state) % 19;

	return next(&state) % ((1u << bits) + 1);
}

static void start(struct net *net, struct lane *lane, int rank, uint32_t key)
{
	struct pair pair = lane->pair;

	memset(lane, 0, sizeof(*lane));
	lane->pair = pair;
	lane->key = key + rank;
	for (int i = 0; i < DEPTH; i++) {
		lane->out[i] = buffer_new(net, pair.send, ROOM);
		lane->in[i] = buffer_new(net, pair.recv, ROOM);
	}
}

/* One step of either direction. The other side may have given up: from then on errors are as good as silence. */
static void step(struct net *net, struct lane *lane, int rank, uint32_t *seed)
{
	unsigned at = lane->sent % DEPTH;
	int size, result = SUCCESS;

	if (lane->over)
		return;
	if (lane->sent - lane->send_done < DEPTH && next(seed) % 4) {
		size_t length = size_of(lane->key, lane->sent);

		fill(lane->out[at].at, length, lane->key + lane->sent);
		result = net_isend(net, lane->pair.send, lane->out[at].at, length, 0, lane->out[at].mhandle, &lane->sends[at]);
		lane->sent += result == SUCCESS && lane->sends[at];
	}
	at = lane->posted % DEPTH;
	if (result == SUCCESS && lane->posted - lane->recv_done < DEPTH && next(seed) % 3) {
		result = net_irecv(net, lane->pair.recv, lane->in[at].at, ROOM, 0, lane->in[at].mhandle, &lane->recvs[at]);
		lane->posted += result == SUCCESS && lane->recvs[at];
	}
	if (result == SUCCESS && lane->send_done < lane->sent)
		lane->send_done += tested(net, lane->sends[lane->send_done % DEPTH], &size, &result);
	at = lane->recv_done % DEPTH;
	if (result == SUCCESS && lane->recv_done < lane->posted && tested(net, lane->recvs[at], &size, &result)) {
		uint32_t key = lane->key - rank + !rank;
		size_t length = size_of(key, lane->recv_done);

		require(size == (int)length, "message %u of %zu bytes came as %d", lane->recv_done, length, size);
		long wrong = differs(lane->in[at].at, length, key + lane->recv_done);
		require(wrong < 0, "message %u of %zu bytes is wrong from byte %ld on", lane->recv_done, length, wrong);
		lane->recv_done++;
	}
	require(result == SUCCESS || result == REMOTE_ERROR || result == SYSTEM_ERROR, "a connection gave %d: %s", result,
		last_warning());
	lane->over = result != SUCCESS;
}

/* As NCCL aborts: memory first, then the connection, whatever is under way. */
static void give_up(struct net *net, struct lane *lane, uint32_t *seed)
{
	for (int i = 0; i < DEPTH; i++) {
		buffer_free(net, &lane->out[i]);
		buffer_free(net, &lane->in[i]);
	}
	if (next(seed) % 8)
		pair_close(net, &lane->pair); /* else finalize has to */
}

static void c19_chaos(struct side *side)
{
	int rounds = options.full ? 300 : 12;
	static struct lane lanes[COMMS];
	unsigned carried = 0;
	uint32_t common = 0x5eed, own = 77 + side->rank;
	struct net net;

	net_open(&net);
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < COMMS; i++) {
			pair_open(side, &net, !side->rank, &lanes[i].pair);
			start(&net, &lanes[i], side->rank, next(&common) & ~1u);
		}
		barrier(side);
		/* Each connection is given up after a while by one of the two, and by the other later. */
		double began = now();
		double ends[COMMS];
		bool open[COMMS];
		int left = COMMS;

		for (int i = 0; i < COMMS; i++) {
			bool first = next(&common) % 2 == (unsigned)side->rank;

			ends[i] = began + next(&own) % 100 * 1e-3 + (first ? 0 : 0.15);
			open[i] = true;
		}
		struct wait wait = patience("a round of chaos to end");
		while (left && waiting(&wait)) {
			for (int i = 0; i < COMMS; i++) {
				if (!open[i])
					continue;
				step(&net, &lanes[i], side->rank, &own);
				if (now() < ends[i])
					continue;
				carried += lanes[i].recv_done;
				give_up(&net, &lanes[i], &own);
				open[i] = false;
				left--;
			}
		}
		barrier(side);
		if (round % 4 == 3) {
			net_close(&net);
			barrier(side);
			net_open(&net);
		}
	}
	struct pair pair;
	pair_open(side, &net, !side->rank, &pair);
	exchange(&net, &pair, 100000, 19);
	barrier(side);
	pair_close(&net, &pair);
	net_close(&net);
	remark("%u messages checked in %d rounds of %d connections", carried, rounds, COMMS);
	require(carried > 100, "no more than %u messages came through", carried);
}

const struct rule chaos_rules[] = {
	{ 119, 2, 120, "connections given up at random in the middle of traffic harm no other", c19_chaos },
	{ 0 },
};
