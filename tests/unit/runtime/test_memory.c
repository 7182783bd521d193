/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/error.h"
#include "test_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static int results[16];
static uint64_t numbers[16];

static int setup(void **state)
{
    (void)state;
    memset(results, 0x55, sizeof(results));
    memset(numbers, 0, sizeof(numbers));
    return 0;
}

static struct memory *mem(void)
{
    return reactor_memory(reactor_current());
}

static uint64_t used_pages(void)
{
    uint64_t used, held;
    memory_usage(mem(), &used, &held);
    return used / BLOCK_SIZE;
}

static void run(uint64_t budget_bytes, void (*fn)(void *arg))
{
    struct test_world w;
    test_world_init(&w);
    test_run_with(&w, budget_bytes, MIB, fn, NULL);
    test_world_done(&w);
}

static void runs_body(void *arg)
{
    (void)arg;
    struct page *runs[20];
    static const uint32_t sizes[] = {1, 2, 3, 5, 7, 8, 13, 64, 100, 1, 33, 2, 17};
    uint64_t sum = 0;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        if (page_alloc(sizes[i], &runs[i]) != 0)
            results[0] = -1;
        sum += sizes[i];
        memset(runs[i]->data, (int)i + 1, sizes[i] * (size_t)BLOCK_SIZE);
        for (uint32_t k = 0; k < sizes[i]; k++)
            if (page_at(runs[i], k)->data != runs[i]->data + (size_t)k * BLOCK_SIZE)
                results[1] = -1;
        if ((uintptr_t)runs[i]->data % BLOCK_SIZE != 0)
            results[1] = -2;
    }
    numbers[0] = used_pages() - sum;
    memory_check(mem());
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (size_t k = 0; k < sizes[i] * (size_t)BLOCK_SIZE; k += 511)
            if (runs[i]->data[k] != i + 1)
                results[2] = -1;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        page_put(runs[i], sizes[i]);
        memory_check(mem());
    }
    numbers[1] = used_pages();
}

static void runs_are_contiguous_and_cost_what_they_hold(void **state)
{
    (void)state;
    results[0] = results[1] = results[2] = 0;
    run(4 * MIB, runs_body);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], 0);
    assert_int_equal(results[2], 0);
    assert_int_equal(numbers[0], 0);
    assert_int_equal(numbers[1], 0);
}

static void coalesce_body(void *arg)
{
    (void)arg;
    struct page *pages[256];
    struct page *whole;
    for (size_t i = 0; i < ARRAY_SIZE(pages); i++)
        results[0] = page_alloc(1, &pages[i]);
    results[1] = page_alloc(1, &whole); /* the budget is one chunk of 256 pages */
    for (size_t i = 0; i < ARRAY_SIZE(pages); i += 2)
        page_put(pages[i], 1);
    memory_check(mem());
    results[2] = page_alloc(2, &whole); /* half is free, but no two neighbours */
    for (size_t i = 1; i < ARRAY_SIZE(pages); i += 2)
        page_put(pages[i], 1);
    memory_check(mem());
    results[3] = page_alloc(256, &whole);
    page_put(whole, 256);
}

static void freed_pages_coalesce(void **state)
{
    (void)state;
    run(MIB, coalesce_body);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], ERR_NO_MEMORY);
    assert_int_equal(results[2], ERR_NO_MEMORY);
    assert_int_equal(results[3], 0);
}

static void counts_body(void *arg)
{
    (void)arg;
    struct page *p;
    results[0] = page_alloc(8, &p);
    page_get(page_at(p, 3), 2); /* pages 3 and 4 are kept by a cache */
    page_put(p, 8);
    numbers[0] = used_pages();
    numbers[1] = page_at(p, 3)->refs;
    memory_check(mem());
    page_put(page_at(p, 3), 1);
    numbers[2] = used_pages();
    page_put(page_at(p, 4), 1);
    numbers[3] = used_pages();
}

static void pages_of_a_run_live_separately(void **state)
{
    (void)state;
    run(MIB, counts_body);
    assert_int_equal(results[0], 0);
    assert_int_equal(numbers[0], 2);
    assert_int_equal(numbers[1], 1);
    assert_int_equal(numbers[2], 1);
    assert_int_equal(numbers[3], 0);
}

/* A toy cache: an array of single pages. */
static struct page *cached[1024];
static uint32_t cached_count;
static uint32_t reclaim_some(void *ctx, uint32_t npages)
{
    uint32_t n = 0;
    (void)ctx;
    for (; n < npages && cached_count > 0; n++)
        page_put(cached[--cached_count], 1);
    return n;
}

static void reclaim_body(void *arg)
{
    (void)arg;
    memory_set_reclaim(mem(), reclaim_some, NULL);
    while (cached_count < 512)
        results[0] = page_alloc(1, &cached[cached_count++]);
    struct page *p;
    results[1] = page_alloc(1, &p);
    numbers[0] = cached_count;
    page_put(p, 1);
    results[2] = page_alloc(200, &p);
    numbers[1] = cached_count;
    page_put(p, 200);
    reclaim_some(NULL, UINT32_MAX);
    memory_set_reclaim(mem(), NULL, NULL);
}

static void cache_gives_way_when_the_budget_is_used(void **state)
{
    (void)state;
    cached_count = 0;
    run(2 * MIB, reclaim_body);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], 0);
    assert_int_equal(numbers[0], 511);
    assert_int_equal(results[2], 0);
    assert_true(numbers[1] < 400);
}

static struct page *held;
static fiber_role_assumed void alloc_waiter(void *arg)
{
    struct page *p;
    uint32_t n = (uint32_t)(uintptr_t)arg;
    int err = page_alloc_wait(n, reactor_now_ns() + NSEC_PER_SEC, &p);
    results[numbers[5]++] = err == 0 ? (int)n : err;
    if (err == 0)
        page_put(p, n);
}

static fiber_role_assumed void waiters_body(void *arg)
{
    (void)arg;
    int err = page_alloc(256, &held);
    assert(err == 0);
    static const uintptr_t wants[] = {200, 1, 100};
    for (size_t i = 0; i < ARRAY_SIZE(wants); i++) {
        err = fiber_spawn("waiter", alloc_waiter, (void *)wants[i]);
        assert(err == 0);
    }
    err = fiber_sleep(100 * NSEC_PER_MSEC);
    numbers[6] = numbers[5];
    page_put(held, 128); /* enough for the second, but it is not its turn */
    err = fiber_sleep(100 * NSEC_PER_MSEC);
    numbers[7] = numbers[5];
    page_put(page_at(held, 128), 128);
    err = fiber_sleep(1 * NSEC_PER_MSEC);
    numbers[8] = numbers[5];
    assert(err == 0);
}

static void waiters_for_memory_are_served_in_order(void **state)
{
    (void)state;
    run(MIB, waiters_body);
    assert_int_equal(numbers[6], 0);
    assert_int_equal(numbers[7], 0);
    assert_int_equal(numbers[8], 3);
    assert_int_equal(results[0], 200);
    assert_int_equal(results[1], 1);
    assert_int_equal(results[2], 100);
}

static fiber_role_assumed void give_up_body(void *arg)
{
    (void)arg;
    int err = page_alloc(256, &held);
    assert(err == 0);
    struct fiber *f;
    err = fiber_spawn_joinable("waiter", alloc_waiter, (void *)2, &f);
    assert(err == 0);
    fiber_yield();
    fiber_cancel(f);
    fiber_join(f);
    uint64_t begin = reactor_now_ns();
    struct page *p;
    results[1] = page_alloc_wait(1, begin + 70 * NSEC_PER_MSEC, &p);
    numbers[0] = reactor_now_ns() - begin;
    page_put(held, 256);
}

static void waiting_for_memory_ends_by_deadline_or_cancel(void **state)
{
    (void)state;
    run(MIB, give_up_body);
    assert_int_equal(results[0], ERR_CANCELLED);
    assert_int_equal(results[1], ERR_TIMEOUT);
    assert_int_equal(numbers[0], 70 * NSEC_PER_MSEC);
}

static bool fail_third(void *ctx)
{
    return ++*(int *)ctx == 3;
}

static fiber_role_assumed void failure_body(void *arg)
{
    (void)arg;
    int calls = 0;
    struct page *p;
    memory_set_failure(mem(), fail_third, &calls);
    for (int i = 0; i < 5; i++) {
        results[i] = page_alloc(1, &p);
        if (results[i] == 0)
            page_put(p, 1);
    }
    calls = 2;
    results[5] = page_alloc_wait(1, DEADLINE_NEVER, &p);
    page_put(p, 1);
    memory_set_failure(mem(), NULL, NULL);
}

static void allocation_can_be_made_to_fail(void **state)
{
    (void)state;
    run(MIB, failure_body);
    for (int i = 0; i < 6; i++)
        assert_int_equal(results[i], i == 2 ? ERR_NO_MEMORY : 0);
}

/* Random allocations, references and frees against a model of who owns what. */
static void random_body(void *arg)
{
    (void)arg;
    enum { RUNS = 200 };
    static struct {
        struct page *p;
        uint32_t n;
    } runs[RUNS];
    memset(runs, 0, sizeof(runs));
    uint64_t model = 0;
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t draw[2];
        world_random(draw, sizeof(draw));
        uint32_t i = draw[0] % RUNS;
        if (runs[i].p != NULL) {
            page_put(runs[i].p, runs[i].n);
            model -= runs[i].n;
            runs[i].p = NULL;
        } else {
            runs[i].n = 1 + (draw[1] % 4 == 0 ? draw[1] / 4 % 60 : draw[1] / 4 % 4);
            if (page_alloc(runs[i].n, &runs[i].p) != 0)
                runs[i].p = NULL;
            else
                model += runs[i].n;
        }
        if (used_pages() != model)
            numbers[0]++;
        if (step % 500 == 0)
            memory_check(mem());
    }
    for (uint32_t i = 0; i < RUNS; i++)
        if (runs[i].p != NULL)
            page_put(runs[i].p, runs[i].n);
    numbers[1] = used_pages();
}

static void random_use_keeps_the_invariants(void **state)
{
    (void)state;
    run(3 * MIB, random_body);
    assert_int_equal(numbers[0], 0);
    assert_int_equal(numbers[1], 0);
}

static void longest_body(void *arg)
{
    (void)arg;
    struct page *p;
    results[0] = page_alloc(PAGE_RUN_MAX, &p);
    page_put(p, PAGE_RUN_MAX);
}

static void too_long_body(void *arg)
{
    (void)arg;
    struct page *p;
    uint64_t used;
    results[0] = page_alloc(PAGE_RUN_MAX, &p); /* the chunks are smaller here */
    memory_usage(mem(), &used, &numbers[0]);
}

static void run_longer_than_a_chunk_does_not_use_up_the_budget(void **state)
{
    (void)state;
    run(32 * MIB, too_long_body);
    assert_int_equal(results[0], ERR_NO_MEMORY);
    assert_int_equal(numbers[0], 0);
}

static void longest_run_fits_a_chunk(void **state)
{
    (void)state;
    struct test_world w;
    test_world_init(&w);
    test_run_with(&w, 32 * MIB, 0, longest_body, NULL);
    test_world_done(&w);
    assert_int_equal(results[0], 0);
}

/* All that the current reactor's pool can get. */
static uint32_t take_all(struct page **pages, uint32_t max)
{
    uint32_t n = 0;
    while (n < max && page_alloc(256, &pages[n]) == 0)
        n++;
    return n;
}

static void one_reactor_leaves_the_others_their_share(void **state)
{
    (void)state;
    static struct page *first[64], *second[64];
    struct test_world w[2];
    struct reactor *r[2];
    struct memory_budget budget = {.limit_bytes = 32 * MIB};
    for (int i = 0; i < 2; i++) {
        test_world_init(&w[i]);
        struct reactor_options o = {
            .world = &test_world_ops, .world_ctx = &w[i], .budget = &budget, .chunk_bytes = MIB};
        assert_int_equal(reactor_new(&o, &r[i]), 0);
    }
    struct reactor *before = reactor_enter(r[0]);
    uint32_t n = take_all(first, 64);
    assert_int_equal(n, 24); /* a quarter is the other's */
    assert_int_equal(memory_limit_bytes(reactor_memory(r[0])), 24 * MIB);
    reactor_enter(r[1]);
    uint32_t m = take_all(second, 64);
    assert_int_equal(m, 8);
    assert_int_equal(budget.used_bytes, 32 * MIB);
    while (m > 0)
        page_put(second[--m], 256);
    reactor_enter(r[0]);
    while (n > 0)
        page_put(first[--n], 256);
    reactor_enter(before);
    for (int i = 0; i < 2; i++) {
        reactor_free(r[i]);
        test_world_done(&w[i]);
    }
    assert_int_equal(budget.used_bytes, 0);
    assert_int_equal(budget.pools, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(runs_are_contiguous_and_cost_what_they_hold, setup),
        cmocka_unit_test_setup(one_reactor_leaves_the_others_their_share, setup),
        cmocka_unit_test_setup(freed_pages_coalesce, setup),
        cmocka_unit_test_setup(pages_of_a_run_live_separately, setup),
        cmocka_unit_test_setup(cache_gives_way_when_the_budget_is_used, setup),
        cmocka_unit_test_setup(waiters_for_memory_are_served_in_order, setup),
        cmocka_unit_test_setup(waiting_for_memory_ends_by_deadline_or_cancel, setup),
        cmocka_unit_test_setup(allocation_can_be_made_to_fail, setup),
        cmocka_unit_test_setup(random_use_keeps_the_invariants, setup),
        cmocka_unit_test_setup(run_longer_than_a_chunk_does_not_use_up_the_budget, setup),
        cmocka_unit_test_setup(longest_run_fits_a_chunk, setup),
    };
    return cmocka_run_group_tests_name("page memory", tests, NULL, NULL);
}
