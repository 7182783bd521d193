/* SPDX-License-Identifier: Apache-2.0 */
/* Atomic changes of items and data, on real files. */
#include "change_test.h"

#define ITEM_SIZE 104u

/* ---- Helpers ---- */

static struct tree_key inode(uint64_t n)
{
    return (struct tree_key){n, ITEM_INODE, 0};
}

struct number { /* an item's value */
    uint64_t n;
    uint8_t pad[ITEM_SIZE - 8];
};

static uint64_t value_of(const void *value)
{
    struct number n;

    memcpy(&n, value, sizeof(n));
    return n.n;
}

static void put_number(struct change *c, struct tree_key key, uint64_t n)
{
    struct number v = {.n = n};

    change_put(c, key, &v, sizeof(v));
}

/* The items [first, first + n) get the value. */
static may_yield int put_many(struct volume *v, uint64_t first, uint32_t n, uint64_t value, uint32_t flags)
{
    struct change c;

    change_init(&c, v);
    struct tree_key from = inode(first), to = inode(first + n - 1);
    change_want_range(&c, &from, &to);
    for (uint32_t i = 0; i < n; i++)
        change_will_put(&c, ITEM_SIZE);
    int r = change_begin(&c);
    for (uint32_t i = 0; !r && i < n; i++)
        put_number(&c, inode(first + i), value);
    return change_end(&c, r, flags);
}

/* UINT64_MAX: not there. */
static may_yield uint64_t get(struct volume *v, uint64_t n)
{
    struct number value;
    uint32_t len;
    int r = volume_item_get(v, inode(n), &value, sizeof(value), &len);

    if (r == ERR_NOT_FOUND)
        return UINT64_MAX;
    CHECK_EQ(r, 0);
    return value.n;
}

/* Blocks of data and the object's item in one change. */
static may_yield int put_file(struct volume *v, uint64_t object, uint64_t block, uint32_t blocks,
                              uint8_t byte, uint32_t flags, uint32_t *ret_freed)
{
    uint32_t sums[PAGE_VEC_MAX], done = 0, freed = 0;
    struct page_vec *vec = data_make(blocks, byte, sums);
    struct change c;
    int r = 0;

    for (uint32_t at = 0; !r && at < blocks; at += done) {
        change_init(&c, v);
        change_want(&c, inode(object));
        change_will_put(&c, ITEM_SIZE);
        change_will_write(&c, object, block + at, blocks - at, flags & CHANGE_DURABLE);
        r = change_begin(&c);
        if (!r) {
            change_write(&c, object, block + at, vec, at, blocks - at, sums + at, &done, &freed);
            put_number(&c, inode(object), byte);
        }
        r = change_end(&c, r, flags);
        if (ret_freed)
            *ret_freed = freed;
    }
    data_free(vec);
    return r;
}

/* ---- Crash ---- */

static may_yield void items_and_data(void *arg)
{
    struct world w = {0};
    uint32_t freed = 0;

    world_open(&w, arg);
    CHECK_EQ(volume_inode_count(w.v), 0);
    CHECK_EQ(put_file(w.v, 7, 3, 40, 0x11, 0, &freed), 0);
    CHECK_EQ(freed, 0);
    CHECK_EQ(put_file(w.v, 7, 10, 2, 0x22, CHANGE_DURABLE, &freed), 0);
    CHECK_EQ(freed, 2);
    CHECK_EQ(put_many(w.v, 100, 50, 5, 0), 0);
    CHECK_EQ(put_many(w.v, 120, 10, 6, 0), 0);
    /* Far out: files have no size but theirs. */
    CHECK_EQ(put_file(w.v, 9, (UINT64_C(1) << 51) - 4, 4, 0x33, CHANGE_DURABLE, NULL), 0);
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(volume_inode_count(w.v), 52);
        CHECK_EQ(get(w.v, 7), 0x22);
        CHECK_EQ(get(w.v, 119), 5);
        CHECK_EQ(get(w.v, 120), 6);
        CHECK_EQ(get(w.v, 130), 5);
        CHECK_EQ(get(w.v, 150), -1);
        CHECK(data_holds(w.v, 7, 3, 0x11));
        CHECK(data_holds(w.v, 7, 11, 0x22));
        CHECK(data_holds(w.v, 7, 12, 0x11));
        CHECK(data_holds(w.v, 7, 43, 0));
        CHECK(data_holds(w.v, 9, (UINT64_C(1) << 51) - 1, 0x33));
        if (round == 1)
            CHECK(world_verified(&w));
        if (round == 2 || !world_crash(&w))
            break;
    }
    world_close(&w);
}

static void items_and_data_of_a_change_survive_a_crash(void **state)
{
    (void)state;
    drive_test_run(items_and_data, (void *)(uintptr_t) "mirror:2");
}

/* ---- A large change ---- */

#define BIG_ITEMS 17u

static may_yield int put_big(struct volume *v, uint64_t object, uint8_t byte)
{
    static uint8_t value[ITEM_LEN_MAX];
    struct change c;

    change_init(&c, v);
    for (uint32_t i = 0; i < BIG_ITEMS; i++) {
        change_want(&c, (struct tree_key){object, ITEM_XATTR, i * UINT64_C(1000)});
        change_will_put(&c, sizeof(value));
    }
    /* More ranges than there is room for: those of one attribute are one. */
    c.range_count = 0;
    struct tree_key first = {object, ITEM_XATTR, 0}, last = {object, ITEM_XATTR, UINT64_MAX};
    change_want_range(&c, &first, &last);
    int r = change_begin(&c);
    memset(value, byte, sizeof(value));
    for (uint32_t i = 0; !r && i < BIG_ITEMS; i++)
        change_put(&c, (struct tree_key){object, ITEM_XATTR, i * UINT64_C(1000)}, value, sizeof(value));
    return change_end(&c, r, 0);
}

static may_yield bool big_is(struct volume *v, uint64_t object, uint8_t byte)
{
    uint8_t *value = malloc(ITEM_LEN_MAX);
    bool good = true;

    for (uint32_t i = 0; good && i < BIG_ITEMS; i++) {
        uint32_t len;
        good = CHECK_EQ(volume_item_get(v, (struct tree_key){object, ITEM_XATTR, i * UINT64_C(1000)}, value,
                                        ITEM_LEN_MAX, &len),
                        0) &&
               CHECK_EQ(len, ITEM_LEN_MAX) && CHECK_EQ(value[0], byte) &&
               CHECK_EQ(value[ITEM_LEN_MAX - 1], byte);
    }
    free(value);
    return good;
}

static may_yield void big_change(void *arg)
{
    struct world w = {0};

    (void)arg;
    world_open(&w, "none");
    /* The ring has 1008 blocks: many laps. */
    for (uint32_t i = 0; i < 100; i++)
        if (!CHECK_EQ(put_big(w.v, 1 + i % 7, (uint8_t)i), 0))
            break;
    uint64_t records = w.v->log.records;
    CHECK_EQ(put_big(w.v, 50, 0x77), 0);
    CHECK_EQ(w.v->log.records - records, BIG_ITEMS);
    if (world_crash(&w)) {
        for (uint32_t i = 93; i < 100; i++)
            CHECK(big_is(w.v, 1 + i % 7, (uint8_t)i));
        CHECK(big_is(w.v, 50, 0x77));
        CHECK(world_verified(&w));
    }
    world_close(&w);
}

static void sixty_four_kib_of_items_are_one_change(void **state)
{
    (void)state;
    drive_test_run(big_change, NULL);
}

/* ---- Nodes that are not in memory ---- */

#define COLD_ITEMS 6000u

/* Follows a chain of items, each of which names the next, and changes the last one. */
static may_yield int follow(struct volume *v, uint32_t steps, uint64_t value, uint32_t *ret_turns)
{
    struct change c;
    uint32_t turns = 0;
    int r;

    change_init(&c, v);
    do {
        turns++;
        change_clear(&c);
        change_want(&c, inode(1));
        change_will_put(&c, ITEM_SIZE);
        r = change_begin(&c);
        uint64_t at = 1;
        for (uint32_t i = 0; !r && i < steps; i++) {
            const void *item;
            uint32_t len;
            r = change_get(&c, inode(at), &item, &len);
            if (!r && i + 1 < steps)
                at = value_of(item);
        }
        if (!r)
            put_number(&c, inode(at), value);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    *ret_turns = turns;
    return r;
}

static may_yield int find_in(struct volume *v, uint64_t low, uint64_t high, enum tree_seek how,
                             uint64_t *ret_object, uint32_t *ret_turns)
{
    struct change c;
    int r;

    *ret_turns = 0;
    change_init(&c, v);
    do {
        struct tree_cursor cursor;
        (*ret_turns)++;
        change_clear(&c);
        r = change_begin(&c);
        if (!r)
            r = change_seek(&c, inode(low), inode(high), how, &cursor);
        if (!r)
            *ret_object = cursor.key.object;
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

static may_yield void cold(void *arg)
{
    struct world w = {0};
    uint32_t turns;
    uint64_t found = 0;

    (void)arg;
    world_open(&w, "none");
    for (uint64_t i = 1; i < COLD_ITEMS; i += 50) /* each names one 1000 further on, far from its leaf */
        for (uint64_t k = i; k < i + 50; k++)
            if (!CHECK_EQ(put_many(w.v, k, 1, k + 1000, 0), 0))
                break;
    CHECK_EQ(volume_commit(w.v), 0);
    if (world_crash(&w)) {
        CHECK_EQ(follow(w.v, 5, 42, &turns), 0);
        CHECK_EQ(turns, 5); /* the first item is known beforehand, each other one by the one before */
        CHECK_EQ(get(w.v, 4001), 42);
        CHECK_EQ(follow(w.v, 5, 43, &turns), 0);
        CHECK_EQ(turns, 5); /* wanting is per change, in memory or not */
        CHECK_EQ(get(w.v, 4001), 43);
        CHECK_EQ(find_in(w.v, 5500, 1 << 20, SEEK_GE, &found, &turns), 0);
        CHECK_EQ(found, 5500);
        CHECK_EQ(turns, 2);
        CHECK_EQ(find_in(w.v, 5500, 1 << 20, SEEK_GE, &found, &turns), 0);
        CHECK_EQ(turns, 1);
        CHECK_EQ(find_in(w.v, 1 << 20, 1 << 21, SEEK_GE, &found, &turns), ERR_NOT_FOUND);
        CHECK_EQ(find_in(w.v, 1, 3000, SEEK_LE, &found, &turns), 0);
        CHECK_EQ(found, 3000);
    }
    world_close(&w);
}

static void a_change_comes_again_for_what_was_not_wanted(void **state)
{
    (void)state;
    drive_test_run(cold, NULL);
}

/* ---- Many fibers ---- */

#define FIBERS 16u
#define ROUNDS 60u

struct adder {
    struct world *w;
    uint64_t own;
    int result;
    struct fiber *fiber;
};

/* Moves one from its own item to the common one. */
static may_yield void add_main(void *arg)
{
    struct adder *a = arg;

    for (uint32_t i = 0; i < ROUNDS && !a->result; i++) {
        struct change c;
        int r;
        change_init(&c, a->w->v);
        do {
            const void *common, *own;
            uint32_t len;
            change_clear(&c);
            change_want(&c, inode(1));
            change_want(&c, inode(a->own));
            change_will_put(&c, ITEM_SIZE);
            change_will_put(&c, ITEM_SIZE);
            r = change_begin(&c);
            if (!r)
                r = change_get(&c, inode(1), &common, &len);
            if (!r)
                r = change_get(&c, inode(a->own), &own, &len);
            if (!r) {
                uint64_t x = value_of(common), y = value_of(own);
                put_number(&c, inode(1), x + 1);
                put_number(&c, inode(a->own), y - 1);
            }
            r = change_end(&c, r, i % 8 ? 0 : CHANGE_DURABLE);
        } while (r == ERR_CHANGE_AGAIN);
        a->result = r;
    }
}

static may_yield void many(void *arg)
{
    struct world w = {0};
    struct adder a[FIBERS];

    (void)arg;
    world_open(&w, "mirror:2");
    CHECK_EQ(put_many(w.v, 1, 1, 0, 0), 0);
    for (uint32_t i = 0; i < FIBERS; i++)
        CHECK_EQ(put_many(w.v, 1000 + i * 1000, 1, ROUNDS, 0), 0);
    for (uint32_t i = 0; i < FIBERS; i++) {
        a[i] = (struct adder){.w = &w, .own = 1000 + i * 1000};
        CHECK_EQ(fiber_spawn_joinable("adder", add_main, &a[i], &a[i].fiber), 0);
    }
    for (uint32_t i = 0; i < FIBERS; i++) {
        fiber_join(a[i].fiber);
        CHECK_EQ(a[i].result, 0);
    }
    CHECK_EQ(get(w.v, 1), FIBERS * ROUNDS);
    if (world_crash(&w)) {
        CHECK_EQ(get(w.v, 1), FIBERS * ROUNDS);
        for (uint32_t i = 0; i < FIBERS; i++)
            CHECK_EQ(get(w.v, 1000 + i * 1000), 0);
    }
    world_close(&w);
}

static void changes_of_the_same_items_lose_no_update(void **state)
{
    (void)state;
    drive_test_run(many, NULL);
}

/* ---- A full pool ---- */

static may_yield int delete_file(struct volume *v, uint64_t object, uint64_t *ret_freed)
{
    struct change c;
    uint64_t done = 0, freed = 0, blocks = UINT64_C(1) << 51;
    int r;

    *ret_freed = 0;
    for (uint64_t at = 0; at < blocks; at += done, *ret_freed += freed) {
        change_init(&c, v);
        c.deletes = true;
        change_want(&c, inode(object));
        change_will_unmap(&c, object, at, blocks - at);
        change_will_delete(&c);
        r = change_begin(&c);
        if (!r) {
            change_unmap(&c, object, at, blocks - at, false, &done, &freed);
            if (at + done == blocks)
                change_delete(&c, inode(object));
        }
        r = change_end(&c, r, 0);
        if (r)
            return r;
    }
    return 0;
}

static may_yield void full(void *arg)
{
    struct world w = {0};
    uint64_t object = 10, freed, free_blocks, total;
    int r = 0;

    (void)arg;
    world_open(&w, "mirror:3");
    volume_space(w.v, &free_blocks, &total);
    CHECK_EQ(free_blocks, total);
    CHECK(free_blocks > 10000 && free_blocks < 4 * 64 * MIB / BLOCK_SIZE / 3);
    for (; !r && object < 1000; object++)
        r = put_file(w.v, object, 0, 256, (uint8_t)object, 0, NULL);
    CHECK_EQ(r, ERR_VOLUME_FULL);
    uint64_t written = (object - 11) * 256;
    CHECK(written > free_blocks * 7 / 8);
    CHECK(written <= free_blocks);
    volume_space(w.v, &free_blocks, &total);
    CHECK(free_blocks < 1500);
    for (uint64_t i = 10; i < 18; i++) {
        CHECK_EQ(delete_file(w.v, i, &freed), 0);
        CHECK_EQ(freed, 256);
        CHECK_EQ(get(w.v, i), -1);
    }
    r = ERR_VOLUME_FULL; /* slabs go from the data to the tree and back: it takes some commits */
    for (int i = 0; r == ERR_VOLUME_FULL && i < 50; i++) {
        r = put_file(w.v, 2000, 0, 256, 0x99, 0, NULL);
        CHECK_EQ(fiber_sleep(100 * NSEC_PER_MSEC), 0);
    }
    CHECK_EQ(r, 0);
    CHECK(world_verified(&w));
    CHECK(data_holds(w.v, 18, 255, 18));
    world_close(&w);
}

static void deleting_works_on_a_full_pool(void **state)
{
    (void)state;
    drive_test_run(full, NULL);
}

/* ---- H3 ---- */

struct looker {
    struct volume *v;
    uint64_t object;
    bool by_change, done;
    int result;
    struct fiber *fiber;
};

static may_yield void look_main(void *arg)
{
    struct looker *l = arg;

    if (l->by_change) { /* an exclusive creation that finds the item there */
        struct change c;
        const void *value;
        uint32_t len;
        change_init(&c, l->v);
        change_want(&c, inode(l->object));
        l->result = change_begin(&c);
        if (!l->result)
            l->result = change_get(&c, inode(l->object), &value, &len);
        l->result = change_end(&c, l->result ? l->result : ERR_EXISTS, 0);
    } else {
        l->result = volume_seen(l->v, &l->object, 1);
    }
    l->done = true;
}

static may_yield void write_main(void *arg)
{
    struct looker *l = arg;

    l->result = put_many(l->v, l->object, 1, 1, 0);
    l->done = true;
}

static may_yield void seen(void *arg)
{
    struct world w = {0};

    (void)arg;
    world_open(&w, "none");
    CHECK_EQ(put_many(w.v, 1, 1, 0, 0), 0);
    struct looker writer = {.v = w.v, .object = 1}, reader = {.v = w.v, .object = 1},
                  other = {.v = w.v, .object = 2}, changer = {.v = w.v, .object = 1, .by_change = true};
    faults.hold_op = FILE_WRITE;
    faults.hold = true;
    CHECK_EQ(fiber_spawn_joinable("w", write_main, &writer, &writer.fiber), 0);
    fiber_yield();
    CHECK_EQ(get(w.v, 1), 1); /* in memory it happened */
    CHECK_EQ(fiber_spawn_joinable("r", look_main, &reader, &reader.fiber), 0);
    CHECK_EQ(fiber_spawn_joinable("o", look_main, &other, &other.fiber), 0);
    CHECK_EQ(fiber_spawn_joinable("c", look_main, &changer, &changer.fiber), 0);
    CHECK_EQ(fiber_sleep(20 * NSEC_PER_MSEC), 0);
    CHECK(!writer.done && !reader.done && !changer.done);
    CHECK(other.done);
    faults.hold = false;
    drive_test_release();
    fiber_join(writer.fiber);
    fiber_join(reader.fiber);
    fiber_join(other.fiber);
    fiber_join(changer.fiber);
    CHECK_EQ(writer.result, 0);
    CHECK_EQ(reader.result, 0);
    CHECK_EQ(other.result, 0);
    CHECK_EQ(changer.result, ERR_EXISTS);
    world_close(&w);
}

static void who_saw_a_change_waits_until_it_is_acknowledged(void **state)
{
    (void)state;
    drive_test_run(seen, NULL);
}

/* ---- Against a model ---- */

#define MODEL_OBJECTS 400u

/* Puts, deletions and data of random objects, with crashes; what was acknowledged is there. */
static may_yield void random_changes(void *arg)
{
    static uint64_t items[MODEL_OBJECTS];
    static uint8_t bytes[MODEL_OBJECTS];
    struct world w = {0};
    uint64_t rng = 7, count = 0;
    bool good = true;

    (void)arg;
    memset(items, 0, sizeof(items));
    memset(bytes, 0, sizeof(bytes));
    world_open(&w, "mirror:2");
    uint64_t verifier = volume_verifier(w.v);
    for (uint32_t step = 1; good && step < 1500; step++) {
        rng = hash_mix64(rng + step);
        uint64_t o = 1 + (rng >> 8) % (MODEL_OBJECTS - 40), freed;
        uint32_t n = 1 + (uint32_t)(rng >> 30) % 40, flags = rng >> 50 & 1 ? CHANGE_DURABLE : 0;
        switch (rng % 8) {
        case 0:
        case 1:
        case 2:
            good = CHECK_EQ(put_many(w.v, o, n, step, flags), 0);
            for (uint32_t i = 0; i < n; i++) {
                count += items[o + i] == 0;
                items[o + i] = step;
            }
            break;
        case 3:
        case 4:
            good = CHECK_EQ(put_file(w.v, o, 0, n, (uint8_t)(step | 1), flags, NULL), 0);
            count += items[o] == 0;
            items[o] = bytes[o] = (uint8_t)(step | 1);
            break;
        case 5:
            if (items[o] == 0)
                break;
            good = CHECK_EQ(delete_file(w.v, o, &freed), 0);
            count--;
            items[o] = bytes[o] = 0;
            break;
        case 6:
            good = CHECK_EQ(get(w.v, o), items[o] ? items[o] : UINT64_MAX) &&
                   CHECK(data_holds(w.v, o, 0, bytes[o]));
            break;
        default:
            if (step % 5 == 0)
                good = CHECK_EQ(volume_commit(w.v), 0);
            volume_check(w.v);
            if (step % 7 == 0) {
                good = world_crash(&w) && CHECK(volume_verifier(w.v) != verifier);
                verifier = w.v ? volume_verifier(w.v) : 0;
            }
            good = good && CHECK_EQ(volume_inode_count(w.v), count);
        }
    }
    for (uint64_t o = 1; good && o < MODEL_OBJECTS; o++)
        good =
            CHECK_EQ(get(w.v, o), items[o] ? items[o] : UINT64_MAX) && CHECK(data_holds(w.v, o, 0, bytes[o]));
    CHECK(world_verified(&w));
    world_close(&w);
}

static void random_changes_agree_with_a_model_over_crashes(void **state)
{
    (void)state;
    drive_test_run(random_changes, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, drive_test_setup, drive_test_teardown)
    const struct CMUnitTest tests[] = {
        TEST(items_and_data_of_a_change_survive_a_crash),
        TEST(sixty_four_kib_of_items_are_one_change),
        TEST(a_change_comes_again_for_what_was_not_wanted),
        TEST(changes_of_the_same_items_lose_no_update),
        TEST(who_saw_a_change_waits_until_it_is_acknowledged),
        TEST(random_changes_agree_with_a_model_over_crashes),
        TEST(deleting_works_on_a_full_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
