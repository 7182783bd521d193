/* SPDX-License-Identifier: Apache-2.0 */
/* Many seeds: one process a seed, on all cores; sums up what they did. */
#ifndef ASHLAR_SIM_RUNNER_H
#define ASHLAR_SIM_RUNNER_H

#include "sim/seed.h"

struct runner_options {
    uint64_t first, last;  /* seeds, both included */
    uint64_t minutes;      /* stop to begin new ones after so long; 0: no limit */
    uint32_t jobs;         /* 0: one a core */
    uint32_t failures_max; /* stop after so many; 0: go on */
    bool twice;            /* run each seed twice and compare the trace hashes */
    bool need_all_faults;  /* a kind of fault that never occurred fails a run of 500 seeds or more */
    bool quiet;
    struct seed_options seed; /* template */
};

struct runner_summary {
    uint64_t seeds, failed;
    uint64_t last_failed; /* the newest */
    uint64_t acked, crashes, events, sim_ns, cpu_ns, wall_ns;
    uint64_t fewest_acked;
    uint64_t trace_hash; /* over the hashes of all seeds, in no order */
    uint64_t faults[SIM_FAULT_COUNT];
    bool fault_missing;
};

/* Prints failures as they come and the summary at the end. 0: nothing failed. */
int runner_run(const struct runner_options *o, struct runner_summary *ret);
/* One seed in a process of its own; a process that died is a failure too. */
void runner_one(const struct seed_options *o, struct seed_result *ret);

#endif
