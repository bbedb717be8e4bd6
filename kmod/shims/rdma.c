// SPDX-License-Identifier: GPL-2.0-only
/* What Rust cannot call: inline functions and macros of the RDMA core. No logic. */
#include <linux/highmem.h>
#include <linux/random.h>
#include <linux/uaccess.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
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

u32 tbrdma_random(void)
{
	return get_random_u32();
}

void tbrdma_cq_notify(struct ib_cq *cq)
{
	if (cq->comp_handler)
		cq->comp_handler(cq, cq->cq_context);
}

void tbrdma_cq_error(struct ib_cq *cq)
{
	struct ib_event event = { .device = cq->device, .event = IB_EVENT_CQ_ERR, .element.cq = cq };

	if (cq->event_handler)
		cq->event_handler(&event, cq->cq_context);
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

int tbrdma_copy_from_user(void *to, u64 from, size_t len)
{
	return copy_from_user(to, u64_to_user_ptr(from), len) ? -EFAULT : 0;
}
