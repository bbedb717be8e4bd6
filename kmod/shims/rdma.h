/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TBRDMA_SHIM_RDMA_H
#define TBRDMA_SHIM_RDMA_H

#include <linux/types.h>

struct dma_buf;
struct ib_device;
struct ib_udata;
struct ib_umem;
struct ib_cq;
struct ib_qp;
struct ib_srq;

struct ib_device *tbrdma_alloc_ib_device(size_t size);
void tbrdma_keep_name(struct ib_device *dev);
int tbrdma_copy_to_udata(struct ib_udata *udata, const void *src, size_t len);
struct ib_umem *tbrdma_umem_get(struct ib_device *dev, unsigned long addr, size_t len, int access);
size_t tbrdma_umem_pages(struct ib_umem *umem, void **addresses, size_t max);
int tbrdma_dmabuf_begin(struct dma_buf *buf);
void tbrdma_dmabuf_end(struct dma_buf *buf);
u32 tbrdma_random(void);
void tbrdma_full_barrier(void);
void tbrdma_cq_notify(struct ib_cq *cq);
void tbrdma_cq_error(struct ib_cq *cq);
void tbrdma_srq_limit(struct ib_srq *srq);
void tbrdma_qp_event(struct ib_qp *qp, int kind);
void tbrdma_port_event(struct ib_device *dev, bool active);

struct nlattr;
struct sk_buff;

struct nlattr *tbrdma_details_begin(struct sk_buff *msg);
void tbrdma_details_end(struct sk_buff *msg, struct nlattr *nest);
void tbrdma_details_cancel(struct sk_buff *msg, struct nlattr *nest);

struct ib_ucontext;
struct uverbs_attr_bundle;
struct tbrdma_memory;
struct rdma_user_mmap_entry;
struct vm_area_struct;

struct ib_udata *tbrdma_udata_of(struct uverbs_attr_bundle *attrs);
struct tbrdma_memory *tbrdma_memory_new(struct ib_udata *udata, size_t len, void **addr, u64 *offset);
void tbrdma_memory_free(struct tbrdma_memory *memory);
int tbrdma_memory_mmap(struct ib_ucontext *context, struct vm_area_struct *vma);
void tbrdma_memory_mmap_free(struct rdma_user_mmap_entry *entry);

#endif
