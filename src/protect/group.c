/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set: one volume's drives and groups on its reactor.
 *
 * Theory
 *
 * A group spreads one run of a volume's space over slabs of distinct drives. What may be believed about a
 * copy is the member's state, and the volume alone changes it, because it alone can record the change where
 * it survives. This layer's part is never to let a miss go unseen:
 *
 *  G1  a drive that misses a write, a flush or a heal, or that goes away, is `failed` from then on, until its
 *      session is opened anew; the volume is told once (drive_failed);
 *  G2  while a failed drive has members that are not stale, every result about their groups says `failed`;
 *      so nothing is acknowledged before the volume has recorded the drive as stale (invariants 1 and 2);
 *  G3  a write is done when every member has answered, so that no late write can land in a block that was
 *      given away meanwhile;
 *  G4  bytes reach a reader only after their checksum was right (invariant 7), and nothing writes into the
 *      reader's memory once its call has returned;
 *  G5  a copy is rewritten only while the reader or scrubber that found it bad still holds the block, since
 *      a block in use is never overwritten (invariant 5) and a freed one may be given to somebody else;
 *  G6  a member's state, drive and slab change in one place (group_member_assign), which keeps the counts
 *      that flushes, leases and results are computed from;
 *  G7  a slab that was replaced is given back only when the volume says that the replacement is committed
 *      (group_set_reap): before that a crash would bring the old description back.
 *
 * The files: place.c chooses drives, codec.c the bytes of a description, write.c writes and flushes, read.c
 * verified, hedged and healing reads, repair.c scrub and catching up, report.c what operators are told.
 */
#include "protect/group_internal.h"

#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

/* ---- Drives ---- */

struct group_drive *group_set_drive_find(const struct group_set *s, struct uuid id)
{
    LIST_FOREACH (&s->drives, l) {
        struct group_drive *d = CONTAINER_OF(l, struct group_drive, link);
        if (uuid_equal(d->id, id))
            return d;
    }
    return NULL;
}

int group_set_drive_add(struct group_set *s, struct uuid id, struct group_drive **ret)
{
    assert(!uuid_is_none(id));
    struct group_drive *d = group_set_drive_find(s, id);
    if (d == NULL) {
        d = calloc(1, sizeof(*d));
        if (d == NULL)
            return ERR_NO_MEMORY;
        d->set = s;
        d->id = id;
        fmutex_init(&d->opening);
        waitq_init(&d->idle);
        group_drive_flush_init(d);
        report_init(&d->repaired, group_report_repaired_due);
        list_append(&s->drives, &d->link);
    }
    *ret = d;
    return 0;
}

struct uuid group_drive_id(const struct group_drive *d)
{
    return d->id;
}

bool group_drive_readable(const struct group_drive *d)
{
    return d->session != NULL && d->drive != NULL && drive_get_state(d->drive) == DRIVE_OK;
}

bool group_drive_present(const struct group_drive *d)
{
    return group_drive_readable(d);
}

bool group_drive_usable(const struct group_drive *d)
{
    return !d->failed && group_drive_readable(d);
}

uint64_t group_drive_incarnation(const struct group_drive *d)
{
    return d->session != NULL ? drive_session_incarnation(d->session) : 0;
}

struct drive_session *group_drive_session(const struct group_drive *d)
{
    return d->session;
}

void group_drive_fail(struct group_drive *d)
{
    if (d->failed)
        return;
    d->failed = true;
    ring_event("protect: drive failed", d->live, d->written);
    waitq_wake_all(&d->flushed);
    d->set->o.drive_failed(d->set->o.ctx, d);
}

/* Under d->opening. */
static may_yield int drive_session_start(struct group_drive *d)
{
    struct group_set *s = d->set;
    struct drive *drive = drive_set_find(s->o.drives, d->id);
    if (drive == NULL || drive_get_state(drive) != DRIVE_OK)
        return ERR_DRIVE_GONE;
    struct drive_session *session;
    int err = drive_session_open(drive, s->o.volume, s->o.epoch, s->o.generation, &session);
    if (err != 0)
        return err;
    d->drive = drive;
    d->session = session;
    d->failed = false;
    /* What an earlier process wrote may still be in the drive's cache: the first flush covers it, too. */
    d->written = ++s->write_sequence;
    d->durable = d->flush_wanted = 0;
    d->mean_ns = d->high_ns = 0;
    return 0;
}

static void drive_session_forget(struct group_drive *d)
{
    assert(d->in_flight == 0);
    if (d->session != NULL)
        drive_session_close(d->session);
    d->session = NULL;
    d->drive = NULL;
    free(d->leftovers);
    d->leftovers = NULL;
    d->leftover_count = 0;
    d->leftovers_known = false;
}

/* Under d->opening. Whoever waits for a flush or a slot sees the failure first. */
static may_yield void drive_session_end(struct group_drive *d)
{
    while (d->in_flight > 0) {
        int err = waitq_wait(&d->idle, DEADLINE_NEVER);
        assert(err == 0); /* shielded by the callers */
    }
    drive_session_forget(d);
}

int group_drive_open(struct group_set *s, struct uuid id, struct group_drive **ret_drive)
{
    struct group_drive *d;
    int err = group_set_drive_add(s, id, &d);
    if (err != 0)
        return err;
    fmutex_lock(&d->opening);
    if (group_drive_usable(d))
        err = 0;
    else if (d->failed || d->session != NULL)
        err = ERR_DRIVE_GONE; /* only group_drive_reopen brings it back */
    else
        err = drive_session_start(d);
    fmutex_unlock(&d->opening);
    *ret_drive = d;
    return err;
}

int group_drive_reopen(struct group_set *s, struct group_drive *d)
{
    assert(d->set == s);
    if (group_drive_usable(d))
        return 0;
    if (d->live > 0 && (d->failed || d->session != NULL))
        return ERR_INVALID; /* what it missed is not recorded yet */
    fiber_shield();
    fmutex_lock(&d->opening);
    int err = 0;
    if (!group_drive_usable(d)) {
        drive_session_end(d);
        err = drive_session_start(d);
    }
    fmutex_unlock(&d->opening);
    fiber_unshield();
    return err;
}

void group_drive_make_stale(struct group_set *s, struct group_drive *d, uint64_t txg)
{
    assert(d->set == s);
    /* The states tell who else has the writes that this drive lost; after this they do not any more. */
    if (group_drive_lost_writes(d) && group_set_judge_loss(s) != 0)
        s->flush_lost = true;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        struct group_entry *e = s->entries[i];
        for (uint32_t m = 0; m < e->group.member_count; m++) {
            struct group_member now = e->group.members[m];
            if (now.drive != d || now.state == MEMBER_STALE)
                continue;
            if (now.state == MEMBER_CURRENT)
                now.stale_since_txg = txg; /* a filling one lacks older things already */
            now.state = MEMBER_STALE;
            group_member_assign(e, m, &now);
        }
    }
    assert(d->live == 0);
    if (d->failed)
        d->durable = d->written; /* whatever is lost there, no current copy was */
}

/* Fails the drives that left or changed their state, and closes the sessions of those that left, whose
 * handles are about to be taken apart. True: some are still busy. Does not wait, so that no drive that hangs
 * keeps another one's failure from being seen. */
static bool set_look_round(struct group_set *s)
{
    bool busy = false;
    LIST_FOREACH (&s->drives, l) {
        struct group_drive *d = CONTAINER_OF(l, struct group_drive, link);
        if (d->session == NULL)
            continue;
        bool here = drive_set_find(s->o.drives, d->id) == d->drive;
        if (here && drive_get_state(d->drive) == DRIVE_OK)
            continue;
        group_drive_fail(d);
        if (here)
            continue;
        if (d->in_flight > 0 || d->opening.owner != NULL)
            busy = true;
        else
            drive_session_forget(d);
    }
    return busy;
}

#define WATCH_BUSY_NS (20 * NSEC_PER_MSEC)

/* Notices what happens to drives when no request would. */
static may_yield void set_watch(void *arg)
{
    struct group_set *s = arg;
    for (;;) {
        bool busy = set_look_round(s);
        uint64_t deadline = busy ? reactor_now_ns() + WATCH_BUSY_NS : DEADLINE_NEVER;
        if (waitq_wait(&s->o.drives->changed, deadline) == ERR_CANCELLED)
            return;
    }
}

/* ---- Requests ---- */

void group_drive_begin(struct group_drive *d, struct drive_io *io)
{
    assert(d->session != NULL);
    io->session = d->session;
    d->in_flight++;
    drive_submit(io);
}

/* One slow answer counts for at most this, so that a drive that hung once is believed again soon. */
#define LATENCY_SAMPLE_MAX_NS (100 * NSEC_PER_MSEC)

static void drive_latency_add(struct group_drive *d, uint64_t ns)
{
    ns = MIN(ns, LATENCY_SAMPLE_MAX_NS);
    d->mean_ns = d->mean_ns - d->mean_ns / 16 + ns / 16; /* from 0: one slow answer condemns nobody */
    if (ns > d->high_ns)
        d->high_ns += (ns - d->high_ns) / 4; /* one in a hundred holds it up against the fall */
    else
        d->high_ns -= (d->high_ns - ns) / 256;
}

void group_drive_end(struct group_drive *d, struct drive_io *io)
{
    assert(d->in_flight > 0);
    if (io->result == 0 && io->op == DRIVE_READ)
        drive_latency_add(d, reactor_now_ns() - io->submitted_ns);
    if (io->result != 0 &&
        (io->op != DRIVE_READ || io->result == ERR_DRIVE_GONE || io->result == ERR_DRIVE_FENCED))
        group_drive_fail(d);
    if (io->result == 0 && io->op == DRIVE_WRITE && !io->dsync)
        d->written = ++d->set->write_sequence;
    if (--d->in_flight == 0)
        waitq_wake_all(&d->idle);
}

struct waited_io {
    struct drive_io io;
    struct group_drive *drive;
    struct latch latch;
};

static void waited_io_done(struct drive_io *io)
{
    struct waited_io *w = io->ctx;
    group_drive_end(w->drive, io);
    latch_down(&w->latch);
}

int group_drive_do(struct group_drive *d, enum drive_op op, struct group_extent at, const struct iovec *iov,
                   uint32_t iov_count, struct page *page)
{
    if (!group_drive_readable(d))
        return ERR_DRIVE_GONE;
    struct waited_io w = {
        .io = {.op = op,
               .slab = at.slab,
               .block = at.block,
               .blocks = at.blocks,
               .iov = iov,
               .iov_count = iov_count,
               .page = iov_count == 1 ? page : NULL,
               .done = waited_io_done,
               .ctx = &w},
        .drive = d,
    };
    latch_init(&w.latch, 1);
    group_drive_begin(d, &w.io);
    latch_wait(&w.latch);
    return w.io.result;
}

/* ---- Leases (invariant 4) ---- */

static void set_count_leases(struct group_set *s)
{
    s->lease_count = 0;
    LIST_FOREACH (&s->drives, l) {
        struct group_drive *d = CONTAINER_OF(l, struct group_drive, link);
        if (d->system_current == 0)
            continue;
        assert(s->lease_count < SYSTEM_MEMBERS_MAX);
        s->lease_drives[s->lease_count++] = d;
    }
}

static bool drive_lease_lasts(const struct group_drive *d, uint64_t for_ns)
{
    return d->session != NULL && drive_session_lease_until_ns(d->session) > reactor_now_ns() + for_ns;
}

bool group_set_leases_alive(const struct group_set *s)
{
    for (uint32_t i = 0; i < s->lease_count; i++) {
        if (!drive_lease_lasts(s->lease_drives[i], 0))
            return false;
    }
    return true;
}

int group_set_leases_renew(struct group_set *s)
{
    /* The set of drives may change while one of them is asked: then begin again. */
    for (uint32_t i = 0; i < s->lease_count; i++) {
        struct group_drive *d = s->lease_drives[i];
        if (drive_lease_lasts(d, DRIVE_LEASE_NS / 2))
            continue;
        if (!group_drive_usable(d)) {
            group_drive_fail(d);
            return ERR_DRIVE_GONE;
        }
        d->in_flight++;
        int err = drive_session_renew(d->session);
        if (--d->in_flight == 0)
            waitq_wake_all(&d->idle);
        if (err == ERR_DRIVE_GONE || err == ERR_DRIVE_FENCED)
            group_drive_fail(d);
        if (err != 0)
            return err;
        if (i >= s->lease_count || s->lease_drives[i] != d)
            i = UINT32_MAX; /* wraps to 0 */
    }
    /* An answer may have taken longer than the lease that it brought. */
    return group_set_leases_alive(s) ? 0 : ERR_TIMEOUT;
}

/* ---- Groups of the set ---- */

/* Index of the first group with an id >= id. Ids are given in ascending order and seldom taken back, so the
 * place is mostly the distance from the first one. */
static uint32_t set_lower_bound(const struct group_set *s, uint32_t id)
{
    if (s->entry_count == 0 || id <= s->ids[0])
        return 0;
    uint32_t guess = id - s->ids[0];
    if (guess < s->entry_count && s->ids[guess] == id)
        return guess;
    uint32_t low = 0, high = s->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct group *group_find(const struct group_set *s, uint32_t id)
{
    uint32_t i = set_lower_bound(s, id);
    return i < s->entry_count && s->ids[i] == id ? &s->entries[i]->group : NULL;
}

struct group *group_next(const struct group_set *s, const struct group *g)
{
    uint32_t i = 0;
    if (g != NULL) {
        if (g->id == UINT32_MAX)
            return NULL;
        i = set_lower_bound(s, g->id + 1);
    }
    return i < s->entry_count ? &s->entries[i]->group : NULL;
}

static void member_count_in(struct group_entry *e, const struct group_member *m, uint32_t step)
{
    if (m->state != MEMBER_STALE)
        m->drive->live += step; /* step is 1, or -1 in modular arithmetic */
    if (m->state == MEMBER_CURRENT && e->group.purpose == GROUP_SYSTEM)
        m->drive->system_current += step;
}

void group_member_assign(struct group_entry *e, uint32_t member, const struct group_member *now)
{
    assert(member < e->group.member_count);
    assert(now->drive != NULL);
    assert((now->state == MEMBER_CURRENT) <= (now->stale_since_txg == 0));
    assert((now->slab == GROUP_SLAB_NONE) <= (now->state == MEMBER_STALE));
    member_count_in(e, &e->group.members[member], UINT32_MAX);
    e->group.members[member] = *now;
    member_count_in(e, &e->group.members[member], 1);
    if (e->group.purpose == GROUP_SYSTEM)
        set_count_leases(e->set);
}

static int set_make_room(struct group_set *s)
{
    if (s->entry_count < s->entry_room)
        return 0;
    uint32_t room = s->entry_room == 0 ? 64 : 2 * s->entry_room;
    uint32_t *ids = reallocarray(s->ids, room, sizeof(*ids));
    if (ids == NULL)
        return ERR_NO_MEMORY;
    s->ids = ids;
    struct group_entry **entries = reallocarray(s->entries, room, sizeof(struct group_entry *));
    if (entries == NULL)
        return ERR_NO_MEMORY;
    s->entries = entries;
    s->entry_room = room;
    return 0;
}

int group_set_insert(struct group_set *s, struct group_entry *e)
{
    uint32_t i = set_lower_bound(s, e->group.id);
    if (i < s->entry_count && s->ids[i] == e->group.id)
        return ERR_EXISTS;
    int err = set_make_room(s);
    if (err != 0)
        return err;
    memmove(s->ids + i + 1, s->ids + i, (s->entry_count - i) * sizeof(s->ids[0]));
    memmove(s->entries + i + 1, s->entries + i, (s->entry_count - i) * sizeof(s->entries[0]));
    s->ids[i] = e->group.id;
    s->entries[i] = e;
    s->entry_count++;
    e->set = s;
    waitq_init(&e->drained);
    for (uint32_t m = 0; m < e->group.member_count; m++)
        member_count_in(e, &e->group.members[m], 1);
    if (e->group.purpose == GROUP_SYSTEM)
        set_count_leases(s);
    return 0;
}

void group_set_remove(struct group_set *s, struct group_entry *e)
{
    uint32_t i = set_lower_bound(s, e->group.id);
    assert(i < s->entry_count);
    assert(s->entries[i] == e);
    assert(e->io_count == 0);
    for (uint32_t m = 0; m < e->group.member_count; m++)
        member_count_in(e, &e->group.members[m], UINT32_MAX);
    s->entry_count--;
    memmove(s->ids + i, s->ids + i + 1, (s->entry_count - i) * sizeof(s->ids[0]));
    memmove(s->entries + i, s->entries + i + 1, (s->entry_count - i) * sizeof(s->entries[0]));
    if (e->group.purpose == GROUP_SYSTEM)
        set_count_leases(s);
    free(e);
}

bool group_healthy(const struct group *g)
{
    for (uint32_t m = 0; m < g->member_count; m++) {
        if (g->members[m].state != MEMBER_CURRENT || !group_drive_usable(g->members[m].drive))
            return false;
    }
    return true;
}

int group_redundancy_left(const struct group *g)
{
    int copies = 0;
    for (uint32_t m = 0; m < g->member_count; m++)
        copies += g->members[m].state == MEMBER_CURRENT && group_drive_usable(g->members[m].drive);
    return copies - 1;
}

const struct group_counters *group_set_counters(const struct group_set *s)
{
    return &s->counters;
}

/* ---- The set itself ---- */

int group_set_new(const struct group_set_options *o, struct group_set **ret)
{
    assert(o->drive_failed != NULL);
    assert(o->drives != NULL);
    assert(o->slab_blocks > 0);
    struct group_set *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ERR_NO_MEMORY;
    s->o = *o;
    list_init(&s->drives);
    list_init(&s->attempts_free);
    list_init(&s->deferred);
    list_init(&s->retired);
    waitq_init(&s->idle);
    s->deferred_timer.fn = group_write_deferred;
    report_init(&s->lost, group_report_lost_due);
    int err = fiber_spawn_joinable("group-watch", set_watch, s, &s->watcher);
    if (err != 0) {
        free(s);
        return err;
    }
    *ret = s;
    return 0;
}

void group_set_free(struct group_set *s)
{
    assert(list_empty(&s->deferred));
    fiber_cancel(s->watcher);
    fiber_join(s->watcher);
    fiber_shield();
    while (s->loose_reads > 0) {
        int err = waitq_wait(&s->idle, DEADLINE_NEVER);
        assert(err == 0);
    }
    group_report_end_set(s);
    for (struct list *l; (l = list_pop(&s->drives)) != NULL;) {
        struct group_drive *d = CONTAINER_OF(l, struct group_drive, link);
        drive_session_end(d);
        group_report_end_drive(d);
        free(d->leftovers);
        free(d);
    }
    fiber_unshield();
    for (struct list *l; (l = list_pop(&s->retired)) != NULL;)
        free(CONTAINER_OF(l, struct retired_slab, link));
    for (uint32_t i = 0; i < s->entry_count; i++) {
        assert(s->entries[i]->io_count == 0);
        free(s->entries[i]);
    }
    free(s->ids);
    free(s->entries);
    group_read_pool_free(s);
    free(s);
}
