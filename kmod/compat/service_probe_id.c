// SPDX-License-Identifier: GPL-2.0-only
/* Until 7.2 the probe function of a Thunderbolt service driver is given the matching id too. */
#include <linux/thunderbolt.h>
static int probe(struct tb_service *svc, const struct tb_service_id *id)
{
	return 0;
}
struct tb_service_driver driver = { .probe = probe };
