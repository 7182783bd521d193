/* SPDX-License-Identifier: Apache-2.0 */
/* A volume from its making to its reopening, on real files. */
#include "volume_test.h"

#include "volume/verify.h"

static void print_problem(void *ctx, const char *sentence)
{
    (void)ctx;
    fprintf(stderr, "verify: %s\n", sentence);
}

/* The trees and the space items agree. */
static may_yield bool verified(struct volume *v)
{
    struct volume_verify r = {.problem = print_problem};

    return CHECK_EQ(volume_verify(v, &r), 0) && CHECK_EQ(r.problems, 0);
}

#define BLOCKS 2048u

static void may_yield write_read(void *arg)
{
    const char *protection = arg;
    struct pool p;
    struct volume *v;

    pool_open(&p);
    struct uuid id = pool_volume(&p, protection, BLOCKS * BLOCK_SIZE);
    if (CHECK_EQ(volume_open(&p.env, id, &v), 0)) {
        CHECK(test_holds(v, 0, 16, 0));
        CHECK_EQ(test_write(v, 3, 1, 1, 0), 0);
        CHECK_EQ(test_write(v, 10, 64, 2, 0), 0);
        CHECK_EQ(test_write(v, 20, 4, 3, VOLUME_WRITE_FUA), 0);
        CHECK(test_holds(v, 3, 1, 1));
        CHECK(test_holds(v, 10, 10, 2));
        CHECK(test_holds(v, 20, 4, 3));
        CHECK(test_holds(v, 24, 50, 2));
        CHECK_EQ(volume_flush(v), 0);
        CHECK_EQ(volume_commit(v), 0);
        CHECK(test_holds(v, 20, 4, 3));
        volume_check(v);
        CHECK_EQ(volume_unmap(v, OBJECT_BLOCK_DEVICE, 12, 30, 0), 0);
        CHECK(test_holds(v, 12, 30, 0));
        CHECK(test_holds(v, 42, 32, 2));
        CHECK_EQ(volume_close(v), 0);
    }
    if (CHECK_EQ(volume_open(&p.env, id, &v), 0)) {
        CHECK(test_holds(v, 3, 1, 1));
        CHECK(test_holds(v, 10, 2, 2));
        CHECK(test_holds(v, 12, 30, 0));
        CHECK(test_holds(v, 42, 32, 2));
        /* What a commit itself frees is no reason for the next one. */
        for (int i = 0; i < 8; i++)
            CHECK_EQ(volume_commit(v), 0);
        CHECK_EQ(v->dirty_since_ns, 0);
        CHECK_EQ(volume_close(v), 0);
    }
    CHECK_EQ(volume_delete(&p.env, id, NULL), 0);
    pool_close(&p);
}

static void what_is_written_is_read_after_reopening(void **state)
{
    (void)state;
    drive_test_run(write_read, (void *)(uintptr_t) "none");
}
static void what_is_written_to_a_mirror_is_read_after_reopening(void **state)
{
    (void)state;
    drive_test_run(write_read, (void *)(uintptr_t) "mirror:3");
}

static may_yield uint64_t pool_flushes(struct pool *p)
{
    struct drive_info info;
    uint64_t n = 0;

    for (uint32_t i = 0; i < TEST_DRIVES; i++)
        n += CHECK_EQ(drive_get_info(p->drives[i], &info), 0) ? info.flushes : 0;
    return n;
}

static void may_yield lone_durable_writes(void *arg)
{
    struct pool p;
    struct volume *v;

    (void)arg;
    pool_open(&p);
    struct uuid id = pool_volume(&p, "mirror:2", BLOCKS * BLOCK_SIZE);
    if (CHECK_EQ(volume_open(&p.env, id, &v), 0)) {
        CHECK_EQ(test_write(v, 1, 1, 1, VOLUME_WRITE_FUA), 0);
        uint64_t before = pool_flushes(&p);
        for (uint32_t i = 0; i < 40; i++)
            CHECK_EQ(test_write(v, i % 10 * 7, 1 + i % 4, i + 1, VOLUME_WRITE_FUA), 0);
        CHECK_EQ(volume_flush(v), 0);
        CHECK(pool_flushes(&p) - before < 20); /* what makes new groups and commits does flush */
        CHECK(test_holds(v, 63, 4, 40));
        /* What came before without being durable needs a flush, and so does data beside the log. */
        before = pool_flushes(&p);
        CHECK_EQ(test_write(v, 200, 1, 20, 0), 0);
        CHECK_EQ(test_write(v, 201, 1, 20, VOLUME_WRITE_FUA), 0);
        CHECK(pool_flushes(&p) > before);
        before = pool_flushes(&p);
        CHECK_EQ(test_write(v, 300, 64, 21, VOLUME_WRITE_FUA), 0);
        CHECK(pool_flushes(&p) > before);
        CHECK(v->log.durable == v->log.written);
        CHECK_EQ(volume_close(v), 0);
    }
    pool_close(&p);
}

static void a_lone_small_durable_write_needs_no_flush(void **state)
{
    (void)state;
    drive_test_run(lone_durable_writes, NULL);
}

/* Random overwrites, unmaps and commits against a model; closes and reopens now and then. */
static void may_yield random_model(void *arg)
{
    static uint32_t model[BLOCKS];
    struct pool p;
    struct volume *v;
    uint64_t rng = 42;
    bool good = true;

    (void)arg;
    memset(model, 0, sizeof(model));
    pool_open(&p);
    struct uuid id = pool_volume(&p, "mirror:2", BLOCKS * BLOCK_SIZE);
    good = CHECK_EQ(volume_open(&p.env, id, &v), 0);
    for (uint32_t step = 1; good && step < 4000; step++) {
        rng = hash_mix64(rng + step);
        uint32_t block = (uint32_t)(rng >> 8) % BLOCKS,
                 n = MIN((uint32_t)(rng >> 40) % 33 + 1, BLOCKS - block);
        switch (rng % 16) {
        case 0:
            good = CHECK_EQ(volume_unmap(v, OBJECT_BLOCK_DEVICE, block, n, 0), 0);
            memset(model + block, 0, n * sizeof(*model));
            break;
        case 1:
            good = CHECK_EQ(volume_zero(v, OBJECT_BLOCK_DEVICE, block, n, VOLUME_WRITE_FUA), 0);
            memset(model + block, 0, n * sizeof(*model));
            break;
        case 2:
            if (step % 5 == 0)
                good = CHECK_EQ(volume_commit(v), 0);
            volume_check(v);
            if (step % 11 == 0)
                good = verified(v);
            break;
        case 3:
            if (step % 7 == 0) {
                good = CHECK_EQ(volume_close(v), 0) && CHECK_EQ(volume_open(&p.env, id, &v), 0);
            }
            break;
        case 4:
        case 5:
        case 6:
        case 7:
            for (uint32_t i = 0; good && i < n; i++)
                good = CHECK(test_holds(v, block + i, 1, model[block + i]));
            break;
        default:
            good = CHECK_EQ(test_write(v, block, n, step, rng & 256 ? VOLUME_WRITE_FUA : 0), 0);
            for (uint32_t i = 0; i < n; i++)
                model[block + i] = step;
        }
    }
    for (uint32_t i = 0; good && i < BLOCKS; i++)
        good = CHECK(test_holds(v, i, 1, model[i]));
    if (good && verified(v))
        CHECK_EQ(volume_close(v), 0);
    pool_close(&p);
}

static void random_changes_agree_with_a_model(void **state)
{
    (void)state;
    drive_test_run(random_model, NULL);
}

/* Writes until there is no space; the number of blocks. */
static may_yield uint32_t fill(struct volume *v)
{
    uint32_t at = 0;
    int r;

    while ((r = test_write(v, at, 64, 1, 0)) == 0)
        at += 64;
    CHECK_EQ(r, ERR_VOLUME_FULL);
    return at;
}

static void may_yield shortage(void *arg)
{
    struct pool p;
    struct volume *a, *b;
    struct volume_create_options o = {.name = "b",
                                      .kind = "block",
                                      .size_bytes = GIB,
                                      .system_runs = 16,
                                      .protection = {PROTECT_NONE, 1, 0}};
    struct uuid id_b, id_c;

    (void)arg;
    pool_open(&p);
    struct uuid id_a = pool_volume(&p, "none", GIB);
    CHECK_EQ(volume_create(&p.env, &o, &id_b), 0);
    if (CHECK_EQ(volume_open(&p.env, id_a, &a), 0) && CHECK_EQ(volume_open(&p.env, id_b, &b), 0)) {
        CHECK_EQ(test_write(b, 0, 64, 1, 0), 0);
        uint32_t blocks = fill(a);
        CHECK(blocks > 2048);
        (void)fill(b); /* what it had ahead */
        CHECK_EQ(volume_unmap(b, OBJECT_BLOCK_DEVICE, 0, GIB / BLOCK_SIZE, 0), 0);

        /* What one volume discarded, another one has at once: sooner than its commits would come by
         * themselves, for a writer that finds nothing gives up before that. */
        CHECK_EQ(volume_unmap(a, OBJECT_BLOCK_DEVICE, 0, blocks, 0), 0);
        for (uint32_t at = 0; at < blocks / 2; at += 64)
            if (!CHECK_EQ(test_write(b, at, 64, 2, 0), 0))
                break;
        CHECK(test_holds(b, 0, 64, 2));

        /* And a volume that is made, too. */
        (void)fill(a);
        CHECK_EQ(volume_unmap(a, OBJECT_BLOCK_DEVICE, 0, GIB / BLOCK_SIZE, 0), 0);
        o.name = "c";
        CHECK_EQ(volume_create(&p.env, &o, &id_c), 0);
        CHECK_EQ(p.shortage.waiting, 0);
        CHECK_EQ(volume_close(a), 0);
        CHECK_EQ(volume_close(b), 0);
        CHECK_EQ(p.shortage.coming, 0);
    }
    pool_close(&p);
}

static void space_that_one_volume_discarded_is_another_ones_at_once(void **state)
{
    (void)state;
    drive_test_run(shortage, NULL);
}

#define STREAM_BLOCKS 2048u /* little enough that nothing else wants a commit */

/* Groups of data that were made so far. One commit a round, and no other: the committer is stopped, since on
 * a slow machine it would come by itself in the middle of a round. */
static may_yield uint32_t stream(struct volume *v, uint32_t rounds)
{
    bool good = true;

    txg_stop(v);
    for (uint32_t i = 0; good && i < rounds; i++) {
        for (uint32_t at = 0; good && at < STREAM_BLOCKS; at += 64)
            good = CHECK_EQ(test_write(v, at, 64, i + 1, 0), 0);
        good = good && CHECK_EQ(txg_commit(v, false), 0);
    }
    CHECK_EQ(txg_start(v), 0);
    return v->space.next_group;
}

static void may_yield overwriting(void *arg)
{
    struct pool p;
    struct volume *v;

    (void)arg;
    pool_open(&p);
    struct uuid id = pool_volume(&p, "none", GIB);
    if (CHECK_EQ(volume_open(&p.env, id, &v), 0)) {
        uint32_t before = stream(v, 4), after = stream(v, 4), full = STREAM_BLOCKS / v->record.slab_blocks;
        CHECK(before > full);
        CHECK(after - before < 2 * full); /* of the four times that he filled */
        /* It ends: what was kept for more of it goes, without anybody asking. */
        for (uint32_t i = 0; i < 8; i++)
            CHECK_EQ(volume_commit(v), 0);
        CHECK(v->space.group_count[GROUP_DATA] < full + full / 2);
        CHECK(!v->space.keeps);
        CHECK(test_holds(v, 0, 64, 4));
        CHECK(test_holds(v, STREAM_BLOCKS - 64, 64, 4));
        CHECK(verified(v));
        CHECK_EQ(volume_close(v), 0);
    }
    pool_close(&p);
}

static void who_overwrites_fast_keeps_his_groups_until_he_is_done(void **state)
{
    (void)state;
    drive_test_run(overwriting, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read_after_reopening, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(what_is_written_to_a_mirror_is_read_after_reopening, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(space_that_one_volume_discarded_is_another_ones_at_once,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(who_overwrites_fast_keeps_his_groups_until_he_is_done,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(a_lone_small_durable_write_needs_no_flush, drive_test_setup,
                                        drive_test_teardown),
        cmocka_unit_test_setup_teardown(random_changes_agree_with_a_model, drive_test_setup,
                                        drive_test_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
