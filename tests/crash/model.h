/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a volume may hold: for each block the generation that was acknowledged last, and the one that is under
 * way and may or may not have arrived. Generation 0 is zeroes; any other gives a content of its own for each
 * block, so that a block in a wrong place, an old one or a torn one is told apart.
 */
#ifndef TESTS_CRASH_MODEL_H
#define TESTS_CRASH_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_BLOCK 4096u

struct model_block {
    uint32_t acked;
    uint32_t pending; /* meaningful while has_pending */
    bool has_pending; /* a change of it was sent and its answer is not known */
    bool busy; /* a request on it is under way: no second one is sent, so that order is never in doubt */
};

struct model {
    uint64_t seed;
    uint64_t random; /* state of model_random */
    uint32_t next_generation;
    size_t block_count;
    struct model_block *blocks;
};

/* One finding: what a block held that it may not hold. */
struct model_finding {
    size_t block;
    uint32_t acked;
    bool has_pending;
    uint32_t pending;
    const char *what;
    uint64_t found_block; /* as the content's head says; 0 for zeroes */
    uint32_t found_generation;
};

void model_init(struct model *m, uint64_t seed, size_t block_count);
void model_done(struct model *m);
uint64_t model_random(struct model *m);
/* A number in [0, limit). */
uint64_t model_random_below(struct model *m, uint64_t limit);

void model_fill(const struct model *m, void *buf, size_t block, uint32_t generation);

/* The change of a run of blocks to one generation each was sent, acknowledged, or will never be answered. */
void model_sent(struct model *m, size_t block, size_t count, uint32_t generation);
void model_acked(struct model *m, size_t block, size_t count);
void model_unanswered(struct model *m, size_t block, size_t count);

/* True if the block may hold this; what it holds is from now on what it must hold, since a change that was
 * seen once must not be gone the next time. False, and *ret_finding, otherwise. */
bool model_verify(struct model *m, const void *buf, size_t block, struct model_finding *ret_finding);

#endif
