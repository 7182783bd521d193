/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fail the Nth: one phase of a volume's life is run again and again, and each time another one of its I/Os
 * (or page allocations) fails, until none is left. The result must be success or a clean error; nothing
 * acknowledged may be lost, and after a restart everything is right.
 */
#ifndef ASHLAR_SIM_SWEEP_H
#define ASHLAR_SIM_SWEEP_H

#include "sim/seed.h"

enum sweep_kind { SWEEP_IO, SWEEP_ALLOC, SWEEP_MALLOC, SWEEP_KINDS };
enum sweep_phase { SWEEP_START, SWEEP_COMMIT, SWEEP_REPLAY, SWEEP_REPAIR, SWEEP_GROW, SWEEP_PHASES };

bool sweep_kind_parse(const char *name, enum sweep_kind *ret);
bool sweep_phase_parse(const char *name, enum sweep_phase *ret);

/* The seed decides the protection (1 + seed mod 3 copies) and the latencies. Prints each failing point and a
 * last line with the count. only: this point alone; 0: all. 0: none failed. */
int sweep_run(enum sweep_kind kind, enum sweep_phase phase, uint64_t only, const struct seed_options *o);

#endif
