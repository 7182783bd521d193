/* SPDX-License-Identifier: Apache-2.0 */
/* Tree nodes: whatever tree_node_check() accepts can be read, searched, changed, split and merged, and is a
 * good node again after each of these. */
#include "volume/tree_internal.h"

#include "runtime/error.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEADER_SIZE sizeof(struct disk_node_header)

static uint8_t node[NODE_SIZE], other[NODE_SIZE];

/* The input is a node's two ends: header and slots, and the values. An odd first byte mends what a fuzzer
 * takes long to find. */
static void build(const uint8_t *data, size_t size)
{
    uint8_t mode = data[0];
    data++;
    size = MIN(size - 1, (size_t)NODE_SIZE);
    size_t front = size - size / 3;
    memset(node, 0, NODE_SIZE);
    memcpy(node, data, front);
    memcpy(node + NODE_SIZE - (size - front), data + front, size - front);
    struct disk_node_header *h = (struct disk_node_header *)node;
    if (mode & 1) {
        h->magic = le32_make(NODE_MAGIC);
        h->version = VOLUME_FORMAT_VERSION;
        h->level = mode >> 1 & 1;
    }
    if ((mode & 5) == 5) { /* values packed from the end, holes counted */
        uint32_t count = MIN(node_count(node), 60u), at = NODE_SIZE;
        h->count = le16_make((uint16_t)count);
        for (uint32_t i = 0; i < count; i++) {
            struct disk_slot s = *node_slot(node, i);
            uint32_t len = h->level ? POINTER_SIZE : 1u + le16_get(s.len) % 200u;
            at -= len;
            s.len = le16_make((uint16_t)len);
            s.offset = le16_make((uint16_t)at);
            memcpy(node + HEADER_SIZE + i * SLOT_SIZE, &s, sizeof(s));
        }
        h->items_start = le16_make((uint16_t)at);
        h->free_bytes = le16_make(0);
    }
}

static void expect_good(const uint8_t *n)
{
    char why[128];
    int err = node_count(n) == 0 ? 0 : tree_node_check(n, NULL, NULL, why, sizeof(why));
    assert(err == 0);
}

static void read_all(void)
{
    uint8_t sum = 0;
    uint32_t n = tree_node_count(node);
    for (uint32_t i = 0; i < n; i++) {
        struct tree_key k, near;
        const void *value;
        uint32_t len;
        tree_node_item(node, i, &k, &value, &len);
        for (uint32_t b = 0; b < len; b++)
            sum ^= ((const uint8_t *)value)[b];
        assert(node_lower_bound(node, &k) == i);
        if (key_next(&k, &near))
            assert(node_lower_bound(node, &near) == i + 1);
        assert(node_child_slot(node, &k) == i);
    }
    __asm__ volatile("" ::"r"(sum)); /* every byte was read */
}

/* Changes as the bytes say; values of an inner node stay pointers. */
static void change(const uint8_t *data, size_t size)
{
    static uint8_t value[ITEM_LEN_MAX];
    bool inner = node_header(node)->level > 0;
    for (size_t i = 0; i + 4 <= size && i < 400; i += 4) {
        uint32_t n = node_count(node), len = 1 + (data[i + 1] * 16u + data[i + 2]) % ITEM_LEN_MAX;
        if (n == 0)
            return;
        uint32_t slot = data[i + 3] % n;
        const void *v = value;
        if (inner) {
            len = POINTER_SIZE;
            memcpy(value, node_value(node, slot), len);
        }
        struct tree_key k = node_key(node, slot), next;
        switch (data[i] % 3) {
        case 0:
            if (node_room(node) + node_value_len(node, slot) >= len)
                node_replace(node, slot, v, len);
            break;
        case 1:
            node_delete(node, slot);
            break;
        default:
            if (!key_next(&k, &next) || node_is_at(node, slot + 1, &next))
                break;
            if (node_room(node) >= SLOT_SIZE + len) {
                node_insert(node, slot + 1, &next, v, len);
            } else {
                node_init(other, node_header(node)->level);
                node_split(node, other, slot + 1, &next, v, len);
                expect_good(other);
                if (node_room(node) >= node_used(other))
                    node_merge(node, other, true);
            }
        }
        expect_good(node);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    build(data, size);
    char why[128];
    struct uuid volume = node_header(node)->volume;
    struct disk_node_pointer p = {.space = node_header(node)->space,
                                  .block = node_header(node)->block,
                                  .birth_logical = node_header(node)->birth,
                                  .level = node_header(node)->level};
    int err = tree_node_check(node, &p, &volume, why, sizeof(why));
    assert(err == 0 || err == ERR_VOLUME_CORRUPT);
    if (err)
        return 0;
    read_all();
    change(data, size);
    return 0;
}
