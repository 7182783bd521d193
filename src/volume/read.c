/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading. The life of a read: extents from the head tree, blocks from the cache, what is missing from the
 * drives in runs as long as they lie side by side (verified there by the checksums of the extents), then a
 * wait for writes to the range that were not acknowledged when we looked.
 */
#include "runtime/log.h"
#include "volume/volume_internal.h"

#include <stdlib.h>

#define READ_AT_ONCE 16u

struct read_plan {
    struct volume *volume;
    uint64_t object, block;
    uint32_t blocks;
    uint32_t missing;
    bool lost;
    struct page *pages[PAGE_VEC_MAX]; /* NULL: zeroes, or missing where space[i] is not 0 */
    uint32_t space[PAGE_VEC_MAX];     /* of missing blocks; 0: not missing (group 0 never holds data) */
    uint32_t place[PAGE_VEC_MAX];
    uint32_t sums[PAGE_VEC_MAX];
};

static void plan_drop(struct read_plan *p)
{
    for (uint32_t i = 0; i < p->blocks; i++)
        if (p->pages[i])
            page_put(p->pages[i], 1);
}

static void plan_extent(struct read_plan *p, const struct extent *e)
{
    struct volume *v = p->volume;
    uint64_t from = MAX(p->block, e->start), to = MIN(p->block + p->blocks, e->start + e->blocks);

    if (e->flags & EXTENT_ZERO)
        return;
    if (e->flags & EXTENT_LOST) {
        p->lost = true;
        damage_add(v, p->object, from, to - from);
        return;
    }
    uint32_t i = (uint32_t)(from - p->block), k = (uint32_t)(from - e->start), n = (uint32_t)(to - from);
    struct cache_key key = {v->cache_tag, e->space, e->block + k};
    uint32_t found = cache_find_data(v->env.cache, key, n, &p->pages[i]);
    if (found == n)
        return;
    p->missing += n - found;
    memcpy(&p->sums[i], e->sums + (size_t)k * 4, (size_t)n * 4);
    for (uint32_t at = i; at < i + n; at++, k++) {
        if (p->pages[at])
            continue;
        p->space[at] = e->space;
        p->place[at] = (uint32_t)(e->block + k);
    }
}

/* Looks the range up: fills pages, or where they lie. */
static may_yield int plan_make(struct read_plan *p)
{
    struct volume *v = p->volume;
    struct tree_cursor c;
    struct tree_key key = extent_key(p->object, p->block);
    uint64_t end = p->block + p->blocks;
    int r = tree_seek(&c, &v->head, &key, SEEK_LE);

    if (r == ERR_NOT_FOUND || (!r && (c.key.object != p->object || c.key.type != ITEM_EXTENT)))
        r = tree_seek(&c, &v->head, &key, SEEK_GE);
    while (!r) {
        struct extent e;
        if (c.key.object != p->object || c.key.type != ITEM_EXTENT || c.key.offset >= end * BLOCK_SIZE)
            return 0;
        r = extent_decode(&c.key, c.value, c.len, &e);
        if (r)
            return r;
        if (e.start + e.blocks > p->block)
            plan_extent(p, &e);
        if (e.start + e.blocks >= end)
            return 0;
        r = tree_next(&c);
    }
    return r == ERR_NOT_FOUND ? 0 : r;
}

/* A run of missing blocks that lie side by side. */
struct read_run {
    struct read_plan *plan;
    uint32_t first, count;
    int result;
    struct latch *latch;
    struct semaphore *slots;
};

static may_yield void run_read(struct read_run *run)
{
    struct read_plan *p = run->plan;
    struct volume *v = p->volume;
    struct group *g = group_find(v->groups, p->space[run->first]);
    struct group_read read = {.group = g,
                              .block = p->place[run->first],
                              .blocks = run->count,
                              .verify = VERIFY_BLOCKS,
                              .sums = &p->sums[run->first],
                              .only = -1};

    if (!g || g->purpose != GROUP_DATA || read.block + read.blocks > g->blocks) {
        run->result = ERR_VOLUME_CORRUPT;
        return;
    }
    run->result = group_read(&read); /* hands out pages of its own */
    if (!read.page) {
        if (run->result == ERR_GROUP_DEGRADED_BELOW)
            damage_add(v, p->object, p->block + run->first, run->count);
        return;
    }
    uint32_t good = 0; /* before i, side by side */
    for (uint32_t i = 0; i <= run->count; i++) {
        uint32_t at = run->first + i;
        bool bad = i < run->count && run->result &&
                   (run->result != ERR_NO_GOOD_COPY || (read.bad[i / 64] >> (i % 64) & 1));
        if (i < run->count && !bad) {
            p->pages[at] = page_at(read.page, i);
            good++;
            continue;
        }
        struct cache_key key = {v->cache_tag, p->space[at - good], p->place[at - good]};
        if (good > 0)
            (void)cache_add_data(v->env.cache, key, page_at(read.page, i - good), good, false);
        good = 0;
        if (!bad)
            continue;
        damage_add(v, p->object, p->block + at, 1);
        page_put(page_at(read.page, i), 1);
    }
}

static may_yield void run_main(void *arg)
{
    struct read_run *run = arg;

    run_read(run);
    semaphore_give(run->slots, 1);
    latch_down(run->latch);
}

/* Cuts the missing blocks into runs; returns how many. */
static uint32_t plan_runs(struct read_plan *p, struct read_run *runs)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->blocks;) {
        if (!p->space[i] || p->pages[i]) {
            i++;
            continue;
        }
        uint32_t first = i++;
        while (i < p->blocks && p->space[i] == p->space[first] &&
               p->place[i] == p->place[first] + (i - first))
            i++;
        runs[n++] = (struct read_run){.plan = p, .first = first, .count = i - first};
    }
    return n;
}

static may_yield int runs_read(struct read_run *runs, uint32_t n)
{
    struct latch latch;
    struct semaphore slots;
    int result = 0;

    if (n == 1) {
        run_read(&runs[0]);
        return runs[0].result;
    }
    latch_init(&latch, 0);
    semaphore_init(&slots, READ_AT_ONCE);
    fiber_shield();
    for (uint32_t i = 0; i < n; i++) {
        runs[i].latch = &latch;
        runs[i].slots = &slots;
        (void)semaphore_take(&slots, 1, DEADLINE_NEVER);
        latch_up(&latch, 1);
        if (fiber_spawn("read-run", run_main, &runs[i])) { /* no fiber left: do it here */
            run_read(&runs[i]);
            semaphore_give(&slots, 1);
            latch_down(&latch);
        }
    }
    latch_wait(&latch);
    fiber_unshield();
    for (uint32_t i = 0; i < n; i++)
        if (runs[i].result && !result)
            result = runs[i].result;
    return result;
}

static may_yield int plan_fill(struct read_plan *p)
{
    struct read_run one, *runs = p->missing == 1 || p->missing == p->blocks ? &one : NULL;
    uint32_t n;

    if (runs && p->missing > 1) { /* the common case of a stream: one run; else count with room for all */
        for (uint32_t i = 1; i < p->blocks && runs; i++)
            if (p->space[i] != p->space[0] || p->place[i] != p->place[0] + i)
                runs = NULL;
    }
    if (!runs) {
        runs = malloc(p->missing * sizeof(*runs));
        if (!runs)
            return ERR_NO_MEMORY;
    }
    n = plan_runs(p, runs);
    int r = runs_read(runs, n);
    if (runs != &one)
        free(runs);
    return r;
}

static void plan_to_vec(const struct read_plan *p, struct page_vec *ret)
{
    ret->run_count = 0;
    ret->blocks = p->blocks;
    for (uint32_t i = 0; i < p->blocks; i++) {
        struct page_run *last = ret->run_count ? &ret->runs[ret->run_count - 1] : NULL;
        struct page *page = p->pages[i];
        if (last &&
            ((!page && !last->page) || (page && last->page && page == page_at(last->page, last->count) &&
                                        page->data == last->page->data + (size_t)last->count * BLOCK_SIZE)))
            last->count++;
        else
            ret->runs[ret->run_count++] = (struct page_run){.page = page, .count = 1};
    }
}

static may_yield int read_once(struct volume *v, struct read_plan *p, uint64_t object, uint64_t block,
                               uint32_t blocks)
{
    p->volume = v;
    p->object = object;
    p->block = block;
    p->blocks = blocks;
    p->missing = 0;
    p->lost = false;
    memset(p->pages, 0, blocks * sizeof(p->pages[0]));
    memset(p->space, 0, blocks * sizeof(p->space[0]));
    uint32_t slot = reader_enter(v);
    int r = plan_make(p);
    if (!r && p->missing > 0 && !p->lost)
        r = plan_fill(p);
    reader_leave(v, slot);
    if (!r && p->lost)
        r = ERR_LOST_RANGE;
    if (r)
        plan_drop(p);
    return r;
}

int volume_check_range(const struct volume *v, uint64_t object, uint64_t block, uint64_t blocks)
{
    /* Offsets in bytes are below 2^63, as files' are. */
    const uint64_t end = INT64_MAX / BLOCK_SIZE + 1;

    if (blocks == 0 || block >= end || blocks > end - block)
        return ERR_OUT_OF_RANGE;
    if (volume_is_device(v, object) && block + blocks > v->size_bytes / BLOCK_SIZE)
        return ERR_OUT_OF_RANGE;
    return v->state;
}

/* Leases before anything is shown (invariant 4). A drive that cannot renew its own is recorded as stale
 * first: then the others' leases are enough, and the client sees nothing of it. */
#define LEASE_TRIES 8u
int volume_read_allowed(struct volume *v)
{
    int r = 0;

    for (uint32_t i = 0; i < LEASE_TRIES && !v->state; i++) {
        if (PREDICT_TRUE(group_set_leases_alive(v->groups)))
            return 0;
        r = group_set_leases_renew(v->groups);
        if (r != ERR_DRIVE_GONE && r != ERR_TIMEOUT)
            return r;
        if (r == ERR_DRIVE_GONE && membership_settle(v))
            break;
    }
    return v->state ? v->state : r;
}

int volume_read(struct volume *v, uint64_t object, uint64_t block, uint32_t blocks, struct page_vec *ret)
{
    struct read_plan plan;
    int r = volume_check_range(v, object, block, blocks);

    assert(blocks <= PAGE_VEC_MAX);
    while (!r) {
        r = read_once(v, &plan, object, block, blocks);
        if (r != ERR_NO_MEMORY)
            break;
        struct page *page; /* wait with empty hands until there is some, and look everything up anew */
        r = page_alloc_wait(MIN(blocks, PAGE_RUN_MAX), DEADLINE_NEVER, &page);
        if (!r)
            page_put(page, MIN(blocks, PAGE_RUN_MAX));
    }
    if (r)
        return r;
    r = inflight_wait(v, object, block, blocks);
    if (!r)
        r = volume_read_allowed(v);
    if (r) {
        plan_drop(&plan);
        return r;
    }
    counter_add(&v->reads, 1);
    counter_add(&v->read_blocks, blocks);
    plan_to_vec(&plan, ret);
    return 0;
}

void page_vec_put(struct page_vec *v)
{
    for (uint32_t i = 0; i < v->run_count; i++)
        if (v->runs[i].page)
            page_put(v->runs[i].page, v->runs[i].count);
    v->run_count = v->blocks = 0;
}

int volume_prefetch(struct volume *v, uint64_t object, uint64_t block, uint32_t blocks)
{
    struct page_vec *vec = malloc(sizeof(*vec));
    if (!vec)
        return ERR_NO_MEMORY;
    int r = volume_read(v, object, block, blocks, vec);
    if (!r)
        page_vec_put(vec);
    free(vec);
    return r;
}

/* ---- Map ---- */

static bool map_add(struct volume_map_entry *out, uint32_t max, uint32_t *n, uint64_t block, uint64_t blocks,
                    enum volume_map_kind kind)
{
    if (blocks == 0)
        return true;
    if (*n > 0 && out[*n - 1].kind == kind) {
        out[*n - 1].blocks += blocks;
        return true;
    }
    if (*n == max)
        return false;
    out[(*n)++] = (struct volume_map_entry){.block = block, .blocks = blocks, .kind = kind};
    return true;
}

static enum volume_map_kind map_kind(const struct extent *e)
{
    return e->flags & EXTENT_ZERO ? MAP_ZERO : e->flags & EXTENT_LOST ? MAP_LOST : MAP_DATA;
}

static may_yield int map_range(struct volume *v, uint64_t object, uint64_t block, uint64_t end,
                               struct volume_map_entry *out, uint32_t max, uint32_t *n)
{
    struct tree_cursor c;
    struct tree_key key = extent_key(object, block);
    uint64_t at = block;
    int r = tree_seek(&c, &v->head, &key, SEEK_LE);

    if (r == ERR_NOT_FOUND || (!r && (c.key.object != object || c.key.type != ITEM_EXTENT)))
        r = tree_seek(&c, &v->head, &key, SEEK_GE);
    while (!r && at < end) {
        struct extent e;
        if (c.key.object != object || c.key.type != ITEM_EXTENT)
            break;
        r = extent_decode(&c.key, c.value, c.len, &e);
        if (r)
            return r;
        if (e.start >= end)
            break;
        if (e.start + e.blocks > at) {
            uint64_t from = MAX(at, e.start), to = MIN(end, e.start + e.blocks);
            if (!map_add(out, max, n, at, from - at, MAP_HOLE) ||
                !map_add(out, max, n, from, to - from, map_kind(&e)))
                return 0;
            at = to;
        }
        r = tree_next(&c);
    }
    if (r && r != ERR_NOT_FOUND)
        return r;
    (void)map_add(out, max, n, at, end - at, MAP_HOLE);
    return 0;
}

int volume_map(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks,
               struct volume_map_entry *out, uint32_t max, uint32_t *ret_count)
{
    uint32_t n = 0;
    int r = volume_check_range(v, object, block, blocks);

    assert(max > 0);
    if (r)
        return r;
    uint32_t slot = reader_enter(v);
    r = map_range(v, object, block, block + blocks, out, max, &n);
    reader_leave(v, slot);
    if (!r)
        r = inflight_wait(v, object, block, blocks);
    if (r)
        return r;
    *ret_count = n;
    return 0;
}
