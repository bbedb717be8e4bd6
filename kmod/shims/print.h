/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TBRDMA_SHIM_PRINT_H
#define TBRDMA_SHIM_PRINT_H

#include <linux/types.h>

void tbrdma_print(char level, const char *text, size_t len);
bool tbrdma_debug_enabled(void);
unsigned long tbrdma_print_second(void);
unsigned long tbrdma_print_now(void);

#endif
