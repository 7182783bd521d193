/* SPDX-License-Identifier: Apache-2.0 */
/* One seed: one history from an empty pool to the last check. */
#ifndef ASHLAR_SIM_SEED_H
#define ASHLAR_SIM_SEED_H

#include "sim/changes.h"
#include "sim/fs_model.h"
#include "sim/model.h"
#include "sim/target.h"

#include <stdio.h>

struct seed_result;
struct sweep;

struct seed_options {
    uint64_t seed;
    void (*run)(const struct seed_options *o, struct seed_result *ret); /* NULL: seed_run */
    const void *arg;                                                    /* of run */
    bool trace;
    FILE *out; /* of the trace and of the options */
    enum sim_mutant mutant;
    const struct sim_target_ops *target;
};

struct seed_result { /* plain: it goes through a pipe */
    uint64_t seed;
    bool failed;
    bool fired; /* sweep: the point was reached */
    uint64_t trace_hash;
    uint64_t events;
    uint64_t acked;   /* operations acknowledged */
    uint64_t crashes; /* of both kinds */
    uint64_t sim_ns;  /* virtual time */
    uint64_t cpu_ns;  /* of the whole process that ran it */
    uint64_t faults[SIM_FAULT_COUNT];
    char why[768];
};

/* Runs in the calling process, which should end soon after: dead processes of the history are never freed. */
void seed_run(const struct seed_options *o, struct seed_result *ret);

/* ---- What seed.c, workload.c and chaos.c share ---- */

enum seed_phase { PHASE_CREATE, PHASE_OPEN, PHASE_WORK, PHASE_LAST };

struct seed {
    const struct seed_options *o;
    struct sim_swarm w;
    struct sim *sim;
    struct sim_node *node;
    struct model *model;
    struct fsm *fsm;          /* of a target with a file system, beside the model */
    struct changes *changes;  /* NULL: no changes in this history */
    struct sim_random random; /* the workload's stream */
    struct sim_random chaos;
    struct sim_target *target; /* of the living process */
    enum seed_phase phase;
    uint64_t life; /* counts processes */
    uint64_t acked, acked_goal;
    uint64_t last_progress_ns;
    uint64_t crashes;
    uint32_t clients_running;
    bool stop;      /* clients: finish what you do */
    bool life_over; /* the main fiber has nothing left to do */
    bool rested;    /* what was flushed has been at rest since */
    bool full_seen;
    bool growing; /* a client grows the volume: one at a time */
    bool failed;
    char why[768];
    struct sweep *sweep; /* sweep.c's */
};

/* The first failure counts; the history ends at it. */
void seed_fail(struct seed *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A world with drives and nothing on them; s is zeroed. */
void seed_make(struct seed *s, const struct seed_options *o, const struct sim_swarm *w);
/* Starts a process whose main fiber runs fn(s). */
void seed_life_begin(struct seed *s, enum seed_phase phase, void (*fn)(void *arg));
/* Failed, cut, or its main fiber has nothing left to do. */
bool seed_life_done(void *ctx);
/* Runs until done() is true; a history in which nothing is acknowledged for so long is stuck. */
void seed_run_until(struct seed *s, bool (*done)(void *ctx), uint64_t patience_ns);
#define SEED_STUCK_NS (120 * NSEC_PER_SEC)
void seed_crash(struct seed *s);
/* An orderly end: the process must have given back everything. */
void seed_end(struct seed *s);
/* Main fiber: creates pool and volume. */
void seed_create_main(void *arg);
bool seed_open_target(struct seed *s) may_yield;
/* Waits until scrub and repair have ended and, if asked, everything is healthy. */
bool seed_wait_jobs(struct seed *s, bool healthy, struct sim_target_status *st) may_yield;

/* workload.c: runs the clients until s->stop or the goal; in a fiber. */
void workload_run(struct seed *s) may_yield;
/* One operation, checked; any error fails the seed. */
void workload_write(struct seed *s, uint64_t block, uint32_t blocks, bool fua) may_yield;
void workload_unmap(struct seed *s, uint64_t block, uint64_t blocks) may_yield;
void workload_flush(struct seed *s, bool commit) may_yield;
/* Reads every block and checks it. */
void workload_verify(struct seed *s) may_yield;
/* Nobody works: flushes, and waits long enough for the volume to rest. */
void workload_rest(struct seed *s) may_yield;

/* chaos.c */
void chaos_start(struct seed *s); /* for the life that begins: arms what is drawn */
void chaos_quiet(struct seed *s);
void chaos_at_rest(struct seed *s); /* all faults stop */

#endif
