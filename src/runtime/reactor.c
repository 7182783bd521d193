/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of the reactor
 *
 * A turn does, in this order: messages of other threads, timers that are due, ready fibers, turn hooks. Then
 * the world waits: it submits everything that the turn gathered with one system call, and its completions
 * make fibers ready for the next turn.
 *
 * Fibers that are woken in a turn run in the same turn (their submissions join the batch), but only for
 * ROUNDS_MAX rounds, so that fibers which keep each other busy cannot keep the loop from its I/O.
 *
 * The inbox is looked at after the turn and before the wait (reactor_next_deadline()), and again by the real
 * world between saying "I sleep" and sleeping; reactor_post() pushes first and then asks whether the target
 * sleeps. So no message waits for the next unrelated event.
 */
#include "runtime/error.h"
#include "runtime/reactor_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define FIBERS_MAX_DEFAULT 24576u /* each is two mappings; Linux gives a process 65530 */
#define STACK_DEFAULT      (ASHLAR_ASAN ? 256 * KIB : 64 * KIB)
#define ROUNDS_MAX         4

__thread struct reactor *reactor_tls;

#ifdef __clang__
struct fiber_role fiber_role;
#endif

int reactor_new(const struct reactor_options *o, struct reactor **ret)
{
    assert(o->world != NULL && o->budget != NULL);
    assert(o->stack_bytes % BLOCK_SIZE == 0);
    struct reactor *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return ERR_NO_MEMORY;
    r->ops = o->world;
    r->world_ctx = o->world_ctx;
    r->fibers_max = o->fibers_max != 0 ? o->fibers_max : FIBERS_MAX_DEFAULT;
    r->stack_bytes = o->stack_bytes != 0 ? o->stack_bytes : STACK_DEFAULT;
    r->index = o->index;
    list_init(&r->ready);
    list_init(&r->fibers);
    list_init(&r->free_stacks);
    list_init(&r->hooks);
    r->ring = calloc(RING_EVENTS, sizeof(struct ring_entry));
    r->memory = memory_new(r, o->budget, o->chunk_bytes);
    if (r->ring == NULL || r->memory == NULL) {
        if (r->memory != NULL)
            memory_free(r->memory);
        free(r->ring);
        free(r);
        return ERR_NO_MEMORY;
    }
    int err = r->ops->reactor_init != NULL ? r->ops->reactor_init(r) : 0;
    if (err != 0) {
        memory_free(r->memory);
        free(r->ring);
        free(r);
        return err;
    }
    r->now_ns = r->ops->now_ns(r);
    crash_register_reactor(r);
    *ret = r;
    return 0;
}

static int reactor_start_world(struct reactor *r)
{
    if (r->started)
        return 0;
    int err = r->ops->reactor_start != NULL ? r->ops->reactor_start(r) : 0;
    r->started = err == 0;
    return err;
}

static void reactor_end_world(struct reactor *r)
{
    if (r->started && r->ops->reactor_end != NULL)
        r->ops->reactor_end(r);
    r->started = false;
}

void reactor_free(struct reactor *r)
{
    assert(r->fiber_count == 0 && r->ready_count == 0);
    while (__atomic_load_n(&r->posting, __ATOMIC_SEQ_CST) != 0)
        sched_yield();
    struct reactor *before = reactor_enter(r);
    crash_unregister_reactor(r);
    reactor_end_world(r);
    memory_free(r->memory);
    if (r->ops->reactor_done != NULL)
        r->ops->reactor_done(r);
    fiber_drain_stacks(r);
    reactor_enter(before == r ? NULL : before);
    free(r->timers);
    free(r->ring);
    free(r);
}

struct reactor *reactor_current(void)
{
    return reactor_tls;
}

struct reactor *reactor_enter(struct reactor *r)
{
    struct reactor *before = reactor_tls;
    assert(before == NULL || before->running == NULL || r == before);
    reactor_tls = r;
    return before;
}

struct memory *reactor_memory(struct reactor *r)
{
    return r->memory;
}

uint32_t reactor_index(const struct reactor *r)
{
    return r->index;
}

void *reactor_world_ctx(const struct reactor *r)
{
    return r->world_ctx;
}

void reactor_set_world_data(struct reactor *r, void *data)
{
    r->world_data = data;
}

void *reactor_world_data(const struct reactor *r)
{
    return r->world_data;
}

uint32_t reactor_fiber_count(const struct reactor *r)
{
    return r->fiber_count;
}

void reactor_cancel_all(struct reactor *r)
{
    struct reactor *before = reactor_enter(r);
    LIST_FOREACH (&r->fibers, l) {
        struct fiber *f = CONTAINER_OF(l, struct fiber, all_link);
        if (f->state != FIBER_DONE)
            fiber_cancel(f);
    }
    reactor_enter(before);
}

/* ---- Time ---- */

uint64_t reactor_now_ns(void)
{
    return reactor_tls != NULL ? reactor_tls->now_ns : reactor_clock_ns();
}

uint64_t reactor_clock_ns(void)
{
    struct reactor *r = reactor_tls;
    if (r != NULL)
        return r->ops->now_ns(r);
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* ---- The loop ---- */

static bool reactor_run_fibers(struct reactor *r)
{
    bool any = false;
    for (int round = 0; round < ROUNDS_MAX && r->ready_count > 0; round++) {
        for (uint32_t n = r->ready_count; n > 0; n--)
            fiber_run(r, fiber_pick(r));
        any = true;
    }
    return any;
}

static bool reactor_turn_inside(struct reactor *r)
{
    if (!r->now_fresh)
        r->now_ns = r->ops->now_ns(r);
    r->now_fresh = false;
    bool any = message_run_all(r);
    uint64_t due = timer_next_ns(r);
    if (due <= r->now_ns) {
        timer_run_due(r);
        any = true;
    }
    if (reactor_run_fibers(r))
        any = true;
    LIST_FOREACH_SAFE (&r->hooks, l) {
        struct turn_hook *h = CONTAINER_OF(l, struct turn_hook, link);
        h->fn(h);
    }
    return any;
}

bool reactor_turn(struct reactor *r)
{
    struct reactor *before = reactor_enter(r);
    int err = reactor_start_world(r);
    assert(err == 0);
    bool any = reactor_turn_inside(r);
    reactor_enter(before);
    return any;
}

uint64_t reactor_next_deadline(const struct reactor *r)
{
    if (r->ready_count > 0 || __atomic_load_n(&r->inbox, __ATOMIC_SEQ_CST) != NULL)
        return 0;
    return timer_next_ns(r);
}

bool reactor_finished(const struct reactor *r)
{
    return __atomic_load_n(&r->stopping, __ATOMIC_ACQUIRE) && r->fiber_count == 0 &&
           __atomic_load_n(&r->inbox, __ATOMIC_SEQ_CST) == NULL;
}

int reactor_run(struct reactor *r)
{
    struct reactor *before = reactor_enter(r);
    int err = reactor_start_world(r);
    if (err != 0) {
        reactor_enter(before);
        return err;
    }
    for (;;) {
        reactor_turn_inside(r);
        if (reactor_finished(r))
            break;
        r->ops->wait(r, reactor_next_deadline(r));
    }
    reactor_end_world(r);
    reactor_enter(before);
    return 0;
}

void reactor_stop(struct reactor *r)
{
    __atomic_fetch_add(&r->posting, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&r->stopping, true, __ATOMIC_RELEASE);
    r->ops->wake(r);
    __atomic_fetch_sub(&r->posting, 1, __ATOMIC_SEQ_CST);
}

void reactor_add_turn_hook(struct turn_hook *h)
{
    assert(reactor_tls != NULL && h->fn != NULL);
    list_append(&reactor_tls->hooks, &h->link);
}

void reactor_remove_turn_hook(struct turn_hook *h)
{
    list_remove(&h->link);
}
