/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* R12 to R18: messages. Rank 0 sends and rank 1 receives, unless said otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

enum { SENDER, RECEIVER, DEPTH = 32 };

static void open_to_other(struct side *side, struct net *net, struct pair *pair)
{
	net_open(net);
	pair_open(side, net, !side->rank, pair);
}

static void close_all(struct side *side, struct net *net, struct pair *pair)
{
	barrier(side);
	pair_close(net, pair);
	net_close(net);
}

/* A size for the i-th message: nothing, small, odd, and now and then large. */
static size_t some_size(int i)
{
	static const size_t sizes[] = { 0, 1, 64, 4095, 4096, 4097, 17, 65536, 300, 131072, 12, 1048576 };

	return sizes[i % 12];
}

static void send_stream(struct net *net, void *comm, int count, int tag)
{
	struct buffer from[DEPTH];
	void *requests[DEPTH] = { NULL };

	for (int i = 0; i < DEPTH; i++)
		from[i] = buffer_new(net, comm, 1 << 20);
	for (int i = 0; i < count + DEPTH; i++) {
		int at = i % DEPTH;

		if (i >= DEPTH && requests[at]) {
			int size = finish(net, requests[at]);

			require(size == (int)some_size(i - DEPTH), "the %dth send of %zu bytes says %d", i - DEPTH,
				some_size(i - DEPTH), size);
			requests[at] = NULL;
		}
		if (i < count) {
			fill(from[at].at, some_size(i), i);
			requests[at] = send_start(net, &from[at], some_size(i), tag);
		}
	}
	for (int i = 0; i < DEPTH; i++)
		buffer_free(net, &from[i]);
}

static void recv_stream(struct net *net, void *comm, int count, int tag)
{
	struct buffer into[DEPTH];
	void *requests[DEPTH] = { NULL };

	for (int i = 0; i < DEPTH; i++)
		into[i] = buffer_new(net, comm, 1 << 20);
	for (int i = 0; i < count + DEPTH; i++) {
		int at = i % DEPTH, k = i - DEPTH;

		if (i >= DEPTH && requests[at]) {
			int size = finish(net, requests[at]);

			require(size == (int)some_size(k), "message %d of %zu bytes came as %d: order is lost", k, some_size(k),
				size);
			long wrong = differs(into[at].at, some_size(k), k);

			require(wrong < 0, "message %d of %zu bytes is wrong from byte %ld on", k, some_size(k), wrong);
			requests[at] = NULL;
		}
		if (i < count) {
			memset(into[at].at, 0xcc, some_size(i));
			requests[at] = recv_start(net, &into[at], 1 << 20, tag);
		}
	}
	for (int i = 0; i < DEPTH; i++)
		buffer_free(net, &into[i]);
}

static void r12_in_order(struct side *side)
{
	int count = options.full ? 6000 : 600;
	struct net net;
	struct pair pair;

	open_to_other(side, &net, &pair);
	if (side->rank == SENDER) {
		send_stream(&net, pair.send, count, 0);
		send_stream(&net, pair.send, 24, 5);
	} else {
		recv_stream(&net, pair.recv, count, 0);
		/* Tags that differ do not change what matches what; a person is told once. */
		int before = warnings();

		recv_stream(&net, pair.recv, 24, 6);
		require(warnings() - before == 1, "24 messages of another tag gave %d warnings, not one", warnings() - before);
	}
	close_all(side, &net, &pair);
}

/* A receive smaller than the message: an error on either side, and nothing written beyond the buffer. */
static void too_long(struct side *side, struct net *net, struct pair *pair)
{
	enum { SENT = 8192, ROOM = 4096 };
	bool sender = side->rank == SENDER;
	struct buffer buffer = buffer_new(net, sender ? pair->send : pair->recv, SENT);
	void *request = NULL;
	int before = warnings(), size, result = SUCCESS;
	struct wait wait = patience("a message that does not fit to be refused");

	memset(buffer.at, 0x33, SENT);
	if (sender) {
		while (!request && result == SUCCESS && waiting(&wait))
			result = net_isend(net, pair->send, buffer.at, SENT, 0, buffer.mhandle, &request);
	} else {
		memset(buffer.at, 0x44, SENT);
		result = net_irecv(net, pair->recv, buffer.at, ROOM, 0, buffer.mhandle, &request);
	}
	bool done = false;
	while (request && result == SUCCESS && !done && waiting(&wait))
		done = tested(net, request, &size, &result);
	if (sender) {
		/* Some transports notice it only at the other end. */
		require(result == SUCCESS || result == INVALID_USAGE || result == REMOTE_ERROR,
			"a message of %d bytes for a buffer of %d gave the sender %d", SENT, ROOM, result);
	} else {
		require(result == INVALID_USAGE, "a message of %d bytes for a buffer of %d gave %d, not %d", SENT, ROOM, result,
			INVALID_USAGE);
		require(warned_of(before, "8192") && warned_of(before, "4096"), "no warning names both sizes: %s",
			last_warning());
	}
	barrier(side);
	for (int i = ROOM; !sender && i < SENT; i++)
		require(buffer.at[i] == 0x44, "byte %d beyond the receive buffer was written", i - ROOM);
	buffer_free(net, &buffer);
}

static void r13_sizes(struct side *side)
{
	static const size_t sends[] = { 0, 1, 12, 100, 4096, 65536, 999999 };
	struct net net;
	struct pair pair, other;

	open_to_other(side, &net, &pair);
	pair_open(side, &net, !side->rank, &other);
	for (int i = 0; i < 70; i++) {
		size_t size = sends[i % 7];
		bool sender = side->rank == SENDER;
		struct buffer buffer = buffer_new(&net, sender ? pair.send : pair.recv, 1 << 20);

		if (sender) {
			fill(buffer.at, size, i);
			int sent = finish(&net, send_start(&net, &buffer, size, 0));

			require(sent == (int)size, "a send of %zu bytes says %d", size, sent);
		} else {
			memset(buffer.at, 0x77, 1 << 20);
			int got = finish(&net, recv_start(&net, &buffer, 1 << 20, 0));

			require(got == (int)size, "%zu bytes into 1 MiB were received as %d", size, got);
			require(differs(buffer.at, size, i) < 0, "%zu bytes came wrong", size);
			for (size_t k = size; k < 1 << 20; k++)
				require(buffer.at[k] == 0x77, "byte %zu behind a message of %zu was written", k, size);
		}
		buffer_free(&net, &buffer);
	}
	too_long(side, &net, &pair);
	for (int i = 0; i < 20; i++)
		exchange(&net, &other, 5000 + i, i);
	close_all(side, &net, &other);
}

static void r14_requests(struct side *side)
{
	static void *const stale[] = { NULL, (void *)1, (void *)0xdeadbeef, (void *)~0ull };
	struct net net;
	struct pair pair;

	open_to_other(side, &net, &pair);
	struct buffer buffer = buffer_new(&net, side->rank == SENDER ? pair.send : pair.recv, 4096);
	void *requests[40];
	int count = 0;
	/* More than the other end takes, so that both answers are met. */
	for (int i = 0; i < 40; i++) {
		void *request = stale[i % 4];
		int result = side->rank == SENDER ?
				     net_isend(&net, pair.send, buffer.at, 64, 0, buffer.mhandle, &request) :
				     net_irecv(&net, pair.recv, buffer.at, 4096, 0, buffer.mhandle, &request);

		require(result == SUCCESS, "call %d gave %d: %s", i, result, last_warning());
		if (!request)
			continue;
		for (int k = 1; k < 4; k++)
			require(request != stale[k], "the request is as stale as before: %p", request);
		for (int k = 0; k < count; k++)
			require(requests[k] != request, "two live requests are the same");
		requests[count++] = request;
	}
	barrier(side);
	int counts[2] = { count, 0 };
	tell(side, !side->rank, counts, sizeof(int));
	hear(side, !side->rank, &counts[1], sizeof(int));
	for (int i = 0; i < count; i++)
		finish(&net, requests[i]);
	/* And what the other side has more of. */
	for (; count < counts[1]; count++)
		finish(&net, side->rank == SENDER ? send_start(&net, &buffer, 64, 0) : recv_start(&net, &buffer, 4096, 0));
	close_all(side, &net, &pair);
}

static void r15_depth(struct side *side)
{
	enum { ROUNDS = 20 };
	struct net net;
	struct pair pair;
	bool sender = side->rank == SENDER;

	open_to_other(side, &net, &pair);
	struct buffer buffer = buffer_new(&net, sender ? pair.send : pair.recv, DEPTH * 4096);
	for (int round = 0; round < ROUNDS; round++) {
		void *requests[DEPTH], *more = (void *)2;
		struct wait wait = patience("32 requests to be taken");

		if (sender)
			barrier(side); /* 32 receives are posted */
		for (int i = 0; i < DEPTH;) {
			uint8_t *at = buffer.at + i * 4096;

			if (sender)
				fill(at, 4096, round * DEPTH + i);
			requests[i] = NULL;
			int result = sender ? net_isend(&net, pair.send, at, 4096, 0, buffer.mhandle, &requests[i]) :
					      net_irecv(&net, pair.recv, at, 4096, 0, buffer.mhandle, &requests[i]);

			require(result == SUCCESS, "call %d gave %d: %s", i, result, last_warning());
			require(sender || requests[i], "irecv refuses buffer %d of 32", i);
			i += requests[i] != NULL;
			waiting(&wait);
		}
		/* What is beyond that is taken or put off, and neither waits nor fails. */
		if (!sender) {
			int result = net_irecv(&net, pair.recv, buffer.at, 4096, 0, buffer.mhandle, &more);

			require(result == SUCCESS && more != (void *)2, "the 33rd irecv gave %d and %p", result, more);
			barrier(side);
		}
		for (int i = 0; i < DEPTH; i++) {
			int size = finish(&net, requests[i]);

			require(size == 4096, "request %d of 32 says %d bytes", i, size);
			require(sender || differs(buffer.at + i * 4096, 4096, round * DEPTH + i) < 0,
				"message %d of 32 is wrong", i);
		}
		int extra = !sender && more;
		if (sender)
			hear(side, RECEIVER, &extra, sizeof(extra));
		else
			tell(side, SENDER, &extra, sizeof(extra));
		if (extra)
			finish(&net, sender ? send_start(&net, &buffer, 4096, 0) : more);
	}
	close_all(side, &net, &pair);
}

static double cpu_of_tests(struct net *net, void *request, int count)
{
	struct timespec before, after;
	int size, result;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
	for (int i = 0; i < count; i++)
		require(!tested(net, request, &size, &result) && result == SUCCESS, "nobody has sent, and test gave %d", result);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
	return (after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) * 1e-9) / count;
}

static void r16_tests(struct side *side)
{
	enum { TESTS = 20000, MANY = 128 };
	struct net net;
	struct pair pair, more[MANY];
	bool sender = side->rank == SENDER;
	void *requests[8];

	open_to_other(side, &net, &pair);
	struct buffer buffer = buffer_new(&net, sender ? pair.send : pair.recv, 8 * 65536);
	for (int i = 0; i < 8 && !sender; i++) {
		requests[i] = NULL;
		require(net_irecv(&net, pair.recv, buffer.at + i * 65536, 65536, 0, buffer.mhandle, &requests[i]) == SUCCESS &&
				requests[i],
			"irecv %d", i);
	}
	double few = 0, many = 0, start = now();
	if (!sender)
		few = cpu_of_tests(&net, requests[0], TESTS);
	double elapsed = now() - start;
	barrier(side);
	for (int i = 0; i < MANY; i++)
		pair_open(side, &net, !side->rank, &more[i]);
	if (!sender)
		many = cpu_of_tests(&net, requests[0], TESTS);
	barrier(side);
	if (!sender) {
		remark("an idle test: %.0f ns with 1 connection, %.0f ns with %d", few * 1e9, many * 1e9, 1 + MANY);
		require(elapsed / TESTS < 1e-3, "a test takes %.0f us when there is nothing to do", elapsed / TESTS * 1e6);
		require(many < few * 8 + 1e-6, "an idle test takes %.1f times as long with %d connections", many / few, 1 + MANY);
	}
	/* Only test is called from here on, and the newest request is tested first. */
	for (int i = 0; i < 8 && sender; i++) {
		struct wait wait = patience("isend");

		fill(buffer.at + i * 65536, 65536, i);
		requests[i] = NULL;
		while (!requests[i] && waiting(&wait))
			require(net_isend(&net, pair.send, buffer.at + i * 65536, 65536, 0, buffer.mhandle, &requests[i]) == SUCCESS,
				"isend: %s", last_warning());
	}
	for (int i = 7; i >= 0; i--)
		finish(&net, requests[i]);
	for (int i = 0; i < 8 && !sender; i++)
		require(differs(buffer.at + i * 65536, 65536, i) < 0, "message %d is wrong", i);
	for (int i = 0; i < MANY; i++)
		pair_close(&net, &more[i]);
	close_all(side, &net, &pair);
}

/* The receiver looks only when the sender has closed, or has ended. */
static void r17_sender(struct side *side, struct net *net, struct pair *pair, size_t size, bool posted)
{
	struct buffer buffer = buffer_new(net, pair->send, size);
	void *request = NULL;
	bool done = false;
	int length, result = SUCCESS;
	double until = now() + 0.3;

	fill(buffer.at, size, 17);
	if (posted)
		barrier(side);
	/* A sender may be made to wait for the receiver; what it calls done has to arrive. */
	for (bool told = posted; !done;) {
		if (!request)
			result = net_isend(net, pair->send, buffer.at, size, 0, buffer.mhandle, &request);
		else
			done = tested(net, request, &length, &result);
		require(result == SUCCESS, "a send gave %d: %s", result, last_warning());
		if (!told && (done || now() > until)) {
			tell(side, RECEIVER, &done, sizeof(done));
			told = true;
			if (done)
				break;
		}
	}
	memset(buffer.at, 0xee, size); /* the buffer is the user's again */
	buffer_free(net, &buffer);
	require(net_close_send(net, pair->send) == SUCCESS, "closeSend");
	pair->send = NULL;
}

static void r17_receiver(struct side *side, struct net *net, struct pair *pair, size_t size, bool posted)
{
	struct buffer buffer = buffer_new(net, pair->recv, size);
	void *request = NULL;
	bool early = false;

	if (posted) {
		request = recv_start(net, &buffer, size, 0);
		barrier(side);
	} else {
		hear(side, SENDER, &early, sizeof(early));
		if (early)
			pause_ms(100); /* the sender closes */
		request = recv_start(net, &buffer, size, 0);
	}
	require(finish(net, request) == (int)size, "a message of %zu bytes sent before closeSend is short", size);
	long wrong = differs(buffer.at, size, 17);
	require(wrong < 0, "byte %ld of %zu sent before closeSend is wrong", wrong, size);
	buffer_free(net, &buffer);
	require(net_close_recv(net, pair->recv) == SUCCESS, "closeRecv");
}

static void r17_done_arrives(struct side *side)
{
	static const size_t sizes[] = { 64, 4096, 65536, 1 << 20 };
	struct net net;
	struct pair pair;

	net_open(&net);
	for (int i = 0; i < 8; i++) {
		pair_open(side, &net, !side->rank, &pair);
		if (side->rank == SENDER)
			r17_sender(side, &net, &pair, sizes[i / 2], i % 2);
		else
			r17_receiver(side, &net, &pair, sizes[i / 2], i % 2);
		barrier(side);
		if (side->rank == SENDER)
			net_close_recv(&net, pair.recv);
		else
			net_close_send(&net, pair.send);
	}
	/* And when the sender's process ends at once. Rank 1 sends, as rank 0 has to stay. */
	pair_open(side, &net, !side->rank, &pair);
	struct buffer buffer = buffer_new(&net, side->rank ? pair.send : pair.recv, 1 << 20);
	if (side->rank) {
		barrier(side);
		fill(buffer.at, 1 << 20, 71);
		finish(&net, send_start(&net, &buffer, 1 << 20, 0));
		buffer_free(&net, &buffer);
		pair_close(&net, &pair);
		net_close(&net);
		_exit(0);
	}
	void *request = recv_start(&net, &buffer, 1 << 20, 0);
	barrier(side);
	/* Only the test of the receiver may drive what the sender waits for. */
	bool done = false;
	struct wait wait = patience("the sender to end");
	int size, result;
	while (waitpid(side->pid[1], NULL, WNOHANG) == 0 && waiting(&wait)) {
		if (!done)
			done = tested(&net, request, &size, &result);
		require(result == SUCCESS, "a receive whose sender is about to end gave %d: %s", result, last_warning());
	}
	side->pid[1] = 0;
	if (!done)
		size = finish(&net, request);
	require(size == 1 << 20, "1 MiB sent before the sender ended is short");
	require(differs(buffer.at, 1 << 20, 71) < 0, "1 MiB sent before the sender ended is wrong");
	buffer_free(&net, &buffer);
	net_close_send(&net, pair.send);
	net_close_recv(&net, pair.recv);
	net_close(&net);
}

static void r18_all_there(struct side *side)
{
	int count = options.full ? 20000 : 2000;
	struct net net;
	struct pair pair;
	bool sender = side->rank == SENDER;

	open_to_other(side, &net, &pair);
	struct buffer buffer = buffer_new(&net, sender ? pair.send : pair.recv, 1 << 17);
	for (int i = 0; i < count; i++) {
		size_t size = 1 + (size_t)i * 2654435761u % (1 << 17);

		if (sender) {
			fill(buffer.at, size, i);
			finish(&net, send_start(&net, &buffer, size, 0));
			continue;
		}
		/* The last byte alone would tell of the rest, were they written in order; they may not be. */
		memset(buffer.at, (uint8_t)~i, size);
		require(finish(&net, recv_start(&net, &buffer, 1 << 17, 0)) == (int)size, "message %d has another size", i);
		long wrong = differs(buffer.at, size, i);
		require(wrong < 0, "when message %d of %zu bytes was done, byte %ld was not there", i, size, wrong);
	}
	close_all(side, &net, &pair);
}

const struct rule data_rules[] = {
	{ 12, 2, 60, "the k-th send meets the k-th receive, whatever their tags", r12_in_order },
	{ 13, 2, 60, "short and empty messages are normal; too long ones are refused, and only they", r13_sizes },
	{ 14, 2, 30, "the request is written on every success", r14_requests },
	{ 15, 2, 60, "32 requests at a time on either side; beyond that put off, not refused", r15_depth },
	{ 16, 2, 60, "test never waits, costs little when idle, and is enough to get on", r16_tests },
	{ 17, 2, 60, "what is done arrives, though the sender closes or ends", r17_done_arrives },
	{ 18, 2, 60, "a receive is done when every byte is there", r18_all_there },
	{ 0 },
};
