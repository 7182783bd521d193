/* SPDX-License-Identifier: Apache-2.0 */
/* A file's data against a model in memory: random operations, crashes in between. */
#include "data_test.h"

#define FILES 2u

struct random {
    struct data_test t;
    struct model files[FILES];
    uint8_t *bytes;
    uint64_t rng;
    uint32_t counts[16];
};

/* Places and lengths that meet the borders: of blocks, of what is inline, of pieces. */
static uint64_t some_place(struct random *x, uint64_t max)
{
    uint64_t at = draw(&x->rng, max);

    switch (draw(&x->rng, 8)) {
    case 0:
    case 1:
        return ALIGN_DOWN(at, (uint64_t)BLOCK_SIZE);
    case 2:
        at = ALIGN_DOWN(at, (uint64_t)BLOCK_SIZE) + draw(&x->rng, 3);
        return MIN(max - 1, at);
    case 3:
        return draw(&x->rng, FS_INLINE_MAX + 10);
    case 4:
        return draw(&x->rng, 3 * BLOCK_SIZE);
    default:
        return at;
    }
}

static uint64_t some_len(struct random *x, uint64_t at)
{
    static const uint64_t most[] = {16, 600, FS_INLINE_MAX + 1, BLOCK_SIZE, 5 * BLOCK_SIZE, 200000, 1300000};
    uint64_t len = 1 + draw(&x->rng, most[draw(&x->rng, ARRAY_SIZE(most))]);

    if (draw(&x->rng, 3) == 0)
        len = ALIGN_UP(len, (uint64_t)BLOCK_SIZE);
    return MIN(len, MODEL_MAX - at);
}

static const struct fs_request *some_request(struct random *x)
{
    return draw(&x->rng, 8) == 0 ? &data_durable : &data_request;
}

static void some_bytes(struct random *x, uint64_t len)
{
    uint64_t seed = draw(&x->rng, UINT64_MAX);

    for (uint64_t i = 0; i < len; i += 8) {
        uint64_t word = hash_mix64(seed + i) | UINT64_C(0x0101010101010101); /* no zeroes */
        memcpy(x->bytes + i, &word, 8);
    }
}

static may_yield bool do_write(struct random *x, struct model *m)
{
    uint64_t at = some_place(x, MODEL_MAX - 1), len = some_len(x, at);

    if (draw(&x->rng, 3) > 0) /* mostly close to what is there */
        at = some_place(x, MIN(m->size + 3 * BLOCK_SIZE, MODEL_MAX - 1)), len = some_len(x, at);
    some_bytes(x, len);
    if (!CHECK_EQ(data_write(&x->t, some_request(x), m->ino, at, x->bytes, len, 0), 0))
        return false;
    model_write(m, at, x->bytes, len);
    return true;
}

static may_yield bool do_append(struct random *x, struct model *m)
{
    uint64_t len = some_len(x, 0), foreseen = draw(&x->rng, MODEL_MAX);

    len = MIN(len, MODEL_MAX - m->size); /* the macro's arguments are evaluated twice */
    if (len == 0)
        return true;
    if (draw(&x->rng, 2))
        foreseen = m->size;
    len = fs_piece_len(foreseen, len);
    some_bytes(x, len);
    if (!CHECK_EQ(data_write(&x->t, some_request(x), m->ino, foreseen, x->bytes, len, FS_WRITE_APPEND), 0))
        return false;
    model_write(m, m->size, x->bytes, len);
    return true;
}

static may_yield bool do_truncate(struct random *x, struct model *m)
{
    uint64_t size = draw(&x->rng, 4) == 0 ? 0 : some_place(x, MODEL_MAX);

    if (draw(&x->rng, 2) && m->size > 0)
        size = m->size - draw(&x->rng, MIN(m->size, 9000));
    if (!CHECK_EQ(data_truncate(&x->t, some_request(x), m->ino, size), 0))
        return false;
    model_truncate(m, size);
    return true;
}

static may_yield bool do_allocate(struct random *x, struct model *m)
{
    enum fs_allocate_mode mode = (enum fs_allocate_mode)draw(&x->rng, 5);
    uint64_t at = some_place(x, MIN(m->size + 3 * BLOCK_SIZE, MODEL_MAX - 1)), len = some_len(x, at);
    struct fs_wcc wcc;

    if (!CHECK_EQ(fs_allocate(x->t.fs, some_request(x), m->ino, mode, at, len, &wcc), 0))
        return false;
    if (mode == FS_PUNCH_HOLE || mode == FS_ZERO_RANGE || mode == FS_ZERO_RANGE_KEEP_SIZE)
        model_zero(m, at, len);
    if ((mode == FS_ALLOCATE || mode == FS_ZERO_RANGE) && at + len > m->size)
        model_truncate(m, at + len);
    return CHECK(wcc.has_after) && CHECK_EQ(wcc.after.size, m->size);
}

static bool zeroes(const struct model *m, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++)
        if (m->bytes[i])
            return false;
    return true;
}

/* Whatever is said to be a hole is zeroes; and what is said to be data is in blocks that are held. */
static may_yield bool do_seek(struct random *x, struct model *m)
{
    uint64_t at = draw(&x->rng, m->size + 10), data = 0, hole = 0;
    int r = fs_seek(x->t.fs, &data_request, m->ino, at, false, &data);

    if (at >= m->size)
        return CHECK_EQ(r, ERR_FS_NO_DATA);
    if (r == ERR_FS_NO_DATA)
        data = m->size;
    else if (!CHECK_EQ(r, 0))
        return false;
    if (!CHECK(data >= at && data <= m->size) || !CHECK(zeroes(m, at, data)))
        return false;
    if (!CHECK_EQ(fs_seek(x->t.fs, &data_request, m->ino, at, true, &hole), 0) ||
        !CHECK(hole >= at && hole <= m->size))
        return false;
    return hole == m->size || CHECK(zeroes(m, hole, MIN(m->size, ALIGN_UP(hole + 1, (uint64_t)BLOCK_SIZE))));
}

static may_yield bool do_copy(struct random *x, struct model *from, struct model *to)
{
    uint64_t at = draw(&x->rng, from->size + 1), where = some_place(x, MODEL_MAX - 1),
             len = some_len(x, where);
    uint64_t done = 0, real = at < from->size ? MIN(len, from->size - at) : 0;
    struct fs_wcc wcc;
    int r = fs_copy_range(x->t.fs, &data_request, from->ino, at, to->ino, where, len, false, &done, &wcc);

    if (from == to && at < where + real && where < at + real)
        return CHECK_EQ(r, ERR_FS_INVALID);
    if (!CHECK_EQ(r, 0) || !CHECK_EQ(done, real))
        return false;
    memcpy(x->bytes, from->bytes + at, real);
    if (real)
        model_write(to, where, x->bytes, real);
    return true;
}

/* Whole blocks, or up to the source's end if nothing of the target is behind it; length 0: to the end. */
static may_yield bool do_clone(struct random *x, struct model *from, struct model *to)
{
    uint64_t at = draw(&x->rng, from->size / BLOCK_SIZE + 1) * BLOCK_SIZE;
    uint64_t left = from->size - MIN(at, from->size), where = draw(&x->rng, 200) * BLOCK_SIZE;
    uint64_t len = draw(&x->rng, 3) == 0 ? 0 : draw(&x->rng, left / BLOCK_SIZE + 2) * BLOCK_SIZE, done = 0;
    uint64_t real = len ? len : left;
    struct fs_wcc wcc;

    if (where + real > MODEL_MAX)
        return true;
    int r = fs_copy_range(x->t.fs, &data_request, from->ino, at, to->ino, where, len, true, &done, &wcc);
    if (real > left || (from == to && at < where + real && where < at + real) ||
        (real % BLOCK_SIZE && where + real < to->size))
        return CHECK_EQ(r, ERR_FS_INVALID);
    if (!CHECK_EQ(r, 0) || !CHECK_EQ(done, real))
        return false;
    memcpy(x->bytes, from->bytes + at, real);
    if (real)
        model_write(to, where, x->bytes, real);
    return true;
}

static may_yield bool all_as_the_models(struct random *x)
{
    bool good = true;

    for (uint32_t i = 0; good && i < FILES; i++)
        good = model_holds(&x->t, &x->files[i], 0, MODEL_MAX) && data_agrees(&x->t, x->files[i].ino);
    return good;
}

static may_yield bool do_reopen(struct random *x)
{
    switch (draw(&x->rng, 3)) {
    case 0:
        data_close(&x->t);
        return data_open(&x->t) && all_as_the_models(x);
    case 1:
        data_crash(&x->t);
        return data_open(&x->t) && all_as_the_models(x);
    default:
        return CHECK_EQ(volume_commit(x->t.v), 0);
    }
}

static may_yield bool do_something(struct random *x)
{
    struct model *m = &x->files[draw(&x->rng, FILES)];
    uint64_t at = draw(&x->rng, m->size + 1);

    switch (draw(&x->rng, 20)) {
    case 0:
    case 1:
        return do_append(x, m);
    case 2:
    case 3:
        return do_truncate(x, m);
    case 4:
    case 5:
    case 6:
        return do_allocate(x, m);
    case 7:
        return do_seek(x, m);
    case 8:
        return do_copy(x, m, &x->files[draw(&x->rng, FILES)]);
    case 9:
        return do_clone(x, m, &x->files[draw(&x->rng, FILES)]);
    case 14:
        return draw(&x->rng, 4) > 0 || do_reopen(x);
    case 10:
        return draw(&x->rng, 4) > 0 || all_as_the_models(x);
    case 11:
    case 12:
    case 13:
        return model_holds(&x->t, m, at, some_len(x, MIN(at, MODEL_MAX - 1)));
    default:
        return do_write(x, m);
    }
}

static may_yield void random_main(void *arg)
{
    struct random *x = calloc(1, sizeof(*x));
    const char *steps = getenv("DATA_TEST_STEPS"), *seed = getenv("DATA_TEST_SEED");
    uint32_t count = steps ? (uint32_t)strtoul(steps, NULL, 10) : 1000;

    x->rng = seed ? strtoull(seed, NULL, 10) : 1;
    x->bytes = malloc(MODEL_MAX + 8);
    bool good = data_start(&x->t, arg);
    for (uint32_t i = 0; i < FILES && good; i++) {
        x->files[i].bytes = calloc(1, MODEL_MAX + 8);
        x->files[i].ino = data_make(&x->t, 0);
    }
    for (uint32_t step = 0; good && step < count; step++) {
        good = do_something(x);
        if (!good)
            fprintf(stderr, "step %u\n", step);
    }
    if (good && all_as_the_models(x)) {
        for (uint32_t i = 0; i < FILES; i++)
            CHECK_EQ(data_remove(&x->t, x->files[i].ino), 0);
        CHECK(data_reaped(&x->t));
        CHECK_EQ(x->t.v->data_blocks, 0);
    }
    data_end(&x->t);
    for (uint32_t i = 0; i < FILES; i++)
        free(x->files[i].bytes);
    free(x->bytes);
    free(x);
}

static void random_operations_and_crashes_leave_what_the_model_has(void **state)
{
    (void)state;
    drive_test_run(random_main, (void *)(uintptr_t) "none");
}

static void random_operations_on_a_mirror_leave_what_the_model_has(void **state)
{
    (void)state;
    drive_test_run(random_main, (void *)(uintptr_t) "mirror:2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(random_operations_and_crashes_leave_what_the_model_has,
                                        drive_test_setup, drive_test_teardown),
        cmocka_unit_test_setup_teardown(random_operations_on_a_mirror_leave_what_the_model_has,
                                        drive_test_setup, drive_test_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
