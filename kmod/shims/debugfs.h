/* SPDX-License-Identifier: GPL-2.0-only */
/* One read-only debugfs file whose text the module writes piece by piece. */
#ifndef TBRDMA_SHIM_DEBUGFS_H
#define TBRDMA_SHIM_DEBUGFS_H

#include <linux/types.h>

/* @show is called with @data for every reader; 0 or a negative error number. */
void *tbrdma_debugfs_create(int (*show)(void *file, void *data), void *data);
void tbrdma_debugfs_remove(void *dir);
int tbrdma_debugfs_write(void *file, const void *text, size_t len);

#endif
