/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/volume/tree_store.h"

#include "runtime/checksum.h"
#include "runtime/error.h"
#include "tests/unit/runtime/test_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

unsigned expect_failures;

void expect_failed(const char *file, int line, const char *what)
{
    if (expect_failures++ < 20)
        print_error("%s:%d: not true: %s\n", file, line, what);
}

uint64_t test_random64(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return hash_mix64(*state);
}

static uint32_t pick_place(struct tree_store *s)
{
    /* Freed places first, from a random one on, so that addresses are used again soon. */
    uint32_t from = s->place_count ? (uint32_t)(test_random64(&s->random) % s->place_count) : 0;
    for (uint32_t i = 0; i < MIN(s->place_count, 64u); i++) {
        uint32_t at = (from + i) % s->place_count;
        if (s->places[at].state == PLACE_FREE)
            return at;
    }
    if (s->place_count == s->place_max) {
        s->place_max = s->place_max ? s->place_max * 2 : 256;
        s->places = realloc(s->places, s->place_max * sizeof(s->places[0]));
        assert(s->places != NULL);
    }
    s->places[s->place_count] = (struct store_place){.bytes = malloc(NODE_SIZE)};
    assert(s->places[s->place_count].bytes != NULL);
    return s->place_count++;
}

static struct node_address store_alloc(void *ctx, uint64_t txg)
{
    struct tree_store *s = ctx;
    EXPECT(s->reserved > 0);
    s->reserved -= s->reserved > 0;
    uint32_t i = pick_place(s);
    struct store_place *p = &s->places[i];
    p->state = PLACE_USED;
    p->birth = txg;
    p->written = false;
    s->used++;
    s->allocs++;
    return (struct node_address){7, (uint64_t)i * NODE_BLOCKS};
}

static void store_free(void *ctx, struct node_address a, uint64_t birth, uint64_t txg)
{
    struct tree_store *s = ctx;
    uint64_t i = a.block / NODE_BLOCKS;
    EXPECT(a.space == 7 && i < s->place_count);
    struct store_place *p = &s->places[i];
    EXPECT(p->state == PLACE_USED);
    EXPECT(p->birth == birth);
    EXPECT(birth <= txg);
    p->state = birth == txg ? PLACE_FREE : PLACE_FREED;
    p->freed_txg = txg;
    s->used--;
}

static void be_slow(struct tree_store *s) may_yield;
static void be_slow(struct tree_store *s)
{
    if (!s->slow)
        return;
    /* Now and then so slow that the address is freed and used again meanwhile. */
    uint64_t n = test_random64(&s->random) % (test_random64(&s->random) % 32 == 0 ? 600 : 4);
    for (; n > 0; n--)
        fiber_yield();
}

static int may_yield store_reserve(void *ctx, uint32_t n)
{
    struct tree_store *s = ctx;
    be_slow(s);
    if (s->fail_reserve > 0) {
        s->fail_reserve--;
        return ERR_VOLUME_FULL;
    }
    if (s->limit && s->used + n > s->limit)
        return ERR_VOLUME_FULL;
    s->reserved = n;
    return 0;
}

static int may_yield store_read(void *ctx, const struct disk_node_pointer *p, struct page *pages)
{
    struct tree_store *s = ctx;
    struct disk_node_pointer copy = *p;
    be_slow(s);
    s->reads++;
    uint64_t i = le64_get(copy.block) / NODE_BLOCKS;
    if (s->fail_reads > 0) {
        s->fail_reads--;
        return ERR_NO_GOOD_COPY;
    }
    if (i >= s->place_count || !s->places[i].written)
        return ERR_NO_GOOD_COPY;
    memcpy(pages->data, s->places[i].bytes, NODE_SIZE);
    be_slow(s);
    struct le32 crc = le32_make(crc32c(0, pages->data, NODE_SIZE));
    return memcmp(copy.checksum, &crc, sizeof(crc)) == 0 ? 0 : ERR_NO_GOOD_COPY;
}

void tree_store_init(struct tree_store *s, uint64_t seed)
{
    *s = (struct tree_store){.random = seed};
    s->ops = (struct node_store){
        .alloc = store_alloc, .free = store_free, .reserve = store_reserve, .read = store_read, .ctx = s};
}

void tree_store_done(struct tree_store *s)
{
    for (uint32_t i = 0; i < s->place_count; i++)
        free(s->places[i].bytes);
    free(s->places);
}

void tree_store_committed(struct tree_store *s, uint64_t txg)
{
    for (uint32_t i = 0; i < s->place_count; i++) {
        if (s->places[i].state == PLACE_FREED && s->places[i].freed_txg < txg)
            s->places[i].state = PLACE_FREE;
    }
}

void fixture_init(struct tree_fixture *f, uint64_t seed)
{
    memset(f, 0, sizeof(*f));
    tree_store_init(&f->store, seed);
    int err = cache_new(tree_node_evicted, &f->cache);
    assert(err == 0);
    f->tag = cache_volume_tag(f->cache);
    f->volume = (struct uuid){{1, 2, 3, 4}};
    tree_init(&f->tree, &f->store.ops, f->cache, f->tag, f->volume, 3, NULL, 10);
}

void fixture_done(struct tree_fixture *f)
{
    tree_done(&f->tree);
    cache_drop_volume(f->cache, f->tag);
    struct cache_stats stats;
    cache_get_stats(f->cache, &stats);
    EXPECT(stats.pages == 0 && stats.dirty_pages == 0);
    cache_free(f->cache);
    tree_store_done(&f->store);
}

void fixture_write(struct tree_fixture *f, struct list *writes)
{
    uint64_t before = 0, txg = f->tree.txg - 1;
    bool first = true;
    LIST_FOREACH_SAFE (writes, it) {
        struct tree_write *w = CONTAINER_OF(it, struct tree_write, link);
        EXPECT(first || w->address.block > before);
        EXPECT(w->address.space == 7);
        first = false;
        before = w->address.block;
        struct store_place *p = &f->store.places[w->address.block / NODE_BLOCKS];
        EXPECT(!p->written);
        EXPECT(crc32c(0, w->page->data, NODE_SIZE) == w->crc);
        memcpy(p->bytes, w->page->data, NODE_SIZE);
        p->written = true;
        tree_write_done(&f->tree, w);
    }
    tree_store_committed(&f->store, txg);
}

void fixture_commit(struct tree_fixture *f)
{
    struct list writes;
    uint32_t dirty = f->tree.dirty_nodes, listed = 0;
    tree_close_txg(&f->tree, f->tree.txg + 1, &writes);
    LIST_FOREACH (&writes, it)
        listed++;
    EXPECT(listed == dirty);
    fixture_write(f, &writes);
}

void fixture_reopen(struct tree_fixture *f)
{
    EXPECT(f->tree.dirty_nodes == 0);
    struct disk_node_pointer root = f->tree.root;
    uint64_t txg = f->tree.txg;
    tree_done(&f->tree);
    cache_drop_volume(f->cache, f->tag);
    f->tag = cache_volume_tag(f->cache);
    tree_init(&f->tree, &f->store.ops, f->cache, f->tag, f->volume, 3, &root, txg);
}

struct space_check {
    struct tree_fixture *f;
    uint32_t nodes;
};

static int space_node(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low)
{
    struct space_check *s = ctx;
    struct store_place *place = &s->f->store.places[le64_get(p->block) / NODE_BLOCKS];
    EXPECT(place->state == PLACE_USED);
    EXPECT(place->birth == le64_get(p->birth_logical));
    s->nodes++;
    return 0;
}

void fiber_role_assumed fixture_check_space(struct tree_fixture *f)
{
    struct space_check s = {.f = f};
    struct tree_walk w = {.node = space_node, .ctx = &s};
    EXPECT(tree_walk(&f->tree, &w) == 0);
    EXPECT(s.nodes == f->store.used);
}

void run_on_fiber(void (*body)(void *arg), void *arg, uint64_t memory_bytes)
{
    struct test_world w;
    test_world_init(&w);
    expect_failures = 0;
    test_run_with(&w, memory_bytes, MIB, body, arg);
    test_world_done(&w);
    assert_int_equal(expect_failures, 0);
}
