/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens when a drive fails under the volume (invariants 1 and 2).
 *
 * Acknowledgements stop. Then, for each failed drive: if it holds a copy of the system group, the others
 * flush and a compare-and-set takes it out of the in-sync set; a log record says since which txg it is stale;
 * when that record is durable on the rest, acknowledgements go on. So nothing is acknowledged that a drive
 * missed and that is not recorded.
 */
#include "runtime/log.h"
#include "volume/volume_internal.h"

static struct group_drive *failed_drive(struct volume *v)
{
    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g))
        for (uint32_t i = 0; i < g->member_count; i++)
            if (g->members[i].state != MEMBER_STALE && !group_drive_usable(g->members[i].drive))
                return g->members[i].drive;
    return NULL;
}

/* Compare-and-set of the record with our change; other fields (exports) may have been changed by others
 * meanwhile. */
int membership_store(struct volume *v, void (*change)(struct volume_record *r, void *arg), void *arg)
{
    int r;

    fmutex_lock(&v->record_lock);
    for (;;) {
        struct volume_record next = v->record;
        change(&next, arg);
        r = volume_record_store(v->env.coord, &next);
        if (!r) {
            v->record = next;
            break;
        }
        if (r != ERR_COORD_CONFLICT && r != ERR_COORD_UNKNOWN)
            break;
        struct volume_record now;
        r = volume_record_load(v->env.coord, v->record.id, &now);
        if (r)
            break;
        if (now.epoch != v->record.epoch || !uuid_equal(now.owner, v->record.owner)) {
            r = ERR_DRIVE_FENCED; /* somebody else owns the volume now */
            break;
        }
        v->record = now;
    }
    fmutex_unlock(&v->record_lock);
    return r;
}

static void change_out_of_sync(struct volume_record *r, void *arg)
{
    const struct uuid *id = arg;

    for (uint32_t i = 0; i < r->member_count; i++)
        if (uuid_equal(r->members[i].drive_id, *id))
            r->members[i].in_sync = false;
}

/* What is lost unflushed with a last copy is told to those who wait for a flush; the others go on. */
static may_yield int flush_rest(struct volume *v)
{
    bool failed;
    int r = group_set_flush(v->groups, &failed);

    if (r != ERR_GROUP_DEGRADED_BELOW)
        return r;
    log_flush_lost(v);
    return 0;
}

/* The drive leaves the in-sync set, if it is in it. */
static may_yield int shrink_set(struct volume *v, struct group_drive *d)
{
    struct uuid id = group_drive_id(d);
    bool in = false;
    uint32_t others = 0;
    struct group *g = v->system[0];

    /* A grow that is on its way may name the drive: the record is looked at behind it. */
    fmutex_lock(&v->record_lock);
    fmutex_unlock(&v->record_lock);
    for (uint32_t i = 0; i < v->record.member_count; i++) {
        if (!v->record.members[i].in_sync)
            continue;
        if (uuid_equal(v->record.members[i].drive_id, id))
            in = true;
        else if (group_drive_usable(g->members[i].drive))
            others++;
    }
    if (!in)
        return 0;
    if (others == 0)
        return ERR_GROUP_DEGRADED_BELOW;
    int r = flush_rest(v); /* before a shrink is sent, all remaining members flush */
    return r ? r : membership_store(v, change_out_of_sync, &id);
}

static may_yield int record_stale(struct volume *v, struct group_drive *d)
{
    struct disk_stale_drive_item item = {.drive = group_drive_id(d),
                                         .since_txg = le64_make(v->committed + 1)};
    struct log_need need = {.record_bytes = LOG_RECORD_BYTES(sizeof(item)), .last_resort = true};
    struct log_batch *b;

    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g))
        for (uint32_t i = 0; i < g->member_count; i++)
            if (g->members[i].drive == d && g->volume_private)
                ((struct space_group *)g->volume_private)->item_dirty = true;
    group_drive_make_stale(v->groups, d, v->committed + 1);
    space_drop_unwritable(v);
    if (v->read_only)
        return 0;
    int r = log_ensure(v, &need);
    if (r)
        return r;
    memcpy(log_add(v, LOG_STALE_DRIVE, 0, 0, sizeof(item), &b), &item, sizeof(item));
    uint64_t sequence = b->sequence;
    log_send(v);
    r = log_wait_written(v, sequence + 1);
    return r ? r : flush_rest(v);
}

static may_yield void membership_main(void *arg)
{
    struct volume *v = arg;
    int r = 0;

    fiber_shield();
    for (struct group_drive *d; !r && !v->state && (d = failed_drive(v));) {
        char id[UUID_TEXT_SIZE];
        uuid_format(group_drive_id(d), id);
        r = shrink_set(v, d);
        if (!r)
            r = record_stale(v, d);
        if (!r)
            event_raise(LOG_WARNING_, "drive-stale", "volume %s goes on without drive %s", v->record.name,
                        id);
    }
    if (r)
        volume_fail(v, r, "membership");
    v->stale_work = false;
    v->membership_running = false;
    if (!v->state) {
        log_resume(v);
        waitq_wake_all(&v->log.flush_wanted);
        if (v->opened && !v->closing && !v->read_only)
            repair_autostart(v);
    }
    waitq_wake_all(&v->membership_done);
    fiber_unshield();
    v->background--;
    waitq_wake_all(&v->background_wait);
}

void membership_kick(struct volume *v)
{
    v->stale_work = true;
    v->log.paused = true;
    if (v->membership_running || v->state || !v->log_started)
        return;
    v->background++;
    int r = fiber_spawn("membership", membership_main, v);
    if (r) {
        v->background--;
        volume_fail(v, r, "membership");
        return;
    }
    v->membership_running = true;
}

void membership_drive_failed(void *ctx, struct group_drive *d)
{
    (void)d;
    membership_kick(ctx);
}

int membership_settle(struct volume *v)
{
    fiber_shield();
    while (v->stale_work && !v->state)
        (void)waitq_wait(&v->membership_done, DEADLINE_NEVER);
    fiber_unshield();
    return v->state;
}

uint32_t volume_stale_members(struct volume *v)
{
    uint32_t n = 0;

    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g))
        for (uint32_t i = 0; i < g->member_count; i++)
            n += g->members[i].state != MEMBER_CURRENT;
    return n;
}
