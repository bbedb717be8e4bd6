// SPDX-License-Identifier: GPL-2.0-only
/* Spinlocks with interrupts off: macros that hand the old state back by name. */
#include <linux/spinlock.h>
#include "lock.h"

unsigned long tbrdma_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

bool tbrdma_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	unsigned long old;

	if (!spin_trylock_irqsave(lock, old))
		return false;
	*flags = old;
	return true;
}

void tbrdma_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}
