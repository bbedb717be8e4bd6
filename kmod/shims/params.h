/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TBRDMA_SHIM_PARAMS_H
#define TBRDMA_SHIM_PARAMS_H

#include <linux/types.h>

unsigned int tbrdma_param_ring_size(void);
unsigned int tbrdma_param_interrupt_interval(void);
bool tbrdma_param_loopback(void);

#endif
