/* SPDX-License-Identifier: Apache-2.0 */
/* The tree against a model: an array that says for each key of a small universe what it holds. */
#include "runtime/error.h"
#include "tests/unit/volume/tree_store.h"
#include "volume/tree_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define UNIVERSE_MAX 20000u

struct model {
    struct tree_fixture f;
    uint32_t universe;
    uint32_t value_max;
    uint32_t version[UNIVERSE_MAX];
    uint16_t len[UNIVERSE_MAX]; /* 0: absent */
    uint32_t next_version;
    uint64_t random;
    uint32_t ops;
    uint32_t fibers; /* running */
};

static struct tree_key key_of(uint32_t i)
{
    /* Several objects and types, offsets far apart, so that each part of the key decides somewhere. */
    return (struct tree_key){1 + i / 1000, (uint8_t)(30 + (i / 100) % 10), (uint64_t)(i % 100) << 40};
}

static uint32_t index_of(const struct tree_key *k)
{
    return (uint32_t)((k->object - 1) * 1000 + (k->type - 30u) * 100 + (k->offset >> 40));
}

static void value_fill(uint8_t *out, uint32_t i, uint32_t version, uint32_t len)
{
    uint64_t seed = (uint64_t)i << 32 | version;
    for (uint32_t at = 0; at < len; at += 8) {
        uint64_t x = test_random64(&seed);
        memcpy(out + at, &x, MIN(8u, len - at));
    }
}

static bool value_is(const struct model *m, uint32_t i, const void *value, uint32_t len)
{
    static _Thread_local uint8_t expected[ITEM_LEN_MAX + 8];
    if (len != m->len[i])
        return false;
    value_fill(expected, i, m->version[i], len);
    return memcmp(expected, value, len) == 0;
}

static uint32_t draw(struct model *m, uint32_t n)
{
    return (uint32_t)(test_random64(&m->random) % n);
}

static uint32_t draw_len(struct model *m)
{
    switch (draw(m, 8)) {
    case 0:
        return 1 + draw(m, m->value_max);
    case 1:
        return m->value_max;
    case 2:
        return 1;
    default:
        return 1 + draw(m, MIN(100u, m->value_max));
    }
}

static void model_put_now(struct model *m, uint32_t i, uint32_t len)
{
    uint8_t value[ITEM_LEN_MAX + 8];
    m->version[i] = ++m->next_version;
    m->len[i] = (uint16_t)len;
    value_fill(value, i, m->version[i], len);
    struct tree_key k = key_of(i);
    tree_put_now(&m->f.tree, &k, value, len);
}

static void model_delete_now(struct model *m, uint32_t i)
{
    struct tree_key k = key_of(i);
    int err = tree_delete_now(&m->f.tree, &k);
    EXPECT(err == (m->len[i] ? 0 : ERR_NOT_FOUND));
    m->len[i] = 0;
}

/* Nothing is left over from the preparation before: what this one reserves must be enough. */
static int may_yield prepare(struct model *m, const struct tree_key *first, const struct tree_key *last,
                             uint32_t puts, uint32_t len, struct tree_key *ret_last)
{
    m->f.store.reserved = 0;
    return tree_prepare(&m->f.tree, first, last, puts, len, ret_last);
}

static void may_yield op_change(struct model *m, bool put)
{
    uint32_t i = draw(m, m->universe);
    struct tree_key k = key_of(i);
    uint32_t put_len = put ? draw_len(m) : 0;
    int err = prepare(m, &k, &k, put, put_len, NULL);
    EXPECT(err == 0);
    if (err)
        return;
    if (put)
        model_put_now(m, i, put_len);
    else
        model_delete_now(m, i);
}

static void may_yield op_get(struct model *m)
{
    uint32_t i = draw(m, m->universe), len = 0;
    struct tree_key k = key_of(i);
    uint8_t *buf = malloc(ITEM_LEN_MAX);
    int err = tree_get(&m->f.tree, &k, buf, ITEM_LEN_MAX, &len);
    EXPECT(err == (m->len[i] ? 0 : ERR_NOT_FOUND));
    if (!err)
        EXPECT(value_is(m, i, buf, len));
    if (!err && len > 1)
        EXPECT(tree_get(&m->f.tree, &k, buf, len - 1, &len) == ERR_INVALID || m->f.store.slow);
    free(buf);
}

static int64_t model_ge(const struct model *m, int64_t i)
{
    while (i < (int64_t)m->universe && !m->len[i])
        i++;
    return i < (int64_t)m->universe ? i : -1;
}

static int64_t model_le(const struct model *m, int64_t i)
{
    while (i >= 0 && !m->len[i])
        i--;
    return i;
}

static void expect_cursor(const struct model *m, int err, const struct tree_cursor *c, int64_t i)
{
    EXPECT(err == (i < 0 ? ERR_NOT_FOUND : 0));
    if (err || i < 0)
        return;
    EXPECT(index_of(&c->key) == i);
    EXPECT(value_is(m, (uint32_t)i, c->value, c->len));
}

static void may_yield op_cursor(struct model *m)
{
    struct tree_cursor c;
    bool up = draw(m, 2);
    uint32_t steps = draw(m, 30);
    int64_t at = draw(m, m->universe);
    struct tree_key k = key_of((uint32_t)at);
    int err = tree_seek(&c, &m->f.tree, &k, up ? SEEK_GE : SEEK_LE);
    int64_t i = up ? model_ge(m, at) : model_le(m, at);
    expect_cursor(m, err, &c, i);
    while (!err && i >= 0 && steps-- > 0) {
        /* Sometimes the item under the cursor goes away, or another is changed. */
        if (draw(m, 8) == 0) {
            uint32_t other = draw(m, 2) ? (uint32_t)i : draw(m, m->universe);
            struct tree_key o = key_of(other);
            EXPECT(prepare(m, &o, &o, 1, m->value_max, NULL) == 0);
            if (draw(m, 2))
                model_delete_now(m, other);
            else
                model_put_now(m, other, draw_len(m));
        }
        err = up ? tree_next(&c) : tree_prev(&c);
        i = up ? model_ge(m, i + 1) : model_le(m, i - 1);
        expect_cursor(m, err, &c, i);
    }
}

/* What was prepared can be seen without waiting: the item before and the one behind too. */
static void expect_seen_now(struct model *m, uint32_t from, const struct tree_key *covered)
{
    struct tree_cursor c;
    struct tree_key k = key_of(from);
    if (key_prev(&k, &k))
        expect_cursor(m, tree_seek_now(&c, &m->f.tree, &k, SEEK_LE), &c, model_le(m, (int64_t)from - 1));
    if (key_next(covered, &k)) {
        int64_t after = from;
        struct tree_key x;
        for (; after < m->universe; after++) {
            x = key_of((uint32_t)after);
            if (m->len[after] && key_less(covered, &x))
                break;
        }
        int err = tree_seek_now(&c, &m->f.tree, &k, SEEK_GE);
        expect_cursor(m, err, &c, after < m->universe ? after : -1);
    }
}

/* A wide range in pieces: deletes some or most of it, puts as much as was asked for, in some order. */
static void may_yield op_wide(struct model *m)
{
    uint32_t a = draw(m, m->universe), b = a + draw(m, m->universe / 4);
    b = MIN(b, m->universe - 1);
    uint32_t put_share = draw(m, 3) * 50, delete_share = draw(m, 3) * 45;
    struct tree_key last = key_of(b);
    while (a <= b) {
        struct tree_key first = key_of(a), covered, k;
        uint32_t puts = put_share ? 1 + draw(m, 40) : 0, len = 1 + draw(m, m->value_max);
        int err = prepare(m, &first, &last, puts, len, &covered);
        EXPECT(err == 0);
        if (err)
            return;
        expect_seen_now(m, a, &covered);
        uint32_t end = a;
        while (end < b && (k = key_of(end + 1), !key_less(&covered, &k)))
            end++;
        for (uint32_t i = a; i <= end; i++) {
            if (m->len[i] && draw(m, 100) < delete_share)
                model_delete_now(m, i);
            if (puts > 0 && draw(m, 100) < put_share) {
                model_put_now(m, draw(m, 2) ? i : a + draw(m, end - a + 1), len);
                puts--;
            }
        }
        a = end + 1;
    }
}

/* Several ranges at once, some of which overlap or are cut: deletions and insertions here and there in them,
 * of as many bytes together as was asked for. */
static void may_yield op_ranges(struct model *m)
{
    struct tree_range ranges[TREE_RANGES_MAX];
    uint32_t count = 1 + draw(m, draw(m, 2) ? 4 : TREE_RANGES_MAX), puts = draw(m, 24), bytes = 0;
    uint32_t from[TREE_RANGES_MAX], to[TREE_RANGES_MAX], len[24];
    uint32_t width = draw(m, 4) == 0 ? m->universe / 8 + 1 : 40, deletes = draw(m, 3) * 45;
    for (uint32_t r = 0; r < count; r++) {
        from[r] = draw(m, m->universe);
        to[r] = from[r] + draw(m, width);
        to[r] = MIN(to[r], m->universe - 1);
        ranges[r] = (struct tree_range){.first = key_of(from[r]), .last = key_of(to[r])};
    }
    for (uint32_t i = 0; i < puts; i++)
        bytes += len[i] = draw_len(m);
    m->f.store.reserved = 0;
    int err = tree_prepare_ranges(&m->f.tree, ranges, count, puts, bytes, 1 + draw(m, TREE_LEAVES_MAX));
    EXPECT(err == 0);
    if (err)
        return;
    for (uint32_t r = 0; r < count; r++) {
        struct tree_key k;
        EXPECT(!key_less(&ranges[r].covered, &ranges[r].first));
        while (to[r] > from[r] && (k = key_of(to[r]), key_less(&ranges[r].covered, &k)))
            to[r]--;
        expect_seen_now(m, from[r], &ranges[r].covered);
    }
    for (uint32_t round = 0; round < count; round++) {
        uint32_t r = draw(m, count);
        for (uint32_t i = from[r]; i <= to[r]; i++)
            if (m->len[i] && draw(m, 100) < deletes)
                model_delete_now(m, i);
        for (uint32_t n = draw(m, puts + 1); n > 0; n--, puts--)
            model_put_now(m, from[r] + draw(m, to[r] - from[r] + 1), len[puts - 1]);
    }
}

static void may_yield op_get_now(struct model *m)
{
    uint32_t i = draw(m, m->universe), len = 0;
    struct tree_key k = key_of(i);
    const void *value;
    int err = tree_get_now(&m->f.tree, &k, &value, &len);
    EXPECT(err == TREE_NOT_RESIDENT || err == (m->len[i] ? 0 : ERR_NOT_FOUND));
    if (!err)
        EXPECT(value_is(m, i, value, len));
}

static void may_yield op_get_many(struct model *m)
{
    struct tree_lookup l[TREE_LOOKUPS_MAX];
    uint32_t index[TREE_LOOKUPS_MAX], count = draw(m, TREE_LOOKUPS_MAX + 1);
    for (uint32_t k = 0; k < count; k++) { /* some of them side by side, some twice */
        index[k] =
            k > 0 && draw(m, 3) == 0 ? MIN(index[k - 1] + draw(m, 2), m->universe - 1) : draw(m, m->universe);
        l[k].key = key_of(index[k]);
    }
    tree_get_many(&m->f.tree, l, count);
    for (uint32_t k = 0; k < count; k++) {
        struct tree_key key = key_of(index[k]);
        const void *value;
        uint32_t len;
        uint32_t i = index[k];
        EXPECT(l[k].result == TREE_NOT_RESIDENT || l[k].result == (m->len[i] ? 0 : ERR_NOT_FOUND));
        EXPECT(l[k].result == tree_get_now(&m->f.tree, &key, &value, &len));
        if (l[k].result == 0)
            EXPECT(value_is(m, i, l[k].value, l[k].len));
    }
}

struct model_walk {
    struct model *m;
    int64_t at;
};

static int walk_item(void *ctx, const struct tree_key *key, const void *value, uint32_t len)
{
    struct model_walk *w = ctx;
    w->at = model_ge(w->m, w->at + 1);
    EXPECT(w->at == index_of(key));
    EXPECT(value_is(w->m, index_of(key), value, len));
    return 0;
}

static void may_yield model_compare(struct model *m)
{
    struct model_walk w = {m, -1};
    struct tree_walk ops = {.item = walk_item, .ctx = &w};
    EXPECT(tree_walk(&m->f.tree, &ops) == 0);
    EXPECT(model_ge(m, w.at + 1) == -1);
    tree_check_memory(&m->f.tree);
    fixture_check_space(&m->f);
}

static void may_yield model_op(struct model *m, uint32_t put_share)
{
    uint32_t what = draw(m, 100);
    if (what < 50)
        op_change(m, draw(m, 100) < put_share);
    else if (what < 80)
        op_get(m);
    else if (what < 96)
        op_cursor(m);
    else if (what < 97)
        op_get_now(m);
    else if (what < 98)
        op_get_many(m);
    else if (what < 99)
        op_ranges(m);
    else if (draw(m, 8) == 0)
        op_wide(m);
}

struct model_options {
    uint64_t seed;
    uint32_t universe, value_max, ops, commit_every;
    bool reopen;
};

static void fiber_role_assumed model_body(void *arg)
{
    const struct model_options *o = arg;
    struct model *m = calloc(1, sizeof(*m));
    m->universe = o->universe;
    m->value_max = o->value_max;
    m->random = o->seed;
    fixture_init(&m->f, o->seed);
    for (uint32_t i = 0; i < o->ops && expect_failures == 0; i++) {
        /* The tree grows and shrinks in turn. */
        model_op(m, (i / (o->ops / 6 + 1)) % 2 ? 30 : 75);
        if (draw(m, o->commit_every) == 0) {
            fixture_commit(&m->f);
            if (o->reopen && draw(m, 3) == 0) {
                fixture_reopen(&m->f);
                op_wide(m); /* with nothing in memory but what it prepares */
            }
        }
        if (draw(m, 2000) == 0)
            model_compare(m);
    }
    model_compare(m);
    fixture_commit(&m->f);
    fixture_reopen(&m->f);
    model_compare(m);
    fixture_done(&m->f);
    free(m);
}

static void run_model(const struct model_options *o, uint64_t memory)
{
    struct model_options copy = *o;
    run_on_fiber(model_body, &copy, memory);
}

static uint32_t effort(void)
{
    const char *e = getenv("ASHLAR_TEST_EFFORT");
    return e ? (uint32_t)strtoul(e, NULL, 10) : 1;
}

static void tree_equals_its_model_over_many_operations(void **state)
{
    for (uint64_t seed = 1; seed <= 4 * effort(); seed++) {
        run_model(&(struct model_options){seed, 3000, 100, 60000, 500, true}, 64 * MIB);
        run_model(&(struct model_options){seed + 100, 20000, 60, 60000, 5000, true}, 64 * MIB);
    }
}

static void tree_equals_its_model_with_values_up_to_the_largest(void **state)
{
    for (uint64_t seed = 1; seed <= 4 * effort(); seed++)
        run_model(&(struct model_options){seed, 1500, ITEM_LEN_MAX, 30000, 300, true}, 64 * MIB);
}

static void tree_equals_its_model_when_the_cache_is_tiny(void **state)
{
    for (uint64_t seed = 1; seed <= 3 * effort(); seed++)
        run_model(&(struct model_options){seed, 3000, ITEM_LEN_MAX, 20000, 20, false}, 4 * MIB);
}

/* ---- Several fibers, reads that yield ---- */

struct crowd_fiber {
    struct model *m;
    uint32_t ops;
};

static void fiber_role_assumed crowd_member(void *arg)
{
    struct crowd_fiber *c = arg;
    for (uint32_t i = 0; i < c->ops && expect_failures == 0; i++) {
        struct model *m = c->m;
        uint32_t what = draw(m, 100);
        if (what < 60)
            op_change(m, draw(m, 100) < 60);
        else if (what < 95)
            op_get(m);
        else if (what < 96)
            op_wide(m);
        else if (what < 97)
            op_ranges(m);
        else
            fiber_yield();
    }
    c->m->fibers--;
}

static void fiber_role_assumed crowd_body(void *arg)
{
    uint64_t seed = *(uint64_t *)arg;
    struct model *m = calloc(1, sizeof(*m));
    m->universe = 5000;
    m->value_max = ITEM_LEN_MAX;
    m->random = seed;
    fixture_init(&m->f, seed);
    m->f.store.slow = true;
    struct crowd_fiber members[12];
    for (uint32_t i = 0; i < ARRAY_SIZE(members); i++) {
        members[i] = (struct crowd_fiber){m, 2500};
        EXPECT(fiber_spawn("crowd", crowd_member, &members[i]) == 0);
        m->fibers++;
    }
    while (m->fibers > 0) {
        for (uint32_t i = draw(m, 60); i > 0; i--)
            fiber_yield();
        struct list writes;
        tree_close_txg(&m->f.tree, m->f.tree.txg + 1, &writes);
        /* Sealed nodes are read, copied and freed while they wait for being written. */
        for (uint32_t i = draw(m, 20); i > 0; i--)
            fiber_yield();
        fixture_write(&m->f, &writes);
        tree_check_memory(&m->f.tree);
    }
    m->f.store.slow = false;
    model_compare(m);
    fixture_done(&m->f);
    free(m);
}

static void tree_equals_its_model_under_many_fibers_with_slow_reads(void **state)
{
    for (uint64_t seed = 1; seed <= 4 * effort(); seed++) {
        uint64_t s = seed;
        run_on_fiber(crowd_body, &s, 5 * MIB);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_equals_its_model_over_many_operations),
        cmocka_unit_test(tree_equals_its_model_with_values_up_to_the_largest),
        cmocka_unit_test(tree_equals_its_model_when_the_cache_is_tiny),
        cmocka_unit_test(tree_equals_its_model_under_many_fibers_with_slow_reads),
    };
    return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
