/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the volumes of a node tell each other about slabs. What a volume frees is the pool's only some commits
 * later, each of which waits for company; when an allocation of another one finds no slab meanwhile, those
 * commits hurry, and the allocation waits for them instead of failing.
 */
#ifndef ASHLAR_VOLUME_SHORTAGE_H
#define ASHLAR_VOLUME_SHORTAGE_H

#include "runtime/base.h"
#include "runtime/fiber.h"

struct volume;
struct volume_env;

/* One a node, used by all its reactors; begins as zeroes. */
struct volume_shortage {
    uint32_t coming;   /* volumes with slabs on their way back to the pool */
    uint32_t waiting;  /* allocations that found none */
    uint64_t returned; /* grows with each slab that came back */
};

#define SHORTAGE_WAIT_NS (15 * NSEC_PER_SEC)
#define SHORTAGE_LOOK_NS (100 * NSEC_PER_MSEC) /* a volume with slabs on their way looks for who waits */

/* The volume has slabs on their way, or not any more. Never yields. */
void shortage_set_coming(struct volume *v, bool coming);
void shortage_returned(struct volume *v);
/* Somebody waits for what is on its way. */
bool shortage_is_felt(const struct volume *v);
/* After an allocation found no slab. true: some came back, try again. false: nothing is on its way, or none
 * came until *until_ns (0: set here), or v (may be NULL) is closing or failed. */
bool shortage_wait(const struct volume_env *env, const struct volume *v, uint64_t *until_ns) may_yield;

#endif
