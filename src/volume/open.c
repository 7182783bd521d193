/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a volume, in this order: claim it (a higher epoch by compare-and-set), fence its drives, find the
 * newest root, load what it names, replay the log, commit (which brings every member level), serve. See
 * invariants 2 to 4.
 */
#include "runtime/checksum.h"
#include "runtime/log.h"
#include "volume/volume_internal.h"

#include <stdlib.h>

#define TXG_SKIP 3u /* numbers that the run before may have used without a root */

static void hook_turn(struct turn_hook *h)
{
    log_send(CONTAINER_OF(h, struct volume, hook));
}

void volume_fail(struct volume *v, int why, const char *where)
{
    if (v->state)
        return;
    v->state = why == ERR_DRIVE_FENCED ? ERR_DRIVE_FENCED : ERR_VOLUME_FAILED;
    event_raise(LOG_ERROR_, "volume-failed", "volume %s stopped serving: %s failed: %s", v->record.name,
                where, error_text(why));
    log_fail(v);
    shortage_set_coming(v, false);
    waitq_wake_all(&v->commit_wake);
    waitq_wake_all(&v->commit_done);
    waitq_wake_all(&v->membership_done);
    waitq_wake_all(&v->space.changed);
}

int volume_get_state(const struct volume *v)
{
    return v->state;
}
const struct volume_record *volume_get_record(const struct volume *v)
{
    return &v->record;
}
uint64_t volume_size_bytes(const struct volume *v)
{
    return v->size_bytes;
}

/* ---- The structure ---- */

static void limits_init(struct volume *v)
{
    uint64_t budget_pages = memory_limit_bytes(reactor_memory(reactor_current())) / BLOCK_SIZE;

    /* Of a volume: a sixth of memory for dirty nodes, a quarter for data that waits for its place. A small
     * limit costs much: every commit writes each node that it touched. Of all volumes of the reactor: half of
     * it. */
    v->nodes_max = MIN(MAX(budget_pages / 6 / NODE_BLOCKS, 64u), 16384u);
    if (v->env.dirty_nodes_max)
        v->nodes_max = v->env.dirty_nodes_max;
    v->deferred_max = MAX(budget_pages / 4, 256u);
    v->dirty_pages_max = MAX(budget_pages / 2, 512u);
}

struct volume *volume_alloc(const struct volume_env *env, const struct volume_record *record)
{
    struct volume *v = calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    v->env = *env;
    v->record = *record;
    v->is_fs = strcmp(record->kind, VOLUME_KIND_FS) == 0;
    v->cache_tag = cache_volume_tag(env->cache);
    waitq_init(&v->hold_wait);
    waitq_init(&v->quiesce_wait);
    waitq_init(&v->readers_wait);
    waitq_init(&v->commit_wake);
    waitq_init(&v->commit_done);
    waitq_init(&v->membership_done);
    waitq_init(&v->background_wait);
    fmutex_init(&v->record_lock);
    list_init(&v->inflight);
    list_init(&v->hook.link);
    (void)space_init(v);
    volume_stores_init(v);
    limits_init(v);
    v->hook.fn = hook_turn;
    v->log.blocks = log_ring_blocks(record);
    return v;
}

/* After everything that runs in it has ended. */
void volume_free(struct volume *v)
{
    if (v->log_started) {
        reactor_remove_turn_hook(&v->hook);
        log_done(v);
    }
    if (v->pool.store)
        tree_done(&v->pool);
    if (v->head.store)
        tree_done(&v->head);
    for (uint32_t i = 0; i < ARRAY_SIZE(v->deferred); i++) {
        for (size_t k = 0; k < v->deferred[i].count; k++)
            page_put(v->deferred[i].entries[k].page, v->deferred[i].entries[k].count);
        free(v->deferred[i].entries);
    }
    cache_drop_volume(v->env.cache, v->cache_tag);
    if (v->groups) {
        space_done(v);
        group_set_free(v->groups);
    }
    free(v);
}

/* ---- Claiming ---- */

struct claim {
    struct uuid node;
};
static void change_claim(struct volume_record *r, void *arg)
{
    r->epoch++;
    r->owner = ((struct claim *)arg)->node;
}

static may_yield int claim(const struct volume_env *env, struct uuid id, struct volume_record *ret)
{
    struct claim c = {.node = env->node};
    int r;

    do { /* a lost race, or an unknown result: settle it by another compare-and-set */
        r = volume_record_load(env->coord, id, ret);
        if (r)
            return r == ERR_COORD_NOT_FOUND ? ERR_VOLUME_NOT_FOUND : r;
        if (ret->deleted)
            return ERR_VOLUME_NOT_FOUND;
        change_claim(ret, &c);
        r = volume_record_store(env->coord, ret);
    } while (r == ERR_COORD_CONFLICT || r == ERR_COORD_UNKNOWN);
    return r;
}

static void change_insync(struct volume_record *r, void *arg)
{
    const struct volume *v = arg;
    const struct group *g = v->system[0];

    for (uint32_t i = 0; i < r->member_count; i++) {
        struct group_drive *d = g->members[i].drive;
        r->members[i].in_sync = g->members[i].state == MEMBER_CURRENT && group_drive_usable(d);
        if (r->members[i].in_sync)
            r->members[i].incarnation = group_drive_incarnation(d);
    }
}

/*
 * The members that did not answer leave the set before anything is written to those that did (rule
 * host_record_first of docs/model). Otherwise, if we die after our root is on one member, the next owner
 * finds an absent one back in the set, takes our root as the newest, and what only that one held is gone.
 */
int open_drop_absent(struct volume *v)
{
    const struct group *g = v->system[0];

    for (uint32_t m = 0; m < v->record.member_count; m++) {
        bool here = g->members[m].state == MEMBER_CURRENT && group_drive_usable(g->members[m].drive);
        if (v->record.members[m].in_sync && !here)
            return membership_store(v, change_insync, v);
    }
    return 0;
}

/*
 * The members that answered the fence are what we have. All drives of this implementation belong to this
 * node, so its members restarted together with their owner: what they had not flushed was lost by every
 * holder, and any one of them that was in sync holds everything that was flushed (the model's world
 * "reboot"). The ones that did not answer leave the set
 * (open_drop_absent).
 */
static may_yield int fence_members(struct volume *v)
{
    uint32_t usable = 0;
    int r = volume_groups_new(v);

    if (!r)
        r = system_groups_adopt(v);
    if (r)
        return r;
    for (uint32_t m = 0; m < v->record.member_count; m++) {
        struct group_member *gm = &v->system[0]->members[m];
        usable += gm->state == MEMBER_CURRENT && group_drive_usable(gm->drive);
    }
    return usable ? 0 : ERR_GROUP_DEGRADED_BELOW;
}

/* Makes drives stale that were in use by some group and are not here. Before the log runs: the commit that
 * ends opening records it. */
void absent_make_stale(struct volume *v, uint64_t since_txg)
{
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g))
        for (uint32_t i = 0; i < g->member_count; i++) {
            const struct group_member *gm = &g->members[i];
            group_member_give_up(g, i); /* a repair that did not end */
            if (gm->state == MEMBER_STALE || group_drive_usable(gm->drive))
                continue;
            group_drive_make_stale(v->groups, gm->drive, since_txg);
        }
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g))
        for (uint32_t i = 0; i < g->member_count; i++)
            if (g->members[i].state != MEMBER_CURRENT && g->volume_private)
                ((struct space_group *)g->volume_private)->item_dirty = true;
}

/* A group of one member has no other copy that could be more recent: what its drive has is all there is, and
 * the checksums tell which of it is right. So it is current whenever its drive is here. */
void single_copies_believe(struct volume *v)
{
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g)) {
        if (g->member_count != 1 || g->purpose == GROUP_SYSTEM || g->members[0].state == MEMBER_CURRENT ||
            !group_drive_usable(g->members[0].drive) || group_member_fill(g, 0))
            continue;
        group_member_levelled(g, 0);
        if (g->volume_private)
            ((struct space_group *)g->volume_private)->item_dirty = true;
    }
}

void groups_revive(struct volume *v)
{
    uint32_t n = 0;

    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g))
        if (g->volume_private && group_revive(g)) {
            ((struct space_group *)g->volume_private)->item_dirty = true;
            n++;
        }
    if (n == 0)
        return;
    v->revived = true;
    event_raise(
        LOG_WARNING_, "groups-revived",
        "volume %s: no member of %u groups was up to date, but all are here: they are used again, and "
        "scrubbed",
        v->record.name, n);
}

static may_yield int open_load(struct volume *v)
{
    struct disk_root root;
    uint64_t txg_max;
    int r = fence_members(v);

    if (!r)
        r = root_find(v, &root, &txg_max);
    if (r)
        return r;
    v->committed = MAX(le64_get(root.txg), txg_max);
    v->txg = v->committed + TXG_SKIP;
    v->losses = le64_get(root.losses);
    v->root_log_sequence = le64_get(root.log_sequence);
    v->root_log_block = le64_get(root.log_block);
    if (le64_get(root.features_ro_compat) & ~VOLUME_FEATURES_RO_COMPAT)
        v->read_only = true;
    r = pool_load(v, &root, v->txg);
    if (!r) {
        absent_make_stale(v, le64_get(root.txg));
        r = replay_run(v, &root, txg_max);
    }
    return r;
}

/* Everything that was replayed becomes a root on every member: they are level. Then the set is recorded, for
 * members that failed meanwhile and for the incarnations. Read-only, nothing is acknowledged and nobody
 * misses anything: the set stays as it is, since an absent member may hold what ours lost. */
static may_yield int open_level(struct volume *v)
{
    /* From now on groups are made: a slab may have been allocated for one that is not in the set yet. */
    uint32_t groups_end = v->space.next_group;
    int r = v->read_only ? 0 : membership_settle(v);

    if (!r && !v->read_only)
        r = txg_commit(v, false);
    if (!r && !v->read_only)
        r = membership_store(v, change_insync, v);
    if (!r && !v->read_only) {
        unknown_slabs_free(v, 0, groups_end);
        r = txg_start(v);
    }
    return r;
}

int volume_open(const struct volume_env *env, struct uuid id, struct volume **ret)
{
    struct volume_record record;
    int r = claim(env, id, &record);

    if (r)
        return r;
    struct volume *v = volume_alloc(env, &record);
    if (!v)
        return ERR_NO_MEMORY;
    r = open_load(v);
    if (!r)
        r = open_level(v);
    if (r) {
        fiber_shield(); /* a cancelled fiber does not sleep */
        v->closing = true;
        txg_stop(v);
        while (v->background > 0)
            (void)waitq_wait(&v->background_wait, DEADLINE_NEVER);
        volume_free(v);
        fiber_unshield();
        return r;
    }
    v->opened = true;
    if (v->revived && !v->env.no_repair && volume_scrub_start(v, 0))
        event_raise(LOG_WARNING_, "groups-revived", "volume %s: the scrub could not start", v->record.name);
    if (volume_stale_members(v) > 0)
        repair_autostart(v);
    *ret = v;
    return 0;
}

/* ---- Closing ---- */

static void change_release(struct volume_record *r, void *arg)
{
    (void)arg;
    r->owner = (struct uuid){{0}};
}

int volume_close(struct volume *v)
{
    int r;

    fiber_shield();
    v->closing = true;
    volume_job_cancel(v);
    while (!list_empty(&v->inflight) && !v->state)
        (void)fiber_sleep(NSEC_PER_MSEC);
    while (v->background > 0)
        (void)waitq_wait(&v->background_wait, DEADLINE_NEVER);
    txg_stop(v);
    r = v->state;
    if (!r && !v->read_only)
        r = membership_settle(v);
    if (!r && !v->read_only)
        r = txg_commit(v, true);
    if (!r)
        r = membership_store(v, change_release, NULL);
    while (v->background > 0)
        (void)waitq_wait(&v->background_wait, DEADLINE_NEVER);
    volume_free(v);
    fiber_unshield();
    return r;
}
