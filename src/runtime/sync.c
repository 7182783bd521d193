/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for each other. What they share: a waiter is a record on the waiting fiber's stack; who wakes it
 * takes the record off the queue first. So a waiter that comes back with ERR_TIMEOUT or ERR_CANCELLED can
 * see whether it was given something in the same moment, and nothing is lost between the two.
 */
#include "runtime/error.h"
#include "runtime/reactor_internal.h"

struct waiter {
    struct list link;
    struct fiber *fiber;
    uint64_t want; /* semaphore */
    bool woken;
};

static void waiter_wake(struct waiter *w)
{
    list_remove(&w->link);
    w->woken = true;
    fiber_wake(w->fiber);
}

/* Parks once. The waiter is off the queue afterwards. 0 if it was woken by its waker, whatever else
 * happened; else what fiber_park() said. */
static may_yield int waiter_park(struct waiter *w, const char *what, uint64_t deadline_ns)
{
    int err = fiber_park_for(what, deadline_ns);
    if (w->woken)
        return 0;
    list_remove(&w->link);
    return err;
}

void waitq_init(struct waitq *q)
{
    list_init(&q->waiters);
}

int waitq_wait(struct waitq *q, uint64_t deadline_ns)
{
    struct waiter w = {.fiber = fiber_self()};
    assert(w.fiber != NULL);
    list_append(&q->waiters, &w.link);
    return waiter_park(&w, "waitq", deadline_ns);
}

void waitq_wake_one(struct waitq *q)
{
    if (!list_empty(&q->waiters))
        waiter_wake(CONTAINER_OF(q->waiters.next, struct waiter, link));
}

void waitq_wake_all(struct waitq *q)
{
    while (!list_empty(&q->waiters))
        waitq_wake_one(q);
}

void latch_init(struct latch *l, uint32_t count)
{
    *l = (struct latch){.count = count};
}

void latch_up(struct latch *l, uint32_t n)
{
    assert(l->count <= UINT32_MAX - n);
    l->count += n;
}

void latch_down(struct latch *l)
{
    assert(l->count > 0);
    if (--l->count == 0 && l->waiter != NULL)
        fiber_wake(l->waiter);
}

void latch_wait(struct latch *l)
{
    if (l->count == 0)
        return;
    assert(l->waiter == NULL);
    l->waiter = fiber_self();
    fiber_shield();
    while (l->count > 0) {
        int err = fiber_park_for("latch", DEADLINE_NEVER);
        assert(err == 0);
    }
    fiber_unshield();
    l->waiter = NULL;
}

void fmutex_init(struct fmutex *m)
{
    m->owner = NULL;
    waitq_init(&m->waiters);
}

void fmutex_lock(struct fmutex *m)
{
    struct fiber *self = fiber_self();
    assert(self != NULL && m->owner != self);
    if (m->owner == NULL) {
        assert(list_empty(&m->waiters.waiters));
        m->owner = self;
        return;
    }
    struct waiter w = {.fiber = self};
    list_append(&m->waiters.waiters, &w.link);
    fiber_shield();
    while (!w.woken) {
        int err = fiber_park_for("mutex", DEADLINE_NEVER);
        assert(err == 0);
    }
    fiber_unshield();
    assert(m->owner == self); /* handed over by fmutex_unlock() */
}

void fmutex_unlock(struct fmutex *m)
{
    assert(m->owner == fiber_self());
    m->owner = NULL;
    if (list_empty(&m->waiters.waiters))
        return;
    struct waiter *w = CONTAINER_OF(m->waiters.waiters.next, struct waiter, link);
    m->owner = w->fiber; /* so that nobody slips in between */
    waiter_wake(w);
}

void semaphore_init(struct semaphore *s, uint64_t available)
{
    s->available = available;
    waitq_init(&s->waiters);
}

/* Serves the queue's head for as long as there is enough for it. */
static void semaphore_serve(struct semaphore *s)
{
    while (!list_empty(&s->waiters.waiters)) {
        struct waiter *w = CONTAINER_OF(s->waiters.waiters.next, struct waiter, link);
        if (w->want > s->available)
            return;
        s->available -= w->want;
        waiter_wake(w);
    }
}

bool semaphore_try_take(struct semaphore *s, uint64_t n)
{
    if (!list_empty(&s->waiters.waiters) || n > s->available)
        return false;
    s->available -= n;
    return true;
}

int semaphore_take(struct semaphore *s, uint64_t n, uint64_t deadline_ns)
{
    if (semaphore_try_take(s, n))
        return 0;
    struct waiter w = {.fiber = fiber_self(), .want = n};
    assert(w.fiber != NULL);
    list_append(&s->waiters.waiters, &w.link);
    int err = 0;
    while (!w.woken && err == 0)
        err = fiber_park_for("semaphore", deadline_ns);
    if (w.woken)
        return 0;
    list_remove(&w.link);
    semaphore_serve(s); /* those behind a large request that gave up */
    return err;
}

void semaphore_give(struct semaphore *s, uint64_t n)
{
    assert(s->available <= UINT64_MAX - n);
    s->available += n;
    semaphore_serve(s);
}
