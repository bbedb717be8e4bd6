/* SPDX-License-Identifier: GPL-2.0-only */
/* C forms of macros, inlines and variadic functions that bindgen cannot bind. */
#ifndef TBRDMA_SHIM_THUNDERBOLT_H
#define TBRDMA_SHIM_THUNDERBOLT_H

#include <linux/types.h>
#include <linux/delay.h>
#include <linux/dma-direction.h>
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/thunderbolt.h>
#include <linux/workqueue.h>

/* A struct workqueue_struct; void, since bindgen would make another opaque type of it. */
void *tbrdma_alloc_workqueue(const char *name, bool data);
bool tbrdma_wanted_elsewhere(void);
void tbrdma_synchronize_rcu_tasks(void);
unsigned long tbrdma_alloc_page(void);

int tbrdma_lowest_router_uuid(u8 uuid[16]);
bool tbrdma_product_uuid(u8 uuid[16]);

/* What the service driver calls; may sleep. Set before tbrdma_service_register(). */
struct tbrdma_service_ops {
	int (*probe)(struct tb_service *svc);
	void (*remove)(struct tb_service *svc);
	void (*suspend)(struct tb_service *svc);
	void (*resume)(struct tb_service *svc);
};

int tbrdma_service_register(const struct tbrdma_service_ops *ops);
void tbrdma_service_unregister(void);
struct tb_xdomain *tbrdma_service_xdomain(struct tb_service *svc);
void tbrdma_announce_again(struct tb_xdomain *xd);
void tbrdma_service_set_data(struct tb_service *svc, void *data);
void *tbrdma_service_data(struct tb_service *svc);

void tbrdma_xdomain_get(struct tb_xdomain *xd);
void tbrdma_xdomain_put(struct tb_xdomain *xd);
int tbrdma_xdomain_lanes(const struct tb_xdomain *xd);
bool tbrdma_xdomain_has_gone(struct tb_xdomain *xd);

bool tbrdma_tx_interrupts(void);
struct tb_ring *tbrdma_ring_alloc_tx(struct tb_xdomain *xd, int size);
struct tb_ring *tbrdma_ring_alloc_rx(struct tb_xdomain *xd, int size,
				     void (*start_poll)(void *), void *data);
int tbrdma_ring_tx(struct tb_ring *ring, struct ring_frame *frame, size_t len);
int tbrdma_ring_rx(struct tb_ring *ring, struct ring_frame *frame);
size_t tbrdma_frame_len(const struct ring_frame *frame);
bool tbrdma_frame_damaged(const struct ring_frame *frame);

bool tbrdma_dma_map(struct tb_ring *ring, void *buf, bool to_device, dma_addr_t *addr);
void tbrdma_dma_unmap(struct tb_ring *ring, dma_addr_t addr, bool to_device);
void tbrdma_dma_sync_for_cpu(struct tb_ring *ring, dma_addr_t addr, size_t len, bool to_device);
void tbrdma_dma_sync_for_device(struct tb_ring *ring, dma_addr_t addr, size_t len, bool to_device);

#endif
