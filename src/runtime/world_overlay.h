/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real world, but nothing is ever written to it: what is written stays in memory and is seen by later
 * reads. On it the ordinary code opens a stopped pool, replays its logs and commits, and every byte on the
 * drives stays as it was.
 *
 * Files are opened without the permission to write. A FILE_OPEN_LOCK is taken for real, as a shared lock: so
 * a running node is noticed (ERR_SYS(EBUSY)), none can start meanwhile, and several looks at one pool do not
 * disturb each other.
 */
#ifndef ASHLAR_RUNTIME_WORLD_OVERLAY_H
#define ASHLAR_RUNTIME_WORLD_OVERLAY_H

#include "runtime/world.h"

struct world_overlay;

/* At most limit_bytes are kept; a write beyond that fails with ERR_NO_MEMORY, and world_overlay_full() tells
 * so from then on. Shared by all reactors of a process. */
int world_overlay_new(uint64_t limit_bytes, struct world_overlay **ret) MUST_CHECK;
/* After the reactors that use it are gone. */
void world_overlay_free(struct world_overlay *o);
/* For reactor_options.world; reactor_options.world_ctx is o itself. Borrowed. */
const struct world_ops *world_overlay_ops(const struct world_overlay *o);

/* Any thread. */
uint64_t world_overlay_used_bytes(struct world_overlay *o);
bool world_overlay_full(struct world_overlay *o);

#endif
