/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What rules are written with. Each rule runs in a process of its own; one that wants peers runs in several, all of
 * them in the same function, told apart by side->rank. A failed requirement ends the process.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "net.h"

enum { MAX_RANKS = 4 };

struct options {
	const char *plugin;
	int version;
	bool full;
};
extern struct options options;

struct side {
	int rank, ranks;
	int wire[MAX_RANKS]; /* to each other rank: messages, not bytes */
	pid_t pid[MAX_RANKS]; /* rank 0 knows them */
};

struct rule {
	int number;
	int ranks;
	int seconds; /* after which it has failed */
	const char *title;
	void (*run)(struct side *side);
};
extern const struct rule load_rules[], connect_rules[], data_rules[], flow_rules[], failure_rules[], process_rules[],
	chaos_rules[];

/* The rule fails, or cannot be tested here, and this process ends. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void not_tested(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
#define require(condition, ...)                                                                               \
	do {                                                                                                  \
		if (!(condition))                                                                             \
			fail(__VA_ARGS__);                                                                    \
	} while (0)
/* Something worth knowing besides the verdict. */
void remark(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The plugin's logger, and what it has recorded. */
void record(int level, unsigned long flags, const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
int warnings(void);
int records(void);
const char *last_warning(void);
/* Some warning since the first `since` has `part` in it, in any case of letters. */
bool warned_of(int since, const char *part);

/* Other ranks. */
void tell(struct side *side, int rank, const void *data, size_t size);
void hear(struct side *side, int rank, void *data, size_t size);
void barrier(struct side *side);
/* By rank 0: a rank is killed, stopped, waited for, started again. */
void rank_kill(struct side *side, int rank);
void rank_signal(struct side *side, int rank, int signal);
void rank_restart(struct side *side, int rank);
/* By any: whether rank 0 has started this rank again. */
bool restarted(void);

/* Time. */
double now(void); /* seconds */
void pause_ms(int ms);
/* for (struct wait w = patience("a receive"); waiting(&w);) */
struct wait {
	double until;
	const char *what;
	bool late; /* patience is over, and this is the last chance: a clock may have jumped */
};
struct wait patience(const char *what);
bool waiting(struct wait *wait); /* fails the rule when patience is at an end */

/* Both directions of a connection with another rank, or with oneself. */
struct pair {
	void *send, *recv;
};
void pair_open(struct side *side, struct net *net, int rank, struct pair *pair);
void pair_close(struct net *net, struct pair *pair);

/* Registered memory for one direction. */
struct buffer {
	uint8_t *at;
	size_t size;
	void *comm, *mhandle;
};
struct buffer buffer_new(struct net *net, void *comm, size_t size);
void buffer_free(struct net *net, struct buffer *buffer);
void fill(uint8_t *at, size_t size, uint32_t seed);
/* Where the bytes first differ from fill()'s, or -1. */
long differs(const uint8_t *at, size_t size, uint32_t seed);

/* Posts until the plugin takes it, and waits until it is done. */
void *send_start(struct net *net, struct buffer *from, size_t size, int tag);
void *recv_start(struct net *net, struct buffer *into, size_t size, int tag);
int finish(struct net *net, void *request);
/* One message of `size` bytes from one side's buffer to the other's, checked. */
void exchange(struct net *net, struct pair *pair, size_t size, uint32_t seed);

/* One test; the result through `result`. */
bool tested(struct net *net, void *request, int *size, int *result);

#endif
