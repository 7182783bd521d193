/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/error.h"
#include "runtime/list.h"
#include "test_world.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* What fibers did, in order, as letters; asserted outside of them. */
static char trace[512];
static void note(char c)
{
    size_t n = strlen(trace);
    assert(n + 1 < sizeof(trace));
    trace[n] = c;
    trace[n + 1] = '\0';
}

static int results[8];
static uint64_t times[8];

static int setup(void **state)
{
    (void)state;
    memset(trace, 0, sizeof(trace));
    memset(results, 0x55, sizeof(results));
    memset(times, 0, sizeof(times));
    return 0;
}

static void must_spawn(const char *name, void (*fn)(void *arg), void *arg)
{
    int err = fiber_spawn(name, fn, arg);
    assert(err == 0);
}

static struct fiber *must_spawn_joinable(const char *name, void (*fn)(void *arg), void *arg)
{
    struct fiber *f;
    int err = fiber_spawn_joinable(name, fn, arg, &f);
    assert(err == 0);
    return f;
}

static fiber_role_assumed void letter_thrice(void *arg)
{
    for (int i = 0; i < 3; i++) {
        note(*(const char *)arg);
        fiber_yield();
    }
}

static void spawn_three(void *arg)
{
    (void)arg;
    must_spawn("a", letter_thrice, "a");
    must_spawn("b", letter_thrice, "b");
    must_spawn("c", letter_thrice, "c");
    note('-');
}

static void fibers_take_turns_in_order(void **state)
{
    (void)state;
    test_run(spawn_three, NULL);
    assert_string_equal(trace, "-abcabcabc");
}

static void world_may_choose_which_fiber_runs(void **state)
{
    (void)state;
    struct test_world w;
    test_world_init(&w);
    w.shuffle = true;
    w.seed = 42;
    test_run_with(&w, MIB, MIB, spawn_three, NULL);
    char first[sizeof(trace)];
    memcpy(first, trace, sizeof(trace));
    assert_int_equal(strlen(first), 10);
    assert_string_not_equal(first, "-abcabcabc");
    trace[0] = '\0';
    w.seed = 42; /* the same seed, the same order */
    test_run_with(&w, MIB, MIB, spawn_three, NULL);
    assert_string_equal(trace, first);
    test_world_done(&w);
}

static fiber_role_assumed void sleep_5ms(void *arg)
{
    (void)arg;
    results[1] = fiber_sleep(5 * NSEC_PER_MSEC);
    note('s');
}

static fiber_role_assumed void join_body(void *arg)
{
    (void)arg;
    uint64_t begin = reactor_now_ns();
    struct fiber *f = must_spawn_joinable("sleeper", sleep_5ms, NULL);
    fiber_join(f);
    note('j');
    times[0] = reactor_now_ns() - begin;
    f = must_spawn_joinable("letters", letter_thrice, "x");
    for (int i = 0; i < 5; i++)
        fiber_yield();
    fiber_join(f); /* had ended before */
    note('k');
}

static void join_waits_for_the_end(void **state)
{
    (void)state;
    test_run(join_body, NULL);
    assert_string_equal(trace, "sjxxxk");
    assert_int_equal(times[0], 5 * NSEC_PER_MSEC);
    assert_int_equal(results[1], 0);
}

static fiber_role_assumed void park_for_ever(void *arg)
{
    (void)arg;
    results[0] = fiber_park(DEADLINE_NEVER);
    results[1] = fiber_cancelled();
    results[2] = fiber_sleep(1);
    fiber_shield();
    results[3] = fiber_sleep(NSEC_PER_MSEC);
    fiber_unshield();
    struct waitq q;
    waitq_init(&q);
    results[4] = waitq_wait(&q, DEADLINE_NEVER);
    struct semaphore s;
    semaphore_init(&s, 0);
    results[5] = semaphore_take(&s, 1, DEADLINE_NEVER);
    results[6] = list_empty(&q.waiters) && list_empty(&s.waiters.waiters);
}

static fiber_role_assumed void cancel_body(void *arg)
{
    (void)arg;
    struct fiber *f = must_spawn_joinable("parked", park_for_ever, NULL);
    fiber_yield();
    fiber_cancel(f);
    fiber_join(f);
}

static void cancel_ends_this_wait_and_later_ones(void **state)
{
    (void)state;
    test_run(cancel_body, NULL);
    assert_int_equal(results[0], ERR_CANCELLED);
    assert_true(results[1]);
    assert_int_equal(results[2], ERR_CANCELLED);
    assert_int_equal(results[3], 0); /* shielded */
    assert_int_equal(results[4], ERR_CANCELLED);
    assert_int_equal(results[5], ERR_CANCELLED);
    assert_true(results[6]);
}

static fiber_role_assumed void shielded_sleep(void *arg)
{
    (void)arg;
    fiber_shield();
    results[0] = fiber_sleep(50 * NSEC_PER_MSEC);
    times[0] = reactor_now_ns();
    fiber_unshield();
    results[1] = fiber_sleep(50 * NSEC_PER_MSEC);
}

static fiber_role_assumed void cancel_shielded_body(void *arg)
{
    (void)arg;
    uint64_t begin = reactor_now_ns();
    struct fiber *f = must_spawn_joinable("shielded", shielded_sleep, NULL);
    results[2] = fiber_sleep(NSEC_PER_MSEC);
    fiber_cancel(f);
    fiber_join(f);
    times[0] -= begin;
}

static void cancel_waits_for_the_end_of_a_shield(void **state)
{
    (void)state;
    test_run(cancel_shielded_body, NULL);
    assert_int_equal(results[0], 0);
    assert_int_equal(times[0], 50 * NSEC_PER_MSEC);
    assert_int_equal(results[1], ERR_CANCELLED);
    assert_int_equal(results[2], 0);
}

static fiber_role_assumed void park_late(void *arg)
{
    (void)arg;
    fiber_yield(); /* the wake-up comes here */
    results[0] = fiber_park(reactor_now_ns() + NSEC_PER_SEC);
    results[1] = fiber_park(reactor_now_ns() + NSEC_PER_SEC);
    times[1] = reactor_now_ns();
}

static fiber_role_assumed void early_wake_body(void *arg)
{
    (void)arg;
    uint64_t begin = reactor_now_ns();
    struct fiber *f = must_spawn_joinable("late", park_late, NULL);
    fiber_yield();
    fiber_wake(f);
    fiber_wake(f); /* remembered once */
    fiber_join(f);
    times[1] -= begin;
}

static void wake_before_the_park_is_remembered(void **state)
{
    (void)state;
    test_run(early_wake_body, NULL);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], ERR_TIMEOUT);
    assert_int_equal(times[1], NSEC_PER_SEC);
}

/* Deadlines are lazy inside; their times must be exact all the same. */
static fiber_role_assumed void deadlines_body(void *arg)
{
    (void)arg;
    uint64_t begin = reactor_now_ns();
    static const uint64_t after_ms[] = {50, 10, 300, 20};
    uint64_t expected = begin;
    for (size_t i = 0; i < ARRAY_SIZE(after_ms); i++) {
        expected += after_ms[i] * NSEC_PER_MSEC;
        if (fiber_park(reactor_now_ns() + after_ms[i] * NSEC_PER_MSEC) != ERR_TIMEOUT)
            note('!');
        if (reactor_now_ns() != expected)
            note('?');
    }
    if (fiber_park(reactor_now_ns()) != ERR_TIMEOUT) /* already over */
        note('#');
}

static fiber_role_assumed void wake_after_1ms(void *arg)
{
    if (fiber_sleep(NSEC_PER_MSEC) == 0)
        fiber_wake(arg);
}

/* Woken before a short deadline; the timer that is left behind must not end the next wait early. */
static fiber_role_assumed void stale_timer_body(void *arg)
{
    (void)arg;
    uint64_t begin = reactor_now_ns();
    must_spawn("waker", wake_after_1ms, fiber_self());
    results[0] = fiber_park(begin + 10 * NSEC_PER_MSEC);
    results[1] = fiber_park(begin + 100 * NSEC_PER_MSEC);
    times[0] = reactor_now_ns() - begin;
    must_spawn("waker", wake_after_1ms, fiber_self());
    results[2] = fiber_park(reactor_now_ns() + 10 * NSEC_PER_MSEC);
    must_spawn("waker", wake_after_1ms, fiber_self());
    results[3] = fiber_park(DEADLINE_NEVER);
}

static void deadlines_are_exact(void **state)
{
    (void)state;
    test_run(deadlines_body, NULL);
    assert_string_equal(trace, "");
}

static void timer_of_an_earlier_wait_does_not_disturb(void **state)
{
    (void)state;
    test_run(stale_timer_body, NULL);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], ERR_TIMEOUT);
    assert_int_equal(times[0], 100 * NSEC_PER_MSEC);
    assert_int_equal(results[2], 0);
    assert_int_equal(results[3], 0);
}

static struct waitq queue;
static fiber_role_assumed void wait_on_queue(void *arg)
{
    int err = waitq_wait(&queue, DEADLINE_NEVER);
    note(err == 0 ? *(const char *)arg : '!');
}

static fiber_role_assumed void waitq_body(void *arg)
{
    (void)arg;
    waitq_init(&queue);
    results[0] = waitq_wait(&queue, reactor_now_ns() + NSEC_PER_MSEC);
    struct fiber *a = must_spawn_joinable("a", wait_on_queue, "a");
    must_spawn("b", wait_on_queue, "b");
    must_spawn("c", wait_on_queue, "c");
    fiber_yield();
    waitq_wake_one(&queue);
    fiber_cancel(a); /* it was woken already: the wake-up must not be lost */
    fiber_yield();
    note('-');
    waitq_wake_all(&queue);
    waitq_wake_one(&queue); /* nobody there */
    fiber_join(a);
}

static void waitq_wakes_in_order(void **state)
{
    (void)state;
    test_run(waitq_body, NULL);
    assert_int_equal(results[0], ERR_TIMEOUT);
    assert_string_equal(trace, "a-bc");
}

static struct latch latch;
static fiber_role_assumed void latch_part(void *arg)
{
    if (fiber_sleep((uint64_t)(uintptr_t)arg * NSEC_PER_MSEC) == 0)
        note('p');
    latch_down(&latch);
}

static fiber_role_assumed void latch_waiter(void *arg)
{
    (void)arg;
    latch_wait(&latch);
    note('w');
}

static fiber_role_assumed void latch_body(void *arg)
{
    (void)arg;
    latch_init(&latch, 2);
    latch_up(&latch, 1);
    for (uintptr_t i = 1; i <= 3; i++)
        must_spawn("part", latch_part, (void *)i);
    struct fiber *f = must_spawn_joinable("waiter", latch_waiter, NULL);
    fiber_yield();
    fiber_cancel(f); /* a latch is waited for whatever happens */
    fiber_join(f);
    latch_wait(&latch); /* zero already */
}

static void latch_counts_down_and_ignores_cancel(void **state)
{
    (void)state;
    test_run(latch_body, NULL);
    assert_string_equal(trace, "pppw");
}

static struct fmutex mutex;
static fiber_role_assumed void with_mutex(void *arg)
{
    fmutex_lock(&mutex);
    note(*(const char *)arg);
    if (fiber_sleep(NSEC_PER_MSEC) == 0)
        note(*(const char *)arg);
    fmutex_unlock(&mutex);
}

static fiber_role_assumed void mutex_body(void *arg)
{
    (void)arg;
    fmutex_init(&mutex);
    must_spawn("a", with_mutex, "a");
    must_spawn("b", with_mutex, "b");
    must_spawn("c", with_mutex, "c");
    fiber_yield();
    with_mutex("d");
}

static void mutex_excludes_and_is_fair(void **state)
{
    (void)state;
    test_run(mutex_body, NULL);
    assert_string_equal(trace, "aabbccdd");
}

static struct semaphore sem;
static fiber_role_assumed void take_n(void *arg)
{
    uint64_t n = (uint64_t)(uintptr_t)arg;
    int err = semaphore_take(&sem, n, reactor_now_ns() + NSEC_PER_SEC);
    note(err == 0 ? (char)('0' + n) : 't');
}

static fiber_role_assumed void semaphore_body(void *arg)
{
    (void)arg;
    semaphore_init(&sem, 3);
    must_spawn("large", take_n, (void *)5);
    must_spawn("small", take_n, (void *)1);
    must_spawn("small", take_n, (void *)2);
    fiber_yield();
    results[0] = semaphore_try_take(&sem, 1); /* must not overtake */
    semaphore_give(&sem, 2);
    fiber_yield();
    note('-');
    semaphore_give(&sem, 1);
    fiber_yield();
    note('-');
    results[1] = fiber_sleep(2 * NSEC_PER_SEC); /* the last one times out */
    times[0] = sem.available;
}

static void semaphore_does_not_starve_the_large(void **state)
{
    (void)state;
    test_run(semaphore_body, NULL);
    assert_false(results[0]);
    assert_string_equal(trace, "5-1-t");
    assert_int_equal(times[0], 0);
}

static fiber_role_assumed void giving_up_body(void *arg)
{
    (void)arg;
    semaphore_init(&sem, 3);
    struct fiber *f = must_spawn_joinable("large", take_n, (void *)5);
    must_spawn("small", take_n, (void *)2);
    fiber_yield();
    fiber_cancel(f);
    fiber_join(f);
    fiber_yield();
}

static void semaphore_serves_those_behind_one_that_gave_up(void **state)
{
    (void)state;
    test_run(giving_up_body, NULL);
    assert_string_equal(trace, "t2");
}

static int timer_count;
static void timer_tick(struct timer *t)
{
    (void)t;
    timer_count++;
}

static fiber_role_assumed void many_timers_body(void *arg)
{
    (void)arg;
    enum { N = 500 };
    static struct timer timers[N];
    uint64_t begin = reactor_now_ns();
    for (uint32_t i = 0; i < N; i++) {
        timers[i].fn = timer_tick;
        timer_start(&timers[i], begin + (1 + i * 7919u % N) * NSEC_PER_MSEC);
    }
    for (uint32_t i = 0; i < N; i += 5)
        timer_stop(&timers[i]);
    for (uint32_t i = 1; i < N; i += 5)
        timer_start(&timers[i], begin + 2000 * NSEC_PER_MSEC); /* moved */
    results[0] = fiber_sleep(1000 * NSEC_PER_MSEC);
    results[1] = timer_count;
    results[0] = fiber_sleep(1000 * NSEC_PER_MSEC);
    results[2] = timer_count;
}

static void timers_fire_in_time_once(void **state)
{
    (void)state;
    timer_count = 0;
    test_run(many_timers_body, NULL);
    assert_int_equal(results[1], 300);
    assert_int_equal(results[2], 400);
}

static int hook_count;
static void count_hook(struct turn_hook *h)
{
    (void)h;
    hook_count++;
}

static fiber_role_assumed void hook_body(void *arg)
{
    (void)arg;
    struct turn_hook h = {.fn = count_hook};
    reactor_add_turn_hook(&h);
    results[0] = fiber_sleep(NSEC_PER_MSEC);
    results[1] = hook_count;
    reactor_remove_turn_hook(&h);
    results[0] = fiber_sleep(NSEC_PER_MSEC);
    results[2] = hook_count;
}

static void turn_hooks_run_once_a_turn(void **state)
{
    (void)state;
    hook_count = 0;
    test_run(hook_body, NULL);
    assert_int_equal(results[1], 1);
    assert_int_equal(results[2], 1);
}

static int block_body_thread(void *arg)
{
    *(pthread_t *)arg = pthread_self();
    return ERR_SHORT_IO;
}

static fiber_role_assumed void block_body(void *arg)
{
    (void)arg;
    pthread_t helper = pthread_self();
    results[0] = reactor_block(block_body_thread, &helper);
    results[1] = pthread_equal(helper, pthread_self());
}

static void block_runs_on_another_thread(void **state)
{
    (void)state;
    test_run(block_body, NULL);
    assert_int_equal(results[0], ERR_SHORT_IO);
    assert_false(results[1]);
}

static struct reactor *other;
static fiber_role_assumed void *other_main(void *arg)
{
    (void)arg;
    int err = reactor_run(other);
    assert(err == 0);
    return NULL;
}

static fiber_role_assumed int called(void *arg)
{
    *(struct reactor **)arg = reactor_current();
    return fiber_sleep(NSEC_PER_MSEC) == 0 ? ERR_SHORT_IO : 0;
}

static fiber_role_assumed void call_body(void *arg)
{
    (void)arg;
    struct reactor *ran_on = NULL;
    for (int i = 0; i < 1000; i++)
        results[0] = reactor_call(other, called, &ran_on);
    results[1] = ran_on == other;
    results[2] = reactor_call(reactor_current(), called, &ran_on);
    results[3] = ran_on == reactor_current();
    reactor_stop(other);
}

static void call_runs_on_the_other_reactor(void **state)
{
    (void)state;
    struct test_world w;
    test_world_init(&w);
    struct memory_budget budget = {.limit_bytes = MIB};
    struct reactor_options o = {.world = &test_world_ops, .world_ctx = &w, .budget = &budget, .index = 1};
    assert_int_equal(reactor_new(&o, &other), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, other_main, NULL), 0);
    test_run(call_body, NULL);
    pthread_join(thread, NULL);
    reactor_free(other);
    test_world_done(&w);
    assert_int_equal(results[0], ERR_SHORT_IO);
    assert_true(results[1]);
    assert_int_equal(results[2], ERR_SHORT_IO);
    assert_true(results[3]);
}

static uint32_t fiber_total;
static fiber_role_assumed void deep_fiber(void *arg)
{
    volatile char use[8192];
    memset((char *)(uintptr_t)use, 1, sizeof(use));
    if (fiber_sleep(NSEC_PER_MSEC * (1 + (uint64_t)(uintptr_t)arg % 7)) == 0)
        fiber_total += (uint32_t)use[100];
}

static fiber_role_assumed void many_fibers_body(void *arg)
{
    (void)arg;
    for (int round = 0; round < 3; round++) {
        for (uintptr_t i = 0; i < 2000; i++)
            must_spawn("deep", deep_fiber, (void *)i);
        results[0] = fiber_sleep(20 * NSEC_PER_MSEC);
    }
}

static void stacks_of_thousands_of_fibers_are_reused(void **state)
{
    (void)state;
    fiber_total = 0;
    test_run(many_fibers_body, NULL);
    assert_int_equal(fiber_total, 6000);
}

static fiber_role_assumed void limit_body(void *arg)
{
    (void)arg;
    int err = 0;
    int n = 0;
    for (; err == 0 && n < 20000; n++)
        err = fiber_spawn("sleeper", sleep_5ms, NULL);
    results[0] = err;
    times[0] = (uint64_t)n;
    results[2] = fiber_sleep(NSEC_PER_SEC);
    results[3] = fiber_spawn("again", wait_on_queue, "x");
    waitq_init(&queue);
    fiber_yield();
    waitq_wake_all(&queue);
}

static void too_many_fibers_are_refused(void **state)
{
    (void)state;
    struct test_world w;
    test_world_init(&w);
    struct memory_budget budget = {.limit_bytes = MIB};
    struct reactor_options o = {
        .world = &test_world_ops, .world_ctx = &w, .budget = &budget, .fibers_max = 100};
    struct reactor *r;
    assert_int_equal(reactor_new(&o, &r), 0);
    assert_int_equal(reactor_spawn(r, "test", limit_body, NULL), 0);
    reactor_stop(r);
    assert_int_equal(reactor_run(r), 0);
    reactor_free(r);
    test_world_done(&w);
    assert_int_equal(results[0], ERR_TOO_MANY_FIBERS);
    assert_int_equal(times[0], 100);
    assert_int_equal(results[3], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(fibers_take_turns_in_order, setup),
        cmocka_unit_test_setup(world_may_choose_which_fiber_runs, setup),
        cmocka_unit_test_setup(join_waits_for_the_end, setup),
        cmocka_unit_test_setup(cancel_ends_this_wait_and_later_ones, setup),
        cmocka_unit_test_setup(cancel_waits_for_the_end_of_a_shield, setup),
        cmocka_unit_test_setup(wake_before_the_park_is_remembered, setup),
        cmocka_unit_test_setup(deadlines_are_exact, setup),
        cmocka_unit_test_setup(timer_of_an_earlier_wait_does_not_disturb, setup),
        cmocka_unit_test_setup(waitq_wakes_in_order, setup),
        cmocka_unit_test_setup(latch_counts_down_and_ignores_cancel, setup),
        cmocka_unit_test_setup(mutex_excludes_and_is_fair, setup),
        cmocka_unit_test_setup(semaphore_does_not_starve_the_large, setup),
        cmocka_unit_test_setup(semaphore_serves_those_behind_one_that_gave_up, setup),
        cmocka_unit_test_setup(timers_fire_in_time_once, setup),
        cmocka_unit_test_setup(turn_hooks_run_once_a_turn, setup),
        cmocka_unit_test_setup(block_runs_on_another_thread, setup),
        cmocka_unit_test_setup(call_runs_on_the_other_reactor, setup),
        cmocka_unit_test_setup(stacks_of_thousands_of_fibers_are_reused, setup),
        cmocka_unit_test_setup(too_many_fibers_are_refused, setup),
    };
    return cmocka_run_group_tests_name("fibers", tests, NULL, NULL);
}
