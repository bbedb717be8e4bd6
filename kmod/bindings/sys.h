/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Headers whose items Rust sees as crate::sys, beside everything in kernel::bindings. Which headers' items
 * are kept is in ../Kbuild (sys-headers); the headers of ../shims are added by themselves.
 */
#include <linux/netdevice.h>
#include <linux/etherdevice.h>
#include <linux/inetdevice.h>
#include <linux/rtnetlink.h>
#include <linux/dma-mapping.h>
#include <linux/dma-buf.h>
#include <net/addrconf.h>
#include <linux/thunderbolt.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/uverbs_ioctl.h>
