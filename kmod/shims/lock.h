/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TBRDMA_SHIM_LOCK_H
#define TBRDMA_SHIM_LOCK_H

#include <linux/spinlock_types.h>
#include <linux/types.h>

unsigned long tbrdma_spin_lock_irqsave(spinlock_t *lock);
bool tbrdma_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void tbrdma_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);

#endif
