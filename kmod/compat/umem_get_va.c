// SPDX-License-Identifier: GPL-2.0-only
/* 7.3 calls ib_umem_get() ib_umem_get_va(). */
#include <rdma/ib_umem.h>
struct ib_umem *get(struct ib_device *dev)
{
	return ib_umem_get_va(dev, 0, 0, 0);
}
