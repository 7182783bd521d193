/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation state of the groups: taking, freeing, activating. See space.h for the invariants; space_commit.c
 * folds what a txg did into the pool tree; space_groups.c makes groups and gives them back.
 */
#include "volume/bitmap.h"
#include "volume/volume_internal.h"

#include <stdlib.h>

#define DELETE_RESERVE_NODES 96u
#define DATA_STREAK_BLOCKS   256u

bool run_list_add(struct run_list *l, uint32_t space, uint64_t block, uint32_t count)
{
    if (l->count > 0) {
        struct block_run *last = &l->runs[l->count - 1];
        if (last->space == space && last->block + last->count == block && last->count + count > last->count) {
            last->count += count;
            return true;
        }
    }
    if (l->count == l->capacity) {
        size_t n = l->capacity ? l->capacity * 2 : 64;
        struct block_run *p = realloc(l->runs, n * sizeof(*p));
        if (!p)
            return false;
        l->runs = p;
        l->capacity = n;
    }
    l->runs[l->count++] = (struct block_run){.space = space, .count = count, .block = block};
    return true;
}

/* Losing track of a block is worse than stopping: no root is written any more (commit_write), and what the
 * log has is replayed. */
static void track(struct volume *v, struct run_list *l, uint32_t space, uint64_t block, uint32_t count)
{
    if (!run_list_add(l, space, block, count))
        volume_fail(v, ERR_NO_MEMORY, "keeping account of space");
}

void run_list_done(struct run_list *l)
{
    free(l->runs);
    *l = (struct run_list){0};
}

int space_init(struct volume *v)
{
    struct space *s = &v->space;

    memset(s, 0, sizeof(*s));
    for (uint32_t p = 0; p < ARRAY_SIZE(s->active); p++) {
        list_init(&s->active[p]);
        list_init(&s->idle[p]);
    }
    waitq_init(&s->changed);
    return 0;
}

void space_done(struct volume *v)
{
    struct space *s = &v->space;

    shortage_set_coming(v, false);
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g)) {
        struct space_group *sg = g->volume_private;
        if (sg) {
            free(sg->busy);
            free(sg);
            g->volume_private = NULL;
        }
    }
    refs_done(v);
    for (uint32_t i = 0; i < SPACE_TXGS; i++) {
        run_list_done(&s->allocs[i]);
        run_list_done(&s->frees[i]);
    }
}

static struct space_group *space_of(const struct volume *v, uint32_t space)
{
    struct group *g = group_find(v->groups, space);

    return g ? g->volume_private : NULL;
}

int space_adopt_group(struct volume *v, struct group *g, uint32_t used)
{
    struct space *s = &v->space;
    struct space_group *sg = calloc(1, sizeof(*sg));

    if (!sg)
        return ERR_NO_MEMORY;
    assert(g->purpose != GROUP_SYSTEM && used <= g->blocks);
    sg->group = g;
    sg->blocks = g->blocks;
    sg->free = g->blocks - used;
    list_prepend(&s->idle[g->purpose], &sg->link); /* before those that were used up: pick_idle() */
    g->volume_private = sg;
    s->total_free[g->purpose] += sg->free;
    s->group_count[g->purpose]++;
    s->chunks += DIV_ROUND_UP(sg->blocks, SPACE_CHUNK_BLOCKS);
    s->next_group = MAX(s->next_group, g->id + 1);
    return 0;
}

/* ---- Activating: the bitmap comes from the pool tree, and what is not folded in yet from the lists ---- */

static void busy_add_list(struct space_group *sg, const struct run_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->runs[i].space == sg->group->id)
            bitmap_set_run(sg->busy, (uint32_t)l->runs[i].block, l->runs[i].count);
}

/* Reads the alloc bits of the group's chunks into busy. */
static may_yield int busy_load(struct volume *v, struct space_group *sg, uint8_t *buf)
{
    memset(sg->busy, 0, DIV_ROUND_UP(sg->blocks, 8u));
    for (uint32_t first = 0; first < sg->blocks; first += SPACE_CHUNK_BLOCKS) {
        struct tree_key key = {sg->group->id, ITEM_SPACE, first};
        uint32_t len, blocks = MIN(SPACE_CHUNK_BLOCKS, sg->blocks - first), bytes = DIV_ROUND_UP(blocks, 8u);
        int r = tree_get(&v->pool, &key, buf, ITEM_LEN_MAX, &len);
        if (r == ERR_NOT_FOUND)
            continue;
        if (r)
            return r;
        if (len != sizeof(struct disk_space_item) + 2 * bytes)
            return ERR_VOLUME_CORRUPT;
        memcpy(sg->busy + first / 8, buf + sizeof(struct disk_space_item), bytes);
    }
    return 0;
}

int space_activate(struct volume *v, struct space_group *sg)
{
    struct space *s = &v->space;
    enum group_purpose p = sg->group->purpose;
    uint8_t *buf;
    uint64_t version;
    int r;

    if (sg->active)
        return 0;
    while (sg->loading) { /* a cancelled fiber would not wait */
        r = waitq_wait(&s->changed, DEADLINE_NEVER);
        if (r)
            return r;
    }
    if (sg->active)
        return 0;
    sg->loading = true;
    buf = malloc(ITEM_LEN_MAX);
    sg->busy = malloc(ALIGN_UP(DIV_ROUND_UP(sg->blocks, 8u), 8u) + 8);
    if (!buf || !sg->busy) {
        r = ERR_NO_MEMORY;
    } else {
        do {
            version = s->version;
            r = busy_load(v, sg, buf);
        } while (!r && version != s->version);
    }
    free(buf);
    sg->loading = false;
    waitq_wake_all(&s->changed);
    if (r) {
        free(sg->busy);
        sg->busy = NULL;
        return r;
    }
    /* The lists can be long, and of a group that is wholly free they say nothing. */
    for (uint32_t i = 0; i < SPACE_TXGS && sg->free < sg->blocks; i++) {
        busy_add_list(sg, &s->allocs[i]);
        busy_add_list(sg, &s->frees[i]);
    }
    uint32_t free_now = sg->blocks - bitmap_count(sg->busy, sg->blocks);
    if (free_now != sg->free) { /* the tree and our counts disagree: never guess which blocks are free */
        free(sg->busy);
        sg->busy = NULL;
        return ERR_VOLUME_CORRUPT;
    }
    sg->active = true;
    sg->cursor = 0;
    list_remove(&sg->link);
    list_append(&s->active[p], &sg->link);
    s->ready[p] += sg->free;
    waitq_wake_all(&s->changed);
    return 0;
}

/* Full ones need no bitmap. Not the current one's business: it is picked anew. */
void space_deactivate(struct volume *v, struct space_group *sg)
{
    struct space *s = &v->space;
    enum group_purpose p = sg->group->purpose;

    assert(sg->active);
    s->ready[p] -= sg->free;
    sg->active = false;
    free(sg->busy);
    sg->busy = NULL;
    list_remove(&sg->link);
    list_append(&s->idle[p], &sg->link);
    if (s->current[p] == sg->group)
        s->current[p] = NULL;
}

/* ---- Taking ---- */

bool space_ready_data(const struct volume *v, uint32_t n)
{
    return v->space.ready[GROUP_DATA] >= n;
}

uint32_t space_commit_nodes(const struct volume *v)
{
    return (uint32_t)MIN(v->space.chunks / 2 + refs_commit_nodes(v), UINT64_C(1) << 20) + 32;
}

bool space_ready_nodes(const struct volume *v, uint32_t nodes, enum space_urgency u)
{
    uint64_t keep =
        u == SPACE_COMMIT ? 0 : space_commit_nodes(v) + (u == SPACE_NORMAL ? DELETE_RESERVE_NODES : 0);

    return v->space.ready[GROUP_TREE] / NODE_BLOCKS >= nodes + keep;
}

/* An active group with free space, the current one first. */
static struct space_group *pick_active(struct volume *v, enum group_purpose p)
{
    struct space *s = &v->space;

    if (s->current[p]) {
        struct space_group *sg = s->current[p]->volume_private;
        if (sg->free > 0 && !(p == GROUP_DATA && s->streak >= DATA_STREAK_BLOCKS))
            return sg;
        /* to the end: the next one has its turn */
        list_remove(&sg->link);
        list_append(&s->active[p], &sg->link);
    }
    s->streak = p == GROUP_DATA ? 0 : s->streak;
    LIST_FOREACH (&s->active[p], it) {
        struct space_group *sg = CONTAINER_OF(it, struct space_group, link);
        if (sg->free > 0) {
            s->current[p] = sg->group;
            return sg;
        }
    }
    return NULL;
}

static void take(struct volume *v, struct space_group *sg, uint32_t first, uint32_t n, uint64_t txg)
{
    struct space *s = &v->space;
    enum group_purpose p = sg->group->purpose;

    bitmap_set_run(sg->busy, first, n);
    sg->free -= n;
    sg->cursor = first + n;
    s->ready[p] -= n;
    s->total_free[p] -= n;
    if (p == GROUP_DATA)
        s->taken_data[txg % SPACE_TXGS] += n;
    track(v, &s->allocs[txg % SPACE_TXGS], sg->group->id, first, n);
}

struct block_run space_take_data(struct volume *v, uint32_t n)
{
    struct space *s = &v->space;
    struct space_group *sg = pick_active(v, GROUP_DATA);

    assert(sg && n > 0); /* S2: the caller was promised */
    uint32_t first = bitmap_find(sg->busy, sg->blocks, sg->cursor, false);
    if (first == sg->blocks)
        first = bitmap_find(sg->busy, sg->blocks, 0, false);
    assert(first < sg->blocks);
    uint32_t end = bitmap_find(sg->busy, MIN(sg->blocks, first + n), first, true);
    take(v, sg, first, end - first, v->txg);
    s->streak += end - first;
    struct block_run run = {.space = sg->group->id, .count = end - first, .block = first};
    if (sg->free == 0)
        space_deactivate(v, sg);
    return run;
}

struct node_address space_take_node(struct volume *v, uint64_t txg)
{
    struct space_group *sg = pick_active(v, GROUP_TREE);

    assert(sg);
    /* Nodes are NODE_BLOCKS aligned, and nothing else is in these groups: a free block means a free node. */
    uint32_t first = bitmap_find(sg->busy, sg->blocks, sg->cursor, false);
    if (first == sg->blocks)
        first = bitmap_find(sg->busy, sg->blocks, 0, false);
    assert(first < sg->blocks && first % NODE_BLOCKS == 0);
    take(v, sg, first, NODE_BLOCKS, txg);
    v->tree_nodes++;
    return (struct node_address){.space = sg->group->id, .block = first};
}

void space_free(struct volume *v, uint64_t txg, uint32_t space, uint64_t block, uint32_t count)
{
    struct space *s = &v->space;
    struct space_group *sg = space_of(v, space);

    assert(sg && count > 0 && block + count <= sg->blocks);
    track(v, &s->frees[txg % SPACE_TXGS], space, block, count);
    sg->waiting += count;
    if (sg->group->purpose == GROUP_TREE)
        v->tree_nodes -= count / NODE_BLOCKS;
    else
        s->freed_data[txg % SPACE_TXGS] += count;
    if (sg->group->purpose == GROUP_DATA && sg->free + sg->waiting == sg->blocks)
        shortage_set_coming(v, true);
}

int space_claim(struct volume *v, uint64_t txg, uint32_t space, uint64_t block, uint32_t count)
{
    struct space *s = &v->space;
    struct space_group *sg = space_of(v, space);

    if (!sg || sg->group->purpose != GROUP_DATA || count == 0 || block >= sg->blocks ||
        count > sg->blocks - block)
        return ERR_VOLUME_CORRUPT;
    if (sg->free < count)
        return ERR_VOLUME_CORRUPT;
    assert(!sg->active); /* replay: nothing is active yet, the lists tell it later */
    sg->free -= count;
    s->total_free[GROUP_DATA] -= count;
    track(v, &s->allocs[txg % SPACE_TXGS], space, block, count);
    return 0;
}

void space_release_run(struct volume *v, const struct block_run *run)
{
    struct space *s = &v->space;
    struct space_group *sg = space_of(v, run->space);

    assert(sg && sg->waiting >= run->count);
    enum group_purpose p = sg->group->purpose;
    sg->waiting -= run->count;
    sg->free += run->count;
    s->total_free[p] += run->count;
    if (sg->active) {
        bitmap_clear_run(sg->busy, (uint32_t)run->block, run->count);
        s->ready[p] += run->count;
    }
}
