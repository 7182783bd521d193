/* SPDX-License-Identifier: Apache-2.0 */
/* Timers: a binary heap per reactor, from index 1, so that heap_index 0 means "not armed". */
#include "runtime/error.h"
#include "runtime/reactor_internal.h"

#include <stdlib.h>

static void heap_place(struct reactor *r, uint32_t i, struct timer *t)
{
    r->timers[i] = t;
    t->heap_index = i;
}

static void heap_up(struct reactor *r, uint32_t i, struct timer *t)
{
    while (i > 1 && t->when_ns < r->timers[i / 2]->when_ns) {
        heap_place(r, i, r->timers[i / 2]);
        i /= 2;
    }
    heap_place(r, i, t);
}

static void heap_down(struct reactor *r, uint32_t i, struct timer *t)
{
    for (;;) {
        uint32_t child = 2 * i;
        if (child > r->timer_count)
            break;
        if (child < r->timer_count && r->timers[child + 1]->when_ns < r->timers[child]->when_ns)
            child++;
        if (t->when_ns <= r->timers[child]->when_ns)
            break;
        heap_place(r, i, r->timers[child]);
        i = child;
    }
    heap_place(r, i, t);
}

int timer_reserve(struct reactor *r, uint32_t count)
{
    if (count < r->timer_capacity)
        return 0;
    uint32_t capacity = MAX(2 * r->timer_capacity, count + 1);
    struct timer **timers = reallocarray(r->timers, capacity, sizeof(struct timer *));
    if (timers == NULL)
        return ERR_NO_MEMORY;
    r->timers = timers;
    r->timer_capacity = capacity;
    return 0;
}

void timer_start(struct timer *t, uint64_t when_ns)
{
    struct reactor *r = reactor_tls;
    assert(r != NULL && t->fn != NULL);
    timer_stop(t);
    t->when_ns = when_ns;
    /* There is room for a timer a fiber, and some more. A timer that is lost would hang its waiter for ever.
     */
    int err = timer_reserve(r, r->timer_count + 1);
    assert(err == 0);
    r->timer_count++;
    heap_up(r, r->timer_count, t);
}

void timer_stop(struct timer *t)
{
    uint32_t i = t->heap_index;
    if (i == 0)
        return;
    struct reactor *r = reactor_tls;
    assert(r != NULL);
    assert(i <= r->timer_count && r->timers[i] == t);
    struct timer *last = r->timers[r->timer_count--];
    t->heap_index = 0;
    if (last == t)
        return;
    if (i > 1 && last->when_ns < r->timers[i / 2]->when_ns)
        heap_up(r, i, last);
    else
        heap_down(r, i, last);
}

uint64_t timer_next_ns(const struct reactor *r)
{
    return r->timer_count > 0 ? r->timers[1]->when_ns : UINT64_MAX;
}

/* Runs what is due. A timer that starts itself again without progress of time waits for the next turn. */
void timer_run_due(struct reactor *r)
{
    for (uint32_t budget = r->timer_count; budget > 0 && r->timer_count > 0; budget--) {
        struct timer *t = r->timers[1];
        if (t->when_ns > r->now_ns)
            return;
        timer_stop(t);
        t->fn(t);
    }
}
