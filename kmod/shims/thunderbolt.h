/* SPDX-License-Identifier: GPL-2.0-only */
/* C forms of macros, inlines and variadic functions that bindgen cannot bind. */
#ifndef TBRDMA_SHIM_THUNDERBOLT_H
#define TBRDMA_SHIM_THUNDERBOLT_H

#include <linux/types.h>
#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/random.h>
#include <linux/thunderbolt.h>
#include <linux/workqueue.h>

/* A struct workqueue_struct; void, since bindgen would make another opaque type of it. */
void *tbrdma_alloc_workqueue(const char *name, bool data);
int tbrdma_lowest_router_uuid(u8 uuid[16]);
bool tbrdma_product_uuid(u8 uuid[16]);

#endif
