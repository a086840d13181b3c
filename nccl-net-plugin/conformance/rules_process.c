/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* R28 to R32: the process the plugin is a guest in. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

extern char **environ;

/* Descriptors open now, but for those in `except`. */
static int descriptors(int *all, int most, const int *except, int count)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int found = 0;

	require(dir, "cannot list descriptors");
	while ((entry = readdir(dir)) && found < most) {
		int fd = atoi(entry->d_name);
		bool skip = entry->d_name[0] == '.' || fd == dirfd(dir);

		for (int i = 0; i < count; i++)
			skip |= except[i] == fd;
		if (!skip)
			all[found++] = fd;
	}
	closedir(dir);
	return found;
}

/* Shared writable mappings that a child would inherit. */
static int inherited_mappings(char *example, size_t room)
{
	char line[4352], head[4352] = "";
	int count = 0;
	bool shared = false;
	FILE *maps = fopen("/proc/self/smaps", "r");

	require(maps, "cannot read smaps");
	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to;
		char rights[8];

		if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3) {
			shared = rights[1] == 'w' && rights[3] == 's';
			snprintf(head, sizeof(head), "%s", line);
		} else if (shared && !strncmp(line, "VmFlags:", 8) && !strstr(line, " dc")) {
			count++;
			snprintf(example, room, "%.*s", (int)strcspn(head, "\n"), head);
		}
	}
	fclose(maps);
	return count;
}

/* What a child of fork may do: ask, fail, close, exit. */
static int in_the_child(struct net *net, struct pair *pair, struct buffer *buffer)
{
	char raw[256];
	void *request = NULL, *comm = NULL;
	uint8_t handle[HANDLE_BYTES];

	alarm(10);
	net_properties(net, 0, raw);
	net_listen(net, handle, &comm);
	/* Nothing may reach the device: the parent would see a message it has not sent. */
	net_isend(net, pair->send, buffer->at, 64, 0, buffer->mhandle, &request);
	net_dereg(net, pair->send, buffer->mhandle);
	net_close_send(net, pair->send);
	net_close_recv(net, pair->recv);
	net_finalize(net, net->ctx);
	return 0;
}

static void r28_fork(struct side *side)
{
	int before[256], after[256], status;
	int count = descriptors(before, 256, NULL, 0);
	char example[300] = "";
	int mapped = inherited_mappings(example, sizeof(example));
	struct net net;
	struct pair pair;

	net_open(&net);
	pair_open(side, &net, !side->rank, &pair);
	exchange(&net, &pair, 5000, 1);
	int added = descriptors(after, 256, before, count);
	for (int i = 0; i < added; i++)
		require(fcntl(after[i], F_GETFD) & FD_CLOEXEC, "descriptor %d has no FD_CLOEXEC", after[i]);
	mapped = inherited_mappings(example, sizeof(example)) - mapped;
	require(mapped <= 0, "%d shared mappings without MADV_DONTFORK, such as %s", mapped, example);
	struct buffer buffer = buffer_new(&net, pair.send, 4096);
	for (int i = 0; i < 4; i++) {
		pid_t child = fork();

		require(child >= 0, "fork");
		if (!child) {
			/* One asks, one only exits, as PyTorch's data loaders do. */
			if (i % 2)
				_exit(in_the_child(&net, &pair, &buffer));
			exit(0);
		}
		exchange(&net, &pair, 5000, 2 + i);
		waitpid(child, &status, 0);
		require(WIFEXITED(status) && !WEXITSTATUS(status), "a child that %s ended with status %#x",
			i % 2 ? "calls the plugin" : "only exits", status);
		exchange(&net, &pair, 70000, 3 + i);
	}
	buffer_free(&net, &buffer);
	barrier(side);
	pair_close(&net, &pair);
	net_close(&net);
	remark("%d descriptors of its own, all close-on-exec", added);
}

static void *tests_for_ever(void *both)
{
	void **arguments = both;
	int size, result;

	for (;;)
		tested(arguments[0], arguments[1], &size, &result);
	return NULL;
}

static void r29_exit(struct side *side)
{
	static struct net net;
	static void *arguments[2];
	struct pair pair;
	pthread_t thread;
	int status = 0;

	net_open(&net);
	pair_open(side, &net, !side->rank, &pair);
	exchange(&net, &pair, 5000, 29);
	struct buffer buffer = buffer_new(&net, pair.recv, 1 << 20);
	void *request = recv_start(&net, &buffer, 1 << 20, 0);
	barrier(side);
	if (side->rank) {
		/* Nothing is destroyed, a request is live, and a thread is in the plugin: the end of many a program. */
		arguments[0] = &net, arguments[1] = request;
		require(!pthread_create(&thread, NULL, tests_for_ever, arguments), "no thread");
		pause_ms(20);
		exit(0);
	}
	struct wait wait = patience("a process that exits without destroying anything to be gone");
	while (waitpid(side->pid[1], &status, WNOHANG) == 0 && waiting(&wait))
		pause_ms(5);
	side->pid[1] = 0;
	require(WIFEXITED(status) && !WEXITSTATUS(status), "exit without destroy ended with status %#x", status);
	int size, result = SUCCESS;
	while (result == SUCCESS && waiting(&wait))
		tested(&net, request, &size, &result);
	exit(0);
}

struct lane {
	struct net *net;
	struct pair pair;
	int done;
};

static void *run_lane(void *argument)
{
	struct lane *lane = argument;

	for (; lane->done < 100; lane->done++)
		exchange(lane->net, &lane->pair, (size_t)1 << (lane->done % 16), lane->done);
	return NULL;
}

static void r30_threads(struct side *side)
{
	enum { THREADS = 4 };
	struct net net;
	struct lane lanes[THREADS];
	struct pair waits;
	pthread_t threads[THREADS], waiter;

	net_open(&net);
	pair_open(side, &net, !side->rank, &waits);
	struct buffer buffer = buffer_new(&net, waits.recv, 4096);
	static void *arguments[2];
	arguments[0] = &net, arguments[1] = recv_start(&net, &buffer, 4096, 0);
	for (int i = 0; i < THREADS; i++) {
		lanes[i] = (struct lane){ .net = &net };
		pair_open(side, &net, !side->rank, &lanes[i].pair);
	}
	barrier(side);
	/* One thread polls a connection on which nothing comes, and takes nothing from the others. */
	require(!pthread_create(&waiter, NULL, tests_for_ever, arguments), "no thread");
	for (int i = 0; i < THREADS; i++)
		require(!pthread_create(&threads[i], NULL, run_lane, &lanes[i]), "no thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	barrier(side);
	remark("four threads with a connection each beside one that polls for ever; that no lock is held across a call that "
	       "sleeps is for a reader of the plugin");
	_exit(0);
}

static void r31_guest(struct side *side)
{
	struct sigaction before[65], after;
	cpu_set_t cpus_before, cpus_after;
	sigset_t mask_before, mask_after;
	char *environment[1024];
	int count = 0;
	struct net net;
	struct pair pair;

	for (; environ[count] && count < 1024; count++)
		environment[count] = strdup(environ[count]);
	for (int i = 1; i < 65; i++)
		sigaction(i, NULL, &before[i]);
	sched_getaffinity(0, sizeof(cpus_before), &cpus_before);
	pthread_sigmask(SIG_SETMASK, NULL, &mask_before);
	net_open(&net);
	pair_open(side, &net, side->rank, &pair);
	exchange(&net, &pair, 100000, 31);
	pair_close(&net, &pair);
	net_close(&net);
	for (int i = 1; i < 65; i++) {
		/* Two belong to the C library, which uses them when it first needs to. */
		if (i == 32 || i == 33)
			continue;
		sigaction(i, NULL, &after);
		require(after.sa_handler == before[i].sa_handler && after.sa_flags == before[i].sa_flags,
			"the handling of signal %d has changed", i);
	}
	sched_getaffinity(0, sizeof(cpus_after), &cpus_after);
	require(CPU_EQUAL(&cpus_before, &cpus_after), "the calling thread's CPUs have changed");
	pthread_sigmask(SIG_SETMASK, NULL, &mask_after);
	for (int i = 1; i < 65; i++)
		require(sigismember(&mask_before, i) == sigismember(&mask_after, i), "signal %d is blocked differently", i);
	for (int i = 0; i < count; i++)
		require(environ[i] && !strcmp(environ[i], environment[i]), "the environment has changed: %s", environment[i]);
	require(!environ[count], "the environment has grown: %s", environ[count]);
}

static void r32_narrow_sizes(struct side *side)
{
	void *library = net_library();

	for (int version = 6; version <= 8; version++) {
		struct net net;
		struct pair pair, other;
		void *request = NULL, *mhandle = NULL, *data;
		int minus = -1, tag = 0;

		require(net_find(&net, library, version), "there is no ncclNetPlugin_v%d", version);
		require(net_init(&net) == SUCCESS, "init of v%d: %s", version, last_warning());
		pair_open(side, &net, side->rank, &pair);
		pair_open(side, &net, side->rank, &other);
		struct buffer from = buffer_new(&net, pair.send, 4096), into = buffer_new(&net, pair.recv, 4096);
		int result = ((isend_v6_t)net.table[ISEND])(pair.send, from.at, -1, 0, from.mhandle, &request);
		require(result != SUCCESS, "isend of -1 bytes by v%d is taken", version);
		data = into.at;
		result = ((irecv_v6_t)net.table[IRECV])(pair.recv, 1, &data, &minus, &tag, &into.mhandle, &request);
		require(result != SUCCESS, "irecv of -1 bytes by v%d is taken", version);
		if (version < 8) {
			result = ((reg_mr_v6_t)net.table[REG_MR])(pair.recv, data, -1, POINTER_HOST, &mhandle);
			require(result != SUCCESS, "regMr of -1 bytes by v%d is taken", version);
		}
		exchange(&net, &other, 4096, version);
		buffer_free(&net, &from);
		buffer_free(&net, &into);
		pair_close(&net, &pair);
		pair_close(&net, &other);
		net_close(&net);
	}
	remark("the 1 GiB limit of v8 and older is NCCL's own");
}

const struct rule process_rules[] = {
	{ 28, 2, 60, "fork: nothing leaks into the child, which may ignore the plugin or ask it", r28_fork },
	{ 29, 2, 60, "exit without destroy neither hangs nor crashes", r29_exit },
	{ 30, 2, 60, "threads with a connection each do not hold each other up", r30_threads },
	{ 31, 1, 30, "signals, CPUs and environment stay as they were", r31_guest },
	{ 32, 1, 30, "negative sizes of v6 to v8 are refused", r32_narrow_sizes },
	{ 0 },
};
