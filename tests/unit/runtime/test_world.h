/* SPDX-License-Identifier: Apache-2.0 */
/* A world of virtual time and nothing else, for unit tests of fibers, timers and memory: when no fiber is
 * ready, the clock jumps to the next timer. */
#ifndef ASHLAR_TEST_WORLD_H
#define ASHLAR_TEST_WORLD_H

#include "runtime/reactor.h"

struct test_world {
    uint64_t now_ns;
    uint64_t seed;
    bool shuffle; /* which ready fiber runs is drawn */
    int wake_fd;  /* eventfd */
};

void test_world_init(struct test_world *w);
void test_world_done(struct test_world *w);
extern const struct world_ops test_world_ops;

/* Runs fn(arg) on a fiber of a fresh reactor, with a budget of memory_bytes, until no fiber is left. */
void test_run(void (*fn)(void *arg), void *arg);
void test_run_with(struct test_world *w, uint64_t memory_bytes, size_t chunk_bytes, void (*fn)(void *arg),
                   void *arg);

#endif
