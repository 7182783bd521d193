/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operators are told. The first repaired block of a drive is reported at once; after that, as long as
 * more keep coming, one line every REPORT_INTERVAL says how many there were. A damaged range of thousands of
 * blocks so makes a handful of lines.
 */
#include "protect/group_internal.h"

#include "runtime/log.h"

#include <inttypes.h>

#define REPORT_INTERVAL_NS (5 * NSEC_PER_SEC)

void report_init(struct report *r, void (*fn)(struct timer *t))
{
    *r = (struct report){.timer = {.fn = fn}};
}

static void report_repaired_tell(struct group_drive *d)
{
    char id[UUID_TEXT_SIZE];
    uuid_format(d->id, id);
    event_raise(LOG_WARNING_, "block-repaired",
                "drive %s: %" PRIu64 " block(s) did not verify and were rewritten from another copy; the "
                "last one in group %u, block %u",
                id, d->repaired.count, d->repaired.group, d->repaired.block);
    d->repaired.count = 0;
}

static void report_lost_tell(struct group_set *s)
{
    char id[UUID_TEXT_SIZE];
    uuid_format(s->o.volume, id);
    event_raise(LOG_ERROR_, "block-lost",
                "volume %s: %" PRIu64 " block(s) have no copy with the right checksum; the last one in "
                "group %u, block %u",
                id, s->lost.count, s->lost.group, s->lost.block);
    s->lost.count = 0;
}

/* True if it is to be told now. */
static bool report_add(struct report *r, uint32_t group, uint32_t block, uint32_t blocks)
{
    r->count += blocks;
    r->group = group;
    r->block = block;
    if (r->timer.heap_index != 0)
        return false;
    timer_start(&r->timer, reactor_now_ns() + REPORT_INTERVAL_NS);
    return true;
}

void group_report_repaired(const struct group *g, const struct group_member *m, uint32_t block,
                           uint32_t blocks)
{
    struct group_drive *d = m->drive;
    const struct group_set_options *o = &d->set->o;
    counter_add(&d->set->counters.blocks_repaired, blocks);
    if (o->copy_rewritten != NULL) {
        struct group_copy c = {g->purpose, g->id, d->id, m->slab, block, blocks};
        o->copy_rewritten(o->ctx, &c);
    }
    if (report_add(&d->repaired, g->id, block + blocks - 1, blocks))
        report_repaired_tell(d);
}

void group_report_lost(struct group_set *s, uint32_t group, uint32_t block, uint32_t blocks)
{
    counter_add(&s->counters.blocks_lost, blocks);
    if (report_add(&s->lost, group, block, blocks))
        report_lost_tell(s);
}

void group_report_repaired_due(struct timer *t)
{
    struct group_drive *d = CONTAINER_OF(t, struct group_drive, repaired.timer);
    if (d->repaired.count == 0)
        return;
    report_repaired_tell(d);
    timer_start(t, reactor_now_ns() + REPORT_INTERVAL_NS);
}

void group_report_lost_due(struct timer *t)
{
    struct group_set *s = CONTAINER_OF(t, struct group_set, lost.timer);
    if (s->lost.count == 0)
        return;
    report_lost_tell(s);
    timer_start(t, reactor_now_ns() + REPORT_INTERVAL_NS);
}

void group_report_end_drive(struct group_drive *d)
{
    timer_stop(&d->repaired.timer);
    if (d->repaired.count > 0)
        report_repaired_tell(d);
}

void group_report_end_set(struct group_set *s)
{
    timer_stop(&s->lost.timer);
    if (s->lost.count > 0)
        report_lost_tell(s);
}
