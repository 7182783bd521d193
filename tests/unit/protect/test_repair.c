/* SPDX-License-Identifier: Apache-2.0 */
/* Scrub, members that catch up or are replaced, the throttle. */
#include "cmocka_all.h"
#include "fixture.h"

#include "protect/group_internal.h"
#include "protect/throttle.h"
#include "runtime/checksum.h"

/* ---- Scrub ---- */

FIXTURE_TEST(scrub_finds_and_repairs_every_bad_copy, 3, 4)
{
    struct group *g = fixture_create(f, 1, 3);
    uint32_t sums[16];
    fixture_write(g, 4, 16, 1, sums);
    spoil(f, g, 0, 4);
    spoil(f, g, 1, 4);
    spoil(f, g, 1, 10);
    spoil(f, g, 1, 11);
    spoil(f, g, 2, 19);
    struct group_check check;
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 4, 16, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK_EQ(check.copies_checked, 48);
    CHECK_EQ(check.copies_bad, 5);
    CHECK_EQ(check.copies_repaired, 5);
    CHECK(!check.lost);
    CHECK(!bits_any(bad));
    for (uint32_t m = 0; m < 3; m++) {
        for (uint32_t b = 4; b < 20; b++)
            CHECK(copy_is(f, g, m, b, 1));
    }
    CHECK_EQ(group_scrub(g, 4, 16, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK_EQ(check.copies_bad, 0);
    CHECK_EQ(group_set_counters(f->groups)->blocks_repaired, 5);
}

FIXTURE_TEST(scrub_tells_what_is_lost_and_repairs_the_rest, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[8];
    fixture_write(g, 0, 8, 1, sums);
    spoil(f, g, 0, 2);
    spoil(f, g, 1, 2);
    spoil(f, g, 1, 3);
    struct group_check check;
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 0, 8, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK(check.lost);
    CHECK_EQ(check.copies_bad, 3);
    CHECK_EQ(check.copies_repaired, 1);
    CHECK_EQ(bad[0], 1u << 2);
    CHECK(copy_is(f, g, 1, 3, 1));
}

FIXTURE_TEST(scrub_finds_unreadable_blocks_one_by_one, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[8];
    fixture_write(g, 0, 8, 1, sums);
    struct fake_drive *d = fixture_member(f, g, 0);
    d->read_error = ERR_SYS(EIO);
    d->bad_slab = g->members[0].slab;
    d->bad_block_from = 5;
    d->bad_block_to = 7;
    struct group_check check;
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 0, 8, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK_EQ(check.copies_bad, 2);
    CHECK_EQ(check.copies_repaired, 0); /* still unreadable after the rewrite: not said to be repaired */
    CHECK(!check.lost);
    CHECK_EQ(f->failures, 0);
    CHECK_EQ(d->writes, 2);
}

FIXTURE_TEST(scrub_does_not_call_repaired_what_a_drive_only_claims, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[8];
    fixture_write(g, 0, 8, 1, sums);
    spoil(f, g, 0, 3);
    fixture_member(f, g, 0)->swallow_writes = true;
    struct group_check check;
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 0, 8, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK_EQ(check.copies_bad, 1);
    CHECK_EQ(check.copies_repaired, 0);
    CHECK_EQ(group_set_counters(f->groups)->blocks_repaired, 0);
}

FIXTURE_TEST(scrub_of_a_node_is_all_or_nothing, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    fixture_write(g, 0, 4, 1, NULL);
    struct page *p = fill_pages(0, 4, 1, NULL);
    uint32_t sum = crc32c(0, p->data, 4 * BLOCK_SIZE);
    page_put(p, 4);
    spoil(f, g, 1, 3);
    struct group_check check;
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 0, 4, VERIFY_WHOLE, &sum, &check, bad), 0);
    CHECK_EQ(check.copies_bad, 4);
    CHECK_EQ(check.copies_repaired, 4);
    for (uint32_t b = 0; b < 4; b++)
        CHECK(copy_is(f, g, 1, b, 1));
}

FIXTURE_TEST(scrub_without_a_drive_is_an_error, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[1];
    fixture_write(g, 0, 1, 1, sums);
    fake_drive_lose(f->drives[0]);
    struct group_check check;
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 0, 1, VERIFY_BLOCKS, sums, &check, bad), 0);
    CHECK_EQ(check.copies_checked, 1);
    fake_drive_lose(f->drives[1]);
    CHECK_EQ(group_scrub(g, 0, 1, VERIFY_BLOCKS, sums, &check, bad), ERR_GROUP_DEGRADED_BELOW);
}

FIXTURE_TEST(scrub_does_not_write_over_log_and_roots, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    fixture_write(g, 0, 4, 1, NULL);
    spoil(f, g, 0, 1);
    struct group_check check;
    uint64_t bad[GROUP_READ_MAX / 64];
    CHECK_EQ(group_scrub(g, 0, 4, VERIFY_NONE, NULL, &check, bad), 0);
    CHECK_EQ(check.copies_bad, 0);
    CHECK(!copy_is(f, g, 0, 1, 1));
}

/* ---- Members ---- */

FIXTURE_TEST(member_that_was_away_catches_up, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t old_sums[8], new_sums[8];
    fixture_write(g, 0, 8, 1, old_sums);
    struct fake_drive *away = fixture_member(f, g, 1);
    struct group_drive *drive = g->members[1].drive;
    fake_drive_lose(away);
    sleep_ms(1);
    group_drive_make_stale(f->groups, drive, 12);
    fixture_write(g, 8, 8, 1, new_sums);
    CHECK_EQ(group_member_fill(g, 1), ERR_DRIVE_GONE);
    fake_drive_return(away, false);
    CHECK_EQ(group_drive_reopen(f->groups, drive), 0);
    CHECK_EQ(group_drive_incarnation(drive), away->incarnation);
    CHECK_EQ(group_member_fill(g, 1), 0);
    fixture_write(g, 16, 1, 1, NULL); /* goes to both from now on */
    CHECK(copy_is(f, g, 1, 16, 1));
    CHECK_EQ(group_copy_to_member(g, 1, 8, 8, VERIFY_BLOCKS, new_sums), 0);
    bool failed;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    CHECK(!failed);
    for (uint32_t b = 0; b < 16; b++)
        CHECK(copy_is(f, g, 1, b, 1));
    group_member_levelled(g, 1);
    CHECK_EQ(g->members[1].state, MEMBER_CURRENT);
    CHECK_EQ(g->members[1].stale_since_txg, 0);
    CHECK_EQ(g->members[1].incarnation, away->incarnation);
    CHECK(group_healthy(g));
}

FIXTURE_TEST(copy_goes_to_filling_members_only, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[2];
    fixture_write(g, 0, 2, 1, sums);
    group_drive_make_stale(f->groups, g->members[1].drive, 1);
    CHECK_EQ(group_copy_to_member(g, 1, 0, 2, VERIFY_BLOCKS, sums), ERR_DRIVE_GONE);
    CHECK_EQ(fixture_member(f, g, 1)->writes, 1);
}

FIXTURE_TEST(only_copy_that_comes_back_is_believed_where_it_is_right, 1, 4)
{
    struct group *g = fixture_create(f, 1, 1);
    uint32_t sums[8];
    fixture_write(g, 0, 8, 1, sums);
    bool failed;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    struct fake_drive *d = f->drives[0];
    fake_drive_lose(d);
    sleep_ms(1);
    group_drive_make_stale(f->groups, g->members[0].drive, 3);
    fake_drive_return(d, true);
    spoil(f, g, 0, 6);
    CHECK_EQ(group_drive_reopen(f->groups, g->members[0].drive), 0);
    CHECK_EQ(group_member_fill(g, 0), 0);
    CHECK_EQ(group_copy_to_member(g, 0, 0, 6, VERIFY_BLOCKS, sums), 0);
    CHECK_EQ(group_set_counters(f->groups)->blocks_lost, 0);
    CHECK_EQ(group_copy_to_member(g, 0, 4, 4, VERIFY_BLOCKS, sums + 4), ERR_NO_GOOD_COPY);
    CHECK_EQ(group_set_counters(f->groups)->blocks_lost, 1);
    group_member_levelled(g, 0);
    CHECK_EQ(g->members[0].state, MEMBER_CURRENT);
    CHECK_EQ(group_redundancy_left(g), 0);
    for (uint32_t b = 0; b < 8; b++)
        CHECK_EQ(copy_is(f, g, 0, b, 1), b != 6);
}

FIXTURE_TEST(copy_never_passes_on_wrong_bytes, 3, 4)
{
    struct group *g = fixture_create(f, 1, 3);
    uint32_t sums[4];
    fixture_write(g, 0, 4, 1, sums);
    group_drive_make_stale(f->groups, g->members[2].drive, 1);
    for (uint32_t b = 0; b < 4; b++)
        spoil(f, g, 2, b);
    CHECK_EQ(group_member_fill(g, 2), 0);
    spoil(f, g, 0, 0);
    spoil(f, g, 1, 1);
    spoil(f, g, 0, 2);
    spoil(f, g, 1, 2); /* lost */
    CHECK_EQ(group_copy_to_member(g, 2, 0, 4, VERIFY_BLOCKS, sums), ERR_NO_GOOD_COPY);
    CHECK(copy_is(f, g, 2, 0, 1));
    CHECK(copy_is(f, g, 2, 1, 1));
    CHECK(!copy_is(f, g, 2, 2, 1));
    CHECK(copy_is(f, g, 2, 3, 1));
}

FIXTURE_TEST(member_that_fails_while_filling_is_not_levelled, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[4];
    fixture_write(g, 0, 4, 1, sums);
    group_drive_make_stale(f->groups, g->members[1].drive, 1);
    CHECK_EQ(group_member_fill(g, 1), 0);
    fixture_member(f, g, 1)->write_error = ERR_SYS(EIO);
    CHECK_EQ(group_copy_to_member(g, 1, 0, 4, VERIFY_BLOCKS, sums), ERR_DRIVE_GONE);
    CHECK_EQ(f->failures, 1);
    group_member_levelled(g, 1);
    CHECK_EQ(g->members[1].state, MEMBER_FILLING);
    group_drive_make_stale(f->groups, g->members[1].drive, 2);
    CHECK_EQ(g->members[1].state, MEMBER_STALE);
    CHECK_EQ(group_copy_to_member(g, 1, 0, 4, VERIFY_BLOCKS, sums), ERR_DRIVE_GONE);
}

FIXTURE_TEST(lost_member_is_replaced_on_another_drive, 4, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    uint32_t sums[4];
    fixture_write(g, 0, 4, 1, sums);
    CHECK_EQ(group_member_replace(f->groups, g, 1), ERR_INVALID); /* it is current */
    struct fake_drive *old = fixture_member(f, g, 1);
    group_drive_make_stale(f->groups, g->members[1].drive, 7);
    CHECK_EQ(group_member_replace(f->groups, g, 1), 0);
    struct fake_drive *now = fixture_member(f, g, 1);
    CHECK(now != old);
    CHECK(now != fixture_member(f, g, 0));
    CHECK_EQ(g->members[1].state, MEMBER_FILLING);
    CHECK_EQ(g->members[1].stale_since_txg, 0);
    /* The old slab stays until the change is committed. */
    CHECK_EQ(fake_drive_free_slabs(old), 3);
    CHECK_EQ(group_set_reap(f->groups), 0);
    CHECK_EQ(fake_drive_free_slabs(old), 4);
    CHECK_EQ(group_copy_to_member(g, 1, 0, 4, VERIFY_BLOCKS, sums), 0);
    group_member_levelled(g, 1);
    CHECK(group_healthy(g));
    for (uint32_t b = 0; b < 4; b++)
        CHECK(copy_is(f, g, 1, b, 1));
}

FIXTURE_TEST(member_that_returns_to_its_old_drive_keeps_the_slab, 3, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    struct fake_drive *first = fixture_member(f, g, 1);
    group_drive_make_stale(f->groups, g->members[1].drive, 7);
    CHECK_EQ(group_member_replace(f->groups, g, 1), 0);
    struct fake_drive *second = fixture_member(f, g, 1);
    group_drive_make_stale(f->groups, g->members[1].drive, 8);
    CHECK_EQ(group_member_replace(f->groups, g, 1), 0);
    CHECK(fixture_member(f, g, 1) == first);
    CHECK_EQ(group_set_reap(f->groups), 0);
    CHECK_EQ(fake_drive_free_slabs(first), 3);
    CHECK_EQ(fake_drive_free_slabs(second), 4);
    fixture_write(g, 0, 1, 1, NULL);
}

FIXTURE_TEST(replacement_after_a_crash_finds_its_slab, 6, 8)
{
    struct group *g = fixture_create(f, 1, 2);
    uint8_t item[GROUP_ITEM_MAX];
    group_drive_make_stale(f->groups, g->members[0].drive, 7);
    uint32_t len = group_encode(g, item);
    CHECK_EQ(group_member_replace(f->groups, g, 0), 0);
    struct fake_drive *chosen = fixture_member(f, g, 0);
    uint32_t slab = g->members[0].slab;
    /* The crash: the description from before. Meanwhile other drives became emptier than the chosen one. */
    fixture_reopen(f);
    for (uint32_t i = 4; i < 7; i++)
        chosen->slabs[i] = (struct fake_slab){.used = true, .volume = {{0x99}}};
    struct group d, *again = NULL;
    struct uuid drives[GROUP_MEMBERS_MAX];
    CHECK_EQ(group_decode(item, len, &d, drives), 0);
    CHECK_EQ(group_adopt_decoded(f->groups, &d, drives, &again), 0);
    CHECK_EQ(group_member_replace(f->groups, again, 0), 0);
    CHECK(fixture_member(f, again, 0) == chosen);
    CHECK_EQ(again->members[0].slab, slab);
}

FIXTURE_TEST(replacement_without_another_drive_is_refused, 2, 4)
{
    struct group *g = fixture_create(f, 1, 2);
    group_drive_make_stale(f->groups, g->members[0].drive, 7);
    CHECK_EQ(group_member_replace(f->groups, g, 0), ERR_NOT_ENOUGH_DRIVES);
    CHECK_EQ(g->members[0].state, MEMBER_STALE);
}

FIXTURE_TEST(system_groups_are_replaced_on_the_same_drive, 6, 8)
{
    struct protection p = {PROTECT_MIRROR, 1, 1};
    struct group *g[3] = {0};
    for (uint32_t id = 0; id < 3; id++)
        CHECK_EQ(group_create(f->groups, id, GROUP_SYSTEM, p, 2, &g[id]), 0);
    group_drive_make_stale(f->groups, g[0]->members[1].drive, 7);
    for (uint32_t id = 0; id < 3; id++) {
        CHECK_EQ(group_member_replace(f->groups, g[id], 1), 0);
        CHECK(g[id]->members[1].drive == g[0]->members[1].drive);
    }
}

FIXTURE_TEST(loss_of_unflushed_writes_is_told_after_the_drive_is_stale, 2, 4)
{
    struct group *g = fixture_create(f, 1, 1);
    fixture_write(g, 0, 1, 1, NULL);
    fake_drive_lose(fixture_member(f, g, 0));
    sleep_ms(1);
    group_drive_make_stale(f->groups, g->members[0].drive, 1);
    bool failed = true;
    CHECK_EQ(group_set_flush(f->groups, &failed), ERR_GROUP_DEGRADED_BELOW);
    CHECK(!failed);
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
}

/* ---- Throttle ---- */

FIXTURE_TEST(throttle_keeps_its_rate, 1, 1)
{
    struct throttle t;
    throttle_init(&t, 10 * MIB, MIB);
    uint64_t begun = reactor_now_ns();
    CHECK_EQ(throttle_take(&t, MIB), 0); /* the bucket is full */
    CHECK_EQ(reactor_now_ns() - begun, 0);
    for (uint32_t i = 0; i < 80; i++)
        CHECK_EQ(throttle_take(&t, 128 * KIB), 0); /* 10 MiB */
    uint64_t took = reactor_now_ns() - begun;
    CHECK(took >= 990 * NSEC_PER_MSEC);
    CHECK(took <= 1100 * NSEC_PER_MSEC);
    sleep_ms(60000); /* idling saves no more than the bucket */
    begun = reactor_now_ns();
    CHECK_EQ(throttle_take(&t, 11 * MIB), 0); /* larger than the bucket */
    took = reactor_now_ns() - begun;
    CHECK(took >= 990 * NSEC_PER_MSEC);
    CHECK(took <= 1100 * NSEC_PER_MSEC);
}

FIXTURE_TEST(throttle_without_a_limit_lets_all_pass, 1, 1)
{
    struct throttle t;
    throttle_init(&t, 0, 1);
    uint64_t begun = reactor_now_ns();
    CHECK_EQ(throttle_take(&t, UINT64_MAX), 0);
    CHECK_EQ(reactor_now_ns() - begun, 0);
}

static struct throttle shared;
static int throttled_result;
static may_yield void throttled(void *arg)
{
    throttled_result = throttle_take(&shared, 100 * MIB);
}

FIXTURE_TEST(throttle_wait_ends_when_cancelled_and_follows_the_rate, 1, 1)
{
    throttle_init(&shared, KIB, KIB);
    struct fiber *fiber;
    CHECK_EQ(fiber_spawn_joinable("throttled", throttled, NULL, &fiber), 0);
    sleep_ms(5000);
    fiber_cancel(fiber);
    fiber_join(fiber);
    CHECK_EQ(throttled_result, ERR_CANCELLED);
    CHECK_EQ(fiber_spawn_joinable("throttled", throttled, NULL, &fiber), 0);
    sleep_ms(5000);
    uint64_t begun = reactor_now_ns();
    shared.rate_bytes_per_s = 0;
    fiber_join(fiber);
    CHECK_EQ(throttled_result, 0);
    CHECK(reactor_now_ns() - begun <= NSEC_PER_SEC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scrub_finds_and_repairs_every_bad_copy),
        cmocka_unit_test(scrub_tells_what_is_lost_and_repairs_the_rest),
        cmocka_unit_test(scrub_finds_unreadable_blocks_one_by_one),
        cmocka_unit_test(scrub_does_not_call_repaired_what_a_drive_only_claims),
        cmocka_unit_test(scrub_of_a_node_is_all_or_nothing),
        cmocka_unit_test(scrub_without_a_drive_is_an_error),
        cmocka_unit_test(scrub_does_not_write_over_log_and_roots),
        cmocka_unit_test(member_that_was_away_catches_up),
        cmocka_unit_test(copy_goes_to_filling_members_only),
        cmocka_unit_test(only_copy_that_comes_back_is_believed_where_it_is_right),
        cmocka_unit_test(copy_never_passes_on_wrong_bytes),
        cmocka_unit_test(member_that_fails_while_filling_is_not_levelled),
        cmocka_unit_test(lost_member_is_replaced_on_another_drive),
        cmocka_unit_test(member_that_returns_to_its_old_drive_keeps_the_slab),
        cmocka_unit_test(replacement_after_a_crash_finds_its_slab),
        cmocka_unit_test(replacement_without_another_drive_is_refused),
        cmocka_unit_test(system_groups_are_replaced_on_the_same_drive),
        cmocka_unit_test(loss_of_unflushed_writes_is_told_after_the_drive_is_stale),
        cmocka_unit_test(throttle_keeps_its_rate),
        cmocka_unit_test(throttle_without_a_limit_lets_all_pass),
        cmocka_unit_test(throttle_wait_ends_when_cancelled_and_follows_the_rate),
    };
    return cmocka_run_group_tests_name("protect repair", tests, NULL, NULL);
}
