/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stopped volume as its drives have it: not claimed, nothing replayed, nothing levelled. For `ashlar
 * inspect`. Everything that is read is untrusted. Use it on drives that cannot be written (world_overlay.h).
 */
#ifndef ASHLAR_VOLUME_INSPECT_H
#define ASHLAR_VOLUME_INSPECT_H

#include "volume/log_read.h"

/* The record and the system groups: roots and log can be read. */
int volume_inspect_open(const struct volume_env *env, struct uuid id, struct volume **ret)
    MUST_CHECK may_yield;
void volume_inspect_close(struct volume *v) may_yield;

/* The newest valid root. ERR_VOLUME_NO_ROOT. */
int volume_inspect_root(struct volume *v, struct disk_root *ret) MUST_CHECK may_yield;
/* Groups, v->pool and v->head as this root says. Once. */
int volume_inspect_load(struct volume *v, const struct disk_root *root) MUST_CHECK may_yield;
/* 1 .. GROUP_READ_MAX blocks of a group, unverified, from one member. */
int volume_inspect_read(struct volume *v, const struct group *g, uint32_t member, uint32_t block,
                        uint32_t blocks, struct page *pages) MUST_CHECK may_yield;

/* One slot of one member's root ring. */
struct inspect_slot {
    uint32_t member, slot;
    int err; /* of root_check, or why it could not be read */
    struct disk_root root;
};
/* Calls fn for each slot of each member that can be read; stops at its non-zero result. */
int volume_inspect_roots(struct volume *v, int (*fn)(void *ctx, const struct inspect_slot *s), void *ctx)
    MUST_CHECK may_yield;

/* Whole batches that lie in the INSPECT_LOG_BLOCKS before `end` as one member has them, payload too. They are
 * not needed any more where the root's log_oldest_block is beyond them. fn gets log block numbers. */
#define INSPECT_LOG_BLOCKS 1024u
int volume_inspect_past(struct volume *v, uint32_t member, uint64_t end,
                        int (*fn)(void *ctx, uint64_t position, uint32_t blocks), void *ctx)
    MUST_CHECK may_yield;

/* Calls fn for each member's copy of a batch of the scan that is below its durable mark and does not verify.
 */
int volume_inspect_log_copies(struct volume *v, const struct log_scan *scan,
                              void (*fn)(void *ctx, uint32_t member), void *ctx) MUST_CHECK may_yield;

#endif
