/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many look-ups at once.
 *
 * In a tree that is larger than the processor's caches a look-up is a chain of waits for memory: bucket,
 * entry, node, slots, value; each is known only when the one before has come. Those of different keys do not
 * depend on each other. So all keys go one step before any goes the next, and each step asks for what the
 * next one reads: their waits overlap.
 */
#include "volume/tree_internal.h"

#include "runtime/error.h"

#define HEAD_LINES  11u /* of a node: its header and the slots of one with large values */
#define VALUE_LINES 3u  /* of a value: an inode */
#define LINE        64u

static void fetch_lines(const void *from, uint32_t lines)
{
    for (uint32_t i = 0; i < lines; i++)
        __builtin_prefetch((const uint8_t *)from + i * LINE);
}

struct descent {
    const struct disk_node_pointer *pointer;
    struct tree_node *node; /* of the pointer; NULL: this one has ended */
};

/* Pointers to nodes. */
static void step_nodes(struct tree *t, struct tree_lookup *l, struct descent *d, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (l[i].result == 0)
            cache_prefetch(t->cache, pointer_cache_key(t, d[i].pointer), false);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (l[i].result == 0)
            cache_prefetch(t->cache, pointer_cache_key(t, d[i].pointer), true);
    }
    for (uint32_t i = 0; i < count; i++) {
        d[i].node = NULL;
        if (l[i].result != 0)
            continue;
        struct cache_entry *e = cache_find(t->cache, pointer_cache_key(t, d[i].pointer));
        if (!e || e->kind != CACHE_NODE) {
            l[i].result = TREE_NOT_RESIDENT;
            continue;
        }
        d[i].node = CONTAINER_OF(e, struct tree_node, entry);
        fetch_lines(d[i].node->data, d[i].pointer->level > 0 ? 1 : HEAD_LINES);
    }
}

/* Nodes to the next level's pointers, or to values. False: these were leaves. */
static bool step_slots(struct tree_lookup *l, struct descent *d, uint32_t count)
{
    bool more = false;
    for (uint32_t i = 0; i < count; i++) {
        if (!d[i].node)
            continue;
        uint8_t *data = d[i].node->data;
        if (le64_get(node_header(data)->birth) != le64_get(d[i].pointer->birth_logical)) {
            l[i].result = TREE_NOT_RESIDENT;
            continue;
        }
        if (node_header(data)->level > 0) {
            d[i].pointer = node_pointer(data, node_child_slot(data, &l[i].key));
            fetch_lines(d[i].pointer, 1);
            more = true;
            continue;
        }
        uint32_t slot = node_lower_bound(data, &l[i].key);
        if (!node_is_at(data, slot, &l[i].key)) {
            l[i].result = ERR_NOT_FOUND;
            continue;
        }
        l[i].value = node_value(data, slot);
        l[i].len = node_value_len(data, slot);
        fetch_lines(l[i].value, VALUE_LINES);
    }
    return more;
}

void tree_get_many(struct tree *t, struct tree_lookup *l, uint32_t count)
{
    struct descent d[TREE_LOOKUPS_MAX];
    assert(count <= TREE_LOOKUPS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        l[i].result = tree_is_empty(t) ? ERR_NOT_FOUND : 0;
        d[i].pointer = &t->root;
    }
    if (tree_is_empty(t))
        return;
    do
        step_nodes(t, l, d, count);
    while (step_slots(l, d, count));
}
