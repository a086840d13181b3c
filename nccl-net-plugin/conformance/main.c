/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Does a network plugin keep the rules R1 to R32? Prints one line for each and a verdict; exit status 0 if all passed,
 * 1 if not, 2 for wrong usage.
 *
 *     conformance [--plugin NAME] [--version 6..12] [--rule N]... [--full]
 *
 * Start reading at harness.h, then a rule in rules_data.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

static const struct rule *const groups[] = {
	load_rules, connect_rules, data_rules, flow_rules, failure_rules, process_rules, chaos_rules,
};

/* The next rule after `rule` in the order of numbers; NULL before the first. */
static const struct rule *next_rule(const struct rule *rule)
{
	size_t group = 0;

	if (!rule)
		return groups[0];
	if (rule[1].run)
		return rule + 1;
	for (; group < sizeof(groups) / sizeof(*groups); group++)
		for (const struct rule *one = groups[group]; one->run; one++)
			if (one == rule)
				return group + 1 < sizeof(groups) / sizeof(*groups) ? groups[group + 1] : NULL;
	return NULL;
}

static const struct rule *find_rule(int number)
{
	for (const struct rule *rule = next_rule(NULL); rule; rule = next_rule(rule))
		if (rule->number == number)
			return rule;
	return NULL;
}

pid_t rank_start(int rank, int ranks, const int *wires, bool again)
{
	char text[6][24];
	const char *arguments[24] = { "conformance", "--plugin", options.plugin };
	int count = 3;
	pid_t pid = fork();

	if (pid)
		return pid;
	/* Ranks end with rank 0, and rank 0 with the driver. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (rank == 0)
		setpgid(0, 0);
	for (int i = 0; i < MAX_RANKS; i++)
		if (wires[i] >= 0)
			fcntl(wires[i], F_SETFD, 0);
	fcntl(process.report, F_SETFD, 0);
	snprintf(text[0], sizeof(text[0]), "%d", options.version);
	snprintf(text[1], sizeof(text[1]), "%d", process.rule);
	snprintf(text[2], sizeof(text[2]), "%d/%d", rank, ranks);
	snprintf(text[3], sizeof(text[3]), "%d", process.report);
	snprintf(text[4], sizeof(text[4]), "%d,%d,%d,%d", wires[0], wires[1], wires[2], wires[3]);
	const char *more[] = { "--version", text[0], "--in-rule", text[1], "--rank",
			       text[2],	    "--report", text[3],	    "--wires", text[4] };
	for (size_t i = 0; i < sizeof(more) / sizeof(*more); i++)
		arguments[count++] = more[i];
	if (again)
		arguments[count++] = "--again";
	if (options.full)
		arguments[count++] = "--full";
	arguments[count] = NULL;
	execv("/proc/self/exe", (char *const *)arguments);
	_exit(FAILED);
}

/* Rank 0 starts the others, each wired to each. */
static void start_ranks(struct side *side)
{
	int wires[MAX_RANKS][MAX_RANKS];

	memset(wires, -1, sizeof(wires));
	for (int a = 0; a < side->ranks; a++) {
		for (int b = a + 1; b < side->ranks; b++) {
			int ends[2];

			require(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "socketpair: %s",
				strerror(errno));
			wires[a][b] = ends[0];
			wires[b][a] = ends[1];
		}
	}
	memcpy(side->wire, wires[0], sizeof(side->wire));
	for (int rank = 1; rank < side->ranks; rank++) {
		side->pid[rank] = rank_start(rank, side->ranks, wires[rank], false);
		require(side->pid[rank] > 0, "fork: %s", strerror(errno));
	}
	for (int a = 1; a < side->ranks; a++)
		for (int b = 0; b < side->ranks; b++)
			if (a != b)
				close(wires[a][b]);
}

/* One process of a rule. */
static int run_rank(const struct rule *rule, struct side *side)
{
	int outcome = PASSED;

	if (side->rank == 0)
		start_ranks(side);
	rule->run(side);
	for (int rank = 1; rank < side->ranks && side->rank == 0; rank++) {
		int status = 0;

		if (side->pid[rank] <= 0)
			continue;
		waitpid(side->pid[rank], &status, 0);
		if (WIFSIGNALED(status))
			fail("rank %d was ended by signal %d", rank, WTERMSIG(status));
		if (WEXITSTATUS(status) != PASSED)
			outcome = WEXITSTATUS(status);
	}
	return outcome;
}

/* A rule, in a process group of its own. */
static int run_rule(const struct rule *rule, char *said, size_t room)
{
	int report[2], status = 0;
	int none[MAX_RANKS] = { -1, -1, -1, -1 };
	size_t used = 0;
	bool late = false;
	double until = now() + rule->seconds * (options.full ? 6 : 1);

	if (pipe2(report, O_CLOEXEC))
		return FAILED;
	process.report = report[1];
	process.rule = rule->number;
	pid_t pid = rank_start(0, rule->ranks, none, false);

	close(report[1]);
	said[0] = 0;
	for (;;) {
		struct pollfd ready = { .fd = report[0], .events = POLLIN };
		int left = (int)((until - now()) * 1000);

		if (left <= 0) {
			late = true;
			break;
		}
		if (poll(&ready, 1, left) <= 0)
			continue;
		ssize_t got = read(report[0], said + used, room - used - 1);
		if (got <= 0)
			break;
		used += got;
		said[used] = 0;
	}
	/* What has left the rule undone, stopped ranks among it, ends with it. */
	if (late)
		kill(-pid, SIGKILL);
	waitpid(pid, &status, 0);
	kill(-pid, SIGKILL);
	close(report[0]);
	process.report = STDERR_FILENO;
	if (late)
		snprintf(said + used, room - used, "FAIL it hangs: not done after %d s\n", rule->seconds);
	else if (WIFSIGNALED(status))
		snprintf(said + used, room - used, "FAIL ended by signal %d (%s)\n", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		return WEXITSTATUS(status);
	return FAILED;
}

/* The lines in `said` that begin with `what`, without it. */
static void print_lines(const char *said, const char *what, const char *before)
{
	size_t length = strlen(what);

	for (const char *line = said; *line; line = strchr(line, '\n') + 1) {
		if (!strncmp(line, what, length))
			printf("%s%.*s\n", before, (int)strcspn(line + length, "\n"), line + length);
		if (!strchr(line, '\n'))
			break;
	}
}

static int run_all(const int *wanted, int count)
{
	static char said[64 * 1024];
	int passed = 0, failed = 0, untested = 0;

	for (const struct rule *rule = next_rule(NULL); rule; rule = next_rule(rule)) {
		bool chosen = count == 0;

		for (int i = 0; i < count; i++)
			chosen |= wanted[i] == rule->number;
		if (!chosen)
			continue;
		double start = now();
		int outcome = run_rule(rule, said, sizeof(said));
		const char *word = outcome == PASSED ? "PASS" : outcome == NOT_TESTED ? "NOT TESTED" : "FAIL";

		passed += outcome == PASSED;
		untested += outcome == NOT_TESTED;
		failed += outcome != PASSED && outcome != NOT_TESTED;
		printf("%s%-3d %s  %s (%.1f s)\n", rule->number > 100 ? "C" : "R", rule->number % 100, word, rule->title, now() - start);
		print_lines(said, "FAIL ", "     why: ");
		print_lines(said, "NOT TESTED ", "     why: ");
		print_lines(said, "REMARK ", "     ");
		fflush(stdout);
	}
	printf("conformance %s: %d passed, %d failed, %d not tested (ncclNetPlugin_v%d)\n",
	       failed || untested ? "FAIL" : "PASS", passed, failed, untested, options.version);
	return failed || untested || !passed ? FAILED : PASSED;
}

static int usage(const char *why)
{
	fprintf(stderr, "conformance: %s\nusage: conformance [--plugin NAME] [--version 6..12] [--rule N]... [--full]\n", why);
	return 2;
}

int main(int argc, char **argv)
{
	int wanted[64], count = 0;
	struct side side = { .rank = 0, .ranks = 1, .wire = { -1, -1, -1, -1 } };

	for (int i = 1; i < argc; i++) {
		const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (!strcmp(name, "--full")) {
			options.full = true;
			continue;
		}
		if (!strcmp(name, "--again")) {
			process.restarted = true;
			continue;
		}
		if (!value)
			return usage("an option lacks its value");
		i++;
		if (!strcmp(name, "--plugin")) {
			options.plugin = value;
		} else if (!strcmp(name, "--version")) {
			options.version = atoi(value);
		} else if (!strcmp(name, "--rule")) {
			if (!find_rule(atoi(value)) || count == 64)
				return usage("there is no such rule");
			wanted[count++] = atoi(value);
		} else if (!strcmp(name, "--in-rule")) {
			process.rule = atoi(value);
		} else if (!strcmp(name, "--report")) {
			process.report = atoi(value);
			fcntl(process.report, F_SETFD, FD_CLOEXEC);
		} else if (!strcmp(name, "--rank")) {
			sscanf(value, "%d/%d", &side.rank, &side.ranks);
			process.rank = side.rank;
		} else if (!strcmp(name, "--wires")) {
			sscanf(value, "%d,%d,%d,%d", &side.wire[0], &side.wire[1], &side.wire[2], &side.wire[3]);
		} else {
			return usage("there is no such option");
		}
	}
	if (options.version < OLDEST || options.version > NEWEST)
		return usage("versions are 6 to 12");
	for (int i = 0; i < MAX_RANKS; i++)
		if (side.wire[i] >= 0)
			fcntl(side.wire[i], F_SETFD, FD_CLOEXEC);
	if (process.rule)
		return run_rank(find_rule(process.rule), &side);
	return run_all(wanted, count);
}
