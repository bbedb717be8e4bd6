// SPDX-License-Identifier: GPL-2.0-only
/* Interrupt moderation per ring. symbols: tb_ring_throttling */
#include <linux/thunderbolt.h>
int set(struct tb_ring *ring)
{
	return tb_ring_throttling(ring, 1000);
}
