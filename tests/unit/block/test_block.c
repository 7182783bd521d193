/* SPDX-License-Identifier: Apache-2.0 */
/* Block devices over a volume in memory and in virtual time. Bodies run on a fiber and leave what they saw in
 * `seen`; the assertions stand outside. */
#include "block/block.h"
#include "fake_volume.h"
#include "runtime/error.h"
#include "runtime/list.h"
#include "test_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct {
    int err[16];
    uint64_t n[16];
    uint8_t bytes[4 * BLOCK_SIZE];
} seen;

static struct volume *volume;
static struct block_device *device;

struct body {
    void (*fn)(void);
    uint64_t size_bytes;
};

static void body_run(void *arg) may_yield
{
    struct body *b = arg;
    volume = fake_volume_new(b->size_bytes);
    int err = block_device_new(volume, 1, &device);
    assert(err == 0);
    b->fn();
    block_device_free(device);
    fake_volume_free(volume);
}

static void run_with_seed(void (*fn)(void), uint64_t size_bytes, uint64_t seed)
{
    memset(&seen, 0, sizeof(seen));
    struct body b = {fn, size_bytes};
    struct test_world w;
    test_world_init(&w);
    w.seed = seed;
    w.shuffle = seed != 1;
    test_run_with(&w, 128 * MIB, MIB, body_run, &b);
    test_world_done(&w);
}

static void run(void (*fn)(void), uint64_t size_bytes)
{
    run_with_seed(fn, size_bytes, 1);
}

static void pattern(uint8_t *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        buf[i] = (uint8_t)(seed >> 56);
    }
}

/* ---- Reading and writing ---- */

static void holes_body(void) may_yield
{
    memset(seen.bytes, 0xff, sizeof(seen.bytes));
    seen.err[0] = block_read_bytes(device, 100, seen.bytes, 5000);
}

static void holes_read_as_zeroes(void **state)
{
    run(holes_body, MIB);
    assert_int_equal(seen.err[0], 0);
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(seen.bytes[i], 0);
    assert_int_equal(seen.bytes[5000], 0xff);
}

static void around_body(void) may_yield
{
    uint8_t a[3 * BLOCK_SIZE], b[5000];
    pattern(a, sizeof(a), 1);
    memset(b, 0xee, sizeof(b));
    fake_volume_poke(volume, 0, a, sizeof(a));
    seen.err[0] = block_write_bytes(device, 3000, b, sizeof(b), 0);
    seen.n[0] = block_merge_count(device);
    memcpy(a + 3000, b, sizeof(b));
    fake_volume_peek(volume, 0, seen.bytes, sizeof(a));
    seen.n[1] = memcmp(a, seen.bytes, sizeof(a)) == 0;
    /* within one block, both edges of the same */
    seen.err[1] = block_write_bytes(device, 4096 + 10, b, 20, BLOCK_FUA);
    memcpy(a + 4096 + 10, b, 20);
    fake_volume_peek(volume, 0, seen.bytes, sizeof(a));
    seen.n[2] = memcmp(a, seen.bytes, sizeof(a)) == 0;
    seen.n[3] = fake_volume_counts(volume)->fua_writes;
}

static void unaligned_write_keeps_the_bytes_around_it(void **state)
{
    run(around_body, MIB);
    assert_int_equal(seen.err[0], 0);
    assert_int_equal(seen.err[1], 0);
    assert_int_equal(seen.n[0], 2);
    assert_true(seen.n[1]);
    assert_true(seen.n[2]);
    assert_int_equal(seen.n[3], 1);
}

static void whole_body(void) may_yield
{
    uint8_t a[2 * BLOCK_SIZE];
    pattern(a, sizeof(a), 2);
    seen.err[0] = block_write_bytes(device, BLOCK_SIZE, a, sizeof(a), 0);
    seen.n[0] = block_merge_count(device);
    seen.n[1] = fake_volume_counts(volume)->reads;
    seen.err[1] = block_write_bytes(device, 0, a, BLOCK_SIZE - 1, 0);
    seen.n[2] = block_merge_count(device);
}

static void whole_blocks_are_written_without_reading(void **state)
{
    run(whole_body, MIB);
    assert_int_equal(seen.err[0] | seen.err[1], 0);
    assert_int_equal(seen.n[0], 0);
    assert_int_equal(seen.n[1], 0);
    assert_int_equal(seen.n[2], 1);
}

static void long_body(void) may_yield
{
    size_t len = 9 * MIB + 777;
    uint8_t *a = malloc(len), *b = malloc(len);
    assert(a != NULL && b != NULL);
    pattern(a, len, 3);
    fake_volume_knobs(volume)->delay_ns = 1000;
    seen.err[0] = block_write_bytes(device, MIB / 2 + 5, a, len, 0);
    seen.n[0] = fake_volume_counts(volume)->writes;
    seen.n[1] = fake_volume_counts(volume)->most_under_way;
    seen.err[1] = block_read_bytes(device, MIB / 2 + 5, b, len);
    seen.n[2] = memcmp(a, b, len) == 0;
    free(a);
    free(b);
}

static void long_ranges_go_in_pieces_some_at_a_time(void **state)
{
    run(long_body, 64 * MIB);
    assert_int_equal(seen.err[0] | seen.err[1], 0);
    assert_int_equal(seen.n[0], 10);
    assert_int_equal(seen.n[1], 4);
    assert_true(seen.n[2]);
}

/* ---- The end of the device ---- */

#define HUGE_SIZE ((UINT64_C(1) << 63) - BLOCK_SIZE)

static void end_body(void) may_yield
{
    uint8_t b[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t size = block_size_bytes(device);
    struct block_extent x;
    uint32_t count;
    seen.err[0] = block_write_bytes(device, size - 8, b, 8, 0);
    seen.err[1] = block_read_bytes(device, size - 8, seen.bytes, 8);
    seen.err[2] = block_write_bytes(device, size - 7, b, 8, 0);
    seen.err[3] = block_read_bytes(device, size, b, 1);
    seen.err[4] = block_trim(device, UINT64_MAX - 10, 20, 0);
    seen.err[5] = block_zero(device, 1, UINT64_MAX, 0);
    seen.err[6] = block_prefetch(device, size + 1, 0);
    seen.err[7] = block_map(device, UINT64_MAX, UINT64_MAX, &x, 1, &count);
    seen.err[8] = block_trim(device, 0, size, 0);
    seen.err[9] = block_read_bytes(device, size - 8, b, 8);
    seen.err[10] = block_read_bytes(device, size, b, 0);
    seen.n[0] = (uint64_t)b[0] + b[7];
    seen.n[1] = fake_volume_counts(volume)->unmapped_blocks;
}

static void ranges_beyond_the_end_are_refused_without_overflow(void **state)
{
    run(end_body, HUGE_SIZE);
    assert_int_equal(seen.err[0], 0);
    assert_int_equal(seen.err[1], 0);
    assert_int_equal(seen.bytes[0], 1);
    assert_int_equal(seen.bytes[7], 8);
    for (int i = 2; i < 8; i++)
        assert_int_equal(seen.err[i], ERR_OUT_OF_RANGE);
    assert_int_equal(seen.err[8], 0);
    assert_int_equal(seen.err[9], 0);
    assert_int_equal(seen.err[10], 0);
    assert_int_equal(seen.n[0], 0);
    assert_int_equal(seen.n[1], HUGE_SIZE / BLOCK_SIZE);
}

static void resize_body(void) may_yield
{
    seen.err[0] = block_resize(device, 2 * MIB + 1);
    seen.err[1] = block_resize(device, MIB / 2);
    seen.err[2] = block_resize(device, 2 * MIB);
    seen.n[0] = block_size_bytes(device);
    seen.err[3] = block_write_bytes(device, 2 * MIB - 1, "x", 1, 0);
    seen.err[4] = block_resize(device, UINT64_MAX - BLOCK_SIZE + 1);
}

static void device_grows_and_never_shrinks(void **state)
{
    run(resize_body, MIB);
    assert_int_equal(seen.err[0], ERR_UNALIGNED);
    assert_int_equal(seen.err[1], ERR_INVALID);
    assert_int_equal(seen.err[2], 0);
    assert_int_equal(seen.n[0], 2 * MIB);
    assert_int_equal(seen.err[3], 0);
    assert_int_equal(seen.err[4], ERR_INVALID);
}

/* ---- Trim and zero ---- */

static void trim_body(void) may_yield
{
    memset(seen.bytes, 0x55, sizeof(seen.bytes));
    fake_volume_poke(volume, 0, seen.bytes, sizeof(seen.bytes));
    seen.err[0] = block_trim(device, 1, 3 * BLOCK_SIZE, BLOCK_FUA);
    seen.n[0] = fake_volume_counts(volume)->unmapped_blocks;
    seen.err[1] = block_trim(device, 10, 100, 0);
    seen.n[1] = fake_volume_counts(volume)->unmaps;
    seen.err[2] = block_trim(device, BLOCK_SIZE - 1, BLOCK_SIZE, 0);
    seen.n[2] = fake_volume_counts(volume)->unmaps;
    fake_volume_peek(volume, 0, seen.bytes, sizeof(seen.bytes));
}

static void trim_clears_only_whole_blocks(void **state)
{
    run(trim_body, MIB);
    assert_int_equal(seen.err[0] | seen.err[1] | seen.err[2], 0);
    assert_int_equal(seen.n[0], 2);
    assert_int_equal(seen.n[1], 1);
    assert_int_equal(seen.n[2], 1);
    for (size_t i = 0; i < sizeof(seen.bytes); i++)
        assert_int_equal(seen.bytes[i], i / BLOCK_SIZE == 1 || i / BLOCK_SIZE == 2 ? 0 : 0x55);
}

static void zero_body(void) may_yield
{
    memset(seen.bytes, 0x55, sizeof(seen.bytes));
    fake_volume_poke(volume, 0, seen.bytes, sizeof(seen.bytes));
    seen.err[0] = block_zero(device, 10, 20, 0);                                  /* inside of a block */
    seen.err[1] = block_zero(device, 100, 2 * BLOCK_SIZE, 0);                     /* edges and one block */
    seen.err[2] = block_zero(device, 3 * BLOCK_SIZE - 1, 2, BLOCK_FUA);           /* two edges */
    seen.err[3] = block_zero(device, 8 * BLOCK_SIZE, BLOCK_SIZE, BLOCK_MAY_TRIM); /* given back */
    seen.err[4] = block_zero(device, 0, 0, 0);
    seen.n[0] = fake_volume_counts(volume)->zeroed_blocks;
    seen.n[1] = fake_volume_counts(volume)->unmapped_blocks;
    seen.n[2] = fake_volume_counts(volume)->fua_writes;
    fake_volume_peek(volume, 0, seen.bytes, sizeof(seen.bytes));
}

static void zero_clears_to_the_byte(void **state)
{
    run(zero_body, MIB);
    for (int i = 0; i < 5; i++)
        assert_int_equal(seen.err[i], 0);
    assert_int_equal(seen.n[0], 1);
    assert_int_equal(seen.n[1], 1);
    assert_int_equal(seen.n[2], 2);
    for (size_t i = 0; i < sizeof(seen.bytes); i++) {
        bool zero = (i >= 10 && i < 30) || (i >= 100 && i < 100 + 2 * BLOCK_SIZE) ||
                    (i >= 3 * BLOCK_SIZE - 1 && i < 3 * BLOCK_SIZE + 1);
        assert_int_equal(seen.bytes[i], zero ? 0 : 0x55);
    }
}

/* ---- Map ---- */

static void map_body(void) may_yield
{
    uint8_t x = 1;
    struct block_extent e[8];
    uint32_t count = 0;
    fake_volume_poke(volume, 2 * BLOCK_SIZE, &x, 1);
    seen.err[0] = block_zero(device, 4 * BLOCK_SIZE, BLOCK_SIZE, 0);
    seen.err[1] = block_map(device, BLOCK_SIZE + 100, 4 * BLOCK_SIZE, e, 8, &count);
    seen.n[0] = count;
    for (uint32_t i = 0; i < count; i++) {
        seen.n[1 + 3 * i] = e[i].offset;
        seen.n[2 + 3 * i] = e[i].len;
        seen.n[3 + 3 * i] = e[i].kind;
    }
    seen.err[2] = block_map(device, 0, MIB, e, 1, &count);
    seen.err[3] = (int)count;
    seen.err[4] = (int)e[0].len;
}

static void map_is_clipped_to_the_bytes_asked_for(void **state)
{
    run(map_body, MIB);
    assert_int_equal(seen.err[0] | seen.err[1] | seen.err[2], 0);
    const uint64_t want[] = {5,        BLOCK_SIZE + 100, BLOCK_SIZE - 100,
                             MAP_HOLE, 2 * BLOCK_SIZE,   BLOCK_SIZE,
                             MAP_DATA, 3 * BLOCK_SIZE,   BLOCK_SIZE,
                             MAP_HOLE, 4 * BLOCK_SIZE,   BLOCK_SIZE,
                             MAP_ZERO, 5 * BLOCK_SIZE,   100,
                             MAP_HOLE};
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        assert_int_equal(seen.n[i], want[i]);
    assert_int_equal(seen.err[3], 1);
    assert_int_equal(seen.err[4], 2 * BLOCK_SIZE);
}

/* ---- Writers beside each other ---- */

#define WRITERS 16
static struct latch done;

struct writer {
    uint64_t offset, len;
    uint8_t fill;
    int err;
};

static void writer_run(void *arg) may_yield
{
    struct writer *w = arg;
    uint8_t buf[3 * BLOCK_SIZE];
    assert(w->len <= sizeof(buf));
    memset(buf, w->fill, sizeof(buf));
    w->err = block_write_bytes(device, w->offset, buf, w->len, 0);
    latch_down(&done);
}

static void run_writers(struct writer *w, uint32_t count) may_yield
{
    fake_volume_knobs(volume)->delay_ns = 10000;
    fake_volume_knobs(volume)->jitter = true;
    latch_init(&done, count);
    for (uint32_t i = 0; i < count; i++) {
        int err = fiber_spawn("writer", writer_run, &w[i]);
        assert(err == 0);
    }
    latch_wait(&done);
    for (uint32_t i = 0; i < count; i++)
        seen.err[0] |= w[i].err;
}

/* Neighbours in the same blocks that do not overlap: each byte must be there afterwards. */
static void neighbours_body(void) may_yield
{
    struct writer w[WRITERS];
    uint64_t at = 100;
    for (uint32_t i = 0; i < WRITERS; i++) {
        w[i] = (struct writer){.offset = at, .len = 300 + 37 * i, .fill = (uint8_t)(i + 1)};
        at += w[i].len;
    }
    run_writers(w, WRITERS);
    fake_volume_peek(volume, 0, seen.bytes, sizeof(seen.bytes));
    for (uint32_t i = 0; i < WRITERS; i++) {
        for (uint64_t k = w[i].offset; k < w[i].offset + w[i].len; k++)
            seen.n[0] += seen.bytes[k] != w[i].fill;
    }
    seen.n[1] = seen.bytes[99] + seen.bytes[at];
}

static void neighbours_in_a_block_lose_nothing(void **state)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        run_with_seed(neighbours_body, MIB, seed);
        assert_int_equal(seen.err[0], 0);
        assert_int_equal(seen.n[0], 0);
        assert_int_equal(seen.n[1], 0);
    }
}

/* A part of a block against all of it: afterwards the whole write is there, with or without the part. What
 * was there before must not come back. */
static void part_and_whole_body(void) may_yield
{
    memset(seen.bytes, 0xee, sizeof(seen.bytes));
    fake_volume_poke(volume, 0, seen.bytes, sizeof(seen.bytes));
    struct writer w[4] = {
        {.offset = 0, .len = 3 * BLOCK_SIZE, .fill = 1},
        {.offset = BLOCK_SIZE + 10, .len = 100, .fill = 2},
        {.offset = BLOCK_SIZE, .len = BLOCK_SIZE, .fill = 1},
        {.offset = 3 * BLOCK_SIZE - 50, .len = 10, .fill = 2},
    };
    run_writers(w, 4);
    fake_volume_peek(volume, 0, seen.bytes, sizeof(seen.bytes));
    for (uint32_t k = 0; k < 3 * BLOCK_SIZE; k++)
        seen.n[0] += seen.bytes[k] == 0xee;
}

static void merge_does_not_bring_old_bytes_back(void **state)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        run_with_seed(part_and_whole_body, MIB, seed);
        assert_int_equal(seen.err[0], 0);
        assert_int_equal(seen.n[0], 0);
    }
}

static struct fiber *waiter;

static void cancelled_writer(void *arg) may_yield
{
    seen.err[1] = block_write_bytes(device, 20, "waits", 5, 0);
}

static void cancel_body(void) may_yield
{
    fake_volume_knobs(volume)->delay_ns = 1000000;
    struct writer w = {.offset = 10, .len = 5, .fill = 1}, w2 = {.offset = 30, .len = 5, .fill = 3};
    latch_init(&done, 2);
    int err = fiber_spawn("writer", writer_run, &w);
    assert(err == 0);
    fiber_yield();
    err = fiber_spawn_joinable("waiter", cancelled_writer, NULL, &waiter);
    assert(err == 0);
    fiber_yield();
    err = fiber_spawn("writer", writer_run, &w2);
    assert(err == 0);
    fiber_yield();
    fiber_cancel(waiter);
    fiber_join(waiter);
    latch_wait(&done);
    seen.err[0] = w.err | w2.err;
    fake_volume_peek(volume, 0, seen.bytes, 64);
}

static void cancelled_writer_leaves_the_queue(void **state)
{
    run(cancel_body, MIB);
    assert_int_equal(seen.err[0], 0);
    assert_int_equal(seen.err[1], ERR_CANCELLED);
    assert_int_equal(seen.bytes[10], 1);
    assert_int_equal(seen.bytes[20], 0);
    assert_int_equal(seen.bytes[30], 3);
}

/* ---- Errors ---- */

static void errors_body(void) may_yield
{
    memset(seen.bytes, 0x11, sizeof(seen.bytes));
    fake_volume_poke(volume, 0, seen.bytes, sizeof(seen.bytes));
    fake_volume_knobs(volume)->bad_block = 1;
    seen.err[0] = block_write_bytes(device, BLOCK_SIZE + 1, "zz", 2, 0); /* its merge cannot read */
    seen.err[1] = block_write_bytes(device, BLOCK_SIZE - 1, "zz", 2, 0);
    seen.err[2] = block_read_bytes(device, 0, seen.bytes, 2 * BLOCK_SIZE);
    fake_volume_peek(volume, 0, seen.bytes, sizeof(seen.bytes));
    seen.n[0] = fake_volume_counts(volume)->writes;
    fake_volume_knobs(volume)->bad_block = UINT64_MAX;
    fake_volume_knobs(volume)->write_error = ERR_VOLUME_FULL;
    uint8_t *big = calloc(1, 8 * MIB);
    assert(big != NULL);
    seen.err[3] = block_write_bytes(device, 0, big, 8 * MIB, 0);
    seen.n[1] = fake_volume_counts(volume)->writes;
    free(big);
    fake_volume_knobs(volume)->write_error = 0;
    fake_volume_knobs(volume)->flush_error = ERR_VOLUME_FAILED;
    seen.err[4] = block_flush(device);
    fake_volume_knobs(volume)->map_error = ERR_VOLUME_CORRUPT;
    struct block_extent e;
    uint32_t count;
    seen.err[5] = block_map(device, 0, 10, &e, 1, &count);
    seen.n[2] = block_stats(device, BLOCK_OP_WRITE)->errors;
    seen.n[3] = block_stats(device, BLOCK_OP_FLUSH)->errors;
    seen.n[4] = block_stats(device, BLOCK_OP_MAP)->errors;
    seen.n[5] = block_stats(device, BLOCK_OP_READ)->errors;
}

static void errors_of_the_volume_are_passed_on_and_change_nothing(void **state)
{
    run(errors_body, 16 * MIB);
    assert_int_equal(seen.err[0], ERR_NO_GOOD_COPY);
    assert_int_equal(seen.err[1], ERR_NO_GOOD_COPY);
    assert_int_equal(seen.err[2], ERR_NO_GOOD_COPY);
    for (size_t i = 0; i < sizeof(seen.bytes); i++)
        assert_int_equal(seen.bytes[i], 0x11);
    assert_int_equal(seen.n[0], 0);
    assert_int_equal(seen.err[3], ERR_VOLUME_FULL);
    assert_in_range(seen.n[1], 1, 4); /* the first error stops what has not begun */
    assert_int_equal(seen.err[4], ERR_VOLUME_FAILED);
    assert_int_equal(seen.err[5], ERR_VOLUME_CORRUPT);
    assert_int_equal(seen.n[2], 2 + seen.n[1]);
    assert_int_equal(seen.n[3], 1);
    assert_int_equal(seen.n[4], 1);
    assert_int_equal(seen.n[5], 1);
}

static void stats_body(void) may_yield
{
    fake_volume_knobs(volume)->delay_ns = 50000;
    seen.err[0] = block_write_bytes(device, 0, "abc", 3, 0);
    seen.err[1] = block_read_bytes(device, 0, seen.bytes, 3);
    seen.err[2] = block_flush(device);
    seen.err[3] = block_prefetch(device, 0, MIB);
    const struct block_op_stats *s = block_stats(device, BLOCK_OP_READ);
    seen.n[0] = s->ops;
    seen.n[1] = s->bytes;
    seen.n[2] = histogram_percentile_ns(&s->latency, 0.5);
    seen.n[3] = s->in_flight;
    seen.n[4] = block_stats(device, BLOCK_OP_WRITE)->ops;
    seen.n[5] = block_stats(device, BLOCK_OP_FLUSH)->ops;
    seen.n[6] = fake_volume_counts(volume)->prefetches;
    block_open(device);
    seen.n[7] = block_open_count(device);
    block_close(device);
    seen.n[8] = block_open_count(device);
}

static void operations_are_counted_and_timed(void **state)
{
    run(stats_body, MIB);
    assert_int_equal(seen.err[0] | seen.err[1] | seen.err[2] | seen.err[3], 0);
    assert_int_equal(seen.n[0], 1);
    assert_int_equal(seen.n[1], 3);
    assert_in_range(seen.n[2], 80000, 120000);
    assert_int_equal(seen.n[3], 0);
    assert_int_equal(seen.n[4], 1);
    assert_int_equal(seen.n[5], 1);
    assert_int_equal(seen.n[6], 1);
    assert_int_equal(seen.n[7], 1);
    assert_int_equal(seen.n[8], 0);
    assert_string_equal(block_op_name(BLOCK_OP_ZERO), "zero");
}

/* ---- Against a model ---- */

static uint32_t draw(uint32_t below)
{
    uint32_t r;
    world_random(&r, sizeof(r));
    return r % below;
}

static void model_body(void) may_yield
{
    static uint8_t model[64 * BLOCK_SIZE], buf[sizeof(model)];
    memset(model, 0, sizeof(model));
    for (int i = 0; i < 300; i++) {
        uint32_t offset = draw(sizeof(model)), len = 1 + draw(MIN(20000u, (uint32_t)sizeof(model) - offset));
        int err = 0;
        switch (draw(4)) {
        case 0:
            pattern(buf, len, (uint64_t)i);
            memcpy(model + offset, buf, len);
            err = block_write_bytes(device, offset, buf, len, 0);
            break;
        case 1:
            memset(model + offset, 0, len);
            err = block_zero(device, offset, len, draw(2) ? BLOCK_MAY_TRIM : 0);
            break;
        case 2: {
            uint32_t first = ALIGN_UP(offset, BLOCK_SIZE), end = ALIGN_DOWN(offset + len, BLOCK_SIZE);
            if (first < end)
                memset(model + first, 0, end - first);
            err = block_trim(device, offset, len, 0);
            break;
        }
        default:
            err = block_read_bytes(device, offset, buf, len);
            seen.n[0] += memcmp(buf, model + offset, len) != 0;
        }
        seen.n[1] += err != 0;
    }
    fake_volume_peek(volume, 0, buf, sizeof(buf));
    seen.n[2] = memcmp(buf, model, sizeof(buf)) != 0;
}

static void random_operations_agree_with_an_array(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        run_with_seed(model_body, 64 * BLOCK_SIZE, seed);
        assert_int_equal(seen.n[0], 0);
        assert_int_equal(seen.n[1], 0);
        assert_int_equal(seen.n[2], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holes_read_as_zeroes),
        cmocka_unit_test(unaligned_write_keeps_the_bytes_around_it),
        cmocka_unit_test(whole_blocks_are_written_without_reading),
        cmocka_unit_test(long_ranges_go_in_pieces_some_at_a_time),
        cmocka_unit_test(ranges_beyond_the_end_are_refused_without_overflow),
        cmocka_unit_test(device_grows_and_never_shrinks),
        cmocka_unit_test(trim_clears_only_whole_blocks),
        cmocka_unit_test(zero_clears_to_the_byte),
        cmocka_unit_test(map_is_clipped_to_the_bytes_asked_for),
        cmocka_unit_test(neighbours_in_a_block_lose_nothing),
        cmocka_unit_test(merge_does_not_bring_old_bytes_back),
        cmocka_unit_test(cancelled_writer_leaves_the_queue),
        cmocka_unit_test(errors_of_the_volume_are_passed_on_and_change_nothing),
        cmocka_unit_test(operations_are_counted_and_timed),
        cmocka_unit_test(random_operations_agree_with_an_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
