/* SPDX-License-Identifier: Apache-2.0 */
/* Extents that share blocks, on real files. */
#include "change_test.h"

#include "volume/verify.h"

static may_yield int put_blocks(struct volume *v, uint64_t object, uint64_t block, uint32_t blocks,
                                uint8_t byte, uint32_t flags)
{
    uint32_t sums[PAGE_VEC_MAX], done = 0, freed;
    struct page_vec *vec = data_make(blocks, byte, sums);
    int r = 0;

    for (uint32_t at = 0; !r && at < blocks; at += done) {
        struct change c;
        change_init(&c, v);
        change_will_write(&c, object, block + at, blocks - at, flags & CHANGE_DURABLE);
        r = change_begin(&c);
        if (!r)
            change_write(&c, object, block + at, vec, at, blocks - at, sums + at, &done, &freed);
        r = change_end(&c, r, flags);
    }
    data_free(vec);
    return r;
}

static may_yield int remove_blocks(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks,
                                   bool zero, uint64_t *ret_freed)
{
    uint64_t done = 0, freed = 0;
    int r = 0;

    *ret_freed = 0;
    for (uint64_t at = 0; !r && at < blocks; at += done, *ret_freed += freed) {
        struct change c;
        change_init(&c, v);
        c.deletes = !zero;
        change_will_unmap(&c, object, block + at, blocks - at);
        r = change_begin(&c);
        if (!r)
            change_unmap(&c, object, block + at, blocks - at, zero, &done, &freed);
        r = change_end(&c, r, 0);
    }
    return r;
}

static may_yield int clone_blocks(struct volume *v, uint64_t from, uint64_t from_block, uint64_t to,
                                  uint64_t to_block, uint64_t blocks, uint64_t *ret_new, uint64_t *ret_freed)
{
    uint64_t done = 0, more = 0, freed = 0;
    int r = 0;

    *ret_new = *ret_freed = 0;
    for (uint64_t at = 0; !r && at < blocks; at += done, *ret_new += more, *ret_freed += freed) {
        struct change c;
        change_init(&c, v);
        change_will_clone(&c, from, from_block + at, to, to_block + at, blocks - at);
        r = change_begin(&c);
        if (!r)
            change_clone(&c, from, from_block + at, to, to_block + at, blocks - at, &done, &more, &freed);
        r = change_end(&c, r, 0);
    }
    return r;
}

/* Data blocks that are taken, once each. */
static uint64_t in_use(const struct volume *v)
{
    uint64_t n = 0;

    for (struct group *g = group_next(v->groups, NULL); g; g = group_next(v->groups, g)) {
        const struct space_group *sg = g->volume_private;
        if (sg && g->purpose == GROUP_DATA)
            n += sg->blocks - sg->free - sg->waiting;
    }
    return n;
}

/* ---- The last one frees ---- */

static may_yield void last_frees(void *arg)
{
    struct world w = {0};
    uint64_t more, freed;

    (void)arg;
    world_open(&w, "mirror:2");
    CHECK_EQ(put_blocks(w.v, 1, 0, 100, 0x11, 0), 0);
    CHECK_EQ(put_blocks(w.v, 2, 40, 10, 0x22, 0), 0);
    CHECK_EQ(clone_blocks(w.v, 1, 10, 2, 30, 50, &more, &freed), 0);
    CHECK_EQ(more, 50);
    CHECK_EQ(freed, 10);
    CHECK_EQ(clone_blocks(w.v, 2, 30, 3, 0, 50, &more, &freed), 0);
    CHECK_EQ(volume_commit(w.v), 0);
    CHECK_EQ(in_use(w.v), 100);
    CHECK_EQ(w.v->data_blocks, 200);
    CHECK(world_verified(&w));
    /* The first one writes anew, the second one goes: the third still has all. */
    CHECK_EQ(put_blocks(w.v, 1, 0, 100, 0x33, CHANGE_DURABLE), 0);
    CHECK_EQ(remove_blocks(w.v, 2, 0, 200, false, &freed), 0);
    CHECK_EQ(freed, 50);
    CHECK(world_verified(&w));
    CHECK_EQ(in_use(w.v), 150);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 50; i++)
            CHECK(data_holds(w.v, 3, i, 0x11));
        CHECK(data_holds(w.v, 1, 10, 0x33));
        CHECK(data_holds(w.v, 2, 30, 0));
        if (round == 0 && !world_crash(&w))
            break;
    }
    CHECK_EQ(remove_blocks(w.v, 3, 0, 50, false, &freed), 0);
    CHECK_EQ(volume_commit(w.v), 0);
    CHECK_EQ(in_use(w.v), 100);
    CHECK_EQ(w.v->space.ref_items, 0);
    CHECK(world_verified(&w));
    world_close(&w);
}

static void shared_blocks_are_freed_with_their_last_extent(void **state)
{
    (void)state;
    drive_test_run(last_frees, NULL);
}

/* ---- Clones of what the log alone has ---- */

/* Written, cloned and removed since the last root; then a crash; and one in the replay of it. */
static may_yield void in_the_log(void *arg)
{
    struct world w = {0};
    uint64_t more, freed;

    (void)arg;
    world_open(&w, "mirror:2");
    CHECK_EQ(put_blocks(w.v, 9, 0, 8, 0x99, 0), 0);
    CHECK_EQ(clone_blocks(w.v, 9, 0, 10, 0, 8, &more, &freed), 0);
    CHECK_EQ(volume_commit(w.v), 0);
    CHECK_EQ(put_blocks(w.v, 1, 0, 4, 0x11, CHANGE_DURABLE), 0); /* inline: not in its place yet */
    CHECK_EQ(put_blocks(w.v, 1, 4, 200, 0x12, 0), 0);
    CHECK_EQ(clone_blocks(w.v, 1, 0, 2, 1000, 204, &more, &freed), 0);
    CHECK_EQ(more, 204);
    CHECK_EQ(remove_blocks(w.v, 1, 0, 100, false, &freed), 0);
    CHECK_EQ(clone_blocks(w.v, 2, 1000, 1, 300, 2, &more, &freed), 0);
    CHECK_EQ(remove_blocks(w.v, 9, 0, 8, false, &freed), 0);
    CHECK_EQ(remove_blocks(w.v, 10, 0, 4, true, &freed), 0);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 204; i++)
            CHECK(data_holds(w.v, 2, 1000 + i, i < 4 ? 0x11 : 0x12));
        CHECK(data_holds(w.v, 1, 99, 0));
        CHECK(data_holds(w.v, 1, 100, 0x12));
        CHECK(data_holds(w.v, 1, 301, 0x11));
        CHECK(data_holds(w.v, 9, 0, 0));
        CHECK(data_holds(w.v, 10, 3, 0));
        CHECK(data_holds(w.v, 10, 4, 0x99));
        if (round == 2)
            break;
        w.pool.env.dirty_nodes_max = 1; /* replay commits after each batch */
        if (!world_crash(&w))
            break;
    }
    CHECK(world_verified(&w));
    CHECK_EQ(in_use(w.v), 204 + 4);
    world_close(&w);
}

static void clones_that_only_the_log_has_survive_a_crash(void **state)
{
    (void)state;
    drive_test_run(in_the_log, NULL);
}

/* ---- Against a model ---- */

#define OBJECTS 12u
#define BLOCKS  160u

struct model {
    struct world w;
    uint8_t bytes[OBJECTS][BLOCKS];
    uint64_t rng;
};

static uint32_t draw(struct model *m, uint32_t limit)
{
    m->rng = hash_mix64(m->rng + 0x9e3779b97f4a7c15u);
    return (uint32_t)(m->rng >> 20) % limit;
}

static may_yield bool model_step(struct model *m, uint32_t step)
{
    uint32_t o = draw(m, OBJECTS), at = draw(m, BLOCKS), n = 1 + draw(m, 40), what = draw(m, 16);
    uint64_t more, freed;

    n = MIN(n, BLOCKS - at);
    if (what < 5) {
        uint8_t byte = (uint8_t)(step | 1);
        memset(&m->bytes[o][at], byte, n);
        return CHECK_EQ(put_blocks(m->w.v, o, at, n, byte, draw(m, 2) ? CHANGE_DURABLE : 0), 0);
    }
    if (what < 7) {
        memset(&m->bytes[o][at], 0, n);
        return CHECK_EQ(remove_blocks(m->w.v, o, at, n, what == 5, &freed), 0);
    }
    if (what < 13) {
        uint32_t to = draw(m, OBJECTS), to_at = draw(m, BLOCKS);
        n = MIN(n, BLOCKS - to_at);
        if (o == to && at < to_at + n && to_at < at + n)
            return true;
        memmove(&m->bytes[to][to_at], &m->bytes[o][at], n);
        return CHECK_EQ(clone_blocks(m->w.v, o, at, to, to_at, n, &more, &freed), 0);
    }
    for (uint32_t i = at; i < at + n; i++)
        if (!CHECK(data_holds(m->w.v, o, i, m->bytes[o][i])))
            return false;
    return true;
}

static may_yield void random_clones(void *arg)
{
    struct model *m = calloc(1, sizeof(*m));
    bool good = true;

    m->rng = *(uint64_t *)arg;
    world_open(&m->w, "none");
    for (uint32_t step = 1; good && step < 2500; step++) {
        good = model_step(m, step);
        if (good && draw(m, 40) == 0)
            good = CHECK_EQ(volume_commit(m->w.v), 0);
        if (good && draw(m, 100) == 0)
            good = CHECK(world_verified(&m->w));
        if (good && draw(m, 150) == 0)
            good = world_crash(&m->w);
        if (good && draw(m, 20) == 0)
            volume_check(m->w.v);
    }
    for (uint32_t o = 0; good && o < OBJECTS; o++)
        for (uint32_t i = 0; good && i < BLOCKS; i++)
            good = CHECK(data_holds(m->w.v, o, i, m->bytes[o][i]));
    CHECK(world_verified(&m->w));
    world_close(&m->w);
    free(m);
}

static void random_clones_agree_with_a_model_over_crashes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        uint64_t s = seed;
        drive_test_run(random_clones, &s);
        assert_int_equal(drive_test_teardown(state), 0);
        assert_int_equal(drive_test_setup(state), 0);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, drive_test_setup, drive_test_teardown)
    const struct CMUnitTest tests[] = {
        TEST(shared_blocks_are_freed_with_their_last_extent),
        TEST(clones_that_only_the_log_has_survive_a_crash),
        TEST(random_clones_agree_with_a_model_over_crashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
