// SPDX-License-Identifier: GPL-2.0-only
/* Facts about the module that Rust's module! cannot state. */
#include <linux/module.h>

MODULE_VERSION(TBRDMA_VERSION);
MODULE_IMPORT_NS("DMA_BUF");
