/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small volume that keeps the contract of group.h, many fibers at once, and drives that slow down, fail
 * writes and flushes, vanish, lose power and rot. A model knows what was acknowledged. Faults always leave
 * one clean copy of everything, so nothing may ever be wrong or missing.
 *
 *      build/tests/unit/protect/test_protect_model [FIRST_SEED COUNT]
 */
#include "cmocka_all.h"
#include "fixture.h"

#include "protect/group_internal.h"
#include "runtime/checksum.h"

#include <stdio.h>
#include <stdlib.h>

#define BLOCKS  FIXTURE_SLAB_BLOCKS
#define WORKERS 6u
#define STEPS   60u /* of each worker */
#define DRIVES  6u
#define COPIES  3u

static struct {
    struct fixture *f;
    struct group *g;
    uint64_t random;
    bool held[BLOCKS], writing[BLOCKS];
    struct waitq released;
    uint32_t version[BLOCKS]; /* acknowledged; 0: never written */
    uint64_t txg;
    uint32_t workers;
    bool repairing;
    uint64_t writes, reads, flushes, scrubs, losses, rots, repairs, replaced;
} m;

/* What all seeds did together; a fault that never happened proves nothing. */
static struct group_counters all;
static uint64_t all_losses, all_rots, all_repairs, all_replaced, all_ops;

static uint32_t draw(uint32_t below)
{
    m.random = hash_mix64(m.random + UINT64_C(0x9e3779b97f4a7c15));
    return (uint32_t)(m.random >> 33) % below;
}

/* ---- The volume's part ---- */

static void settle(void)
{
    LIST_FOREACH (&m.f->groups->drives, l) {
        struct group_drive *d = CONTAINER_OF(l, struct group_drive, link);
        if (d->failed && d->live > 0)
            group_drive_make_stale(m.f->groups, d, ++m.txg);
    }
}

static may_yield void hold(uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        while (m.held[i]) {
            int err = waitq_wait(&m.released, DEADLINE_NEVER);
            assert(err == 0);
        }
        m.held[i] = true;
    }
}

static void release(uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++)
        m.held[i] = false;
    waitq_wake_all(&m.released);
}

static void sums_of(uint32_t first, uint32_t count, uint32_t *sums)
{
    uint8_t block[BLOCK_SIZE] = {0};
    for (uint32_t i = 0; i < count; i++) {
        if (m.version[first + i] > 0)
            fill_block(block, first + i, m.version[first + i]);
        else
            memset(block, 0, sizeof(block));
        sums[i] = crc32c(0, block, BLOCK_SIZE);
    }
}

static may_yield void step_write(uint32_t first, uint32_t count)
{
    uint32_t version = m.version[first] + 1 + draw(3);
    struct page *p = fill_pages(first, count, version, NULL);
    struct iovec iov = {p->data, (size_t)count * BLOCK_SIZE};
    struct group_write w = {.group = m.g,
                            .block = first,
                            .blocks = count,
                            .iov = &iov,
                            .iov_count = 1,
                            .page = p,
                            .dsync = draw(4) == 0};
    for (uint32_t i = 0; i < count; i++)
        m.writing[first + i] = true;
    CHECK_EQ(group_write_wait(&w), 0);
    if (w.failed)
        settle();
    for (uint32_t i = 0; i < count; i++) {
        m.version[first + i] = version;
        m.writing[first + i] = false;
    }
    page_put(p, count);
    m.writes++;
}

static may_yield void step_read(uint32_t first, uint32_t count)
{
    uint32_t sums[BLOCKS];
    sums_of(first, count, sums);
    struct group_read r = {
        .group = m.g, .block = first, .blocks = count, .verify = VERIFY_BLOCKS, .sums = sums, .only = -1};
    struct page *p = NULL;
    struct iovec iov;
    bool own = draw(2) == 0;
    if (own) {
        p = fill_pages(first, count, 999999, NULL);
        iov = (struct iovec){p->data, (size_t)count * BLOCK_SIZE};
        r.iov = &iov;
        r.iov_count = 1;
        r.page = p;
    }
    CHECK_EQ(group_read(&r), 0);
    p = r.page;
    CHECK(p != NULL);
    for (uint32_t i = 0; p != NULL && i < count; i++)
        CHECK_EQ(crc32c(0, page_at(p, i)->data, BLOCK_SIZE), sums[i]);
    if (p != NULL)
        page_put(p, count);
    m.reads++;
}

static may_yield void step_scrub(uint32_t first, uint32_t count)
{
    uint32_t sums[BLOCKS];
    sums_of(first, count, sums);
    struct group_check check = {0};
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(m.g, first, count, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK(!check.lost);
    m.scrubs++;
}

static may_yield void step_flush(void)
{
    bool failed = false;
    CHECK_EQ(group_set_flush(m.f->groups, &failed), 0);
    if (failed)
        settle();
    m.flushes++;
}

/* One member that is stale: brought level where it is, or elsewhere. False: not possible now. */
static may_yield bool level_member(uint32_t member)
{
    struct group_drive *d = m.g->members[member].drive;
    int err = group_drive_usable(d) ? 0 : group_drive_reopen(m.f->groups, d);
    if (err == 0 && draw(3) > 0)
        err = group_member_fill(m.g, member);
    else
        err = group_member_replace(m.f->groups, m.g, member);
    if (err != 0)
        return false;
    m.replaced += m.g->members[member].drive != d;
    for (uint32_t b = 0; b < BLOCKS; b += 4) {
        uint32_t sums[4];
        hold(b, 4);
        sums_of(b, 4, sums);
        err = group_copy_to_member(m.g, member, b, 4, VERIFY_BLOCKS, sums);
        release(b, 4);
        settle();
        if (err != 0)
            return false;
    }
    step_flush();
    group_member_levelled(m.g, member);
    if (m.g->members[member].state != MEMBER_CURRENT)
        return false;
    CHECK_EQ(group_set_reap(m.f->groups), 0);
    m.repairs++;
    return true;
}

static may_yield void step_repair(void)
{
    if (m.repairing)
        return;
    m.repairing = true;
    settle();
    for (uint32_t i = 0; i < COPIES; i++) {
        /* A repair that was broken off left a filling member on a drive that works: it begins again. */
        if (m.g->members[i].state == MEMBER_FILLING && group_drive_usable(m.g->members[i].drive))
            group_drive_make_stale(m.f->groups, m.g->members[i].drive, ++m.txg);
        if (m.g->members[i].state == MEMBER_STALE)
            level_member(i);
    }
    m.repairing = false;
}

/* ---- Faults ---- */

static bool drive_is_well(const struct fake_drive *d)
{
    return !d->gone && d->write_error == 0 && d->flush_error == 0;
}

/* Current members whose drives have no fault, and whose copy of every block not being written is right. */
static uint32_t clean_members(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < COPIES; i++) {
        bool clean = m.g->members[i].state == MEMBER_CURRENT && group_drive_usable(m.g->members[i].drive) &&
                     drive_is_well(fixture_member(m.f, m.g, i));
        for (uint32_t b = 0; clean && b < BLOCKS; b++)
            clean = m.version[b] == 0 || m.writing[b] || copy_is(m.f, m.g, i, b, m.version[b]);
        n += clean;
    }
    return n;
}

static uint32_t sick_drives(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < DRIVES; i++)
        n += !drive_is_well(m.f->drives[i]);
    return n;
}

static void fault_break(void)
{
    struct fake_drive *d = m.f->drives[draw(DRIVES)];
    if (!drive_is_well(d) || sick_drives() > 1 || clean_members() < COPIES)
        return;
    uint32_t how = draw(4);
    if (how == 0)
        d->write_error = ERR_SYS(EIO);
    else if (how == 1)
        d->flush_error = ERR_SYS(EIO);
    else
        fake_drive_lose(d);
    m.losses++;
}

static void fault_mend(void)
{
    struct fake_drive *d = m.f->drives[draw(DRIVES)];
    if (drive_is_well(d))
        return;
    d->write_error = d->flush_error = 0;
    if (d->gone)
        fake_drive_return(d, true);
}

static void fault_rot(void)
{
    uint32_t member = draw(COPIES), block = draw(BLOCKS);
    if (m.held[block] || m.version[block] == 0 || clean_members() < 2 || m.repairing ||
        m.g->members[member].state != MEMBER_CURRENT)
        return;
    spoil(m.f, m.g, member, block);
    if (clean_members() == 0)
        spoil(m.f, m.g, member, block); /* the same again puts it right */
    else
        m.rots++;
}

static void fault_slow(void)
{
    static const uint64_t delays[] = {0, 100 * NSEC_PER_USEC, NSEC_PER_MSEC, 30 * NSEC_PER_MSEC,
                                      400 * NSEC_PER_MSEC};
    struct fake_drive *d = m.f->drives[draw(DRIVES)];
    d->read_delay_ns = delays[draw(ARRAY_SIZE(delays))];
    d->write_delay_ns = delays[draw(3)];
    d->flush_delay_ns = delays[draw(4)];
}

/* ---- The run ---- */

static may_yield void one_step(void)
{
    uint32_t first = draw(BLOCKS), count = 1 + draw(MIN(8, BLOCKS - first)), what = draw(100);
    if (what < 75) {
        hold(first, count);
        if (what < 35)
            step_write(first, count);
        else if (what < 70)
            step_read(first, count);
        else
            step_scrub(first, count);
        release(first, count);
    } else if (what < 82) {
        step_flush();
    } else if (what < 86) {
        step_repair();
    } else if (what < 89) {
        fault_break();
    } else if (what < 92) {
        fault_mend();
    } else if (what < 97) {
        fault_rot();
    } else {
        fault_slow();
    }
    if (draw(3) == 0)
        sleep_ms(draw(20));
}

static may_yield void worker(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < STEPS; i++)
        one_step();
    m.workers--;
}

static may_yield void model_body(struct fixture *f)
{
    memset(&m, 0, sizeof(m));
    m.f = f;
    m.random = f->seed;
    waitq_init(&m.released);
    m.g = fixture_create(f, 1, COPIES);
    for (uint32_t i = 0; i < WORKERS; i++) {
        m.workers++;
        int err = fiber_spawn("worker", worker, NULL);
        assert(err == 0);
    }
    while (m.workers > 0)
        sleep_ms(50);
    /* The faults end; then everything must become well again. */
    for (uint32_t i = 0; i < DRIVES; i++) {
        struct fake_drive *d = f->drives[i];
        d->write_error = d->flush_error = 0;
        if (d->gone)
            fake_drive_return(d, true);
    }
    sleep_ms(1);
    for (uint32_t i = 0; i < 20 && !group_healthy(m.g); i++)
        step_repair();
    CHECK(group_healthy(m.g));
    CHECK_EQ(group_redundancy_left(m.g), COPIES - 1);
    step_flush();
    step_scrub(0, BLOCKS);
    for (uint32_t i = 0; i < COPIES; i++) {
        for (uint32_t b = 0; b < BLOCKS; b++)
            CHECK(m.version[b] == 0 || copy_is(f, m.g, i, b, m.version[b]));
    }
    const struct group_counters *c = group_set_counters(f->groups);
    CHECK_EQ(c->blocks_lost, 0);
    all.blocks_repaired += c->blocks_repaired;
    all.hedges_won += c->hedges_won;
    all.hedged_reads += c->hedged_reads;
    all.degraded_reads += c->degraded_reads;
    all_losses += m.losses;
    all_rots += m.rots;
    all_repairs += m.repairs;
    all_replaced += m.replaced;
    all_ops += m.writes + m.reads + m.flushes + m.scrubs;
}

static uint64_t first_seed = 1, seed_count = 300;

static void nothing_acknowledged_is_lost_or_wrong_whatever_drives_do(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + seed_count; seed++)
        fixture_run_seed(DRIVES, 4, seed, model_body);
    printf(
        "%llu operations, %llu drive faults, %llu rotten copies, %llu rewritten, %llu members levelled (%llu "
        "elsewhere), %llu of %llu hedges won, %llu degraded reads\n",
        (unsigned long long)all_ops, (unsigned long long)all_losses, (unsigned long long)all_rots,
        (unsigned long long)all.blocks_repaired, (unsigned long long)all_repairs,
        (unsigned long long)all_replaced, (unsigned long long)all.hedges_won,
        (unsigned long long)all.hedged_reads, (unsigned long long)all.degraded_reads);
    if (seed_count < 100)
        return;
    assert_true(all_losses > 0 && all_rots > 0 && all_repairs > 0 && all_replaced > 0);
    assert_true(all.blocks_repaired > 0 && all.hedges_won > 0 && all.degraded_reads > 0);
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        first_seed = strtoull(argv[1], NULL, 10);
        seed_count = strtoull(argv[2], NULL, 10);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_acknowledged_is_lost_or_wrong_whatever_drives_do),
    };
    return cmocka_run_group_tests_name("protect model", tests, NULL, NULL);
}
