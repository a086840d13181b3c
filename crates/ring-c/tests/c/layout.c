/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The numbers of src/types.rs, as a C compiler sees them. Compiled only. */
#include "usb4ring.h"

_Static_assert(sizeof(struct usb4ring_node) == 16, "node");
_Static_assert(sizeof(struct usb4ring_addr) == 24, "addr");
_Static_assert(offsetof(struct usb4ring_addr, incarnation) == 20, "addr");
_Static_assert(sizeof(struct usb4ring_info) == 40, "info");
_Static_assert(offsetof(struct usb4ring_info, max_regions) == 36, "info");
_Static_assert(sizeof(struct usb4ring_peer) == 32, "peer");
_Static_assert(offsetof(struct usb4ring_peer, rate_mbps) == 24, "peer");
_Static_assert(sizeof(struct usb4ring_region) == 32, "region");
_Static_assert(offsetof(struct usb4ring_region, local_key) == 24, "region");
_Static_assert(sizeof(struct usb4ring_completion) == 32, "completion");
_Static_assert(offsetof(struct usb4ring_completion, flags) == 26, "completion");
_Static_assert(sizeof(struct usb4ring_ep_config) == 16, "ep_config");
_Static_assert(offsetof(struct usb4ring_ep_config, rq_depth) == 8, "ep_config");
_Static_assert(sizeof(struct usb4ring_request) == 96, "request");
_Static_assert(offsetof(struct usb4ring_request, prefix) == 72, "request");

int main(void)
{
	return 0;
}
