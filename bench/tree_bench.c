/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the tree is in memory: lookups and puts at random and in order over 262,144 extents of 4 KiB
 * (values of 44 bytes), the tree of a block device of 1 GiB written at random. The store is a counter;
 * nothing is read.
 *
 * For a measure that does not depend on the machine, each line says how many times the work of a plain
 * chained hash table over the same number of entries it takes, measured in the same run.
 */
#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/reactor.h"
#include "runtime/world_real.h"
#include "volume/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define KEYS      262144u
#define VALUE_LEN 44u
#define ROUNDS    8u

static uint64_t random_state = 1;
static double yardstick_ns; /* a lookup in the hash table */

static uint32_t draw(uint32_t n)
{
    random_state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(((hash_mix64(random_state) >> 32) * n) >> 32);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Other work on the machine only ever adds time: the fastest round counts. */
struct best {
    double started, ns;
};
static void round_begin(struct best *b)
{
    b->started = now_ns();
}
static void round_end(struct best *b, uint32_t ops)
{
    double ns = (now_ns() - b->started) / ops;
    if (b->ns == 0 || ns < b->ns)
        b->ns = ns;
}
static void report(const char *what, const struct best *b)
{
    if (yardstick_ns == 0)
        yardstick_ns = b->ns;
    printf("%-52s %8.0f ns  %6.2f x a hash lookup\n", what, b->ns, b->ns / yardstick_ns);
}

/* ---- A store that only counts ---- */

static uint64_t next_block;

static struct node_address bench_alloc(void *ctx, uint64_t txg)
{
    next_block += NODE_BLOCKS;
    return (struct node_address){1, next_block};
}
static void bench_free(void *ctx, struct node_address a, uint64_t birth, uint64_t txg) {}
static int bench_reserve(void *ctx, uint32_t n)
{
    return 0;
}
static int bench_read(void *ctx, const struct disk_node_pointer *p, struct page *pages)
{
    return ERR_NO_GOOD_COPY;
}
static const struct node_store bench_store = {
    .alloc = bench_alloc, .free = bench_free, .reserve = bench_reserve, .read = bench_read};

/* ---- The yardstick ---- */

struct chain {
    struct chain *next;
    uint64_t key;
    uint8_t value[VALUE_LEN];
};

static void measure_hash_table(void)
{
    struct chain **table = calloc(KEYS, sizeof(*table)), *entries = calloc(KEYS, sizeof(*entries));
    assert(table && entries);
    for (uint32_t i = 0; i < KEYS; i++) {
        struct chain **b = &table[hash_mix64(i) % KEYS];
        entries[i].key = i;
        entries[i].next = *b;
        *b = &entries[i];
    }
    uint64_t sum = 0;
    struct best b = {0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        round_begin(&b);
        for (uint32_t i = 0; i < KEYS; i++) {
            uint64_t key = draw(KEYS);
            struct chain *c = table[hash_mix64(key) % KEYS];
            while (c->key != key)
                c = c->next;
            c->value[0]++;
            sum += c->value[0];
        }
        round_end(&b, KEYS);
    }
    report("hash table, random lookup", &b);
    assert(sum > 0);
    free(table);
    free(entries);
}

/* ---- The tree ---- */

static struct tree tree;
static uint8_t value[VALUE_LEN];

static struct tree_key key_of(uint32_t i)
{
    return (struct tree_key){OBJECT_BLOCK_DEVICE, ITEM_EXTENT, (uint64_t)i * BLOCK_SIZE};
}

static void may_yield put(uint32_t i)
{
    struct tree_key k = key_of(i);
    int err = tree_put(&tree, &k, value, VALUE_LEN);
    assert(err == 0);
}

static void may_yield get(uint32_t i)
{
    struct tree_key k = key_of(i);
    uint8_t buf[VALUE_LEN];
    uint32_t len;
    int err = tree_get(&tree, &k, buf, sizeof(buf), &len);
    assert(err == 0);
    assert(len == VALUE_LEN);
}

static uint32_t commit(void)
{
    struct list writes;
    double from = now_ns();
    uint32_t n = 0;
    tree_close_txg(&tree, tree.txg + 1, &writes);
    double took = now_ns() - from;
    LIST_FOREACH_SAFE (&writes, it) {
        tree_write_done(&tree, CONTAINER_OF(it, struct tree_write, link));
        n++;
    }
    printf("%-52s %8.0f ns  (%u nodes)\n", "close of the txg, a node", took / n, n);
    return n;
}

static uint32_t key_number; /* for what goes in order */

static void may_yield put_next(void)
{
    put(key_number++ % KEYS);
}
static void may_yield put_random(void)
{
    put(draw(KEYS));
}
static void may_yield get_next(void)
{
    get(key_number++ % KEYS);
}
static void may_yield get_random(void)
{
    get(draw(KEYS));
}
static void may_yield seek_random(void)
{
    struct tree_cursor c;
    struct tree_key k = key_of(draw(KEYS));
    int err = tree_seek(&c, &tree, &k, SEEK_LE);
    assert(err == 0);
}

static void may_yield measure(const char *what, void (*op)(void))
{
    struct best b = {0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        round_begin(&b);
        for (uint32_t i = 0; i < KEYS; i++)
            op();
        round_end(&b, KEYS);
    }
    report(what, &b);
}

static void may_yield measure_inserts(void)
{
    struct best b = {0};
    round_begin(&b);
    for (uint32_t i = 0; i < KEYS; i++)
        put((uint32_t)((uint64_t)i * 40503 % KEYS)); /* odd: each once */
    round_end(&b, KEYS);
    report("insert, scattered", &b);
    commit();
    b.ns = 0;
    round_begin(&b);
    for (uint32_t i = 0; i < KEYS; i++)
        put(draw(KEYS));
    round_end(&b, KEYS);
    report("replace, random, each node copied once", &b);
}

static void may_yield measure_cursor(void)
{
    struct best b = {0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct tree_cursor c;
        struct tree_key k = TREE_KEY_MIN;
        uint32_t n = 0;
        round_begin(&b);
        for (int err = tree_seek(&c, &tree, &k, SEEK_GE); err == 0; err = tree_next(&c))
            n++;
        round_end(&b, n);
        assert(n == KEYS);
    }
    report("cursor, a step", &b);
}

static void may_yield measure_deletes(void)
{
    struct best b = {0};
    round_begin(&b);
    for (uint32_t i = 0; i < KEYS; i++) {
        struct tree_key k = key_of((uint32_t)((uint64_t)i * 40503 % KEYS));
        int err = tree_delete(&tree, &k);
        assert(err == 0);
    }
    round_end(&b, KEYS);
    report("delete, scattered", &b);
}

static void fiber_role_assumed bench(void *arg)
{
    struct cache *cache;
    int err = cache_new(tree_node_evicted, &cache);
    assert(err == 0);
    uint32_t tag = cache_volume_tag(cache);
    tree_init(&tree, &bench_store, cache, tag, (struct uuid){{1}}, 1, NULL, 1);
    measure_hash_table();
    measure_inserts();
    measure("replace, random, in the open txg's nodes", put_random);
    measure("replace, in order, in the open txg's nodes", put_next);
    commit();
    measure("lookup, random", get_random);
    measure("lookup, in order", get_next);
    measure("cursor, random seek", seek_random);
    measure_cursor();
    struct cache_stats stats;
    cache_get_stats(cache, &stats);
    printf("%llu KiB in nodes, %u levels\n", (unsigned long long)stats.pages * 4, tree.root.level + 1u);
    measure_deletes();
    tree_done(&tree);
    cache_drop_volume(cache, tag);
    cache_free(cache);
}

int main(void)
{
    struct memory_budget budget = {.limit_bytes = GIB};
    struct reactor_options o = {.world = &world_real_ops, .budget = &budget};
    struct reactor *r;
    int err = reactor_new(&o, &r);
    assert(err == 0);
    err = reactor_spawn(r, "bench", bench, NULL);
    assert(err == 0);
    reactor_stop(r);
    err = reactor_run(r);
    assert(err == 0);
    reactor_free(r);
    return 0;
}
