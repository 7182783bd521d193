/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of fibers
 *
 * Each reactor has a loop (on the thread's own stack) and fibers (each on a mapped stack with a guard page
 * below it). The loop jumps into a fiber; the fiber jumps back when it parks, yields or ends. There is no
 * direct jump from fiber to fiber: two jumps cost about 15 ns, and the loop stays the one place that decides
 * who runs.
 *
 *              spawn                     park
 *     (new) ----------> READY <-------+ ----------> PARKED
 *                         |  ^        |               |
 *            fiber_run()  |  | yield  | RUNNING       | fiber_wake(), deadline, fiber_cancel()
 *                         +--------->-+               |
 *                         ^   |                       |
 *                         |   | fn returned           |
 *                         |   v                       |
 *                         | DONE -> freed (detached), or at fiber_join()
 *                         +---------------------------+
 *
 * Deadlines are lazy: a wait with a later deadline than the armed timer leaves the timer alone, and a wake-up
 * does not disarm it. When it fires early it is armed again for what the fiber waits for then. So a
 * connection that waits a million times with "30 s from now" touches the timer heap once in 30 s.
 */
#include "runtime/error.h"
#include "runtime/reactor_internal.h"

#include <sys/mman.h>
#include <unistd.h>

#if ASHLAR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* Boost.Context's C symbols. */
struct fcontext_transfer {
    void *context;
    void *data;
};
struct fcontext_transfer jump_fcontext(void *to, void *data);
void *make_fcontext(void *stack_top, size_t stack_bytes, void (*fn)(struct fcontext_transfer t));

#define GUARD_BYTES     (64u * 1024) /* no frame is larger, so none can step over it */
#define FREE_STACKS_MAX 256u

static void asan_before_switch(void **save, const void *bottom, size_t size)
{
#if ASHLAR_ASAN
    __sanitizer_start_switch_fiber(save, bottom, size);
#else
    (void)save, (void)bottom, (void)size;
#endif
}

static void asan_after_switch(void *save, const void **bottom, size_t *size)
{
#if ASHLAR_ASAN
    __sanitizer_finish_switch_fiber(save, bottom, size);
#else
    (void)save, (void)bottom, (void)size;
#endif
}

/* ---- Stacks ---- */

/* Returns a zeroed fiber at the top of a mapped stack, or NULL. */
static struct fiber *stack_new(struct reactor *r)
{
    size_t map_bytes = r->stack_bytes + GUARD_BYTES;
    char *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    if (mprotect(map, GUARD_BYTES, PROT_NONE) != 0) {
        munmap(map, map_bytes);
        return NULL;
    }
    /* Fibers of equal depth must not all fight for the same cache sets. */
    size_t colour = (r->next_fiber_id % 16) * 128;
    uintptr_t top = (uintptr_t)map + map_bytes - colour - sizeof(struct fiber);
    struct fiber *f = (struct fiber *)(top & ~(uintptr_t)63);
    f->stack = map + GUARD_BYTES;
    f->stack_bytes = r->stack_bytes;
    list_init(&f->link);
    return f;
}

static void stack_free(struct fiber *f)
{
    char *map = f->stack - GUARD_BYTES;
    int rc = munmap(map, f->stack_bytes + GUARD_BYTES);
    assert(rc == 0);
}

static struct fiber *stack_get(struct reactor *r)
{
    struct list *l = list_pop(&r->free_stacks);
    if (l == NULL)
        return stack_new(r);
    r->free_stack_count--;
    return CONTAINER_OF(l, struct fiber, link);
}

static void stack_put(struct reactor *r, struct fiber *f)
{
#if ASHLAR_ASAN
    /* The entry function never returned, so the red zones of its frames are still poisoned. */
    __asan_unpoison_memory_region(f->stack, f->stack_bytes);
#endif
    if (r->free_stack_count >= FREE_STACKS_MAX) {
        stack_free(f);
        return;
    }
    list_prepend(&r->free_stacks, &f->link); /* the warmest is used first */
    r->free_stack_count++;
}

void fiber_drain_stacks(struct reactor *r)
{
    for (struct list *l; (l = list_pop(&r->free_stacks)) != NULL; r->free_stack_count--)
        stack_free(CONTAINER_OF(l, struct fiber, link));
    assert(r->free_stack_count == 0);
}

/* ---- Switching ---- */

static void fiber_make_ready(struct fiber *f, enum fiber_cause cause)
{
    struct reactor *r = f->reactor;
    assert(f->state != FIBER_READY && f->state != FIBER_DONE);
    f->state = FIBER_READY;
    f->cause = (uint8_t)cause;
    list_append(&r->ready, &f->link);
    r->ready_count++;
}

/* The next fiber to run, off the queue; the world may choose. */
struct fiber *fiber_pick(struct reactor *r)
{
    assert(r->ready_count > 0);
    struct list *l = r->ready.next;
    if (r->ops->pick != NULL && r->ready_count > 1) {
        uint32_t n = r->ops->pick(r, r->ready_count);
        assert(n < r->ready_count);
        while (n-- > 0)
            l = l->next;
    }
    assert(l != &r->ready);
    list_remove(l);
    r->ready_count--;
    return CONTAINER_OF(l, struct fiber, link);
}

static void fiber_free(struct fiber *f)
{
    struct reactor *r = f->reactor;
    assert(f->state == FIBER_DONE && f->joiner == NULL);
    timer_stop(&f->timer);
    list_remove(&f->all_link);
    assert(r->fiber_count > 0);
    r->fiber_count--;
    stack_put(r, f);
}

/* From the loop: runs f until it parks, yields or ends. */
void fiber_run(struct reactor *r, struct fiber *f)
{
    assert(r->running == NULL && f->state == FIBER_READY);
    r->running = f;
    f->state = FIBER_RUNNING;
    f->waits_for = NULL;
    asan_before_switch(&r->asan_fake_stack, f->stack, f->stack_bytes);
    struct fcontext_transfer t = jump_fcontext(f->context, f);
    asan_after_switch(r->asan_fake_stack, NULL, NULL);
    f->context = t.context;
    r->running = NULL;
    assert(f->state != FIBER_RUNNING);
    if (f->state == FIBER_DONE && !f->joinable)
        fiber_free(f);
}

/* From the fiber, whose state says why: back to the loop. */
static void fiber_switch_out(struct fiber *f, bool for_ever)
{
    struct reactor *r = f->reactor;
    assert(r == reactor_tls && r->running == f);
    asan_before_switch(for_ever ? NULL : &f->asan_fake_stack, r->asan_loop_stack, r->asan_loop_stack_bytes);
    struct fcontext_transfer t = jump_fcontext(r->loop_context, NULL);
    asan_after_switch(f->asan_fake_stack, &r->asan_loop_stack, &r->asan_loop_stack_bytes);
    r->loop_context = t.context;
}

static void fiber_entry(struct fcontext_transfer t)
{
    struct fiber *f = t.data;
    struct reactor *r = f->reactor;
    r->loop_context = t.context;
    asan_after_switch(NULL, &r->asan_loop_stack, &r->asan_loop_stack_bytes);
    f->fn(f->arg);
    assert(f->shield == 0);
    f->state = FIBER_DONE;
    if (f->joiner != NULL)
        fiber_wake(f->joiner);
    fiber_switch_out(f, true);
    __builtin_unreachable();
}

/* ---- Life ---- */

static int fiber_new(const char *name, void (*fn)(void *arg), void *arg, bool joinable, struct fiber **ret)
{
    struct reactor *r = reactor_tls;
    assert(r != NULL && fn != NULL && name != NULL);
    if (r->fiber_count >= r->fibers_max)
        return ERR_TOO_MANY_FIBERS;
    if (timer_reserve(r, r->fiber_count + 1 + TIMERS_BESIDE_FIBERS) != 0)
        return ERR_NO_MEMORY;
    struct fiber *f = stack_get(r);
    if (f == NULL)
        return ERR_NO_MEMORY;
    char *stack = f->stack;
    size_t stack_bytes = f->stack_bytes;
    *f = (struct fiber){
        .reactor = r,
        .name = name,
        .fn = fn,
        .arg = arg,
        .joinable = joinable,
        .state = FIBER_RUNNING, /* for fiber_make_ready() */
        .id = ++r->next_fiber_id,
        .stack = stack,
        .stack_bytes = stack_bytes,
    };
    list_init(&f->link);
    list_append(&r->fibers, &f->all_link);
    r->fiber_count++;
    uintptr_t top = (uintptr_t)f & ~(uintptr_t)63;
    f->context = make_fcontext((void *)top, top - (uintptr_t)stack, fiber_entry);
    fiber_make_ready(f, FIBER_CAUSE_NONE);
    *ret = f;
    return 0;
}

int fiber_spawn(const char *name, void (*fn)(void *arg), void *arg)
{
    struct fiber *f;
    return fiber_new(name, fn, arg, false, &f);
}

int fiber_spawn_joinable(const char *name, void (*fn)(void *arg), void *arg, struct fiber **ret)
{
    return fiber_new(name, fn, arg, true, ret);
}

void fiber_join(struct fiber *f)
{
    struct fiber *self = fiber_self();
    assert(self != NULL && self != f);
    assert(f->joinable && f->reactor == self->reactor);
    assert(f->joiner == NULL); /* F2 */
    f->joiner = self;
    fiber_shield();
    while (f->state != FIBER_DONE) {
        int err = fiber_park_for("join", DEADLINE_NEVER);
        assert(err == 0);
    }
    fiber_unshield();
    f->joiner = NULL;
    fiber_free(f);
}

void fiber_cancel(struct fiber *f)
{
    assert(f->reactor == reactor_tls);
    f->cancelled = true;
    if (f->state == FIBER_PARKED && f->shield == 0)
        fiber_make_ready(f, FIBER_CAUSE_CANCEL); /* F1 */
}

bool fiber_cancelled(void)
{
    struct fiber *f = fiber_self();
    assert(f != NULL);
    return f->cancelled;
}

void fiber_shield(void)
{
    struct fiber *f = fiber_self();
    assert(f != NULL);
    f->shield++;
    assert(f->shield < 1000);
}

void fiber_unshield(void)
{
    struct fiber *f = fiber_self();
    assert(f != NULL && f->shield > 0);
    f->shield--;
}

struct fiber *fiber_self(void)
{
    return reactor_tls != NULL ? reactor_tls->running : NULL;
}

const char *fiber_name(const struct fiber *f)
{
    return f->name;
}

/* ---- Waiting ---- */

static void fiber_timer_fired(struct timer *t)
{
    struct fiber *f = CONTAINER_OF(t, struct fiber, timer);
    if (f->state != FIBER_PARKED)
        return; /* its next wait arms the timer again */
    if (f->deadline_ns <= f->reactor->now_ns)
        fiber_make_ready(f, FIBER_CAUSE_TIMEOUT);
    else if (f->deadline_ns != DEADLINE_NEVER)
        timer_start(t, f->deadline_ns);
}

int fiber_park_for(const char *what, uint64_t deadline_ns)
{
    struct fiber *f = fiber_self();
    assert(f != NULL && f->state == FIBER_RUNNING);
    if (f->cancelled && f->shield == 0)
        return ERR_CANCELLED;
    if (f->wake_pending) { /* F3 */
        f->wake_pending = false;
        return 0;
    }
    if (deadline_ns <= f->reactor->now_ns)
        return ERR_TIMEOUT;
    f->deadline_ns = deadline_ns;
    if (deadline_ns != DEADLINE_NEVER && (f->timer.heap_index == 0 || f->timer.when_ns > deadline_ns)) {
        f->timer.fn = fiber_timer_fired;
        timer_start(&f->timer, deadline_ns);
    }
    f->waits_for = what;
    f->state = FIBER_PARKED;
    fiber_switch_out(f, false);
    assert(f->state == FIBER_RUNNING && f->cause != FIBER_CAUSE_NONE);
    enum fiber_cause cause = f->cause;
    f->cause = FIBER_CAUSE_NONE;
    if (f->cancelled && f->shield == 0)
        return ERR_CANCELLED;
    return cause == FIBER_CAUSE_TIMEOUT ? ERR_TIMEOUT : 0;
}

int fiber_park(uint64_t deadline_ns)
{
    return fiber_park_for("park", deadline_ns);
}

void fiber_wake(struct fiber *f)
{
    assert(f->reactor == reactor_tls);
    if (f->state == FIBER_PARKED)
        fiber_make_ready(f, FIBER_CAUSE_WAKE);
    else if (f->state == FIBER_READY && f->cause == FIBER_CAUSE_WAKE)
        return; /* it has not seen the first wake-up yet: one return is enough for both */
    else
        f->wake_pending = true; /* F3 */
}

void fiber_yield(void)
{
    struct fiber *f = fiber_self();
    assert(f != NULL);
    fiber_make_ready(f, FIBER_CAUSE_NONE);
    fiber_switch_out(f, false);
}

int fiber_sleep(uint64_t duration_ns)
{
    uint64_t now = reactor_now_ns();
    uint64_t until = duration_ns > DEADLINE_NEVER - 1 - now ? DEADLINE_NEVER - 1 : now + duration_ns;
    for (;;) {
        int err = fiber_park_for("sleep", until);
        if (err == ERR_TIMEOUT)
            return 0;
        if (err != 0)
            return err;
    }
}
