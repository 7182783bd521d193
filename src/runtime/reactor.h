/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reactor: one thread, one io_uring, its fibers, timers and page memory; shares nothing with the others
 * but messages. In the simulator a reactor is a data structure that the simulator's loop runs.
 */
#ifndef ASHLAR_RUNTIME_REACTOR_H
#define ASHLAR_RUNTIME_REACTOR_H

#include "runtime/memory.h"
#include "runtime/world.h"

struct reactor_options {
    const struct world_ops *world;
    void *world_ctx;              /* the world's, e.g. the simulated node */
    struct memory_budget *budget; /* shared by the reactors of a process; outlives them */
    size_t chunk_bytes;           /* growth step of page memory and its longest run; 0: by the budget,
                                     4 MiB or more */
    uint32_t fibers_max;          /* 0: 24576 */
    size_t stack_bytes;           /* 0: 64 KiB (ASan builds: 256 KiB) */
    uint32_t index;               /* 0.. within the process; names the thread */
};

int reactor_new(const struct reactor_options *o, struct reactor **ret) MUST_CHECK;
/* All its fibers must have ended. */
void reactor_free(struct reactor *r);

/* The reactor whose code runs in this thread now; NULL outside. */
struct reactor *reactor_current(void);
struct memory *reactor_memory(struct reactor *r);
uint32_t reactor_index(const struct reactor *r);
void *reactor_world_ctx(const struct reactor *r);

/* From any thread, also before the reactor runs: starts a detached fiber there. ERR_NO_MEMORY. */
int reactor_spawn(struct reactor *r, const char *name, void (*fn)(void *arg), void *arg) MUST_CHECK;
/* Makes r the current reactor of this thread (NULL: none) and returns the one before, for code that works on
 * a reactor from outside of its loop: the simulator, tests. reactor_turn() and reactor_run() do it alone. */
struct reactor *reactor_enter(struct reactor *r);
/* For ending a reactor at once (a simulated crash): cancels every fiber. In r's thread. */
void reactor_cancel_all(struct reactor *r);
uint32_t reactor_fiber_count(const struct reactor *r);

/* Runs the loop in the calling thread until reactor_stop() was called and no fiber is left. Not 0 if
 * the world could not start (no io_uring, ...). */
int reactor_run(struct reactor *r);
void reactor_stop(struct reactor *r); /* from any thread */
/* One turn, for the simulator and tests: runs fibers that are ready (all, or one chosen by the world) and
 * due timers; does not wait. Returns true if anything ran. */
bool reactor_turn(struct reactor *r);
/* The time of the earliest timer; DEADLINE_NEVER if none; 0 if a fiber is ready. */
uint64_t reactor_next_deadline(const struct reactor *r);

/* ---- Messages: run fn on another reactor ---- */

struct message {
    struct message *next;
    void (*fn)(struct message *m); /* in the loop of the target; must not yield, may spawn */
};
/* From any thread. m is the sender's until fn runs. */
void reactor_post(struct reactor *to, struct message *m);
/* Runs fn(arg) on a fiber of the other reactor and waits here for its result. Same reactor: calls it. */
int reactor_call(struct reactor *to, int (*fn)(void *arg), void *arg) may_yield;
/* Runs fn(arg) on a helper thread, for what must block (name look-ups, libraries); waits here. */
int reactor_block(int (*fn)(void *arg), void *arg) may_yield;

/* ---- Timers ---- */

struct timer {
    uint64_t when_ns;
    uint32_t heap_index;         /* 0: not armed */
    void (*fn)(struct timer *t); /* in the loop; must not yield */
};
void timer_start(struct timer *t, uint64_t when_ns);
void timer_stop(struct timer *t);

/* Called once per turn after the fibers ran, before the loop waits: the place to send what was gathered
 * (corked replies, a log batch). Registered for the life of the reactor or until removed. */
struct turn_hook {
    struct list link;
    void (*fn)(struct turn_hook *h); /* must not yield */
};
void reactor_add_turn_hook(struct turn_hook *h);
void reactor_remove_turn_hook(struct turn_hook *h);

#endif
