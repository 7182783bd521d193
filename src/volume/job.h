/* SPDX-License-Identifier: Apache-2.0 */
/* Walking everything that a volume references, several I/Os at once: what scrub and repair have in common. */
#ifndef ASHLAR_VOLUME_JOB_H
#define ASHLAR_VOLUME_JOB_H

#include "protect/throttle.h"
#include "volume/volume_internal.h"

#define JOB_AT_ONCE 16u

struct job_piece {
    struct group *group;
    uint32_t block, blocks;
    enum verify verify;
    uint64_t object, start; /* data: whose, first block; tree nodes: start is not meaningful */
    uint32_t sums[EXTENT_BLOCKS_MAX];
};

struct job_walk {
    struct volume *volume;
    struct volume_job *job;
    const bool *cancel;
    struct throttle throttle;
    uint64_t birth_max; /* only what is at most that old */
    bool (*wants)(const struct job_walk *w, const struct group *g);
    /* One piece, on a fiber of its own, several at once. The blocks are kept from being reused meanwhile. */
    int (*visit)(struct job_walk *w, const struct job_piece *p); /* may_yield */
    void (*unreadable)(struct job_walk *w, const struct tree_key *low,
                       const struct tree_key *high); /* or NULL */
    struct semaphore slots;
    struct latch latch;
    int result;
};

/* Pool tree, then head tree. 0, the first error of a visit, or ERR_CANCELLED. */
int job_walk_run(struct job_walk *w) MUST_CHECK may_yield;

#endif
