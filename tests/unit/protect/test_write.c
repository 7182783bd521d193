/* SPDX-License-Identifier: Apache-2.0 */
/* Writes to all members, flushes, drives that fail. */
#include "cmocka_all.h"
#include "fixture.h"

#include "protect/group_internal.h"

struct pending_write {
    struct group_write w;
    struct page *page;
    struct iovec iov;
    uint32_t done;
    bool in_fiber; /* done() came from inside a call */
};

static void pending_done(struct group_write *w)
{
    struct pending_write *p = w->ctx;
    p->done++;
    p->in_fiber |= fiber_self() != NULL;
}

static void pending_submit(struct pending_write *p, struct group *g, uint32_t first, uint32_t count,
                           bool dsync)
{
    *p = (struct pending_write){.page = fill_pages(first, count, 1, NULL)};
    p->iov = (struct iovec){p->page->data, (size_t)count * BLOCK_SIZE};
    p->w = (struct group_write){.group = g,
                                .block = first,
                                .blocks = count,
                                .iov = &p->iov,
                                .iov_count = 1,
                                .page = p->page,
                                .dsync = dsync,
                                .done = pending_done,
                                .ctx = p};
    group_write_submit(&p->w);
}

static void pending_end(struct pending_write *p)
{
    CHECK_EQ(p->done, 1);
    CHECK(!p->in_fiber);
    page_put(p->page, p->w.blocks);
}

FIXTURE_TEST(write_reaches_every_member, 3, 4)
{
    struct group *g = fixture_create(f, 7, 3);
    fixture_write(g, 2, 3, 1, NULL);
    for (uint32_t m = 0; m < 3; m++) {
        for (uint32_t b = 2; b < 5; b++)
            CHECK(copy_is(f, g, m, b, 1));
        CHECK_EQ(fixture_member(f, g, m)->writes, 1);
    }
}

FIXTURE_TEST(write_is_done_only_when_every_member_answered, 3, 4)
{
    struct group *g = fixture_create(f, 7, 3);
    struct fake_drive *slow = fixture_member(f, g, 1);
    slow->hold = true;
    struct pending_write p;
    pending_submit(&p, g, 0, 1, false);
    sleep_ms(1000);
    CHECK_EQ(p.done, 0);
    fake_drive_release(slow);
    sleep_ms(1);
    CHECK_EQ(p.w.result, 0);
    CHECK(!p.w.failed);
    pending_end(&p);
}

FIXTURE_TEST(write_that_one_member_missed_is_good_but_failed, 3, 4)
{
    struct group *g = fixture_create(f, 7, 3);
    struct fake_drive *bad = fixture_member(f, g, 2);
    bad->write_error = ERR_SYS(EIO);
    struct pending_write p;
    pending_submit(&p, g, 0, 1, false);
    sleep_ms(1);
    CHECK_EQ(p.w.result, 0);
    CHECK(p.w.failed);
    CHECK_EQ(f->failures, 1);
    CHECK(f->failed[0] == g->members[2].drive);
    pending_end(&p);
    /* It recovers, but what it missed is not recorded: still failed, and it gets nothing more. */
    bad->write_error = 0;
    uint64_t writes = bad->writes;
    pending_submit(&p, g, 1, 1, false);
    sleep_ms(1);
    CHECK_EQ(p.w.result, 0);
    CHECK(p.w.failed);
    CHECK_EQ(f->failures, 1);
    CHECK_EQ(bad->writes, writes);
    pending_end(&p);
    /* Recorded. */
    group_drive_make_stale(f->groups, g->members[2].drive, 9);
    CHECK_EQ(g->members[2].state, MEMBER_STALE);
    CHECK_EQ(g->members[2].stale_since_txg, 9);
    pending_submit(&p, g, 1, 1, false);
    sleep_ms(1);
    CHECK_EQ(p.w.result, 0);
    CHECK(!p.w.failed);
    CHECK_EQ(bad->writes, writes);
    pending_end(&p);
    CHECK_EQ(group_redundancy_left(g), 1);
    CHECK(!group_healthy(g));
}

FIXTURE_TEST(success_on_a_drive_that_failed_another_write_does_not_count, 2, 4)
{
    struct group *g = fixture_create(f, 7, 2);
    struct fake_drive *bad = fixture_member(f, g, 0);
    struct pending_write good, missed;
    bad->write_delay_ns = 20 * NSEC_PER_MSEC;
    pending_submit(&good, g, 0, 1, false);
    bad->write_delay_ns = 0;
    bad->write_error = ERR_SYS(EIO);
    pending_submit(&missed, g, 1, 1, false);
    sleep_ms(1);
    CHECK(missed.w.failed);
    pending_end(&missed);
    bad->write_error = 0;
    sleep_ms(30);
    /* It has this one, but its flush would promise nothing any more. */
    CHECK(copy_is(f, g, 0, 0, 1));
    CHECK_EQ(good.w.result, 0);
    CHECK(good.w.failed);
    pending_end(&good);
}

FIXTURE_TEST(write_that_every_member_missed_is_an_error, 2, 4)
{
    struct group *g = fixture_create(f, 7, 2);
    for (uint32_t m = 0; m < 2; m++)
        fixture_member(f, g, m)->write_error = ERR_SYS(EIO);
    struct pending_write p;
    pending_submit(&p, g, 0, 1, false);
    sleep_ms(1);
    CHECK_EQ(p.w.result, ERR_SYS(EIO));
    CHECK(p.w.failed);
    CHECK_EQ(f->failures, 2);
    pending_end(&p);
    CHECK_EQ(group_redundancy_left(g), -1);
}

FIXTURE_TEST(write_without_a_drive_is_told_from_the_loop, 2, 4)
{
    struct group *g = fixture_create(f, 7, 2);
    fake_drive_lose(f->drives[0]);
    fake_drive_lose(f->drives[1]);
    struct pending_write p;
    pending_submit(&p, g, 0, 1, false);
    CHECK_EQ(p.done, 0);
    sleep_ms(1);
    CHECK_EQ(p.w.result, ERR_DRIVE_GONE);
    CHECK(p.w.failed);
    CHECK_EQ(f->failures, 2);
    pending_end(&p);
}

FIXTURE_TEST(write_to_a_lost_drive_recorded_meanwhile_is_not_failed, 2, 4)
{
    struct group *g = fixture_create(f, 7, 2);
    struct fake_drive *hung = fixture_member(f, g, 0);
    hung->hold = true;
    hung->write_error = ERR_SYS(EIO);
    struct pending_write p;
    pending_submit(&p, g, 0, 1, false);
    sleep_ms(1);
    group_drive_make_stale(f->groups, g->members[0].drive, 3);
    CHECK_EQ(group_member_fill(g, 0), ERR_VOLUME_BUSY); /* a late write may still land there */
    fake_drive_release(hung);
    sleep_ms(1);
    CHECK_EQ(p.w.result, 0);
    CHECK(!p.w.failed);
    pending_end(&p);
    CHECK_EQ(group_member_fill(g, 0), ERR_DRIVE_GONE); /* it failed: a new session first */
}

FIXTURE_TEST(filling_member_is_written_and_its_failure_counts, 2, 4)
{
    struct group *g = fixture_create(f, 7, 2);
    group_drive_make_stale(f->groups, g->members[1].drive, 3);
    CHECK_EQ(group_member_fill(g, 1), 0);
    CHECK_EQ(g->members[1].state, MEMBER_FILLING);
    CHECK_EQ(g->members[1].stale_since_txg, 3);
    fixture_write(g, 4, 1, 1, NULL);
    CHECK(copy_is(f, g, 1, 4, 1));
    fixture_member(f, g, 1)->write_error = ERR_SYS(EIO);
    struct pending_write p;
    pending_submit(&p, g, 5, 1, false);
    sleep_ms(1);
    CHECK_EQ(p.w.result, 0);
    CHECK(p.w.failed);
    CHECK_EQ(f->failures, 1);
    pending_end(&p);
    /* A copy on the filling member alone is none. */
    group_drive_make_stale(f->groups, g->members[1].drive, 8);
    CHECK_EQ(g->members[1].stale_since_txg, 3);
}

FIXTURE_TEST(copy_on_a_filling_member_alone_is_no_success, 2, 4)
{
    struct group *g = fixture_create(f, 7, 2);
    group_drive_make_stale(f->groups, g->members[1].drive, 3);
    CHECK_EQ(group_member_fill(g, 1), 0);
    fixture_member(f, g, 0)->write_error = ERR_SYS(ENOSPC);
    struct pending_write p;
    pending_submit(&p, g, 5, 1, false);
    sleep_ms(1);
    CHECK_EQ(p.w.result, ERR_SYS(ENOSPC));
    CHECK(p.w.failed);
    pending_end(&p);
}

FIXTURE_TEST(write_to_more_than_three_members_works, 5, 4)
{
    struct group *g = fixture_create(f, 7, 5);
    fixture_write(g, 0, 2, 1, NULL);
    for (uint32_t m = 0; m < 5; m++)
        CHECK(copy_is(f, g, m, 1, 1));
}

/* ---- Flush ---- */

FIXTURE_TEST(first_flush_covers_what_an_earlier_process_wrote, 2, 8)
{
    struct group *a = fixture_create(f, 1, 2);
    bool failed = true;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    CHECK(!failed);
    for (uint32_t m = 0; m < 2; m++)
        CHECK_EQ(fixture_member(f, a, m)->flushes, 1);
}

FIXTURE_TEST(flush_asks_only_drives_with_unflushed_writes, 4, 8)
{
    struct group *a = fixture_create(f, 1, 2);
    struct group *b = fixture_create(f, 2, 2);
    bool failed = true;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    CHECK(!failed);
    fixture_write(a, 0, 1, 1, NULL);
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    for (uint32_t m = 0; m < 2; m++) {
        CHECK_EQ(fixture_member(f, a, m)->flushes, 2);
        CHECK_EQ(fixture_member(f, b, m)->flushes, 1);
    }
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    CHECK_EQ(fixture_member(f, a, 0)->flushes, 2);
}

FIXTURE_TEST(dsync_write_leaves_nothing_to_flush, 2, 8)
{
    struct group *g = fixture_create(f, 1, 2);
    struct pending_write p;
    bool failed;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0); /* of what was before this session */
    pending_submit(&p, g, 0, 1, true);
    sleep_ms(1);
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    CHECK_EQ(f->drives[0]->flushes, 1);
    pending_end(&p);
    uint8_t expect[BLOCK_SIZE];
    fill_block(expect, 0, 1);
    CHECK(memcmp(fake_drive_stable_block(fixture_member(f, g, 0), g->members[0].slab, 0), expect,
                 BLOCK_SIZE) == 0);
}

static struct {
    struct group_set *s;
    uint32_t returned;
    int errors;
} flushers;

static may_yield void flusher(void *arg)
{
    bool failed;
    flushers.errors += group_set_flush(flushers.s, &failed) != 0 || failed;
    flushers.returned++;
}

FIXTURE_TEST(concurrent_flushes_share, 2, 8)
{
    struct group *g = fixture_create(f, 1, 2);
    flushers.s = f->groups;
    flushers.returned = 0;
    flushers.errors = 0;
    for (uint32_t i = 0; i < 2; i++)
        f->drives[i]->flush_delay_ns = 10 * NSEC_PER_MSEC;
    fixture_write(g, 0, 1, 1, NULL);
    for (uint32_t i = 0; i < 10; i++)
        CHECK_EQ(fiber_spawn("flusher", flusher, NULL), 0);
    sleep_ms(5);
    /* This write completes after the flush began: who flushes now must wait for the next one. */
    fixture_write(g, 1, 1, 1, NULL);
    for (uint32_t i = 0; i < 10; i++)
        CHECK_EQ(fiber_spawn("flusher", flusher, NULL), 0);
    sleep_ms(8); /* 13: the first one is over */
    CHECK_EQ(flushers.returned, 10);
    sleep_ms(9); /* 22: the second */
    CHECK_EQ(flushers.returned, 20);
    CHECK_EQ(flushers.errors, 0);
    for (uint32_t i = 0; i < 2; i++)
        CHECK_EQ(f->drives[i]->flushes, 2);
}

FIXTURE_TEST(failed_flush_marks_failed_until_stale, 2, 8)
{
    struct group *g = fixture_create(f, 1, 2);
    fixture_write(g, 0, 1, 1, NULL);
    struct fake_drive *bad = fixture_member(f, g, 0);
    bad->flush_error = ERR_SYS(EIO);
    bool failed = false;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0); /* the other copy is durable */
    CHECK(failed);
    CHECK_EQ(f->failures, 1);
    /* A flush that succeeds after one that failed proves nothing. */
    bad->flush_error = 0;
    failed = false;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    CHECK(failed);
    CHECK_EQ(bad->flushes, 1);
    CHECK_EQ(group_drive_reopen(f->groups, g->members[0].drive), ERR_INVALID);
    group_drive_make_stale(f->groups, g->members[0].drive, 5);
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    CHECK(!failed);
    CHECK_EQ(group_drive_reopen(f->groups, g->members[0].drive), 0);
    CHECK(group_drive_usable(g->members[0].drive));
    CHECK_EQ(g->members[0].state, MEMBER_STALE);
}

FIXTURE_TEST(flush_that_loses_the_only_copy_is_an_error, 1, 8)
{
    struct group *g = fixture_create(f, 1, 1);
    fixture_write(g, 0, 1, 1, NULL);
    f->drives[0]->flush_error = ERR_SYS(EIO);
    bool failed = false;
    CHECK_EQ(group_set_flush(f->groups, &failed), ERR_GROUP_DEGRADED_BELOW);
    CHECK(failed);
}

FIXTURE_TEST(flush_counts_a_drive_that_left_with_unflushed_writes, 2, 8)
{
    struct group *g = fixture_create(f, 1, 1);
    fixture_write(g, 0, 1, 1, NULL);
    fake_drive_lose(fixture_member(f, g, 0));
    bool failed = false;
    CHECK_EQ(group_set_flush(f->groups, &failed), ERR_GROUP_DEGRADED_BELOW);
    CHECK(failed);
    CHECK_EQ(f->failures, 1);
}

/* ---- Drives that come and go ---- */

FIXTURE_TEST(drive_that_leaves_is_noticed_without_a_request, 3, 8)
{
    struct group *g = fixture_create(f, 1, 2);
    CHECK(group_healthy(g));
    fake_drive_lose(fixture_member(f, g, 1));
    sleep_ms(1);
    CHECK_EQ(f->failures, 1);
    CHECK(f->failed[0] == g->members[1].drive);
    CHECK(!group_drive_present(g->members[1].drive));
    CHECK_EQ(group_redundancy_left(g), 0);
}

FIXTURE_TEST(drive_taken_out_of_the_set_loses_its_session, 2, 8)
{
    struct group *g = fixture_create(f, 1, 2);
    struct fake_drive *d = fixture_member(f, g, 1);
    drive_set_remove(&f->set, &d->base);
    sleep_ms(1);
    CHECK(!d->open);
    CHECK_EQ(f->failures, 1);
    CHECK_EQ(drive_set_add(&f->set, &d->base), 0);
    group_drive_make_stale(f->groups, g->members[1].drive, 2);
    CHECK_EQ(group_drive_reopen(f->groups, g->members[1].drive), 0);
    CHECK(d->open);
    CHECK_EQ(group_member_fill(g, 1), 0);
}

FIXTURE_TEST(hung_drive_that_left_hides_no_other_failure, 4, 8)
{
    struct group *g = fixture_create(f, 1, 3);
    struct fake_drive *hung = fixture_member(f, g, 0);
    struct pending_write p;
    hung->hold = true;
    pending_submit(&p, g, 0, 1, false);
    sleep_ms(1);
    drive_set_remove(&f->set, &hung->base);
    sleep_ms(1);
    CHECK_EQ(f->failures, 1);
    CHECK(hung->open);
    fake_drive_lose(fixture_member(f, g, 1));
    sleep_ms(1);
    CHECK_EQ(f->failures, 2);
    fake_drive_release(hung);
    sleep_ms(30);
    CHECK(!hung->open);
    CHECK_EQ(p.w.result, 0);
    CHECK(p.w.failed);
    pending_end(&p);
    CHECK_EQ(drive_set_add(&f->set, &hung->base), 0);
}

FIXTURE_TEST(reopen_waits_for_late_answers, 2, 8)
{
    struct group *g = fixture_create(f, 1, 2);
    struct fake_drive *d = fixture_member(f, g, 0);
    struct pending_write p, q;
    d->write_delay_ns = 50 * NSEC_PER_MSEC;
    pending_submit(&p, g, 0, 1, false);
    d->write_delay_ns = 0;
    d->write_error = ERR_SYS(EIO);
    pending_submit(&q, g, 1, 1, false);
    sleep_ms(1);
    pending_end(&q);
    d->write_error = 0;
    group_drive_make_stale(f->groups, g->members[0].drive, 2);
    uint64_t before = reactor_now_ns();
    CHECK_EQ(group_drive_reopen(f->groups, g->members[0].drive), 0);
    CHECK(reactor_now_ns() - before >= 49 * NSEC_PER_MSEC);
    sleep_ms(1);
    CHECK(!p.w.failed);
    pending_end(&p);
}

FIXTURE_TEST(absent_drive_is_kept_and_opened_when_it_is_here, 2, 8)
{
    struct uuid id = f->drives[1]->base.id;
    drive_set_remove(&f->set, &f->drives[1]->base);
    struct group_drive *d = NULL;
    CHECK_EQ(group_drive_open(f->groups, id, &d), ERR_DRIVE_GONE);
    CHECK(d != NULL);
    CHECK(!group_drive_present(d));
    CHECK_EQ(group_drive_incarnation(d), 0);
    CHECK_EQ(drive_set_add(&f->set, &f->drives[1]->base), 0);
    struct group_drive *again = NULL;
    CHECK_EQ(group_drive_open(f->groups, id, &again), 0);
    CHECK(again == d);
    CHECK_EQ(group_drive_incarnation(d), f->drives[1]->incarnation);
}

FIXTURE_TEST(drive_of_a_higher_epoch_refuses_the_session, 1, 8)
{
    f->drives[0]->epoch = 5;
    struct group_drive *d = NULL;
    CHECK_EQ(group_drive_open(f->groups, f->drives[0]->base.id, &d), ERR_DRIVE_FENCED);
}

/* ---- Leases ---- */

FIXTURE_TEST(leases_of_system_drives_count_and_are_renewed, 3, 8)
{
    struct protection p = {PROTECT_MIRROR, 1, 1};
    struct group *g = NULL, *data = fixture_create(f, 9, 3);
    CHECK_EQ(group_create(f->groups, 0, GROUP_SYSTEM, p, 2, &g), 0);
    CHECK(group_set_leases_alive(f->groups));
    sleep_ms(1999);
    CHECK(group_set_leases_alive(f->groups));
    sleep_ms(1);
    CHECK(!group_set_leases_alive(f->groups));
    CHECK_EQ(group_set_leases_renew(f->groups), 0);
    CHECK(group_set_leases_alive(f->groups));
    /* Traffic renews. */
    sleep_ms(1500);
    fixture_write(g, 0, 1, 1, NULL);
    sleep_ms(1500);
    CHECK(group_set_leases_alive(f->groups));
    /* A member that does not grant one ends reading, until it is stale. */
    struct fake_drive *d = fixture_member(f, g, 1);
    d->no_renew = true;
    sleep_ms(3000);
    CHECK_EQ(group_set_leases_renew(f->groups), ERR_TIMEOUT);
    fake_drive_lose(d);
    CHECK_EQ(group_set_leases_renew(f->groups), ERR_DRIVE_GONE);
    CHECK(!group_set_leases_alive(f->groups));
    group_drive_make_stale(f->groups, g->members[1].drive, 4);
    CHECK_EQ(group_set_leases_renew(f->groups), 0);
    CHECK(group_set_leases_alive(f->groups));
    CHECK_EQ(data->members[0].state == MEMBER_STALE || data->members[1].state == MEMBER_STALE ||
                 data->members[2].state == MEMBER_STALE,
             true);
}

FIXTURE_TEST(each_system_drive_must_grant_its_lease, 3, 8)
{
    struct protection p = {PROTECT_MIRROR, 1, 2};
    struct group *g = NULL;
    CHECK_EQ(group_create(f->groups, 0, GROUP_SYSTEM, p, 3, &g), 0);
    for (uint32_t m = 0; m < 3; m++) {
        CHECK_EQ(group_set_leases_renew(f->groups), 0);
        fixture_member(f, g, m)->no_renew = true;
        sleep_ms(1500);
        for (uint32_t other = 0; other < 3; other++) /* the others renew theirs by traffic */
            CHECK(other == m || drive_session_renew(group_drive_session(g->members[other].drive)) == 0);
        sleep_ms(1000);
        CHECK(!group_set_leases_alive(f->groups));
        CHECK_EQ(group_set_leases_renew(f->groups), ERR_TIMEOUT);
        CHECK(!group_set_leases_alive(f->groups));
        fixture_member(f, g, m)->no_renew = false;
    }
    CHECK_EQ(group_set_leases_renew(f->groups), 0);
    CHECK(group_set_leases_alive(f->groups));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_reaches_every_member),
        cmocka_unit_test(write_is_done_only_when_every_member_answered),
        cmocka_unit_test(write_that_one_member_missed_is_good_but_failed),
        cmocka_unit_test(success_on_a_drive_that_failed_another_write_does_not_count),
        cmocka_unit_test(write_that_every_member_missed_is_an_error),
        cmocka_unit_test(write_without_a_drive_is_told_from_the_loop),
        cmocka_unit_test(write_to_a_lost_drive_recorded_meanwhile_is_not_failed),
        cmocka_unit_test(filling_member_is_written_and_its_failure_counts),
        cmocka_unit_test(copy_on_a_filling_member_alone_is_no_success),
        cmocka_unit_test(write_to_more_than_three_members_works),
        cmocka_unit_test(first_flush_covers_what_an_earlier_process_wrote),
        cmocka_unit_test(flush_asks_only_drives_with_unflushed_writes),
        cmocka_unit_test(dsync_write_leaves_nothing_to_flush),
        cmocka_unit_test(concurrent_flushes_share),
        cmocka_unit_test(failed_flush_marks_failed_until_stale),
        cmocka_unit_test(flush_that_loses_the_only_copy_is_an_error),
        cmocka_unit_test(flush_counts_a_drive_that_left_with_unflushed_writes),
        cmocka_unit_test(drive_that_leaves_is_noticed_without_a_request),
        cmocka_unit_test(drive_taken_out_of_the_set_loses_its_session),
        cmocka_unit_test(hung_drive_that_left_hides_no_other_failure),
        cmocka_unit_test(reopen_waits_for_late_answers),
        cmocka_unit_test(absent_drive_is_kept_and_opened_when_it_is_here),
        cmocka_unit_test(drive_of_a_higher_epoch_refuses_the_session),
        cmocka_unit_test(leases_of_system_drives_count_and_are_renewed),
        cmocka_unit_test(each_system_drive_must_grant_its_lease),
    };
    return cmocka_run_group_tests_name("protect writes", tests, NULL, NULL);
}
