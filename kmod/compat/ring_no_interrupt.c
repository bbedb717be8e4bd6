// SPDX-License-Identifier: GPL-2.0-only
/* Rings that never interrupt (7.3). */
#include <linux/thunderbolt.h>
unsigned int flag = RING_FLAG_NO_INTERRUPT;
