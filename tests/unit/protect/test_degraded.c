/* SPDX-License-Identifier: Apache-2.0 */
/* Groups that are made while drives are missing, and members' slabs that are allocated at the same time. */
#include "cmocka_all.h"
#include "fixture.h"

#include "protect/group_internal.h"

static may_yield int create(struct fixture *f, uint32_t id, enum group_purpose purpose, uint32_t copies,
                            struct group **ret)
{
    struct protection p = {
        .kind = copies > 1 ? PROTECT_MIRROR : PROTECT_NONE, .data = 1, .spare = (uint8_t)(copies - 1)};
    return group_create(f->groups, id, purpose, p, copies, ret);
}

static uint32_t members_in(const struct group *g, enum member_state state)
{
    uint32_t n = 0;
    for (uint32_t m = 0; m < g->member_count; m++)
        n += g->members[m].state == state;
    return n;
}

/* The one member without a slab. */
static uint32_t missing_member(const struct group *g)
{
    uint32_t found = UINT32_MAX;
    for (uint32_t m = 0; m < g->member_count; m++) {
        CHECK_EQ(g->members[m].slab == GROUP_SLAB_NONE, g->members[m].state == MEMBER_STALE);
        if (g->members[m].state == MEMBER_STALE)
            found = m;
    }
    CHECK(found != UINT32_MAX);
    return found;
}

static void lose(struct fixture *f, struct fake_drive *d)
{
    fake_drive_lose(d);
    struct group_drive *known = group_set_drive_find(f->groups, d->base.id);
    if (known != NULL && known->live > 0)
        group_drive_make_stale(f->groups, known, 7);
}

static uint32_t used_slabs(const struct fixture *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->drive_count; i++)
        n += f->slabs - fake_drive_free_slabs(f->drives[i]);
    return n;
}

/* ---- What is made ---- */

FIXTURE_TEST(mirror_on_two_drives_goes_on_with_one, 2, 8)
{
    fixture_create(f, 1, 2);
    lose(f, f->drives[0]);
    struct group *g = NULL;
    CHECK_EQ(create(f, 2, GROUP_DATA, 2, &g), 0);
    CHECK_EQ(g->kind, PROTECT_MIRROR);
    CHECK_EQ(g->member_count, 2);
    uint32_t m = missing_member(g);
    CHECK(fixture_member(f, g, m) == f->drives[0]);
    CHECK_EQ(g->members[m].stale_since_txg, 0);
    CHECK_EQ(g->members[1 - m].state, MEMBER_CURRENT);
    CHECK(!group_healthy(g));
    CHECK_EQ(group_redundancy_left(g), 0);
    uint32_t sums[4];
    fixture_write(g, 0, 4, 1, sums);
    struct group_read r = {.group = g, .blocks = 4, .verify = VERIFY_BLOCKS, .sums = sums, .only = -1};
    CHECK_EQ(group_read(&r), 0);
    page_put(r.page, 4);
    bool failed = true;
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    CHECK(!failed);
    /* Its last drive lost, too: nothing is left to make a group of. */
    lose(f, f->drives[1]);
    struct group *none = NULL;
    CHECK_EQ(create(f, 3, GROUP_TREE, 2, &none), ERR_NOT_ENOUGH_DRIVES);
}

FIXTURE_TEST(all_copies_that_have_a_place_are_made, 3, 8)
{
    fixture_create(f, 1, 3);
    lose(f, f->drives[2]);
    struct group *g = NULL;
    CHECK_EQ(create(f, 2, GROUP_TREE, 3, &g), 0);
    CHECK_EQ(members_in(g, MEMBER_CURRENT), 2);
    CHECK(fixture_member(f, g, missing_member(g)) == f->drives[2]);
    lose(f, f->drives[1]);
    CHECK_EQ(create(f, 3, GROUP_DATA, 3, &g), 0);
    CHECK_EQ(members_in(g, MEMBER_CURRENT), 1);
    CHECK_EQ(members_in(g, MEMBER_STALE), 2);
    CHECK(g->members[0].drive != g->members[1].drive && g->members[1].drive != g->members[2].drive &&
          g->members[0].drive != g->members[2].drive);
}

FIXTURE_TEST(groups_are_whole_while_enough_drives_have_room, 4, 3)
{
    fixture_create(f, 1, 4);
    lose(f, f->drives[0]);
    struct group *g = NULL;
    for (uint32_t id = 2; id < 5; id++) { /* six free slabs on three drives */
        CHECK_EQ(create(f, id, GROUP_DATA, 2, &g), 0);
        CHECK(group_healthy(g));
    }
    CHECK_EQ(create(f, 5, GROUP_DATA, 2, &g), ERR_DRIVE_NO_SPACE);
    /* One drive has room, and one is missing: what a copy on the missing one would have been, is owed. */
    CHECK_EQ(group_destroy(f->groups, group_find(f->groups, 4)), 0);
    struct fake_drive *roomy = NULL;
    for (uint32_t i = 1; i < 4; i++)
        roomy = fake_drive_free_slabs(f->drives[i]) > 0 ? f->drives[i] : roomy;
    for (uint32_t i = 1; i < 4; i++) {
        for (uint32_t k = 0; f->drives[i] != roomy && k < f->slabs; k++)
            f->drives[i]->slabs[k].used = true;
    }
    CHECK_EQ(create(f, 6, GROUP_DATA, 2, &g), 0);
    CHECK(fixture_member(f, g, missing_member(g)) == f->drives[0]);
}

FIXTURE_TEST(nobody_waits_for_a_drive_that_no_group_knows, 2, 8)
{
    struct group *g = NULL;
    fixture_create(f, 1, 1);
    uint32_t other = fixture_member(f, group_find(f->groups, 1), 0) == f->drives[0] ? 1 : 0;
    lose(f, f->drives[other]);
    CHECK_EQ(create(f, 2, GROUP_DATA, 2, &g), ERR_NOT_ENOUGH_DRIVES);
    CHECK_EQ(used_slabs(f), 1);
}

FIXTURE_TEST(system_groups_are_never_made_with_less, 2, 8)
{
    struct group *g = NULL;
    CHECK_EQ(create(f, 0, GROUP_SYSTEM, 2, &g), 0);
    lose(f, f->drives[1]);
    CHECK_EQ(create(f, 1, GROUP_SYSTEM, 2, &g), ERR_NOT_ENOUGH_DRIVES);
    CHECK_EQ(used_slabs(f), 2);
}

FIXTURE_TEST(description_without_a_slab_survives_and_is_destroyed, 2, 8)
{
    fixture_create(f, 1, 2);
    lose(f, f->drives[1]);
    struct group *g = NULL, *again = NULL;
    CHECK_EQ(create(f, 2, GROUP_DATA, 2, &g), 0);
    uint8_t item[GROUP_ITEM_MAX], second[GROUP_ITEM_MAX];
    struct group d;
    struct uuid ids[GROUP_MEMBERS_MAX];
    uint32_t len = group_encode(g, item);
    CHECK_EQ(group_decode(item, len, &d, ids), 0);
    fixture_reopen(f);
    CHECK_EQ(group_adopt_decoded(f->groups, &d, ids, &again), 0);
    CHECK_EQ(group_encode(again, second), len);
    CHECK(memcmp(item, second, len) == 0);
    CHECK_EQ(group_destroy(f->groups, again), 0);
    CHECK_EQ(used_slabs(f), 2);
}

/* ---- Repair ---- */

static may_yield void level(struct fixture *f, struct group *g, uint32_t m, const uint32_t *sums)
{
    bool failed;
    CHECK_EQ(g->members[m].state, MEMBER_FILLING);
    CHECK(g->members[m].slab != GROUP_SLAB_NONE);
    CHECK_EQ(group_copy_to_member(g, m, 0, 4, VERIFY_BLOCKS, sums), 0);
    CHECK_EQ(group_set_flush(f->groups, &failed), 0);
    group_member_levelled(g, m);
    CHECK_EQ(group_set_reap(f->groups), 0);
    CHECK(group_healthy(g));
    for (uint32_t b = 0; b < 4; b++)
        CHECK(copy_is(f, g, m, b, 1));
}

FIXTURE_TEST(missing_member_gets_a_slab_where_it_belongs, 2, 8)
{
    fixture_create(f, 1, 2);
    lose(f, f->drives[1]);
    struct group *g = NULL;
    uint32_t sums[4];
    CHECK_EQ(create(f, 2, GROUP_DATA, 2, &g), 0);
    uint32_t m = missing_member(g);
    fixture_write(g, 0, 4, 1, sums);
    CHECK_EQ(group_member_replace(f->groups, g, m), ERR_NOT_ENOUGH_DRIVES);
    fake_drive_return(f->drives[1], true);
    CHECK_EQ(group_drive_reopen(f->groups, g->members[m].drive), 0);
    CHECK_EQ(group_member_fill(g, m), ERR_INVALID);
    CHECK_EQ(g->members[m].state, MEMBER_STALE);
    CHECK_EQ(group_member_replace(f->groups, g, m), 0);
    CHECK(fixture_member(f, g, m) == f->drives[1]);
    level(f, g, m, sums);
    CHECK_EQ(used_slabs(f), 4);
    lose(f, f->drives[0]);
    struct group_read r = {.group = g, .blocks = 4, .verify = VERIFY_BLOCKS, .sums = sums, .only = -1};
    CHECK_EQ(group_read(&r), 0);
    page_put(r.page, 4);
}

FIXTURE_TEST(missing_member_gets_a_slab_on_a_new_drive, 3, 8)
{
    drive_set_remove(&f->set, &f->drives[2]->base);
    fixture_create(f, 1, 2);
    lose(f, f->drives[1]);
    struct group *g = NULL;
    uint32_t sums[4];
    CHECK_EQ(create(f, 2, GROUP_DATA, 2, &g), 0);
    uint32_t m = missing_member(g);
    fixture_write(g, 0, 4, 1, sums);
    CHECK_EQ(drive_set_add(&f->set, &f->drives[2]->base), 0);
    CHECK_EQ(group_member_replace(f->groups, g, m), 0);
    CHECK(fixture_member(f, g, m) == f->drives[2]);
    CHECK(list_empty(&f->groups->retired));
    level(f, g, m, sums);
    CHECK_EQ(used_slabs(f), 4);
}

/* ---- At the same time ---- */

FIXTURE_TEST(slabs_of_all_members_are_allocated_at_the_same_time, 4, 8)
{
    for (uint32_t i = 0; i < 4; i++)
        f->drives[i]->alloc_delay_ns = 10 * NSEC_PER_MSEC;
    uint64_t begun = reactor_now_ns();
    struct group *g = fixture_create(f, 1, 4);
    CHECK(group_healthy(g));
    CHECK(reactor_now_ns() - begun < 15 * NSEC_PER_MSEC);
}

FIXTURE_TEST(member_whose_drive_fails_goes_elsewhere_and_the_others_stay, 5, 8)
{
    for (uint32_t i = 0; i < 5; i++)
        f->drives[i]->alloc_delay_ns = (i + 1) * NSEC_PER_MSEC;
    f->drives[1]->alloc_error = ERR_SYS(EIO);
    f->drives[3]->alloc_error = ERR_DRIVE_NO_SPACE;
    struct group *g = NULL;
    CHECK_EQ(create(f, 1, GROUP_DATA, 3, &g), 0);
    CHECK(group_healthy(g));
    CHECK_EQ(used_slabs(f), 3);
    CHECK_EQ(create(f, 2, GROUP_DATA, 4, &g), ERR_DRIVE_NO_SPACE);
    CHECK_EQ(used_slabs(f), 3);
}

FIXTURE_TEST(owner_who_was_replaced_gives_back_what_he_took, 4, 8)
{
    struct group *g = fixture_create(f, 1, 4);
    CHECK_EQ(used_slabs(f), 4);
    f->drives[2]->epoch = 99;
    CHECK_EQ(create(f, 2, GROUP_DATA, 4, &g), ERR_DRIVE_FENCED);
    CHECK_EQ(used_slabs(f), 4);
    CHECK(group_find(f->groups, 2) == NULL);
}

static struct fixture *cancel_fixture;
static int cancel_result;
static may_yield void cancelled_main(void *arg)
{
    struct group *g = NULL;
    (void)arg;
    cancel_result = create(cancel_fixture, 1, GROUP_DATA, 4, &g);
}

FIXTURE_TEST(cancelled_creation_gives_back_what_it_took, 4, 8)
{
    for (uint32_t i = 0; i < 4; i++)
        f->drives[i]->alloc_delay_ns = (i == 0 ? 1 : 50) * NSEC_PER_MSEC;
    cancel_fixture = f;
    cancel_result = 0;
    struct fiber *fiber;
    CHECK_EQ(fiber_spawn_joinable("creator", cancelled_main, NULL, &fiber), 0);
    sleep_ms(10);
    CHECK_EQ(used_slabs(f), 1);
    uint64_t begun = reactor_now_ns();
    fiber_cancel(fiber);
    fiber_join(fiber);
    CHECK_EQ(cancel_result, ERR_CANCELLED);
    CHECK(reactor_now_ns() - begun < 60 * NSEC_PER_MSEC);
    CHECK_EQ(used_slabs(f), 0);
    CHECK(group_find(f->groups, 1) == NULL);
    CHECK_EQ(f->groups->creating, 0);
}

static uint32_t at_once;
static may_yield void one_of_many(void *arg)
{
    struct fixture *f = arg;
    static uint32_t next = 100;
    CHECK(group_healthy(fixture_create(f, next++, 2)));
    at_once--;
}

FIXTURE_TEST(groups_made_at_the_same_time_spread_over_all_drives, 8, 16)
{
    for (uint32_t i = 0; i < 8; i++)
        f->drives[i]->alloc_delay_ns = NSEC_PER_MSEC;
    for (uint32_t n = 0; n < 16; n++) {
        at_once++;
        CHECK_EQ(fiber_spawn("one-of-many", one_of_many, f), 0);
    }
    while (at_once > 0)
        sleep_ms(1);
    for (uint32_t i = 0; i < 8; i++)
        CHECK_EQ(fake_drive_free_slabs(f->drives[i]), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mirror_on_two_drives_goes_on_with_one),
        cmocka_unit_test(all_copies_that_have_a_place_are_made),
        cmocka_unit_test(groups_are_whole_while_enough_drives_have_room),
        cmocka_unit_test(nobody_waits_for_a_drive_that_no_group_knows),
        cmocka_unit_test(system_groups_are_never_made_with_less),
        cmocka_unit_test(description_without_a_slab_survives_and_is_destroyed),
        cmocka_unit_test(missing_member_gets_a_slab_where_it_belongs),
        cmocka_unit_test(missing_member_gets_a_slab_on_a_new_drive),
        cmocka_unit_test(slabs_of_all_members_are_allocated_at_the_same_time),
        cmocka_unit_test(member_whose_drive_fails_goes_elsewhere_and_the_others_stay),
        cmocka_unit_test(owner_who_was_replaced_gives_back_what_he_took),
        cmocka_unit_test(cancelled_creation_gives_back_what_it_took),
        cmocka_unit_test(groups_made_at_the_same_time_spread_over_all_drives),
    };
    return cmocka_run_group_tests_name("protect degraded", tests, NULL, NULL);
}
