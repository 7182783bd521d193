/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transaction groups: everything between two roots.
 *
 * A commit of txg N: operations pause for an instant while the head tree is sealed and the log is cut; then
 * txg N+1 is open and operations go on, while N's data, tree blocks and at last its root go to the drives
 * (invariant 6: data and tree blocks are flushed on every in-sync member, then the root is written and
 * flushed, then log and frees). Only commits change the pool tree.
 */
#include "runtime/log.h"
#include "volume/bulk.h"
#include "volume/volume_internal.h"

#include <stdlib.h>

/* ---- Holds and readers ---- */

void op_hold(struct volume *v)
{
    fiber_shield();
    while (v->closing_txg)
        (void)waitq_wait(&v->hold_wait, DEADLINE_NEVER);
    fiber_unshield();
    v->holders++;
}

void op_release(struct volume *v)
{
    assert(v->holders > 0);
    if (--v->holders == 0 && v->closing_txg)
        waitq_wake_all(&v->quiesce_wait);
}

uint32_t reader_enter(struct volume *v)
{
    uint32_t slot = (uint32_t)(v->txg % READER_SLOTS);

    v->readers[slot]++;
    return slot;
}

void reader_leave(struct volume *v, uint32_t slot)
{
    assert(slot < READER_SLOTS && v->readers[slot] > 0);
    if (--v->readers[slot] == 0)
        waitq_wake_all(&v->readers_wait);
}

/* ---- When to commit ---- */

void txg_dirty(struct volume *v)
{
    if (v->dirty_since_ns == 0) {
        v->dirty_since_ns = MAX(reactor_now_ns(), 1u);
        waitq_wake_all(&v->commit_wake);
    }
}

void txg_want_commit(struct volume *v)
{
    if (v->commit_wanted < v->txg) {
        v->commit_wanted = v->txg;
        waitq_wake_all(&v->commit_wake);
    }
}

static may_yield int wait_committed(struct volume *v, uint64_t txg)
{
    while (v->committed < txg && !v->state && !v->commit_stop) {
        if (v->commit_wanted < txg) {
            v->commit_wanted = txg;
            waitq_wake_all(&v->commit_wake);
        }
        int r = waitq_wait(&v->commit_done, DEADLINE_NEVER);
        if (r)
            return r;
    }
    return v->state;
}

static bool too_dirty(const struct volume *v)
{
    struct cache_stats s;

    cache_get_stats(v->env.cache, &s);
    return v->head.dirty_nodes > v->nodes_max ||
           v->deferred[0].pages + v->deferred[1].pages > v->deferred_max ||
           s.dirty_pages > v->dirty_pages_max;
}

int txg_throttle(struct volume *v)
{
    while (too_dirty(v)) {
        if (v->state)
            return v->state;
        txg_want_commit(v);
        int r = waitq_wait(&v->commit_done, DEADLINE_NEVER);
        if (r)
            return r;
    }
    if (v->head.dirty_nodes > v->nodes_max / 4 * 3 || v->deferred[v->txg & 1].pages > v->deferred_max / 2)
        txg_want_commit(v);
    return v->state;
}

int volume_commit(struct volume *v)
{
    if (v->read_only)
        return v->state;
    return wait_committed(v, v->txg);
}

int txg_reclaim(struct volume *v)
{
    return wait_committed(v, v->txg + 1);
}

/* ---- Deferred data ---- */

void deferred_add(struct volume *v, uint32_t space, uint64_t block, struct page *page, uint32_t count)
{
    struct deferred_list *l = &v->deferred[v->txg & 1];

    if (l->count == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 256;
        struct deferred *entries = realloc(l->entries, capacity * sizeof(*entries));
        if (!entries) { /* no root may name the blocks now; the log has them */
            volume_fail(v, ERR_NO_MEMORY, "keeping deferred blocks");
            return;
        }
        l->entries = entries;
        l->capacity = capacity;
    }
    page_get(page, count);
    l->entries[l->count++] = (struct deferred){.space = space, .count = count, .block = block, .page = page};
    l->pages += count;
}

static may_yield int deferred_write(struct volume *v, struct deferred_list *l)
{
    struct bulk bulk;

    bulk_init(&bulk, v);
    for (size_t i = 0; i < l->count; i++)
        bulk_add(&bulk, l->entries[i].space, l->entries[i].block, l->entries[i].page, l->entries[i].count);
    int r = bulk_finish(&bulk);
    for (size_t i = 0; i < l->count; i++) {
        const struct deferred *d = &l->entries[i];
        cache_clean_data(v->env.cache, (struct cache_key){v->cache_tag, d->space, d->block}, d->page,
                         d->count);
        page_put(d->page, d->count);
    }
    free(l->entries);
    *l = (struct deferred_list){0};
    return r;
}

/* ---- The commit ---- */

struct commit {
    uint64_t txg;
    uint64_t log_sequence, log_block;
    uint64_t size_bytes, data_blocks, inodes;
    struct disk_node_pointer head_root;
    struct list head_writes, pool_writes;
};

static may_yield int nodes_write(struct volume *v, struct list *writes)
{
    struct bulk bulk;

    bulk_init(&bulk, v);
    LIST_FOREACH (writes, it) {
        struct tree_write *w = CONTAINER_OF(it, struct tree_write, link);
        bulk_add(&bulk, w->address.space, w->address.block, w->page, NODE_BLOCKS);
    }
    return bulk_finish(&bulk);
}

static void nodes_done(struct tree *t, struct list *writes)
{
    for (struct list *it; (it = list_pop(writes));)
        tree_write_done(t, CONTAINER_OF(it, struct tree_write, link));
}

static may_yield int put_head(struct volume *v, const struct commit *c)
{
    struct disk_head_item head = {.root = c->head_root,
                                  .size_bytes = le64_make(c->size_bytes),
                                  .allocated_blocks = le64_make(c->data_blocks),
                                  .inodes = le64_make(c->inodes)};
    struct tree_key key = {HEAD_LIVE, ITEM_HEAD, 0};

    return tree_put(&v->pool, &key, &head, sizeof(head));
}

static may_yield int put_volume(struct volume *v)
{
    struct disk_volume_item item = {.volume = v->record.id,
                                    .next_group = le32_make(v->space.next_group),
                                    .next_head = le32_make(HEAD_LIVE + 1),
                                    .created_ns = le64_make(v->created_ns)};
    struct tree_key key = {0, ITEM_VOLUME, 0};

    return tree_put(&v->pool, &key, &item, sizeof(item));
}

/* Group items that changed. *ret_any: there were some. */
static may_yield int put_groups(struct volume *v, uint64_t txg, bool *ret_any)
{
    uint8_t item[GROUP_ITEM_MAX];
    uint32_t id = 0;

    *ret_any = false;
    for (struct group *g = group_next(v->groups, NULL); g;
         g = group_next(v->groups, group_find(v->groups, id))) {
        struct space_group *sg = g->volume_private;
        struct tree_key key = {g->id, ITEM_GROUP, 0};
        int r = 0;
        id = g->id;
        if (!sg || (g->purpose == GROUP_DATA && !sg->logged))
            continue;
        if (sg->retired_txg == txg) {
            r = tree_delete(&v->pool, &key);
            if (r == ERR_NOT_FOUND)
                r = 0;
        } else if (sg->item_dirty && !sg->retired_txg) {
            sg->item_dirty = false;
            uint32_t len = group_encode(g, item);
            *ret_any = true;
            r = tree_put(&v->pool, &key, item, len);
        }
        if (r)
            return r;
    }
    return 0;
}

static may_yield int commit_pool(struct volume *v, struct commit *c)
{
    bool any = true;
    int r = put_head(v, c);

    if (!r)
        r = refs_commit(v, c->txg);
    while (!r && any) { /* new tree groups may come into being on the way */
        r = put_groups(v, c->txg, &any);
        if (!r)
            r = put_volume(v);
        if (!r)
            r = space_commit_items(v, c->txg);
    }
    if (r)
        return r;
    tree_close_txg(&v->pool, c->txg + 1, &c->pool_writes);
    return nodes_write(v, &c->pool_writes);
}

/* The instant in which nothing else runs: seals txg N, opens N+1. */
static may_yield void commit_close(struct volume *v, struct commit *c)
{
    list_init(&c->head_writes);
    list_init(&c->pool_writes);
    fiber_shield();
    v->closing_txg = true;
    while (v->holders > 0)
        (void)waitq_wait(&v->quiesce_wait, DEADLINE_NEVER);
    fiber_unshield();
    c->txg = v->txg;
    c->log_sequence = log_cut(v);
    if (v->replaying)
        c->log_sequence = v->replay_sequence;
    tree_close_txg(&v->head, c->txg + 1, &c->head_writes);
    c->head_root = v->head.root;
    c->size_bytes = v->size_bytes;
    c->data_blocks = v->data_blocks;
    c->inodes = v->inodes;
    v->txg++;
    v->committing = c->txg;
    v->dirty_since_ns = 0;
    v->named_blocks = 0;
    v->closing_txg = false;
    waitq_wake_all(&v->hold_wait);
    log_send(v);
}

static may_yield int commit_flush(struct volume *v)
{
    bool failed = true;
    int r = 0;

    while (!r && failed) {
        r = membership_settle(v);
        if (!r)
            r = group_set_flush(v->groups, &failed);
        if (r == ERR_GROUP_DEGRADED_BELOW) {
            log_flush_lost(v);
            failed = true;
            r = 0;
        }
        if (!r && failed)
            membership_kick(v);
    }
    return r;
}

static may_yield int commit_write(struct volume *v, struct commit *c, bool clean)
{
    int r = v->replaying ? 0 : log_wait_written(v, c->log_sequence);

    if (r)
        return r;
    c->log_block = v->replaying ? v->replay_block : v->log.cut_position;
    uint64_t durable = v->log.written;
    r = deferred_write(v, &v->deferred[c->txg & 1]);
    if (!r)
        r = nodes_write(v, &c->head_writes);
    if (!r)
        r = membership_settle(v);
    if (!r)
        r = commit_pool(v, c);
    if (!r)
        r = commit_flush(v);
    if (!r)
        r = v->state; /* failed meanwhile: what the root would say may be incomplete */
    if (!r)
        r = root_write(v, c->txg, &v->pool.root, c->log_sequence, c->log_block, v->root_log_block,
                       v->replaying ? v->replay_epoch : v->record.epoch, clean);
    if (!r && !v->replaying)
        log_durable(v, durable);
    return r;
}

int txg_commit(struct volume *v, bool clean)
{
    struct commit c;

    assert(!v->committing && !v->read_only);
    commit_close(v, &c);
    int r = commit_write(v, &c, clean);
    nodes_done(&v->head, &c.head_writes);
    nodes_done(&v->pool, &c.pool_writes);
    v->committing = 0;
    if (r) {
        volume_fail(v, r, "commit");
        waitq_wake_all(&v->commit_done);
        return r;
    }
    v->committed = c.txg;
    v->commits++;
    if (!v->replaying)
        log_trim(v, v->root_log_block);
    v->root_log_sequence = c.log_sequence;
    v->root_log_block = c.log_block;
    space_commit_done(v, c.txg);
    waitq_wake_all(&v->commit_done);
    return 0;
}

/* ---- The committer's fiber ---- */

/* The pool is nearly full: less than a sixteenth of its slabs is free. */
static may_yield bool pool_nearly_full(const struct volume *v)
{
    const struct drive_set *set = v->env.drives;
    uint64_t free = 0, total = 0;
    struct drive_info info;

    for (uint32_t i = 0; i < set->count; i++)
        if (drive_get_info(set->drives[i], &info) == 0) {
            free += info.slabs_free;
            total += info.slabs_total;
        }
    return free < total / 16;
}

/* Commits wait for company, but not while others lack the slabs that they give back. */
static may_yield uint64_t commit_interval(const struct volume *v)
{
    if (!v->space.coming)
        return COMMIT_INTERVAL_NS;
    if (shortage_is_felt(v))
        return 0;
    return pool_nearly_full(v) ? COMMIT_NEARLY_FULL_NS : COMMIT_INTERVAL_NS;
}

static may_yield void committer_main(void *arg)
{
    struct volume *v = arg;

    while (!v->commit_stop) {
        uint64_t interval = commit_interval(v), now = reactor_now_ns();
        uint64_t due = v->dirty_since_ns ? v->dirty_since_ns + interval : DEADLINE_NEVER;
        if (v->commit_stop)
            break;
        if (v->state || (v->commit_wanted <= v->committed && now < due)) {
            if (v->space.coming && !v->state)
                due = MIN(due, now + SHORTAGE_LOOK_NS);
            (void)waitq_wait(&v->commit_wake, v->state ? DEADLINE_NEVER : due);
            continue;
        }
        if (txg_commit(v, false))
            continue; /* the volume is failed: waits to be stopped */
    }
}

int txg_start(struct volume *v)
{
    v->commit_stop = false;
    return fiber_spawn_joinable("commit", committer_main, v, &v->committer);
}

void txg_stop(struct volume *v)
{
    if (!v->committer)
        return;
    v->commit_stop = true;
    waitq_wake_all(&v->commit_wake);
    waitq_wake_all(&v->commit_done);
    fiber_join(v->committer);
    v->committer = NULL;
}
