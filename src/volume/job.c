/* SPDX-License-Identifier: Apache-2.0 */
#include "volume/job.h"

#include <stdlib.h>

struct job_task {
    struct job_walk *walk;
    uint32_t reader;
    struct job_piece piece;
};

static may_yield void task_main(void *arg)
{
    struct job_task *t = arg;
    struct job_walk *w = t->walk;
    int r = w->visit(w, &t->piece);

    if (r && !w->result)
        w->result = r;
    w->job->done_blocks += t->piece.blocks;
    reader_leave(w->volume, t->reader);
    semaphore_give(&w->slots, 1);
    latch_down(&w->latch);
    free(t);
}

/* The piece was just looked up: the reader's slot is taken before anything yields. */
static may_yield int task_start(struct job_walk *w, const struct job_piece *p)
{
    struct volume *v = w->volume;
    uint32_t reader = reader_enter(v);
    struct job_task *t = malloc(sizeof(*t));

    if (!t) {
        reader_leave(v, reader);
        return ERR_NO_MEMORY;
    }
    *t = (struct job_task){.walk = w, .reader = reader, .piece = *p};
    fiber_shield();
    (void)semaphore_take(&w->slots, 1, DEADLINE_NEVER);
    fiber_unshield();
    latch_up(&w->latch, 1);
    if (fiber_spawn("job", task_main, t))
        task_main(t);
    return w->result;
}

static int walk_gate(const struct job_walk *w)
{
    if (*w->cancel)
        return ERR_CANCELLED;
    if (w->volume->state)
        return w->volume->state;
    if (w->result)
        return w->result;
    return 0;
}

static may_yield int on_node(void *ctx, const struct disk_node_pointer *ptr, const struct tree_key *low)
{
    struct job_walk *w = ctx;
    struct group *g = group_find(w->volume->groups, le32_get(ptr->space));
    struct le32 sum;

    (void)low;
    if (le64_get(ptr->birth_logical) > w->birth_max || !g || (w->wants && !w->wants(w, g)))
        return walk_gate(w);
    struct job_piece p = {
        .group = g, .block = (uint32_t)le64_get(ptr->block), .blocks = NODE_BLOCKS, .verify = VERIFY_WHOLE};
    memcpy(&sum, ptr->checksum, sizeof(sum));
    p.sums[0] = le32_get(sum);
    int r = task_start(w, &p);
    if (!r)
        r = throttle_take(&w->throttle, NODE_SIZE);
    return r ? r : walk_gate(w);
}

static may_yield int on_item(void *ctx, const struct tree_key *key, const void *value, uint32_t len)
{
    struct job_walk *w = ctx;
    struct extent e;

    if (key->type != ITEM_EXTENT)
        return walk_gate(w);
    int r = extent_decode(key, value, len, &e);
    if (r)
        return r;
    struct group *g = e.flags & (EXTENT_ZERO | EXTENT_LOST) ? NULL : group_find(w->volume->groups, e.space);
    if (!g || e.birth > w->birth_max || (w->wants && !w->wants(w, g)))
        return walk_gate(w);
    if (e.block + e.blocks > g->blocks)
        return ERR_VOLUME_CORRUPT;
    struct job_piece p = {.group = g,
                          .block = (uint32_t)e.block,
                          .blocks = e.blocks,
                          .verify = VERIFY_BLOCKS,
                          .object = e.object,
                          .start = e.start};
    memcpy(p.sums, e.sums, (size_t)e.blocks * 4);
    r = task_start(w, &p);
    if (!r)
        r = throttle_take(&w->throttle, (uint64_t)e.blocks * BLOCK_SIZE);
    return r ? r : walk_gate(w);
}

static may_yield int on_bad(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low,
                            const struct tree_key *high, int err)
{
    struct job_walk *w = ctx;

    (void)p;
    (void)err;
    if (w->unreadable)
        w->unreadable(w, low, high);
    return walk_gate(w);
}

int job_walk_run(struct job_walk *w)
{
    struct tree_walk ops = {.node = on_node, .item = on_item, .bad = on_bad, .ctx = w};

    semaphore_init(&w->slots, JOB_AT_ONCE);
    latch_init(&w->latch, 0);
    w->result = 0;
    int r = tree_walk(&w->volume->pool, &ops);
    if (!r)
        r = tree_walk(&w->volume->head, &ops);
    latch_wait(&w->latch);
    return r ? r : w->result;
}
