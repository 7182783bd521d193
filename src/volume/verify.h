/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole-volume consistency: what the trees reference against what the space items say, every item well
 * formed. For `ashlar check`, for tests and for the simulator at the end of each seed. Reads tree nodes only;
 * scrub reads data.
 */
#ifndef ASHLAR_VOLUME_VERIFY_H
#define ASHLAR_VOLUME_VERIFY_H

#include "volume/tree.h"
#include "volume/volume.h"

struct volume_verify {
    void (*problem)(void *ctx, const char *sentence); /* each inconsistency, once; or NULL */
    /* Every item of the live head but extents, in the order of keys, for who knows what they mean; or NULL. A
     * result that is not 0 ends the look with it. May yield. */
    int (*item)(void *ctx, const struct tree_key *key, const void *value, uint32_t len);
    void *ctx;
    uint64_t problems;
    uint64_t nodes, items, extents, data_blocks, inodes; /* seen */
};

/* Commits first; nothing else may change the volume meanwhile. 0 even if there are problems; an error when it
 * could not look. */
int volume_verify(struct volume *v, struct volume_verify *r) MUST_CHECK may_yield;

#endif
