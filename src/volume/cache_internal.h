/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's table and queues (cache.c) and its data blocks (cache_data.c) among themselves. */
#ifndef ASHLAR_VOLUME_CACHE_INTERNAL_H
#define ASHLAR_VOLUME_CACHE_INTERNAL_H

#include "volume/cache.h"

enum { PLACE_NONE, PLACE_SMALL, PLACE_MAIN, PLACE_REMOVED };

#define FREQUENCY_MAX 3

struct ghost {
    uint32_t fingerprint;
    uint32_t when; /* cache->ghost_clock as it left */
};

struct cache {
    void (*evicted_node)(struct cache_entry *e);
    struct memory *memory;
    struct cache_entry **table;
    uint64_t mask;
    struct cache_entry **old_table; /* while the table grows; NULL otherwise */
    uint64_t old_mask;
    uint64_t migrated; /* buckets of old_table below it are empty */
    struct ghost *ghosts;
    uint64_t ghost_mask;
    uint32_t ghost_clock; /* counts entries that left the small queue */
    uint32_t next_tag;
    uint64_t entries;
    struct list small, main;
    uint64_t small_pages, main_pages, main_entries;
    struct cache_stats stats;
};

/* Neighbouring data blocks share an entry: those of one aligned run. Long I/O is one look-up for each run,
 * and blocks that were written together are what is asked for together. Short enough that the entry of a
 * single block costs little beside its page, and that a run's blocks are alike hot. */
#define RUN_BLOCKS 8u

struct cache_run {
    struct cache_entry entry;      /* first; its key is that of the run's first block */
    struct page *page[RUN_BLOCKS]; /* NULL: not here; otherwise with one reference */
    uint8_t dirty;                 /* bits of blocks */
};
static_assert(RUN_BLOCKS <= 8, "a bit for each block");

static inline uint64_t cache_hash(struct cache_key k)
{
    uint64_t x = k.block * UINT64_C(0x9e3779b97f4a7c15);
    x ^= ((uint64_t)k.volume << 32 | k.space) * UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 29;
}

static inline bool cache_key_equal(struct cache_key a, struct cache_key b)
{
    return a.block == b.block && a.space == b.space && a.volume == b.volume;
}

static inline struct cache_entry **cache_bucket(const struct cache *c, uint64_t hash)
{
    if (PREDICT_FALSE(c->old_table != NULL) && (hash & c->old_mask) >= c->migrated)
        return &c->old_table[hash & c->old_mask];
    return &c->table[hash & c->mask];
}

/* By kind, too: an extent that leads to where a node lies is somebody else's to notice. */
static inline struct cache_entry *cache_table_find(struct cache *c, struct cache_key key,
                                                   enum cache_kind kind, uint64_t hash)
{
    struct cache_entry *e = *cache_bucket(c, hash);
    while (e && !(cache_key_equal(e->key, key) && e->kind == kind))
        e = e->hash_next;
    return e;
}

void cache_table_insert(struct cache *c, struct cache_entry *e, uint64_t hash);
/* A new entry's place: the main queue if it left lately. */
void cache_queue_new(struct cache *c, struct cache_entry *e);
void cache_queue_insert(struct cache *c, struct cache_entry *e, int place);
void cache_queue_remove(struct cache *c, struct cache_entry *e);
/* In no queue while it is dirty (C2): clean again, it enters one. */
void cache_queue_cleaned(struct cache *c, struct cache_entry *e);
/* More or fewer pages in an entry that stays where it is. */
void cache_queue_resize(struct cache *c, struct cache_entry *e, int pages);
/* Lets go of a run that is in no table and no queue any more, and of its pages; returns how many became free.
 */
uint32_t cache_run_release(struct cache *c, struct cache_run *r);

#endif
