/* SPDX-License-Identifier: Apache-2.0 */
#include "test_world.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

void test_world_init(struct test_world *w)
{
    *w = (struct test_world){.now_ns = NSEC_PER_SEC, .seed = 1, .wake_fd = eventfd(0, EFD_CLOEXEC)};
    assert(w->wake_fd >= 0);
}

void test_world_done(struct test_world *w)
{
    close(w->wake_fd);
}

static uint64_t test_now_ns(struct reactor *r)
{
    return ((struct test_world *)reactor_world_ctx(r))->now_ns;
}

static uint64_t test_next_random(struct test_world *w)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return w->seed;
}

static void test_random(struct reactor *r, void *buf, size_t len)
{
    uint8_t *p = buf;
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)test_next_random(reactor_world_ctx(r));
}

static uint32_t test_pick(struct reactor *r, uint32_t ready_count)
{
    struct test_world *w = reactor_world_ctx(r);
    return w->shuffle ? (uint32_t)(test_next_random(w) % ready_count) : 0;
}

static void test_wait(struct reactor *r, uint64_t deadline_ns)
{
    struct test_world *w = reactor_world_ctx(r);
    if (deadline_ns == DEADLINE_NEVER) { /* only another thread can help */
        struct pollfd p = {.fd = w->wake_fd, .events = POLLIN};
        int rc = poll(&p, 1, 10000);
        assert(rc == 1);
        uint64_t n;
        ssize_t got = read(w->wake_fd, &n, sizeof(n));
        assert(got == sizeof(n));
    } else if (deadline_ns > w->now_ns) {
        w->now_ns = deadline_ns;
    }
}

static void test_wake(struct reactor *r)
{
    struct test_world *w = reactor_world_ctx(r);
    uint64_t one = 1;
    ssize_t put = write(w->wake_fd, &one, sizeof(one));
    assert(put == sizeof(one));
}

const struct world_ops test_world_ops = {
    .name = "test",
    .now_ns = test_now_ns,
    .wall_ns = test_now_ns,
    .random = test_random,
    .wait = test_wait,
    .wake = test_wake,
    .pick = test_pick,
};

void test_run_with(struct test_world *w, uint64_t memory_bytes, size_t chunk_bytes, void (*fn)(void *arg),
                   void *arg)
{
    struct memory_budget budget = {.limit_bytes = memory_bytes};
    struct reactor_options o = {
        .world = &test_world_ops, .world_ctx = w, .budget = &budget, .chunk_bytes = chunk_bytes};
    struct reactor *r;
    int err = reactor_new(&o, &r);
    assert(err == 0);
    err = reactor_spawn(r, "test", fn, arg);
    assert(err == 0);
    reactor_stop(r);
    err = reactor_run(r);
    assert(err == 0);
    memory_check(reactor_memory(r));
    reactor_free(r);
    assert(budget.used_bytes == 0);
}

void test_run(void (*fn)(void *arg), void *arg)
{
    struct test_world w;
    test_world_init(&w);
    test_run_with(&w, 64 * MIB, MIB, fn, arg);
    test_world_done(&w);
}
