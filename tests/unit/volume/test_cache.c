/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: what stays, what goes, and what is told about it. */
#include "runtime/checksum.h"
#include "runtime/reactor.h"
#include "tests/unit/volume/tree_store.h"
#include "volume/cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static uint32_t nodes_gone;

static void count_node(struct cache_entry *e)
{
    nodes_gone++;
    free(e);
}

static struct cache_key data_key(uint64_t block)
{
    return (struct cache_key){1, 2, block};
}

/* Adds a block that holds its own number. False without memory. */
static bool add(struct cache *c, uint64_t block, bool dirty)
{
    struct page *page;
    if (page_alloc(1, &page) != 0)
        return false;
    memcpy(page->data, &block, sizeof(block));
    bool added = cache_add_data(c, data_key(block), page, 1, dirty);
    page_put(page, 1);
    return added;
}

static bool has(struct cache *c, uint64_t block)
{
    struct page *page;
    uint64_t held = block;
    bool found = cache_find_data(c, data_key(block), 1, &page) == 1;
    EXPECT(found == (page != NULL));
    if (found) {
        memcpy(&held, page->data, sizeof(held));
        page_put(page, 1);
    }
    EXPECT(held == block);
    return found;
}

static void clean(struct cache *c, uint64_t block)
{
    struct page *page;
    if (cache_find_data(c, data_key(block), 1, &page) == 0)
        return;
    cache_clean_data(c, data_key(block), page, 1);
    page_put(page, 1);
}

static struct cache_stats stats_of(const struct cache *c)
{
    struct cache_stats s;
    cache_get_stats(c, &s);
    return s;
}

static struct cache *cache_make(void)
{
    struct cache *c = NULL;
    nodes_gone = 0;
    EXPECT(cache_new(count_node, &c) == 0);
    return c;
}

static struct cache_entry *add_node(struct cache *c, uint64_t block, bool dirty)
{
    struct cache_entry *e = calloc(1, sizeof(*e));
    EXPECT(page_alloc(4, &e->page) == 0);
    e->pages = 4;
    e->key = data_key(block);
    cache_add_node(c, e, dirty);
    return e;
}

static void find_body(void *arg)
{
    struct cache *c = cache_make();
    for (uint64_t i = 0; i < 5000; i++)
        EXPECT(add(c, i, i % 3 == 0) && has(c, i / 2) && has(c, i));
    for (uint64_t i = 0; i < 6000; i++)
        EXPECT(has(c, i) == (i < 5000));
    struct cache_stats s = stats_of(c);
    EXPECT(s.pages == 5000);
    EXPECT(s.dirty_pages == 1667);
    EXPECT(s.hits == 15000);
    EXPECT(s.misses == 1000);
    struct page *page;
    EXPECT(cache_find_data(c, (struct cache_key){2, 2, 1}, 1, &page) == 0);
    EXPECT(cache_find_data(c, (struct cache_key){1, 3, 1}, 1, &page) == 0);
    EXPECT(cache_find(c, data_key(8)) == NULL); /* a node is something else */
    cache_remove_data(c, data_key(7), 1);
    EXPECT(!has(c, 7));
    /* Again under the same key: the newer one counts, and the older one is not leaked. */
    EXPECT(add(c, 8, true));
    EXPECT(add(c, 9, false));
    EXPECT(stats_of(c).pages == 4999);
    cache_drop_volume(c, 9);
    EXPECT(stats_of(c).pages == 4999);
    cache_drop_volume(c, 1);
    EXPECT(stats_of(c).pages == 0);
    EXPECT(stats_of(c).dirty_pages == 0);
    cache_free(c);
}

static void cache_finds_exactly_what_was_added_while_its_table_grows(void **state)
{
    run_on_fiber(find_body, NULL, 64 * MIB);
}

static void dirty_body(void *arg)
{
    struct cache *c = cache_make();
    /* Twice as much as memory holds, a quarter of what fits is dirty and some is pinned. */
    struct cache_entry *pinned[50];
    for (uint64_t i = 0; i < 250; i++)
        EXPECT(add(c, i, true));
    for (uint64_t i = 0; i < 50; i++) {
        pinned[i] = add_node(c, 1000 + 4 * i, false);
        cache_pin(pinned[i]);
    }
    for (uint64_t i = 0; i < 2000; i++)
        EXPECT(add(c, 2000 + i, false));
    EXPECT(stats_of(c).evictions > 900);
    for (uint64_t i = 0; i < 250; i++)
        EXPECT(has(c, i));
    for (uint64_t i = 0; i < 50; i++)
        EXPECT(cache_find(c, data_key(1000 + 4 * i)) == pinned[i]);
    EXPECT(stats_of(c).dirty_pages == 250);
    /* Everything that may go, goes: what is left is dirty or pinned. */
    cache_reclaim(c, UINT32_MAX);
    EXPECT(stats_of(c).pages == 450);
    for (uint64_t i = 0; i < 250; i++)
        clean(c, i);
    for (uint64_t i = 0; i < 50; i++)
        cache_unpin(c, pinned[i]);
    EXPECT(stats_of(c).dirty_pages == 0);
    uint32_t some = cache_reclaim(c, 10);
    EXPECT(some >= 10 && some < 20); /* whole entries */
    EXPECT(cache_reclaim(c, UINT32_MAX) == 450 - some);
    EXPECT(stats_of(c).pages == 0);
    cache_free(c);
}

static void cache_evicts_neither_dirty_nor_pinned_entries(void **state)
{
    run_on_fiber(dirty_body, NULL, 4 * MIB);
}

static void removed_body(void *arg)
{
    struct cache *c = cache_make();
    struct cache_entry *a = add_node(c, 1, false), *b = add_node(c, 2, true);
    cache_pin(a);
    cache_pin(a);
    cache_pin(b);
    cache_remove(c, a);
    cache_remove(c, b);
    EXPECT(cache_find(c, data_key(1)) == NULL);
    EXPECT(nodes_gone == 0);
    /* The address is used again while the old node is still held. */
    struct cache_entry *again = add_node(c, 1, false);
    EXPECT(cache_find(c, data_key(1)) == again);
    cache_unpin(c, a);
    EXPECT(nodes_gone == 0);
    cache_unpin(c, a);
    EXPECT(nodes_gone == 1);
    cache_clean(c, b);
    EXPECT(stats_of(c).dirty_pages == 0);
    EXPECT(nodes_gone == 1);
    cache_unpin(c, b);
    EXPECT(nodes_gone == 2);
    EXPECT(cache_find(c, data_key(1)) == again);
    cache_drop_volume(c, 1);
    EXPECT(nodes_gone == 3);
    cache_free(c);
}

static void removed_node_lives_until_its_last_unpin(void **state)
{
    run_on_fiber(removed_body, NULL, 4 * MIB);
}

static void shared_body(void *arg)
{
    struct cache *c = cache_make();
    struct page *page, *other;
    /* Of a run with a dirty block nothing goes; of the others, all. */
    for (uint64_t i = 0; i < 100; i++)
        EXPECT(add(c, i, i % 10 == 0));
    EXPECT(stats_of(c).dirty_pages == 10);
    (void)cache_reclaim(c, 1000);
    for (uint64_t i = 0; i < 100; i += 10)
        EXPECT(has(c, i));
    EXPECT(stats_of(c).dirty_pages == 10);
    for (uint64_t i = 0; i < 100; i++)
        clean(c, i);
    EXPECT(stats_of(c).dirty_pages == 0);
    (void)cache_reclaim(c, 1000);
    EXPECT(stats_of(c).pages == 0);
    /* Another page under the same key: what was written of the first does not make it clean. */
    EXPECT(add(c, 5, true));
    EXPECT(cache_find_data(c, data_key(5), 1, &page) == 1);
    EXPECT(add(c, 5, true));
    cache_clean_data(c, data_key(5), page, 1);
    EXPECT(stats_of(c).dirty_pages == 1);
    EXPECT(cache_reclaim(c, 1000) == 0);
    page_put(page, 1);
    /* A page that somebody else holds too does not become free. */
    EXPECT(cache_find_data(c, data_key(5), 1, &other) == 1);
    EXPECT(other != page);
    cache_clean_data(c, data_key(5), other, 1);
    EXPECT(cache_reclaim(c, 1000) == 0);
    EXPECT(!has(c, 5));
    page_put(other, 1);
    cache_free(c);
}

static void dirty_block_keeps_its_run_and_a_shared_page_is_not_counted_as_freed(void **state)
{
    run_on_fiber(shared_body, NULL, 4 * MIB);
}

#define MODEL_BLOCKS 200u
struct model {
    struct page *page[MODEL_BLOCKS]; /* borrowed: what must be there; NULL: nothing, or what was clean */
    bool dirty[MODEL_BLOCKS];
};

static void model_compare(struct cache *c, struct model *m, uint32_t first, uint32_t count)
{
    struct page *found[MODEL_BLOCKS];
    uint32_t n = cache_find_data(c, data_key(first), count, found), there = 0;
    for (uint32_t i = 0; i < count; i++) {
        there += found[i] != NULL;
        EXPECT(!m->dirty[first + i] || found[i] == m->page[first + i]);
        EXPECT(!found[i] || found[i] == m->page[first + i]);
        if (found[i])
            page_put(found[i], 1);
    }
    EXPECT(n == there);
}

static void model_step(struct cache *c, struct model *m, uint64_t *random)
{
    uint32_t first = (uint32_t)(test_random64(random) % MODEL_BLOCKS);
    uint32_t count = 1 + (uint32_t)(test_random64(random) % MIN(40, MODEL_BLOCKS - first)), dirty = 0;
    struct page *page;
    switch (test_random64(random) % 5) {
    case 0:
    case 1: /* written */
        EXPECT(page_alloc(count, &page) == 0);
        EXPECT(cache_add_data(c, data_key(first), page, count, true));
        for (uint32_t i = 0; i < count; i++) {
            m->page[first + i] = page_at(page, i);
            m->dirty[first + i] = true;
        }
        page_put(page, count);
        break;
    case 2: /* freed */
        cache_remove_data(c, data_key(first), count);
        for (uint32_t i = 0; i < count; i++) {
            m->page[first + i] = NULL;
            m->dirty[first + i] = false;
        }
        break;
    case 3: /* on the drives */
        for (uint32_t i = 0; i < count; i++) {
            if (m->dirty[first + i])
                cache_clean_data(c, data_key(first + i), m->page[first + i], 1);
            m->dirty[first + i] = false;
        }
        break;
    default:
        (void)cache_reclaim(c, 3);
        model_compare(c, m, first, count);
    }
    for (uint32_t i = 0; i < MODEL_BLOCKS; i++)
        dirty += m->dirty[i];
    EXPECT(stats_of(c).dirty_pages == dirty);
}

static void model_body(void *arg)
{
    struct cache *c = cache_make();
    struct model m = {0};
    uint64_t random = 11;
    for (uint32_t i = 0; i < 20000; i++)
        model_step(c, &m, &random);
    model_compare(c, &m, 0, MODEL_BLOCKS);
    cache_remove_data(c, data_key(0), MODEL_BLOCKS);
    EXPECT(stats_of(c).pages == 0);
    EXPECT(stats_of(c).dirty_pages == 0);
    cache_free(c);
}

static void ranges_of_blocks_do_what_single_blocks_would(void **state)
{
    run_on_fiber(model_body, NULL, 8 * MIB);
}

/* A working set that is used often, and a long scan of what is used once, through a cache of 1000 blocks. */
static void scan_body(void *arg)
{
    struct cache *c = cache_make();
    uint64_t random = 5;
    uint32_t hits = 0, asked = 0;
    for (uint32_t i = 0; i < 60000; i++) {
        uint64_t block = i % 3 == 0 ? test_random64(&random) % 500 : 1000 + i;
        bool hit = has(c, block);
        if (!hit)
            EXPECT(add(c, block, false));
        if (block < 500 && i > 20000) {
            asked++;
            hits += hit;
        }
    }
    EXPECT(asked > 10000);
    EXPECT(hits * 100 > asked * 95);
    cache_free(c);
}

static void scan_does_not_push_out_what_is_used_often(void **state)
{
    run_on_fiber(scan_body, NULL, 4 * MIB);
}

static void ghost_body(void *arg)
{
    struct cache *c = cache_make();
    /* Full of blocks that were hit, so that the small queue is short. */
    for (uint64_t i = 0; i < 800; i++) {
        EXPECT(add(c, i, false));
        EXPECT(has(c, i));
    }
    for (uint64_t i = 0; i < 20; i++)
        EXPECT(add(c, 5000 + 100 * i, false));
    for (uint64_t i = 0; i < 1000; i++)
        EXPECT(add(c, 10000 + i, false));
    /* They come back, and most stay now while others flow past them: a fingerprint may be overwritten. */
    uint32_t stayed = 0, fresh = 0;
    for (uint64_t i = 0; i < 20; i++) {
        EXPECT(!has(c, 5000 + 100 * i));
        EXPECT(add(c, 5000 + 100 * i, false));
        EXPECT(add(c, 9000 + i, false));
    }
    for (uint64_t i = 0; i < 300; i++)
        EXPECT(add(c, 20000 + i, false));
    for (uint64_t i = 0; i < 20; i++) {
        stayed += has(c, 5000 + 100 * i);
        fresh += has(c, 9000 + i);
    }
    EXPECT(stayed >= 10);
    EXPECT(fresh == 0);
    cache_free(c);
}

static void block_that_comes_back_soon_enters_the_main_queue(void **state)
{
    run_on_fiber(ghost_body, NULL, 4 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_finds_exactly_what_was_added_while_its_table_grows),
        cmocka_unit_test(cache_evicts_neither_dirty_nor_pinned_entries),
        cmocka_unit_test(removed_node_lives_until_its_last_unpin),
        cmocka_unit_test(dirty_block_keeps_its_run_and_a_shared_page_is_not_counted_as_freed),
        cmocka_unit_test(ranges_of_blocks_do_what_single_blocks_would),
        cmocka_unit_test(scan_does_not_push_out_what_is_used_often),
        cmocka_unit_test(block_that_comes_back_soon_enters_the_main_queue),
    };
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
