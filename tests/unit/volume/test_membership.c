/* SPDX-License-Identifier: Apache-2.0 */
/* Drives that fail under an open volume, and repair after it. */
#include "volume_test.h"

#include "volume/verify.h"

#define BLOCKS 1024u

struct world {
    struct pool pool;
    struct volume *v;
    struct uuid id;
    uint32_t model[BLOCKS];
    uint64_t rng;
};

static may_yield bool world_open(struct world *w, const char *protection)
{
    pool_open(&w->pool);
    w->id = pool_volume(&w->pool, protection, BLOCKS * BLOCK_SIZE);
    return CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0);
}

static may_yield void world_close(struct world *w)
{
    CHECK_EQ(volume_close(w->v), 0);
    pool_close(&w->pool);
}

static may_yield bool churn(struct world *w, uint32_t steps)
{
    bool good = true;

    for (uint32_t s = 0; good && s < steps; s++) {
        w->rng = hash_mix64(w->rng + 1);
        uint32_t block = (uint32_t)(w->rng >> 8) % BLOCKS,
                 n = MIN((uint32_t)(w->rng >> 40) % 20 + 1, BLOCKS - block);
        uint32_t generation = (uint32_t)(w->rng >> 20) | 1;
        good = CHECK_EQ(test_write(w->v, block, n, generation, w->rng & 1 ? VOLUME_WRITE_FUA : 0), 0);
        for (uint32_t i = 0; i < n; i++)
            w->model[block + i] = generation;
    }
    return good;
}

static may_yield bool all_right(struct world *w)
{
    bool good = true;

    for (uint32_t i = 0; good && i < BLOCKS; i++)
        good = CHECK(test_holds(w->v, i, 1, w->model[i]));
    return good;
}

static void forget_cache(struct world *w)
{
    (void)cache_reclaim(w->pool.cache, UINT32_MAX);
}

static may_yield void repair_wait(struct world *w)
{
    struct volume_status s;

    do {
        (void)fiber_sleep(5 * NSEC_PER_MSEC);
        volume_get_status(w->v, &s);
    } while (s.repair.running);
}

/* mirror:2 loses a drive under load, goes on, repairs itself onto the others, then loses a second one. */
static may_yield void mirror_survives(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));
    struct volume_status s;

    (void)arg;
    bool good = world_open(w, "mirror:2") && churn(w, 300);
    for (uint32_t lost = 0; good && lost < 2; lost++) {
        drive_home_remove(w->pool.homes[lost]);
        good = churn(w, 200);
        forget_cache(w);
        good = good && all_right(w);
        repair_wait(w);
        volume_get_status(w->v, &s);
        good = good && CHECK_EQ(s.stale_members, 0) && CHECK_EQ(s.redundancy_left, 1) && CHECK(s.healthy);
    }
    forget_cache(w);
    if (good && all_right(w)) {
        struct volume_verify r = {0};
        CHECK_EQ(volume_verify(w->v, &r), 0);
        CHECK_EQ(r.problems, 0);
    }
    world_close(w);
    free(w);
}

static void a_mirror_goes_on_without_a_drive_and_repairs_itself(void **state)
{
    (void)state;
    drive_test_run(mirror_survives, NULL);
}

/* ---- Exactly as many drives as copies ---- */

static uint32_t groups_without_a_slab(struct world *w)
{
    uint32_t n = 0;

    for (struct group *g = group_next(w->v->groups, NULL); g; g = group_next(w->v->groups, g))
        for (uint32_t m = 0; m < g->member_count; m++)
            n += g->members[m].slab == GROUP_SLAB_NONE;
    return n;
}

static may_yield bool fill_all(struct world *w, uint32_t generation)
{
    bool good = true;

    for (uint32_t i = 0; good && i < BLOCKS; i += 16) {
        good = CHECK_EQ(test_write(w->v, i, 16, generation, 0), 0);
        for (uint32_t k = i; k < i + 16; k++)
            w->model[k] = generation;
    }
    return good;
}

/* A restart of the server: the log and the root are all that is left. */
static may_yield bool reopen(struct world *w)
{
    return CHECK_EQ(volume_close(w->v), 0) && CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0);
}

/* The pool has d0 and d1 (arg "mirror:2") or d2 as well ("mirror:3"); the last drive is kept for later. One
 * is lost before the first data group exists, writes go on, the spare drive comes, all are level again; then
 * another one goes. */
static may_yield void exactly_enough(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));
    struct volume_status s;
    uint32_t copies = strcmp(arg, "mirror:3") == 0 ? 3 : 2;

    pool_open(&w->pool);
    for (uint32_t i = copies; i < TEST_DRIVES; i++)
        drive_set_remove(&w->pool.set, w->pool.drives[i]);
    w->id = pool_volume(&w->pool, arg, BLOCKS * BLOCK_SIZE);
    bool good = CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0);
    if (good) {
        drive_home_remove(w->pool.homes[0]);
        good = fill_all(w, 1) && churn(w, 100);
        forget_cache(w);
        volume_get_status(w->v, &s);
        good = good && all_right(w) && CHECK(groups_without_a_slab(w) > 0);
        CHECK_EQ(s.redundancy_left, copies - 2);
        CHECK(!s.healthy);
        CHECK(s.stale_members > 0);
    }
    if (good && reopen(w)) {
        uint32_t without = groups_without_a_slab(w);
        good = CHECK(without > 0) && all_right(w) && churn(w, 100);
        CHECK_EQ(drive_set_add(&w->pool.set, w->pool.drives[copies]), 0);
        int r = volume_repair_start(w->v, 0);
        CHECK(r == 0 || r == ERR_VOLUME_BUSY);
        repair_wait(w);
        volume_get_status(w->v, &s);
        good = good && CHECK_EQ(groups_without_a_slab(w), 0) && CHECK_EQ(s.stale_members, 0) &&
               CHECK(s.healthy) && CHECK_EQ(s.redundancy_left, copies - 1);
    }
    if (good) {
        drive_home_remove(w->pool.homes[1]);
        forget_cache(w);
        good = all_right(w) && fill_all(w, 5) && churn(w, 50);
        forget_cache(w);
        good = good && all_right(w);
    }
    for (uint32_t i = copies + 1; i < TEST_DRIVES; i++)
        CHECK_EQ(drive_set_add(&w->pool.set, w->pool.drives[i]), 0);
    world_close(w);
    free(w);
}

static void two_drives_of_a_mirror_go_on_with_one(void **state)
{
    (void)state;
    drive_test_run(exactly_enough, (void *)(uintptr_t) "mirror:2");
}

static void three_drives_of_a_threefold_mirror_go_on_with_two(void **state)
{
    (void)state;
    drive_test_run(exactly_enough, (void *)(uintptr_t) "mirror:3");
}

/* The same drive comes back: the groups that were made without it get their slabs there. */
static may_yield void same_drive(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));
    struct volume_status s;

    (void)arg;
    pool_open(&w->pool);
    for (uint32_t i = 2; i < TEST_DRIVES; i++)
        drive_set_remove(&w->pool.set, w->pool.drives[i]);
    w->id = pool_volume(&w->pool, "mirror:2", BLOCKS * BLOCK_SIZE);
    bool good = CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0);
    if (good) {
        good = CHECK_EQ(volume_close(w->v), 0);
        drive_set_remove(&w->pool.set, w->pool.drives[0]);
        good =
            good && CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0) && fill_all(w, 1) && churn(w, 100);
        good = good && CHECK(groups_without_a_slab(w) > 0) && all_right(w);
        CHECK_EQ(drive_set_add(&w->pool.set, w->pool.drives[0]), 0);
    }
    if (good && reopen(w)) { /* repair starts by itself */
        repair_wait(w);
        volume_get_status(w->v, &s);
        good = CHECK_EQ(groups_without_a_slab(w), 0) && CHECK(s.healthy) && CHECK_EQ(s.redundancy_left, 1);
        drive_home_remove(w->pool.homes[1]);
        forget_cache(w);
        good = good && all_right(w) && churn(w, 100) && all_right(w);
    }
    for (uint32_t i = 2; i < TEST_DRIVES; i++)
        CHECK_EQ(drive_set_add(&w->pool.set, w->pool.drives[i]), 0);
    world_close(w);
    free(w);
}

static void groups_made_without_a_drive_get_slabs_there_when_it_is_back(void **state)
{
    (void)state;
    drive_test_run(same_drive, NULL);
}

/* A pool that never had the drives is refused. */
static may_yield void never_enough(void *arg)
{
    struct pool *p = calloc(1, sizeof(*p));
    struct volume_create_options o = {
        .name = "v", .kind = "block", .size_bytes = BLOCKS * BLOCK_SIZE, .system_runs = 64};
    struct uuid id;

    (void)arg;
    pool_open(p);
    for (uint32_t i = 1; i < TEST_DRIVES; i++)
        drive_set_remove(&p->set, p->drives[i]);
    CHECK_EQ(protection_parse("mirror:2", &o.protection), 0);
    CHECK_EQ(volume_create(&p->env, &o, &id), ERR_NOT_ENOUGH_DRIVES);
    for (uint32_t i = 1; i < TEST_DRIVES; i++)
        CHECK_EQ(drive_set_add(&p->set, p->drives[i]), 0);
    pool_close(p);
    free(p);
}

static void a_mirror_is_not_made_on_one_drive(void **state)
{
    (void)state;
    drive_test_run(never_enough, NULL);
}

/* Garbage on one drive: reads are right, scrub repairs, and then the other drives may go. */
static may_yield void garbage(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));
    struct volume_status s;

    (void)arg;
    bool good = world_open(w, "mirror:3") && churn(w, 500) && CHECK_EQ(volume_commit(w->v), 0);
    if (good) {
        uint32_t before = 0;
        drive_test_damage("d0", 8 * MIB, 40 * MIB);
        forget_cache(w);
        good = all_right(w);
        CHECK_EQ(volume_scrub_start(w->v, 0), 0);
        do {
            (void)fiber_sleep(5 * NSEC_PER_MSEC);
            volume_get_status(w->v, &s);
        } while (s.scrub.running);
        CHECK_EQ(s.scrub.result, 0);
        CHECK_EQ(s.scrub.lost_blocks, 0);
        CHECK_EQ(s.damage_count, 0);
        CHECK(s.counters.blocks_repaired > before);
        /* a second scrub finds nothing */
        CHECK_EQ(volume_scrub_start(w->v, 0), 0);
        do {
            (void)fiber_sleep(5 * NSEC_PER_MSEC);
            volume_get_status(w->v, &s);
        } while (s.scrub.running);
        CHECK_EQ(s.scrub.bad_copies, 0);
    }
    if (good)
        CHECK(all_right(w));
    world_close(w);
    free(w);
}

static void garbage_on_one_drive_is_repaired_by_reads_and_scrub(void **state)
{
    (void)state;
    drive_test_run(garbage, NULL);
}

/* none: exactly the blocks on the lost drive give EIO, the others are right. */
static may_yield void none_names_losses(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));
    struct page_vec *vec = calloc(1, sizeof(*vec));
    struct volume_status s;
    uint32_t bad = 0, right = 0;

    (void)arg;
    bool good = world_open(w, "none") && churn(w, 600) && CHECK_EQ(volume_commit(w->v), 0);
    struct uuid system = group_drive_id(w->v->system[0]->members[0].drive);
    uint32_t victim = 0;
    while (uuid_equal(drive_home_id(w->pool.homes[victim]), system))
        victim++;
    static const char *const files[] = {"d0", "d1", "d2", "d3"};
    drive_test_damage(files[victim], 2 * MIB, 60 * MIB);
    forget_cache(w);
    for (uint32_t i = 0; good && i < BLOCKS; i++) {
        int r = volume_read(w->v, OBJECT_BLOCK_DEVICE, i, 1, vec);
        if (r) {
            good = CHECK_EQ(r, ERR_NO_GOOD_COPY);
            bad++;
            continue;
        }
        page_vec_put(vec);
        good = CHECK(test_holds(w->v, i, 1, w->model[i]));
        right++;
    }
    volume_get_status(w->v, &s);
    CHECK(bad > 0);
    CHECK(right > 0);
    uint64_t named = 0;
    for (uint32_t i = 0; i < w->v->damage_count; i++)
        named += w->v->damage[i].len_bytes;
    CHECK_EQ(named, bad * BLOCK_SIZE);
    CHECK_EQ(test_write(w->v, 0, 64, 77, 0), 0);
    CHECK(test_holds(w->v, 0, 64, 77));
    world_close(w);
    free(vec);
    free(w);
}

static void without_protection_losses_are_named_exactly(void **state)
{
    (void)state;
    drive_test_run(none_names_losses, NULL);
}

/* A coordinator that takes so many changes, and then none. */
struct short_coord {
    struct coord base;
    struct coord *real;
    uint32_t left;
};

static may_yield int short_get(struct coord *c, const char *key, char **ret_value, uint64_t *ret_revision)
{
    return coord_get(CONTAINER_OF(c, struct short_coord, base)->real, key, ret_value, ret_revision);
}
static may_yield int short_commit(struct coord *c, const struct coord_change *changes, size_t count,
                                  uint64_t *ret_revision)
{
    struct short_coord *s = CONTAINER_OF(c, struct short_coord, base);

    if (s->left == 0)
        return ERR_TIMEOUT;
    s->left--;
    return coord_commit(s->real, changes, count, ret_revision);
}
static uint64_t short_generation(const struct coord *c)
{
    const struct short_coord *s = (const void *)c; /* base comes first */

    return coord_generation(s->real);
}
static const struct coord_ops short_ops = {
    .get = short_get, .commit = short_commit, .generation = short_generation};

/* The claim succeeds, taking the absent member out of the set does not: no root was written to the other. */
static may_yield void absent_leaves_first(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));
    uint32_t gone = 0;

    (void)arg;
    bool good = world_open(w, "mirror:2") && churn(w, 50) && CHECK_EQ(volume_commit(w->v), 0);
    if (good) {
        struct uuid id = group_drive_id(w->v->system[0]->members[0].drive);
        while (!uuid_equal(drive_home_id(w->pool.homes[gone]), id))
            gone++;
        uint64_t last = w->v->txg; /* closing commits it */
        CHECK_EQ(volume_close(w->v), 0);
        drive_home_remove(w->pool.homes[gone]);

        struct coord *real = w->pool.env.coord;
        struct short_coord c = {.base = {&short_ops}, .real = real, .left = 1};
        struct volume *v;
        w->pool.env.coord = &c.base;
        CHECK_EQ(volume_open(&w->pool.env, w->id, &v), ERR_TIMEOUT);
        CHECK_EQ(c.left, 0);
        w->pool.env.coord = real;
        if (CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0)) {
            CHECK_EQ(w->v->committed,
                     last + 3); /* the only root that opening wrote, and three numbers skipped */
            CHECK(!volume_get_record(w->v)->members[0].in_sync);
            CHECK(volume_get_record(w->v)->members[1].in_sync);
            CHECK(all_right(w));
            CHECK_EQ(volume_close(w->v), 0);
        }
    }
    pool_close(&w->pool);
    free(w);
}

static void an_absent_member_leaves_the_set_before_opening_writes_a_root(void **state)
{
    (void)state;
    drive_test_run(absent_leaves_first, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_mirror_goes_on_without_a_drive_and_repairs_itself, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(garbage_on_one_drive_is_repaired_by_reads_and_scrub, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(without_protection_losses_are_named_exactly, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(an_absent_member_leaves_the_set_before_opening_writes_a_root,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(two_drives_of_a_mirror_go_on_with_one, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(three_drives_of_a_threefold_mirror_go_on_with_two, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(groups_made_without_a_drive_get_slabs_there_when_it_is_back,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(a_mirror_is_not_made_on_one_drive, drive_test_setup,
                                        drive_test_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
