/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of data blocks and tree nodes: a hash table over two first-in-first-out queues (S3-FIFO).
 *
 * A lookup only raises a small counter, so a hit moves nothing. What is new enters the small queue, a tenth
 * of the cache: a scan flows through it and out again. What was hit while it was there goes to the main queue
 * when its turn to leave comes; what left the small queue unhit is remembered for a while as a fingerprint
 * (ghost), and if it is asked for again, it enters the main queue at once. In the main queue each hit gives
 * another round.
 *
 * Invariants
 *  C1  an entry is in the table from cache_add_*() to cache_remove() or its eviction, under one key and kind
 * once; C2  a dirty entry is in no queue; one that is pinned may be, and is taken out of it when its turn
 * comes: it enters the main queue again with its last cache_unpin(); C3  an entry that was removed while it
 * was pinned is out of the table and lives until the last unpin.
 *
 * The table doubles when it is full, a few buckets at a time with each insertion, so that no request waits
 * for a rehash of a whole big cache.
 */
#include "volume/cache.h"

#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/metrics.h"
#include "runtime/reactor.h"
#include "volume/cache_internal.h"

#include <stdlib.h>

#define BUCKETS_MIN     1024u
#define MIGRATE_BUCKETS 8u
/* The small queue's share of all queued pages. */
#define SMALL_SHARE 10u

/* ---- Table ---- */

static void table_migrate(struct cache *c, uint64_t buckets)
{
    while (buckets > 0 && c->migrated <= c->old_mask) {
        struct cache_entry *e = c->old_table[c->migrated];
        c->migrated++;
        while (e) {
            struct cache_entry *next = e->hash_next;
            struct cache_entry **b = &c->table[cache_hash(e->key) & c->mask];
            e->hash_next = *b;
            *b = e;
            e = next;
        }
        buckets--;
    }
    if (c->migrated > c->old_mask) {
        free(c->old_table);
        c->old_table = NULL;
    }
}

/* Twice the buckets, and two ghosts for each. Without memory for them the chains just get longer. */
static void table_grow(struct cache *c)
{
    uint64_t size = (c->mask + 1) * 2;
    struct cache_entry **table = calloc(size, sizeof(*table));
    if (!table)
        return;
    c->old_table = c->table;
    c->old_mask = c->mask;
    c->migrated = 0;
    c->table = table;
    c->mask = size - 1;
    struct ghost *ghosts = calloc(size * 2, sizeof(*ghosts));
    if (ghosts) {
        free(c->ghosts);
        c->ghosts = ghosts;
        c->ghost_mask = size * 2 - 1;
    }
}

void cache_table_insert(struct cache *c, struct cache_entry *e, uint64_t hash)
{
    if (PREDICT_FALSE(c->old_table != NULL))
        table_migrate(c, MIGRATE_BUCKETS);
    else if (PREDICT_FALSE(c->entries > c->mask))
        table_grow(c);
    struct cache_entry **b = cache_bucket(c, hash);
    e->hash_next = *b;
    *b = e;
    c->entries++;
}

static void table_remove(struct cache *c, struct cache_entry *e)
{
    struct cache_entry **b = cache_bucket(c, cache_hash(e->key));
    while (*b != e) {
        assert(*b != NULL);
        b = &(*b)->hash_next;
    }
    *b = e->hash_next;
    e->hash_next = NULL;
    assert(c->entries > 0);
    c->entries--;
}

/* ---- Queues ---- */

void cache_queue_insert(struct cache *c, struct cache_entry *e, int place)
{
    assert(e->place == PLACE_NONE && !e->dirty);
    e->place = (uint8_t)place;
    if (place == PLACE_SMALL) {
        list_append(&c->small, &e->queue);
        c->small_pages += e->pages;
    } else {
        list_append(&c->main, &e->queue);
        c->main_pages += e->pages;
        c->main_entries++;
    }
}

void cache_queue_remove(struct cache *c, struct cache_entry *e)
{
    if (e->place == PLACE_SMALL) {
        c->small_pages -= e->pages;
    } else if (e->place == PLACE_MAIN) {
        c->main_pages -= e->pages;
        c->main_entries--;
    } else {
        return;
    }
    list_remove(&e->queue);
    e->place = PLACE_NONE;
}

void cache_queue_resize(struct cache *c, struct cache_entry *e, int pages)
{
    assert((int)e->pages + pages > 0);
    e->pages = (uint16_t)((int)e->pages + pages);
    if (e->place == PLACE_SMALL)
        c->small_pages += (uint64_t)(int64_t)pages;
    else if (e->place == PLACE_MAIN)
        c->main_pages += (uint64_t)(int64_t)pages;
}

void cache_queue_cleaned(struct cache *c, struct cache_entry *e)
{
    if (!e->dirty && e->place == PLACE_NONE && e->pins == 0)
        cache_queue_insert(c, e, e->frequency > 0 ? PLACE_MAIN : PLACE_SMALL);
}

/* Neighbours are apart here: one that leaves must not take the other's place. */
static struct ghost *ghost_of(struct cache *c, struct cache_key key, uint32_t *ret_fingerprint)
{
    uint64_t hash = hash_mix64(cache_hash(key));
    *ret_fingerprint = (uint32_t)(hash >> 32);
    return &c->ghosts[hash & c->ghost_mask];
}

static void ghost_add(struct cache *c, struct cache_entry *e)
{
    uint32_t fingerprint;
    struct ghost *g = ghost_of(c, e->key, &fingerprint);
    *g = (struct ghost){fingerprint, ++c->ghost_clock};
}

/* Whether it left the small queue not longer ago than the main queue has entries. */
static bool ghost_take(struct cache *c, struct cache_key key)
{
    uint32_t fingerprint;
    struct ghost *g = ghost_of(c, key, &fingerprint);
    if (g->when == 0 || g->fingerprint != fingerprint)
        return false;
    uint32_t age = c->ghost_clock - g->when;
    g->when = 0;
    return age <= c->main_entries + BUCKETS_MIN;
}

/* ---- Life of an entry ---- */

void cache_queue_new(struct cache *c, struct cache_entry *e)
{
    cache_queue_insert(c, e, ghost_take(c, e->key) ? PLACE_MAIN : PLACE_SMALL);
}

static uint32_t node_release(struct cache *c, struct cache_entry *e)
{
    uint32_t freed = 0;
    for (uint32_t i = 0; i < e->pages; i++)
        freed += page_at(e->page, i)->refs == 1;
    if (e->dirty)
        c->stats.dirty_pages -= e->pages;
    page_put(e->page, e->pages);
    c->evicted_node(e);
    return freed;
}

/* Lets go of an entry that is out of the table and of the queues; returns how many pages became free. */
static uint32_t entry_release(struct cache *c, struct cache_entry *e)
{
    assert(e->pins == 0);
    c->stats.pages -= e->pages;
    return e->kind == CACHE_NODE ? node_release(c, e) : cache_run_release(c, (struct cache_run *)e);
}

static uint32_t reclaim_hook(void *ctx, uint32_t npages)
{
    return cache_reclaim(ctx, npages);
}

int cache_new(void (*evicted_node)(struct cache_entry *e), struct cache **ret)
{
    struct cache *c = calloc(1, sizeof(*c));
    if (!c)
        return ERR_NO_MEMORY;
    c->table = calloc(BUCKETS_MIN, sizeof(*c->table));
    c->ghosts = calloc(BUCKETS_MIN * 2, sizeof(*c->ghosts));
    if (!c->table || !c->ghosts) {
        free(c->table);
        free(c->ghosts);
        free(c);
        return ERR_NO_MEMORY;
    }
    c->evicted_node = evicted_node;
    c->mask = BUCKETS_MIN - 1;
    c->ghost_mask = BUCKETS_MIN * 2 - 1;
    list_init(&c->small);
    list_init(&c->main);
    assert(reactor_current() != NULL);
    c->memory = reactor_memory(reactor_current());
    memory_set_reclaim(c->memory, reclaim_hook, c);
    *ret = c;
    return 0;
}

static void drop_if(struct cache *c, bool all, uint32_t volume)
{
    if (c->old_table)
        table_migrate(c, UINT64_MAX);
    for (uint64_t i = 0; i <= c->mask; i++) {
        struct cache_entry *e = c->table[i];
        while (e) {
            struct cache_entry *next = e->hash_next;
            if (all || e->key.volume == volume) {
                assert(e->pins == 0);
                cache_remove(c, e);
            }
            e = next;
        }
    }
}

void cache_free(struct cache *c)
{
    if (!c)
        return;
    drop_if(c, true, 0);
    assert(c->stats.pages == 0);
    memory_set_reclaim(c->memory, NULL, NULL);
    free(c->table);
    free(c->ghosts);
    free(c);
}

uint32_t cache_volume_tag(struct cache *c)
{
    return ++c->next_tag;
}

void cache_drop_volume(struct cache *c, uint32_t volume)
{
    drop_if(c, false, volume);
}

struct cache_entry *cache_find(struct cache *c, struct cache_key key)
{
    struct cache_entry *e = cache_table_find(c, key, CACHE_NODE, cache_hash(key));
    if (!e) {
        counter_add(&c->stats.misses, 1);
        return NULL;
    }
    counter_add(&c->stats.hits, 1);
    if (e->frequency < FREQUENCY_MAX)
        e->frequency++;
    return e;
}

void cache_prefetch(const struct cache *c, struct cache_key key, bool rest)
{
    struct cache_entry *const *b = cache_bucket(c, cache_hash(key));
    if (!rest)
        __builtin_prefetch(b);
    else if (*b)
        __builtin_prefetch(*b);
}

void cache_add_node(struct cache *c, struct cache_entry *e, bool dirty)
{
    assert(e->page != NULL && e->pages > 0);
    uint64_t hash = cache_hash(e->key);
    struct cache_entry *old = cache_table_find(c, e->key, CACHE_NODE, hash);
    if (old)
        cache_remove(c, old);
    e->kind = CACHE_NODE;
    e->frequency = 0;
    e->place = PLACE_NONE;
    e->dirty = dirty;
    e->pins = 0;
    list_init(&e->queue);
    cache_table_insert(c, e, hash);
    c->stats.pages += e->pages;
    if (dirty)
        c->stats.dirty_pages += e->pages;
    else
        cache_queue_new(c, e);
}

void cache_clean(struct cache *c, struct cache_entry *e)
{
    assert(e->kind == CACHE_NODE);
    if (!e->dirty)
        return;
    e->dirty = false;
    c->stats.dirty_pages -= e->pages;
    cache_queue_cleaned(c, e);
}

void cache_remove(struct cache *c, struct cache_entry *e)
{
    if (e->place == PLACE_REMOVED)
        return;
    table_remove(c, e);
    cache_queue_remove(c, e);
    e->place = PLACE_REMOVED;
    if (e->pins == 0)
        entry_release(c, e);
}

void cache_pin(struct cache_entry *e)
{
    assert(e->pins < UINT16_MAX);
    e->pins++;
}

void cache_unpin(struct cache *c, struct cache_entry *e)
{
    assert(e->pins > 0);
    if (--e->pins > 0)
        return;
    if (e->place == PLACE_REMOVED)
        entry_release(c, e);
    else if (e->place == PLACE_NONE && !e->dirty)
        cache_queue_insert(c, e, PLACE_MAIN);
}

/* ---- Eviction ---- */

static uint32_t evict(struct cache *c, struct cache_entry *e)
{
    table_remove(c, e);
    c->stats.evictions += e->pages;
    return entry_release(c, e);
}

/* The oldest of the small queue: out, or into the main queue if it was hit. */
static uint32_t step_small(struct cache *c)
{
    struct cache_entry *e = CONTAINER_OF(c->small.next, struct cache_entry, queue);
    cache_queue_remove(c, e);
    if (e->pins > 0)
        return 0;
    if (e->frequency > 0) {
        e->frequency = 0;
        cache_queue_insert(c, e, PLACE_MAIN);
        return 0;
    }
    ghost_add(c, e);
    return evict(c, e);
}

/* The oldest of the main queue: out, or another round for a hit. */
static uint32_t step_main(struct cache *c)
{
    struct cache_entry *e = CONTAINER_OF(c->main.next, struct cache_entry, queue);
    cache_queue_remove(c, e);
    if (e->pins > 0)
        return 0;
    if (e->frequency > 0) {
        e->frequency--;
        cache_queue_insert(c, e, PLACE_MAIN);
        return 0;
    }
    return evict(c, e);
}

uint32_t cache_reclaim(struct cache *c, uint32_t npages)
{
    uint32_t freed = 0;
    /* Ends by itself: each step evicts, takes a pinned entry out, or lowers a frequency. */
    while (freed < npages) {
        bool small = !list_empty(&c->small), main = !list_empty(&c->main);
        if (small && (!main || c->small_pages * SMALL_SHARE >= c->small_pages + c->main_pages))
            freed += step_small(c);
        else if (main)
            freed += step_main(c);
        else
            break;
    }
    return freed;
}

void cache_get_stats(const struct cache *c, struct cache_stats *ret)
{
    *ret = c->stats;
}
