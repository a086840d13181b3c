/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A network plugin that tests the driver. It carries messages between processes of one machine over Unix sockets and
 * keeps the rules; each word in TOY_BREAK makes it break one, which the driver has to notice (faults.txt). It is for
 * nothing else. The tables of the versions are in tables.c.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "toy.h"

enum { MAGIC = 0x3459544f, VERSION = 1, LIVE = 32, KIND_LISTEN = 1, KIND_SEND, KIND_RECV };

struct handle {
	uint32_t magic, version;
	uint64_t pid;
	char name[40];
	uint32_t sum;
};
_Static_assert(sizeof(struct handle) <= HANDLE_BYTES, "handle");

struct message {
	uint32_t bytes;
	int32_t tag;
};

struct request {
	struct comm *comm;
	bool used, done;
	uint8_t *data;
	size_t size, moved; /* moved counts the message's head too */
	struct message message;
	int tag;
};

struct comm {
	struct comm *next;
	int kind, fd, failed;
	uint64_t peer;
	bool told_tag;
	struct request requests[LIVE];
	unsigned first, count; /* of those that are not done, in order */
	struct request *order[LIVE];
};

struct region {
	uint8_t *at;
	size_t size;
};

static struct {
	pthread_mutex_t lock;
	struct comm *comms;
	int inits, listens;
	logger_t log;
	pid_t pid;
} toy = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool breaks(const char *what)
{
	const char *all = getenv("TOY_BREAK");

	return all && !strcmp(all, what);
}

#define WARN(...) toy.log(LEVEL_WARN, ~0ul, __func__, __LINE__, __VA_ARGS__)

static double seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static void nap(int ms)
{
	struct timespec time = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&time, NULL);
}

static uint32_t sum(const struct handle *handle)
{
	const uint8_t *bytes = (const uint8_t *)handle;
	uint32_t sum = 1;

	for (size_t i = 0; i < offsetof(struct handle, sum); i++)
		sum = sum * 31 + bytes[i];
	return sum;
}

int toy_init(void **ctx, logger_t log)
{
	const char *device = getenv("USB4_DEVICE");

	toy.log = log;
	if (!device || strncmp(device, "soft:", 5) || !device[5] || strchr(device, '/')) {
		if (!breaks("silent"))
			WARN("usb4: no such device, set USB4_DEVICE=soft:NAME");
		return SYSTEM_ERROR;
	}
	if (breaks("signals"))
		signal(SIGPIPE, SIG_IGN);
	pthread_mutex_lock(&toy.lock);
	toy.inits++;
	toy.pid = getpid();
	pthread_mutex_unlock(&toy.lock);
	if (ctx)
		*ctx = breaks("shared") ? &toy : malloc(1);
	return SUCCESS;
}

static void destroy(struct comm *comm)
{
	pthread_mutex_lock(&toy.lock);
	for (struct comm **at = &toy.comms; *at; at = &(*at)->next) {
		if (*at == comm) {
			*at = comm->next;
			break;
		}
	}
	pthread_mutex_unlock(&toy.lock);
	close(comm->fd);
	free(comm);
}

static void *log_later(void *nothing)
{
	nap(50);
	WARN("good-bye");
	return nothing;
}

int toy_finalize(void *ctx)
{
	if (ctx != &toy)
		free(ctx);
	pthread_mutex_lock(&toy.lock);
	int left = --toy.inits;
	pthread_mutex_unlock(&toy.lock);
	while (left == 0 && toy.comms && !breaks("leak"))
		destroy(toy.comms);
	pthread_t thread;
	if (left == 0 && breaks("late"))
		pthread_create(&thread, NULL, log_later, NULL);
	return SUCCESS;
}

static struct comm *create(int kind, int fd)
{
	struct comm *comm = calloc(1, sizeof(*comm));

	comm->kind = kind;
	comm->fd = fd;
	pthread_mutex_lock(&toy.lock);
	comm->next = toy.comms;
	toy.comms = comm;
	pthread_mutex_unlock(&toy.lock);
	return comm;
}

static int new_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | (breaks("cloexec") ? 0 : SOCK_CLOEXEC), 0);
	int room = 65536;

	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	return fd;
}

static socklen_t address(const struct handle *handle, struct sockaddr_un *un)
{
	memset(un, 0, sizeof(*un));
	un->sun_family = AF_UNIX;
	return offsetof(struct sockaddr_un, sun_path) + 1 +
	       snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "%.39s", handle->name);
}

int toy_listen(int dev, void *raw, void **listen_comm)
{
	struct handle handle = { .magic = MAGIC, .version = VERSION, .pid = getpid() };
	struct sockaddr_un un;
	int fd;

	if (dev || toy.pid != getpid())
		return INVALID_ARGUMENT;
	pthread_mutex_lock(&toy.lock);
	int number = ++toy.listens;
	pthread_mutex_unlock(&toy.lock);
	snprintf(handle.name, sizeof(handle.name), "toy-%d-%d", getpid(), number);
	handle.sum = sum(&handle);
	fd = new_socket();
	socklen_t length = address(&handle, &un);
	if (fd < 0 || bind(fd, (struct sockaddr *)&un, length) || listen(fd, 64))
		return SYSTEM_ERROR;
	memset(raw, 0, HANDLE_BYTES);
	memcpy(raw, &handle, sizeof(handle));
	*listen_comm = create(KIND_LISTEN, fd);
	return SUCCESS;
}

int toy_connect(int dev, void *raw, void **send_comm)
{
	struct handle handle;
	struct sockaddr_un un;

	memcpy(&handle, raw, sizeof(handle));
	*send_comm = NULL;
	if (dev)
		return INVALID_ARGUMENT;
	if (handle.version != VERSION && handle.magic == MAGIC && !breaks("version")) {
		WARN("peer speaks version %u, this is version %d", handle.version, VERSION);
		return INVALID_USAGE;
	}
	if (handle.magic != MAGIC || (handle.sum != sum(&handle) && !breaks("version"))) {
		WARN("this is no handle of a peer");
		return INVALID_USAGE;
	}
	int fd = new_socket();
	if (connect(fd, (struct sockaddr *)&un, address(&handle, &un))) {
		int error = errno;

		close(fd);
		if (error == EAGAIN)
			return SUCCESS;
		WARN("peer %d cannot be reached", (int)handle.pid);
		return REMOTE_ERROR;
	}
	struct comm *comm = create(KIND_SEND, fd);
	comm->peer = handle.pid;
	*send_comm = comm;
	return SUCCESS;
}

int toy_accept(void *listen_comm, void **recv_comm)
{
	struct comm *listening = listen_comm;

	*recv_comm = NULL;
	if (breaks("block"))
		nap(2);
	int fd = accept4(listening->fd, NULL, NULL, SOCK_NONBLOCK | (breaks("cloexec") ? 0 : SOCK_CLOEXEC));
	if (fd >= 0)
		*recv_comm = create(KIND_RECV, fd);
	return SUCCESS;
}

int toy_reg(void *comm, void *data, size_t size, void **mhandle)
{
	struct region *region = malloc(sizeof(*region));

	(void)comm;
	*region = (struct region){ data, size };
	*mhandle = region;
	return SUCCESS;
}

static int broken(struct comm *comm, int why, const char *reason)
{
	if (!comm->failed) {
		WARN("peer %d, link 0: %s", (int)comm->peer, reason);
		comm->failed = why;
	}
	return comm->failed;
}

static int progress(struct comm *comm);

int toy_dereg(void *raw, void *mhandle)
{
	struct comm *comm = raw;
	struct region *region = mhandle;
	bool live = false;

	for (unsigned i = 0; i < comm->count; i++) {
		uint8_t *data = comm->order[(comm->first + i) % LIVE]->data;

		live |= data >= region->at && data < region->at + region->size;
	}
	free(region);
	for (int i = 0; i < 300 && live && breaks("waits") && comm->count; i++) {
		progress(comm);
		nap(1);
	}
	if (live && !breaks("touch")) {
		/* What is under way cannot be told from what follows: the connection is at its end. */
		comm->count = 0;
		shutdown(comm->fd, SHUT_RDWR);
		comm->failed = INTERNAL_ERROR;
	}
	return SUCCESS;
}

/* Moves bytes of the oldest request; 0, or what has failed. */
static int move(struct comm *comm, struct request *request)
{
	size_t head = sizeof(struct message), total = head + request->message.bytes;
	bool sends = comm->kind == KIND_SEND;
	uint8_t *at = (uint8_t *)&request->message + request->moved;
	size_t length = head - request->moved;

	if (request->moved >= head) {
		at = request->data + (request->moved - head);
		length = total - request->moved;
	}
	ssize_t got = sends ? send(comm->fd, at, length, MSG_NOSIGNAL) : recv(comm->fd, at, length, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return -1;
	if (got <= 0)
		return breaks("deaf") ? -1 : broken(comm, REMOTE_ERROR, "the connection is closed");
	request->moved += got;
	if (!sends && request->moved == head) {
		if (request->message.bytes > request->size && !breaks("overrun")) {
			WARN("a message of %u bytes for a buffer of %zu", request->message.bytes, request->size);
			return comm->failed = INVALID_USAGE;
		}
		if (request->message.tag != request->tag && !comm->told_tag) {
			WARN("a message of tag %d for a receive of another", request->message.tag);
			comm->told_tag = true;
		}
	}
	return SUCCESS;
}

static int progress(struct comm *comm)
{
	while (comm->count && !comm->failed) {
		struct request *request = comm->order[comm->first % LIVE];
		size_t head = sizeof(struct message);
		int result = SUCCESS;

		if (!(request->moved >= head && request->moved == head + request->message.bytes))
			result = move(comm, request);
		if (result < 0) {
			if (breaks("partial") && comm->kind == KIND_RECV && request->moved > head)
				request->done = true;
			return SUCCESS;
		}
		if (result != SUCCESS)
			return result;
		if (request->moved >= head && request->moved == head + request->message.bytes) {
			request->done = true;
			comm->first++;
			comm->count--;
		}
	}
	return comm->failed;
}

static int post(struct comm *comm, void *data, size_t size, int tag, void **slot)
{
	unsigned most = breaks("shallow") ? 8 : LIVE;

	if (toy.pid != getpid())
		return SYSTEM_ERROR;
	if ((int64_t)size < 0 && !breaks("negative"))
		return INVALID_ARGUMENT;
	if (breaks("print"))
		printf("toy: %zu bytes\n", size), fflush(stdout);
	int result = progress(comm);
	if (result != SUCCESS)
		return result;
	for (unsigned i = 0; comm->count < most && i < most; i++) {
		struct request *request = &comm->requests[i];

		if (request->used)
			continue;
		*request = (struct request){ .comm = comm, .used = true, .data = data, .size = size, .tag = tag };
		if (comm->kind == KIND_SEND)
			request->message = (struct message){ (uint32_t)size, tag };
		comm->order[(comm->first + comm->count++) % LIVE] = request;
		if (breaks("order") && comm->kind == KIND_RECV && comm->count == 5) {
			struct request **a = &comm->order[(comm->first + 3) % LIVE], **b = &comm->order[(comm->first + 4) % LIVE];
			struct request *other = *a;

			*a = *b, *b = other;
		}
		if (breaks("early") && comm->kind == KIND_SEND)
			request->done = true;
		if (breaks("slow") && comm->kind == KIND_SEND)
			for (struct comm *one = toy.comms; one; one = one->next)
				if (one->kind == KIND_SEND && one->count > 6)
					usleep(50);
		*slot = request;
		return progress(comm);
	}
	if (!breaks("stale"))
		*slot = NULL;
	return SUCCESS;
}

int toy_isend(void *comm, void *data, size_t size, int tag, void **request)
{
	return post(comm, data, size, tag, request);
}

int toy_irecv(void *comm, void *data, size_t size, int tag, void **request)
{
	return post(comm, data, size, tag, request);
}

int toy_test(void *raw, int *done, int *size)
{
	struct request *request = raw;
	struct comm *comm = request->comm;

	*done = 0;
	if (toy.pid != getpid())
		return SYSTEM_ERROR;
	if (!request->done) {
		int result = progress(comm);

		if (result != SUCCESS && !request->done)
			return result;
		if (breaks("impatient") && comm->kind == KIND_RECV && !request->done) {
			static double since;

			since = since ? since : seconds();
			if (seconds() - since > 2)
				return broken(comm, REMOTE_ERROR, "time-out");
		}
		/* A peer that is gone is noticed though there is nothing to send. */
		char byte;
		if (comm->kind == KIND_SEND && !request->done && !breaks("deaf") &&
		    recv(comm->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
			return broken(comm, REMOTE_ERROR, "the connection is closed");
	}
	if (request->done) {
		*done = 1;
		if (size)
			*size = (int)request->message.bytes;
		if (!breaks("early") && !breaks("partial"))
			request->used = false;
		else
			request->used = request->moved < sizeof(struct message) + request->message.bytes;
	}
	return SUCCESS;
}

int toy_close(void *raw)
{
	struct comm *comm = raw;

	if (!comm)
		return SUCCESS;
	if (toy.pid == getpid())
		destroy(comm);
	return SUCCESS;
}
