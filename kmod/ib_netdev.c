// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The Ethernet device that the port's GIDs are of.
 *
 * In C because network devices are. ib_core takes a RoCE port's GIDs from the
 * addresses of a network device, and finds the MAC address of a GID by ARP and
 * neighbour discovery there. So there is one, for all links together; its frames
 * travel as datagrams (wire.md, section 14). A host's MAC address follows from its
 * node id, so whom a frame goes to is known from where it goes, and whether it is
 * from whom it says from the link it came by.
 *
 * It is not made for bulk data, and has no offloads.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/if_vlan.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/unaligned.h>
#include <net/neighbour.h>

#include "ib.h"

/* The number of the queue pair, and what its datagrams show (wire.md, W-91). */
#define FRAMES_QPN	0
#define FRAMES_QKEY	0x80010001

/* So that a frame with a VLAN tag fits a datagram. */
#define MTU		(U4_CHANNEL_BYTES - VLAN_ETH_HLEN)

/*
 * Frames that wait to be sent: at most, and when there may be more. All hosts but one
 * may have as many waiting as they can.
 */
#define QUEUE_FULL	(U4_CHANNEL_PEERS * U4_CHANNEL_WAITING)
#define QUEUE_LOW	(QUEUE_FULL - U4_CHANNEL_WAITING)

/* Hosts that a frame for all goes to. */
#define MAX_PEERS	U4_CHANNEL_PEERS

/**
 * struct u4_netdev - the device's own
 * @channel: what its frames travel by
 * @ndev: the device
 * @queue: frames to be sent
 */
struct u4_netdev {
	struct u4_channel channel;
	struct net_device *ndev;
	struct sk_buff_head queue;
};

/* Sending */

static int send_to(struct u4_netdev *nd, struct sk_buff *skb,
		   const struct usb4_core_node *node)
{
	u32 slot;
	u8 *to;

	to = u4_channel_slot(&nd->channel, node, &slot);
	if (IS_ERR(to))
		return PTR_ERR(to);
	if (skb_copy_bits(skb, 0, to, skb->len))
		return -EFAULT;
	u4_channel_send(&nd->channel, node, slot, skb->len);
	return 0;
}

/* To every host with a link. Who has no room now goes without. */
static int send_to_all(struct u4_netdev *nd, struct sk_buff *skb)
{
	struct usb4_core_node nodes[MAX_PEERS];
	u32 count = u4_verbs_peers(nodes, MAX_PEERS);
	int ret = -EHOSTUNREACH;
	u32 i;

	for (i = 0; i < count; i++)
		if (!send_to(nd, skb, &nodes[i]))
			ret = 0;
	return ret;
}

static int forward(struct u4_netdev *nd, struct sk_buff *skb)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;
	struct usb4_core_node node;

	if (is_multicast_ether_addr(eth->h_dest))
		return send_to_all(nd, skb);
	/* What is for this host itself does not come here. */
	if (ether_addr_equal(eth->h_dest, nd->ndev->dev_addr) ||
	    !u4_verbs_find(u4_mac_to_guid(eth->h_dest), &node))
		return -EHOSTUNREACH;
	return send_to(nd, skb, &node);
}

static void transmit(struct u4_channel *channel)
{
	struct u4_netdev *nd = container_of(channel, struct u4_netdev, channel);
	struct net_device *ndev = nd->ndev;
	struct sk_buff_head waiting;
	struct sk_buff *skb;
	unsigned long flags;
	int ret;

	__skb_queue_head_init(&waiting);
	while ((skb = skb_dequeue(&nd->queue))) {
		ret = netif_running(ndev) ? forward(nd, skb) : -ENETDOWN;
		/* Those for other hosts need not wait for it. */
		if (ret == -EAGAIN) {
			__skb_queue_tail(&waiting, skb);
			continue;
		}
		if (ret) {
			dev_core_stats_tx_dropped_inc(ndev);
			kfree_skb(skb);
			continue;
		}
		/* Counts are a processor's. */
		local_bh_disable();
		dev_sw_netstats_tx_add(ndev, 1, skb->len);
		local_bh_enable();
		consume_skb(skb);
	}
	spin_lock_irqsave(&nd->queue.lock, flags);
	skb_queue_splice(&waiting, &nd->queue);
	spin_unlock_irqrestore(&nd->queue.lock, flags);
	if (netif_queue_stopped(ndev) && netif_running(ndev) &&
	    skb_queue_len(&nd->queue) <= QUEUE_LOW)
		netif_wake_queue(ndev);
}

static void sent(struct u4_channel *channel, u32 slot, bool lost)
{
	struct u4_netdev *nd = container_of(channel, struct u4_netdev, channel);

	if (lost)
		DEV_STATS_INC(nd->ndev, tx_errors);
}

/* The core may not be called here. */
static netdev_tx_t start_xmit(struct sk_buff *skb, struct net_device *ndev)
{
	struct u4_netdev *nd = netdev_priv(ndev);

	if (skb->len < ETH_HLEN || skb->len > U4_CHANNEL_BYTES) {
		dev_core_stats_tx_dropped_inc(ndev);
		dev_kfree_skb_any(skb);
		return NETDEV_TX_OK;
	}
	skb_tx_timestamp(skb);
	skb_queue_tail(&nd->queue, skb);
	if (skb_queue_len(&nd->queue) >= QUEUE_FULL)
		netif_stop_queue(ndev);
	/* Last: it wakes the queue. */
	u4_channel_kick(&nd->channel);
	return NETDEV_TX_OK;
}

/* Receiving */

/*
 * From whoever is at the other end, so of any content. It may claim to be from
 * nobody else, and the rest is for the stack to judge.
 */
static void received(struct u4_channel *channel, const u8 *mac, const u8 *data,
		     u32 len)
{
	struct u4_netdev *nd = container_of(channel, struct u4_netdev, channel);
	const struct ethhdr *eth = (const struct ethhdr *)data;
	struct net_device *ndev = nd->ndev;
	struct sk_buff *skb;

	if (!netif_running(ndev))
		return;
	if (len < ETH_HLEN || !ether_addr_equal_unaligned(eth->h_source, mac)) {
		DEV_STATS_INC(ndev, rx_errors);
		return;
	}
	skb = netdev_alloc_skb_ip_align(ndev, len);
	if (!skb) {
		dev_core_stats_rx_dropped_inc(ndev);
		return;
	}
	skb_put_data(skb, data, len);
	skb->protocol = eth_type_trans(skb, ndev);
	local_bh_disable();
	dev_sw_netstats_rx_add(ndev, len);
	/* Bounded, and counts what it drops. */
	netif_rx(skb);
	local_bh_enable();
}

static const struct u4_channel_ops channel_ops = {
	.transmit = transmit,
	.sent = sent,
	.received = received,
};

/* The device */

static int open(struct net_device *ndev)
{
	netif_start_queue(ndev);
	return 0;
}

static int stop(struct net_device *ndev)
{
	struct u4_netdev *nd = netdev_priv(ndev);

	netif_stop_queue(ndev);
	skb_queue_purge(&nd->queue);
	/* Which may just put some back, and drops them now. */
	u4_channel_kick(&nd->channel);
	return 0;
}

/*
 * A link-local address that is made of a MAC address says which, as the GIDs that
 * every host has do: nobody has to be asked, and it does not matter whether the host
 * has another one, as some network managers have it.
 */
static int init_neighbour(struct neighbour *neigh)
{
	const struct in6_addr *addr =
		(const struct in6_addr *)neigh->primary_key;

	if (addr->s6_addr32[0] != htonl(0xfe800000) || addr->s6_addr32[1] ||
	    addr->s6_addr[11] != 0xff || addr->s6_addr[12] != 0xfe)
		return 0;
	u4_guid_to_mac(get_unaligned_be64(&addr->s6_addr[8]), neigh->ha);
	neigh->nud_state = NUD_NOARP;
	neigh->output = neigh->ops->connected_output;
	return 0;
}

static int neigh_setup(struct net_device *ndev, struct neigh_parms *parms)
{
	if (parms->tbl->family == AF_INET6)
		parms->neigh_setup = init_neighbour;
	return 0;
}

/* No other address: peers take frames from the one that they can compute. */
static const struct net_device_ops netdev_ops = {
	.ndo_open = open,
	.ndo_stop = stop,
	.ndo_start_xmit = start_xmit,
	.ndo_get_stats64 = dev_get_tstats64,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_neigh_setup = neigh_setup,
};

static void get_drvinfo(struct net_device *ndev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
	strscpy(info->version, U4_VERSION, sizeof(info->version));
}

static int get_link_ksettings(struct net_device *ndev,
			      struct ethtool_link_ksettings *settings)
{
	struct u4_verbs_links links;

	u4_verbs_links(&links);
	ethtool_link_ksettings_zero_link_mode(settings, supported);
	settings->base.speed = links.rails ? (u32)links.rate_mbps :
					     (u32)SPEED_UNKNOWN;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.port = PORT_OTHER;
	settings->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

static const struct ethtool_ops ethtool_ops = {
	.get_drvinfo = get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = get_link_ksettings,
};

/* DEVTYPE in uevents, by which rules of udev and networkd tell it. */
static const struct device_type device_type = {
	.name = "usb4rdma",
};

static void setup(struct net_device *ndev)
{
	u8 mac[ETH_ALEN];

	ether_setup(ndev);
	ndev->netdev_ops = &netdev_ops;
	ndev->ethtool_ops = &ethtool_ops;
	ndev->pcpu_stat_type = NETDEV_PCPU_STAT_TSTATS;
	ndev->mtu = MTU;
	ndev->max_mtu = MTU;
	/* The ib_device, whose GIDs its addresses are, stays. */
	ndev->netns_immutable = true;
	u4_guid_to_mac(u4_verbs_guid(&u4_node), mac);
	eth_hw_addr_set(ndev, mac);
	SET_NETDEV_DEVTYPE(ndev, &device_type);
}

/**
 * u4_ib_netdev_add() - make the device
 * @parent: what it belongs to
 *
 * Return: the device, or an error.
 */
struct net_device *u4_ib_netdev_add(struct device *parent)
{
	struct net_device *ndev;
	struct u4_netdev *nd;
	int ret;

	ndev = alloc_netdev(sizeof(*nd), "usb4rdma%d", NET_NAME_ENUM, setup);
	if (!ndev)
		return ERR_PTR(-ENOMEM);
	SET_NETDEV_DEV(ndev, parent);
	nd = netdev_priv(ndev);
	nd->ndev = ndev;
	skb_queue_head_init(&nd->queue);
	ret = u4_channel_open(&nd->channel, &channel_ops, FRAMES_QPN,
			      FRAMES_QKEY);
	if (ret)
		goto err_ndev;
	netif_carrier_off(ndev);
	ret = register_netdev(ndev);
	if (ret)
		goto err_channel;
	return ndev;

err_channel:
	u4_channel_close(&nd->channel);
err_ndev:
	free_netdev(ndev);
	return ERR_PTR(ret);
}

/**
 * u4_ib_netdev_remove() - end the device
 * @ndev: the device; nothing refers to it any more
 */
void u4_ib_netdev_remove(struct net_device *ndev)
{
	struct u4_netdev *nd = netdev_priv(ndev);

	unregister_netdev(ndev);
	u4_channel_close(&nd->channel);
	skb_queue_purge(&nd->queue);
	free_netdev(ndev);
}

/**
 * u4_ib_netdev_up() - bring the device up
 * @ndev: the device
 *
 * Nobody else does where nobody configures it, and without it there is no route to
 * link-local GIDs of RoCE v2.
 */
void u4_ib_netdev_up(struct net_device *ndev)
{
	rtnl_lock();
	if (dev_open(ndev, NULL))
		netdev_warn(ndev, "cannot be brought up\n");
	rtnl_unlock();
}

/**
 * u4_ib_netdev_carrier() - tell whether there is a link
 * @ndev: the device
 * @on: whether there is
 */
void u4_ib_netdev_carrier(struct net_device *ndev, bool on)
{
	if (on)
		netif_carrier_on(ndev);
	else
		netif_carrier_off(ndev);
}
