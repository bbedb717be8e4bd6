// SPDX-License-Identifier: GPL-2.0-only
/* ib_umem_get() is called ib_umem_get_va() on newer kernels. */
#include <rdma/ib_umem.h>
struct ib_umem *get(struct ib_device *dev)
{
	return ib_umem_get_va(dev, 0, 0, 0);
}
