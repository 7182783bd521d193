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
    bool added = cache_add_data(c, data_key(block), page, dirty) != NULL;
    page_put(page, 1);
    return added;
}

static bool has(struct cache *c, uint64_t block)
{
    struct cache_entry *e = cache_find(c, data_key(block));
    uint64_t held = 0;
    if (e)
        memcpy(&held, e->page->data, sizeof(held));
    EXPECT(!e || held == block);
    return e != NULL;
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
    EXPECT(cache_find(c, (struct cache_key){2, 2, 1}) == NULL);
    EXPECT(cache_find(c, (struct cache_key){1, 3, 1}) == NULL);
    cache_remove_key(c, data_key(7));
    EXPECT(!has(c, 7));
    /* Again under the same key: the newer one counts, and the older one is not leaked. */
    EXPECT(add(c, 8, false));
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
        EXPECT(add(c, 1000 + i, false));
        pinned[i] = cache_find(c, data_key(1000 + i));
        cache_pin(pinned[i]);
    }
    for (uint64_t i = 0; i < 2000; i++)
        EXPECT(add(c, 2000 + i, false));
    EXPECT(stats_of(c).evictions > 900);
    for (uint64_t i = 0; i < 250; i++)
        EXPECT(has(c, i));
    for (uint64_t i = 0; i < 50; i++)
        EXPECT(has(c, 1000 + i));
    EXPECT(stats_of(c).dirty_pages == 250);
    /* Everything that may go, goes: what is left is dirty or pinned. */
    cache_reclaim(c, UINT32_MAX);
    EXPECT(stats_of(c).pages == 300);
    for (uint64_t i = 0; i < 250; i++)
        cache_clean(c, cache_find(c, data_key(i)));
    for (uint64_t i = 0; i < 50; i++)
        cache_unpin(c, pinned[i]);
    EXPECT(stats_of(c).dirty_pages == 0);
    EXPECT(cache_reclaim(c, 10) == 10);
    EXPECT(cache_reclaim(c, UINT32_MAX) == 290);
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

static void mark_body(void *arg)
{
    struct cache *c = cache_make();
    for (uint64_t i = 0; i < 100; i++)
        EXPECT(add(c, i, false));
    for (uint64_t i = 0; i < 100; i += 2)
        cache_mark_dirty(c, cache_find(c, data_key(i)));
    EXPECT(stats_of(c).dirty_pages == 50);
    EXPECT(cache_reclaim(c, 1000) == 50);
    for (uint64_t i = 0; i < 100; i++)
        EXPECT(has(c, i) == (i % 2 == 0));
    /* A page that somebody else holds too does not become free. */
    struct cache_entry *e = cache_find(c, data_key(0));
    struct page *page = e->page;
    page_get(page, 1);
    cache_clean(c, e);
    EXPECT(cache_reclaim(c, 1000) == 0);
    EXPECT(!has(c, 0));
    page_put(page, 1);
    cache_free(c);
}

static void entry_marked_dirty_stays_and_a_shared_page_is_not_counted_as_freed(void **state)
{
    run_on_fiber(mark_body, NULL, 4 * MIB);
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
        cmocka_unit_test(entry_marked_dirty_stays_and_a_shared_page_is_not_counted_as_freed),
        cmocka_unit_test(scan_does_not_push_out_what_is_used_often),
        cmocka_unit_test(block_that_comes_back_soon_enters_the_main_queue),
    };
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
