// SPDX-License-Identifier: GPL-2.0-only
/* C forms of macros, inlines and variadic functions that bindgen cannot bind. */
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/dmi.h>
#include <linux/module.h>
#include <linux/pm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uuid.h>
#include "params.h"
#include "thunderbolt.h"

void *tbrdma_alloc_workqueue(const char *name, bool data)
{
	unsigned int flags = WQ_UNBOUND;

	if (data)
		flags |= WQ_HIGHPRI | WQ_MEM_RECLAIM;
	return alloc_workqueue("%s", flags, 0, name);
}

bool tbrdma_wanted_elsewhere(void)
{
	return need_resched() || signal_pending(current);
}

/* A macro on kernels where tasks RCU is plain RCU. */
void tbrdma_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

/* Memory for buffers is wanted, not needed: no OOM killer, no report. */
unsigned long tbrdma_alloc_page(void)
{
	return get_zeroed_page(GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
}

struct router_search {
	char *text;
	uuid_t lowest;
	bool found;
};

static struct device_attribute *find_attribute(struct device *dev, const char *name)
{
	const struct attribute_group **group = dev->groups;

	for (; group && *group; group++) {
		struct attribute **attr = (struct attribute **)(*group)->attrs;

		for (; attr && *attr; attr++)
			if (!strcmp((*attr)->name, name))
				return container_of(*attr, struct device_attribute, attr);
	}
	return NULL;
}

/* Host routers are the devices of the bus that are called "<domain>-0". */
static int visit_router(struct device *dev, void *data)
{
	struct router_search *search = data;
	const char *dash = strrchr(dev_name(dev), '-');
	struct device_attribute *attr;
	uuid_t uuid;

	if (!dash || strcmp(dash, "-0"))
		return 0;
	attr = find_attribute(dev, "unique_id");
	if (!attr || !attr->show || attr->show(dev, attr, search->text) <= 0)
		return 0;
	if (uuid_parse(search->text, &uuid))
		return 0;
	if (!search->found || memcmp(&uuid, &search->lowest, sizeof(uuid)) < 0)
		search->lowest = uuid;
	search->found = true;
	return 0;
}

/* Up to 7.2 the core passes probe functions the table entry that matched. */
#ifdef TBRDMA_SERVICE_PROBE_ID
#define PROBE_ARGS struct tb_service *svc, const struct tb_service_id *id
#else
#define PROBE_ARGS struct tb_service *svc
#endif

static int never_probe(PROBE_ARGS)
{
	return -ENODEV;
}

static const struct tb_service_id no_services[] = { { } };

/*
 * The bus type is not exported, but registering a driver fills it in: register one that matches
 * nothing for as long as the search takes.
 * Returns 1 and the UUID, 0 without a router, or a negative error number.
 */
int tbrdma_lowest_router_uuid(u8 uuid[16])
{
	struct tb_service_driver driver = {
		.driver = { .name = "tbrdma-routers", .owner = THIS_MODULE },
		.probe = never_probe,
		.id_table = no_services,
	};
	struct router_search search = { };
	int ret;

	/* A whole page: that is what a show function may fill. */
	search.text = (char *)get_zeroed_page(GFP_KERNEL);
	if (!search.text)
		return -ENOMEM;
	ret = tb_register_service_driver(&driver);
	if (!ret) {
		ret = bus_for_each_dev(driver.driver.bus, NULL, &search, visit_router);
		tb_unregister_service_driver(&driver);
	}
	free_page((unsigned long)search.text);
	if (ret)
		return ret;
	if (search.found)
		memcpy(uuid, &search.lowest, sizeof(search.lowest));
	return search.found;
}

/* False if the firmware has no product UUID, or one of the values that mean "none". */
bool tbrdma_product_uuid(u8 uuid[16])
{
	const char *text = dmi_get_system_info(DMI_PRODUCT_UUID);
	uuid_t parsed;

	if (!text || uuid_parse(text, &parsed))
		return false;
	if (!memchr_inv(&parsed, 0, sizeof(parsed)) || !memchr_inv(&parsed, 0xff, sizeof(parsed)))
		return false;
	memcpy(uuid, &parsed, sizeof(parsed));
	return true;
}

static struct tbrdma_service_ops service_ops;

static int service_probe(PROBE_ARGS)
{
	return service_ops.probe(svc);
}

static void service_remove(struct tb_service *svc)
{
	service_ops.remove(svc);
}

/* At shutdown the rings have to stop before the controller does; there is no way back. */
static void service_shutdown(struct tb_service *svc)
{
	service_ops.suspend(svc);
}

static int service_suspend(struct device *dev)
{
	service_ops.suspend(tb_to_service(dev));
	return 0;
}

static int service_resume(struct device *dev)
{
	service_ops.resume(tb_to_service(dev));
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(service_pm, service_suspend, service_resume);

static const struct tb_service_id service_ids[] = {
	{ TB_SERVICE("tbrdma", 1) },
	{ }
};
MODULE_DEVICE_TABLE(tbsvc, service_ids);

static struct tb_service_driver service_driver = {
	.driver = {
		.name = "tbrdma",
		.owner = THIS_MODULE,
		.pm = pm_sleep_ptr(&service_pm),
	},
	.probe = service_probe,
	.remove = service_remove,
	.shutdown = service_shutdown,
	.id_table = service_ids,
};

int tbrdma_service_register(const struct tbrdma_service_ops *ops)
{
	service_ops = *ops;
	return tb_register_service_driver(&service_driver);
}

void tbrdma_service_unregister(void)
{
	tb_unregister_service_driver(&service_driver);
}

static int is_our_service(struct device *dev, const void *data)
{
	const struct tb_service *svc = tb_to_service(dev);

	return svc && svc->key && !strcmp(svc->key, "tbrdma");
}

/*
 * Tells the other host to read our properties again. A notification that it gets between reading them and
 * making its device for us is answered and forgotten by its Thunderbolt core, and then it never sees our
 * service.
 */
void tbrdma_announce_again(struct tb_xdomain *xd)
{
	struct device *dev = device_find_child(&xd->dev, NULL, is_our_service);

	if (!dev)
		return;
	tb_service_properties_changed(tb_to_service(dev));
	put_device(dev);
}

struct tb_xdomain *tbrdma_service_xdomain(struct tb_service *svc)
{
	return tb_service_parent(svc);
}

void tbrdma_service_set_data(struct tb_service *svc, void *data)
{
	tb_service_set_drvdata(svc, data);
}

void *tbrdma_service_data(struct tb_service *svc)
{
	return tb_service_get_drvdata(svc);
}

void tbrdma_xdomain_get(struct tb_xdomain *xd)
{
	tb_xdomain_get(xd);
}

void tbrdma_xdomain_put(struct tb_xdomain *xd)
{
	tb_xdomain_put(xd);
}

/* Lanes in the direction that has fewer (asymmetric links have 3 and 1). */
int tbrdma_xdomain_lanes(const struct tb_xdomain *xd)
{
	return xd->link_width == TB_LINK_WIDTH_DUAL ? 2 : 1;
}

/* Waits until the connection manager is through with what it is doing. */
bool tbrdma_xdomain_has_gone(struct tb_xdomain *xd)
{
	bool gone;

	mutex_lock(&xd->tb->lock);
	gone = xd->is_unplugged;
	mutex_unlock(&xd->tb->lock);
	return gone;
}

/* Kernels up to 7.2 cannot switch the interrupt of a TX ring off. */
#ifdef TBRDMA_RING_NO_INTERRUPT
#define TX_FLAGS (RING_FLAG_FRAME | RING_FLAG_NO_INTERRUPT)
#else
#define TX_FLAGS RING_FLAG_FRAME
#endif

bool tbrdma_tx_interrupts(void)
{
	return TX_FLAGS == RING_FLAG_FRAME;
}

/* Protocol defined fields of our frames: start and end of frame. */
#define PDF_SOF 1
#define PDF_EOF 2

struct tb_ring *tbrdma_ring_alloc_tx(struct tb_xdomain *xd, int size)
{
	return tb_ring_alloc_tx(xd->tb->nhi, -1, size, TX_FLAGS);
}

/* What 16 bits of 256 ns can express. */
#define INTERVAL_MAX_US 16000

/*
 * Only a ring that is stopped can be told. Kernels before 7.2 let all interrupts wait for 128 us. The
 * first frame after a pause is not delayed: the interval counts from the interrupt before.
 */
static void moderate(struct tb_ring *ring)
{
#ifdef TBRDMA_RING_THROTTLING
	unsigned int us = min_t(unsigned int, tbrdma_param_interrupt_interval(), INTERVAL_MAX_US);

	tb_ring_throttling(ring, us * NSEC_PER_USEC);
#endif
}

struct tb_ring *tbrdma_ring_alloc_rx(struct tb_xdomain *xd, int size,
				     void (*start_poll)(void *), void *data)
{
	struct tb_ring *ring = tb_ring_alloc_rx(xd->tb->nhi, -1, size, RING_FLAG_FRAME, 0,
						BIT(PDF_SOF), BIT(PDF_EOF), start_poll, data);

	if (ring)
		moderate(ring);
	return ring;
}

int tbrdma_ring_tx(struct tb_ring *ring, struct ring_frame *frame, size_t len)
{
	/* 12 bits: TB_MAX_FRAME_SIZE wraps to 0, which is what means 4096. */
	frame->size = len;
	frame->sof = PDF_SOF;
	frame->eof = PDF_EOF;
	return tb_ring_tx(ring, frame);
}

int tbrdma_ring_rx(struct tb_ring *ring, struct ring_frame *frame)
{
	return tb_ring_rx(ring, frame);
}

size_t tbrdma_frame_len(const struct ring_frame *frame)
{
	return tb_ring_frame_size(frame);
}

bool tbrdma_frame_damaged(const struct ring_frame *frame)
{
	return frame->flags & (RING_DESC_CRC_ERROR | RING_DESC_BUFFER_OVERRUN);
}

static enum dma_data_direction direction(bool to_device)
{
	return to_device ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
}

bool tbrdma_dma_map(struct tb_ring *ring, void *buf, bool to_device, dma_addr_t *addr)
{
	struct device *dev = tb_ring_dma_device(ring);

	*addr = dma_map_single(dev, buf, TB_MAX_FRAME_SIZE, direction(to_device));
	return !dma_mapping_error(dev, *addr);
}

void tbrdma_dma_unmap(struct tb_ring *ring, dma_addr_t addr, bool to_device)
{
	dma_unmap_single(tb_ring_dma_device(ring), addr, TB_MAX_FRAME_SIZE, direction(to_device));
}

void tbrdma_dma_sync_for_cpu(struct tb_ring *ring, dma_addr_t addr, size_t len, bool to_device)
{
	dma_sync_single_for_cpu(tb_ring_dma_device(ring), addr, len, direction(to_device));
}

void tbrdma_dma_sync_for_device(struct tb_ring *ring, dma_addr_t addr, size_t len, bool to_device)
{
	dma_sync_single_for_device(tb_ring_dma_device(ring), addr, len, direction(to_device));
}
