/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TBRDMA_SHIM_RDMA_H
#define TBRDMA_SHIM_RDMA_H

#include <linux/types.h>

struct ib_device;
struct ib_udata;
struct ib_umem;
struct ib_cq;
struct ib_qp;

struct ib_device *tbrdma_alloc_ib_device(size_t size);
void tbrdma_keep_name(struct ib_device *dev);
int tbrdma_copy_to_udata(struct ib_udata *udata, const void *src, size_t len);
struct ib_umem *tbrdma_umem_get(struct ib_device *dev, unsigned long addr, size_t len, int access);
size_t tbrdma_umem_pages(struct ib_umem *umem, void **addresses, size_t max);
u32 tbrdma_random(void);
void tbrdma_cq_notify(struct ib_cq *cq);
void tbrdma_cq_error(struct ib_cq *cq);
void tbrdma_port_event(struct ib_device *dev, bool active);
int tbrdma_copy_from_user(void *to, u64 from, size_t len);

#endif
