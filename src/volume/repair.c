/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repair: brings stale members level.
 *
 *  1. every stale member becomes filling: on its own slab if its drive is back (a new one there, if the group
 * was made without it), else on another drive. From now on it gets every new write, but is not read;
 *  2. a commit: what was written before that is on the drives, in blocks that do not change any more;
 *  3. everything that is at most that old is copied, verified by its checksums, from a good copy: many groups
 * at once, from and to all drives;
 *  4. flush; the members are current; a commit records it. The in-sync set grows by compare-and-set.
 * Root ring and log need no copy: two commits after step 1 everything in them that is ever read was written
 * while the member was filling. A crash anywhere: a filling member counts as stale, the next repair begins
 * anew.
 */
#include "runtime/log.h"
#include "volume/job.h"

#include <stdlib.h>

#define REPAIR_RATE (400 * MIB)

static void item_dirty(struct group *g)
{
    if (g->volume_private)
        ((struct space_group *)g->volume_private)->item_dirty = true;
}

/* The drive is here and its session good, perhaps after it came back. */
static may_yield bool drive_ready(struct volume *v, struct group_drive *d)
{
    if (group_drive_usable(d))
        return true;
    struct drive *drive = drive_set_find(v->env.drives, group_drive_id(d));
    if (!drive || drive_get_state(drive) != DRIVE_OK)
        return false;
    return group_drive_reopen(v->groups, d) == 0;
}

/* The drive still has the slab for us: it may have been formatted anew, or freed it. */
static may_yield bool slab_is_ours(struct volume *v, const struct group *g, uint32_t m)
{
    struct drive *drive = drive_set_find(v->env.drives, group_drive_id(g->members[m].drive));
    struct slab_entry *list;
    uint32_t n, slab = g->members[m].slab, group = g->id;
    bool found = false;

    if (!drive || slab == GROUP_SLAB_NONE || drive_slab_list(drive, v->record.id, &list, &n))
        return false;
    for (uint32_t i = 0; i < n; i++)
        found |= list[i].slab == slab && list[i].group == group && list[i].member == m;
    free(list);
    return found;
}

/* Nothing is left to copy from, and there is something to lose: the slab of the drive that is away may be the
 * last good copy. It keeps its place until the drive returns, or until its blocks were freed. */
static bool last_copy_may_return(const struct group *g)
{
    const struct space_group *sg = g->volume_private;

    return group_redundancy_left(g) < 0 && (!sg || sg->blocks - sg->free - sg->waiting > 0);
}

static may_yield int member_begin(struct volume *v, struct group *g, uint32_t m)
{
    int r = ERR_DRIVE_GONE;

    if (drive_ready(v, g->members[m].drive) && slab_is_ours(v, g, m))
        r = group_member_fill(g, m);
    if (r && last_copy_may_return(g))
        return ERR_GROUP_DEGRADED_BELOW;
    if (r)
        r = group_member_replace(v->groups, g, m);
    if (!r)
        item_dirty(g);
    return r;
}

/* Step 1. *ret_filling: members that are filling; the first error that kept one from it. */
static may_yield int members_begin(struct volume *v, uint32_t *ret_filling)
{
    int result = 0;
    uint32_t id;

    *ret_filling = 0;
    for (struct group *g = group_next(v->groups, NULL); g;
         g = group_next(v->groups, group_find(v->groups, id))) {
        id = g->id;
        struct space_group *sg = g->volume_private;
        if (g->purpose != GROUP_SYSTEM && (!sg || sg->retired_txg))
            continue; /* it is being given back */
        if (sg)
            sg->repairing = true;
        for (uint32_t m = 0; m < g->member_count && !v->repair_cancel && !v->state; m++) {
            if (g->members[m].state == MEMBER_STALE) {
                int r = member_begin(v, g, m);
                if (r && !result)
                    result = r;
            }
            *ret_filling += g->members[m].state == MEMBER_FILLING;
        }
        if (sg)
            sg->repairing = false;
    }
    return result;
}

static bool repair_wants(const struct job_walk *w, const struct group *g)
{
    (void)w;
    for (uint32_t m = 0; m < g->member_count; m++)
        if (g->members[m].state == MEMBER_FILLING)
            return true;
    return false;
}

static may_yield int repair_visit(struct job_walk *w, const struct job_piece *p)
{
    for (uint32_t m = 0; m < p->group->member_count; m++) {
        if (p->group->members[m].state != MEMBER_FILLING)
            continue;
        int r = group_copy_to_member(p->group, m, p->block, p->blocks, p->verify, p->sums);
        if (r == ERR_NO_GOOD_COPY) { /* lost already: the copy is as good as its source */
            w->job->lost_blocks += p->blocks;
            r = 0;
        } else if (r == ERR_DRIVE_GONE) {
            r = 0; /* its failure is being recorded; it stays stale */
        }
        if (r)
            return r;
        w->job->repaired_copies += p->blocks;
    }
    return 0;
}

static void change_grow(struct volume_record *r, void *arg)
{
    const struct volume *v = arg;
    const struct group *g = v->system[0];

    for (uint32_t i = 0; i < r->member_count; i++) {
        if (g->members[i].state != MEMBER_FILLING || !group_drive_usable(g->members[i].drive))
            continue;
        r->members[i] = (struct system_member){.drive_id = group_drive_id(g->members[i].drive),
                                               .incarnation = group_drive_incarnation(g->members[i].drive),
                                               .in_sync = true};
    }
}

/* Filling members of the system groups, or of all others, are current from now on. */
static void members_levelled(struct volume *v, bool system)
{
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g))
        for (uint32_t m = 0; m < g->member_count; m++)
            if (g->members[m].state == MEMBER_FILLING && (g->purpose == GROUP_SYSTEM) == system) {
                group_member_levelled(g, m);
                item_dirty(g);
            }
}

/* Step 4. The root that says so comes before the grow: a member that the record calls in sync must find its
 * copies of tree and data current in its own newest root, or it could not open the volume alone. */
static may_yield int members_end(struct volume *v)
{
    bool failed, system = false;
    int r = 0;

    for (int i = 0; !r && i < 2; i++) { /* roots and log on the filling members, see above */
        txg_dirty(v);
        r = volume_commit(v);
    }
    if (!r)
        r = group_set_flush(v->groups, &failed);
    if (!r)
        r = membership_settle(v);
    for (uint32_t i = 0; i < v->system[0]->member_count; i++)
        system |= v->system[0]->members[i].state == MEMBER_FILLING;
    if (r)
        return r;
    members_levelled(v, false);
    txg_dirty(v);
    r = volume_commit(v);
    if (!r && system)
        r = membership_store(v, change_grow, v);
    if (r)
        return r;
    members_levelled(v, true);
    return group_set_reap(v->groups);
}

static uint64_t repair_total(struct volume *v)
{
    uint64_t n = 0;

    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g)) {
        const struct space_group *sg = g->volume_private;
        for (uint32_t m = 0; sg && m < g->member_count; m++)
            if (g->members[m].state != MEMBER_CURRENT)
                n += sg->blocks - sg->free - sg->waiting;
    }
    return n;
}

static may_yield int repair_round(struct volume *v, uint32_t *ret_filling)
{
    struct job_walk w = {.volume = v,
                         .job = &v->repair,
                         .cancel = &v->repair_cancel,
                         .wants = repair_wants,
                         .visit = repair_visit};
    uint64_t rate = v->repair_rate ? v->repair_rate : REPAIR_RATE;
    int first = members_begin(v, ret_filling);

    if (*ret_filling == 0)
        return first;
    v->repair.total_blocks = repair_total(v);
    w.birth_max = v->txg;
    txg_dirty(v);
    int r = volume_commit(v);
    throttle_init(&w.throttle, rate, MAX(rate / 10, 4 * MIB));
    if (!r)
        r = job_walk_run(&w);
    if (!r)
        r = members_end(v);
    return r ? r : first;
}

/* Free groups that are kept for later hold slabs that copies of data have no other place for. A free group is
 * taken out of use by one commit, retired by the next one, and its slabs are free after two more. */
static may_yield void free_groups_give_back(struct volume *v)
{
    int r = 0;

    v->space.give_back = true;
    for (int i = 0; !r && i < 4; i++) {
        txg_dirty(v);
        r = volume_commit(v);
    }
    v->space.give_back = false;
}

static may_yield void repair_main(void *arg)
{
    struct volume *v = arg;
    uint32_t filling;
    int r;

    do {
        v->repair_again = false;
        r = repair_round(v, &filling);
        if (r == ERR_DRIVE_NO_SPACE && !v->repair_cancel && !v->state) {
            free_groups_give_back(v);
            r = repair_round(v, &filling);
            uint64_t until_ns = 0;
            while (r == ERR_DRIVE_NO_SPACE && !v->repair_cancel && shortage_wait(&v->env, v, &until_ns))
                r = repair_round(v, &filling);
        }
        /* A member that came back may be what another one can be copied from. */
    } while ((v->repair_again ||
              ((!r || r == ERR_GROUP_DEGRADED_BELOW) && volume_stale_members(v) > 0 && filling > 0)) &&
             !v->repair_cancel && !v->state);
    v->repair.result = r;
    v->repair.finished_ns = reactor_now_ns();
    v->repair.running = false;
    uint32_t left = volume_stale_members(v);
    if (r || left)
        event_raise(LOG_WARNING_, "repair-incomplete", "volume %s: repair ended with %u stale members: %s",
                    v->record.name, left, error_text(r));
    else if (v->repair.repaired_copies)
        event_raise(LOG_INFO_, "repair-done", "volume %s: repair ended, all members are level",
                    v->record.name);
    v->background--;
    waitq_wake_all(&v->background_wait);
}

int volume_repair_start(struct volume *v, uint64_t rate_bytes_per_s)
{
    if (v->state)
        return v->state;
    if (v->closing || v->read_only)
        return ERR_VOLUME_BUSY;
    if (v->repair.running) {
        v->repair_again = true;
        return ERR_VOLUME_BUSY;
    }
    v->repair_rate = rate_bytes_per_s;
    v->repair_cancel = false;
    v->repair =
        (struct volume_job){.running = true, .started_ns = reactor_now_ns(), .total_blocks = repair_total(v)};
    v->background++;
    int r = fiber_spawn("repair", repair_main, v);
    if (r) {
        v->repair.running = false;
        v->background--;
    }
    return r;
}

void repair_autostart(struct volume *v)
{
    int r = v->env.no_repair ? 0 : volume_repair_start(v, 0);

    if (r && r != ERR_VOLUME_BUSY)
        event_raise(LOG_WARNING_, "repair-incomplete", "volume %s: repair could not start: %s",
                    v->record.name, error_text(r));
}
