/* SPDX-License-Identifier: Apache-2.0 */
/* Verified reads: never a wrong byte, healing, hedging, choice of the copy. */
#include "cmocka_all.h"
#include "fixture.h"

#include "protect/group_internal.h"
#include "runtime/checksum.h"
#include "runtime/log.h"

#include <stdlib.h>

/* ---- Ways to ask ---- */

enum way { WAY_VECTOR, WAY_PIECES, WAY_PAGES, WAY_NO_MEMORY, WAY_COUNT };

static bool no_memory;
static bool fail_alloc(void *ctx)
{
    return no_memory;
}

struct asked {
    struct group_read r;
    struct page *memory;
    struct iovec iov[GROUP_READ_MAX];
    uint32_t sums[GROUP_READ_MAX];
    int err;
};

static uint8_t *asked_at(const struct asked *a, enum way way, uint32_t i)
{
    if (way == WAY_PAGES)
        return page_at(a->r.page, i)->data;
    return page_at(a->memory, way == WAY_PIECES ? a->r.blocks - 1 - i : i)->data;
}

static may_yield void ask(struct asked *a, struct group *g, uint32_t first, uint32_t count, enum verify v,
                          const uint32_t *sums, enum way way)
{
    *a = (struct asked){
        .r = {.group = g, .block = first, .blocks = count, .verify = v, .sums = sums, .only = -1}};
    memory_set_failure(reactor_memory(reactor_current()), fail_alloc, NULL);
    int err = page_alloc(count, &a->memory);
    assert(err == 0);
    memset(a->memory->data, 0xa5, (size_t)count * BLOCK_SIZE);
    if (way == WAY_PIECES) {
        a->r.iov_count = count;
        for (uint32_t i = 0; i < count; i++) /* backwards, so that no two are neighbours */
            a->iov[i] = (struct iovec){asked_at(a, way, i), BLOCK_SIZE};
    } else if (way != WAY_PAGES) {
        a->iov[0] = (struct iovec){a->memory->data, (size_t)count * BLOCK_SIZE};
        a->r.iov_count = 1;
        a->r.page = a->memory;
    }
    if (way != WAY_PAGES)
        a->r.iov = a->iov;
    no_memory = way == WAY_NO_MEMORY;
    a->err = group_read(&a->r);
    no_memory = false;
}

static void asked_end(struct asked *a, enum way way)
{
    page_put(a->memory, a->r.blocks);
    if (way == WAY_PAGES && a->r.page != NULL)
        page_put(a->r.page, a->r.blocks);
}

static bool block_is(const uint8_t *at, uint32_t block, uint32_t version)
{
    uint8_t expect[BLOCK_SIZE];
    fill_block(expect, block, version);
    return memcmp(at, expect, BLOCK_SIZE) == 0;
}
static bool block_is_zero(const uint8_t *at)
{
    static const uint8_t zero[BLOCK_SIZE];
    return memcmp(at, zero, BLOCK_SIZE) == 0;
}

/* ---- Never a wrong byte ---- */

#define EXHAUSTIVE_BLOCKS 4u
#define EXHAUSTIVE_COPIES 3u

static void exhaustive_spoil(struct fixture *f, const struct group *g, uint32_t pattern)
{
    for (uint32_t m = 0; m < EXHAUSTIVE_COPIES; m++) {
        for (uint32_t b = 0; b < EXHAUSTIVE_BLOCKS; b++) {
            uint8_t *at = fake_drive_block(fixture_member(f, g, m), g->members[m].slab, b);
            fill_block(at, b, 1);
            if (pattern & (1u << (m * EXHAUSTIVE_BLOCKS + b)))
                spoil(f, g, m, b);
        }
    }
}

static bool pattern_lost(uint32_t pattern, uint32_t b)
{
    bool good = false;
    for (uint32_t m = 0; m < EXHAUSTIVE_COPIES; m++)
        good |= (pattern & (1u << (m * EXHAUSTIVE_BLOCKS + b))) == 0;
    return !good;
}

static may_yield void exhaustive_one(struct fixture *f, struct group *g, uint32_t pattern,
                                     const uint32_t *sums, enum way way)
{
    exhaustive_spoil(f, g, pattern);
    struct asked a;
    ask(&a, g, 0, EXHAUSTIVE_BLOCKS, VERIFY_BLOCKS, sums, way);
    bool lost_any = false;
    for (uint32_t b = 0; b < EXHAUSTIVE_BLOCKS; b++) {
        bool lost = pattern_lost(pattern, b);
        lost_any |= lost;
        CHECK_EQ(bits_get(a.r.bad, b), lost);
        if (way == WAY_PAGES && a.r.page == NULL)
            continue;
        if (lost)
            CHECK(block_is_zero(asked_at(&a, way, b)));
        else
            CHECK(block_is(asked_at(&a, way, b), b, 1));
    }
    CHECK_EQ(a.err, lost_any ? ERR_NO_GOOD_COPY : 0);
    CHECK(way != WAY_PAGES || a.r.page != NULL);
    asked_end(&a, way);
    /* Scrub finds what the read did not come by; then all copies are right but the lost ones. */
    struct group_check check;
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 0, EXHAUSTIVE_BLOCKS, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK_EQ(check.lost, lost_any);
    CHECK_EQ(check.copies_checked, EXHAUSTIVE_COPIES * EXHAUSTIVE_BLOCKS);
    for (uint32_t m = 0; m < EXHAUSTIVE_COPIES; m++) {
        for (uint32_t b = 0; b < EXHAUSTIVE_BLOCKS; b++)
            CHECK_EQ(copy_is(f, g, m, b, 1), !pattern_lost(pattern, b));
    }
}

FIXTURE_TEST(read_never_returns_wrong_bytes_whatever_copies_are_bad, 3, 4)
{
    struct group *g = fixture_create(f, 1, EXHAUSTIVE_COPIES);
    uint32_t sums[EXHAUSTIVE_BLOCKS];
    fixture_write(g, 0, EXHAUSTIVE_BLOCKS, 1, sums);
    for (uint32_t way = 0; way < WAY_COUNT; way++) {
        for (uint32_t p = 0; p < 1u << (EXHAUSTIVE_COPIES * EXHAUSTIVE_BLOCKS); p++)
            exhaustive_one(f, g, p, sums, (enum way)way);
    }
    CHECK_EQ(f->failures, 0);
}

FIXTURE_TEST(read_of_a_whole_node_takes_only_a_whole_copy, 3, 4)
{
    struct group *g = fixture_create(f, 1, EXHAUSTIVE_COPIES);
    fixture_write(g, 0, EXHAUSTIVE_BLOCKS, 1, NULL);
    struct page *p = fill_pages(0, EXHAUSTIVE_BLOCKS, 1, NULL);
    uint32_t sum = crc32c(0, p->data, EXHAUSTIVE_BLOCKS * BLOCK_SIZE);
    page_put(p, EXHAUSTIVE_BLOCKS);
    for (uint32_t way = 0; way < WAY_COUNT; way++) {
        for (uint32_t pattern = 0; pattern < 1u << 12; pattern++) {
            exhaustive_spoil(f, g, pattern);
            bool whole = false;
            for (uint32_t m = 0; m < EXHAUSTIVE_COPIES; m++)
                whole |= ((pattern >> (m * EXHAUSTIVE_BLOCKS)) & 0xf) == 0;
            struct asked a;
            ask(&a, g, 0, EXHAUSTIVE_BLOCKS, VERIFY_WHOLE, &sum, (enum way)way);
            CHECK_EQ(a.err, whole ? 0 : ERR_NO_GOOD_COPY);
            for (uint32_t b = 0; b < EXHAUSTIVE_BLOCKS; b++) {
                if (whole)
                    CHECK(block_is(asked_at(&a, (enum way)way, b), b, 1));
                else
                    CHECK(block_is_zero(asked_at(&a, (enum way)way, b)));
            }
            asked_end(&a, (enum way)way);
        }
    }
}

FIXTURE_TEST(single_copy_with_a_bad_block_reads_the_others, 1, 4)
{
    struct group *g = fixture_create(f, 1, 1);
    uint32_t sums[8];
    fixture_write(g, 0, 8, 1, sums);
    spoil(f, g, 0, 3);
    for (uint32_t way = 0; way < WAY_COUNT; way++) {
        struct asked a;
        ask(&a, g, 0, 8, VERIFY_BLOCKS, sums, (enum way)way);
        CHECK_EQ(a.err, ERR_NO_GOOD_COPY);
        for (uint32_t b = 0; b < 8; b++) {
            CHECK_EQ(bits_get(a.r.bad, b), b == 3);
            if (b == 3)
                CHECK(block_is_zero(asked_at(&a, (enum way)way, b)));
            else
                CHECK(block_is(asked_at(&a, (enum way)way, b), b, 1));
        }
        asked_end(&a, (enum way)way);
    }
    CHECK_EQ(group_set_counters(f->groups)->blocks_lost, WAY_COUNT);
    CHECK_EQ(f->drives[0]->writes, 1); /* nothing to heal from */
}

FIXTURE_TEST(unreadable_sector_costs_only_its_own_block, 1, 4)
{
    struct group *g = fixture_create(f, 1, 1);
    uint32_t sums[8];
    fixture_write(g, 0, 8, 1, sums);
    struct fake_drive *d = f->drives[0];
    d->read_error = ERR_SYS(EIO);
    d->bad_slab = g->members[0].slab;
    d->bad_block_from = 5;
    d->bad_block_to = 6;
    for (uint32_t way = 0; way < WAY_COUNT; way++) {
        struct asked a;
        ask(&a, g, 0, 8, VERIFY_BLOCKS, sums, (enum way)way);
        CHECK_EQ(a.err, ERR_NO_GOOD_COPY);
        for (uint32_t b = 0; b < 8; b++) {
            CHECK_EQ(bits_get(a.r.bad, b), b == 5);
            if (b != 5)
                CHECK(block_is(asked_at(&a, (enum way)way, b), b, 1));
        }
        asked_end(&a, (enum way)way);
    }
    CHECK_EQ(f->failures, 0); /* an unreadable sector is no failed drive */
}

FIXTURE_TEST(unreadable_range_is_read_elsewhere_and_rewritten, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[8];
    fixture_write(g, 0, 8, 1, sums);
    struct fake_drive *d = fixture_member(f, g, 0);
    d->read_error = ERR_SYS(EIO);
    d->bad_slab = g->members[0].slab;
    d->bad_block_from = 5;
    d->bad_block_to = 6;
    for (uint32_t i = 0; i < 2; i++) {
        struct asked a;
        ask(&a, g, 0, 8, VERIFY_BLOCKS, sums, WAY_VECTOR);
        CHECK_EQ(a.err, 0);
        CHECK(block_is(asked_at(&a, WAY_VECTOR, 5), 5, 1));
        asked_end(&a, WAY_VECTOR);
    }
    CHECK_EQ(d->writes, 2);
    CHECK_EQ(group_set_counters(f->groups)->blocks_repaired, 8);
}

FIXTURE_TEST(each_copy_with_another_unreadable_block_still_gives_all, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[8];
    fixture_write(g, 0, 8, 1, sums);
    for (uint32_t m = 0; m < 2; m++) {
        struct fake_drive *d = fixture_member(f, g, m);
        d->read_error = ERR_SYS(EIO);
        d->bad_slab = g->members[m].slab;
        d->bad_block_from = m == 0 ? 1 : 6;
        d->bad_block_to = d->bad_block_from + 1;
    }
    for (uint32_t way = 0; way < WAY_COUNT; way++) {
        struct asked a;
        ask(&a, g, 0, 8, VERIFY_BLOCKS, sums, (enum way)way);
        CHECK_EQ(a.err, 0);
        for (uint32_t b = 0; b < 8; b++)
            CHECK(block_is(asked_at(&a, (enum way)way, b), b, 1));
        asked_end(&a, (enum way)way);
    }
}

/* ---- Healing ---- */

FIXTURE_TEST(bad_copies_are_healed_before_the_read_returns, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[16];
    fixture_write(g, 0, 16, 1, sums);
    for (uint32_t b = 0; b < 16; b += 3)
        spoil(f, g, b % 2, b);
    for (uint32_t i = 0; i < 2; i++) { /* each copy is asked first once */
        struct asked a;
        ask(&a, g, 0, 16, VERIFY_BLOCKS, sums, WAY_VECTOR);
        CHECK_EQ(a.err, 0);
        asked_end(&a, WAY_VECTOR);
    }
    for (uint32_t m = 0; m < 2; m++) {
        for (uint32_t b = 0; b < 16; b++)
            CHECK(copy_is(f, g, m, b, 1));
    }
    CHECK_EQ(group_set_counters(f->groups)->blocks_repaired, 6);
    CHECK_EQ(group_set_counters(f->groups)->checksum_errors, 6);
    bool failed;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0); /* a rewrite is a write to flush */
    CHECK_EQ(fixture_member(f, g, 0)->flushes, 1);
}

FIXTURE_TEST(rewrite_that_fails_makes_the_drive_failed, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[1];
    fixture_write(g, 0, 1, 1, sums);
    spoil(f, g, 0, 0);
    fixture_member(f, g, 0)->write_error = ERR_SYS(EIO);
    for (uint32_t i = 0; i < 2; i++) {
        struct asked a;
        ask(&a, g, 0, 1, VERIFY_BLOCKS, sums, WAY_VECTOR);
        CHECK_EQ(a.err, 0);
        CHECK(block_is(asked_at(&a, WAY_VECTOR, 0), 0, 1));
        asked_end(&a, WAY_VECTOR);
    }
    CHECK_EQ(f->failures, 1);
    CHECK_EQ(group_set_counters(f->groups)->blocks_repaired, 0);
}

static uint32_t repaired_lines(void)
{
    static struct event events[1000];
    size_t n = event_list(0, events, 1000);
    uint32_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += strcmp(events[i].kind, "block-repaired") == 0;
    return lines;
}

FIXTURE_TEST(thousands_of_repairs_make_few_lines, 2, 64)
{
    uint32_t before = repaired_lines();
    uint32_t sums[FIXTURE_SLAB_BLOCKS];
    uint64_t spoilt = 0;
    for (uint32_t id = 0; id < 50; id++) {
        struct group *g = fixture_create(f, id, 2);
        fixture_write(g, 0, FIXTURE_SLAB_BLOCKS, 1, sums);
        for (uint32_t b = 0; b < FIXTURE_SLAB_BLOCKS; b++)
            spoil(f, g, 0, b);
        spoilt += FIXTURE_SLAB_BLOCKS;
        struct group_check check;
        uint64_t bad[GROUP_READ_MAX / 64];
        CHECK_EQ(group_scrub(g, 0, FIXTURE_SLAB_BLOCKS, VERIFY_BLOCKS, sums, &check, bad), 0);
        CHECK_EQ(check.copies_repaired, FIXTURE_SLAB_BLOCKS);
        sleep_ms(200);
    }
    sleep_ms(6000);
    CHECK_EQ(group_set_counters(f->groups)->blocks_repaired, spoilt);
    uint32_t lines = repaired_lines() - before;
    CHECK(lines >= 2);
    CHECK(lines <= 8);
}

/* ---- Hedging ---- */

FIXTURE_TEST(slow_copy_is_hedged_and_the_loser_touches_nothing, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[4];
    fixture_write(g, 0, 4, 1, sums);
    /* Whichever is asked first hangs, and has wrong bytes. */
    for (uint32_t m = 0; m < 2; m++) {
        struct fake_drive *hung = fixture_member(f, g, m);
        for (uint32_t b = 0; b < 4; b++)
            spoil(f, g, m, b);
        hung->hold = true;
        size_t len = 4 * BLOCK_SIZE;
        uint8_t *memory = aligned_alloc(BLOCK_SIZE, len);
        assert(memory != NULL);
        struct iovec iov = {memory, len};
        struct group_read r = {.group = g,
                               .block = 0,
                               .blocks = 4,
                               .iov = &iov,
                               .iov_count = 1,
                               .verify = VERIFY_BLOCKS,
                               .sums = sums,
                               .only = -1};
        for (uint32_t turn = 0; turn < 2; turn++) {
            uint64_t begun = reactor_now_ns();
            CHECK_EQ(group_read(&r), 0);
            CHECK(reactor_now_ns() - begun <= 6 * NSEC_PER_MSEC);
            for (uint32_t b = 0; b < 4; b++)
                CHECK(block_is(memory + (size_t)b * BLOCK_SIZE, b, 1));
        }
        memset(memory, 0xee, len);
        fake_drive_release(hung);
        sleep_ms(10);
        for (size_t i = 0; i < len; i++)
            CHECK_EQ(memory[i], 0xee);
        /* The same with memory that is gone when the late answer comes: ASan watches. */
        hung->hold = true;
        for (uint32_t turn = 0; turn < 2; turn++)
            CHECK_EQ(group_read(&r), 0);
        free(memory);
        fake_drive_release(hung);
        sleep_ms(10);
        for (uint32_t b = 0; b < 4; b++)
            fill_block(fake_drive_block(hung, g->members[m].slab, b), b, 1);
    }
    CHECK(group_set_counters(f->groups)->hedged_reads >= 4);
    CHECK_EQ(group_set_counters(f->groups)->hedged_reads, group_set_counters(f->groups)->hedges_won);
    CHECK_EQ(group_set_counters(f->groups)->blocks_repaired, 0); /* a loser's bytes prove nothing any more */
}

FIXTURE_TEST(set_is_freed_only_after_the_losers_answered, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[1];
    fixture_write(g, 0, 1, 1, sums);
    for (uint32_t m = 0; m < 2; m++)
        fixture_member(f, g, m)->read_delay_ns = m == 0 ? 300 * NSEC_PER_MSEC : 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct asked a;
        ask(&a, g, 0, 1, VERIFY_BLOCKS, sums, WAY_VECTOR);
        CHECK_EQ(a.err, 0);
        asked_end(&a, WAY_VECTOR);
    }
    CHECK_EQ(group_set_counters(f->groups)->hedges_won, 1);
    uint64_t before = reactor_now_ns();
    fixture_reopen(f);
    CHECK(reactor_now_ns() - before > 200 * NSEC_PER_MSEC);
}

FIXTURE_TEST(hedge_that_finds_wrong_bytes_waits_for_the_first_copy, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[2];
    fixture_write(g, 0, 2, 1, sums);
    for (uint32_t m = 0; m < 2; m++)
        fixture_member(f, g, m)->read_delay_ns = m == 0 ? 50 * NSEC_PER_MSEC : 0;
    for (uint32_t i = 0; i < 2; i++) {
        spoil(f, g, 1, 1);
        struct asked a;
        ask(&a, g, 0, 2, VERIFY_BLOCKS, sums, WAY_VECTOR);
        CHECK_EQ(a.err, 0);
        CHECK(block_is(asked_at(&a, WAY_VECTOR, 1), 1, 1));
        CHECK(copy_is(f, g, 1, 1, 1));
        asked_end(&a, WAY_VECTOR);
    }
    CHECK(group_set_counters(f->groups)->hedged_reads >= 1);
}

FIXTURE_TEST(steadily_slow_copy_is_asked_last, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[1];
    fixture_write(g, 0, 1, 1, sums);
    fixture_member(f, g, 0)->read_delay_ns = 40 * NSEC_PER_MSEC;
    fixture_member(f, g, 1)->read_delay_ns = 100 * NSEC_PER_USEC;
    uint64_t slowest = 0;
    for (uint32_t i = 0; i < 60; i++) {
        uint64_t begun = reactor_now_ns();
        struct asked a;
        ask(&a, g, 0, 1, VERIFY_BLOCKS, sums, WAY_VECTOR);
        CHECK_EQ(a.err, 0);
        asked_end(&a, WAY_VECTOR);
        if (i >= 8)
            slowest = MAX(slowest, reactor_now_ns() - begun);
        sleep_ms(50);
    }
    CHECK(slowest <= 6 * NSEC_PER_MSEC);
    CHECK(fixture_member(f, g, 0)->reads <= 4);
}

/* ---- Choice ---- */

FIXTURE_TEST(idle_copies_take_turns, 3, 4)
{
    struct group *g = fixture_create(f, 1, 3);
    uint32_t sums[1];
    fixture_write(g, 0, 1, 1, sums);
    for (uint32_t i = 0; i < 30; i++) {
        struct asked a;
        ask(&a, g, 0, 1, VERIFY_BLOCKS, sums, WAY_VECTOR);
        asked_end(&a, WAY_VECTOR);
    }
    for (uint32_t m = 0; m < 3; m++)
        CHECK_EQ(fixture_member(f, g, m)->reads, 10);
    CHECK_EQ(group_set_counters(f->groups)->degraded_reads, 0);
}

FIXTURE_TEST(busy_copy_is_left_alone, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[1];
    fixture_write(g, 0, 1, 1, sums);
    fixture_member(f, g, 0)->base.queue_depth += 5; /* of others */
    for (uint32_t i = 0; i < 10; i++) {
        struct asked a;
        ask(&a, g, 0, 1, VERIFY_BLOCKS, sums, WAY_VECTOR);
        asked_end(&a, WAY_VECTOR);
    }
    CHECK_EQ(fixture_member(f, g, 0)->reads, 0);
    fixture_member(f, g, 0)->base.queue_depth -= 5;
}

FIXTURE_TEST(stale_and_filling_members_are_never_read, 3, 4)
{
    struct group *g = fixture_create(f, 1, 3);
    uint32_t sums[1];
    fixture_write(g, 0, 1, 1, sums);
    group_drive_make_stale(f->groups, g->members[0].drive, 1);
    group_drive_make_stale(f->groups, g->members[1].drive, 1);
    CHECK_EQ(group_member_fill(g, 1), 0);
    for (uint32_t i = 0; i < 6; i++) {
        struct asked a;
        ask(&a, g, 0, 1, VERIFY_BLOCKS, sums, WAY_VECTOR);
        CHECK_EQ(a.err, 0);
        asked_end(&a, WAY_VECTOR);
    }
    CHECK_EQ(fixture_member(f, g, 0)->reads + fixture_member(f, g, 1)->reads, 0);
    CHECK_EQ(group_set_counters(f->groups)->degraded_reads, 6);
    /* With the last one gone there is nobody to ask. */
    fake_drive_lose(fixture_member(f, g, 2));
    struct asked a;
    ask(&a, g, 0, 1, VERIFY_BLOCKS, sums, WAY_VECTOR);
    CHECK_EQ(a.err, ERR_GROUP_DEGRADED_BELOW);
    CHECK(bits_get(a.r.bad, 0));
    asked_end(&a, WAY_VECTOR);
}

FIXTURE_TEST(member_is_read_alone_when_asked_for, 3, 4)
{
    struct group *g = fixture_create(f, 1, 3);
    fixture_write(g, 0, 2, 1, NULL);
    spoil(f, g, 1, 0);
    for (int only = 0; only < 3; only++) {
        struct page *p = fill_pages(0, 2, 9, NULL);
        struct iovec iov = {p->data, 2 * BLOCK_SIZE};
        struct group_read r = {.group = g,
                               .blocks = 2,
                               .iov = &iov,
                               .iov_count = 1,
                               .page = p,
                               .verify = VERIFY_NONE,
                               .only = only};
        CHECK_EQ(group_read(&r), 0);
        CHECK_EQ(block_is(p->data, 0, 1), only != 1);
        CHECK(block_is(page_at(p, 1)->data, 1, 1));
        page_put(p, 2);
    }
    for (uint32_t m = 0; m < 3; m++) {
        CHECK_EQ(fixture_member(f, g, m)->reads, 1);
        CHECK_EQ(fixture_member(f, g, m)->writes, 1);
    }
}

FIXTURE_TEST(drive_that_failed_a_write_still_serves_the_last_copy, 1, 4)
{
    struct group *g = fixture_create(f, 1, 1);
    uint32_t sums[1];
    fixture_write(g, 0, 1, 1, sums);
    f->drives[0]->write_error = ERR_SYS(EIO);
    struct page *p = fill_pages(1, 1, 1, NULL);
    struct iovec iov = {p->data, BLOCK_SIZE};
    struct group_write w = {.group = g, .block = 1, .blocks = 1, .iov = &iov, .iov_count = 1, .page = p};
    CHECK_EQ(group_write_wait(&w), ERR_SYS(EIO));
    page_put(p, 1);
    struct asked a;
    ask(&a, g, 0, 1, VERIFY_BLOCKS, sums, WAY_VECTOR);
    CHECK_EQ(a.err, 0);
    CHECK(block_is(asked_at(&a, WAY_VECTOR, 0), 0, 1));
    asked_end(&a, WAY_VECTOR);
}

static struct {
    struct group *g;
    const uint32_t *sums;
    uint32_t returned, wrong;
} readers;

static may_yield void reader(void *arg)
{
    uint32_t block = (uint32_t)(uintptr_t)arg;
    for (uint32_t i = 0; i < 20; i++) {
        struct page *p = fill_pages(0, 1, 9, NULL);
        struct iovec iov = {p->data, BLOCK_SIZE};
        struct group_read r = {.group = readers.g,
                               .block = block,
                               .blocks = 1,
                               .iov = &iov,
                               .iov_count = 1,
                               .page = p,
                               .verify = VERIFY_BLOCKS,
                               .sums = readers.sums + block,
                               .only = -1};
        readers.wrong += group_read(&r) != 0 || !block_is(p->data, block, 1);
        page_put(p, 1);
    }
    readers.returned++;
}

FIXTURE_TEST(many_readers_share_one_damaged_drive, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[16];
    fixture_write(g, 0, 16, 1, sums);
    for (uint32_t b = 0; b < 16; b++)
        spoil(f, g, 0, b);
    fixture_member(f, g, 1)->read_delay_ns = 3 * NSEC_PER_MSEC;
    readers.g = g;
    readers.sums = sums;
    readers.returned = readers.wrong = 0;
    for (uint32_t i = 0; i < 64; i++)
        CHECK_EQ(fiber_spawn("reader", reader, (void *)(uintptr_t)(i % 16)), 0);
    while (readers.returned < 64)
        sleep_ms(10);
    CHECK_EQ(readers.wrong, 0);
    for (uint32_t b = 0; b < 16; b++)
        CHECK(copy_is(f, g, 0, b, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_never_returns_wrong_bytes_whatever_copies_are_bad),
        cmocka_unit_test(read_of_a_whole_node_takes_only_a_whole_copy),
        cmocka_unit_test(single_copy_with_a_bad_block_reads_the_others),
        cmocka_unit_test(unreadable_sector_costs_only_its_own_block),
        cmocka_unit_test(unreadable_range_is_read_elsewhere_and_rewritten),
        cmocka_unit_test(each_copy_with_another_unreadable_block_still_gives_all),
        cmocka_unit_test(bad_copies_are_healed_before_the_read_returns),
        cmocka_unit_test(rewrite_that_fails_makes_the_drive_failed),
        cmocka_unit_test(thousands_of_repairs_make_few_lines),
        cmocka_unit_test(slow_copy_is_hedged_and_the_loser_touches_nothing),
        cmocka_unit_test(set_is_freed_only_after_the_losers_answered),
        cmocka_unit_test(hedge_that_finds_wrong_bytes_waits_for_the_first_copy),
        cmocka_unit_test(steadily_slow_copy_is_asked_last),
        cmocka_unit_test(idle_copies_take_turns),
        cmocka_unit_test(busy_copy_is_left_alone),
        cmocka_unit_test(stale_and_filling_members_are_never_read),
        cmocka_unit_test(member_is_read_alone_when_asked_for),
        cmocka_unit_test(drive_that_failed_a_write_still_serves_the_last_copy),
        cmocka_unit_test(many_readers_share_one_damaged_drive),
    };
    return cmocka_run_group_tests_name("protect reads", tests, NULL, NULL);
}
