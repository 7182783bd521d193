/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub: reads every copy of everything that the newest root references, compares with the checksums,
 * rewrites what is wrong from a right copy, and names what is lost. Roots are looked at, too; they and the
 * log are made anew by two commits at its end: what they replace is not read any more.
 */
#include "runtime/log.h"
#include "volume/job.h"

#define SCRUB_RATE (200 * MIB)

static may_yield int scrub_visit(struct job_walk *w, const struct job_piece *p)
{
    struct group_check check = {0};
    uint64_t bad[GROUP_READ_MAX / 64] = {0};
    int r = group_scrub(p->group, p->block, p->blocks, p->verify, p->sums, &check, bad);

    if (r == ERR_GROUP_DEGRADED_BELOW) { /* its only drive is gone */
        check.lost = true;
        memset(bad, 0xff, sizeof(bad));
    } else if (r) {
        return r;
    }
    w->job->bad_copies += check.copies_bad;
    w->job->repaired_copies += check.copies_repaired;
    if (!check.lost)
        return 0;
    for (uint32_t i = 0; i < p->blocks; i++) {
        if (p->verify == VERIFY_BLOCKS && !(bad[i / 64] >> (i % 64) & 1))
            continue;
        w->job->lost_blocks++;
        if (p->verify == VERIFY_BLOCKS)
            damage_add(w->volume, p->object, p->start + i, 1);
    }
    return 0;
}

/* A tree node is gone: everything that its range may have held. Of files only data of one object can be
 * named; `ashlar check` knows what else was there. */
static void scrub_unreadable(struct job_walk *w, const struct tree_key *low, const struct tree_key *high)
{
    struct volume *v = w->volume;
    bool device = volume_is_device(v, OBJECT_BLOCK_DEVICE);
    uint64_t object = device ? OBJECT_BLOCK_DEVICE : low->object;
    uint64_t from = 0, to = device ? v->size_bytes / BLOCK_SIZE : INT64_MAX / BLOCK_SIZE;

    if (!device && (low->type != ITEM_EXTENT || high->object != object || high->type != ITEM_EXTENT)) {
        w->job->lost_blocks++;
        return;
    }
    if (low->object == object && low->type == ITEM_EXTENT)
        from = MIN(low->offset / BLOCK_SIZE, to);
    if (high->object == object && high->type == ITEM_EXTENT)
        to = MIN(DIV_ROUND_UP(high->offset, (uint64_t)BLOCK_SIZE), to);
    if (from < to) {
        damage_add(v, object, from, to - from);
        w->job->lost_blocks += to - from;
    }
}

static may_yield int scrub_run(struct volume *v)
{
    struct job_walk w = {.volume = v,
                         .job = &v->scrub,
                         .cancel = &v->scrub_cancel,
                         .visit = scrub_visit,
                         .unreadable = scrub_unreadable};
    uint64_t rate = v->scrub_rate ? v->scrub_rate : SCRUB_RATE;
    int r = volume_commit(v); /* what waits for its place goes there first */

    if (r)
        return r;
    throttle_init(&w.throttle, rate, MAX(rate / 10, 4 * MIB));
    w.birth_max = v->committed;
    v->damage_count = 0; /* found again where it is still there */
    v->damage_dropped = 0;
    uint32_t bad_roots = 0;
    r = root_scrub(v, &bad_roots);
    v->scrub.bad_copies += bad_roots;
    if (!r)
        r = job_walk_run(&w);
    for (int i = 0; !r && i < 2 && !v->read_only; i++) {
        txg_dirty(v);
        r = txg_reclaim(v);
    }
    if (!r && !v->read_only)
        v->scrub.repaired_copies += bad_roots;
    return r;
}

static may_yield void scrub_main(void *arg)
{
    struct volume *v = arg;
    int r = scrub_run(v);

    v->scrub.result = r;
    v->scrub.finished_ns = reactor_now_ns();
    v->scrub.running = false;
    enum log_level level = v->scrub.lost_blocks ? LOG_ERROR_ : v->scrub.bad_copies ? LOG_WARNING_ : LOG_INFO_;
    event_raise(level, "scrub-done", "volume %s: scrub %s: %llu bad copies, %llu repaired, %llu blocks lost",
                v->record.name, r ? error_text(r) : "ended", (unsigned long long)v->scrub.bad_copies,
                (unsigned long long)v->scrub.repaired_copies, (unsigned long long)v->scrub.lost_blocks);
    v->background--;
    waitq_wake_all(&v->background_wait);
}

int volume_scrub_start(struct volume *v, uint64_t rate_bytes_per_s)
{
    if (v->state)
        return v->state;
    if (v->scrub.running || v->closing)
        return ERR_VOLUME_BUSY;
    v->scrub_rate = rate_bytes_per_s;
    v->scrub = (struct volume_job){.running = true,
                                   .started_ns = reactor_now_ns(),
                                   .total_blocks = v->data_blocks + v->tree_nodes * NODE_BLOCKS};
    v->scrub_cancel = false;
    v->background++;
    int r = fiber_spawn("scrub", scrub_main, v);
    if (r) {
        v->scrub.running = false;
        v->background--;
    }
    return r;
}

void volume_job_cancel(struct volume *v)
{
    v->scrub_cancel = true;
    v->repair_cancel = true;
}
