/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verified reads: choice of the copy, hedging, combining, healing.
 *
 * With more than one copy a read goes into pages of its own and is copied to the caller once its checksums
 * are right. That costs a copy in memory, and buys two things: a drive that does not answer can be left
 * alone with its pages while another copy is read (G4), and bytes that are wrong never reach the caller.
 * A caller without memory of its own (iov_count 0) is handed those pages and saves the copy. With one copy
 * left, or no page to spare, the drive reads into the caller's memory and the call waits for it.
 *
 * The steps of one read, until no block is missing:
 *   1  race: ask the best copy; when it does not answer in its usual time, ask the next one too and take
 *      what is right first; each wrong block is looked for in the next copy;
 *   2  direct: ask the copies not asked yet, one after the other, into the caller's memory;
 *   3  single blocks: copies that failed as a whole may still have some of the blocks;
 *   4  heal: rewrite what was found wrong, from the caller's memory, before the call returns (G5).
 */
#include "protect/group_internal.h"

#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/log.h"

#include <stdlib.h>

#define HEDGE_AFTER_MIN_NS (5 * NSEC_PER_MSEC)
#define HEDGE_AFTER_FACTOR 4u
#define HEDGES_MAX         64u /* at a time: when everything is slow, asking twice makes it worse */
#define ATTEMPTS_KEPT_MAX  64u
#define SLOW_FACTOR        4u  /* a copy this much slower than the best is asked last … */
#define SLOW_PROBE_EVERY   64u /* … but for one read in so many, which sees whether it recovered */

struct read_job;

/* One copy asked, into pages of its own. Belongs to the job until the job returns; an unanswered one then
 * belongs to nobody ("loose") and frees itself when its answer comes. */
struct read_attempt {
    struct list link; /* read_job.asked, or group_set.attempts_free */
    struct drive_io io;
    struct iovec iov;
    struct group_set *set;
    struct group_drive *drive;
    struct read_job *job; /* NULL: loose */
    struct page *pages;
    uint32_t member, first, blocks;
    bool hedge, answered;
};

struct read_job {
    struct group_read *r;
    struct group_entry *e;
    struct fiber *fiber;
    struct page *given; /* pages that become the caller's; NULL: the caller's vector is the destination */
    struct list asked;
    uint32_t flying;
    uint32_t order_count, order_next;
    uint8_t order[GROUP_MEMBERS_MAX];
    uint32_t failed_io; /* bits of members: the drive answered, but with an error for the whole range */
    bool answered;      /* some drive answered with bytes or an error of its own, not "gone" */
    uint64_t missing[BITS_WORDS];
    uint64_t bad_on[GROUP_MEMBERS_MAX][BITS_WORDS];
};

/* ---- Where the caller's blocks are ---- */

/* Memory of block i, and how many blocks lie in one piece from there on. */
static uint8_t *job_at(const struct read_job *j, uint32_t i, uint32_t *ret_run)
{
    if (j->given != NULL) {
        *ret_run = j->r->blocks - i;
        return page_at(j->given, i)->data;
    }
    uint64_t skip = (uint64_t)i * BLOCK_SIZE;
    for (uint32_t k = 0; k < j->r->iov_count; k++) {
        const struct iovec *v = &j->r->iov[k];
        if (skip < v->iov_len) {
            *ret_run = (uint32_t)((v->iov_len - skip) / BLOCK_SIZE);
            return (uint8_t *)v->iov_base + skip;
        }
        skip -= v->iov_len;
    }
    assert(!"block within the vector");
    return NULL;
}

static void job_copy_in(struct read_job *j, uint32_t first, uint32_t count, const uint8_t *from)
{
    while (count > 0) {
        uint32_t run;
        uint8_t *to = job_at(j, first, &run);
        run = MIN(run, count);
        memcpy(to, from, (size_t)run * BLOCK_SIZE);
        from += (size_t)run * BLOCK_SIZE;
        first += run;
        count -= run;
    }
}

/* What could not be had is zeroes, so that no wrong byte leaves by accident. */
static void job_zero_missing(struct read_job *j)
{
    for (uint32_t i = 0; i < j->r->blocks; i++) {
        uint32_t run;
        if (bits_get(j->missing, i))
            memset(job_at(j, i, &run), 0, BLOCK_SIZE);
    }
}

/* The first run of set bits at or after i, no longer than max. False: none. */
static bool bits_run(const uint64_t *b, uint32_t i, uint32_t count, uint32_t max, uint32_t *ret_first,
                     uint32_t *ret_len)
{
    while (i < count && !bits_get(b, i))
        i++;
    if (i >= count)
        return false;
    uint32_t n = 1;
    while (n < max && i + n < count && bits_get(b, i + n))
        n++;
    *ret_first = i;
    *ret_len = n;
    return true;
}

/* ---- Verification ---- */

static bool job_is_whole(const struct read_job *j)
{
    return j->r->verify != VERIFY_BLOCKS;
}

/* Marks what is right of [first, first+count), read from member m, at `bytes`, as found. Returns true if all
 * of it is right (then nothing else may be copied but everything). */
static bool job_judge(struct read_job *j, uint32_t m, uint32_t first, uint32_t count, const uint8_t *bytes,
                      uint64_t *right)
{
    const struct group_read *r = j->r;
    memset(right, 0, BITS_WORDS * sizeof(*right));
    if (r->verify == VERIFY_NONE ||
        (r->verify == VERIFY_WHOLE && crc32c(0, bytes, (size_t)count * BLOCK_SIZE) == r->sums[0])) {
        bits_fill(right, count);
        return true;
    }
    bool all = r->verify == VERIFY_BLOCKS;
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (r->verify == VERIFY_BLOCKS &&
            crc32c(0, bytes + (size_t)i * BLOCK_SIZE, BLOCK_SIZE) == r->sums[first + i]) {
            bits_set(right, i);
            continue;
        }
        all = false;
        wrong++;
        bits_set(j->bad_on[m], first + i);
    }
    counter_add(&j->e->set->counters.checksum_errors, wrong);
    return all;
}

static void job_found(struct read_job *j, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++)
        bits_clear(j->missing, i);
}

/* Takes what is right and still missing out of bytes that a copy answered with. */
static void job_take(struct read_job *j, uint32_t m, uint32_t first, uint32_t count, const uint8_t *bytes)
{
    uint64_t right[BITS_WORDS];
    if (job_judge(j, m, first, count, bytes, right)) {
        bool all_missing = true;
        for (uint32_t i = first; all_missing && i < first + count; i++)
            all_missing = bits_get(j->missing, i);
        if (all_missing) {
            job_copy_in(j, first, count, bytes);
            job_found(j, first, count);
            return;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!bits_get(right, i) || !bits_get(j->missing, first + i))
            continue;
        job_copy_in(j, first + i, 1, bytes + (size_t)i * BLOCK_SIZE);
        job_found(j, first + i, 1);
    }
}

/* The same for bytes that the drive put where they belong: nothing to copy. */
static void job_take_in_place(struct read_job *j, uint32_t m, uint32_t first, uint32_t count)
{
    const struct group_read *r = j->r;
    uint64_t right[BITS_WORDS];
    if (r->verify == VERIFY_WHOLE) {
        uint32_t sum = 0, run;
        for (uint32_t i = 0; i < count; i += run) {
            const uint8_t *bytes = job_at(j, i, &run);
            run = MIN(run, count - i);
            sum = crc32c(sum, bytes, (size_t)run * BLOCK_SIZE);
        }
        if (sum == r->sums[0]) {
            job_found(j, first, count);
        } else {
            bits_fill(j->bad_on[m], count);
            counter_add(&j->e->set->counters.checksum_errors, count);
        }
        return;
    }
    for (uint32_t i = first, run; i < first + count; i += run) {
        const uint8_t *bytes = job_at(j, i, &run);
        run = MIN(run, first + count - i);
        job_judge(j, m, i, run, bytes, right);
        for (uint32_t k = 0; k < run; k++) {
            if (bits_get(right, k))
                bits_clear(j->missing, i + k);
        }
    }
}

/* What an answer with an error says about the member. */
static void job_note_error(struct read_job *j, uint32_t m, int err)
{
    if (err == ERR_DRIVE_GONE || err == ERR_DRIVE_FENCED)
        return;
    j->answered = true;
    j->failed_io |= 1u << m;
}

/* ---- Which copy first ---- */

struct choice {
    uint32_t rank, depth, turn;
};

static bool choice_before(struct choice a, struct choice b)
{
    if (a.rank != b.rank)
        return a.rank < b.rank;
    if (a.depth != b.depth)
        return a.depth < b.depth;
    return a.turn < b.turn;
}

static bool member_readable(const struct group_member *m)
{
    return m->state == MEMBER_CURRENT && group_drive_readable(m->drive);
}

/* Least requests under way first; equals take turns. Slow ones, and drives that failed a write, last. */
static void job_choose(struct read_job *j)
{
    const struct group *g = &j->e->group;
    if (j->r->only >= 0) {
        assert((uint32_t)j->r->only < g->member_count);
        if (group_drive_readable(g->members[j->r->only].drive))
            j->order[j->order_count++] = (uint8_t)j->r->only;
        return;
    }
    struct choice chosen[GROUP_MEMBERS_MAX];
    uint64_t best_mean = UINT64_MAX;
    uint32_t rotor = j->e->rotor++;
    for (uint32_t m = 0; m < g->member_count; m++) {
        if (member_readable(&g->members[m]) && g->members[m].drive->mean_ns > 0) /* 0: not known yet */
            best_mean = MIN(best_mean, g->members[m].drive->mean_ns);
    }
    for (uint32_t m = 0; m < g->member_count; m++) {
        const struct group_drive *d = g->members[m].drive;
        if (!member_readable(&g->members[m]))
            continue;
        bool slow = d->mean_ns > HEDGE_AFTER_MIN_NS && d->mean_ns / SLOW_FACTOR > best_mean &&
                    rotor % SLOW_PROBE_EVERY != 0;
        struct choice c = {.rank = d->failed ? 2 : slow,
                           .depth = drive_queue_depth(d->drive),
                           .turn = (m + rotor) % g->member_count};
        uint32_t at = j->order_count++;
        for (; at > 0 && choice_before(c, chosen[at - 1]); at--) {
            chosen[at] = chosen[at - 1];
            j->order[at] = j->order[at - 1];
        }
        chosen[at] = c;
        j->order[at] = (uint8_t)m;
    }
    if (j->order_count < g->member_count)
        counter_add(&j->e->set->counters.degraded_reads, 1);
}

/* ---- Attempts ---- */

static struct read_attempt *attempt_get(struct group_set *s)
{
    struct list *l = list_pop(&s->attempts_free);
    if (l != NULL) {
        s->attempts_kept--;
        return CONTAINER_OF(l, struct read_attempt, link);
    }
    return malloc(sizeof(struct read_attempt));
}

static void attempt_put(struct read_attempt *a)
{
    struct group_set *s = a->set;
    if (a->hedge) {
        assert(s->hedges_now > 0);
        s->hedges_now--;
    }
    if (a->pages != NULL)
        page_put(a->pages, a->blocks);
    if (s->attempts_kept == ATTEMPTS_KEPT_MAX) {
        free(a);
        return;
    }
    s->attempts_kept++;
    list_prepend(&s->attempts_free, &a->link);
}

void group_read_pool_free(struct group_set *s)
{
    for (struct list *l; (l = list_pop(&s->attempts_free)) != NULL;)
        free(CONTAINER_OF(l, struct read_attempt, link));
}

static void attempt_done(struct drive_io *io)
{
    struct read_attempt *a = io->ctx;
    group_drive_end(a->drive, io);
    if (a->job != NULL) {
        a->answered = true;
        fiber_wake(a->job->fiber);
        return;
    }
    struct group_set *s = a->set;
    attempt_put(a);
    assert(s->loose_reads > 0);
    if (--s->loose_reads == 0)
        waitq_wake_all(&s->idle);
}

/* Passes over copies that may not be read any more since they were chosen. */
static bool job_has_next(struct read_job *j)
{
    for (; j->order_next < j->order_count; j->order_next++) {
        const struct group_member *m = &j->e->group.members[j->order[j->order_next]];
        if (member_readable(m) || (j->r->only >= 0 && group_drive_readable(m->drive)))
            return true;
    }
    return false;
}

/* Asks the next copy for everything from the first to the last missing block. */
static int job_ask(struct read_job *j, bool hedge)
{
    struct group_set *s = j->e->set;
    if (!job_has_next(j))
        return ERR_DRIVE_GONE;
    uint32_t first = 0, last = j->r->blocks - 1;
    if (!job_is_whole(j)) {
        while (!bits_get(j->missing, first))
            first++;
        while (!bits_get(j->missing, last))
            last--;
    }
    struct read_attempt *a = attempt_get(s);
    if (a == NULL)
        return ERR_NO_MEMORY;
    uint32_t m = j->order[j->order_next];
    const struct group_member *member = &j->e->group.members[m];
    *a = (struct read_attempt){
        .set = s, .drive = member->drive, .job = j, .member = m, .first = first, .blocks = last - first + 1};
    int err = page_alloc(a->blocks, &a->pages);
    if (err != 0) {
        a->pages = NULL;
        attempt_put(a);
        return err;
    }
    j->order_next++;
    a->hedge = hedge;
    s->hedges_now += hedge;
    a->iov = (struct iovec){a->pages->data, (size_t)a->blocks * BLOCK_SIZE};
    a->io = (struct drive_io){.op = DRIVE_READ,
                              .slab = member->slab,
                              .block = j->r->block + first,
                              .blocks = a->blocks,
                              .iov = &a->iov,
                              .iov_count = 1,
                              .page = a->pages,
                              .done = attempt_done,
                              .ctx = a};
    list_append(&j->asked, &a->link);
    j->flying++;
    group_drive_begin(a->drive, &a->io);
    return 0;
}

/* Takes what the answered attempt brought. */
static void job_absorb(struct read_job *j, struct read_attempt *a)
{
    list_remove(&a->link);
    j->flying--;
    if (a->io.result != 0) {
        job_note_error(j, a->member, a->io.result);
        attempt_put(a);
        return;
    }
    j->answered = true;
    uint32_t before = bits_count(j->missing);
    if (j->r->iov_count == 0 && j->given == NULL) {
        /* The first pages that come are the ones that the caller gets; they hold the whole range, since
         * nothing was found before. */
        assert(a->blocks == j->r->blocks);
        uint64_t right[BITS_WORDS];
        job_judge(j, a->member, 0, a->blocks, a->pages->data, right);
        for (uint32_t i = 0; i < a->blocks; i++) {
            if (bits_get(right, i))
                bits_clear(j->missing, i);
        }
        j->given = a->pages;
        a->pages = NULL;
    } else {
        job_take(j, a->member, a->first, a->blocks, a->pages->data);
    }
    if (a->hedge && bits_count(j->missing) < before)
        counter_add(&a->set->counters.hedges_won, 1);
    attempt_put(a);
}

static struct read_attempt *job_answered(struct read_job *j)
{
    LIST_FOREACH (&j->asked, l) {
        struct read_attempt *a = CONTAINER_OF(l, struct read_attempt, link);
        if (a->answered)
            return a;
    }
    return NULL;
}

/* When the copy that was asked last should have answered. */
static uint64_t job_hedge_at(const struct read_job *j)
{
    if (j->order_next == j->order_count || j->e->set->hedges_now >= HEDGES_MAX)
        return DEADLINE_NEVER;
    const struct read_attempt *a = CONTAINER_OF(j->asked.prev, struct read_attempt, link);
    return a->io.submitted_ns + MAX(HEDGE_AFTER_MIN_NS, HEDGE_AFTER_FACTOR * a->drive->high_ns);
}

/* Step 1. What is still under way at the end goes on without us. */
static may_yield void job_race(struct read_job *j)
{
    bool may_hedge = true;
    while (bits_any(j->missing)) {
        if (j->flying == 0 && (j->order_next == j->order_count || job_ask(j, false) != 0))
            break;
        struct read_attempt *a = job_answered(j);
        if (a != NULL) {
            job_absorb(j, a);
            continue;
        }
        int err = fiber_park(may_hedge ? job_hedge_at(j) : DEADLINE_NEVER);
        if (err != ERR_TIMEOUT || job_answered(j) != NULL || job_hedge_at(j) == DEADLINE_NEVER)
            continue;
        may_hedge = job_ask(j, true) == 0;
        if (may_hedge)
            counter_add(&j->e->set->counters.hedged_reads, 1);
    }
    for (struct list *l; (l = list_pop(&j->asked)) != NULL;) {
        struct read_attempt *a = CONTAINER_OF(l, struct read_attempt, link);
        if (a->answered) {
            attempt_put(a);
            continue;
        }
        a->job = NULL;
        a->set->loose_reads++;
    }
}

/* ---- Without pages of our own ---- */

static may_yield int job_read_vector(struct read_job *j, uint32_t m)
{
    const struct group_member *member = &j->e->group.members[m];
    const struct group_read *r = j->r;
    struct iovec one;
    const struct iovec *iov = r->iov;
    uint32_t iov_count = r->iov_count;
    if (j->given != NULL) {
        one = (struct iovec){j->given->data, (size_t)r->blocks * BLOCK_SIZE};
        iov = &one;
        iov_count = 1;
    }
    return group_drive_do(member->drive, DRIVE_READ, (struct group_extent){member->slab, r->block, r->blocks},
                          iov, iov_count, j->given != NULL ? j->given : r->page);
}

/* Reads what is missing from a member to where it belongs, in runs of at most max blocks. */
static may_yield void job_read_direct(struct read_job *j, uint32_t m, uint32_t max)
{
    const struct group_member *member = &j->e->group.members[m];
    const struct group_read *r = j->r;
    if (job_is_whole(j) || (max >= r->blocks && bits_count(j->missing) == r->blocks)) {
        int err = job_read_vector(j, m);
        if (err != 0) {
            job_note_error(j, m, err);
            return;
        }
        j->answered = true;
        job_take_in_place(j, m, 0, r->blocks);
        return;
    }
    uint32_t first, len, run;
    for (uint32_t i = 0; bits_run(j->missing, i, r->blocks, max, &first, &len); i = first + len) {
        struct iovec iov = {.iov_base = job_at(j, first, &run)};
        len = MIN(len, run);
        iov.iov_len = (size_t)len * BLOCK_SIZE;
        int err = group_drive_do(member->drive, DRIVE_READ,
                                 (struct group_extent){member->slab, r->block + first, len}, &iov, 1, NULL);
        if (err == ERR_DRIVE_GONE || err == ERR_DRIVE_FENCED)
            return;
        if (err != 0) {
            job_note_error(j, m, err);
            continue;
        }
        j->answered = true;
        job_take_in_place(j, m, first, len);
    }
}

/* ---- Healing ---- */

/* Rewrites blocks of one member from the caller's memory, which holds them verified. */
static may_yield void job_heal_member(struct read_job *j, uint32_t m, const uint64_t *which)
{
    struct group_entry *e = j->e;
    const struct group_read *r = j->r;
    const struct group_member before = e->group.members[m];
    uint32_t first, len, run;
    for (uint32_t i = 0; bits_run(which, i, r->blocks, r->blocks, &first, &len); i = first + len) {
        const struct group_member *member = &e->group.members[m];
        if (member->state != MEMBER_CURRENT || member->drive != before.drive || member->slab != before.slab ||
            !group_drive_usable(member->drive))
            return;
        struct iovec iov = {.iov_base = job_at(j, first, &run)};
        len = MIN(len, run);
        iov.iov_len = (size_t)len * BLOCK_SIZE;
        e->writing[m]++;
        int err = group_drive_do(member->drive, DRIVE_WRITE,
                                 (struct group_extent){member->slab, r->block + first, len}, &iov, 1,
                                 j->given != NULL ? page_at(j->given, first) : NULL);
        if (--e->writing[m] == 0)
            waitq_wake_all(&e->drained);
        if (err != 0)
            return; /* the drive is failed now, and the volume knows */
        group_report_repaired(&e->group, &before, r->block + first, len);
    }
}

static may_yield void job_heal(struct read_job *j)
{
    if (j->r->verify == VERIFY_NONE || j->r->only >= 0)
        return;
    for (uint32_t m = 0; m < j->e->group.member_count; m++) {
        uint64_t which[BITS_WORDS];
        bool any = false;
        uint64_t all[BITS_WORDS];
        bits_fill(all, j->r->blocks);
        for (uint32_t w = 0; w < BITS_WORDS; w++) {
            /* Of a range that could not be read as a whole, every block is rewritten: the drive does not say
             * which one it lost. */
            which[w] = ((j->failed_io & (1u << m)) != 0 ? all[w] : j->bad_on[m][w]) & ~j->missing[w];
            any |= which[w] != 0;
        }
        if (any)
            job_heal_member(j, m, which);
    }
}

/* ---- The read ---- */

static may_yield void job_find(struct read_job *j)
{
    if (j->order_count > 1 || j->r->iov_count == 0)
        job_race(j);
    if (bits_any(j->missing) && j->r->iov_count == 0 && j->given == NULL && j->order_count > 0) {
        /* No copy came in one piece, or there was no memory: now we wait for it. */
        if (page_alloc_wait(j->r->blocks, DEADLINE_NEVER, &j->given) != 0)
            return;
    }
    while (bits_any(j->missing) && job_has_next(j))
        job_read_direct(j, j->order[j->order_next++], GROUP_READ_MAX);
    if (job_is_whole(j) || j->r->blocks == 1)
        return;
    for (uint32_t m = 0; m < j->e->group.member_count && bits_any(j->missing); m++) {
        if ((j->failed_io & (1u << m)) != 0 && group_drive_readable(j->e->group.members[m].drive))
            job_read_direct(j, m, 1);
    }
}

static int job_result(struct read_job *j, bool report)
{
    struct group_read *r = j->r;
    if (!bits_any(j->missing)) {
        if (j->given != NULL)
            r->page = j->given;
        return 0;
    }
    memcpy(r->bad, j->missing, sizeof(r->bad));
    if (!j->answered) {
        if (j->given != NULL)
            page_put(j->given, r->blocks);
        else if (r->iov_count > 0)
            job_zero_missing(j);
        return ERR_GROUP_DEGRADED_BELOW;
    }
    if (report && r->verify != VERIFY_NONE && r->only < 0) {
        uint32_t first, len;
        if (bits_run(j->missing, 0, r->blocks, r->blocks, &first, &len))
            group_report_lost(j->e->set, j->e->group.id, r->block + first, bits_count(j->missing));
    }
    if (j->given != NULL)
        r->page = j->given;
    if (j->given != NULL || r->iov_count > 0)
        job_zero_missing(j);
    return ERR_NO_GOOD_COPY;
}

int group_read(struct group_read *r)
{
    return group_read_and(r, true);
}

int group_read_and(struct group_read *r, bool report_lost)
{
    struct group_entry *e = group_entry_of(r->group);
    assert(r->blocks >= 1);
    assert(r->blocks <= GROUP_READ_MAX);
    assert(r->block < e->group.blocks);
    assert(r->blocks <= e->group.blocks - r->block);
    assert(r->verify == VERIFY_NONE || r->sums != NULL);
    assert(r->iov_count != 1 || r->iov[0].iov_len == (size_t)r->blocks * BLOCK_SIZE);
    struct read_job j = {.r = r, .e = e, .fiber = fiber_self()};
    list_init(&j.asked);
    bits_fill(j.missing, r->blocks);
    memset(r->bad, 0, sizeof(r->bad));
    if (r->iov_count == 0)
        r->page = NULL;
    e->io_count++;
    fiber_shield(); /* what a drive was asked for must be answered before the memory goes */
    job_choose(&j);
    job_find(&j);
    job_heal(&j);
    fiber_unshield();
    e->io_count--;
    return job_result(&j, report_lost);
}
