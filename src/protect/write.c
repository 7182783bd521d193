/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes to all members, and flushes of all drives.
 *
 * A write has one drive request a member, at the member's own index, so that an answer leads to its member
 * without a search. `asked` are the members that had to have it when it was submitted (all but stale ones),
 * `good` those that have it. What the result says is computed when the last one answered, with the states of
 * that moment: a member that the volume has made stale meanwhile is nobody's concern any more (G2).
 *
 * A flush covers what was completed before it was asked for. One flush a drive is under way at most; who
 * comes later waits for it and shares the next one.
 */
#include "protect/group_internal.h"

#include "runtime/error.h"

#include <stdlib.h>

/* ---- Writes ---- */

static void write_finish(struct group_write *w)
{
    struct group_entry *e = group_entry_of(w->group);
    const struct group *g = &e->group;
    bool kept = false, missed = false;
    for (uint32_t m = 0; m < g->member_count; m++) {
        const struct group_member *member = &g->members[m];
        if ((w->asked & (1u << m)) == 0 || member->state == MEMBER_STALE)
            continue;
        bool good = (w->good & (1u << m)) != 0;
        kept |= good && member->state == MEMBER_CURRENT;
        missed |= !good || member->drive->failed;
    }
    if (kept)
        w->result = 0;
    else if (w->result == 0)
        w->result = ERR_GROUP_DEGRADED_BELOW;
    w->failed = missed;
    if (w->ios != w->ios_inline)
        free(w->ios);
    w->ios = NULL;
    assert(e->io_count > 0);
    e->io_count--;
    w->done(w);
}

static void write_io_done(struct drive_io *io)
{
    struct group_write *w = io->ctx;
    struct group_entry *e = group_entry_of(w->group);
    uint32_t m = (uint32_t)(io - w->ios);
    assert(m < e->group.member_count);
    group_drive_end(e->group.members[m].drive, io);
    if (io->result == 0)
        w->good |= 1u << m;
    else if (w->result == 0)
        w->result = io->result;
    assert(e->writing[m] > 0);
    if (--e->writing[m] == 0)
        waitq_wake_all(&e->drained);
    assert(w->pending > 0);
    if (--w->pending == 0)
        write_finish(w);
}

/* Writes that no drive was asked for: their done() comes from the loop like all others'. */
void group_write_deferred(struct timer *t)
{
    struct group_set *s = CONTAINER_OF(t, struct group_set, deferred_timer);
    struct list now;
    list_init(&now);
    for (struct list *l; (l = list_pop(&s->deferred)) != NULL;)
        list_append(&now, l);
    for (struct list *l; (l = list_pop(&now)) != NULL;)
        write_finish(CONTAINER_OF(l, struct group_write, link));
}

static void write_defer(struct group_set *s, struct group_write *w)
{
    list_append(&s->deferred, &w->link);
    if (s->deferred_timer.heap_index == 0)
        timer_start(&s->deferred_timer, reactor_now_ns());
}

static bool write_needs(const struct group_member *m)
{
    return m->state != MEMBER_STALE;
}

void group_write_submit(struct group_write *w)
{
    struct group_entry *e = group_entry_of(w->group);
    const struct group *g = &e->group;
    assert(w->blocks > 0);
    assert(w->block < g->blocks);
    assert(w->blocks <= g->blocks - w->block);
    assert(w->done != NULL);
    w->result = 0;
    w->failed = false;
    w->pending = 0;
    w->good = w->asked = 0;
    w->ios = w->ios_inline;
    e->io_count++;
    if (g->member_count > ARRAY_SIZE(w->ios_inline)) {
        w->ios = calloc(g->member_count, sizeof(*w->ios));
        if (w->ios == NULL) {
            w->ios = w->ios_inline;
            w->result = ERR_NO_MEMORY;
            write_defer(e->set, w);
            return;
        }
    }
    for (uint32_t m = 0; m < g->member_count; m++) {
        const struct group_member *member = &g->members[m];
        if (!write_needs(member))
            continue;
        w->asked |= 1u << m;
        if (!group_drive_usable(member->drive)) {
            group_drive_fail(member->drive);
            if (w->result == 0)
                w->result = ERR_DRIVE_GONE;
            continue;
        }
        w->pending++;
        e->writing[m]++;
        w->ios[m] = (struct drive_io){.op = DRIVE_WRITE,
                                      .dsync = w->dsync,
                                      .slab = member->slab,
                                      .block = w->block,
                                      .blocks = w->blocks,
                                      .iov = w->iov,
                                      .iov_count = w->iov_count,
                                      .page = w->iov_count == 1 ? w->page : NULL,
                                      .done = write_io_done,
                                      .ctx = w};
        group_drive_begin(member->drive, &w->ios[m]);
    }
    if (w->pending == 0)
        write_defer(e->set, w);
}

static void write_wait_done(struct group_write *w)
{
    latch_down(w->ctx);
}

int group_write_wait(struct group_write *w)
{
    struct latch latch;
    latch_init(&latch, 1);
    w->done = write_wait_done;
    w->ctx = &latch;
    group_write_submit(w);
    latch_wait(&latch);
    return w->result;
}

/* ---- Flushes ---- */

static bool flush_is_due(const struct group_drive *d, uint64_t target)
{
    return d->durable < MIN(d->written, target);
}

static void flush_start(struct group_drive *d)
{
    assert(!d->flushing);
    d->flushing = true;
    d->flush_covers = d->set->write_sequence;
    group_drive_begin(d, &d->flush_io);
}

static void flush_ask(struct group_drive *d, uint64_t target)
{
    d->flush_wanted = MAX(d->flush_wanted, MIN(d->written, target));
    if (!d->flushing && group_drive_usable(d))
        flush_start(d);
}

static void flush_io_done(struct drive_io *io)
{
    struct group_drive *d = io->ctx;
    d->flushing = false;
    if (io->result == 0 && !d->failed)
        d->durable = MAX(d->durable, d->flush_covers);
    /* A flush that follows on is begun before the present one is taken off the drive's account, so that the
     * drive is not idle in between. */
    bool again = io->result == 0 && d->durable < d->flush_wanted && group_drive_usable(d);
    struct drive_io ended = *io;
    if (again)
        flush_start(d);
    group_drive_end(d, &ended);
    waitq_wake_all(&d->flushed);
}

void group_drive_flush_init(struct group_drive *d)
{
    waitq_init(&d->flushed);
    d->flush_io = (struct drive_io){.op = DRIVE_FLUSH, .done = flush_io_done, .ctx = d};
}

bool group_drive_lost_writes(const struct group_drive *d)
{
    return d->failed && d->durable < d->written;
}

int group_set_judge_loss(const struct group_set *s)
{
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const struct group *g = &s->entries[i]->group;
        bool lost = false, kept = false;
        for (uint32_t m = 0; m < g->member_count; m++) {
            const struct group_member *member = &g->members[m];
            if (member->state != MEMBER_CURRENT)
                continue;
            lost |= group_drive_lost_writes(member->drive);
            kept |= group_drive_usable(member->drive);
        }
        if (lost && !kept)
            return ERR_GROUP_DEGRADED_BELOW;
    }
    return 0;
}

int group_set_flush(struct group_set *s, bool *ret_failed)
{
    const uint64_t target = s->write_sequence;
    fiber_shield();
    /* Ask all drives first, then wait for each. */
    LIST_FOREACH (&s->drives, l) {
        struct group_drive *d = CONTAINER_OF(l, struct group_drive, link);
        if (flush_is_due(d, target))
            flush_ask(d, target);
    }
    bool lost = false, failed = false;
    LIST_FOREACH (&s->drives, l) {
        struct group_drive *d = CONTAINER_OF(l, struct group_drive, link);
        while (flush_is_due(d, target) && group_drive_usable(d)) {
            flush_ask(d, target);
            int err = waitq_wait(&d->flushed, DEADLINE_NEVER);
            assert(err == 0);
        }
        if (flush_is_due(d, target))
            group_drive_fail(d); /* it went away without an answer to anything */
        lost |= group_drive_lost_writes(d);
        failed |= d->failed && d->live > 0;
    }
    fiber_unshield();
    int err = lost ? group_set_judge_loss(s) : 0;
    if (s->flush_lost)
        err = ERR_GROUP_DEGRADED_BELOW;
    s->flush_lost = false;
    *ret_failed = failed;
    return err;
}
