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
 *  C1  an entry is in the table from cache_add_*() to cache_remove() or its eviction, under one key once;
 *  C2  a dirty entry is in no queue; one that is pinned may be, and is taken out of it when its turn comes:
 * it enters the main queue again with its last cache_unpin(); C3  an entry that was removed while it was
 * pinned is out of the table and lives until the last unpin.
 *
 * The table doubles when it is full, a few buckets at a time with each insertion, so that no request waits
 * for a rehash of a whole big cache.
 */
#include "volume/cache.h"

#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/metrics.h"
#include "runtime/reactor.h"

#include <stdlib.h>

enum { PLACE_NONE, PLACE_SMALL, PLACE_MAIN, PLACE_REMOVED };

#define FREQUENCY_MAX   3
#define BUCKETS_MIN     1024u
#define MIGRATE_BUCKETS 8u
/* The small queue's share of all queued pages. */
#define SMALL_SHARE 10u

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

/* Eight neighbours share a line of the table: runs of blocks are what most lookups are about. */
#define NEIGHBOURS 8u
static inline uint64_t key_hash(struct cache_key k)
{
    uint64_t x = (k.block / NEIGHBOURS) * UINT64_C(0x9e3779b97f4a7c15);
    x ^= ((uint64_t)k.volume << 32 | k.space) * UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 29;
    return (x & ~(uint64_t)(NEIGHBOURS - 1)) | k.block % NEIGHBOURS;
}

static inline bool key_equal(struct cache_key a, struct cache_key b)
{
    return a.block == b.block && a.space == b.space && a.volume == b.volume;
}

/* ---- Table ---- */

static inline struct cache_entry **bucket_of(struct cache *c, uint64_t hash)
{
    if (PREDICT_FALSE(c->old_table != NULL) && (hash & c->old_mask) >= c->migrated)
        return &c->old_table[hash & c->old_mask];
    return &c->table[hash & c->mask];
}

static void table_migrate(struct cache *c, uint64_t buckets)
{
    while (buckets > 0 && c->migrated <= c->old_mask) {
        struct cache_entry *e = c->old_table[c->migrated];
        c->migrated++;
        while (e) {
            struct cache_entry *next = e->hash_next;
            struct cache_entry **b = &c->table[key_hash(e->key) & c->mask];
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

static void table_insert(struct cache *c, struct cache_entry *e, uint64_t hash)
{
    if (PREDICT_FALSE(c->old_table != NULL))
        table_migrate(c, MIGRATE_BUCKETS);
    else if (PREDICT_FALSE(c->entries > c->mask))
        table_grow(c);
    struct cache_entry **b = bucket_of(c, hash);
    e->hash_next = *b;
    *b = e;
    c->entries++;
}

static void table_remove(struct cache *c, struct cache_entry *e)
{
    struct cache_entry **b = bucket_of(c, key_hash(e->key));
    while (*b != e) {
        assert(*b != NULL);
        b = &(*b)->hash_next;
    }
    *b = e->hash_next;
    e->hash_next = NULL;
    assert(c->entries > 0);
    c->entries--;
}

static inline struct cache_entry *table_find(struct cache *c, struct cache_key key, uint64_t hash)
{
    struct cache_entry *e = *bucket_of(c, hash);
    while (e && !key_equal(e->key, key))
        e = e->hash_next;
    return e;
}

/* ---- Queues ---- */

static void queue_insert(struct cache *c, struct cache_entry *e, int place)
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

static void queue_remove(struct cache *c, struct cache_entry *e)
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

/* Neighbours are apart here: one that leaves must not take the other's place. */
static struct ghost *ghost_of(struct cache *c, struct cache_key key, uint32_t *ret_fingerprint)
{
    uint64_t hash = hash_mix64(key_hash(key));
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

/* Lets go of an entry that is out of the table and of the queues; returns how many pages became free. */
static uint32_t entry_release(struct cache *c, struct cache_entry *e)
{
    assert(e->pins == 0);
    uint32_t freed = 0;
    for (uint32_t i = 0; i < e->pages; i++)
        freed += page_at(e->page, i)->refs == 1;
    c->stats.pages -= e->pages;
    if (e->dirty)
        c->stats.dirty_pages -= e->pages;
    page_put(e->page, e->pages);
    if (e->kind == CACHE_NODE)
        c->evicted_node(e);
    else
        free(e);
    return freed;
}

static void entry_add(struct cache *c, struct cache_entry *e, bool dirty)
{
    uint64_t hash = key_hash(e->key);
    struct cache_entry *old = table_find(c, e->key, hash);
    if (old)
        cache_remove(c, old);
    e->frequency = 0;
    e->place = PLACE_NONE;
    e->dirty = dirty;
    e->pins = 0;
    list_init(&e->queue);
    table_insert(c, e, hash);
    c->stats.pages += e->pages;
    if (dirty)
        c->stats.dirty_pages += e->pages;
    else
        queue_insert(c, e, ghost_take(c, e->key) ? PLACE_MAIN : PLACE_SMALL);
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
    struct cache_entry *e = table_find(c, key, key_hash(key));
    if (!e) {
        counter_add(&c->stats.misses, 1);
        return NULL;
    }
    counter_add(&c->stats.hits, 1);
    if (e->frequency < FREQUENCY_MAX)
        e->frequency++;
    return e;
}

void cache_prefetch(struct cache *c, struct cache_key key, uint32_t blocks)
{
    struct cache_entry **buckets[CACHE_PREFETCH_MAX];
    uint32_t n = MIN(blocks, CACHE_PREFETCH_MAX);

    for (uint32_t i = 0; i < n; i++, key.block++) {
        buckets[i] = bucket_of(c, key_hash(key));
        __builtin_prefetch(buckets[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        if (*buckets[i])
            __builtin_prefetch(*buckets[i], 1);
}

struct cache_entry *cache_add_data(struct cache *c, struct cache_key key, struct page *page, bool dirty)
{
    struct cache_entry *e = malloc(sizeof(*e));
    if (!e) {
        /* What is there under this key is out of date. */
        cache_remove_key(c, key);
        return NULL;
    }
    page_get(page, 1);
    *e = (struct cache_entry){.key = key, .page = page, .pages = 1, .kind = CACHE_DATA};
    entry_add(c, e, dirty);
    return e;
}

void cache_add_node(struct cache *c, struct cache_entry *e, bool dirty)
{
    assert(e->page != NULL && e->pages > 0);
    e->kind = CACHE_NODE;
    entry_add(c, e, dirty);
}

void cache_mark_dirty(struct cache *c, struct cache_entry *e)
{
    assert(e->place != PLACE_REMOVED);
    if (e->dirty)
        return;
    queue_remove(c, e);
    e->dirty = true;
    c->stats.dirty_pages += e->pages;
}

void cache_clean(struct cache *c, struct cache_entry *e)
{
    if (!e->dirty)
        return;
    e->dirty = false;
    c->stats.dirty_pages -= e->pages;
    if (e->place == PLACE_NONE && e->pins == 0)
        queue_insert(c, e, e->frequency > 0 ? PLACE_MAIN : PLACE_SMALL);
}

void cache_clean_data(struct cache *c, struct cache_key key, struct page *page, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, key.block++) {
        if (i % CACHE_PREFETCH_MAX == 0 && count > 1)
            cache_prefetch(c, key, count - i);
        struct cache_entry *e = cache_find(c, key);
        if (e && e->dirty && e->page == page_at(page, i))
            cache_clean(c, e);
    }
}

void cache_remove(struct cache *c, struct cache_entry *e)
{
    if (e->place == PLACE_REMOVED)
        return;
    table_remove(c, e);
    queue_remove(c, e);
    e->place = PLACE_REMOVED;
    if (e->pins == 0)
        entry_release(c, e);
}

void cache_remove_key(struct cache *c, struct cache_key key)
{
    struct cache_entry *e = table_find(c, key, key_hash(key));
    if (e)
        cache_remove(c, e);
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
        queue_insert(c, e, PLACE_MAIN);
}

/* ---- Eviction ---- */

static uint32_t evict(struct cache *c, struct cache_entry *e)
{
    table_remove(c, e);
    c->stats.evictions++;
    return entry_release(c, e);
}

/* The oldest of the small queue: out, or into the main queue if it was hit. */
static uint32_t step_small(struct cache *c)
{
    struct cache_entry *e = CONTAINER_OF(c->small.next, struct cache_entry, queue);
    queue_remove(c, e);
    if (e->pins > 0)
        return 0;
    if (e->frequency > 0) {
        e->frequency = 0;
        queue_insert(c, e, PLACE_MAIN);
        return 0;
    }
    ghost_add(c, e);
    return evict(c, e);
}

/* The oldest of the main queue: out, or another round for a hit. */
static uint32_t step_main(struct cache *c)
{
    struct cache_entry *e = CONTAINER_OF(c->main.next, struct cache_entry, queue);
    queue_remove(c, e);
    if (e->pins > 0)
        return 0;
    if (e->frequency > 0) {
        e->frequency--;
        queue_insert(c, e, PLACE_MAIN);
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
