/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a simulated file holds: sparse 4 KiB blocks, each with what is on the medium (stable) and what is only
 * in a cache (written, not flushed).
 *
 *      hole --write--> cached --sync--> stable --write--> stable + cached --sync--> stable
 *                        |                                     |
 *                        +------ power loss: survives, is lost, or is torn between old and new
 *
 * A device may write its cache back at any time. So when a cached block is written again, chance decides
 * whether the older version had reached the medium; two versions a block then cover every history that a
 * power loss can leave.
 */
#ifndef ASHLAR_SIM_CONTENT_H
#define ASHLAR_SIM_CONTENT_H

#include "runtime/base.h"
#include "sim/random.h"

#include <sys/uio.h>

#define SIM_EXTENT_BLOCKS 256u

struct sim_block {
    uint8_t *stable;  /* NULL: hole. May be the shared page of zeroes */
    uint8_t *cached;  /* NULL: nothing unflushed */
    uint64_t written; /* content.sequence of the cached version */
};

struct sim_content {
    uint64_t size_bytes, stable_size_bytes;
    uint64_t sequence; /* counts completed writes */
    uint64_t syncing;  /* highest sequence that a sync under way covers */
    struct sim_block **extents;
    uint32_t extent_count;
    uint32_t *present; /* indexes of extents that exist */
    uint32_t present_count;
    uint32_t *dirty; /* blocks with a cached version; may name some that have none any more */
    uint32_t dirty_count, dirty_capacity;
    uint64_t blocks_used;
    struct sim_random *random; /* borrowed */
};

void sim_content_init(struct sim_content *c, uint64_t size_bytes, struct sim_random *random);
void sim_content_clear(struct sim_content *c);
/* NULL where nothing was ever near. */
struct sim_block *sim_content_find(const struct sim_content *c, uint64_t block);
/* What a read sees: BLOCK_SIZE bytes; zeroes for holes. */
const uint8_t *sim_content_bytes(const struct sim_content *c, uint64_t block);
const uint8_t *sim_content_stable_bytes(const struct sim_content *c, uint64_t block);

/* offset + len may lie beyond the end, which grows. data NULL: zeroes. stable: as with dsync. */
void sim_content_write(struct sim_content *c, uint64_t offset, const uint8_t *data, uint64_t len,
                       bool stable);
/* Everything with written <= sequence becomes stable. */
void sim_content_sync(struct sim_content *c, uint64_t sequence);
void sim_content_resize(struct sim_content *c, uint64_t size_bytes);
/* Some sectors of the block become those of data: a write that was cut. BLOCK_SIZE bytes. */
void sim_content_tear(struct sim_content *c, uint64_t block, const uint8_t *data);
/* What is cached is lost, torn or survives; counts say how many. */
void sim_content_power_loss(struct sim_content *c, uint32_t lost_ppm, uint32_t torn_ppm, uint64_t *ret_lost,
                            uint64_t *ret_torn);
bool sim_content_flip(struct sim_content *c, uint64_t block);
bool sim_content_pick(const struct sim_content *c, struct sim_random *r, uint64_t first, uint64_t end,
                      uint64_t *ret_block);

#endif
