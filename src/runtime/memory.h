/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page memory: reference-counted, 4 KiB aligned pages in contiguous runs, from a bounded pool per reactor.
 *
 * All payload, tree nodes and log blocks live in pages. A run of n pages is contiguous memory (so that it is
 * one I/O), but every page has its own count: a cache can keep one page of a run while the others go. Freed
 * pages coalesce (buddy system). The pool grows in chunks as needed, each madvised to huge pages and
 * registered with the reactor's io_uring, up to the budget that all reactors of a process share.
 *
 * Pages belong to one reactor; counts are not atomic.
 */
#ifndef ASHLAR_RUNTIME_MEMORY_H
#define ASHLAR_RUNTIME_MEMORY_H

#include "runtime/base.h"

#define PAGE_RUN_MAX 1024u /* pages; 4 MiB: the longest run */

struct reactor;

/* What all reactors of one process share: a limit in bytes, taken chunk by chunk, never given back while a
 * reactor lives. So that the first one to need much does not leave the others without any, each one's half of
 * an equal share is kept for it. */
#define BUDGET_POOLS_MAX 64u
struct memory_budget {
    uint64_t limit_bytes;
    uint64_t used_bytes;                   /* atomic */
    uint64_t pools;                        /* a bit for each that takes from it: one a reactor */
    uint64_t held_bytes[BUDGET_POOLS_MAX]; /* by each */
    bool lock;                             /* growing is rare; never held over a call */
};

struct page {
    uint8_t *data;  /* BLOCK_SIZE bytes */
    uint32_t refs;  /* 0: free */
    uint16_t chunk; /* index of its chunk in the pool, also its registered buffer's index */
    uint8_t order;  /* of the free run that begins here; meaningless while allocated */
    uint8_t flags;
};
static_assert(sizeof(struct page) == 24 || sizeof(struct page) == 16, "page headers are small");

struct memory; /* one reactor's pool: reactor_memory() */

/* Called when the pool has run dry: must try to free at least n pages (cache reclaim); returns how many it
 * freed. Called in the context of the allocating fiber; must not yield. */
void memory_set_reclaim(struct memory *m, uint32_t (*reclaim)(void *ctx, uint32_t npages), void *ctx);

/* For tests: when set and true, page_alloc() fails with ERR_NO_MEMORY and page_alloc_wait() waits. */
void memory_set_failure(struct memory *m, bool (*fail)(void *ctx), void *ctx);

/* A run of n contiguous pages (1..PAGE_RUN_MAX), count 1 each, contents undefined. Reclaims if it must.
 * ERR_NO_MEMORY when nothing can be freed now. */
int page_alloc(uint32_t n, struct page **ret) MUST_CHECK;
/* The same, but waits for memory (back-pressure on clients). ERR_TIMEOUT, ERR_CANCELLED.
 * The caller must not hold pages that others wait for while it waits here. */
int page_alloc_wait(uint32_t n, uint64_t deadline_ns, struct page **ret) MUST_CHECK may_yield;

/* References of n consecutive pages of one run, from p on. */
void page_get(struct page *p, uint32_t n);
void page_put(struct page *p, uint32_t n);
/* The i-th page of the run in which p lies. */
static inline struct page *page_at(struct page *p, uint32_t i)
{
    return p + i;
}

/* Bytes of the pool: in use by pages, and taken from the budget. */
void memory_usage(const struct memory *m, uint64_t *ret_used_bytes, uint64_t *ret_held_bytes);
/* What the pool can hold at most: its budget without what is kept for the others. */
uint64_t memory_limit_bytes(const struct memory *m);
/* Asserts the documented invariants of the whole pool; slow, for tests and the simulator. */
void memory_check(const struct memory *m);

#endif
