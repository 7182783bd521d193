/* SPDX-License-Identifier: Apache-2.0 */
/* Placement, creation, adoption, and the bytes of a description. */
#include "cmocka_all.h"
#include "fixture.h"

#include "protect/group_format.h"
#include "protect/group_internal.h"

#include <stdlib.h>

static may_yield int create(struct fixture *f, uint32_t id, enum group_purpose purpose, uint32_t copies,
                            struct group **ret)
{
    struct protection p = {
        .kind = copies > 1 ? PROTECT_MIRROR : PROTECT_NONE, .data = 1, .spare = (uint8_t)(copies - 1)};
    return group_create(f->groups, id, purpose, p, copies, ret);
}

static uint32_t used_slabs(const struct fixture *f, uint32_t drive)
{
    return f->slabs - fake_drive_free_slabs(f->drives[drive]);
}

/* ---- Placement ---- */

FIXTURE_TEST(placement_spreads_evenly, 8, 16)
{
    for (uint32_t id = 0; id < 24; id++) {
        struct group *g = fixture_create(f, id, 2);
        CHECK(g->members[0].drive != g->members[1].drive);
        CHECK_EQ(g->kind, PROTECT_MIRROR);
        CHECK_EQ(g->blocks, FIXTURE_SLAB_BLOCKS);
        CHECK(group_healthy(g));
        CHECK_EQ(group_redundancy_left(g), 1);
    }
    for (uint32_t i = 0; i < 8; i++)
        CHECK_EQ(used_slabs(f, i), 6);
    /* Not the same pairs again and again: a lost drive is repaired from many. */
    uint32_t partners = 0;
    for (struct group *g = group_next(f->groups, NULL); g != NULL; g = group_next(f->groups, g)) {
        for (uint32_t m = 0; m < 2; m++) {
            if (fixture_member(f, g, m) == f->drives[0]) {
                struct fake_drive *other = fixture_member(f, g, 1 - m);
                for (uint32_t i = 0; i < 8; i++)
                    partners |= (uint32_t)(f->drives[i] == other) << i;
            }
        }
    }
    CHECK(__builtin_popcount(partners) >= 3);
}

FIXTURE_TEST(placement_prefers_the_emptiest_drives, 4, 16)
{
    for (uint32_t i = 0; i < 8; i++) { /* somebody else's slabs on drives 0 and 1 */
        for (uint32_t d = 0; d < 2; d++) {
            f->drives[d]->slabs[i] = (struct fake_slab){.used = true, .volume = {{0x99}}};
        }
    }
    for (uint32_t id = 0; id < 8; id++) {
        struct group *g = fixture_create(f, id, 2);
        for (uint32_t m = 0; m < 2; m++)
            CHECK(fixture_member(f, g, m) == f->drives[2] || fixture_member(f, g, m) == f->drives[3]);
    }
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ(used_slabs(f, i), 8);
}

static uint8_t chosen[2][24];
static uint32_t chosen_run;

FIXTURE_TEST(choose_many, 8, 16)
{
    for (uint32_t id = 0; id < 12; id++) {
        struct group *g = fixture_create(f, id, 2);
        for (uint32_t m = 0; m < 2; m++)
            chosen[chosen_run][2 * id + m] = group_drive_id(g->members[m].drive).b[1];
    }
}

static void placement_is_the_same_for_the_same_volume(void **state)
{
    for (chosen_run = 0; chosen_run < 2; chosen_run++)
        choose_many(state);
    assert_memory_equal(chosen[0], chosen[1], sizeof(chosen[0]));
}

FIXTURE_TEST(too_few_drives_and_full_drives_are_told_apart, 3, 2)
{
    struct group *g = NULL;
    CHECK_EQ(create(f, 1, GROUP_DATA, 4, &g), ERR_NOT_ENOUGH_DRIVES);
    CHECK_EQ(create(f, 1, GROUP_DATA, 3, &g), 0);
    CHECK_EQ(create(f, 2, GROUP_DATA, 2, &g), 0);
    CHECK_EQ(create(f, 3, GROUP_DATA, 2, &g), ERR_DRIVE_NO_SPACE);
    for (uint32_t i = 0, free_slabs = 0; i < 3; i++) {
        free_slabs += fake_drive_free_slabs(f->drives[i]);
        if (i == 2)
            CHECK_EQ(free_slabs, 1); /* what the failed one took, it gave back */
    }
    CHECK_EQ(create(f, 4, GROUP_DATA, 4, &g), ERR_NOT_ENOUGH_DRIVES);
    struct protection parity = {PROTECT_PARITY, 4, 2};
    CHECK_EQ(group_create(f->groups, 5, GROUP_DATA, parity, 6, &g), ERR_BAD_PROTECTION);
}

FIXTURE_TEST(drive_that_cannot_allocate_is_passed_over, 3, 4)
{
    f->drives[1]->alloc_error = ERR_SYS(EIO);
    for (uint32_t id = 0; id < 3; id++) {
        struct group *g = fixture_create(f, id, 2);
        CHECK(fixture_member(f, g, 0) != f->drives[1]);
        CHECK(fixture_member(f, g, 1) != f->drives[1]);
    }
    struct group *g = NULL;
    CHECK_EQ(create(f, 9, GROUP_DATA, 3, &g), ERR_NOT_ENOUGH_DRIVES);
    CHECK_EQ(used_slabs(f, 0), 3);
    CHECK_EQ(used_slabs(f, 2), 3);
    CHECK_EQ(f->failures, 0);
}

FIXTURE_TEST(drive_with_other_slabs_is_no_candidate, 2, 4)
{
    f->drives[1]->base.slab_blocks = 2 * FIXTURE_SLAB_BLOCKS;
    struct group *g = NULL;
    CHECK_EQ(create(f, 1, GROUP_DATA, 2, &g), ERR_NOT_ENOUGH_DRIVES);
    CHECK_EQ(create(f, 1, GROUP_DATA, 1, &g), 0);
    CHECK_EQ(g->kind, PROTECT_NONE);
}

FIXTURE_TEST(all_system_groups_share_their_drives_in_order, 8, 16)
{
    struct group *g[4] = {0};
    for (uint32_t id = 0; id < 4; id++) {
        CHECK_EQ(create(f, id, GROUP_SYSTEM, 3, &g[id]), 0);
        CHECK_EQ(create(f, 100 + id, GROUP_DATA, 2, &(struct group *){NULL}), 0);
        for (uint32_t m = 0; m < 3; m++)
            CHECK(g[id]->members[m].drive == g[0]->members[m].drive);
    }
}

/* ---- Creation again, adoption, destruction ---- */

FIXTURE_TEST(creation_after_a_crash_finds_its_slabs_again, 8, 16)
{
    struct group *g = fixture_create(f, 77, 3);
    struct uuid drives[3];
    uint32_t slabs[3];
    fixture_write(g, 0, 1, 1, NULL);
    for (uint32_t m = 0; m < 3; m++) {
        drives[m] = group_drive_id(g->members[m].drive);
        slabs[m] = g->members[m].slab;
    }
    fixture_create(f, 78, 2); /* so that other drives would be chosen now */
    fixture_reopen(f);
    struct group *again = fixture_create(f, 77, 3);
    for (uint32_t m = 0; m < 3; m++) {
        CHECK(uuid_equal(drives[m], group_drive_id(again->members[m].drive)));
        CHECK_EQ(again->members[m].slab, slabs[m]);
        CHECK(copy_is(f, again, m, 0, 1));
    }
    CHECK(fixture_create(f, 77, 3) == again);
    struct group *other = NULL;
    CHECK_EQ(create(f, 77, GROUP_TREE, 3, &other), ERR_EXISTS);
    uint32_t used = 0;
    for (uint32_t i = 0; i < 8; i++)
        used += used_slabs(f, i);
    CHECK_EQ(used, 5);
}

FIXTURE_TEST(creation_that_fails_keeps_slabs_that_may_hold_data, 3, 16)
{
    struct group *g = fixture_create(f, 77, 3);
    struct fake_drive *first = fixture_member(f, g, 0);
    struct fake_drive *gone = fixture_member(f, g, 2);
    fixture_reopen(f);
    gone->alloc_error = ERR_DRIVE_NO_SPACE;
    struct group *again = NULL;
    CHECK_EQ(create(f, 77, GROUP_DATA, 3, &again), ERR_DRIVE_NO_SPACE);
    CHECK_EQ(fake_drive_free_slabs(first), 15);
}

FIXTURE_TEST(group_survives_encode_decode_and_adoption, 4, 16)
{
    struct group *g = fixture_create(f, 5, 3);
    fixture_write(g, 3, 1, 1, NULL);
    group_drive_make_stale(f->groups, g->members[1].drive, 42);
    uint8_t item[GROUP_ITEM_MAX];
    uint32_t len = group_encode(g, item);
    CHECK_EQ(len, 64 + 3 * 48);
    struct group d;
    struct uuid drives[GROUP_MEMBERS_MAX];
    CHECK_EQ(group_decode(item, len, &d, drives), 0);
    CHECK_EQ(d.id, 5);
    CHECK_EQ(d.purpose, GROUP_DATA);
    CHECK_EQ(d.kind, PROTECT_MIRROR);
    CHECK_EQ(d.blocks, FIXTURE_SLAB_BLOCKS);
    CHECK_EQ(d.member_count, 3);
    for (uint32_t m = 0; m < 3; m++) {
        CHECK(uuid_equal(drives[m], group_drive_id(g->members[m].drive)));
        CHECK(d.members[m].drive == NULL);
        CHECK_EQ(d.members[m].slab, g->members[m].slab);
        CHECK_EQ(d.members[m].state, m == 1 ? MEMBER_STALE : MEMBER_CURRENT);
        CHECK_EQ(d.members[m].stale_since_txg, m == 1 ? 42 : 0);
        CHECK_EQ(d.members[m].incarnation, fixture_member(f, g, m)->incarnation);
    }
    /* One drive is not there when the set is opened again. */
    struct fake_drive *away = fixture_member(f, g, 2);
    drive_set_remove(&f->set, &away->base);
    fixture_reopen(f);
    struct group *again = NULL;
    CHECK_EQ(group_adopt_decoded(f->groups, &d, drives, &again), 0);
    CHECK(group_find(f->groups, 5) == again);
    CHECK(group_drive_usable(again->members[0].drive));
    CHECK(!group_drive_present(again->members[2].drive));
    CHECK_EQ(group_redundancy_left(again), 0);
    uint8_t second[GROUP_ITEM_MAX];
    CHECK_EQ(group_encode(again, second), len);
    CHECK(memcmp(item, second, len) == 0);
    struct group *twice = NULL;
    CHECK_EQ(group_adopt_decoded(f->groups, &d, drives, &twice), ERR_EXISTS);
    CHECK_EQ(drive_set_add(&f->set, &away->base), 0);
}

FIXTURE_TEST(adoption_by_one_who_was_replaced_is_refused, 2, 4)
{
    struct group *g = fixture_create(f, 5, 2);
    uint8_t item[GROUP_ITEM_MAX];
    uint32_t len = group_encode(g, item);
    struct group d;
    struct uuid drives[GROUP_MEMBERS_MAX];
    CHECK_EQ(group_decode(item, len, &d, drives), 0);
    fixture_reopen(f);
    f->drives[1]->epoch = 99;
    struct group *again = NULL;
    CHECK_EQ(group_adopt_decoded(f->groups, &d, drives, &again), ERR_DRIVE_FENCED);
    CHECK(group_find(f->groups, 5) == NULL);
}

FIXTURE_TEST(destroyed_group_gives_its_slabs_back, 3, 4)
{
    struct group *g = fixture_create(f, 5, 3);
    fake_drive_lose(fixture_member(f, g, 1));
    CHECK_EQ(group_destroy(f->groups, g), 0);
    CHECK(group_find(f->groups, 5) == NULL);
    uint32_t used = 0;
    for (uint32_t i = 0; i < 3; i++)
        used += used_slabs(f, i);
    CHECK_EQ(used, 1); /* the absent drive's; its owner frees it at the next open */
}

FIXTURE_TEST(groups_are_found_and_walked_in_order, 2, 64)
{
    static const uint32_t ids[] = {500, 3, 4, 5, 900, 6, 4000000000u, 7, 0, UINT32_MAX};
    for (uint32_t i = 0; i < ARRAY_SIZE(ids); i++)
        fixture_create(f, ids[i], 1);
    CHECK_EQ(group_destroy(f->groups, group_find(f->groups, 5)), 0);
    static const uint32_t expect[] = {0, 3, 4, 6, 7, 500, 900, 4000000000u, UINT32_MAX};
    uint32_t n = 0;
    for (struct group *g = group_next(f->groups, NULL); g != NULL; g = group_next(f->groups, g)) {
        CHECK_EQ(g->id, expect[MIN(n, ARRAY_SIZE(expect) - 1)]);
        CHECK(group_find(f->groups, g->id) == g);
        n++;
    }
    CHECK_EQ(n, ARRAY_SIZE(expect));
    CHECK(group_find(f->groups, 5) == NULL);
    CHECK(group_find(f->groups, 1000) == NULL);
}

FIXTURE_TEST(redundancy_left_counts_what_can_be_read, 3, 4)
{
    struct group *g = fixture_create(f, 1, 3);
    CHECK_EQ(group_redundancy_left(g), 2);
    group_drive_make_stale(f->groups, g->members[0].drive, 1);
    CHECK_EQ(group_redundancy_left(g), 1);
    CHECK_EQ(group_member_fill(g, 0), 0);
    CHECK_EQ(group_redundancy_left(g), 1);
    fake_drive_lose(fixture_member(f, g, 1));
    CHECK_EQ(group_redundancy_left(g), 0);
    fake_drive_lose(fixture_member(f, g, 2));
    CHECK_EQ(group_redundancy_left(g), -1);
    CHECK(!group_healthy(g));
}

/* ---- Input that is damaged ---- */

static void build_item(uint8_t *item, uint32_t members)
{
    struct group_item_head head = {.version = GROUP_ITEM_VERSION,
                                   .purpose = GROUP_ITEM_DATA,
                                   .kind = GROUP_ITEM_KIND_MIRROR,
                                   .data = 1,
                                   .spare = (uint8_t)(members - 1),
                                   .member_count = (uint8_t)members,
                                   .member_bytes = sizeof(struct group_item_member),
                                   .domains = 1,
                                   .id = le32_make(9),
                                   .blocks = le32_make(1024)};
    memcpy(item, &head, sizeof(head));
    for (uint32_t m = 0; m < members; m++) {
        struct group_item_member member = {.drive_id = {{1, (uint8_t)m}}, .slab = le32_make(m)};
        memcpy(item + sizeof(head) + m * sizeof(member), &member, sizeof(member));
    }
}

static int decode_changed(uint32_t at, uint8_t value)
{
    uint8_t item[GROUP_ITEM_MAX];
    struct group g = {.id = 12345};
    struct uuid drives[GROUP_MEMBERS_MAX];
    build_item(item, 2);
    item[at] = value;
    int err = group_decode(item, 64 + 2 * 48, &g, drives);
    if (err != 0)
        assert_int_equal(g.id, 12345); /* outputs only on success */
    return err;
}

static void damaged_descriptions_are_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        int err;
    } cases[] = {
        {offsetof(struct group_item_head, version), 2, ERR_UNSUPPORTED},
        {offsetof(struct group_item_head, kind), GROUP_ITEM_KIND_PARITY, ERR_UNSUPPORTED},
        {offsetof(struct group_item_head, incompatible) + 3, 0x80, ERR_UNSUPPORTED},
        {offsetof(struct group_item_head, compatible), 1, 0},
        {offsetof(struct group_item_head, kind), 200, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, kind), GROUP_ITEM_KIND_NONE, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, purpose), 3, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, data), 2, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, spare), 2, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, member_count), 0, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, member_count), 3, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, member_count), 255, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, member_bytes), 40, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, domains), 2, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, blocks) + 3, 0x40, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, blocks) + 1, 0, ERR_VOLUME_CORRUPT}, /* 1024 becomes 0 */
        {offsetof(struct group_item_head, stripe_unit_blocks), 1, ERR_VOLUME_CORRUPT},
        {offsetof(struct group_item_head, reserved) + 31, 1, ERR_VOLUME_CORRUPT},
        {64 + offsetof(struct group_item_member, drive_id), 0, ERR_VOLUME_CORRUPT}, /* none */
        {64 + 48 + 1, 0, ERR_VOLUME_CORRUPT},                                       /* the same twice */
        {64 + offsetof(struct group_item_member, state), 3, ERR_VOLUME_CORRUPT},
        {64 + offsetof(struct group_item_member, role), 1, ERR_VOLUME_CORRUPT},
        {64 + offsetof(struct group_item_member, flags), 1, ERR_VOLUME_CORRUPT},
        {64 + offsetof(struct group_item_member, stale_since_txg), 1, ERR_VOLUME_CORRUPT},
        {64 + offsetof(struct group_item_member, reserved) + 7, 1, ERR_VOLUME_CORRUPT},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int err = decode_changed((uint32_t)cases[i].at, cases[i].value);
        if (err != cases[i].err)
            fail_msg("case %zu: %s, expected %s", i, error_name(err), error_name(cases[i].err));
    }
}

static void only_a_stale_member_may_have_no_slab(void **state)
{
    (void)state;
    for (uint8_t state_of = 0; state_of <= 2; state_of++) {
        uint8_t item[GROUP_ITEM_MAX];
        struct group g;
        struct uuid drives[GROUP_MEMBERS_MAX];
        build_item(item, 2);
        memset(item + 64 + 48 + offsetof(struct group_item_member, slab), 0xff, 4);
        item[64 + 48 + offsetof(struct group_item_member, state)] = state_of;
        int err = group_decode(item, 64 + 2 * 48, &g, drives);
        assert_int_equal(err, state_of == MEMBER_STALE ? 0 : ERR_VOLUME_CORRUPT);
        if (err == 0)
            assert_int_equal(g.members[1].slab, GROUP_SLAB_NONE);
    }
}

static void cut_off_descriptions_are_refused(void **state)
{
    (void)state;
    uint8_t item[GROUP_ITEM_MAX + 1] = {0};
    build_item(item, 3);
    for (uint32_t len = 0; len <= GROUP_ITEM_MAX + 1; len++) {
        /* An exact allocation, so that ASan sees a read beyond it. */
        uint8_t *exact = malloc(MAX(len, 1));
        assert_non_null(exact);
        memcpy(exact, item, len);
        struct group g;
        struct uuid drives[GROUP_MEMBERS_MAX];
        int err = group_decode(exact, len, &g, drives);
        free(exact);
        assert_int_equal(err, len == 64 + 3 * 48 ? 0 : ERR_VOLUME_CORRUPT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_spreads_evenly),
        cmocka_unit_test(placement_prefers_the_emptiest_drives),
        cmocka_unit_test(placement_is_the_same_for_the_same_volume),
        cmocka_unit_test(too_few_drives_and_full_drives_are_told_apart),
        cmocka_unit_test(drive_that_cannot_allocate_is_passed_over),
        cmocka_unit_test(drive_with_other_slabs_is_no_candidate),
        cmocka_unit_test(all_system_groups_share_their_drives_in_order),
        cmocka_unit_test(creation_after_a_crash_finds_its_slabs_again),
        cmocka_unit_test(creation_that_fails_keeps_slabs_that_may_hold_data),
        cmocka_unit_test(group_survives_encode_decode_and_adoption),
        cmocka_unit_test(adoption_by_one_who_was_replaced_is_refused),
        cmocka_unit_test(destroyed_group_gives_its_slabs_back),
        cmocka_unit_test(groups_are_found_and_walked_in_order),
        cmocka_unit_test(redundancy_left_counts_what_can_be_read),
        cmocka_unit_test(damaged_descriptions_are_refused),
        cmocka_unit_test(only_a_stale_member_may_have_no_slab),
        cmocka_unit_test(cut_off_descriptions_are_refused),
    };
    return cmocka_run_group_tests_name("protect groups", tests, NULL, NULL);
}
