/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Every operation and every mistake, between two devices of this process:
 * operations SOFT-NAME. Says what is wrong and ends with 1, or ends with 0.
 */
#include "usb4ring.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { \
	if (!(what)) { \
		fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, usb4ring_error()); \
		exit(1); \
	} \
} while (0)

/* One host. */
struct host {
	struct usb4ring_device *device;
	struct usb4ring_cq *cq;
	struct usb4ring_ep *ep;
	struct usb4ring_mr *mr;
	struct usb4ring_region region;
	struct usb4ring_addr addr;
};

static struct host open_host(const char *name)
{
	struct host host;

	CHECK(usb4ring_open(name, &host.device) == 0);
	CHECK(usb4ring_create_cq(host.device, 64, &host.cq) == 0);
	CHECK(usb4ring_create_ep(host.device, NULL, host.cq, host.cq, &host.ep) == 0);
	CHECK(usb4ring_alloc(host.device, 4096,
			     USB4RING_REMOTE_READ | USB4RING_REMOTE_WRITE | USB4RING_REMOTE_ATOMIC, &host.mr) == 0);
	usb4ring_get_region(host.mr, &host.region);
	CHECK(host.region.start && host.region.len == 4096 && host.region.local_key && host.region.remote_key);
	usb4ring_get_addr(host.ep, &host.addr);
	return host;
}

static void close_host(struct host *host)
{
	/* Any order will do. */
	usb4ring_close(host->device);
	usb4ring_destroy_cq(host->cq);
	usb4ring_destroy_ep(host->ep);
	usb4ring_deregister(host->mr);
}

static char *bytes(const struct host *host)
{
	return host->region.start;
}

/* The next completion of a host; the other one's device is driven as well. */
static struct usb4ring_completion next(const struct host *host, const struct host *other)
{
	struct usb4ring_completion done;

	while (usb4ring_poll(host->cq, &done, 1) == 0) {
		usb4ring_progress(host->device);
		usb4ring_progress(other->device);
		CHECK(usb4ring_check(host->device) == 0);
	}
	return done;
}

static struct usb4ring_request request(const struct host *from, const struct host *to, uint8_t op, uint32_t handle,
				       uint32_t len)
{
	struct usb4ring_request request = {
		.op = op,
		.handle = handle,
		.user_data = 100 + op,
		.addr = bytes(from),
		.local_key = from->region.local_key,
		.len = len,
	};

	if (op != USB4RING_SEND) {
		request.remote_addr = (uintptr_t)to->region.start + 512;
		request.remote_key = to->region.remote_key;
	}
	return request;
}

static void post(const struct host *host, const struct usb4ring_request *request)
{
	CHECK(usb4ring_post(host->ep, request) == 0);
	CHECK(usb4ring_submit(host->ep) == 0);
}

static void messages(const struct host *a, const struct host *b, uint32_t handle)
{
	struct usb4ring_request send = request(a, b, USB4RING_SEND, handle, 5);
	struct usb4ring_completion done;
	struct usb4ring_addr from;

	CHECK(usb4ring_post_recv(b->ep, 7, bytes(b), b->region.local_key, 64) == 0);
	CHECK(usb4ring_submit(b->ep) == 0);
	memcpy(bytes(a), "world", 5);
	memcpy(send.prefix, "hello, ", 7);
	send.prefix_len = 7;
	send.flags = USB4RING_IMM;
	send.imm = 0x1122334455667788;
	post(a, &send);
	done = next(b, a);
	CHECK(done.op == USB4RING_RECV && done.status == USB4RING_OK && done.user_data == 7);
	CHECK(done.len == 12 && done.flags == USB4RING_HAS_IMM && done.value == send.imm);
	CHECK(memcmp(bytes(b), "hello, world", 12) == 0);
	CHECK(usb4ring_source(b->ep, done.source, &from) == 0);
	CHECK(memcmp(&from, &a->addr, sizeof(from)) == 0);
	done = next(a, b);
	CHECK(done.op == USB4RING_SEND && done.status == USB4RING_OK && done.user_data == 101);
}

static void remote_memory(const struct host *a, const struct host *b, uint32_t handle)
{
	struct usb4ring_request work = request(a, b, USB4RING_WRITE, handle, 3);
	struct usb4ring_completion done;
	uint64_t value;

	memcpy(bytes(a), "abc", 3);
	post(a, &work);
	done = next(a, b);
	CHECK(done.op == USB4RING_WRITE && done.status == USB4RING_OK && memcmp(bytes(b) + 512, "abc", 3) == 0);

	memset(bytes(a), 0, 3);
	work = request(a, b, USB4RING_READ, handle, 3);
	post(a, &work);
	done = next(a, b);
	CHECK(done.op == USB4RING_READ && done.status == USB4RING_OK && memcmp(bytes(a), "abc", 3) == 0);

	value = 40;
	memcpy(bytes(b) + 512, &value, 8);
	work = request(a, b, USB4RING_FETCH_ADD, handle, 0);
	work.operand = 2;
	post(a, &work);
	done = next(a, b);
	CHECK(done.op == USB4RING_FETCH_ADD && done.status == USB4RING_OK && done.value == 40);

	work = request(a, b, USB4RING_COMPARE_SWAP, handle, 8);
	work.compare = 42;
	work.operand = 9;
	post(a, &work);
	done = next(a, b);
	memcpy(&value, bytes(a), 8);
	CHECK(done.op == USB4RING_COMPARE_SWAP && done.value == 42 && value == 42);
	memcpy(&value, bytes(b) + 512, 8);
	CHECK(value == 9);

	work = request(a, b, USB4RING_WRITE, handle, 3);
	work.remote_key ^= 1;
	post(a, &work);
	CHECK(next(a, b).status == USB4RING_ACCESS);

	CHECK(usb4ring_post_recv(b->ep, 8, NULL, 0, 0) == 0);
	CHECK(usb4ring_submit(b->ep) == 0);
	work = request(a, b, USB4RING_WRITE, handle, 3);
	work.flags = USB4RING_IMM | USB4RING_UNSIGNALED;
	work.imm = 5;
	post(a, &work);
	done = next(b, a);
	CHECK(done.op == USB4RING_RECV_WRITE && done.user_data == 8 && done.value == 5 && done.len == 3);
}

static void sleep_and_wake(const struct host *a, const struct host *b, uint32_t handle)
{
	struct usb4ring_request send = request(a, b, USB4RING_SEND, handle, 1);
	struct pollfd fd = { .events = POLLIN };
	struct usb4ring_completion done;

	CHECK(usb4ring_wait(b->cq, 1000000) == 0);
	fd.fd = usb4ring_wait_fd(b->cq);
	CHECK(fd.fd >= 0);
	CHECK(usb4ring_post_recv(b->ep, 9, bytes(b), b->region.local_key, 64) == 0);
	CHECK(usb4ring_submit(b->ep) == 0);
	CHECK(usb4ring_arm(b->cq) == 1);
	CHECK(poll(&fd, 1, 0) == 0);
	post(a, &send);
	CHECK(poll(&fd, 1, 30000) == 1);
	CHECK(usb4ring_poll(b->cq, &done, 1) == 1 && done.user_data == 9);
	CHECK(usb4ring_wait(a->cq, USB4RING_FOREVER) == 1);
	CHECK(usb4ring_poll(a->cq, &done, 1) == 1);
}

static void mistakes(const struct host *a, uint32_t handle)
{
	struct usb4ring_ep_config config = { .kind = 9 };
	struct usb4ring_request send = { .op = USB4RING_SEND, .handle = handle, .prefix_len = 25 };
	struct usb4ring_addr nobody = { .node = { 1, 2 } };
	struct usb4ring_device *none = NULL;
	struct usb4ring_mr *mr;
	struct usb4ring_ep *ep;
	int result, posted = 0;

	CHECK(usb4ring_open("soft:", &none) == -EINVAL && strstr(usb4ring_error(), "bad device name"));
	CHECK(usb4ring_open("/dev/no-such-device", &none) < 0 && !none && usb4ring_error()[0]);
	CHECK(usb4ring_open("/dev/null", &none) == -ENOTTY);
	CHECK(usb4ring_open("soft:x", NULL) == -EINVAL);
	CHECK(usb4ring_alloc(a->device, 8, 16, &mr) == -EINVAL && strstr(usb4ring_error(), "USB4RING_REMOTE_"));
	CHECK(usb4ring_register_dmabuf(a->device, 0, 0, 8, NULL, 0, &mr) == -EOPNOTSUPP);
	CHECK(usb4ring_register_dmabuf(a->device, -1, 0, 8, NULL, 0, &mr) == -EBADF);
	CHECK(usb4ring_create_ep(a->device, &config, a->cq, a->cq, &ep) == -EINVAL);
	config = (struct usb4ring_ep_config) { .reserved = 1 };
	CHECK(usb4ring_create_ep(a->device, &config, a->cq, a->cq, &ep) == -EINVAL);
	CHECK(usb4ring_create_ep(NULL, NULL, a->cq, a->cq, &ep) == -EINVAL && strstr(usb4ring_error(), "NULL"));
	CHECK(usb4ring_open_handle(a->ep, &nobody, 1, &handle) == -EHOSTUNREACH);
	CHECK(usb4ring_post(a->ep, &send) == -EINVAL);
	CHECK(usb4ring_source(a->ep, 0x7fffffff, &nobody) == -ENOENT);
	while ((result = usb4ring_post_recv(a->ep, 0, NULL, 0, 0)) == 0)
		posted++;
	CHECK(result == -EAGAIN && posted == 256 && usb4ring_recv_space(a->ep) == 0);
	usb4ring_close(NULL);
	usb4ring_destroy_cq(NULL);
	usb4ring_destroy_ep(NULL);
	usb4ring_deregister(NULL);
	CHECK(usb4ring_poll(NULL, NULL, 1) == 0 && usb4ring_progress(NULL) == 0 && usb4ring_submit(NULL) == -EINVAL);
}

/* A child has nothing of its parent's, and does it no harm. */
static void forked(struct host *a, struct host *b, uint32_t handle)
{
	struct usb4ring_request send = request(a, b, USB4RING_SEND, handle, 8);
	struct usb4ring_completion done;
	struct usb4ring_addr addr;
	struct usb4ring_peer peer;
	struct usb4ring_cq *cq;
	struct usb4ring_ep *ep;
	struct usb4ring_mr *mr;
	pid_t child;
	int status;

	/* What it must not take. */
	CHECK(usb4ring_post_recv(b->ep, 7, bytes(b), b->region.local_key, 8) == 0 && usb4ring_submit(b->ep) == 0);
	post(a, &send);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(usb4ring_check(a->device) == -ECHILD && strstr(usb4ring_error(), "fork"));
		CHECK(usb4ring_post(a->ep, &send) == -ECHILD);
		CHECK(usb4ring_post_recv(a->ep, 0, NULL, 0, 0) == -ECHILD);
		CHECK(usb4ring_submit(a->ep) == -ECHILD);
		CHECK(usb4ring_send_space(a->ep) == 0 && usb4ring_recv_space(a->ep) == 0);
		CHECK(usb4ring_open_handle(a->ep, &b->addr, 0, &handle) == -ECHILD);
		CHECK(usb4ring_source(a->ep, 1, &addr) == -ECHILD);
		CHECK(usb4ring_poll(b->cq, &done, 1) == 0 && usb4ring_progress(b->device) == 0);
		CHECK(usb4ring_arm(b->cq) == -ECHILD && usb4ring_wait_fd(b->cq) == -ECHILD);
		CHECK(usb4ring_wait(b->cq, 0) == -ECHILD);
		CHECK(usb4ring_get_peers(a->device, &peer, 1) == 0);
		CHECK(usb4ring_create_cq(a->device, 8, &cq) == -ECHILD);
		CHECK(usb4ring_create_ep(a->device, NULL, a->cq, a->cq, &ep) == -ECHILD);
		CHECK(usb4ring_alloc(a->device, 8, 0, &mr) == -ECHILD);
		CHECK(usb4ring_register(a->device, &send, 8, 0, &mr) == -ECHILD);
		CHECK(usb4ring_register_dmabuf(a->device, 0, 0, 8, NULL, 0, &mr) == -ECHILD);
		usb4ring_close_handle(a->ep, handle);
		close_host(a);
		close_host(b);
		_exit(7);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	CHECK(next(a, b).op == USB4RING_SEND);
	done = next(b, a);
	CHECK(done.op == USB4RING_RECV && done.user_data == 7 && done.len == 8);
}

int main(int argc, char **argv)
{
	struct usb4ring_info info;
	struct usb4ring_peer peers[4];
	struct host a, b;
	uint32_t handle;
	int result;

	CHECK(argc == 2 && usb4ring_version()[0] && !usb4ring_error()[0]);
	a = open_host(argv[1]);
	b = open_host(argv[1]);
	usb4ring_get_info(a.device, &info);
	CHECK(memcmp(&info.node, &a.addr.node, sizeof(info.node)) == 0 && info.max_message >= 1 << 20);
	do {
		result = usb4ring_open_handle(a.ep, &b.addr, 0, &handle);
	} while (result == -EINPROGRESS);
	CHECK(result == 0);
	CHECK(usb4ring_get_peers(a.device, peers, 4) == 1 && peers[0].state == USB4RING_PEER_UP);
	CHECK(memcmp(&peers[0].node, &b.addr.node, sizeof(peers[0].node)) == 0);
	messages(&a, &b, handle);
	remote_memory(&a, &b, handle);
	sleep_and_wake(&a, &b, handle);
	forked(&a, &b, handle);
	mistakes(&a, handle);
	usb4ring_close_handle(a.ep, handle);
	close_host(&a);
	close_host(&b);
	return 0;
}
