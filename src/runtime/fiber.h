/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fibers: stackful coroutines, so that code which waits looks like code that calls.
 *
 * A fiber belongs to the reactor that started it and never moves. Only its own reactor's thread touches it.
 * Scheduling is cooperative and FIFO: a fiber runs until it parks, and woken fibers run in the order of
 * their wake-ups (the simulator may shuffle them by its seed). Nothing here is thread-safe; across reactors
 * use reactor_post().
 *
 * Invariants
 *  F1  a parked fiber is never destroyed: cancelling makes its wait return ERR_CANCELLED, it unwinds;
 *  F2  each joinable fiber is joined exactly once;
 *  F3  fiber_wake() on a fiber that is not parked is remembered: its next park returns at once.
 *      So "set the condition, then wake" needs no lock, and every wait re-checks its condition in a loop.
 */
#ifndef ASHLAR_RUNTIME_FIBER_H
#define ASHLAR_RUNTIME_FIBER_H

#include "runtime/base.h"

struct fiber;
struct reactor;

#define DEADLINE_NEVER UINT64_MAX

/* Starts fn(arg) on a fiber of the current reactor; it first runs when the caller next parks, yields or
 * returns to the loop. name is borrowed for the fiber's life (a literal). A detached fiber frees itself.
 * Errors: ERR_TOO_MANY_FIBERS, ERR_NO_MEMORY. */
int fiber_spawn(const char *name, void (*fn)(void *arg), void *arg) MUST_CHECK;
/* The same, joinable: the caller must fiber_join() it. */
int fiber_spawn_joinable(const char *name, void (*fn)(void *arg), void *arg, struct fiber **ret) MUST_CHECK;

/* Waits until the fiber has ended and frees it. Not cancellable itself (it waits for the unwinding). */
void fiber_join(struct fiber *f) may_yield;
/* Asks a fiber to end: the wait that it is in, and each later one, returns ERR_CANCELLED. */
void fiber_cancel(struct fiber *f);
/* True once the running fiber was cancelled. */
bool fiber_cancelled(void);
/* While > 0, waits of the running fiber ignore cancellation (for work that must be finished once begun). */
void fiber_shield(void);
void fiber_unshield(void);

/* The running fiber; NULL in the loop itself (callbacks). */
struct fiber *fiber_self(void);
const char *fiber_name(const struct fiber *f);

/* Suspends until fiber_wake() or the deadline (reactor_now_ns() clock).
 * 0: woken, perhaps without cause; ERR_TIMEOUT; ERR_CANCELLED. */
int fiber_park(uint64_t deadline_ns) may_yield;
void fiber_wake(struct fiber *f);
/* Lets every other ready fiber run first. */
void fiber_yield(void) may_yield;
/* 0 or ERR_CANCELLED. */
int fiber_sleep(uint64_t duration_ns) may_yield;

/* ---- Waiting for each other. All belong to one reactor. ---- */

struct list {
    struct list *next, *prev;
};

/* A queue of parked fibers. Zero-initialise with waitq_init(). */
struct waitq {
    struct list waiters;
};
void waitq_init(struct waitq *q);
/* Parks until woken; 0, ERR_TIMEOUT or ERR_CANCELLED. Re-check the condition after it. */
int waitq_wait(struct waitq *q, uint64_t deadline_ns) may_yield;
void waitq_wake_one(struct waitq *q);
void waitq_wake_all(struct waitq *q);

/* Counts down to zero; one fiber waits. For fan-out: init with n, each completion calls latch_down(). */
struct latch {
    uint32_t count;
    struct fiber *waiter;
};
void latch_init(struct latch *l, uint32_t count);
void latch_up(struct latch *l, uint32_t n);
void latch_down(struct latch *l);
/* Not cancellable: what was submitted must complete before its memory may go. */
void latch_wait(struct latch *l) may_yield;

/* A mutex between fibers of one reactor, FIFO. Held across yields on purpose. */
struct fmutex {
    struct fiber *owner;
    struct waitq waiters;
};
void fmutex_init(struct fmutex *m);
void fmutex_lock(struct fmutex *m) may_yield; /* not cancellable */
void fmutex_unlock(struct fmutex *m);

/* A counting semaphore, FIFO: a large request is not starved by small ones behind it. */
struct semaphore {
    uint64_t available;
    struct waitq waiters;
};
void semaphore_init(struct semaphore *s, uint64_t available);
/* Takes n; 0, ERR_TIMEOUT or ERR_CANCELLED (nothing taken). */
int semaphore_take(struct semaphore *s, uint64_t n, uint64_t deadline_ns) may_yield;
bool semaphore_try_take(struct semaphore *s, uint64_t n);
void semaphore_give(struct semaphore *s, uint64_t n);

#endif
