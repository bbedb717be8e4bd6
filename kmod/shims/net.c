// SPDX-License-Identifier: GPL-2.0-only
/* C forms of network macros and inlines that bindgen cannot bind. */
#include <linux/etherdevice.h>
#include <linux/if_ether.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/skbuff.h>
#include <net/addrconf.h>
#include "net.h"

/*
 * An Ethernet-like device tbrdma0 whose private data is one pointer, its owner. @mtu is the
 * default and the largest MTU.
 */
struct net_device *tbrdma_net_alloc(const struct net_device_ops *ops,
				    const struct ethtool_ops *ethtool, const u8 mac[6],
				    unsigned int mtu)
{
	struct net_device *dev;

	dev = alloc_netdev(sizeof(void *), "tbrdma%d", NET_NAME_PREDICTABLE, ether_setup);
	if (!dev)
		return NULL;
	dev->netdev_ops = ops;
	dev->ethtool_ops = ethtool;
	dev->mtu = mtu;
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = mtu;
	eth_hw_addr_set(dev, mac);
	netif_carrier_off(dev);
	return dev;
}

void tbrdma_net_set_owner(struct net_device *dev, void *owner)
{
	*(void **)netdev_priv(dev) = owner;
}

void *tbrdma_net_owner(struct net_device *dev)
{
	return *(void **)netdev_priv(dev);
}

/* Sets the interface up as "ip link set up" does: its GIDs need it, and nobody should have to. */
void tbrdma_net_up(struct net_device *dev)
{
	struct inet6_dev *in6;

	rtnl_lock();
	/*
	 * The address comes from the host's identity, which nobody else has. Looking for a duplicate would
	 * only make connections fail with a timeout in the seconds after the cable was plugged in.
	 */
	in6 = __in6_dev_get(dev);
	if (in6)
		in6->cnf.accept_dad = 0;
	dev_open(dev, NULL);
	rtnl_unlock();
}

void tbrdma_net_start_queue(struct net_device *dev)
{
	netif_start_queue(dev);
}

void tbrdma_net_stop_queue(struct net_device *dev)
{
	netif_stop_queue(dev);
}

void tbrdma_net_wake_queue(struct net_device *dev)
{
	netif_wake_queue(dev);
}

bool tbrdma_net_running(const struct net_device *dev)
{
	return netif_running(dev);
}

void tbrdma_skb_queue_init(struct sk_buff_head *queue)
{
	skb_queue_head_init(queue);
}

u32 tbrdma_skb_queue_len(const struct sk_buff_head *queue)
{
	return skb_queue_len_lockless(queue);
}

unsigned int tbrdma_skb_len(const struct sk_buff *skb)
{
	return skb->len;
}

void tbrdma_skb_drop(struct sk_buff *skb)
{
	dev_kfree_skb_any(skb);
}

/* Hands a copy of an Ethernet frame to the network stack, from process context. */
int tbrdma_net_receive(struct net_device *dev, const void *data, unsigned int len)
{
	struct sk_buff *skb = netdev_alloc_skb_ip_align(dev, len);

	if (!skb)
		return -ENOMEM;
	skb_put_data(skb, data, len);
	skb->protocol = eth_type_trans(skb, dev);
	return netif_rx(skb) == NET_RX_SUCCESS ? 0 : -ENOBUFS;
}
