/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* R23 to R27: what fails, how, and what does not. Rank 0 judges; the others die, stop and come back. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

/* Rank 1 of rules in which it only is there: it does what it is told to before it is stopped or killed. */
static void be_there(struct side *side)
{
	barrier(side);
	for (;;)
		pause_ms(1000);
}

static bool is_failure(int result)
{
	return result == REMOTE_ERROR || result == SYSTEM_ERROR;
}

/* Until the request fails; returns the result. It may not become done. */
static int fails(struct net *net, void *request, const char *what)
{
	double until = now() + 5;
	int size, result = SUCCESS;

	while (result == SUCCESS && now() < until)
		require(!tested(net, request, &size, &result) || result != SUCCESS, "%s: the request is done, of %d bytes", what,
			size);
	require(is_failure(result), "%s gave %d, neither RemoteError nor SystemError: %s", what, result, last_warning());
	return result;
}

static void r23_peer_dies(struct side *side)
{
	enum { PAIRS = 3 };
	struct net net;
	struct pair pairs[PAIRS];
	struct buffer into[PAIRS], from[PAIRS];
	void *recvs[PAIRS], *sends[PAIRS] = { NULL };

	net_open(&net);
	for (int i = 0; i < PAIRS; i++) {
		pair_open(side, &net, !side->rank, &pairs[i]);
		exchange(&net, &pairs[i], 100, i);
	}
	if (side->rank)
		be_there(side);
	for (int i = 0; i < PAIRS; i++) {
		into[i] = buffer_new(&net, pairs[i].recv, 1 << 20);
		from[i] = buffer_new(&net, pairs[i].send, 1 << 20);
		recvs[i] = recv_start(&net, &into[i], 1 << 20, 0);
		require(net_isend(&net, pairs[i].send, from[i].at, 1 << 20, 0, from[i].mhandle, &sends[i]) == SUCCESS, "isend: %s",
			last_warning());
	}
	barrier(side);
	int before = warnings(), result = SUCCESS;
	double start = now();
	rank_kill(side, 1);
	for (int i = 0; i < PAIRS; i++) {
		result = fails(&net, recvs[i], "a receive whose peer is killed");
		if (sends[i])
			fails(&net, sends[i], "a send whose peer is killed");
	}
	double took = now() - start;
	remark("all of 3 connections failed with %d %.0f ms after the kill: %s", result, took * 1e3, last_warning());
	require(took < 5, "failing took %.1f s", took);
	/* One for each connection at the most; each way counts. */
	require(warnings() > before && warnings() - before <= 2 * PAIRS, "%d warnings for %d connections",
		warnings() - before, 2 * PAIRS);
	require(warned_of(before, "peer"), "no warning names the peer: %s", last_warning());
	require(warned_of(before, "rail") || warned_of(before, "port") || warned_of(before, "link") ||
			warned_of(before, "cable"),
		"no warning names the rail: %s", last_warning());
	for (int i = 0; i < PAIRS; i++) {
		void *request = NULL;
		int later = net_irecv(&net, pairs[i].recv, into[i].at, 100, 0, into[i].mhandle, &request);

		require(is_failure(later), "irecv after the peer's death gave %d", later);
		struct wait wait = patience("isend to fail");
		do
			later = net_isend(&net, pairs[i].send, from[i].at, 100, 0, from[i].mhandle, &request);
		while (later == SUCCESS && !request && waiting(&wait));
		require(is_failure(later), "isend after the peer's death gave %d", later);
		buffer_free(&net, &into[i]);
		buffer_free(&net, &from[i]);
		pair_close(&net, &pairs[i]);
	}
	net_close(&net);
}

static void r24_idle(struct side *side)
{
	double seconds = options.full ? 65 : 6;
	struct net net;
	struct pair pair;

	net_open(&net);
	pair_open(side, &net, !side->rank, &pair);
	struct buffer buffer = buffer_new(&net, side->rank ? pair.send : pair.recv, 4096);
	barrier(side);
	if (side->rank) {
		/* Rank 0 lets this one idle, stops it, and wants a message after each. */
		for (int i = 0; i < 2; i++) {
			char token;

			hear(side, 0, &token, 1);
			fill(buffer.at, 4096, i);
			finish(&net, send_start(&net, &buffer, 4096, 0));
		}
		barrier(side);
		net_close(&net);
		return;
	}
	for (int i = 0; i < 2; i++) {
		void *request = recv_start(&net, &buffer, 4096, 0);
		double until = now() + seconds;
		int size, result, before = warnings();

		if (i)
			rank_signal(side, 1, SIGSTOP);
		while (now() < until) {
			require(!tested(&net, request, &size, &result) && result == SUCCESS,
				"a receive waiting for %s peer gave %d: %s", i ? "a stopped" : "an idle", result, last_warning());
			pause_ms(1);
		}
		require(warnings() == before, "waiting made it warn: %s", last_warning());
		if (i)
			rank_signal(side, 1, SIGCONT);
		tell(side, 1, "", 1);
		require(finish(&net, request) == 4096 && differs(buffer.at, 4096, i) < 0, "what came afterwards is wrong");
	}
	remark("a peer idle for %.0f s and one stopped for %.0f s", seconds, seconds);
	barrier(side);
	net_close(&net);
}

static void r25_close(struct side *side)
{
	struct net net;
	struct pair pairs[4];
	struct buffer into[4], from[4];

	net_open(&net);
	require(net_close_send(&net, NULL) == SUCCESS && net_close_recv(&net, NULL) == SUCCESS &&
			net_close_listen(&net, NULL) == SUCCESS,
		"closing nothing is an error");
	for (int i = 0; i < 4; i++)
		pair_open(side, &net, !side->rank, &pairs[i]);
	if (side->rank)
		be_there(side);
	for (int i = 0; i < 4; i++) {
		void *request = NULL;

		into[i] = buffer_new(&net, pairs[i].recv, 1 << 20);
		from[i] = buffer_new(&net, pairs[i].send, 1 << 20);
		for (int k = 0; k < 8; k++) {
			recv_start(&net, &into[i], 1 << 20, 0);
			require(net_isend(&net, pairs[i].send, from[i].at, 1 << 20, 0, from[i].mhandle, &request) == SUCCESS,
				"isend: %s", last_warning());
		}
	}
	barrier(side);
	rank_signal(side, 1, SIGSTOP);
	double worst = 0, start = now();
	for (int i = 0; i < 4; i++) {
		double begin = now();

		buffer_free(&net, &into[i]);
		worst = now() - begin > worst ? now() - begin : worst;
		begin = now();
		buffer_free(&net, &from[i]);
		worst = now() - begin > worst ? now() - begin : worst;
		begin = now();
		pair_close(&net, &pairs[i]);
		worst = now() - begin > worst ? now() - begin : worst;
	}
	double begin = now();
	net_close(&net);
	double finalize = now() - begin;
	remark("with 64 live requests to a stopped peer: the slowest deregMr or close took %.1f ms, finalize %.1f ms",
	       worst * 1e3, finalize * 1e3);
	require(now() - start < 1, "closing waits for the peer: %.1f s", now() - start);
	rank_signal(side, 1, SIGCONT);
	rank_kill(side, 1);
}

static void r26_others_go_on(struct side *side)
{
	struct net net;
	struct pair healthy, dying;

	net_open(&net);
	if (restarted()) {
		pair_open(side, &net, 0, &dying);
		exchange(&net, &dying, 50000, 26);
		char token;

		hear(side, 0, &token, 1);
		net_close(&net);
		return;
	}
	if (side->rank != 2)
		pair_open(side, &net, !side->rank, &healthy);
	if (side->rank != 1)
		pair_open(side, &net, side->rank ? 0 : 2, &dying);
	if (side->rank == 2) {
		exchange(&net, &dying, 100, 1);
		be_there(side);
	}
	if (side->rank == 0)
		exchange(&net, &dying, 100, 1);
	barrier(side);
	if (side->rank == 0) {
		struct buffer buffer = buffer_new(&net, dying.recv, 4096);
		void *request = recv_start(&net, &buffer, 4096, 0);

		rank_kill(side, 2);
		tell(side, 1, "", 1);
		for (int i = 0; i < 200; i++)
			exchange(&net, &healthy, (size_t)1 << (i % 20), i);
		fails(&net, request, "a receive from the killed peer");
		rank_restart(side, 2);
		struct pair again;
		/* The old connection is still open, as an application's is that has not noticed. */
		pair_open(side, &net, 2, &again);
		exchange(&net, &again, 50000, 26);
		tell(side, 2, "", 1);
		for (int i = 0; i < 50; i++)
			exchange(&net, &healthy, 5000, i);
		buffer_free(&net, &buffer);
		pair_close(&net, &dying);
		pair_close(&net, &again);
		tell(side, 1, "", 1);
	} else {
		char token;

		hear(side, 0, &token, 1);
		for (int i = 0; i < 200; i++)
			exchange(&net, &healthy, (size_t)1 << (i % 20), i);
		for (int i = 0; i < 50; i++)
			exchange(&net, &healthy, 5000, i);
		hear(side, 0, &token, 1);
	}
	pair_close(&net, &healthy);
	net_close(&net);
}

static void r27_strangers(struct side *side)
{
	struct net net;
	uint8_t handle[HANDLE_BYTES], spoilt[HANDLE_BYTES];
	void *listen = NULL, *recv = NULL, *send = NULL;

	net_open(&net);
	if (side->rank == 0) {
		require(net_listen(&net, handle, &listen) == SUCCESS, "listen: %s", last_warning());
		tell(side, 1, handle, sizeof(handle));
		/* The good one gets through whatever the spoilt ones have done. */
		struct wait wait = patience("accept");
		while (!recv && waiting(&wait))
			require(net_accept(&net, listen, &recv) == SUCCESS, "accept: %s", last_warning());
		struct buffer buffer = buffer_new(&net, recv, 4096);
		require(finish(&net, recv_start(&net, &buffer, 4096, 0)) == 4096 && differs(buffer.at, 4096, 27) < 0,
			"the message is wrong");
		barrier(side);
		net_close(&net);
		return;
	}
	hear(side, 0, handle, sizeof(handle));
	bool version = false;
	int used = HANDLE_BYTES;
	while (used && !handle[used - 1])
		used--;
	for (int i = 0; i < used; i++) {
		int before = warnings(), result = SUCCESS;
		double until = now() + 0.02;

		memcpy(spoilt, handle, sizeof(spoilt));
		spoilt[i] ^= 0x81;
		send = NULL;
		while (result == SUCCESS && !send && now() < until)
			result = net_connect(&net, spoilt, &send);
		/* A refusal may take the listener's word; until then there is no comm. */
		require(!send || result != SUCCESS, "a handle with byte %d of %d changed gives a connection", i, used);
		require(result == SUCCESS || warnings() > before, "byte %d changed: %d without a warning", i, result);
		if (result != SUCCESS && warned_of(before, "version"))
			version = true;
	}
	require(version, "no change to the handle is refused as another version");
	send = NULL;
	struct wait wait = patience("connect");
	while (!send && waiting(&wait))
		require(net_connect(&net, handle, &send) == SUCCESS, "connect: %s", last_warning());
	struct buffer buffer = buffer_new(&net, send, 4096);
	fill(buffer.at, 4096, 27);
	finish(&net, send_start(&net, &buffer, 4096, 0));
	barrier(side);
	net_close(&net);
	remark("each of the handle's %d bytes was changed; frames are checked below the plugin: docs/spec/wire.md", used);
}

const struct rule failure_rules[] = {
	{ 23, 2, 60, "a killed peer fails all there is with it, soon, with a warning that names it", r23_peer_dies },
	{ 24, 2, 60, "an idle peer and a stopped one are not errors", r24_idle },
	{ 25, 2, 30, "nothing that closes waits for the peer", r25_close },
	{ 26, 3, 60, "others go on, and a peer that returns is reached without restarting", r26_others_go_on },
	{ 27, 2, 60, "strangers and other versions are refused at connect", r27_strangers },
	{ 0 },
};
