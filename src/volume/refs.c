/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that several extents name (reflinks).
 *
 * An extent with EXTENT_SHARED says: others may name these blocks, ask the counts before they are freed. The
 * counts are items of the pool tree (ITEM_REFCOUNT), one for each run of blocks with an equal count of two or
 * more; a block that is in use and has no item is named once. So the flag is only a hint to look, and is
 * never taken off again.
 *
 * Only commits change the counts. Until then a txg keeps two lists: references that clones added, and those
 * that were dropped with the extents. The commit adds both up, block by block, so the order in which they
 * came does not matter; where the sum is zero the block is freed, in this txg, as if its last extent had been
 * freed only now (space.h S1 holds from then on).
 *
 * After a crash the lists are made again: replay applies the same clones and removals to the trees of the
 * root whose counts they began with. So a record is applied as often as replay needs without counting twice,
 * and what it says is the operation (LOG_CLONE), not its result.
 *
 * Invariants
 *  R1  once the lists of a txg are folded in, the count of each block is the number of extents of its root
 * that name it; R2  every extent that names a block with a count of two or more has the flag.
 */
#include "volume/volume_internal.h"

#include <stdlib.h>

/* ---- What a txg does ---- */

static void track(struct volume *v, struct run_list *l, uint32_t space, uint64_t block, uint32_t count)
{
    if (!run_list_add(l, space, block, count))
        volume_fail(v, ERR_NO_MEMORY, "keeping account of references");
}

void refs_add(struct volume *v, uint32_t space, uint64_t block, uint32_t count)
{
    track(v, &v->space.refs_added[v->txg % SPACE_TXGS], space, block, count);
}

void refs_drop(struct volume *v, uint32_t space, uint64_t block, uint32_t count)
{
    track(v, &v->space.refs_dropped[v->txg % SPACE_TXGS], space, block, count);
}

uint64_t refs_commit_nodes(const struct volume *v)
{
    const struct space *s = &v->space;
    uint64_t runs = 0;

    for (uint32_t i = 0; i < SPACE_TXGS; i++)
        runs += s->refs_added[i].count + s->refs_dropped[i].count;
    if (runs == 0)
        return 0;
    /* A run changes items in two leaves at most, and makes two more at most. A leaf that is a quarter full
     * has over a hundred. */
    return MIN(2 * runs, (s->ref_items + 2 * runs) / 100 + 2) + 8;
}

/* ---- Folding them in ---- */

struct edge { /* from this block on, so much more */
    uint32_t space;
    int32_t delta;
    uint64_t block;
};

static int edge_compare(const void *pa, const void *pb)
{
    const struct edge *a = pa, *b = pb;

    if (a->space != b->space)
        return a->space < b->space ? -1 : 1;
    return a->block < b->block ? -1 : a->block > b->block;
}

static size_t edges_of(struct edge *edges, const struct run_list *l, int32_t delta)
{
    for (size_t i = 0; i < l->count; i++) {
        const struct block_run *r = &l->runs[i];
        edges[2 * i] = (struct edge){.space = r->space, .delta = delta, .block = r->block};
        edges[2 * i + 1] = (struct edge){.space = r->space, .delta = -delta, .block = r->block + r->count};
    }
    return 2 * l->count;
}

struct counted { /* blocks [first, end) have this count */
    uint64_t first, end;
    uint32_t count;
};

static struct tree_key ref_key(uint32_t space, uint64_t block)
{
    return (struct tree_key){space, ITEM_REFCOUNT, block};
}

int refs_decode(const struct tree_key *key, const void *value, uint32_t len, uint64_t *ret_blocks,
                uint32_t *ret_count)
{
    struct disk_refcount_item item;

    if (len != sizeof(item) || key->object > UINT32_MAX)
        return ERR_VOLUME_CORRUPT;
    memcpy(&item, value, sizeof(item));
    if (le32_get(item.count) < 2 || le32_get(item.blocks) == 0 ||
        key->offset > UINT32_MAX - le32_get(item.blocks))
        return ERR_VOLUME_CORRUPT;
    *ret_blocks = le32_get(item.blocks);
    *ret_count = le32_get(item.count);
    return 0;
}

static int counted_from(const struct tree_cursor *c, struct counted *ret)
{
    uint64_t blocks;
    int r = refs_decode(&c->key, c->value, c->len, &blocks, &ret->count);

    ret->first = c->key.offset;
    ret->end = c->key.offset + blocks;
    return r;
}

/* The item in which `at` lies, or what is before the next one: no further than `end`. */
static may_yield int look(struct volume *v, uint32_t space, uint64_t at, uint64_t end, struct counted *ret)
{
    struct tree_cursor c;
    struct tree_key key = ref_key(space, at);
    int r = tree_seek(&c, &v->pool, &key, SEEK_LE);

    if (!r && c.key.object == space && c.key.type == ITEM_REFCOUNT) {
        r = counted_from(&c, ret);
        if (r || ret->end > at)
            return r;
    }
    if (r && r != ERR_NOT_FOUND)
        return r;
    r = tree_seek(&c, &v->pool, &key, SEEK_GE);
    if (r && r != ERR_NOT_FOUND)
        return r;
    *ret = (struct counted){at, end, 1};
    if (!r && c.key.object == space && c.key.type == ITEM_REFCOUNT)
        ret->end = MIN(end, c.key.offset);
    return 0;
}

static may_yield int item_put(struct volume *v, uint32_t space, const struct counted *n)
{
    struct disk_refcount_item item = {.blocks = le32_make((uint32_t)(n->end - n->first)),
                                      .count = le32_make(n->count)};
    struct tree_key key = ref_key(space, n->first);

    if (n->first >= n->end || n->count < 2)
        return 0;
    v->space.ref_items++;
    return tree_put(&v->pool, &key, &item, sizeof(item));
}

static may_yield int item_delete(struct volume *v, uint32_t space, const struct counted *n)
{
    struct tree_key key = ref_key(space, n->first);

    if (n->count < 2)
        return 0;
    v->space.ref_items--;
    return tree_delete(&v->pool, &key);
}

/* The last reference of these blocks went in txg. */
static int free_now(struct volume *v, uint64_t txg, uint32_t space, const struct counted *n)
{
    const struct group *g = group_find(v->groups, space);
    uint32_t count = (uint32_t)(n->end - n->first);

    if (!g || g->purpose != GROUP_DATA || !g->volume_private || n->end > g->blocks)
        return ERR_VOLUME_CORRUPT;
    space_free(v, txg, space, n->first, count);
    cache_remove_data(v->env.cache, (struct cache_key){v->cache_tag, space, n->first}, count);
    return 0;
}

/* The blocks [at, end) have `delta` references more. */
static may_yield int fold(struct volume *v, uint64_t txg, uint32_t space, uint64_t at, uint64_t end,
                          int64_t delta)
{
    while (at < end) {
        struct counted old;
        int r = look(v, space, at, end, &old);
        if (r)
            return r;
        int64_t count = (int64_t)old.count + delta;
        struct counted left = {old.first, at, old.count}, here = {at, MIN(end, old.end), (uint32_t)count},
                       right = {here.end, old.end, old.count};
        if (count < 0 || count > UINT32_MAX) /* never guess which extent is the wrong one */
            return ERR_VOLUME_CORRUPT;
        r = item_delete(v, space, &old);
        if (!r)
            r = item_put(v, space, &left);
        if (!r)
            r = item_put(v, space, &here);
        if (!r)
            r = item_put(v, space, &right);
        if (!r && count == 0)
            r = free_now(v, txg, space, &here);
        if (r)
            return r;
        at = here.end;
    }
    return 0;
}

static may_yield int fold_edges(struct volume *v, uint64_t txg, const struct edge *edges, size_t n)
{
    int64_t delta = 0;

    for (size_t i = 0; i + 1 < n; i++) {
        delta += edges[i].delta;
        if (delta == 0)
            continue;
        assert(edges[i].space == edges[i + 1].space); /* every run has its end */
        int r = fold(v, txg, edges[i].space, edges[i].block, edges[i + 1].block, delta);
        if (r)
            return r;
    }
    return 0;
}

int refs_commit(struct volume *v, uint64_t txg)
{
    struct run_list *added = &v->space.refs_added[txg % SPACE_TXGS],
                    *dropped = &v->space.refs_dropped[txg % SPACE_TXGS];
    size_t n = 2 * (added->count + dropped->count);

    if (n == 0)
        return 0;
    struct edge *edges = malloc(n * sizeof(*edges));
    if (!edges)
        return ERR_NO_MEMORY;
    size_t at = edges_of(edges, added, 1);
    (void)edges_of(edges + at, dropped, -1);
    qsort(edges, n, sizeof(*edges), edge_compare);
    int r = fold_edges(v, txg, edges, n);
    free(edges);
    run_list_done(added);
    run_list_done(dropped);
    return r;
}

void refs_done(struct volume *v)
{
    for (uint32_t i = 0; i < SPACE_TXGS; i++) {
        run_list_done(&v->space.refs_added[i]);
        run_list_done(&v->space.refs_dropped[i]);
    }
}
