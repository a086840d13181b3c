// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Tracepoints, and whether the core looks for what they tell.
 *
 * In C because tracepoints are macros.
 */
#include "usb4_ring.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

u32 u4_tracing;

/* Of the core's tracepoints, those enabled. */
static u32 enabled;
/* How often any of them has been. */
static u32 times;

/*
 * Called when one of the core's tracepoints is enabled, and when it is disabled;
 * one at a time.
 */
int u4_trace_core(void)
{
	if (!enabled++)
		/* Not 0, and not what it was before. */
		WRITE_ONCE(u4_tracing, ++times << 1 | 1);
	return 0;
}

void u4_trace_core_end(void)
{
	if (!--enabled)
		WRITE_ONCE(u4_tracing, 0);
}

void usb4_home_trace_turn(size_t handle, const struct usb4_core_turn *turn)
{
	u32 link = ((struct u4_link *)handle)->number;

	if (turn->lost || turn->resent || turn->probes)
		trace_u4_loss(link, turn);
	if (turn->malformed || turn->corrupt || turn->wrong_tag ||
	    turn->duplicate || turn->no_room)
		trace_u4_drop(link, turn);
	if (turn->parked)
		trace_u4_park(link, turn);
	if (turn->completed || turn->failed || turn->executed)
		trace_u4_complete(link, turn);
}
