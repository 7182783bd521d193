/* SPDX-License-Identifier: Apache-2.0 */
/* One node's bytes: operations against a model, and what the check refuses. */
#include "runtime/checksum.h"
#include "runtime/error.h"
#include "tests/unit/volume/tree_store.h"
#include "volume/tree_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct uuid volume = {{9, 8, 7}};

static struct disk_node_pointer sign(uint8_t *data)
{
    struct disk_node_header *h = (struct disk_node_header *)data;
    h->volume = volume;
    h->birth = le64_make(77);
    h->space = le32_make(3);
    h->block = le64_make(1234);
    return (struct disk_node_pointer){
        .space = le32_make(3),
        .blocks = le32_make(NODE_BLOCKS),
        .block = le64_make(1234),
        .birth_logical = le64_make(77),
        .birth_physical = le64_make(77),
        .checksum_type = CHECKSUM_CRC32C,
        .checksum_width = 4,
        .level = h->level,
    };
}

static int check(const uint8_t *data, const struct disk_node_pointer *p)
{
    char why[128] = "";
    int err = tree_node_check(data, p, &volume, why, sizeof(why));
    assert_true((err == 0) == (why[0] == '\0'));
    return err;
}

/* ---- Model: all possible keys, each with a length and a version ---- */

#define KEYS 400u

struct node_model {
    uint8_t data[NODE_SIZE];
    uint16_t len[KEYS];
    uint8_t version[KEYS];
    uint64_t random;
};

static struct tree_key key_of(uint32_t i)
{
    return (struct tree_key){i / 100, (uint8_t)(i / 10 % 10), (uint64_t)(i % 10) << 60};
}

static void value_of(uint8_t *out, uint32_t i, uint8_t version, uint32_t len)
{
    for (uint32_t k = 0; k < len; k++)
        out[k] = (uint8_t)(i * 31 + version * 7 + k);
}

static void compare(const uint8_t *data, const struct node_model *m, uint32_t from, uint32_t to)
{
    uint32_t slot = 0;
    for (uint32_t i = from; i < to; i++) {
        struct tree_key k = key_of(i);
        assert_int_equal(node_lower_bound(data, &k), slot);
        if (!m->len[i])
            continue;
        assert_true(node_is_at(data, slot, &k));
        uint8_t expected[ITEM_LEN_MAX];
        value_of(expected, i, m->version[i], m->len[i]);
        struct tree_key got;
        const void *value;
        uint32_t len;
        tree_node_item(data, slot, &got, &value, &len);
        assert_int_equal(len, m->len[i]);
        assert_memory_equal(value, expected, len);
        assert_int_equal(tree_key_compare(&got, &k), 0);
        slot++;
    }
    assert_int_equal(tree_node_count(data), slot);
}

static uint32_t draw(struct node_model *m, uint32_t n)
{
    return (uint32_t)(test_random64(&m->random) % n);
}

static uint32_t draw_len(struct node_model *m)
{
    return draw(m, 4) == 0 ? 1 + draw(m, ITEM_LEN_MAX) : 1 + draw(m, 60);
}

/* One change if there is room; false: there was none for this insertion. */
static bool change(struct node_model *m, uint32_t i, uint32_t len)
{
    struct tree_key k = key_of(i);
    uint8_t value[ITEM_LEN_MAX];
    uint32_t slot = node_lower_bound(m->data, &k);
    value_of(value, i, (uint8_t)(m->version[i] + 1), len);
    if (len == 0 && m->len[i]) {
        node_delete(m->data, slot);
    } else if (len > 0 && m->len[i]) {
        if (node_room(m->data) + m->len[i] < len)
            return true;
        node_replace(m->data, slot, value, len);
    } else if (len > 0) {
        if (node_room(m->data) < SLOT_SIZE + len)
            return false;
        node_insert(m->data, slot, &k, value, len);
    }
    m->version[i]++;
    m->len[i] = (uint16_t)len;
    return true;
}

static void node_equals_its_model_over_random_changes(void **state)
{
    struct node_model *m = calloc(1, sizeof(*m));
    for (uint64_t seed = 1; seed <= 10; seed++) {
        *m = (struct node_model){.random = seed};
        node_init(m->data, 0);
        struct disk_node_pointer p = sign(m->data);
        for (uint32_t n = 0; n < 20000; n++) {
            change(m, draw(m, KEYS), draw(m, 5) < 2 ? 0 : draw_len(m));
            uint32_t used = 0;
            for (uint32_t i = 0; i < KEYS; i++)
                used += m->len[i] ? SLOT_SIZE + m->len[i] : 0;
            assert_int_equal(node_used(m->data), used);
            if (n % 50 == 0) {
                compare(m->data, m, 0, KEYS);
                if (node_count(m->data) > 0)
                    assert_int_equal(check(m->data, &p), 0);
            }
        }
    }
    free(m);
}

static void split_keeps_all_items_and_merge_brings_them_together(void **state)
{
    struct node_model *m = calloc(1, sizeof(*m));
    static uint8_t right[NODE_SIZE];
    uint32_t splits = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        *m = (struct node_model){.random = seed};
        node_init(m->data, 0);
        uint32_t max = seed % 3 == 0 ? ITEM_LEN_MAX : 200;
        uint32_t i, len;
        do {
            i = draw(m, KEYS);
            len = 1 + draw(m, max);
        } while (change(m, i, len));
        struct disk_node_pointer p = sign(m->data);
        /* The item that did not fit. */
        struct tree_key k = key_of(i);
        uint8_t value[ITEM_LEN_MAX];
        value_of(value, i, m->version[i], len);
        m->len[i] = (uint16_t)len;
        node_init(right, 0);
        node_split(m->data, right, node_lower_bound(m->data, &k), &k, value, len);
        struct disk_node_pointer q = sign(right);
        assert_int_equal(check(m->data, &p), 0);
        assert_int_equal(check(right, &q), 0);
        struct tree_key first = node_key(right, 0);
        uint32_t cut = (uint32_t)(first.object * 100 + first.type * 10u + (first.offset >> 60));
        compare(m->data, m, 0, cut);
        compare(right, m, cut, KEYS);
        splits++;
        /* Delete until both fit in one, then merge, in turn from either side. */
        while (node_room(m->data) < node_used(right)) {
            i = draw(m, cut);
            change(m, i, 0);
            if (node_count(m->data) == 0)
                break;
        }
        if (node_count(m->data) == 0)
            continue;
        if (seed % 2) {
            node_merge(m->data, right, true);
        } else {
            node_merge(right, m->data, false);
            memcpy(m->data, right, NODE_SIZE);
        }
        assert_int_equal(check(m->data, &p), 0);
        compare(m->data, m, 0, KEYS);
    }
    assert_int_equal(splits, 300);
    free(m);
}

static void search_is_right_for_keys_in_any_distribution(void **state)
{
    static uint8_t data[NODE_SIZE];
    uint64_t random = 3;
    for (uint32_t round = 0; round < 400; round++) {
        node_init(data, 0);
        uint32_t n = 1 + (uint32_t)(test_random64(&random) % 500),
                 shift = (uint32_t)(test_random64(&random) % 60);
        struct tree_key keys[500];
        struct tree_key at = {1, 5, test_random64(&random) >> shift};
        uint32_t count = 0;
        for (uint32_t i = 0; i < n; i++) {
            keys[count] = at;
            node_insert(data, count, &at, "x", 1);
            count++;
            /* Runs, jumps, other types and objects, and the ends of the range. */
            uint64_t step = test_random64(&random) % 20;
            uint64_t add = step == 0 ? test_random64(&random) >> shift : 1 + step;
            if (__builtin_add_overflow(at.offset, add, &at.offset) || (round % 4 == 0 && step == 1)) {
                at.type++;
                at.offset = round % 8 == 0 ? 0 : test_random64(&random) >> shift;
            }
            if (round % 16 == 0 && step == 2)
                at = (struct tree_key){at.object + 1, 0, 0};
            if (!key_less(&keys[count - 1], &at))
                break;
        }
        for (uint32_t i = 0; i < count; i++) {
            struct tree_key k = keys[i];
            assert_int_equal(node_lower_bound(data, &k), i);
            if (key_prev(&keys[i], &k))
                assert_int_equal(node_lower_bound(data, &k),
                                 i > 0 && key_equal(&keys[i - 1], &k) ? i - 1 : i);
            if (key_next(&keys[i], &k))
                assert_int_equal(node_lower_bound(data, &k), i + 1);
        }
        struct tree_key low = TREE_KEY_MIN, high = TREE_KEY_MAX;
        assert_int_equal(node_lower_bound(data, &low), 0);
        assert_int_equal(node_lower_bound(data, &high), count);
    }
}

/* ---- What the check refuses ---- */

static uint8_t leaf[NODE_SIZE], inner[NODE_SIZE];
static struct disk_node_pointer leaf_pointer, inner_pointer;

static int make_nodes(void **state)
{
    node_init(leaf, 0);
    node_init(inner, 2);
    leaf_pointer = sign(leaf);
    inner_pointer = sign(inner);
    for (uint32_t i = 0; i < 50; i++) {
        struct tree_key k = key_of(i);
        uint8_t value[100];
        value_of(value, i, 1, sizeof(value));
        node_insert(leaf, i, &k, value, 1 + i);
        struct disk_node_pointer child = leaf_pointer;
        child.level = 1;
        node_insert(inner, i, &k, &child, POINTER_SIZE);
    }
    node_delete(leaf, 20); /* a hole */
    return 0;
}

static void set_slot(uint8_t *data, uint32_t i, struct disk_slot s)
{
    memcpy(data + sizeof(struct disk_node_header) + i * SLOT_SIZE, &s, sizeof(s));
}

static void expect_refused(const uint8_t *data, const struct disk_node_pointer *p, const char *text)
{
    char why[128] = "";
    assert_int_equal(tree_node_check(data, p, &volume, why, sizeof(why)), ERR_VOLUME_CORRUPT);
    if (!strstr(why, text))
        fail_msg("\"%s\" does not say \"%s\"", why, text);
}

static void check_refuses_each_kind_of_damage_and_names_it(void **state)
{
    static uint8_t d[NODE_SIZE];
    struct disk_node_header *h = (struct disk_node_header *)d;
#define DAMAGE(node, pointer, text, ...)  \
    do {                                  \
        memcpy(d, node, NODE_SIZE);       \
        __VA_ARGS__;                      \
        expect_refused(d, pointer, text); \
    } while (0)
    assert_int_equal(check(leaf, &leaf_pointer), 0);
    assert_int_equal(check(inner, &inner_pointer), 0);
    DAMAGE(leaf, &leaf_pointer, "magic", h->magic.b[0] ^= 1);
    DAMAGE(leaf, &leaf_pointer, "version", h->version++);
    DAMAGE(leaf, &leaf_pointer, "level", h->level = 200);
    DAMAGE(leaf, &inner_pointer, "parent says");
    DAMAGE(leaf, &leaf_pointer, "another volume", h->volume.b[3] ^= 1);
    DAMAGE(leaf, &leaf_pointer, "born", h->birth = le64_make(76));
    DAMAGE(leaf, &leaf_pointer, "misdirected", h->block = le64_make(1));
    DAMAGE(leaf, &leaf_pointer, "misdirected", h->space = le32_make(1));
    DAMAGE(leaf, &leaf_pointer, "no items", h->count = le16_make(0));
    DAMAGE(leaf, &leaf_pointer, "overlap", h->count = le16_make(UINT16_MAX));
    DAMAGE(leaf, &leaf_pointer, "overlap", h->items_start = le16_make(NODE_SIZE + 1));
    DAMAGE(leaf, &leaf_pointer, "overlap", h->items_start = le16_make(60));
    DAMAGE(leaf, &leaf_pointer, "holes", h->free_bytes = le16_make(UINT16_MAX));
    DAMAGE(leaf, &leaf_pointer, "holes", h->free_bytes = le16_make(3));
    struct disk_slot s = *node_slot(leaf, 7);
    DAMAGE(leaf, &leaf_pointer, "not greater", set_slot(d, 8, s));
    s = *node_slot(leaf, 7);
    s.len = le16_make(0);
    DAMAGE(leaf, &leaf_pointer, "length 0", set_slot(d, 7, s));
    s.len = le16_make(ITEM_LEN_MAX + 1);
    DAMAGE(leaf, &leaf_pointer, "length", set_slot(d, 7, s));
    s = *node_slot(leaf, 7);
    s.offset = le16_make(NODE_SIZE - 1);
    DAMAGE(leaf, &leaf_pointer, "lies at", set_slot(d, 7, s));
    s.offset = le16_make(70);
    DAMAGE(leaf, &leaf_pointer, "lies at", set_slot(d, 7, s));
    s.offset = node_slot(leaf, 30)->offset;
    DAMAGE(leaf, &leaf_pointer, "overlaps", set_slot(d, 7, s));
    s = *node_slot(inner, 7);
    s.len = le16_make(POINTER_SIZE - 1);
    DAMAGE(inner, &inner_pointer, "length", set_slot(d, 7, s));
    DAMAGE(inner, &inner_pointer, "blocks", node_pointer(d, 3)->blocks = le32_make(9));
    DAMAGE(inner, &inner_pointer, "level", node_pointer(d, 3)->level = 2);
    DAMAGE(inner, &inner_pointer, "younger", node_pointer(d, 3)->birth_logical = le64_make(78));
    DAMAGE(inner, &inner_pointer, "checksum", node_pointer(d, 3)->checksum_type = 9);
    DAMAGE(inner, &inner_pointer, "compression", node_pointer(d, 3)->compression = 9);
}

static void checksum_or_check_notices_every_flipped_byte(void **state)
{
    static uint8_t d[NODE_SIZE];
    uint32_t by_check = 0;
    for (uint32_t n = 0; n < 2; n++) {
        const uint8_t *node = n ? inner : leaf;
        memcpy(d, node, NODE_SIZE);
        uint32_t crc = crc32c(0, d, NODE_SIZE);
        for (uint32_t i = 0; i < NODE_SIZE; i++) {
            uint8_t flip = (uint8_t)(1u << (i % 8));
            d[i] ^= flip;
            by_check += check(d, n ? &inner_pointer : &leaf_pointer) != 0;
            assert_int_not_equal(crc32c(0, d, NODE_SIZE), crc);
            d[i] ^= flip;
        }
    }
    assert_in_range(by_check, 200, 2 * NODE_SIZE);
}

static void check_survives_garbage_behind_a_good_header(void **state)
{
    static uint8_t d[NODE_SIZE];
    uint64_t random = 11;
    uint32_t good = 0;
    for (uint32_t round = 0; round < 20000; round++) {
        const uint8_t *node = round % 2 ? inner : leaf;
        memcpy(d, node, NODE_SIZE);
        for (uint32_t n = 1 + (uint32_t)(test_random64(&random) % 6); n > 0; n--) {
            uint64_t x = test_random64(&random);
            d[x % 3 == 0 ? (x >> 8) % NODE_SIZE : (x >> 8) % 1200] = (uint8_t)(x >> 40);
        }
        if (check(d, NULL) != 0)
            continue;
        /* Whatever it lets pass can be read. */
        good++;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < tree_node_count(d); i++) {
            struct tree_key k;
            const void *value;
            uint32_t len;
            tree_node_item(d, i, &k, &value, &len);
            sum += hash64(value, len, k.offset);
            assert_int_equal(node_lower_bound(d, &k), i);
        }
        assert_int_not_equal(sum, 0);
    }
    assert_in_range(good, 100, 19000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(node_equals_its_model_over_random_changes),
        cmocka_unit_test(split_keeps_all_items_and_merge_brings_them_together),
        cmocka_unit_test(search_is_right_for_keys_in_any_distribution),
        cmocka_unit_test(check_refuses_each_kind_of_damage_and_names_it),
        cmocka_unit_test(checksum_or_check_notices_every_flipped_byte),
        cmocka_unit_test(check_survives_garbage_behind_a_good_header),
    };
    return cmocka_run_group_tests_name("tree_node", tests, make_nodes, NULL);
}
