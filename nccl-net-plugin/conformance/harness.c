/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

/* Seconds after which what a rule waits for will not come. */
enum { PATIENCE = 20 };

struct options options = { .plugin = "usb4", .version = NEWEST };
struct process process = { .report = STDERR_FILENO };

static void report(const char *what, const char *format, va_list list)
{
	char text[1200];
	int used = snprintf(text, sizeof(text), "%s ", what);

	if (process.rank > 0)
		used += snprintf(text + used, sizeof(text) - used, "rank %d: ", process.rank);
	used += vsnprintf(text + used, sizeof(text) - used - 1, format, list);
	if (used > (int)sizeof(text) - 2)
		used = sizeof(text) - 2;
	for (int i = 0; i < used; i++)
		if (text[i] == '\n')
			text[i] = ' ';
	text[used++] = '\n';
	if (write(process.report, text, used) != used)
		_exit(FAILED);
}

void fail(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	report("FAIL", format, list);
	va_end(list);
	_exit(FAILED);
}

void not_tested(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	report("NOT TESTED", format, list);
	va_end(list);
	_exit(NOT_TESTED);
}

void remark(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	report("REMARK", format, list);
	va_end(list);
}

/* The logger. */

enum { KEPT = 64, TEXT = 512 };
static struct {
	pthread_mutex_t lock;
	int records, warnings;
	char text[KEPT][TEXT];
} journal = { .lock = PTHREAD_MUTEX_INITIALIZER };

void record(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	va_list list;

	(void)flags, (void)file, (void)line;
	pthread_mutex_lock(&journal.lock);
	journal.records++;
	if (level == LEVEL_WARN) {
		va_start(list, format);
		vsnprintf(journal.text[journal.warnings++ % KEPT], TEXT, format, list);
		va_end(list);
	}
	pthread_mutex_unlock(&journal.lock);
}

int warnings(void)
{
	pthread_mutex_lock(&journal.lock);
	int count = journal.warnings;
	pthread_mutex_unlock(&journal.lock);
	return count;
}

int records(void)
{
	pthread_mutex_lock(&journal.lock);
	int count = journal.records;
	pthread_mutex_unlock(&journal.lock);
	return count;
}

const char *last_warning(void)
{
	int count = warnings();

	return count ? journal.text[(count - 1) % KEPT] : "(no warning)";
}

bool warned_of(int since, const char *part)
{
	bool found = false;

	pthread_mutex_lock(&journal.lock);
	for (int i = since; i < journal.warnings; i++)
		found |= strcasestr(journal.text[i % KEPT], part) != NULL;
	pthread_mutex_unlock(&journal.lock);
	return found;
}

/* Other ranks. */

void tell(struct side *side, int rank, const void *data, size_t size)
{
	if (send(side->wire[rank], data, size, MSG_NOSIGNAL) != (ssize_t)size)
		fail("rank %d has ended", rank);
}

void hear(struct side *side, int rank, void *data, size_t size)
{
	ssize_t got;

	do
		got = recv(side->wire[rank], data, size, 0);
	while (got < 0 && errno == EINTR);
	if (got != (ssize_t)size)
		fail("rank %d has ended", rank);
}

void barrier(struct side *side)
{
	char token = 0;

	for (int rank = 1; rank < side->ranks; rank++) {
		if (side->rank == 0)
			hear(side, rank, &token, 1);
		else if (side->rank == rank)
			tell(side, 0, &token, 1);
	}
	for (int rank = 1; rank < side->ranks; rank++) {
		if (side->rank == 0)
			tell(side, rank, &token, 1);
		else if (side->rank == rank)
			hear(side, 0, &token, 1);
	}
}

void rank_signal(struct side *side, int rank, int number)
{
	require(side->pid[rank] > 0 && !kill(side->pid[rank], number), "rank %d cannot be signalled", rank);
}

void rank_kill(struct side *side, int rank)
{
	rank_signal(side, rank, SIGKILL);
	waitpid(side->pid[rank], NULL, 0);
	side->pid[rank] = 0;
}

void rank_restart(struct side *side, int rank)
{
	int ends[2];

	close(side->wire[rank]);
	require(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "socketpair: %s", strerror(errno));
	side->wire[rank] = ends[0];
	int wires[MAX_RANKS] = { ends[1], -1, -1, -1 };
	side->pid[rank] = rank_start(rank, side->ranks, wires, true);
	close(ends[1]);
}

bool restarted(void)
{
	return process.restarted;
}

/* Time. */

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

void pause_ms(int ms)
{
	struct timespec time = { ms / 1000, ms % 1000 * 1000000L };

	while (nanosleep(&time, &time) && errno == EINTR)
		;
}

struct wait patience(const char *what)
{
	return (struct wait){ .until = now() + PATIENCE, .what = what };
}

bool waiting(struct wait *wait)
{
	if (now() < wait->until)
		return true;
	if (wait->late)
		fail("waited %d s in vain for %s", PATIENCE, wait->what);
	wait->late = true;
	wait->until = now() + 2;
	return true;
}

/* Connections. */

static void both_ways(struct net *net, void *listen_comm, void *handle, struct pair *pair)
{
	struct wait wait = patience("a connection");

	while ((!pair->send || !pair->recv) && waiting(&wait)) {
		int result = SUCCESS;

		if (!pair->send)
			result = net_connect(net, handle, &pair->send);
		require(result == SUCCESS, "connect gave %d: %s", result, last_warning());
		if (!pair->recv)
			result = net_accept(net, listen_comm, &pair->recv);
		require(result == SUCCESS, "accept gave %d: %s", result, last_warning());
	}
}

void pair_open(struct side *side, struct net *net, int rank, struct pair *pair)
{
	uint8_t mine[HANDLE_BYTES] = { 0 }, theirs[HANDLE_BYTES];
	void *listen_comm = NULL;
	int result = net_listen(net, mine, &listen_comm);

	require(result == SUCCESS && listen_comm, "listen gave %d: %s", result, last_warning());
	memcpy(theirs, mine, sizeof(mine));
	if (rank != side->rank) {
		tell(side, rank, mine, sizeof(mine));
		hear(side, rank, theirs, sizeof(theirs));
	}
	*pair = (struct pair){ NULL, NULL };
	both_ways(net, listen_comm, theirs, pair);
	result = net_close_listen(net, listen_comm);
	require(result == SUCCESS, "closeListen gave %d", result);
}

void pair_close(struct net *net, struct pair *pair)
{
	int send = net_close_send(net, pair->send), recv = net_close_recv(net, pair->recv);

	require(send == SUCCESS && recv == SUCCESS, "closeSend gave %d, closeRecv %d", send, recv);
	*pair = (struct pair){ NULL, NULL };
}

/* Memory. */

struct buffer buffer_new(struct net *net, void *comm, size_t size)
{
	struct buffer buffer = { .size = size, .comm = comm };

	require(!posix_memalign((void **)&buffer.at, 4096, size + 4096), "out of memory");
	memset(buffer.at, 0, size + 4096);
	int result = net_reg(net, comm, buffer.at, size, &buffer.mhandle);

	require(result == SUCCESS, "regMr of %zu bytes gave %d: %s", size, result, last_warning());
	return buffer;
}

void buffer_free(struct net *net, struct buffer *buffer)
{
	int result = net_dereg(net, buffer->comm, buffer->mhandle);

	require(result == SUCCESS, "deregMr gave %d", result);
	free(buffer->at);
	buffer->at = NULL;
}

void fill(uint8_t *at, size_t size, uint32_t seed)
{
	uint32_t state = seed * 2654435761u + 12345;

	for (size_t i = 0; i < size; i++) {
		state = state * 1664525u + 1013904223u;
		at[i] = state >> 24;
	}
}

long differs(const uint8_t *at, size_t size, uint32_t seed)
{
	uint32_t state = seed * 2654435761u + 12345;

	for (size_t i = 0; i < size; i++) {
		state = state * 1664525u + 1013904223u;
		if (at[i] != (uint8_t)(state >> 24))
			return (long)i;
	}
	return -1;
}

/* Messages. */

void *send_start(struct net *net, struct buffer *from, size_t size, int tag)
{
	struct wait wait = patience("isend to take a message");

	while (waiting(&wait)) {
		void *request = (void *)0xdead;
		int result = net_isend(net, from->comm, from->at, size, tag, from->mhandle, &request);

		require(result == SUCCESS, "isend of %zu bytes gave %d: %s", size, result, last_warning());
		require(request != (void *)0xdead, "isend left its request as it was");
		if (request)
			return request;
	}
	return NULL;
}

void *recv_start(struct net *net, struct buffer *into, size_t size, int tag)
{
	struct wait wait = patience("irecv to take a buffer");

	while (waiting(&wait)) {
		void *request = (void *)1;
		int result = net_irecv(net, into->comm, into->at, size, tag, into->mhandle, &request);

		require(result == SUCCESS, "irecv of %zu bytes gave %d: %s", size, result, last_warning());
		require(request != (void *)1, "irecv left its request as it was");
		if (request)
			return request;
	}
	return NULL;
}

bool tested(struct net *net, void *request, int *size, int *result)
{
	int done = 0;

	*size = -1;
	*result = net_test(net, request, &done, size);
	return done;
}

int finish(struct net *net, void *request)
{
	struct wait wait = patience("a request to be done");
	int size, result;

	while (waiting(&wait)) {
		bool done = tested(net, request, &size, &result);

		require(result == SUCCESS, "test gave %d: %s", result, last_warning());
		if (done)
			break;
	}
	return size;
}

void exchange(struct net *net, struct pair *pair, size_t size, uint32_t seed)
{
	size_t room = size ? size : 1;
	struct buffer from = buffer_new(net, pair->send, room), into = buffer_new(net, pair->recv, room);
	void *recv = recv_start(net, &into, room, 7);
	void *send;

	fill(from.at, size, seed);
	send = send_start(net, &from, size, 7);
	/* Neither waits for the other: with oneself at the other end one call serves both. */
	bool sent = false, received = false;
	struct wait wait = patience("a message");
	int got = -1, length, result;

	while ((!sent || !received) && waiting(&wait)) {
		if (!sent) {
			sent = tested(net, send, &length, &result);
			require(result == SUCCESS, "test of a send gave %d: %s", result, last_warning());
		}
		if (!received) {
			received = tested(net, recv, &got, &result);
			require(result == SUCCESS, "test of a receive gave %d: %s", result, last_warning());
		}
	}
	require(got == (int)size, "a message of %zu bytes was received as %d", size, got);
	long at = differs(into.at, size, seed);
	require(at < 0, "of a message of %zu bytes, byte %ld is wrong", size, at);
	buffer_free(net, &from);
	buffer_free(net, &into);
}
