/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of runtime/ share about reactors and fibers. Nobody else includes it. */
#ifndef ASHLAR_RUNTIME_REACTOR_INTERNAL_H
#define ASHLAR_RUNTIME_REACTOR_INTERNAL_H

#include "runtime/list.h"
#include "runtime/log.h"
#include "runtime/reactor.h"

#if defined(__SANITIZE_ADDRESS__)
#define ASHLAR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASHLAR_ASAN 1
#endif
#endif
#ifndef ASHLAR_ASAN
#define ASHLAR_ASAN 0
#endif

enum fiber_state {
    FIBER_READY,   /* in the run queue */
    FIBER_RUNNING, /* the reactor's current one */
    FIBER_PARKED,  /* waits for fiber_wake() */
    FIBER_DONE,    /* its function returned */
};

/* Why a parked fiber became ready. */
enum fiber_cause {
    FIBER_CAUSE_NONE, /* started, or yielded: a wake-up now must be remembered (F3) */
    FIBER_CAUSE_WAKE,
    FIBER_CAUSE_TIMEOUT,
    FIBER_CAUSE_CANCEL,
};

/* Lives at the top of its own stack. */
struct fiber {
    struct list link;     /* run queue */
    struct list all_link; /* reactor.fibers */
    void *context;        /* where it goes on; valid while it does not run */
    struct reactor *reactor;
    const char *name;
    const char *waits_for; /* a word for the crash dump, while parked */
    void (*fn)(void *arg);
    void *arg;
    struct fiber *joiner;
    uint64_t deadline_ns; /* of the present wait */
    struct timer timer;   /* may be armed earlier than the deadline, see fiber_park() */
    uint32_t shield;
    uint8_t state; /* enum fiber_state */
    uint8_t cause; /* enum fiber_cause */
    bool wake_pending, cancelled, joinable;
    uint32_t id;
    char *stack; /* lowest usable byte, above the guard page */
    size_t stack_bytes;
    void *asan_fake_stack;
};

#define RING_EVENTS 4096u
struct ring_entry {
    uint64_t when_ns;
    const char *what;
    uint64_t a, b;
};

struct reactor {
    const struct world_ops *ops;
    void *world_ctx;
    void *world_data;
    int wake_fd;     /* the real world's: readable when another thread wants the loop's attention */
    int sleeping;    /* atomic; the loop waits or is about to, so wake() must write to wake_fd */
    uint64_t now_ns; /* read once a turn */
    bool now_fresh;  /* the world has just read it at the end of its wait */
    struct fiber *running;
    struct list ready;
    uint32_t ready_count;
    uint32_t fiber_count, fibers_max;
    struct list fibers;
    void *loop_context; /* where the loop goes on while a fiber runs */
    const void *asan_loop_stack;
    size_t asan_loop_stack_bytes;
    void *asan_fake_stack;

    size_t stack_bytes;
    struct list free_stacks; /* struct fiber.link of dead fibers */
    uint32_t free_stack_count;
    uint32_t next_fiber_id;

    struct timer **timers; /* binary heap, from index 1 */
    uint32_t timer_count, timer_capacity;
    struct list hooks;
    struct memory *memory;

    uint32_t index;
    bool started;
    bool stopping;         /* atomic */
    struct message *inbox; /* atomic; newest first */
    uint32_t posting;      /* atomic; threads inside reactor_post() or reactor_stop() */
    struct reactor *next;  /* list of all, for the crash dump */

    struct ring_entry *ring;
    uint64_t ring_count;
};

extern __thread struct reactor *reactor_tls;

/* fiber.c */
void fiber_run(struct reactor *r, struct fiber *f);
struct fiber *fiber_pick(struct reactor *r);
/* A wait that says what it waits for. */
int fiber_park_for(const char *what, uint64_t deadline_ns) may_yield;
/* Frees the stacks that are kept for reuse. */
void fiber_drain_stacks(struct reactor *r);

/* reactor.c */
bool reactor_finished(const struct reactor *r);

/* timer.c */
/* Room for so many timers at once. ERR_NO_MEMORY. */
#define TIMERS_BESIDE_FIBERS 256u
int timer_reserve(struct reactor *r, uint32_t count) MUST_CHECK;
void timer_run_due(struct reactor *r);
uint64_t timer_next_ns(const struct reactor *r);

/* message.c */
bool message_run_all(struct reactor *r);
/* Something for a helper thread; run() must hand its result back itself, by reactor_post(). */
struct helper_job {
    struct helper_job *next;
    void (*run)(struct helper_job *job);
};
/* 0, or ERR_NO_MEMORY if there is no thread and none can be started. */
int helper_queue(struct helper_job *job) MUST_CHECK;

/* memory.c */
struct memory *memory_new(struct reactor *r, struct memory_budget *budget, size_t chunk_bytes);
void memory_free(struct memory *m);

/* log.c, crash.c */
void ring_event_at(struct reactor *r, const char *what, uint64_t a, uint64_t b);
void crash_register_reactor(struct reactor *r);
void crash_unregister_reactor(struct reactor *r);

#endif
