// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Ports: the rings of a rail.
 *
 * In C because of struct tb_ring. Buffers belong to the processor or to the
 * controller in turns: each way across is a dma_sync_single_*(). Rules of the
 * rings, from drivers/thunderbolt/nhi.c:
 *
 * - A ring of n descriptors holds n - 1.
 * - start_poll() is called with interrupts off and the controller's lock held,
 *   after the interrupt was masked: it only announces.
 * - tb_ring_poll_complete() unmasks, by an MMIO read under that lock: it is
 *   called when a link's thread is about to sleep, and the ring is polled once
 *   more after it, since a frame that came before may bring no interrupt.
 * - tb_ring_stop() insists on an interrupt that is not masked.
 * - tb_ring_start() forgets what was posted before; tb_ring_rx() comes after.
 *
 * And of controllers: doorbells are overlooked, on some now and then, and
 * interrupts get lost. The first costs the frames that were posted last, until
 * the next doorbell; so a ring that does not move is kicked. The second costs
 * what the next look at the ring is late: see FALLBACK in crates/kobj.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "port.h"

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

/* Most nanoseconds that fit (REG_INT_THROTTLING_RATE, 16 bits of 256 ns). */
#define THROTTLE_MAX	(U16_MAX * 256)

/* How long a transmit ring may take to run dry before it is stopped. */
#define DRAIN_MS	50

/* How long a transmit ring stands still before its doorbell is rung again. */
#define KICK_MS		10

/* Kicks without a move after which the ring is started anew: two seconds. */
#define KICKS_MAX	200

/* How much later than its frame an interrupt comes that is not lost. */
#define INTERRUPT_MS	5

/* Bit of &u4_port.masked. */
#define MASKED		0

/*
 * Where a ring has its doorbell (nhi_regs.h): REG_TX_RING_BASE,
 * REG_RX_RING_BASE, the third of a ring's four words.
 */
#define REG_TX_RINGS	0x00000
#define REG_RX_RINGS	0x08000
#define REG_RING_SIZE	16
#define REG_RING_INDEX	8

/* Rings */

static void rx_start_poll(void *data)
{
	struct u4_port *port = data;

	set_bit(MASKED, &port->masked);
	u4_count(&port->counters.interrupts, 1);
	u4_link_interrupt(port);
}

static void tx_callback(struct tb_ring *ring, struct ring_frame *frame,
			bool canceled)
{
	struct u4_frame *tx = container_of(frame, struct u4_frame, ring);

	if (!canceled)
		llist_add(&tx->done, &tx->port->done);
}

/* As ring_iowrite_prod() and ring_iowrite_cons() in nhi.c. */
static void ring_doorbell(struct tb_ring *ring)
{
	void __iomem *index = ring->nhi->iobase + ring->hop * REG_RING_SIZE +
			      REG_RING_INDEX;
	unsigned long flags;

	spin_lock_irqsave(&ring->lock, flags);
	if (!ring->running || ring->nhi->going_away)
		goto unlock;
	if (ring->is_tx)
		iowrite32(ring->head << 16, index + REG_TX_RINGS);
	else
		iowrite32(ring->head, index + REG_RX_RINGS);
unlock:
	spin_unlock_irqrestore(&ring->lock, flags);
}

static bool post_rx(struct u4_port *port, u32 index)
{
	struct u4_frame *rx = &port->pool->frames[index];

	dma_sync_single_for_device(port->dev, rx->ring.buffer_phy,
				   U4_FRAME_SIZE, DMA_FROM_DEVICE);
	return !tb_ring_rx(port->rx, &rx->ring);
}

/*
 * Frames have been found of which no interrupt has told: it may be on its way, and
 * is lost if it does not come.
 */
static void count_lost_interrupt(struct u4_port *port)
{
	if (test_bit(MASKED, &port->masked)) {
		port->untold = 0;
	} else if (time_after(jiffies, port->untold +
				       msecs_to_jiffies(INTERRUPT_MS))) {
		u4_count(&port->counters.interrupts_lost, 1);
		port->untold = 0;
	}
}

/* Whether the controller has flagged a frame. */
static bool is_bad(struct u4_port *port, const struct ring_frame *frame)
{
	if (frame->flags & RING_DESC_CRC_ERROR)
		u4_count(&port->counters.rx_crc_errors, 1);
	else if (frame->flags & RING_DESC_BUFFER_OVERRUN)
		u4_count(&port->counters.rx_overruns, 1);
	else
		return false;
	return true;
}

/* Takes frames off the receive ring, each one's descriptor replaced first. */
static void poll_rx(struct u4_port *port, struct usb4_core_arrived *arrived)
{
	u32 before = arrived->frame_count;
	struct u4_pool *pool = port->pool;
	struct ring_frame *frame;
	struct u4_frame *rx;
	u32 spare;
	u32 index;
	u32 len;

	while (arrived->frame_count < USB4_CORE_BATCH &&
	       READ_ONCE(pool->free_count)) {
		frame = tb_ring_poll(port->rx);
		if (!frame)
			break;
		rx = container_of(frame, struct u4_frame, ring);
		index = rx - pool->frames;
		if (u4_pool_pop(pool, &spare) && !post_rx(port, spare))
			u4_pool_push(pool, spare);
		if (is_bad(port, frame)) {
			u4_pool_push(pool, index);
			continue;
		}
		/* 12 bits: 4096 reads as 0 */
		len = frame->size ?: U4_FRAME_SIZE;
		u4_count(&port->counters.rx_frames, 1);
		u4_count(&port->counters.rx_bytes, len);
		dma_sync_single_for_cpu(port->dev, frame->buffer_phy, len,
					DMA_FROM_DEVICE);
		arrived->frames[arrived->frame_count++] =
			(struct usb4_core_frame) {
				.bytes = rx->data,
				.token = port->index * u4_limits.rx_tokens +
					 index,
				.len = len,
				.rail = port->index,
			};
	}
	if (port->untold)
		count_lost_interrupt(port);
	else if (arrived->frame_count != before &&
		 !test_bit(MASKED, &port->masked))
		/* 0 is for none. */
		port->untold = jiffies ?: 1;
}

static void sent(struct u4_port *port, struct usb4_core_arrived *arrived,
		 struct u4_frame *tx)
{
	tx->busy = false;
	port->posted--;
	arrived->sent[arrived->sent_count++] = (struct usb4_core_sent) {
		.slot = tx - port->tx_frames,
		.rail = port->index,
	};
}

/* Descriptors are posted, and none is consumed. */
static void watch_tx(struct u4_port *port)
{
	if (time_before(jiffies, port->moved + msecs_to_jiffies(KICK_MS)))
		return;
	port->moved = jiffies;
	port->kicks_in_row++;
	if (port->kicks_in_row < KICKS_MAX) {
		u4_count(&port->counters.tx_kicks, 1);
		ring_doorbell(port->tx);
	} else if (port->kicks_in_row == KICKS_MAX) {
		u4_count(&port->counters.stalls, 1);
		u4_rail_stalled(port->rail);
	}
}

/* Takes consumed descriptors off the transmit ring. */
static void poll_tx(struct u4_port *port, struct usb4_core_arrived *arrived)
{
	u32 before = arrived->sent_count;
	struct ring_frame *frame;
	struct llist_node *node;

	while (port->posted && arrived->sent_count < USB4_CORE_BATCH) {
		frame = tb_ring_poll(port->tx);
		if (!frame)
			break;
		sent(port, arrived, container_of(frame, struct u4_frame, ring));
	}
	/* One at a time: what is left stays for the next look. */
	while (arrived->sent_count < USB4_CORE_BATCH) {
		node = llist_del_first(&port->done);
		if (!node)
			break;
		sent(port, arrived, llist_entry(node, struct u4_frame, done));
	}
	if (arrived->sent_count != before) {
		port->moved = jiffies;
		port->kicks_in_row = 0;
	} else if (port->posted) {
		watch_tx(port);
	}
}

/**
 * u4_port_poll() - take what has arrived off the rings
 * @port: the port
 * @arrived: where to add it, as far as there is room
 */
void u4_port_poll(struct u4_port *port, struct usb4_core_arrived *arrived)
{
	/* Pairs with the release in u4_link_attach(). */
	if (!smp_load_acquire(&port->ready))
		return;
	poll_tx(port, arrived);
	poll_rx(port, arrived);
}

/**
 * u4_port_kick_rx() - see to it that the controller knows of all descriptors
 * @port: the port
 */
void u4_port_kick_rx(struct u4_port *port)
{
	u4_count(&port->counters.rx_kicks, 1);
	ring_doorbell(port->rx);
}

/**
 * u4_port_arm() - have an interrupt come with the next frame
 * @port: the port
 */
void u4_port_arm(struct u4_port *port)
{
	if (!test_and_clear_bit(MASKED, &port->masked))
		return;
	port->untold = 0;
	tb_ring_poll_complete(port->rx);
}

/**
 * u4_port_post() - send a frame
 * @port: the port
 * @slot: its buffer
 * @len: bytes
 *
 * A frame that cannot be sent is lost, from which the core recovers.
 */
void u4_port_post(struct u4_port *port, u16 slot, u16 len)
{
	struct u4_frame *tx = &port->tx_frames[slot];

	/* A frame that is on a ring's list twice would break the list. */
	if (WARN_ON_ONCE(tx->busy))
		return;
	dma_sync_single_for_device(port->dev, tx->ring.buffer_phy, len,
				   DMA_TO_DEVICE);
	/* 12 bits: 0 stands for 4096 */
	tx->ring.size = len;
	tx->ring.sof = U4_PDF_START;
	tx->ring.eof = U4_PDF_END;
	tx->busy = true;
	if (tb_ring_tx(port->tx, &tx->ring)) {
		tx->busy = false;
		return;
	}
	/* Since when it may be expected to move. */
	if (!port->posted)
		port->moved = jiffies;
	port->posted++;
	u4_count(&port->counters.tx_frames, 1);
	u4_count(&port->counters.tx_bytes, len);
}

/*
 * The first interrupt of a receive ring masks it, until a link's thread has had
 * nothing to do for a while: there are few, and each of them is waited for. Of
 * transmit rings', where those cannot do without, nobody waits for any.
 */
static void set_throttling(struct u4_port *port)
{
#ifdef U4_RING_THROTTLING
	tb_ring_throttling(port->rx, 0);
	tb_ring_throttling(port->tx, THROTTLE_MAX);
#endif
}

/* A pool that nobody else holds. */
static int ensure_pool(struct u4_port *port)
{
	struct u4_pool *pool = port->pool;
	int ret;

	if (pool && kref_read(&pool->ref) == 1) {
		u4_pool_reset(pool);
		return 0;
	}
	if (pool) {
		u4_pool_unmap(pool);
		u4_pool_put(pool);
		port->pool = NULL;
	}
	pool = u4_pool_new();
	if (!pool)
		return -ENOMEM;
	ret = u4_pool_map(pool, port->dev);
	if (ret) {
		u4_pool_put(pool);
		return ret;
	}
	port->pool = pool;
	return 0;
}

/**
 * u4_port_start() - start and prime a port's receive ring
 * @port: the port, open
 *
 * The paths come after this: a frame must find a descriptor.
 *
 * Return: 0; -ENOMEM, or -ESHUTDOWN if the controller is going away: the ring
 * is stopped then.
 */
int u4_port_start(struct u4_port *port)
{
	u32 index;
	u32 i;
	int ret;

	ret = ensure_pool(port);
	if (ret)
		return ret;
	clear_bit(MASKED, &port->masked);
	port->untold = 0;
	tb_ring_start(port->rx);
	port->rx_running = true;
	for (i = 0; i < u4_limits.rx_ring - 1; i++) {
		if (!u4_pool_pop(port->pool, &index) || !post_rx(port, index)) {
			u4_port_stop(port);
			return -ESHUTDOWN;
		}
	}
	return 0;
}

/**
 * u4_port_stop() - stop a port's receive ring
 * @port: the port, whose paths are off, and that belongs to no link
 */
void u4_port_stop(struct u4_port *port)
{
	int irq = port->rx->irq;

	if (!port->rx_running)
		return;
	/*
	 * A frame that came while the interrupt was masked brings it now, which
	 * would mask it again. 0 without MSI-X: then the warning is possible.
	 */
	if (irq > 0)
		disable_irq(irq);
	u4_port_arm(port);
	tb_ring_stop(port->rx);
	if (irq > 0)
		enable_irq(irq);
	port->rx_running = false;
}

/* Transmit buffers */

static void unmap_tx(struct u4_port *port)
{
	u32 slot;

	for (slot = 0; slot < port->tx_mapped; slot++)
		dma_unmap_single(port->dev,
				 port->tx_frames[slot].ring.buffer_phy,
				 U4_FRAME_SIZE, DMA_TO_DEVICE);
	port->tx_mapped = 0;
}

/**
 * u4_port_start_tx() - have the controller send a link's transmit buffers
 * @port: the port, of no link yet
 * @buffers: the buffers, by slot
 *
 * For each link anew, also where a session takes another one's place and the
 * paths stay on.
 *
 * Return: 0, or -ENOMEM.
 */
int u4_port_start_tx(struct u4_port *port, u8 *const *buffers)
{
	dma_addr_t addr;
	u32 slot;

	for (slot = 0; slot < u4_limits.tx_slots; slot++) {
		addr = dma_map_single(port->dev, buffers[slot], U4_FRAME_SIZE,
				      DMA_TO_DEVICE);
		if (dma_mapping_error(port->dev, addr)) {
			unmap_tx(port);
			return -ENOMEM;
		}
		port->tx_frames[slot].ring.buffer_phy = addr;
		port->tx_frames[slot].busy = false;
		port->tx_mapped = slot + 1;
		cond_resched();
	}
	init_llist_head(&port->done);
	port->posted = 0;
	port->kicks_in_row = 0;
	tb_ring_start(port->tx);
	port->tx_running = true;
	return 0;
}

/**
 * u4_port_drain() - let what was posted leave
 * @port: the port, which belongs to no link any more
 *
 * Bounded: a path that does not move is no reason to wait. The peer stops by
 * itself when it has filled what was free of the receive ring, which is not
 * replenished any more but was as large as all it may have under way.
 */
void u4_port_drain(struct u4_port *port)
{
	unsigned long end = jiffies + msecs_to_jiffies(DRAIN_MS);
	struct usb4_core_sent room[USB4_CORE_BATCH];
	struct usb4_core_arrived arrived;

	for (;;) {
		do {
			arrived = (struct usb4_core_arrived) { .sent = room };
			poll_tx(port, &arrived);
		} while (arrived.sent_count);
		if (!port->posted || time_after(jiffies, end))
			return;
		usleep_range(500, 1000);
	}
}

/**
 * u4_port_stop_tx() - send nothing any more
 * @port: the port, which belongs to no link any more
 *
 * The link may then write to its transmit buffers again.
 */
void u4_port_stop_tx(struct u4_port *port)
{
	if (port->tx_running)
		tb_ring_stop(port->tx);
	port->tx_running = false;
	unmap_tx(port);
}

/* Their making and end */

static struct u4_frame *new_tx_frames(struct u4_port *port)
{
	struct u4_frame *frames;
	u32 slot;

	frames = kvcalloc(u4_limits.tx_slots, sizeof(*frames), GFP_KERNEL);
	if (!frames)
		return NULL;
	for (slot = 0; slot < u4_limits.tx_slots; slot++) {
		frames[slot].port = port;
		frames[slot].ring.callback = tx_callback;
		INIT_LIST_HEAD(&frames[slot].ring.list);
	}
	return frames;
}

/**
 * u4_port_open() - get rings and receive buffers
 * @port: the port, closed or zeroed
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
	set_throttling(port);
	port->dev = tb_ring_dma_device(port->tx);
	ret = -ENOMEM;
	port->tx_frames = new_tx_frames(port);
	if (!port->tx_frames)
		goto err_rx;
	ret = ensure_pool(port);
	if (ret)
		goto err_frames;
	return 0;

err_frames:
	kvfree(port->tx_frames);
	port->tx_frames = NULL;
err_rx:
	tb_ring_free(port->rx);
	port->rx = NULL;
err_tx:
	tb_ring_free(port->tx);
	port->tx = NULL;
	return ret;
}

/**
 * u4_port_close() - give rings and receive buffers back
 * @port: the port, stopped
 */
void u4_port_close(struct u4_port *port)
{
	/* A link may hold it, but not what it was mapped for. */
	if (port->pool)
		u4_pool_unmap(port->pool);
	u4_pool_put(port->pool);
	kvfree(port->tx_frames);
	tb_ring_free(port->rx);
	tb_ring_free(port->tx);
	port->pool = NULL;
	port->tx_frames = NULL;
	port->rx = NULL;
	port->tx = NULL;
}
