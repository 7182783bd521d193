/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold when opening a volume is itself interrupted. */
#include "volume_test.h"

#include "volume/verify.h"

#include <fcntl.h>

#define BLOCKS 1024u

struct world {
    struct pool pool;
    struct volume *v;
    struct uuid id;
    uint32_t model[BLOCKS];
    uint64_t rng;
};

/* Stops as a killed process does: what the kernel has stays, nothing else is written. */
static may_yield void crash(struct world *w)
{
    volume_fail(w->v, ERR_SHORT_IO, "the test");
    CHECK(volume_close(w->v) != 0);
    w->v = NULL;
}

static may_yield bool write_blocks(struct world *w, uint32_t count)
{
    bool good = true;

    for (uint32_t i = 0; good && i < count; i++) {
        w->rng = hash_mix64(w->rng + 1);
        uint32_t block = (uint32_t)(w->rng >> 8) % BLOCKS;
        uint32_t generation = (uint32_t)(w->rng >> 20) | 1;
        good = CHECK_EQ(test_write(w->v, block, 1, generation, w->rng & 1 ? VOLUME_WRITE_FUA : 0), 0);
        w->model[block] = generation;
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

/* A tree of several leaves, then a log of `count` batches that no root has. */
static may_yield bool make_log(struct world *w, const char *protection, uint32_t count)
{
    pool_open(&w->pool);
    w->id = pool_volume(&w->pool, protection, BLOCKS * BLOCK_SIZE);
    if (!CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0) || !write_blocks(w, 700) ||
        !CHECK_EQ(volume_commit(w->v), 0) || !write_blocks(w, count))
        return false;
    crash(w);
    return true;
}

static may_yield void pool_again(struct world *w)
{
    pool_close(&w->pool);
    pool_open(&w->pool);
}

/* Replay commits after each batch; each time it gets a little further before the drives fail. */
static may_yield void interrupted(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));
    int r = ERR_SHORT_IO;

    bool good = make_log(w, arg, 40);
    for (uint32_t after = 1; good && r && after < 50000; after += after / 2 + 5) {
        pool_again(w);
        w->pool.env.dirty_nodes_max = 1;
        faults.fail_op = FILE_WRITE;
        faults.fail_after = after;
        faults.fail = ERR_SHORT_IO;
        r = volume_open(&w->pool.env, w->id, &w->v);
        faults.fail = 0;
        if (!r)
            crash(w);
    }
    pool_again(w); /* all drives are back */
    if (good && CHECK_EQ(r, 0) && CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0)) {
        if (all_right(w)) {
            struct volume_verify verify = {0};
            CHECK_EQ(volume_verify(w->v, &verify), 0);
            CHECK_EQ(verify.problems, 0);
        }
        CHECK_EQ(volume_close(w->v), 0);
    }
    pool_close(&w->pool);
    free(w);
}

static void a_replay_that_was_interrupted_after_a_commit_loses_nothing(void **state)
{
    (void)state;
    drive_test_run(interrupted, "mirror:2");
}

/* A drive that no system group is on; skip: how many of them to pass over. */
static uint32_t other_drive(const struct world *w, uint32_t skip)
{
    const struct group *g = w->v->system[0];

    for (uint32_t i = 0;; i++) {
        bool system = false;
        for (uint32_t m = 0; m < g->member_count; m++)
            system |= uuid_equal(drive_home_id(w->pool.homes[i]), group_drive_id(g->members[m].drive));
        if (!system && skip-- == 0)
            return i;
    }
}

/* Both drives of some groups go one after the other, before a repair; then all are back. */
static may_yield void all_back(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));

    (void)arg;
    pool_open(&w->pool);
    w->pool.env.no_repair = true;
    w->id = pool_volume(&w->pool, "mirror:2", BLOCKS * BLOCK_SIZE);
    if (CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0) && write_blocks(w, 700) &&
        CHECK_EQ(volume_commit(w->v), 0)) {
        uint32_t a = other_drive(w, 0), b = other_drive(w, 1);
        drive_home_remove(w->pool.homes[a]);
        bool good = write_blocks(w, 50);
        drive_home_remove(w->pool.homes[b]);
        (void)fiber_sleep(50 * NSEC_PER_MSEC);
        CHECK(volume_close(w->v) <= 0);
        pool_again(w);
        if (good && CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0)) {
            (void)all_right(w);
            CHECK_EQ(volume_close(w->v), 0);
        }
    }
    pool_close(&w->pool);
    free(w);
}

static void a_volume_whose_drives_all_came_back_opens(void **state)
{
    (void)state;
    drive_test_run(all_back, NULL);
}

/* Garbage over the block with this pattern, wherever it lies. */
static bool rot(uint32_t block, uint32_t generation)
{
    uint64_t want[BLOCK_SIZE / 8], got[BLOCK_SIZE / 8];
    bool found = false;

    for (uint64_t i = 0; i < BLOCK_SIZE / 8; i++)
        want[i] = hash_mix64((uint64_t)block * 1000003 + generation * 7919 + i);
    for (uint32_t d = 0; d < TEST_DRIVES; d++) {
        char name[8];
        snprintf(name, sizeof(name), "d%u", d);
        int fd = open(drive_test_path(name), O_RDWR | O_CLOEXEC);
        for (off_t at = 0; fd >= 0 && pread(fd, got, sizeof(got), at) == (ssize_t)sizeof(got);
             at += BLOCK_SIZE)
            if (memcmp(got, want, sizeof(got)) == 0)
                found = pwrite(fd, "rotten", 6, at) == 6;
        close(fd);
    }
    return found;
}

static may_yield void rot_at_rest(void *arg)
{
    struct world *w = calloc(1, sizeof(*w));

    (void)arg;
    pool_open(&w->pool);
    w->id = pool_volume(&w->pool, "none", BLOCKS * BLOCK_SIZE);
    if (CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0)) {
        for (uint32_t i = 0; i < 8; i++)
            CHECK_EQ(test_write(w->v, i * 8, 8, 1, 0), 0);
        CHECK_EQ(volume_flush(w->v), 0);
        /* Groups that are made ahead are in the log, too. Once there are no more records, there is one mark,
         * and no more of them. */
        uint64_t batches = 0, records = 0;
        for (uint32_t i = 0, quiet = 0; i < 200 && quiet < 3; i++) {
            quiet = records == w->v->log.records ? quiet + 1 : 0;
            if (quiet > 1)
                CHECK_EQ(w->v->log.batches, batches);
            records = w->v->log.records;
            batches = w->v->log.batches;
            (void)fiber_sleep(10 * LOG_MARK_NS);
            CHECK_EQ(volume_flush(w->v), 0);
            (void)fiber_sleep(10 * LOG_MARK_NS);
        }
        CHECK_EQ(w->v->log.durable, w->v->log.next_sequence);
        crash(w);
    }
    pool_close(&w->pool);
    CHECK(rot(19, 1));
    pool_open(&w->pool);
    if (CHECK_EQ(volume_open(&w->pool.env, w->id, &w->v), 0)) {
        CHECK(test_holds(w->v, 0, 19, 1));
        CHECK(!test_holds(w->v, 19, 1, 1) && !test_holds(w->v, 19, 1, 0)); /* neither, but an error */
        CHECK(test_holds(w->v, 20, 44, 1));
        CHECK_EQ(w->v->damage_count, 1);
        CHECK_EQ(volume_close(w->v), 0);
    }
    pool_close(&w->pool);
    free(w);
}

static void rot_of_what_was_flushed_is_no_torn_write_at_the_next_start(void **state)
{
    (void)state;
    drive_test_run(rot_at_rest, NULL);
}

/* Garbage over one copy of a root. */
static bool rot_root(struct volume *v, uint64_t txg)
{
    struct disk_root root;
    bool found = false;

    for (uint32_t d = 0; d < TEST_DRIVES && !found; d++) {
        char name[8];
        snprintf(name, sizeof(name), "d%u", d);
        int fd = open(drive_test_path(name), O_RDWR | O_CLOEXEC);
        for (off_t at = 0; fd >= 0 && !found && pread(fd, &root, sizeof(root), at) == (ssize_t)sizeof(root);
             at += BLOCK_SIZE)
            if (!root_check(&root, v->record.id) && le64_get(root.txg) == txg)
                found = pwrite(fd, "rotten", 6, at + 64) == 6;
        close(fd);
    }
    return found;
}

static may_yield void scrub_wait(struct volume *v)
{
    CHECK_EQ(volume_scrub_start(v, 0), 0);
    while (v->scrub.running)
        (void)fiber_sleep(NSEC_PER_MSEC);
    CHECK_EQ(v->scrub.result, 0);
}

static may_yield void rotten_root(void *arg)
{
    struct pool p;
    struct volume *v;

    pool_open(&p);
    struct uuid id = pool_volume(&p, arg, BLOCKS * BLOCK_SIZE);
    if (CHECK_EQ(volume_open(&p.env, id, &v), 0)) {
        CHECK_EQ(test_write(v, 0, 8, 1, 0), 0);
        CHECK_EQ(volume_commit(v), 0);
        CHECK_EQ(test_write(v, 0, 8, 2, 0), 0);
        CHECK_EQ(volume_commit(v), 0);
        scrub_wait(v);
        CHECK_EQ(v->scrub.bad_copies, 0);
        CHECK(rot_root(v, v->committed)); /* scrub commits first: then it is the one before */
        scrub_wait(v);
        CHECK_EQ(v->scrub.bad_copies, 1);
        CHECK_EQ(v->scrub.repaired_copies, 1);
        CHECK_EQ(v->scrub.lost_blocks, 0);
        scrub_wait(v);
        CHECK_EQ(v->scrub.bad_copies, 0);
        CHECK(test_holds(v, 0, 8, 2));
        CHECK_EQ(volume_close(v), 0);
    }
    pool_close(&p);
}

static void scrub_counts_and_repairs_a_rotten_root(void **state)
{
    (void)state;
    drive_test_run(rotten_root, "mirror:2");
}
static void scrub_counts_and_repairs_a_rotten_root_without_another_copy(void **state)
{
    (void)state;
    drive_test_run(rotten_root, "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_replay_that_was_interrupted_after_a_commit_loses_nothing,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(rot_of_what_was_flushed_is_no_torn_write_at_the_next_start,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(scrub_counts_and_repairs_a_rotten_root, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(scrub_counts_and_repairs_a_rotten_root_without_another_copy,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(a_volume_whose_drives_all_came_back_opens, drive_test_setup,
                                        drive_test_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
