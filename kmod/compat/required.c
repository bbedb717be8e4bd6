// SPDX-License-Identifier: GPL-2.0-only
/* What every kernel must have. symbols: tb_register_service_driver tb_ring_alloc_tx tb_xdomain_enable_paths ib_register_device */
#include "../bindings/sys.h"
