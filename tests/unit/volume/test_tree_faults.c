/* SPDX-License-Identifier: Apache-2.0 */
/* The tree when the store, the memory or the bytes fail, and the ways of a node through a commit. */
#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/reactor.h"
#include "tests/unit/volume/tree_store.h"
#include "volume/tree_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct tree_key key_of(uint64_t i)
{
    return (struct tree_key){1, ITEM_EXTENT, i << 12};
}

static int may_yield put(struct tree_fixture *f, uint64_t i, uint32_t len)
{
    static uint8_t value[ITEM_LEN_MAX];
    struct tree_key k = key_of(i);
    memcpy(value, &i, sizeof(i));
    return tree_put(&f->tree, &k, value, len);
}

static bool may_yield has(struct tree_fixture *f, uint64_t i)
{
    uint8_t value[ITEM_LEN_MAX];
    uint32_t len;
    struct tree_key k = key_of(i);
    return tree_get(&f->tree, &k, value, sizeof(value), &len) == 0 && memcmp(value, &i, sizeof(i)) == 0;
}

/* n items of 1000 bytes: about 15 in a leaf. */
static void may_yield fill(struct tree_fixture *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        EXPECT(put(f, (uint64_t)i * 7 % n, 1000) == 0);
}

struct counts {
    uint32_t nodes, items, bad;
    int err;
    struct tree_key low, high;
};

static int count_node(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low)
{
    ((struct counts *)ctx)->nodes++;
    return 0;
}
static int count_item(void *ctx, const struct tree_key *key, const void *value, uint32_t len)
{
    struct counts *c = ctx;
    EXPECT(c->bad == 0 || key_less(key, &c->low) || !key_less(key, &c->high));
    c->items++;
    return 0;
}
static int count_bad(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low,
                     const struct tree_key *high, int err)
{
    struct counts *c = ctx;
    c->bad++;
    c->err = err;
    c->low = *low;
    c->high = *high;
    return 0;
}
static struct counts may_yield count(struct tree_fixture *f)
{
    struct counts c = {0};
    struct tree_walk w = {count_node, count_item, count_bad, &c};
    EXPECT(tree_walk(&f->tree, &w) == 0);
    return c;
}

/* The pointer of the leaf in which item i is. */
static struct disk_node_pointer may_yield leaf_of(struct tree_fixture *f, uint64_t i)
{
    EXPECT(has(f, i));
    struct tree_key k = key_of(i);
    struct disk_node_pointer p = f->tree.root;
    while (p.level > 0) {
        struct tree_node *n = tree_resident(&f->tree, &p);
        p = *node_pointer(n->data, node_child_slot(n->data, &k));
    }
    return p;
}

static uint8_t *bytes_of(struct tree_fixture *f, const struct disk_node_pointer *p)
{
    return f->store.places[le64_get(p->block) / NODE_BLOCKS].bytes;
}

/* ---- Store ---- */

static void fiber_role_assumed reserve_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 500);
    fixture_commit(&f);
    struct disk_node_pointer root = f.tree.root;
    uint64_t changes = f.tree.changes;
    f.store.fail_reserve = 1;
    EXPECT(put(&f, 1000, 1000) == ERR_VOLUME_FULL);
    f.store.fail_reserve = 1;
    struct tree_key k = key_of(3);
    EXPECT(tree_delete(&f.tree, &k) == ERR_VOLUME_FULL);
    EXPECT(f.tree.changes == changes);
    EXPECT(f.tree.dirty_nodes == 0);
    EXPECT(memcmp(&root, &f.tree.root, sizeof(root)) == 0);
    EXPECT(count(&f).items == 500);
    EXPECT(tree_delete(&f.tree, &k) == 0);
    EXPECT(put(&f, 1000, 1000) == 0);
    EXPECT(count(&f).items == 500);
    tree_check_memory(&f.tree);
    fixture_done(&f);
}

static void failed_reservation_leaves_the_tree_as_it_was(void **state)
{
    run_on_fiber(reserve_body, NULL, 16 * MIB);
}

static void fiber_role_assumed read_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 500);
    fixture_commit(&f);
    uint8_t value[ITEM_LEN_MAX];
    uint32_t len;
    struct tree_key k = key_of(200), last = key_of(300), covered;
    /* Each read on the way fails once. */
    for (uint32_t skip = 0; skip < 3; skip++) {
        fixture_reopen(&f);
        if (skip > 0) /* the root is there */
            EXPECT(tree_get(&f.tree, &(struct tree_key){0, 0, 0}, value, sizeof(value), &len) ==
                   ERR_NOT_FOUND);
        f.store.fail_reads = 1;
        struct tree_cursor c;
        if (skip == 0)
            EXPECT(tree_get(&f.tree, &k, value, sizeof(value), &len) == ERR_NO_GOOD_COPY);
        else if (skip == 1)
            EXPECT(tree_seek(&c, &f.tree, &k, SEEK_GE) == ERR_NO_GOOD_COPY);
        else
            EXPECT(tree_prepare(&f.tree, &k, &last, 3, ITEM_LEN_MAX, &covered) == ERR_NO_GOOD_COPY);
        EXPECT(f.store.fail_reads == 0);
        EXPECT(f.tree.dirty_nodes == 0);
        EXPECT(has(&f, 200));
    }
    EXPECT(count(&f).items == 500);
    fixture_done(&f);
}

static void failed_read_is_told_and_the_next_one_works(void **state)
{
    run_on_fiber(read_body, NULL, 16 * MIB);
}

/* ---- Memory: each allocation of pages fails once ---- */

struct nth {
    uint32_t left;
    bool hit;
};

static bool fail_nth(void *ctx)
{
    struct nth *n = ctx;
    if (n->left == 0 || --n->left > 0)
        return false;
    n->hit = true;
    return true;
}

static void fiber_role_assumed memory_body(void *arg)
{
    struct memory *m = reactor_memory(reactor_current());
    struct nth nth = {.hit = true};
    uint32_t rounds = 0;
    for (uint32_t i = 1; nth.hit; i++, rounds++) {
        struct tree_fixture f;
        fixture_init(&f, i);
        nth = (struct nth){.left = i};
        memory_set_failure(m, fail_nth, &nth);
        for (uint32_t k = 0; k < 60; k++)
            EXPECT(put(&f, k, 1000) == 0); /* waits, and then there is memory */
        fixture_commit(&f);
        fixture_reopen(&f);
        for (uint32_t k = 0; k < 60; k++)
            EXPECT(has(&f, k));
        tree_check_memory(&f.tree);
        memory_set_failure(m, NULL, NULL);
        fixture_done(&f);
    }
    EXPECT(rounds > 10);
}

static void each_failed_page_allocation_only_delays(void **state)
{
    run_on_fiber(memory_body, NULL, 16 * MIB);
}

static bool fail_all(void *ctx)
{
    return *(bool *)ctx;
}

static void fiber_role_assumed no_memory_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 300);
    fixture_commit(&f);
    fixture_reopen(&f);
    bool fail = true;
    memory_set_failure(reactor_memory(reactor_current()), fail_all, &fail);
    uint8_t value[ITEM_LEN_MAX];
    uint32_t len;
    struct tree_key k = key_of(5);
    EXPECT(tree_get(&f.tree, &k, value, sizeof(value), &len) == ERR_NO_MEMORY);
    EXPECT(put(&f, 5, 10) == ERR_NO_MEMORY);
    fail = false;
    EXPECT(has(&f, 5));
    fail = true;
    EXPECT(put(&f, 5, 10) == ERR_NO_MEMORY);
    EXPECT(f.tree.dirty_nodes == 0);
    fail = false;
    EXPECT(put(&f, 5, 10) == 0);
    memory_set_failure(reactor_memory(reactor_current()), NULL, NULL);
    EXPECT(count(&f).items == 300);
    fixture_done(&f);
}

static void lasting_lack_of_memory_is_told(void **state)
{
    run_on_fiber(no_memory_body, NULL, 16 * MIB);
}

/* ---- Reads ---- */

static uint32_t readers;

static void fiber_role_assumed reader(void *arg)
{
    EXPECT(has(arg, 100));
    readers--;
}

static void fiber_role_assumed share_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 4);
    fill(&f, 300);
    fixture_commit(&f);
    fixture_reopen(&f);
    uint32_t levels = f.tree.root.level + 1u;
    f.store.slow = true;
    f.store.reads = 0;
    readers = 20;
    for (uint32_t i = 0; i < 20; i++)
        EXPECT(fiber_spawn("reader", reader, &f) == 0);
    while (readers > 0)
        fiber_yield();
    EXPECT(f.store.reads == levels);
    fixture_done(&f);
}

static void fibers_that_miss_the_same_node_share_one_read(void **state)
{
    run_on_fiber(share_body, NULL, 16 * MIB);
}

static void fiber_role_assumed cancelled_reader(void *arg)
{
    uint8_t value[ITEM_LEN_MAX];
    uint32_t len;
    struct tree_fixture *f = arg;
    struct tree_key k = key_of(100);
    EXPECT(tree_get(&f->tree, &k, value, sizeof(value), &len) == ERR_CANCELLED);
    readers--;
}

static void fiber_role_assumed cancel_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 4);
    fill(&f, 300);
    fixture_commit(&f);
    fixture_reopen(&f);
    f.store.slow = true;
    readers = 3;
    EXPECT(fiber_spawn("reader", reader, &f) == 0);
    struct fiber *waiter;
    EXPECT(fiber_spawn_joinable("waiter", cancelled_reader, &f, &waiter) == 0);
    EXPECT(fiber_spawn("reader", reader, &f) == 0);
    while (list_empty(&f.tree.reads))
        fiber_yield();
    fiber_cancel(waiter);
    while (readers > 0)
        fiber_yield();
    fiber_join(waiter);
    fixture_done(&f);
}

static void cancelled_waiter_leaves_the_read_to_the_others(void **state)
{
    run_on_fiber(cancel_body, NULL, 16 * MIB);
}

/* ---- Bytes ---- */

static void fiber_role_assumed bad_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 3000); /* three levels */
    fixture_commit(&f);
    EXPECT(f.tree.root.level == 2);
    struct counts all = count(&f);
    EXPECT(all.items == 3000 && all.bad == 0);
    struct disk_node_pointer p = leaf_of(&f, 1500);
    uint32_t lost = node_count(bytes_of(&f, &p));
    bytes_of(&f, &p)[NODE_SIZE - 5] ^= 0x10;
    fixture_reopen(&f);
    struct counts c = count(&f);
    EXPECT(c.bad == 1 && c.err == ERR_NO_GOOD_COPY);
    EXPECT(c.items == 3000 - lost);
    EXPECT(c.nodes == all.nodes);
    struct tree_key k = key_of(1500);
    EXPECT(!key_less(&k, &c.low) && key_less(&k, &c.high));
    EXPECT(!has(&f, 1500));
    EXPECT(has(&f, 10));
    /* An inner node takes its whole subtree away. */
    fixture_reopen(&f);
    EXPECT(has(&f, 2999));
    struct tree_node *root = tree_resident(&f.tree, &f.tree.root);
    struct disk_node_pointer last = *node_pointer(root->data, node_count(root->data) - 1);
    bytes_of(&f, &last)[3] ^= 1;
    fixture_reopen(&f);
    c = count(&f);
    EXPECT(c.bad == 2 && c.items < 3000 - lost && c.items > 100);
    EXPECT(tree_key_compare(&c.high, &TREE_KEY_MAX) == 0);
    fixture_done(&f);
}

static void walk_reports_unreadable_nodes_and_goes_on_behind_them(void **state)
{
    run_on_fiber(bad_body, NULL, 64 * MIB);
}

static void fiber_role_assumed structure_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 10); /* the root is a leaf */
    fixture_commit(&f);
    /* A right checksum over wrong bytes. */
    uint8_t *bytes = bytes_of(&f, &f.tree.root);
    struct disk_node_header *h = (struct disk_node_header *)bytes;
    h->count = le16_make(9);
    struct le32 crc = le32_make(crc32c(0, bytes, NODE_SIZE));
    memcpy(f.tree.root.checksum, &crc, sizeof(crc));
    fixture_reopen(&f);
    uint8_t value[ITEM_LEN_MAX];
    uint32_t len;
    struct tree_key k = key_of(1);
    EXPECT(tree_get(&f.tree, &k, value, sizeof(value), &len) == ERR_VOLUME_CORRUPT);
    EXPECT(count(&f).bad == 1);
    fixture_done(&f);
}

static void node_with_wrong_structure_is_refused_though_its_checksum_is_right(void **state)
{
    run_on_fiber(structure_body, NULL, 16 * MIB);
}

/* ---- Commit ---- */

static void fiber_role_assumed sealed_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 100);
    struct list writes;
    tree_close_txg(&f.tree, 11, &writes);
    struct disk_node_pointer root = f.tree.root;
    /* While it is being written, everything in it is read, changed and deleted; some of that is copied again.
     */
    for (uint32_t i = 0; i < 100; i++) {
        struct tree_key k = key_of(i);
        EXPECT(has(&f, i));
        EXPECT(put(&f, i, 500) == 0);
        if (i % 2)
            EXPECT(tree_delete(&f.tree, &k) == 0);
    }
    tree_check_memory(&f.tree);
    struct list more;
    tree_close_txg(&f.tree, 12, &more);
    for (uint32_t i = 0; i < 100; i++) {
        struct tree_key k = key_of(i);
        EXPECT(tree_delete(&f.tree, &k) == (i % 2 ? ERR_NOT_FOUND : 0));
    }
    EXPECT(le32_get(f.tree.root.blocks) == 0);
    /* The first txg's tree, whole, on the "drives". */
    uint32_t n = 0;
    LIST_FOREACH_SAFE (&writes, it) {
        struct tree_write *w = CONTAINER_OF(it, struct tree_write, link);
        EXPECT(crc32c(0, w->page->data, NODE_SIZE) == w->crc);
        struct store_place *p = &f.store.places[w->address.block / NODE_BLOCKS];
        memcpy(p->bytes, w->page->data, NODE_SIZE);
        p->written = true;
        tree_write_done(&f.tree, w);
        n++;
    }
    EXPECT(n > 5);
    fixture_write(&f, &more);
    fixture_commit(&f);
    EXPECT(f.store.used == 0);
    struct tree old;
    tree_init(&old, &f.store.ops, f.cache, f.tag, f.volume, 3, &root, 20);
    uint8_t value[ITEM_LEN_MAX];
    uint32_t len;
    for (uint64_t i = 0; i < 100; i++) {
        struct tree_key k = key_of(i);
        EXPECT(tree_get(&old, &k, value, sizeof(value), &len) == 0 && len == 1000);
    }
    tree_done(&old);
    fixture_done(&f);
}

static void sealed_nodes_are_written_as_they_were_though_copied_and_freed_before(void **state)
{
    run_on_fiber(sealed_body, NULL, 16 * MIB);
}

static void fiber_role_assumed once_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 1000);
    fixture_commit(&f);
    uint32_t allocs = f.store.allocs;
    for (uint32_t i = 0; i < 50; i++)
        EXPECT(put(&f, 500, 1000) == 0);
    EXPECT(f.store.allocs - allocs == f.tree.root.level + 1u);
    /* Nothing changed: nothing to write. */
    fixture_commit(&f);
    struct list writes;
    tree_close_txg(&f.tree, f.tree.txg + 5, &writes);
    EXPECT(list_empty(&writes));
    EXPECT(has(&f, 500));
    fixture_done(&f);
}

static void path_is_copied_once_in_a_txg(void **state)
{
    run_on_fiber(once_body, NULL, 16 * MIB);
}

static void fiber_role_assumed wide_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 2000);
    struct tree_key first = key_of(0), last = key_of(1999), covered;
    EXPECT(tree_prepare(&f.tree, &first, &last, 0, ITEM_LEN_MAX, NULL) == ERR_INVALID);
    uint32_t pieces = 0;
    for (bool end = false; !end; pieces++) {
        EXPECT(tree_prepare(&f.tree, &first, &last, 0, ITEM_LEN_MAX, &covered) == 0);
        EXPECT(!key_less(&covered, &first) && !key_less(&last, &covered));
        struct tree_cursor c;
        while (tree_seek_now(&c, &f.tree, &first, SEEK_GE) == 0 && !key_less(&covered, &c.key))
            EXPECT(tree_delete_now(&f.tree, &c.key) == 0);
        end = tree_key_compare(&covered, &last) == 0;
        EXPECT(end || key_next(&covered, &first));
    }
    EXPECT(pieces > 1);
    EXPECT(le32_get(f.tree.root.blocks) == 0);
    EXPECT(f.store.used == 0);
    EXPECT(f.tree.dirty_nodes == 0);
    EXPECT(put(&f, 1, 1) == 0);
    EXPECT(has(&f, 1));
    fixture_done(&f);
}

static void wide_range_is_deleted_in_pieces_and_leaves_nothing(void **state)
{
    run_on_fiber(wide_body, NULL, 64 * MIB);
}

/* Between preparation and change, page allocations take all memory that can be had. */
static void fiber_role_assumed squeeze_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    fill(&f, 1000);
    fixture_commit(&f);
    for (uint32_t i = 0; i < 50; i++) {
        struct tree_key first = key_of(i * 19), last = key_of(i * 19 + 30);
        EXPECT(tree_prepare(&f.tree, &first, &last, 2, ITEM_LEN_MAX, NULL) == 0);
        static struct page *pages[4096];
        uint32_t n = 0;
        while (n < ARRAY_SIZE(pages) && page_alloc(1, &pages[n]) == 0)
            n++;
        EXPECT(n < ARRAY_SIZE(pages));
        tree_put_now(&f.tree, &first, "abc", 3);
        EXPECT(tree_delete_now(&f.tree, &last) == 0);
        tree_put_now(&f.tree, &last, "def", 3);
        while (n > 0)
            page_put(pages[--n], 1);
        fixture_commit(&f);
    }
    EXPECT(count(&f).items == 1000);
    fixture_done(&f);
}

static void what_was_prepared_survives_allocations_that_reclaim_everything(void **state)
{
    run_on_fiber(squeeze_body, NULL, 8 * MIB);
}

/* A leaf nearly emptied by deletions must not take in a sibling and with it the room of the insertions that
 * the same preparation is for. */
static void fiber_role_assumed room_body(void *arg)
{
    struct tree_fixture f;
    fixture_init(&f, 1);
    static const uint8_t value[ITEM_LEN_MAX];
    /* Two leaves: 15 items of 1000 bytes fill one, of the second all but six are deleted again. */
    for (uint64_t i = 0; i < 31; i++)
        EXPECT(put(&f, i, 1000) == 0);
    for (uint64_t i = 6; i < 15; i++) {
        struct tree_key k = key_of(i);
        EXPECT(tree_delete(&f.tree, &k) == 0);
    }
    EXPECT(f.tree.dirty_nodes == 4);
    for (uint64_t i = 22; i < 31; i++) {
        struct tree_key k = key_of(i);
        EXPECT(tree_delete(&f.tree, &k) == 0);
    }
    /* Room for 8 items of 1000 bytes is in every leaf: nothing is reserved for splits. */
    struct tree_key first = key_of(0), last = key_of(6);
    f.store.reserved = 0;
    EXPECT(tree_prepare(&f.tree, &first, &last, 8, 1000, NULL) == 0);
    for (uint64_t i = 0; i < 5; i++) {
        struct tree_key k = key_of(i);
        EXPECT(tree_delete_now(&f.tree, &k) == 0);
    }
    for (uint64_t i = 0; i < 8; i++) {
        struct tree_key k = {1, ITEM_EXTENT, i};
        tree_put_now(&f.tree, &k, value, 1000);
    }
    tree_check_memory(&f.tree);
    fixture_done(&f);
}

static void merge_leaves_the_room_that_was_promised_to_insertions(void **state)
{
    run_on_fiber(room_body, NULL, 16 * MIB);
}

/* Another tree over the same nodes (an older root) reads one that this tree meanwhile copies and frees, so
 * that its address gets a new node. The old bytes must not come back with the end of that read. */
static struct tree older;

static void fiber_role_assumed stale_reader(void *arg)
{
    uint8_t value[ITEM_LEN_MAX];
    uint32_t len;
    struct tree_key k = key_of(5);
    int err = tree_get(&older, &k, value, sizeof(value), &len);
    EXPECT(err == 0 || err == ERR_NO_GOOD_COPY);
    readers--;
}

static void may_yield stale_round(struct tree_fixture *f, uint32_t n)
{
    for (uint32_t i = 0; i < 40; i += 3)
        EXPECT(put(f, i, 900 + n) == 0);
    fixture_commit(f);
    cache_reclaim(f->cache, 1000);
    fiber_yield();
    for (uint32_t i = 0; i < 40; i++)
        EXPECT(has(f, i));
}

static void fiber_role_assumed stale_body(void *arg)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct tree_fixture f;
        fixture_init(&f, seed);
        for (uint32_t i = 0; i < 40; i++)
            EXPECT(put(&f, i, 1000) == 0);
        fixture_commit(&f);
        fixture_reopen(&f);
        EXPECT(has(&f, 39)); /* the root, so that only the leaf is read */
        tree_init(&older, &f.store.ops, f.cache, f.tag, f.volume, 3, &f.tree.root, 1000);
        f.store.slow = true;
        readers = 1;
        EXPECT(fiber_spawn("stale", stale_reader, &f) == 0);
        fiber_yield();
        f.store.slow = false;
        uint32_t n = 0;
        for (; readers > 0 || n == 0; n++)
            stale_round(&f, n % 90);
        uint8_t value[ITEM_LEN_MAX];
        uint32_t len = 0;
        for (uint32_t i = 0; i < 40; i++) {
            struct tree_key k = key_of(i);
            EXPECT(tree_get(&f.tree, &k, value, sizeof(value), &len) == 0);
            EXPECT(len == (i % 3 ? 1000 : 900 + (n - 1) % 90));
        }
        tree_check_memory(&f.tree);
        tree_done(&older);
        fixture_done(&f);
    }
}

static void slow_read_of_a_freed_node_does_not_bring_it_back(void **state)
{
    run_on_fiber(stale_body, NULL, 16 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_reservation_leaves_the_tree_as_it_was),
        cmocka_unit_test(failed_read_is_told_and_the_next_one_works),
        cmocka_unit_test(each_failed_page_allocation_only_delays),
        cmocka_unit_test(lasting_lack_of_memory_is_told),
        cmocka_unit_test(fibers_that_miss_the_same_node_share_one_read),
        cmocka_unit_test(cancelled_waiter_leaves_the_read_to_the_others),
        cmocka_unit_test(walk_reports_unreadable_nodes_and_goes_on_behind_them),
        cmocka_unit_test(node_with_wrong_structure_is_refused_though_its_checksum_is_right),
        cmocka_unit_test(sealed_nodes_are_written_as_they_were_though_copied_and_freed_before),
        cmocka_unit_test(path_is_copied_once_in_a_txg),
        cmocka_unit_test(wide_range_is_deleted_in_pieces_and_leaves_nothing),
        cmocka_unit_test(merge_leaves_the_room_that_was_promised_to_insertions),
        cmocka_unit_test(slow_read_of_a_freed_node_does_not_bring_it_back),
        cmocka_unit_test(what_was_prepared_survives_allocations_that_reclaim_everything),
    };
    return cmocka_run_group_tests_name("tree_faults", tests, NULL, NULL);
}
