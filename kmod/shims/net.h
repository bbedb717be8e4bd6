/* SPDX-License-Identifier: GPL-2.0-only */
/* C forms of network macros and inlines that bindgen cannot bind. */
#ifndef TBRDMA_SHIM_NET_H
#define TBRDMA_SHIM_NET_H

#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/types.h>

struct net_device *tbrdma_net_alloc(const struct net_device_ops *ops,
				    const struct ethtool_ops *ethtool, const u8 mac[6],
				    unsigned int mtu);
void tbrdma_net_set_owner(struct net_device *dev, void *owner);
void *tbrdma_net_owner(struct net_device *dev);
void tbrdma_net_up(struct net_device *dev);
void tbrdma_net_start_queue(struct net_device *dev);
void tbrdma_net_stop_queue(struct net_device *dev);
void tbrdma_net_wake_queue(struct net_device *dev);
bool tbrdma_net_running(const struct net_device *dev);

void tbrdma_skb_queue_init(struct sk_buff_head *queue);
u32 tbrdma_skb_queue_len(const struct sk_buff_head *queue);
unsigned int tbrdma_skb_len(const struct sk_buff *skb);
void tbrdma_skb_drop(struct sk_buff *skb);
int tbrdma_net_receive(struct net_device *dev, const void *data, unsigned int len);

#endif
