/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data blocks in the cache: up to RUN_BLOCKS neighbours in one entry.
 *
 * An entry is evicted as a whole. It counts as hit when a block is found that was there before; that more of
 * its blocks come into it is no hit. So a scan in small steps still flows through the small queue.
 *
 * Invariants
 *  C4  `pages` is the number of blocks that are there, and is not 0 while the entry is in the table;
 *  C5  the entry is dirty as long as one of its blocks is.
 */
#include "runtime/metrics.h"
#include "volume/cache_internal.h"

#include <stdlib.h>

#define PREFETCH_RUNS 16u

static struct cache_run *run_of(struct cache_entry *e)
{
    assert(e->kind == CACHE_DATA);
    return (struct cache_run *)e;
}

/* ---- Walking over the runs of a range of blocks ---- */

struct run_walk {
    struct cache *cache;
    struct cache_key key; /* of the run */
    uint32_t first, end;  /* the range's blocks within it */
    uint32_t done, count; /* blocks of the range before this run, and of all of it */
    uint32_t near;        /* runs that were brought close */
};

/* Brings the entries of the next runs close to the processor, all at once: most of a look-up is waiting for
 * memory. */
static void walk_prefetch(struct run_walk *w)
{
    struct cache_entry **buckets[PREFETCH_RUNS];
    struct cache_key key = w->key;

    w->near = MIN(DIV_ROUND_UP(w->first + w->count - w->done, RUN_BLOCKS), PREFETCH_RUNS);
    if (w->near < 2)
        return;
    for (uint32_t i = 0; i < w->near; i++, key.block += RUN_BLOCKS) {
        buckets[i] = cache_bucket(w->cache, cache_hash(key));
        __builtin_prefetch(buckets[i]);
    }
    for (uint32_t i = 0; i < w->near; i++) {
        const struct cache_entry *e = *buckets[i];
        for (uint32_t line = 0; e && line < sizeof(struct cache_run); line += 64)
            __builtin_prefetch((const char *)e + line, 1);
    }
}

static struct run_walk walk_begin(struct cache *c, struct cache_key key, uint32_t count)
{
    struct run_walk w = {.cache = c, .key = key, .first = (uint32_t)(key.block % RUN_BLOCKS), .count = count};

    w.key.block -= w.first;
    w.end = MIN(w.first + count, RUN_BLOCKS);
    walk_prefetch(&w);
    return w;
}

static bool walk_more(const struct run_walk *w)
{
    return w->done < w->count;
}

static void walk_next(struct run_walk *w)
{
    w->done += w->end - w->first;
    w->key.block += RUN_BLOCKS;
    w->first = 0;
    w->end = MIN(w->count - w->done, RUN_BLOCKS);
    if (--w->near == 0 && walk_more(w))
        walk_prefetch(w);
}

static struct cache_run *walk_find(const struct run_walk *w)
{
    struct cache_entry *e = cache_table_find(w->cache, w->key, CACHE_DATA, cache_hash(w->key));

    return e ? run_of(e) : NULL;
}

#define FOR_RUNS(w, cache, key, count) \
    for (struct run_walk w = walk_begin(cache, key, count); walk_more(&w); walk_next(&w))

/* ---- Pages of a run ---- */

/* How many of the pages from i on, below end, lie side by side. */
static uint32_t side_by_side(const struct cache_run *r, uint32_t i, uint32_t end)
{
    uint32_t n = 1;

    while (i + n < end && r->page[i + n] == r->page[i] + n && r->page[i + n]->chunk == r->page[i]->chunk)
        n++;
    return n;
}

uint32_t cache_run_release(struct cache *c, struct cache_run *r)
{
    uint32_t freed = 0;

    for (uint32_t i = 0, n; i < RUN_BLOCKS; i += n) {
        n = 1;
        if (!r->page[i])
            continue;
        n = side_by_side(r, i, RUN_BLOCKS);
        for (uint32_t k = 0; k < n; k++)
            freed += r->page[i + k]->refs == 1;
        page_put(r->page[i], n);
    }
    c->stats.dirty_pages -= (uint32_t)__builtin_popcount(r->dirty);
    free(r);
    return freed;
}

static void run_set_dirty(struct cache *c, struct cache_run *r, uint8_t dirty)
{
    c->stats.dirty_pages += (uint32_t)__builtin_popcount(dirty);
    c->stats.dirty_pages -= (uint32_t)__builtin_popcount(r->dirty);
    r->dirty = dirty;
    r->entry.dirty = dirty != 0; /* C5 */
}

/* Some of its blocks left, not all (C4). */
static void run_took_out(struct cache *c, struct cache_run *r, uint32_t count, uint8_t dirty)
{
    assert(count < r->entry.pages);
    bool was_dirty = r->entry.dirty;
    c->stats.pages -= count;
    cache_queue_resize(c, &r->entry, -(int)count);
    run_set_dirty(c, r, dirty);
    if (was_dirty)
        cache_queue_cleaned(c, &r->entry);
}

/* ---- What is asked for ---- */

uint32_t cache_find_data(struct cache *c, struct cache_key key, uint32_t count, struct page **ret_pages)
{
    uint32_t found = 0;

    FOR_RUNS(w, c, key, count)
    {
        struct cache_run *r = walk_find(&w);
        struct page **out = ret_pages + w.done;
        uint32_t before = found;
        if (!r) {
            memset(out, 0, (w.end - w.first) * sizeof(*out));
            continue;
        }
        memcpy(out, &r->page[w.first], (w.end - w.first) * sizeof(*out));
        for (uint32_t i = w.first, n; i < w.end; i += n) {
            n = 1;
            if (!r->page[i])
                continue;
            n = side_by_side(r, i, w.end);
            page_get(r->page[i], n);
            found += n;
        }
        if (found > before && r->entry.frequency < FREQUENCY_MAX)
            r->entry.frequency++;
    }
    counter_add(&c->stats.hits, found);
    counter_add(&c->stats.misses, count - found);
    return found;
}

/* ---- What comes in ---- */

static struct cache_run *run_new(struct cache_key key)
{
    struct cache_run *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->entry.key = key;
    r->entry.kind = CACHE_DATA;
    list_init(&r->entry.queue);
    return r;
}

/* Puts the pages into the run; returns how many of its blocks were not there before. What is there is as good
 * as what was read: only a write replaces it. */
static uint32_t run_fill(struct cache *c, struct cache_run *r, const struct run_walk *w, struct page *page,
                         bool dirty)
{
    uint32_t added = 0, bits = r->dirty;

    for (uint32_t i = w->first; i < w->end; i++) {
        struct page *p = page_at(page, i - w->first);
        if (r->page[i] && !dirty)
            continue;
        page_get(p, 1);
        if (r->page[i])
            page_put(r->page[i], 1);
        else
            added++;
        r->page[i] = p;
        bits |= dirty ? 1u << i : 0;
    }
    run_set_dirty(c, r, (uint8_t)bits);
    return added;
}

bool cache_add_data(struct cache *c, struct cache_key key, struct page *page, uint32_t count, bool dirty)
{
    bool all = true;

    FOR_RUNS(w, c, key, count)
    {
        struct cache_run *old = walk_find(&w), *r = old ? old : run_new(w.key);
        if (!r) {
            all = false; /* nothing is there under this key that could be out of date */
            continue;
        }
        uint32_t added = run_fill(c, r, &w, page_at(page, w.done), dirty);
        c->stats.pages += added;
        cache_queue_resize(c, &r->entry, (int)added);
        if (!old)
            cache_table_insert(c, &r->entry, cache_hash(w.key));
        if (dirty)
            cache_queue_remove(c, &r->entry); /* C2 */
        else if (!old)
            cache_queue_new(c, &r->entry);
    }
    return all;
}

void cache_clean_data(struct cache *c, struct cache_key key, struct page *page, uint32_t count)
{
    FOR_RUNS(w, c, key, count)
    {
        struct cache_run *r = walk_find(&w);
        if (!r || !r->entry.dirty)
            continue;
        uint32_t bits = r->dirty;
        for (uint32_t i = w.first; i < w.end; i++)
            if (r->page[i] == page_at(page, w.done + i - w.first))
                bits &= ~(1u << i);
        run_set_dirty(c, r, (uint8_t)bits);
        cache_queue_cleaned(c, &r->entry);
    }
}

void cache_remove_data(struct cache *c, struct cache_key key, uint32_t count)
{
    FOR_RUNS(w, c, key, count)
    {
        struct cache_run *r = walk_find(&w);
        uint32_t here = 0, bits;
        for (uint32_t i = w.first; r && i < w.end; i++)
            here += r->page[i] != NULL;
        if (here == 0)
            continue;
        if (here == r->entry.pages) {
            cache_remove(c, &r->entry);
            continue;
        }
        bits = r->dirty;
        for (uint32_t i = w.first, n; i < w.end; i += n) {
            n = 1;
            if (!r->page[i])
                continue;
            n = side_by_side(r, i, w.end);
            page_put(r->page[i], n);
            memset(&r->page[i], 0, n * sizeof(r->page[0]));
            bits &= ~(((1u << n) - 1) << i);
        }
        run_took_out(c, r, here, (uint8_t)bits);
    }
}
