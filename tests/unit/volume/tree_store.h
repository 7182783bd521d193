/* SPDX-License-Identifier: Apache-2.0 */
/* A node store in memory with the volume's rule of reuse, faults on demand and slow reads, and a way to run a
 * body on a fiber with a cache and a tree over it. */
#ifndef ASHLAR_TEST_TREE_STORE_H
#define ASHLAR_TEST_TREE_STORE_H

#include "volume/tree.h"

/* On a fiber cmocka must not jump: failures are counted and asserted after it. */
extern unsigned expect_failures;
void expect_failed(const char *file, int line, const char *what);
#define EXPECT(cond) ((cond) ? (void)0 : expect_failed(__FILE__, __LINE__, #cond))

enum place_state { PLACE_FREE, PLACE_USED, PLACE_FREED };

struct store_place {
    enum place_state state;
    uint64_t birth;
    uint64_t freed_txg;
    bool written;
    uint8_t *bytes;
};

struct tree_store {
    struct node_store ops;
    struct store_place *places;
    uint32_t place_count, place_max;
    uint32_t limit; /* places that may be in use; 0: any number */
    uint32_t used;
    uint32_t reserved; /* of the last reserve(): alloc() must not take more */
    uint32_t reads, allocs;
    uint64_t random;
    bool slow;             /* reads and reservations yield a few times */
    uint32_t fail_reads;   /* the next n reads fail */
    uint32_t fail_reserve; /* the next n reservations fail */
};

struct tree_fixture {
    struct tree_store store;
    struct cache *cache;
    uint32_t tag;
    struct uuid volume;
    struct tree tree;
};

uint64_t test_random64(uint64_t *state);

void tree_store_init(struct tree_store *s, uint64_t seed);
void tree_store_done(struct tree_store *s);
/* The root of txg is durable: what was freed before it may be used again. */
void tree_store_committed(struct tree_store *s, uint64_t txg);

/* Empty tree, txg 10. On a fiber. */
void fixture_init(struct tree_fixture *f, uint64_t seed);
void fixture_done(struct tree_fixture *f);
/* Closes the txg and puts its nodes on the "drives"; checks the order and checksums of the writes. */
void fixture_commit(struct tree_fixture *f);
/* The second half of it, for a list from tree_close_txg(). */
void fixture_write(struct tree_fixture *f, struct list *writes);
/* Opens the tree again with an empty cache (there must be no open changes). */
void fixture_reopen(struct tree_fixture *f);
/* Every place in use is named by the tree, and only those. Yields. */
void fixture_check_space(struct tree_fixture *f);

/* Runs the body on a fiber of a fresh reactor with so much memory; asserts that no EXPECT failed. */
void run_on_fiber(void (*body)(void *arg), void *arg, uint64_t memory_bytes);

#endif
