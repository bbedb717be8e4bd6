// SPDX-License-Identifier: GPL-2.0-only
/* What Rust cannot call: inline functions and macros of the RDMA core. No logic. */
#include <linux/bottom_half.h>
#include <linux/dma-buf.h>
#include <linux/highmem.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <net/netlink.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/restrack.h>
#include <rdma/uverbs_ioctl.h>
#include <uapi/rdma/rdma_netlink.h>
#include "rdma.h"

struct ib_device *tbrdma_alloc_ib_device(size_t size)
{
	return _ib_alloc_device(size, &init_net);
}

/* Keeps udev's persistent naming from renaming the device. */
void tbrdma_keep_name(struct ib_device *dev)
{
	ib_mark_name_assigned_by_user(dev);
}

int tbrdma_copy_to_udata(struct ib_udata *udata, const void *src, size_t len)
{
	return ib_copy_to_udata(udata, (void *)src, min(len, udata->outlen));
}

struct ib_umem *tbrdma_umem_get(struct ib_device *dev, unsigned long addr, size_t len, int access)
{
#ifdef TBRDMA_UMEM_GET_VA
	return ib_umem_get_va(dev, addr, len, access);
#else
	return ib_umem_get(dev, addr, len, access);
#endif
}

/*
 * The kernel addresses of the pinned pages, in order; returns how many there are. All pages have one:
 * CONFIG_INFINIBAND_VIRT_DMA, which a device without DMA needs, depends on !HIGHMEM.
 */
size_t tbrdma_umem_pages(struct ib_umem *umem, void **addresses, size_t max)
{
	struct sg_page_iter iter;
	size_t n = 0;

	for_each_sgtable_page(&umem->sgt_append.sgt, &iter, 0) {
		if (n < max)
			addresses[n] = page_address(sg_page_iter_page(&iter));
		n++;
	}
	return n;
}

/* How Rust sees the direction differs between kernels. */
int tbrdma_dmabuf_begin(struct dma_buf *buf)
{
	return dma_buf_begin_cpu_access(buf, DMA_BIDIRECTIONAL);
}

void tbrdma_dmabuf_end(struct dma_buf *buf)
{
	dma_buf_end_cpu_access(buf, DMA_BIDIRECTIONAL);
}

u32 tbrdma_random(void)
{
	return get_random_u32();
}

/* The kernel crate's form of it differs between kernels. */
void tbrdma_full_barrier(void)
{
	smp_mb();
}

/* A handler may raise a softirq, which then runs here and does not wait for ksoftirqd. */
void tbrdma_cq_notify(struct ib_cq *cq)
{
	local_bh_disable();
	if (cq->comp_handler)
		cq->comp_handler(cq, cq->cq_context);
	local_bh_enable();
}

void tbrdma_cq_error(struct ib_cq *cq)
{
	struct ib_event event = { .device = cq->device, .event = IB_EVENT_CQ_ERR, .element.cq = cq };

	if (cq->event_handler)
		cq->event_handler(&event, cq->cq_context);
}

void tbrdma_srq_limit(struct ib_srq *srq)
{
	struct ib_event event = {
		.device = srq->device,
		.event = IB_EVENT_SRQ_LIMIT_REACHED,
		.element.srq = srq,
	};

	if (srq->event_handler)
		srq->event_handler(&event, srq->srq_context);
}

void tbrdma_qp_event(struct ib_qp *qp, int kind)
{
	struct ib_event event = { .device = qp->device, .event = kind, .element.qp = qp };

	if (qp->event_handler)
		qp->event_handler(&event, qp->qp_context);
}

void tbrdma_port_event(struct ib_device *dev, bool active)
{
	struct ib_event event = {
		.device = dev,
		.event = active ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR,
		.element.port_num = 1,
	};

	ib_dispatch_event(&event);
}

/* The driver's part of a netlink answer about an object. */
struct nlattr *tbrdma_details_begin(struct sk_buff *msg)
{
	return nla_nest_start_noflag(msg, RDMA_NLDEV_ATTR_DRIVER);
}

void tbrdma_details_end(struct sk_buff *msg, struct nlattr *nest)
{
	nla_nest_end(msg, nest);
}

void tbrdma_details_cancel(struct sk_buff *msg, struct nlattr *nest)
{
	nla_nest_cancel(msg, nest);
}

/* What create operations see of the core's context: nothing of our own is behind it. */
struct tbrdma_context {
	struct ib_ucontext ib;
};

/* The driver's part of a request; NULL if the kernel itself asks. */
struct ib_udata *tbrdma_udata_of(struct uverbs_attr_bundle *attrs)
{
	return attrs ? &attrs->driver_udata : NULL;
}

/* Zeroed memory that a user may map if there is a udata; for the kernel alone if not. */
struct tbrdma_memory {
	struct rdma_user_mmap_entry entry;
	void *addr;
	bool mappable;
};

struct tbrdma_memory *tbrdma_memory_new(struct ib_udata *udata, size_t len, void **addr, u64 *offset)
{
	struct tbrdma_memory *memory = kzalloc(sizeof(*memory), GFP_KERNEL);

	if (!memory)
		return NULL;
	len = PAGE_ALIGN(len);
	memory->addr = vmalloc_user(len);
	if (!memory->addr)
		goto free_memory;
	if (udata) {
		struct tbrdma_context *context =
			rdma_udata_to_drv_context(udata, struct tbrdma_context, ib);

		if (!context || rdma_user_mmap_entry_insert(&context->ib, &memory->entry, len))
			goto free_pages;
		memory->mappable = true;
		*offset = rdma_user_mmap_get_offset(&memory->entry);
	}
	*addr = memory->addr;
	return memory;
free_pages:
	vfree(memory->addr);
free_memory:
	kfree(memory);
	return NULL;
}

/* Processes that have mapped the pages keep them. */
void tbrdma_memory_free(struct tbrdma_memory *memory)
{
	if (memory->mappable)
		rdma_user_mmap_entry_remove(&memory->entry);
	else
		tbrdma_memory_mmap_free(&memory->entry);
}

void tbrdma_memory_mmap_free(struct rdma_user_mmap_entry *entry)
{
	struct tbrdma_memory *memory = container_of(entry, struct tbrdma_memory, entry);

	vfree(memory->addr);
	kfree(memory);
}

int tbrdma_memory_mmap(struct ib_ucontext *context, struct vm_area_struct *vma)
{
	struct rdma_user_mmap_entry *entry = rdma_user_mmap_entry_get(context, vma);
	int ret;

	if (!entry)
		return -EINVAL;
	ret = remap_vmalloc_range(vma, container_of(entry, struct tbrdma_memory, entry)->addr, 0);
	rdma_user_mmap_entry_put(entry);
	return ret;
}
