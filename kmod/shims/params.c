// SPDX-License-Identifier: GPL-2.0-only
/*
 * Module parameters. Rust's module! gives them permission 0, so nothing would show under
 * /sys/module/tbrdma/parameters. They are set when the module is loaded and read only after that.
 * The list is kept in step with docs/parameters.md.
 */
#include <linux/moduleparam.h>
#include "params.h"

static unsigned int ring_size __ro_after_init = 1024;
module_param_named(ring_size, ring_size, uint, 0444);
MODULE_PARM_DESC(ring_size, "Descriptors in each transmit and receive ring, 1024 if not given; fewer are taken when memory is short");

static unsigned int interrupt_interval __ro_after_init = 8;
module_param_named(interrupt_interval, interrupt_interval, uint, 0444);
MODULE_PARM_DESC(interrupt_interval, "Least time between two interrupts of a receive ring, microseconds, 8 if not given, 16000 at most, 0: none (kernels from 7.2 on)");

static bool loopback __ro_after_init;
module_param_named(loopback, loopback, bool, 0444);
MODULE_PARM_DESC(loopback, "Port is active without any cable, for QPs within this host (0: no, 1: yes)");

unsigned int tbrdma_param_ring_size(void)
{
	return ring_size;
}

unsigned int tbrdma_param_interrupt_interval(void)
{
	return interrupt_interval;
}

bool tbrdma_param_loopback(void)
{
	return loopback;
}
