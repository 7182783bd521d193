/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theory of page memory
 *
 * A pool is a row of chunks, each one mapping of a few MiB cut into pages. Free space of a chunk is kept as
 * buddies: runs of 2^order pages that begin at a multiple of their length within the chunk. A request for n
 * pages takes the smallest run that fits and gives its tail back, so that 5 pages cost 5. Freed pages find
 * their buddy and grow again.
 *
 * Links of free runs are in arrays beside the pages (by global index: chunk * pages-per-chunk + page), never
 * in the pages themselves, so freeing does not touch cold memory. A magazine of single pages short-cuts the
 * commonest size; its pages count as free but do not coalesce until it is emptied.
 *
 * Invariants (memory_check())
 *  M1  each page is either in use (refs > 0), in the magazine, or in exactly one free run;
 *  M2  no two buddies of the same order are both free;
 *  M3  free_pages is the number of pages that are not in use.
 *
 * Order of attempts when there is none: empty the magazine, grow within the budget, reclaim from the cache.
 */
#include "runtime/memory.h"
#include "runtime/error.h"
#include "runtime/reactor_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#if ASHLAR_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define ORDER_MAX        10u
#define ORDER_COUNT      (ORDER_MAX + 1)
#define CHUNKS_MAX       UINT16_MAX
#define MAGAZINE_MAX     64u
#define NO_PAGE          UINT32_MAX
#define HUGE_PAGE_BYTES  (2 * MIB)
#define WAIT_RETRY_NS    (20 * NSEC_PER_MSEC)
#define RECLAIM_ATTEMPTS 8
#define CHUNK_SMALLEST   ((size_t)PAGE_RUN_MAX * BLOCK_SIZE)
#define CHUNK_LARGEST    (256 * MIB)
#define CHUNKS_WANTED    2048u /* as many as a world can be expected to register */
static_assert(1u << ORDER_MAX == PAGE_RUN_MAX, "the longest run is the highest order");

/* page.flags */
#define PAGE_FREE_HEAD 1u /* a free run of page.order begins here */
#define PAGE_MAGAZINE  2u

struct free_link {
    uint32_t next, prev;
};

struct chunk {
    struct page *pages;
    struct free_link *links;
    uint8_t *base;
    size_t map_bytes; /* of the mapping at base */
    uint32_t page_count;
};

struct memory {
    struct reactor *reactor;
    struct memory_budget *budget;
    uint32_t budget_pool; /* which of its pools we are */
    size_t chunk_bytes;
    uint32_t chunk_pages;
    struct chunk *chunks;
    uint32_t chunk_count;
    uint32_t order_mask;              /* bit k: free[k] is not empty */
    uint32_t free_heads[ORDER_COUNT]; /* global page indexes */
    struct page *magazine[MAGAZINE_MAX];
    uint32_t magazine_count;
    uint64_t free_pages, total_pages;
    struct list waiters; /* struct page_waiter */
    uint32_t (*reclaim)(void *ctx, uint32_t npages);
    void *reclaim_ctx;
    bool (*fail)(void *ctx);
    void *fail_ctx;
    bool reclaiming;
};

struct page_waiter {
    struct list link;
    struct fiber *fiber;
    uint32_t want;
};

/* Registering a chunk pins and zeroes it, which stops the loop (about 0.2 ms a MiB): so small ones, but not
 * more of them than can be registered. */
static size_t chunk_bytes_for(uint64_t limit_bytes)
{
    size_t bytes = CHUNK_SMALLEST;
    while (bytes < CHUNK_LARGEST && limit_bytes / bytes > CHUNKS_WANTED)
        bytes *= 2;
    return bytes;
}

/* ---- The budget ---- */

static void budget_lock(struct memory_budget *b)
{
    while (__atomic_test_and_set(&b->lock, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void budget_unlock(struct memory_budget *b)
{
    __atomic_clear(&b->lock, __ATOMIC_RELEASE);
}

/* Half of an equal share: each pool's own, whoever comes first. */
static uint64_t budget_share(const struct memory_budget *b)
{
    return b->limit_bytes / (uint64_t)__builtin_popcountll(b->pools) / 2;
}

/* What must be left for the other pools. */
static uint64_t budget_kept(const struct memory_budget *b, uint32_t pool)
{
    uint64_t share = budget_share(b), kept = 0;
    for (uint64_t left = b->pools & ~(UINT64_C(1) << pool); left != 0; left &= left - 1) {
        uint64_t held = b->held_bytes[__builtin_ctzll(left)];
        kept += held < share ? share - held : 0;
    }
    return kept;
}

static bool budget_take(struct memory *m, uint64_t bytes)
{
    struct memory_budget *b = m->budget;
    budget_lock(b);
    uint64_t kept = budget_kept(b, m->budget_pool);
    bool fits = kept + bytes <= b->limit_bytes && b->used_bytes <= b->limit_bytes - bytes - kept;
    if (fits) {
        b->held_bytes[m->budget_pool] += bytes;
        __atomic_store_n(&b->used_bytes, b->used_bytes + bytes, __ATOMIC_RELAXED);
    }
    budget_unlock(b);
    return fits;
}

static void budget_give(struct memory *m, uint64_t bytes)
{
    struct memory_budget *b = m->budget;
    budget_lock(b);
    assert(b->used_bytes >= bytes && b->held_bytes[m->budget_pool] >= bytes);
    b->held_bytes[m->budget_pool] -= bytes;
    __atomic_store_n(&b->used_bytes, b->used_bytes - bytes, __ATOMIC_RELAXED);
    budget_unlock(b);
}

/* ---- Life ---- */

struct memory *memory_new(struct reactor *r, struct memory_budget *budget, size_t chunk_bytes)
{
    struct memory *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    m->reactor = r;
    m->budget = budget;
    budget_lock(budget);
    assert(budget->pools != UINT64_MAX);
    m->budget_pool = (uint32_t)__builtin_ctzll(~budget->pools);
    budget->pools |= UINT64_C(1) << m->budget_pool;
    budget_unlock(budget);
    m->chunk_bytes = chunk_bytes != 0 ? chunk_bytes : chunk_bytes_for(budget->limit_bytes);
    assert(m->chunk_bytes % BLOCK_SIZE == 0);
    assert(m->chunk_bytes <= GIB);
    m->chunk_pages = (uint32_t)(m->chunk_bytes / BLOCK_SIZE);
    for (uint32_t k = 0; k < ORDER_COUNT; k++)
        m->free_heads[k] = NO_PAGE;
    list_init(&m->waiters);
    return m;
}

void memory_set_reclaim(struct memory *m, uint32_t (*reclaim)(void *ctx, uint32_t npages), void *ctx)
{
    m->reclaim = reclaim;
    m->reclaim_ctx = ctx;
}

void memory_set_failure(struct memory *m, bool (*fail)(void *ctx), void *ctx)
{
    m->fail = fail;
    m->fail_ctx = ctx;
}

void memory_usage(const struct memory *m, uint64_t *ret_used_bytes, uint64_t *ret_held_bytes)
{
    *ret_used_bytes = (m->total_pages - m->free_pages) * BLOCK_SIZE;
    *ret_held_bytes = m->total_pages * BLOCK_SIZE;
}

uint64_t memory_limit_bytes(const struct memory *m)
{
    const struct memory_budget *b = m->budget;
    uint64_t others = (uint64_t)__builtin_popcountll(b->pools) - 1;
    return b->limit_bytes - others * budget_share(b);
}

/* ---- Free runs ---- */

static struct chunk *page_chunk(struct memory *m, const struct page *p)
{
    assert(p->chunk < m->chunk_count);
    return &m->chunks[p->chunk];
}

static uint32_t page_global(struct memory *m, const struct page *p)
{
    return p->chunk * m->chunk_pages + (uint32_t)(p - page_chunk(m, p)->pages);
}

static struct page *page_of_global(struct memory *m, uint32_t g)
{
    return &m->chunks[g / m->chunk_pages].pages[g % m->chunk_pages];
}

static struct free_link *link_of_global(struct memory *m, uint32_t g)
{
    return &m->chunks[g / m->chunk_pages].links[g % m->chunk_pages];
}

static void run_insert(struct memory *m, struct page *p, uint32_t order)
{
    uint32_t g = page_global(m, p);
    p->flags = PAGE_FREE_HEAD;
    p->order = (uint8_t)order;
    struct free_link *l = link_of_global(m, g);
    l->next = m->free_heads[order];
    l->prev = NO_PAGE;
    if (l->next != NO_PAGE)
        link_of_global(m, l->next)->prev = g;
    m->free_heads[order] = g;
    m->order_mask |= 1u << order;
}

static void run_remove(struct memory *m, struct page *p)
{
    uint32_t g = page_global(m, p);
    uint32_t order = p->order;
    assert(p->flags == PAGE_FREE_HEAD && order <= ORDER_MAX);
    struct free_link *l = link_of_global(m, g);
    if (l->next != NO_PAGE)
        link_of_global(m, l->next)->prev = l->prev;
    if (l->prev != NO_PAGE)
        link_of_global(m, l->prev)->next = l->next;
    else
        m->free_heads[order] = l->next;
    if (m->free_heads[order] == NO_PAGE)
        m->order_mask &= ~(1u << order);
    p->flags = 0;
}

/* Frees one aligned run of 2^order pages and lets it grow with its buddies (M2). */
static void run_free(struct memory *m, struct page *p, uint32_t order)
{
    struct chunk *c = page_chunk(m, p);
    uint32_t i = (uint32_t)(p - c->pages);
    assert(i % (1u << order) == 0 && i + (1u << order) <= c->page_count);
    while (order < ORDER_MAX) {
        uint32_t buddy = i ^ (1u << order);
        if (buddy >= c->page_count)
            break;
        struct page *b = &c->pages[buddy];
        if (b->flags != PAGE_FREE_HEAD || b->order != order)
            break;
        run_remove(m, b);
        i = MIN(i, buddy);
        order++;
    }
    run_insert(m, &c->pages[i], order);
}

/* Frees n pages from p on, cut into the largest aligned runs. */
static void range_free(struct memory *m, struct page *p, uint32_t n)
{
    struct chunk *c = page_chunk(m, p);
    uint32_t i = (uint32_t)(p - c->pages);
    assert(i + n <= c->page_count);
    while (n > 0) {
        uint32_t order = MIN(ORDER_MAX, 31 - (uint32_t)__builtin_clz(n));
        if (i != 0)
            order = MIN(order, (uint32_t)__builtin_ctz(i));
        run_free(m, &c->pages[i], order);
        i += 1u << order;
        n -= 1u << order;
    }
}

/* n pages from the free runs, or NULL. */
static struct page *range_take(struct memory *m, uint32_t n)
{
    uint32_t order = n == 1 ? 0 : 32 - (uint32_t)__builtin_clz(n - 1);
    uint32_t fits = m->order_mask & ~((1u << order) - 1);
    if (fits == 0)
        return NULL;
    struct page *p = page_of_global(m, m->free_heads[__builtin_ctz(fits)]);
    uint32_t have = 1u << p->order;
    run_remove(m, p);
    if (have > n)
        range_free(m, p + n, have - n);
    return p;
}

static void magazine_empty(struct memory *m)
{
    while (m->magazine_count > 0) {
        struct page *p = m->magazine[--m->magazine_count];
        assert(p->flags == PAGE_MAGAZINE && p->refs == 0);
        p->flags = 0;
        run_free(m, p, 0);
    }
}

/* ---- Growing ---- */

/* Maps bytes at a multiple of the huge page's size if they are worth one. */
static uint8_t *chunk_map(size_t bytes)
{
    size_t slack = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    uint8_t *map =
        mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    if (slack == 0)
        return map;
    uint8_t *base = (uint8_t *)ALIGN_UP((uintptr_t)map, (uintptr_t)HUGE_PAGE_BYTES);
    size_t before = (size_t)(base - map);
    if (before > 0)
        munmap(map, before);
    if (slack > before)
        munmap(base + bytes, slack - before);
    madvise(base, bytes, MADV_HUGEPAGE); /* a wish; nothing depends on it */
    return base;
}

static void chunk_unmap(struct chunk *c)
{
    UNPOISON(c->base, c->map_bytes);
    munmap(c->base, c->map_bytes);
    free(c->pages);
    free(c->links);
}

static bool chunk_init(struct chunk *c, uint16_t index, size_t bytes)
{
    uint32_t n = (uint32_t)(bytes / BLOCK_SIZE);
    *c = (struct chunk){.page_count = n, .map_bytes = bytes};
    c->pages = calloc(n, sizeof(struct page));
    c->links = malloc(n * sizeof(struct free_link));
    c->base = c->pages != NULL && c->links != NULL ? chunk_map(bytes) : NULL;
    if (c->base == NULL) {
        free(c->pages);
        free(c->links);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        c->pages[i].data = c->base + (size_t)i * BLOCK_SIZE;
        c->pages[i].chunk = index;
    }
    return true;
}

static bool memory_grow(struct memory *m)
{
    if (m->chunk_count >= CHUNKS_MAX || (m->chunk_count + 1) >= UINT32_MAX / m->chunk_pages)
        return false;
    if (!budget_take(m, m->chunk_bytes))
        return false;
    struct chunk *chunks = reallocarray(m->chunks, m->chunk_count + 1, sizeof(struct chunk));
    if (chunks != NULL)
        m->chunks = chunks;
    uint16_t index = (uint16_t)m->chunk_count;
    if (chunks == NULL || !chunk_init(&chunks[index], index, m->chunk_bytes)) {
        budget_give(m, m->chunk_bytes);
        return false;
    }
    struct chunk *c = &m->chunks[index];
    m->chunk_count++;
    m->total_pages += c->page_count;
    m->free_pages += c->page_count;
    /* A world that cannot register the chunk does plain I/O on it. */
    if (m->reactor->ops->memory_chunk != NULL)
        (void)m->reactor->ops->memory_chunk(m->reactor, index, c->base, c->map_bytes, true);
    POISON(c->base, c->map_bytes);
    range_free(m, c->pages, c->page_count);
    return true;
}

void memory_free(struct memory *m)
{
    assert(m->free_pages == m->total_pages);
    assert(list_empty(&m->waiters));
    for (uint32_t i = 0; i < m->chunk_count; i++) {
        struct chunk *c = &m->chunks[i];
        if (m->reactor->ops->memory_chunk != NULL)
            (void)m->reactor->ops->memory_chunk(m->reactor, (uint16_t)i, c->base, c->map_bytes, false);
        budget_give(m, c->map_bytes);
        chunk_unmap(c);
    }
    budget_lock(m->budget);
    m->budget->pools &= ~(UINT64_C(1) << m->budget_pool);
    budget_unlock(m->budget);
    free(m->chunks);
    free(m);
}

/* ---- Allocating ---- */

static struct page *memory_take(struct memory *m, uint32_t n)
{
    struct page *p = range_take(m, n);
    if (p != NULL)
        return p;
    if (m->magazine_count > 0) {
        magazine_empty(m);
        p = range_take(m, n);
        if (p != NULL)
            return p;
    }
    return memory_grow(m) ? range_take(m, n) : NULL;
}

/* Freed pages may lie scattered, so what is asked of the cache grows until a run has come together. */
static struct page *memory_reclaim_and_take(struct memory *m, uint32_t n)
{
    if (m->reclaim == NULL || m->reclaiming)
        return NULL;
    struct page *p = NULL;
    uint32_t ask = n;
    m->reclaiming = true;
    for (int i = 0; i < RECLAIM_ATTEMPTS && p == NULL; i++, ask *= 2) {
        if (m->reclaim(m->reclaim_ctx, ask) == 0)
            break;
        p = memory_take(m, n);
    }
    m->reclaiming = false;
    return p;
}

int page_alloc(uint32_t n, struct page **ret)
{
    assert(n >= 1 && n <= PAGE_RUN_MAX);
    assert(reactor_tls != NULL);
    struct memory *m = reactor_tls->memory;
    if (n > m->chunk_pages)
        return ERR_NO_MEMORY; /* growing would not help */
    if (PREDICT_FALSE(m->fail != NULL) && m->fail(m->fail_ctx))
        return ERR_NO_MEMORY;
    struct page *p;
    if (n == 1 && m->magazine_count > 0) {
        p = m->magazine[--m->magazine_count];
        p->flags = 0;
    } else {
        p = memory_take(m, n);
        if (p == NULL)
            p = memory_reclaim_and_take(m, n);
        if (p == NULL)
            return ERR_NO_MEMORY;
    }
    assert(m->free_pages >= n); /* M3 */
    m->free_pages -= n;
    for (uint32_t i = 0; i < n; i++) {
        assert(p[i].refs == 0);
        p[i].refs = 1;
    }
    UNPOISON(p->data, (size_t)n * BLOCK_SIZE);
    *ret = p;
    return 0;
}

/* First come, first served: a waiter stays at the head of the queue until its run is there. It looks again
 * from time to time, since cached pages can become reclaimable without any page being freed. */
int page_alloc_wait(uint32_t n, uint64_t deadline_ns, struct page **ret)
{
    struct reactor *r = reactor_tls;
    struct memory *m = r->memory;
    struct page *p = NULL;
    assert(n <= m->chunk_pages); /* else no wait would end */
    if (list_empty(&m->waiters) && page_alloc(n, &p) == 0) {
        *ret = p;
        return 0;
    }
    struct page_waiter w = {.fiber = fiber_self(), .want = n};
    assert(w.fiber != NULL);
    list_append(&m->waiters, &w.link);
    int err;
    for (;;) {
        uint64_t retry_ns = r->now_ns + WAIT_RETRY_NS;
        err = fiber_park_for("page memory", MIN(deadline_ns, retry_ns));
        if (m->waiters.next == &w.link && page_alloc(n, &p) == 0) {
            err = 0;
            break;
        }
        if (err == ERR_TIMEOUT && r->now_ns < deadline_ns)
            err = 0;
        if (err != 0)
            break;
    }
    list_remove(&w.link);
    if (!list_empty(&m->waiters) && m->free_pages > 0)
        fiber_wake(CONTAINER_OF(m->waiters.next, struct page_waiter, link)->fiber);
    if (err != 0)
        return err;
    *ret = p;
    return 0;
}

/* ---- References ---- */

void page_get(struct page *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert(p[i].refs > 0 && p[i].refs < UINT32_MAX);
        p[i].refs++;
    }
}

static void memory_freed(struct memory *m, uint32_t n)
{
    m->free_pages += n;
    assert(m->free_pages <= m->total_pages);
    if (PREDICT_TRUE(list_empty(&m->waiters)))
        return;
    struct page_waiter *w = CONTAINER_OF(m->waiters.next, struct page_waiter, link);
    if (m->free_pages >= w->want)
        fiber_wake(w->fiber);
}

static void pages_release(struct memory *m, struct page *p, uint32_t n)
{
    POISON(p->data, (size_t)n * BLOCK_SIZE);
    if (n == 1 && m->magazine_count < MAGAZINE_MAX) {
        p->flags = PAGE_MAGAZINE;
        m->magazine[m->magazine_count++] = p;
    } else {
        range_free(m, p, n);
    }
    memory_freed(m, n);
}

void page_put(struct page *p, uint32_t n)
{
    assert(reactor_tls != NULL && n >= 1);
    struct memory *m = reactor_tls->memory;
    assert(p + n <= page_chunk(m, p)->pages + page_chunk(m, p)->page_count);
    uint32_t start = 0; /* of the pages that fell to zero together */
    for (uint32_t i = 0; i < n; i++) {
        assert(p[i].refs > 0);
        if (--p[i].refs == 0)
            continue;
        if (i > start)
            pages_release(m, p + start, i - start);
        start = i + 1;
    }
    if (n > start)
        pages_release(m, p + start, n - start);
}

void memory_check(const struct memory *m)
{
    uint64_t free_pages = 0, in_magazine = 0;
    for (uint32_t ci = 0; ci < m->chunk_count; ci++) {
        const struct chunk *c = &m->chunks[ci];
        for (uint32_t i = 0; i < c->page_count;) {
            const struct page *p = &c->pages[i];
            uint32_t run = p->flags == PAGE_FREE_HEAD ? 1u << p->order : 1;
            assert(i % run == 0 && i + run <= c->page_count);
            if (p->flags == PAGE_MAGAZINE)
                in_magazine++;
            if (p->flags != 0)
                free_pages += run;
            assert((p->flags != 0) == (p->refs == 0)); /* M1 */
            for (uint32_t k = 1; k < run; k++)
                assert(p[k].refs == 0 && p[k].flags == 0);
            uint32_t buddy = i ^ run;
            if (p->flags == PAGE_FREE_HEAD && p->order < ORDER_MAX && buddy < c->page_count)
                assert(c->pages[buddy].flags != PAGE_FREE_HEAD || c->pages[buddy].order != p->order); /* M2 */
            i += run;
        }
    }
    assert(free_pages == m->free_pages); /* M3 */
    assert(in_magazine == m->magazine_count);
}
