// SPDX-License-Identifier: GPL-2.0-only
/* C forms of macros, inlines and variadic functions that bindgen cannot bind. */
#include <linux/device.h>
#include <linux/dmi.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uuid.h>
#include "thunderbolt.h"

void *tbrdma_alloc_workqueue(const char *name, bool data)
{
	unsigned int flags = WQ_UNBOUND;

	if (data)
		flags |= WQ_HIGHPRI | WQ_MEM_RECLAIM;
	return alloc_workqueue("%s", flags, 0, name);
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

static int never_probe(struct tb_service *svc)
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
