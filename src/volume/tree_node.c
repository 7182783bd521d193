/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on the bytes of one tree node.
 *
 *    0        56                                items_start                    16384
 *    | header | slot 0 | slot 1 | ...   gap     | value | hole | value | ...   |
 *
 * Slots are sorted by key and grow up; values grow down in the order of their coming. A deleted or outgrown
 * value leaves a hole, counted in free_bytes; node_compact() closes the holes when the gap is too small.
 */
#include "volume/tree_internal.h"

#include "runtime/error.h"

#include <stdio.h>

#define HEADER_SIZE ((uint32_t)sizeof(struct disk_node_header))

/* Nothing here yields, so one buffer a thread is enough; it would be large for a fiber's stack. */
static _Thread_local uint8_t scratch[NODE_SIZE];

int tree_key_compare(const struct tree_key *a, const struct tree_key *b)
{
    return (int)key_less(b, a) - (int)key_less(a, b);
}

bool key_next(const struct tree_key *k, struct tree_key *ret)
{
    struct tree_key n = *k;
    if (++n.offset == 0 && ++n.type == 0 && ++n.object == 0)
        return false;
    *ret = n;
    return true;
}

bool key_prev(const struct tree_key *k, struct tree_key *ret)
{
    struct tree_key n = *k;
    if (n.offset-- == 0 && n.type-- == 0 && n.object-- == 0)
        return false;
    *ret = n;
    return true;
}

static inline struct disk_node_header *header(uint8_t *data)
{
    return (struct disk_node_header *)data;
}

static inline struct disk_slot *slot_at(uint8_t *data, uint32_t i)
{
    return (struct disk_slot *)(data + HEADER_SIZE) + i;
}

static inline struct disk_key disk_key_make(const struct tree_key *k)
{
    return (struct disk_key){le64_make(k->object), k->type, le64_make(k->offset)};
}

static inline uint32_t gap_of(const uint8_t *data)
{
    return le16_get(node_header(data)->items_start) - HEADER_SIZE - node_count(data) * SLOT_SIZE;
}

static inline void add_free_bytes(uint8_t *data, uint32_t n)
{
    header(data)->free_bytes = le16_make((uint16_t)(le16_get(header(data)->free_bytes) + n));
}

/* Fewer slots than this are searched as they are; and how far around the guess to look. */
#define GUESS_FROM   24u
#define GUESS_WINDOW 6u

static inline uint64_t slot_less(const uint8_t *first, uint32_t i, const struct tree_key *key)
{
    const struct disk_key *d = (const struct disk_key *)(first + i * SLOT_SIZE);
    return key_less_bit(le64_get(d->object), d->type, le64_get(d->offset), key);
}

/*
 * Most of a search in a leaf that is in no near cache is waiting for memory, one probe after the other. Keys
 * of one object are mostly spread evenly (blocks of a device, hashes of names), so that a guess by proportion
 * is near. Narrows
 * [*from, *from + *len) to where the first slot with a key >= the wanted one (or the end of the range) is.
 */
static inline void guess_range(const uint8_t *data, const struct tree_key *key, uint32_t *from, uint32_t *len)
{
    uint32_t n = *len;
    struct tree_key a = node_key(data, 0), b = node_key(data, n - 1);
    if (a.object != key->object || b.object != key->object || a.type != key->type || b.type != key->type ||
        key->offset <= a.offset || key->offset > b.offset)
        return;
    uint32_t guess =
        (uint32_t)((double)(key->offset - a.offset) / (double)(b.offset - a.offset) * (double)(n - 1));
    uint32_t low = guess > GUESS_WINDOW ? guess - GUESS_WINDOW : 0;
    uint32_t high = MIN(guess + GUESS_WINDOW, n - 1);
    const uint8_t *first = data + HEADER_SIZE;
    for (const uint8_t *p = first + low * SLOT_SIZE; p < first + (high + 1) * SLOT_SIZE; p += 64)
        __builtin_prefetch(p);
    if (slot_less(first, high, key)) {
        *from = high + 1;
        *len = n - high - 1;
    } else if (!slot_less(first, low, key)) {
        *len = low;
    } else {
        *from = low + 1;
        *len = high - low - 1;
    }
}

uint32_t node_lower_bound(const uint8_t *data, const struct tree_key *key)
{
    const struct tree_key wanted = *key;
    uint32_t from = 0, len = node_count(data);
    if (len >= GUESS_FROM)
        guess_range(data, &wanted, &from, &len);
    const uint8_t *first = data + HEADER_SIZE;
    while (len > 1) {
        uint32_t half = len / 2;
        uint64_t less = slot_less(first, from + half - 1, &wanted);
        __asm__("" : "+r"(less)); /* a move, not a branch */
        from += (uint32_t)(0 - less) & half;
        len -= half;
    }
    if (len == 1)
        from += (uint32_t)slot_less(first, from, &wanted);
    return from;
}

uint32_t node_child_slot(const uint8_t *data, const struct tree_key *key)
{
    uint32_t i = node_lower_bound(data, key);
    if (node_is_at(data, i, key))
        return i;
    return i - (i > 0);
}

void node_init(uint8_t *data, uint8_t level)
{
    memset(data, 0, NODE_SIZE);
    struct disk_node_header *h = header(data);
    h->magic = le32_make(NODE_MAGIC);
    h->version = VOLUME_FORMAT_VERSION;
    h->level = level;
    h->items_start = le16_make(NODE_SIZE);
}

/* Closes the holes. */
static void node_compact(uint8_t *data)
{
    uint32_t start = le16_get(header(data)->items_start);
    memcpy(scratch + start, data + start, NODE_SIZE - start);
    uint32_t end = NODE_SIZE, n = node_count(data);
    for (uint32_t i = 0; i < n; i++) {
        struct disk_slot *s = slot_at(data, i);
        uint32_t len = le16_get(s->len);
        end -= len;
        memcpy(data + end, scratch + le16_get(s->offset), len);
        s->offset = le16_make((uint16_t)end);
    }
    assert(end >= start);
    memset(data + start, 0, end - start);
    header(data)->items_start = le16_make((uint16_t)end);
    header(data)->free_bytes = le16_make(0);
}

/* Room for a value at the lower end of the values; returns its offset. */
static uint32_t value_alloc(uint8_t *data, uint32_t len)
{
    uint32_t at = le16_get(header(data)->items_start) - len;
    header(data)->items_start = le16_make((uint16_t)at);
    return at;
}

/* Its bytes become a hole, or gap if they are the lowest. */
static void value_free(uint8_t *data, const struct disk_slot *s)
{
    uint32_t offset = le16_get(s->offset), len = le16_get(s->len);
    memset(data + offset, 0, len);
    if (offset == le16_get(header(data)->items_start))
        header(data)->items_start = le16_make((uint16_t)(offset + len));
    else
        add_free_bytes(data, len);
}

void node_insert(uint8_t *data, uint32_t slot, const struct tree_key *key, const void *value, uint32_t len)
{
    uint32_t n = node_count(data);
    assert(slot <= n);
    assert(node_room(data) >= SLOT_SIZE + len);
    if (gap_of(data) < SLOT_SIZE + len)
        node_compact(data);
    uint32_t at = value_alloc(data, len);
    memcpy(data + at, value, len);
    struct disk_slot *s = slot_at(data, slot);
    memmove(s + 1, s, (n - slot) * SLOT_SIZE);
    *s = (struct disk_slot){
        .key = disk_key_make(key), .offset = le16_make((uint16_t)at), .len = le16_make((uint16_t)len)};
    header(data)->count = le16_make((uint16_t)(n + 1));
}

void node_replace(uint8_t *data, uint32_t slot, const void *value, uint32_t len)
{
    struct disk_slot *s = slot_at(data, slot);
    uint32_t old = le16_get(s->len);
    if (PREDICT_TRUE(old == len)) {
        memcpy(data + le16_get(s->offset), value, len);
        return;
    }
    assert(node_room(data) + old >= len);
    value_free(data, s);
    s->len = le16_make(0);
    if (gap_of(data) < len) {
        /* An empty value at the end of the node takes no part in compaction. */
        s->offset = le16_make(NODE_SIZE);
        node_compact(data);
        s = slot_at(data, slot);
    }
    uint32_t at = value_alloc(data, len);
    memcpy(data + at, value, len);
    s->offset = le16_make((uint16_t)at);
    s->len = le16_make((uint16_t)len);
}

void node_delete(uint8_t *data, uint32_t slot)
{
    uint32_t n = node_count(data);
    assert(slot < n);
    struct disk_slot *s = slot_at(data, slot);
    value_free(data, s);
    memmove(s, s + 1, (n - slot - 1) * SLOT_SIZE);
    memset(slot_at(data, n - 1), 0, SLOT_SIZE);
    header(data)->count = le16_make((uint16_t)(n - 1));
}

void node_set_key(uint8_t *data, uint32_t slot, const struct tree_key *key)
{
    assert(slot < node_count(data));
    slot_at(data, slot)->key = disk_key_make(key);
}

/* Items [from, to) of src, which are greater than all of dst, to its end. */
static void append_items(uint8_t *dst, uint8_t *src, uint32_t from, uint32_t to)
{
    uint32_t n = node_count(dst);
    uint32_t at = le16_get(header(dst)->items_start);
    for (uint32_t i = from; i < to; i++, n++) {
        struct disk_slot s = *slot_at(src, i);
        uint32_t len = le16_get(s.len);
        at -= len;
        memcpy(dst + at, src + le16_get(s.offset), len);
        s.offset = le16_make((uint16_t)at);
        *slot_at(dst, n) = s;
    }
    assert(at >= HEADER_SIZE + n * SLOT_SIZE);
    header(dst)->items_start = le16_make((uint16_t)at);
    header(dst)->count = le16_make((uint16_t)n);
}

/* Leaves the first `keep` items, without holes. */
static void truncate_items(uint8_t *data, uint32_t keep)
{
    uint32_t n = node_count(data);
    memset(slot_at(data, keep), 0, (n - keep) * SLOT_SIZE);
    header(data)->count = le16_make((uint16_t)keep);
    node_compact(data);
}

/*
 * Where to cut the sequence of items with the new one (new_size bytes) at `slot` in it: how many go left. The
 * halves are as equal in bytes as the items allow, which always fits: an item is at most a quarter of a node.
 * An append cuts before itself instead: those who write in order fill their nodes.
 */
static uint32_t split_point(const uint8_t *data, uint32_t slot, uint32_t new_size)
{
    uint32_t n = node_count(data);
    if (slot == n)
        return n;
    uint32_t total = node_used(data) + new_size;
    uint32_t left = 0, best = 0, best_max = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (i == slot)
            left += new_size;
        else
            left += SLOT_SIZE + node_value_len(data, i - (i > slot));
        uint32_t larger = MAX(left, total - left);
        if (larger < best_max) {
            best_max = larger;
            best = i + 1;
        }
    }
    assert(best_max <= NODE_SPACE);
    return best;
}

void node_split(uint8_t *left, uint8_t *right, uint32_t slot, const struct tree_key *key, const void *value,
                uint32_t len)
{
    uint32_t n = node_count(left);
    uint32_t to_left = split_point(left, slot, SLOT_SIZE + len);
    assert(to_left >= 1 && to_left <= n);
    uint32_t cut = to_left - (slot < to_left);
    append_items(right, left, cut, n);
    truncate_items(left, cut);
    if (slot < to_left)
        node_insert(left, slot, key, value, len);
    else
        node_insert(right, slot - cut, key, value, len);
    assert(node_count(left) == to_left && node_count(right) == n + 1 - to_left);
}

void node_merge(uint8_t *data, uint8_t *other, bool above)
{
    assert(node_room(data) >= node_used(other));
    assert(header(data)->level == header(other)->level);
    node_compact(data);
    if (above) {
        append_items(data, other, 0, node_count(other));
        return;
    }
    struct disk_node_header h = *header(data);
    memcpy(scratch, data, NODE_SIZE);
    node_init(data, h.level);
    h.count = le16_make(0);
    h.items_start = le16_make(NODE_SIZE);
    h.free_bytes = le16_make(0);
    *header(data) = h;
    append_items(data, other, 0, node_count(other));
    append_items(data, scratch, 0, le16_get(header(scratch)->count));
}

/* ---- Checking: the input is untrusted ---- */

#define FAIL(...)                             \
    do {                                      \
        snprintf(why, why_size, __VA_ARGS__); \
        return ERR_VOLUME_CORRUPT;            \
    } while (0)

static int check_header(const uint8_t *data, const struct disk_node_pointer *expect,
                        const struct uuid *volume, char *why, size_t why_size)
{
    const struct disk_node_header *h = node_header(data);
    if (le32_get(h->magic) != NODE_MAGIC)
        FAIL("no tree node: magic %08x", le32_get(h->magic));
    if (h->version != VOLUME_FORMAT_VERSION)
        FAIL("unknown node version %u", h->version);
    if (h->level >= TREE_LEVELS_MAX)
        FAIL("level %u is too high", h->level);
    if (volume && !uuid_equal(h->volume, *volume))
        FAIL("node of another volume");
    if (expect) {
        if (h->level != expect->level)
            FAIL("level %u where the parent says %u", h->level, expect->level);
        if (le64_get(h->birth) != le64_get(expect->birth_logical))
            FAIL("born in txg %llu where the parent says %llu", (unsigned long long)le64_get(h->birth),
                 (unsigned long long)le64_get(expect->birth_logical));
        if (le32_get(h->space) != le32_get(expect->space) || le64_get(h->block) != le64_get(expect->block))
            FAIL("misdirected: written for %u:%llu", le32_get(h->space),
                 (unsigned long long)le64_get(h->block));
    }
    uint32_t count = le16_get(h->count), start = le16_get(h->items_start);
    if (count == 0)
        FAIL("no items");
    if (start > NODE_SIZE || HEADER_SIZE + count * SLOT_SIZE > start)
        FAIL("%u slots and items from %u on overlap", count, start);
    if (le16_get(h->free_bytes) > NODE_SIZE - start)
        FAIL("%u bytes of holes do not fit", le16_get(h->free_bytes));
    return 0;
}

/* Marks [from, from + len) as used; false if a part of it was. */
static bool bits_take(uint64_t *bits, uint32_t from, uint32_t len)
{
    uint32_t end = from + len;
    uint64_t clash = 0;
    while (from < end) {
        uint32_t bit = from % 64, n = MIN(64 - bit, end - from);
        uint64_t mask = (n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1) << bit;
        clash |= bits[from / 64] & mask;
        bits[from / 64] |= mask;
        from += n;
    }
    return clash == 0;
}

static int check_child(const struct disk_node_header *h, const struct disk_node_pointer *p, uint32_t i,
                       char *why, size_t why_size)
{
    if (le32_get(p->blocks) != NODE_BLOCKS)
        FAIL("child %u has %u blocks", i, le32_get(p->blocks));
    if (p->level + 1 != h->level)
        FAIL("child %u has level %u below level %u", i, p->level, h->level);
    if (le64_get(p->birth_logical) > le64_get(h->birth))
        FAIL("child %u is younger than its parent", i);
    if (p->checksum_type != CHECKSUM_CRC32C || p->checksum_width != sizeof(struct le32))
        FAIL("child %u has an unknown checksum type %u", i, p->checksum_type);
    if (p->compression != COMPRESSION_NONE)
        FAIL("child %u has an unknown compression %u", i, p->compression);
    return 0;
}

int tree_node_check(const void *node, const struct disk_node_pointer *expect, const struct uuid *volume,
                    char *why, size_t why_size)
{
    const uint8_t *data = node;
    int err = check_header(data, expect, volume, why, why_size);
    if (err)
        return err;
    const struct disk_node_header *h = node_header(data);
    uint32_t count = le16_get(h->count), start = le16_get(h->items_start), sum = 0;
    uint64_t bits[NODE_SIZE / 64] = {0};
    struct tree_key before = TREE_KEY_MIN;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t offset = le16_get(node_slot(data, i)->offset), len = le16_get(node_slot(data, i)->len);
        struct tree_key key = node_key(data, i);
        if (i > 0 && !key_less(&before, &key))
            FAIL("key %u is not greater than the one before it", i);
        if (len == 0 || len > ITEM_LEN_MAX)
            FAIL("item %u has length %u", i, len);
        if (offset < start || offset + len > NODE_SIZE)
            FAIL("item %u lies at %u..%u", i, offset, offset + len);
        if (!bits_take(bits, offset, len))
            FAIL("item %u overlaps another", i);
        if (h->level > 0) {
            if (len != POINTER_SIZE)
                FAIL("child %u has length %u", i, len);
            err = check_child(h, (const struct disk_node_pointer *)(data + offset), i, why, why_size);
            if (err)
                return err;
        }
        before = key;
        sum += len;
    }
    if (sum + le16_get(h->free_bytes) != NODE_SIZE - start)
        FAIL("%u bytes of items and %u of holes in %u", sum, le16_get(h->free_bytes), NODE_SIZE - start);
    return 0;
}

uint32_t tree_node_count(const void *node)
{
    return node_count(node);
}

void tree_node_item(const void *node, uint32_t i, struct tree_key *ret_key, const void **ret_value,
                    uint32_t *ret_len)
{
    const uint8_t *data = node;
    assert(i < node_count(data));
    *ret_key = node_key(data, i);
    *ret_value = data + le16_get(node_slot(data, i)->offset);
    *ret_len = node_value_len(data, i);
}
