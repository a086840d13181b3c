// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Ports: frame buffers, and the rings they travel on.
 *
 * In C because of struct tb_ring. Buffers are mapped for DMA once, when the port
 * is opened, and belong to the processor or to the controller in turns: each
 * way across is a dma_sync_single_*(). Rules of the rings, from
 * drivers/thunderbolt/nhi.c:
 *
 * - A ring of n descriptors holds n - 1.
 * - start_poll() is called with interrupts off and the controller's lock held,
 *   after the interrupt was masked: it only announces.
 * - tb_ring_poll_complete() unmasks, by an MMIO read under that lock: it is
 *   called when a link's thread is about to sleep, and the ring is polled once
 *   more after it, since a frame that came before may bring no interrupt.
 * - tb_ring_stop() insists on an interrupt that is not masked.
 * - tb_ring_start() forgets what was posted before; tb_ring_rx() comes after.
 */
#include <linux/dma-mapping.h>
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/jiffies.h>
#include <linux/slab.h>

#include "usb4_rdma.h"

/*
 * The driver looks at consumed descriptors whenever it looks for frames, and
 * needs no interrupt for them. Where the rings cannot do without one, callbacks
 * come from a work item of the ring's, beside tb_ring_poll(): both take each
 * frame once, under the ring's lock.
 */
#ifdef RING_FLAG_NO_INTERRUPT
#define TX_FLAGS	(RING_FLAG_FRAME | RING_FLAG_NO_INTERRUPT)
#else
#define TX_FLAGS	RING_FLAG_FRAME
#endif

/* How long a transmit ring may take to run dry before its paths go. */
#define DRAIN_MS	50

/* Bit of &u4_port.masked. */
#define MASKED		0

/**
 * struct u4_loop_entry - a frame on its way from a host to itself
 * @token: the receive buffer it was copied to
 * @slot: the transmit buffer it came from
 * @len: bytes
 */
struct u4_loop_entry {
	u32 token;
	u16 slot;
	u16 len;
};

static struct u4_port *to_port(size_t port)
{
	return (struct u4_port *)port;
}

/* Free receive buffers */

static void push_free(struct u4_port *port, u32 token)
{
	spin_lock(&port->lock);
	if (!WARN_ON_ONCE(port->free_count >= u4_limits.rx_tokens))
		port->free[port->free_count++] = token;
	spin_unlock(&port->lock);
}

/* Only a link's owner takes any, so there are no fewer than it has seen. */
static bool pop_free(struct u4_port *port, u32 *token)
{
	bool any;

	spin_lock(&port->lock);
	any = port->free_count;
	if (any)
		*token = port->free[--port->free_count];
	spin_unlock(&port->lock);
	return any;
}

static void free_all(struct u4_port *port)
{
	u32 token;

	for (token = 0; token < u4_limits.rx_tokens; token++)
		port->free[token] = token;
	port->free_count = u4_limits.rx_tokens;
}

/* Rings */

static void rx_start_poll(void *data)
{
	struct u4_port *port = data;

	set_bit(MASKED, &port->masked);
	u4_link_interrupt(port);
}

static void tx_callback(struct tb_ring *ring, struct ring_frame *frame,
			bool canceled)
{
	struct u4_frame *tx = container_of(frame, struct u4_frame, ring);

	if (!canceled)
		llist_add(&tx->done, &tx->port->done);
}

static bool post_rx(struct u4_port *port, u32 token)
{
	struct u4_frame *rx = &port->rx_frames[token];

	dma_sync_single_for_device(port->dev, rx->ring.buffer_phy,
				   U4_FRAME_SIZE, DMA_FROM_DEVICE);
	return !tb_ring_rx(port->rx, &rx->ring);
}

/* Takes frames off the receive ring, each one's descriptor replaced first. */
static u32 poll_rx(struct u4_port *port, struct usb4_core_frame *frames)
{
	struct ring_frame *frame;
	struct u4_frame *rx;
	u32 count = 0;
	u32 spare;
	u32 token;
	u32 len;

	while (count < USB4_CORE_BATCH && READ_ONCE(port->free_count)) {
		frame = tb_ring_poll(port->rx);
		if (!frame)
			break;
		rx = container_of(frame, struct u4_frame, ring);
		token = rx - port->rx_frames;
		if (pop_free(port, &spare) && !post_rx(port, spare))
			push_free(port, spare);
		if (frame->flags &
		    (RING_DESC_CRC_ERROR | RING_DESC_BUFFER_OVERRUN)) {
			port->rx_bad++;
			push_free(port, token);
			continue;
		}
		/* 12 bits: 4096 reads as 0 */
		len = frame->size ?: U4_FRAME_SIZE;
		dma_sync_single_for_cpu(port->dev, frame->buffer_phy, len,
					DMA_FROM_DEVICE);
		frames[count++] = (struct usb4_core_frame) {
			.bytes = rx->data,
			.token = token,
			.len = len,
		};
	}
	return count;
}

static u32 sent(struct u4_port *port, struct usb4_core_sent *out,
		struct u4_frame *tx)
{
	tx->busy = false;
	port->posted--;
	*out = (struct usb4_core_sent) { .slot = tx - port->tx_frames };
	return 1;
}

/* Takes consumed descriptors off the transmit ring. */
static u32 poll_tx(struct u4_port *port, struct usb4_core_sent *out)
{
	struct ring_frame *frame;
	struct llist_node *node;
	u32 count = 0;

	while (port->posted && count < USB4_CORE_BATCH) {
		frame = tb_ring_poll(port->tx);
		if (!frame)
			break;
		count += sent(port, out + count,
			      container_of(frame, struct u4_frame, ring));
	}
	/* One at a time: what is left stays for the next look. */
	while (count < USB4_CORE_BATCH) {
		node = llist_del_first(&port->done);
		if (!node)
			break;
		count += sent(port, out + count,
			      llist_entry(node, struct u4_frame, done));
	}
	return count;
}

/**
 * u4_port_start() - start a port's rings and prime the receive ring
 * @port: the port, open
 *
 * The paths come after this: a frame must find a descriptor.
 *
 * Return: 0, or -ESHUTDOWN if the controller is going away; the rings are
 * stopped then.
 */
int u4_port_start(struct u4_port *port)
{
	u32 token;
	u32 i;

	free_all(port);
	init_llist_head(&port->done);
	port->posted = 0;
	clear_bit(MASKED, &port->masked);
	tb_ring_start(port->tx);
	tb_ring_start(port->rx);
	for (i = 0; i < u4_limits.rx_ring - 1; i++) {
		if (!pop_free(port, &token) || !post_rx(port, token)) {
			u4_port_stop(port);
			return -ESHUTDOWN;
		}
	}
	return 0;
}

/**
 * u4_port_drain() - let what was posted leave, before the paths go
 * @port: the port, whose link is gone
 *
 * Bounded: a path that does not move is no reason to wait. The peer stops by
 * itself when it has filled what was free of the receive ring, which is not
 * replenished any more but was as large as all it may have under way.
 */
void u4_port_drain(struct u4_port *port)
{
	unsigned long end = jiffies + msecs_to_jiffies(DRAIN_MS);
	struct usb4_core_sent out[USB4_CORE_BATCH];

	for (;;) {
		while (poll_tx(port, out))
			;
		if (!port->posted || time_after(jiffies, end))
			return;
		usleep_range(500, 1000);
	}
}

/**
 * u4_port_stop() - stop a port's rings
 * @port: the port, whose link and paths are gone
 */
void u4_port_stop(struct u4_port *port)
{
	int irq = port->rx->irq;
	u32 slot;

	/*
	 * A frame that came while the interrupt was masked brings it now, which
	 * would mask it again. 0 without MSI-X: then the warning is possible.
	 */
	if (irq > 0)
		disable_irq(irq);
	if (test_and_clear_bit(MASKED, &port->masked))
		tb_ring_poll_complete(port->rx);
	tb_ring_stop(port->rx);
	if (irq > 0)
		enable_irq(irq);
	tb_ring_stop(port->tx);
	for (slot = 0; slot < u4_limits.tx_slots; slot++)
		port->tx_frames[slot].busy = false;
}

/* Buffers */

static void free_frames(struct u4_port *port, struct u4_frame *frames,
			u32 count, enum dma_data_direction dir)
{
	u32 i;

	if (!frames)
		return;
	for (i = 0; i < count && frames[i].data; i++) {
		if (port->dev)
			dma_unmap_single(port->dev, frames[i].ring.buffer_phy,
					 U4_FRAME_SIZE, dir);
		free_page((unsigned long)frames[i].data);
	}
	kvfree(frames);
}

static struct u4_frame *alloc_frames(struct u4_port *port, u32 count,
				     enum dma_data_direction dir)
{
	struct u4_frame *frames;
	dma_addr_t addr = 0;
	u8 *data;
	u32 i;

	static_assert(U4_FRAME_SIZE <= PAGE_SIZE);

	frames = kvcalloc(count, sizeof(*frames), GFP_KERNEL);
	if (!frames)
		return NULL;
	for (i = 0; i < count; i++) {
		data = (u8 *)__get_free_page(GFP_KERNEL | __GFP_NOWARN);
		if (!data)
			goto err_free;
		if (port->dev) {
			addr = dma_map_single(port->dev, data, U4_FRAME_SIZE,
					      dir);
			if (dma_mapping_error(port->dev, addr)) {
				free_page((unsigned long)data);
				goto err_free;
			}
		}
		frames[i].data = data;
		frames[i].port = port;
		frames[i].ring.buffer_phy = addr;
		INIT_LIST_HEAD(&frames[i].ring.list);
		if (dir == DMA_TO_DEVICE)
			frames[i].ring.callback = tx_callback;
		cond_resched();
	}
	return frames;

err_free:
	free_frames(port, frames, count, dir);
	return NULL;
}

static int open_frames(struct u4_port *port)
{
	spin_lock_init(&port->lock);
	init_llist_head(&port->done);
	port->free = kvcalloc(u4_limits.rx_tokens, sizeof(*port->free),
			      GFP_KERNEL);
	if (!port->free)
		return -ENOMEM;
	port->tx_frames = alloc_frames(port, u4_limits.tx_slots, DMA_TO_DEVICE);
	if (!port->tx_frames)
		goto err_list;
	port->rx_frames = alloc_frames(port, u4_limits.rx_tokens,
				       DMA_FROM_DEVICE);
	if (!port->rx_frames)
		goto err_tx;
	free_all(port);
	return 0;

err_tx:
	free_frames(port, port->tx_frames, u4_limits.tx_slots, DMA_TO_DEVICE);
	port->tx_frames = NULL;
err_list:
	kvfree(port->free);
	port->free = NULL;
	return -ENOMEM;
}

static void close_frames(struct u4_port *port)
{
	free_frames(port, port->rx_frames, u4_limits.rx_tokens,
		    DMA_FROM_DEVICE);
	free_frames(port, port->tx_frames, u4_limits.tx_slots, DMA_TO_DEVICE);
	kvfree(port->free);
	port->rx_frames = NULL;
	port->tx_frames = NULL;
	port->free = NULL;
}

/**
 * u4_port_open() - get rings and buffers
 * @port: the port, zeroed but for its rail
 * @nhi: the controller
 *
 * Return: 0; -EBUSY if the controller has no ring left, -ENOMEM.
 */
int u4_port_open(struct u4_port *port, struct tb_nhi *nhi)
{
	int ret = -EBUSY;

	port->tx = tb_ring_alloc_tx(nhi, -1, u4_limits.tx_ring, TX_FLAGS);
	if (!port->tx)
		return ret;
	/* No E2E flow control: several such rings wedge AMD's controllers. */
	port->rx = tb_ring_alloc_rx(nhi, -1, u4_limits.rx_ring,
				    RING_FLAG_FRAME, 0, BIT(U4_PDF_START),
				    BIT(U4_PDF_END), rx_start_poll, port);
	if (!port->rx)
		goto err_tx;
	port->dev = tb_ring_dma_device(port->tx);
	ret = open_frames(port);
	if (ret)
		goto err_rx;
	return 0;

err_rx:
	tb_ring_free(port->rx);
	port->rx = NULL;
err_tx:
	tb_ring_free(port->tx);
	port->tx = NULL;
	return ret;
}

/**
 * u4_port_close() - give rings and buffers back
 * @port: the port, stopped
 */
void u4_port_close(struct u4_port *port)
{
	close_frames(port);
	if (port->rx)
		tb_ring_free(port->rx);
	if (port->tx)
		tb_ring_free(port->tx);
	kvfree(port->loop);
	port->rx = NULL;
	port->tx = NULL;
	port->loop = NULL;
}

/* Loopback */

/**
 * u4_port_open_loop() - get buffers for a port that leads back to itself
 * @port: the port, zeroed
 *
 * Return: 0 or -ENOMEM.
 */
int u4_port_open_loop(struct u4_port *port)
{
	int ret;

	port->loop = kvcalloc(u4_limits.rx_ring, sizeof(*port->loop),
			      GFP_KERNEL);
	if (!port->loop)
		return -ENOMEM;
	ret = open_frames(port);
	if (ret) {
		kvfree(port->loop);
		port->loop = NULL;
	}
	return ret;
}

static struct u4_loop_entry *loop_entry(struct u4_port *port, u32 i)
{
	return &port->loop[(port->loop_head + i) % u4_limits.rx_ring];
}

/* No room is loss, from which the core recovers. */
static void loop_post(struct u4_port *port, u16 slot, u16 len)
{
	u32 token;

	if (port->loop_count == u4_limits.rx_ring || !pop_free(port, &token))
		return;
	memcpy(port->rx_frames[token].data, port->tx_frames[slot].data, len);
	*loop_entry(port, port->loop_count++) = (struct u4_loop_entry) {
		.token = token,
		.slot = slot,
		.len = len,
	};
}

static void loop_poll(struct u4_port *port, struct usb4_core_arrived *arrived)
{
	struct u4_loop_entry *entry;
	u32 i;

	for (i = 0; i < USB4_CORE_BATCH && port->loop_count; i++) {
		entry = loop_entry(port, 0);
		arrived->frames[i] = (struct usb4_core_frame) {
			.bytes = port->rx_frames[entry->token].data,
			.token = entry->token,
			.len = entry->len,
		};
		arrived->sent[i] = (struct usb4_core_sent) {
			.slot = entry->slot,
		};
		port->tx_frames[entry->slot].busy = false;
		port->loop_head = (port->loop_head + 1) % u4_limits.rx_ring;
		port->loop_count--;
	}
	arrived->frame_count = i;
	arrived->sent_count = i;
}

/* What the core calls */

void usb4_home_port_poll(size_t handle, struct usb4_core_arrived *arrived)
{
	struct u4_port *port = to_port(handle);

	if (port->loop) {
		loop_poll(port, arrived);
		return;
	}
	arrived->sent_count = poll_tx(port, arrived->sent);
	arrived->frame_count = poll_rx(port, arrived->frames);
}

void usb4_home_port_arm(size_t handle)
{
	struct u4_port *port = to_port(handle);

	if (port->rx && test_and_clear_bit(MASKED, &port->masked))
		tb_ring_poll_complete(port->rx);
}

/*
 * The core names only buffers it has, and only bytes within them. Should it
 * have erred, a frame is lost or wrong, and nothing else is touched.
 */
static u8 *tx_bytes(struct u4_port *port, u16 slot, size_t at, size_t len)
{
	if (WARN_ON_ONCE(slot >= u4_limits.tx_slots ||
			 at + len > U4_FRAME_SIZE))
		return NULL;
	return port->tx_frames[slot].data + at;
}

void usb4_home_port_write(size_t handle, u16 slot, u16 at, const u8 *bytes,
			  size_t len)
{
	u8 *to = tx_bytes(to_port(handle), slot, at, len);

	if (to)
		memcpy(to, bytes, len);
}

void usb4_home_port_gather(size_t handle, u16 slot, u16 at, u16 len, size_t mem,
			   u64 offset)
{
	u8 *to = tx_bytes(to_port(handle), slot, at, len);

	if (to)
		u4_mem_read((struct u4_mem *)mem, offset, to, len);
}

void usb4_home_port_seal(size_t handle, u16 slot, u16 from, u16 to)
{
	u8 *bytes = tx_bytes(to_port(handle), slot, 0, to + sizeof(__le32));
	__le32 crc;

	if (!bytes || WARN_ON_ONCE(from > to))
		return;
	crc = cpu_to_le32(usb4_home_crc32c(0, bytes + from, to - from));
	memcpy(bytes + to, &crc, sizeof(crc));
}

void usb4_home_port_post(size_t handle, u8 rail, u16 slot, u16 len,
			 const u8 *header)
{
	struct u4_port *port = to_port(handle);
	u8 *bytes = tx_bytes(port, slot, 0, len);
	struct u4_frame *tx;

	if (!bytes || WARN_ON_ONCE(len < U4_HEADER))
		return;
	tx = &port->tx_frames[slot];
	/* A frame that is on a ring's list twice would break the list. */
	if (WARN_ON_ONCE(tx->busy))
		return;
	memcpy(bytes, header, U4_HEADER);
	tx->busy = true;
	if (port->loop) {
		loop_post(port, slot, len);
		return;
	}
	dma_sync_single_for_device(port->dev, tx->ring.buffer_phy, len,
				   DMA_TO_DEVICE);
	/* 12 bits: 0 stands for 4096 */
	tx->ring.size = len;
	tx->ring.sof = U4_PDF_START;
	tx->ring.eof = U4_PDF_END;
	if (tb_ring_tx(port->tx, &tx->ring))
		tx->busy = false;
	else
		port->posted++;
}

void usb4_home_port_scatter(size_t handle, u32 token, u16 at, u16 len,
			    size_t mem, u64 offset)
{
	struct u4_port *port = to_port(handle);

	if (WARN_ON_ONCE(token >= u4_limits.rx_tokens ||
			 at + len > U4_FRAME_SIZE))
		return;
	u4_mem_write((struct u4_mem *)mem, offset,
		     port->rx_frames[token].data + at, len);
}

void usb4_home_port_release(size_t handle, u32 token)
{
	if (!WARN_ON_ONCE(token >= u4_limits.rx_tokens))
		push_free(to_port(handle), token);
}
