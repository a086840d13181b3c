/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the harness and the main program share. */
#ifndef DRIVER_H
#define DRIVER_H

#include "harness.h"

/* Exit status of a process of a rule. */
enum { PASSED = 0, FAILED = 1, NOT_TESTED = 77 };

/* This process. */
struct process {
	int report; /* one line a write */
	int rule, rank;
	bool restarted;
};
extern struct process process;

/* Starts a rank of the rule that runs; wires[i] is its end of the wire to rank i, or -1. */
pid_t rank_start(int rank, int ranks, const int *wires, bool again);

#endif
