/* SPDX-License-Identifier: Apache-2.0 */
/* The real world: io_uring, sockets, the system's clocks. For reactor_options.world; it needs no context.
 * Needs Linux 6.1 or later and a thread of its own for each reactor. */
#ifndef ASHLAR_RUNTIME_WORLD_REAL_H
#define ASHLAR_RUNTIME_WORLD_REAL_H

#include "runtime/world.h"

extern const struct world_ops world_real_ops;

#endif
