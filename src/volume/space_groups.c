/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making groups before they are needed, and giving wholly free ones back.
 *
 * A data group may be named by the log before a root knows it, so its making is a log record (LOG_GROUP),
 * which comes before every record that names it. A tree group is named by no log record: it comes into being
 * with the first root that names it; the pool tree's own group descriptions may lie in it, which is why
 * opening starts from the drives' slab tables. Slabs that neither knows are freed after opening.
 *
 * While drives are missing a group may come with fewer copies than the volume wants (protect/place.c); its
 * missing members are stale, and repair treats them as any other.
 */
#include "runtime/log.h"
#include "volume/volume_internal.h"

#include <stdlib.h>

#define CREATE_RETRY_NS NSEC_PER_SEC
#define CREATE_AT_ONCE  8u
#define AHEAD_MIN       4u
#define AHEAD_MAX       32u

/* At least one member can take a write. */
static bool group_writable(const struct group *g)
{
    for (uint32_t i = 0; i < g->member_count; i++)
        if (g->members[i].state == MEMBER_CURRENT && group_drive_usable(g->members[i].drive))
            return true;
    return false;
}

static uint32_t drive_count(const struct volume *v)
{
    return v->env.drives->count;
}

static uint32_t copies_of(const struct volume *v, enum group_purpose p)
{
    return p == GROUP_TREE ? protection_tree_copies(v->record.protection, drive_count(v))
                           : v->record.protection.spare + 1u;
}

static may_yield int create_logged(struct volume *v, struct group *g)
{
    uint8_t item[GROUP_ITEM_MAX];
    uint32_t len = group_encode(g, item);
    struct log_need need = {.record_bytes = LOG_RECORD_BYTES(len)};
    struct log_batch *b;

    for (;;) {
        op_hold(v);
        if (log_ready(v, &need))
            break;
        op_release(v);
        int r = log_ensure(v, &need);
        if (r)
            return r;
    }
    memcpy(log_add(v, LOG_GROUP, 0, 0, len, &b), item, len);
    ((struct space_group *)g->volume_private)->logged = true;
    op_release(v);
    return 0;
}

static uint32_t drives_here(const struct volume *v)
{
    const struct drive_set *set = v->env.drives;
    uint32_t n = 0;

    for (uint32_t i = 0; i < set->count; i++)
        n += drive_get_state(set->drives[i]) == DRIVE_OK;
    return n;
}

/* The group was made without a drive that came while it was made: the repair that this brought has perhaps
 * not seen it. */
static bool repair_missed(const struct volume *v, const struct group *g, uint32_t drives_before)
{
    bool stale = false;

    for (uint32_t i = 0; i < g->member_count; i++) {
        if (g->members[i].state != MEMBER_STALE)
            continue;
        stale = true;
        if (group_drive_usable(g->members[i].drive))
            return true;
    }
    return stale && drives_here(v) > drives_before;
}

static may_yield int group_make(struct volume *v, enum group_purpose p)
{
    struct space *s = &v->space;
    uint32_t id = s->next_group++, drives = drives_here(v);
    struct group *g;
    int r = group_create(v->groups, id, p, v->record.protection, copies_of(v, p), &g);

    if (r)
        return r;
    r = space_adopt_group(v, g, 0);
    if (r)
        return r;
    struct space_group *sg = g->volume_private;
    sg->item_dirty = true;
    if (v->opened && !v->closing && repair_missed(v, g, drives))
        repair_autostart(v);
    if (p == GROUP_TREE)
        return space_activate(v, sg);
    /* Out of the idle list until the log names it. */
    sg->loading = true;
    r = create_logged(v, g);
    sg->loading = false;
    waitq_wake_all(&s->changed);
    return r;
}

static may_yield void create_main(void *arg)
{
    struct volume *v = arg;
    struct space *s = &v->space;
    int r = v->closing ? ERR_SHUTDOWN : 0;

    /* Data never takes the slabs that the tree needs so that deleting works. */
    if (!r)
        r = space_ensure_nodes(v, 1, SPACE_NORMAL);
    if (!r)
        r = group_make(v, GROUP_DATA);

    s->creating--;
    s->create_error = r;
    s->error_alone = s->together == 1;
    if (r)
        s->create_error_ns = reactor_now_ns();
    waitq_wake_all(&s->changed);
    v->background--;
    waitq_wake_all(&v->background_wait);
}

static bool create_start(struct volume *v, uint32_t n)
{
    struct space *s = &v->space;

    for (uint32_t i = 0; i < n; i++) {
        if (v->closing || v->state)
            return false;
        v->background++;
        s->together = s->creating ? MAX(s->together, s->creating + 1) : 1;
        s->creating++;
        if (fiber_spawn("make-group", create_main, v)) {
            v->background--;
            s->creating--;
            return i > 0;
        }
    }
    return true;
}

/* Those that are made together may have taken from each other what one alone finds. */
static bool create_may_help(const struct volume *v)
{
    const struct space *s = &v->space;

    return !s->create_error || !s->error_alone || reactor_now_ns() - s->create_error_ns > CREATE_RETRY_NS;
}

/* How many groups are made before they are needed: enough for a stream of writes, whose groups each take
 * durable writes to the drives' tables; fewer as the pool fills, where others need the slabs. */
static uint64_t groups_ahead(const struct volume *v)
{
    uint64_t ahead = MIN(MAX(v->space.group_count[GROUP_DATA] / 4, AHEAD_MIN), AHEAD_MAX);
    uint64_t room = group_set_slabs_free(v->groups) / (8 * copies_of(v, GROUP_DATA));

    return MAX(MIN(ahead, room), 1u);
}

void space_refill(struct volume *v)
{
    struct space *s = &v->space;
    uint64_t want = groups_ahead(v) * v->record.slab_blocks;
    uint64_t have = s->total_free[GROUP_DATA] + (uint64_t)s->creating * v->record.slab_blocks;

    if (s->creating >= CREATE_AT_ONCE || have >= want || s->give_back || v->closing || v->state)
        return;
    if (s->create_error && reactor_now_ns() - s->create_error_ns <= CREATE_RETRY_NS)
        return;
    uint64_t lacking = DIV_ROUND_UP(want - have, v->record.slab_blocks);
    (void)create_start(v, (uint32_t)MIN(lacking, CREATE_AT_ONCE - s->creating));
}

/* The idle group with the most free space that can be written. */
static struct space_group *pick_idle(struct volume *v, enum group_purpose p)
{
    struct space_group *best = NULL;

    LIST_FOREACH (&v->space.idle[p], it) {
        struct space_group *sg = CONTAINER_OF(it, struct space_group, link);
        if (sg->free > 0 && !sg->loading && !sg->retired_txg && (!best || sg->free > best->free) &&
            group_writable(sg->group))
            best = sg;
        if (best && best->free == best->blocks)
            break;
    }
    return best;
}

/* Takes groups out of use whose drives are gone. */
void space_drop_unwritable(struct volume *v)
{
    for (uint32_t p = GROUP_TREE; p <= GROUP_DATA; p++)
        LIST_FOREACH_SAFE (&v->space.active[p], it) {
            struct space_group *sg = CONTAINER_OF(it, struct space_group, link);
            if (!group_writable(sg->group))
                space_deactivate(v, sg);
        }
}

int space_ensure_data(struct volume *v, uint32_t n)
{
    struct space *s = &v->space;

    for (;;) {
        if (v->state)
            return v->state;
        if (space_ready_data(v, n)) {
            space_refill(v);
            return 0;
        }
        struct space_group *sg = pick_idle(v, GROUP_DATA);
        if (sg && (sg->free >= sg->blocks / 8 || (!s->creating && !create_may_help(v)))) {
            int r = space_activate(v, sg);
            if (r)
                return r;
            continue;
        }
        if (!s->creating) {
            if (!create_may_help(v))
                return ERR_VOLUME_FULL;
            if (!create_start(v, 1))
                return v->state ? v->state : ERR_SHUTDOWN;
        }
        int r = waitq_wait(&s->changed, DEADLINE_NEVER);
        if (r)
            return r;
    }
}

/* One at a time: whoever waits for it finds its room, too. */
static may_yield int tree_group_add(struct volume *v)
{
    struct space *s = &v->space;

    if (s->adding_tree) {
        int r = waitq_wait(&s->changed, DEADLINE_NEVER);
        return v->state ? v->state : r;
    }
    struct space_group *sg = pick_idle(v, GROUP_TREE);
    s->adding_tree = true;
    int r = sg ? space_activate(v, sg) : group_make(v, GROUP_TREE);
    s->adding_tree = false;
    waitq_wake_all(&s->changed);
    return r == ERR_DRIVE_NO_SPACE || r == ERR_NOT_ENOUGH_DRIVES ? ERR_VOLUME_FULL : r;
}

int space_ensure_nodes(struct volume *v, uint32_t nodes, enum space_urgency u)
{
    while (!space_ready_nodes(v, nodes, u)) {
        int r = tree_group_add(v);
        if (r)
            return r;
    }
    return 0;
}

/* ---- Giving back ---- */

static bool members_settled(const struct group *g)
{
    for (uint32_t i = 0; i < g->member_count; i++)
        if (g->members[i].state == MEMBER_FILLING)
            return false;
    return true;
}

/* Who overwrites fast needs as many groups again, before what he frees comes back two roots later, as he
 * fills between two commits: giving them back, and having them written with zeroes anew, would be half of
 * what the drives do. But never more than the pool has left for others. */
static uint64_t groups_to_keep(const struct volume *v, uint64_t txg)
{
    const struct space *s = &v->space;
    uint64_t taken = MAX(s->taken_data[(txg - 1) % SPACE_TXGS], s->taken_data[(txg - 2) % SPACE_TXGS]);
    uint64_t room = group_set_slabs_free(v->groups) / copies_of(v, GROUP_DATA);

    return MIN(DIV_ROUND_UP(taken + taken / 4, v->record.slab_blocks), room);
}

/* txg: the open one. */
void space_retire(struct volume *v, uint64_t txg)
{
    struct space *s = &v->space;
    /* The tree, repair, or another volume may want slabs that data groups hold: then none is kept for later.
     */
    bool tree_short = !space_ready_nodes(v, 1, SPACE_NORMAL);
    bool short_of = tree_short || s->give_back || shortage_is_felt(v);
    uint64_t spare = short_of ? 0 : MAX(groups_ahead(v) + 1, s->group_count[GROUP_DATA] / 8);
    uint64_t keep = short_of ? 0 : spare + groups_to_keep(v, txg), free_groups = 0;

    s->emptied = false;
    s->keeps = false;
    LIST_FOREACH_SAFE (&s->idle[GROUP_DATA], it) {
        struct space_group *sg = CONTAINER_OF(it, struct space_group, link);
        if (sg->free != sg->blocks || sg->waiting || sg->loading || sg->retired_txg || sg->item_dirty ||
            !members_settled(sg->group)) /* repair may be at it */
            continue;
        if (++free_groups <= spare)
            continue;
        txg_dirty(v);
        if (free_groups <= keep) {
            s->keeps = true;
            continue;
        }
        sg->retired_txg = txg;
        s->total_free[GROUP_DATA] -= sg->free;
    }
    LIST_FOREACH_SAFE (&s->active[GROUP_DATA], it) {
        struct space_group *sg = CONTAINER_OF(it, struct space_group, link);
        if (sg->free == sg->blocks && (short_of || s->current[GROUP_DATA] != sg->group)) {
            space_deactivate(v, sg); /* retired next time, if it is still free */
            s->emptied = true;
            txg_dirty(v);
        }
    }
}

static bool list_on_its_way(const struct list *groups)
{
    LIST_FOREACH (groups, it) {
        const struct space_group *sg = CONTAINER_OF(it, struct space_group, link);
        if (sg->retired_txg || (sg->waiting > 0 && sg->free + sg->waiting == sg->blocks))
            return true;
    }
    return false;
}

bool space_on_its_way(const struct volume *v)
{
    const struct space *s = &v->space;

    return v->dirty_since_ns && !v->state &&
           (s->emptied || s->keeps || list_on_its_way(&s->idle[GROUP_DATA]) ||
            list_on_its_way(&s->active[GROUP_DATA]));
}

/* Slabs of groups that neither the newest root nor the one before it names. */
void space_destroy_retired(struct volume *v, uint64_t committed)
{
    struct space *s = &v->space;

    LIST_FOREACH_SAFE (&s->idle[GROUP_DATA], it) {
        struct space_group *sg = CONTAINER_OF(it, struct space_group, link);
        if (!sg->retired_txg)
            continue;
        if (sg->retired_txg + 1 > committed || sg->repairing) {
            txg_dirty(v); /* until a second root does without it */
            continue;
        }
        struct group *g = sg->group;
        list_remove(&sg->link);
        s->group_count[GROUP_DATA]--;
        s->chunks -= DIV_ROUND_UP(sg->blocks, SPACE_CHUNK_BLOCKS);
        g->volume_private = NULL;
        free(sg);
        int r = group_destroy(v->groups, g);
        shortage_returned(v);
        if (r)
            event_raise(LOG_WARNING_, "slab-free", "volume %s: a free slab could not be given back: %s",
                        v->record.name, error_text(r));
        it_next = s->idle[GROUP_DATA].next; /* it yielded: begin again */
    }
}
