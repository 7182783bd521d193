/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folding a txg's allocations and frees into the pool tree's space items.
 *
 * Changing the pool tree allocates and frees nodes itself, which changes space items again. Each node is
 * copied at most once in a txg (tree.h T2), so the rounds end: a later round mostly touches items in leaves
 * that are already copied.
 */
#include "volume/bitmap.h"
#include "volume/volume_internal.h"

#include <stdlib.h>

enum fold_kind { FOLD_TOUCH, FOLD_ALLOC, FOLD_FREE };
struct fold {
    uint32_t group, chunk;
    uint32_t first, count; /* in the chunk */
    enum fold_kind kind;
};
struct fold_list {
    struct fold *folds;
    size_t count, capacity;
};

static int fold_add(struct fold_list *l, const struct block_run *run, enum fold_kind kind)
{
    uint64_t block = run->block;
    uint32_t left = run->count;

    while (left > 0) {
        uint32_t chunk = (uint32_t)(block / SPACE_CHUNK_BLOCKS),
                 first = (uint32_t)(block % SPACE_CHUNK_BLOCKS);
        uint32_t n = MIN(left, SPACE_CHUNK_BLOCKS - first);
        if (l->count == l->capacity) {
            size_t capacity = l->capacity ? l->capacity * 2 : 256;
            struct fold *folds = realloc(l->folds, capacity * sizeof(*folds));
            if (!folds)
                return ERR_NO_MEMORY;
            l->folds = folds;
            l->capacity = capacity;
        }
        l->folds[l->count++] = (struct fold){run->space, chunk, first, n, kind};
        block += n;
        left -= n;
    }
    return 0;
}

static int fold_compare(const void *pa, const void *pb)
{
    const struct fold *a = pa, *b = pb;

    if (a->chunk != b->chunk)
        return a->chunk < b->chunk ? -1 : 1;
    return (int)a->kind - (int)b->kind; /* allocations before frees: a block may be both in one txg */
}

/* By group, then chunk, then kind. Random overwrites make a hundred thousand folds: a pass over them puts
 * each into its group's place, and only groups of several chunks are left to sort. The order of adding is
 * kept within a group: touches, allocations, frees. */
static int fold_sort(struct fold_list *l, uint32_t groups)
{
    size_t *at = calloc(groups + 1, sizeof(*at));
    struct fold *sorted = malloc(l->count * sizeof(*sorted));

    if (!at || !sorted) {
        free(at);
        free(sorted);
        return ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < l->count; i++) {
        assert(l->folds[i].group < groups);
        at[l->folds[i].group + 1]++;
    }
    for (uint32_t g = 0; g < groups; g++)
        at[g + 1] += at[g];
    for (size_t i = 0; i < l->count; i++)
        sorted[at[l->folds[i].group]++] = l->folds[i];
    free(at);
    free(l->folds);
    l->folds = sorted;
    l->capacity = l->count;
    return 0;
}

static bool fold_in_order(const struct fold *f, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (fold_compare(&f[i - 1], &f[i]) > 0)
            return false;
    return true;
}

/* One chunk's item with all its folds; n of them from f on. */
static may_yield int fold_chunk(struct volume *v, uint64_t txg, const struct fold *f, size_t n, uint8_t *item)
{
    struct tree_key key = {f->group, ITEM_SPACE, (uint64_t)f->chunk * SPACE_CHUNK_BLOCKS};
    const struct group *g = group_find(v->groups, f->group);
    struct disk_space_item head;
    uint32_t len;

    assert(g);
    uint32_t blocks = MIN(SPACE_CHUNK_BLOCKS, g->blocks - f->chunk * SPACE_CHUNK_BLOCKS),
             bytes = DIV_ROUND_UP(blocks, 8u);
    uint8_t *alloc = item + sizeof(head), *defer = alloc + bytes;
    int r = tree_get(&v->pool, &key, item, ITEM_LEN_MAX, &len);
    if (r == ERR_NOT_FOUND) {
        memset(item, 0, sizeof(head) + 2 * bytes);
        head = (struct disk_space_item){.txg = le64_make(0)};
    } else if (r) {
        return r;
    } else {
        if (len != sizeof(head) + 2 * bytes)
            return ERR_VOLUME_CORRUPT;
        memcpy(&head, item, sizeof(head));
    }
    if (le64_get(head.txg) != txg) { /* first touch in this txg: what the root before deferred is free now */
        for (uint32_t i = 0; i < bytes; i++)
            alloc[i] &= (uint8_t)~defer[i];
        memset(defer, 0, bytes);
    }
    for (size_t i = 0; i < n; i++) {
        assert(f[i].first + f[i].count <= blocks);
        if (f[i].kind == FOLD_ALLOC)
            bitmap_set_run(alloc, f[i].first, f[i].count);
        else if (f[i].kind == FOLD_FREE)
            bitmap_set_run(defer, f[i].first, f[i].count);
    }
    uint32_t used = bitmap_count(alloc, blocks);
    if (used == 0) {
        r = tree_delete(&v->pool, &key);
        return r == ERR_NOT_FOUND ? 0 : r;
    }
    head =
        (struct disk_space_item){.blocks = le32_make(blocks), .used = le32_make(used), .txg = le64_make(txg)};
    memcpy(item, &head, sizeof(head));
    return tree_put(&v->pool, &key, item, (uint32_t)sizeof(head) + 2 * bytes);
}

static may_yield int fold_all(struct volume *v, uint64_t txg, struct fold_list *l, uint8_t *item)
{
    int err = fold_sort(l, v->space.next_group);

    if (err)
        return err;
    for (size_t i = 0, j; i < l->count; i = j) {
        for (j = i + 1; j < l->count && l->folds[j].group == l->folds[i].group; j++)
            ;
        if (!fold_in_order(&l->folds[i], j - i))
            qsort(&l->folds[i], j - i, sizeof(*l->folds), fold_compare);
    }
    for (size_t i = 0, j; i < l->count; i = j) {
        for (j = i + 1;
             j < l->count && l->folds[j].group == l->folds[i].group && l->folds[j].chunk == l->folds[i].chunk;
             j++)
            ;
        int r = fold_chunk(v, txg, &l->folds[i], j - i, item);
        if (r)
            return r;
    }
    return 0;
}

int space_commit_items(struct volume *v, uint64_t txg)
{
    struct space *s = &v->space;
    const struct run_list *allocs = &s->allocs[txg % SPACE_TXGS], *frees = &s->frees[txg % SPACE_TXGS];
    const struct run_list *before = &s->frees[(txg - 1) % SPACE_TXGS];
    size_t allocs_done = 0, frees_done = 0;
    uint32_t alloc_tail = 0,
             free_tail = 0; /* blocks of the last run that are folded in: it may have grown since */
    struct fold_list l = {0};
    uint8_t *item = malloc(ITEM_LEN_MAX);
    int r = item ? 0 : ERR_NO_MEMORY;

    s->version++;
    for (size_t i = 0; !r && i < before->count; i++)
        r = fold_add(&l, &before->runs[i], FOLD_TOUCH);
    while (!r) {
        /* The last run of a list grows in place: take only what is new of it. */
        for (; !r && allocs_done < allocs->count; allocs_done++, alloc_tail = 0) {
            struct block_run run = allocs->runs[allocs_done];
            run.block += alloc_tail;
            run.count -= alloc_tail;
            if (run.count > 0)
                r = fold_add(&l, &run, FOLD_ALLOC);
            if (allocs_done + 1 == allocs->count) {
                alloc_tail = allocs->runs[allocs_done].count;
                break;
            }
        }
        for (; !r && frees_done < frees->count; frees_done++, free_tail = 0) {
            struct block_run run = frees->runs[frees_done];
            run.block += free_tail;
            run.count -= free_tail;
            if (run.count > 0)
                r = fold_add(&l, &run, FOLD_FREE);
            if (frees_done + 1 == frees->count) {
                free_tail = frees->runs[frees_done].count;
                break;
            }
        }
        if (r || l.count == 0)
            break;
        r = fold_all(v, txg, &l, item);
        l.count = 0;
    }
    free(l.folds);
    free(item);
    return r;
}

void space_commit_done(struct volume *v, uint64_t txg)
{
    struct space *s = &v->space;
    struct run_list *frees = &s->frees[(txg - 1) % SPACE_TXGS];

    /* Readers that began before may still read what was freed (S1): also those of txg itself, since the
     * commit of txg - 1 freed nodes of the pool tree while txg was open. */
    for (uint64_t t = txg >= READER_SLOTS ? txg - READER_SLOTS + 2 : 0; t <= txg; t++)
        while (v->readers[t % READER_SLOTS] > 0)
            (void)waitq_wait(&v->readers_wait, DEADLINE_NEVER);
    s->version++;
    for (size_t i = 0; i < frees->count; i++)
        space_release_run(v, &frees->runs[i]);
    run_list_done(frees);
    run_list_done(&s->allocs[txg % SPACE_TXGS]);
    s->freed_data[(txg - 1) % SPACE_TXGS] = 0;
    s->create_error_ns = 0;
    waitq_wake_all(&s->changed);
    space_destroy_retired(v, txg);
    if (!v->replaying) /* the rest of the log may name what looks free now */
        space_retire(v, v->txg);
    s->taken_data[(txg - 1) % SPACE_TXGS] = 0;
    /* Data space comes back by itself. A commit's own nodes wait for company: else an idle volume would
     * commit for ever. */
    if (s->freed_data[txg % SPACE_TXGS] > 0)
        txg_dirty(v);
    shortage_set_coming(v, space_on_its_way(v));
}
