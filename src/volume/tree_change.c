/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes: they find everything in memory and all memory reserved (T1), so that they neither yield nor fail.
 *
 * A change goes down from the root and copies each node on its path that the open txg has not made (T2). A
 * full node is split, and its parent gets one slot more, up to a new root. A node that a deletion emptied is
 * taken out of its parent; one that is left with little takes in a sibling, if that is in memory and both
 * fill at most three quarters, so that the next few insertions do not split it again. A root with one child
 * gives way to it.
 */
#include "volume/tree_internal.h"

#include "runtime/error.h"

/* Used bytes below which a node looks for a sibling to take in, and what both may have together. */
#define MERGE_BELOW (NODE_SPACE / 4)
#define MERGE_LIMIT (NODE_SPACE / 4 * 3)

struct path { /* by level; every node is of the open txg */
    struct tree_node *node[TREE_LEVELS_MAX];
    uint32_t slot[TREE_LEVELS_MAX]; /* in inner nodes: the child on the path */
};

/* ---- Making and giving up nodes ---- */

/* A spare node at a new address, without content, in the cache and in the open txg. */
static struct tree_node *node_make(struct tree *t, uint8_t level)
{
    struct list *l = list_pop(&t->spare);
    assert(l != NULL); /* T1: tree_prepare() reserved enough */
    t->spare_nodes--;
    struct tree_node *n = CONTAINER_OF(l, struct tree_node, link);
    struct node_address a = t->store->alloc(t->store->ctx, t->txg);
    n->entry.key = (struct cache_key){t->volume_tag, a.space, a.block};
    n->birth = t->txg;
    n->level = level;
    n->state = NODE_OPEN;
    list_append(&t->dirty, &n->link);
    t->dirty_nodes++;
    cache_add_node(t->cache, &n->entry, true);
    return n;
}

static void node_sign(const struct tree *t, struct tree_node *n)
{
    struct disk_node_header *h = (struct disk_node_header *)n->data;
    h->birth = le64_make(n->birth);
    h->volume = t->volume;
    h->head = le32_make(t->head);
    h->space = le32_make(n->entry.key.space);
    h->block = le64_make(n->entry.key.block);
}

static struct tree_node *node_make_empty(struct tree *t, uint8_t level)
{
    struct tree_node *n = node_make(t, level);
    node_init(n->data, level);
    node_sign(t, n);
    return n;
}

/* The checksum comes with tree_close_txg(). */
static struct disk_node_pointer pointer_to(const struct tree_node *n)
{
    return (struct disk_node_pointer){
        .space = le32_make(n->entry.key.space),
        .blocks = le32_make(NODE_BLOCKS),
        .block = le64_make(n->entry.key.block),
        .birth_logical = le64_make(n->birth),
        .birth_physical = le64_make(n->birth),
        .checksum_type = CHECKSUM_CRC32C,
        .checksum_width = sizeof(struct le32),
        .level = n->level,
    };
}

static void node_drop(struct tree *t, struct tree_node *n)
{
    struct node_address a = {n->entry.key.space, n->entry.key.block};
    t->store->free(t->store->ctx, a, n->birth, t->txg);
    if (t->hint == n)
        tree_hint_drop(t);
    if (n->state == NODE_OPEN) {
        list_remove(&n->link);
        t->dirty_nodes--;
        n->state = NODE_CLEAN;
    }
    cache_remove(t->cache, &n->entry);
}

/* T2: the node that *p names, as one of the open txg. */
static struct tree_node *node_own(struct tree *t, struct disk_node_pointer *p)
{
    struct tree_node *n = tree_resident(t, p);
    assert(n != NULL); /* T1 */
    if (PREDICT_TRUE(n->state == NODE_OPEN))
        return n;
    assert(n->birth < t->txg);
    struct tree_node *copy = node_make(t, n->level);
    memcpy(copy->data, n->data, NODE_SIZE);
    node_sign(t, copy);
    *p = pointer_to(copy);
    node_drop(t, n);
    return copy;
}

/* Owns the path to the leaf of key. lower: an item with this key is going to be inserted (S2). */
static struct tree_node *path_own(struct tree *t, const struct tree_key *key, bool lower, struct path *path)
{
    struct disk_node_pointer *p = &t->root;
    for (;;) {
        struct tree_node *n = node_own(t, p);
        path->node[n->level] = n;
        if (n->level == 0)
            return n;
        uint32_t slot = node_child_slot(n->data, key);
        path->slot[n->level] = slot;
        if (slot == 0 && lower) {
            struct tree_key least = node_key(n->data, 0);
            if (key_less(key, &least))
                node_set_key(n->data, 0, key);
        }
        p = node_pointer(n->data, slot);
    }
}

/* ---- Putting ---- */

static void root_grow(struct tree *t, struct tree_node *left, const struct tree_key *key,
                      const struct disk_node_pointer *right)
{
    assert(left->level + 1u < TREE_LEVELS_MAX);
    struct tree_node *root = node_make_empty(t, left->level + 1);
    struct tree_key least = node_key(left->data, 0);
    node_insert(root->data, 0, &least, &t->root, POINTER_SIZE);
    node_insert(root->data, 1, key, right, POINTER_SIZE);
    t->root = pointer_to(root);
}

/* Inserts into the leaf of the path; splits as far up as it must. */
static void insert_at(struct tree *t, const struct path *path, uint32_t slot, const struct tree_key *key,
                      const void *value, uint32_t len)
{
    struct tree_key at = *key;
    struct disk_node_pointer pointer;
    for (uint8_t level = 0;; level++) {
        struct tree_node *n = path->node[level];
        if (node_room(n->data) >= SLOT_SIZE + len) {
            node_insert(n->data, slot, &at, value, len);
            return;
        }
        tree_hint_drop(t);
        struct tree_node *right = node_make_empty(t, level);
        node_split(n->data, right->data, slot, &at, value, len);
        at = node_key(right->data, 0);
        pointer = pointer_to(right);
        value = &pointer;
        len = POINTER_SIZE;
        if (level == t->root.level) {
            root_grow(t, n, &at, &pointer);
            return;
        }
        slot = path->slot[level + 1] + 1;
    }
}

static void put_slow(struct tree *t, const struct tree_key *key, const void *value, uint32_t len)
{
    struct path path;
    tree_hint_drop(t);
    if (tree_is_empty(t)) {
        struct tree_node *root = node_make_empty(t, 0);
        node_insert(root->data, 0, key, value, len);
        t->root = pointer_to(root);
        return;
    }
    struct tree_node *leaf = path_own(t, key, true, &path);
    uint32_t slot = node_lower_bound(leaf->data, key);
    if (node_is_at(leaf->data, slot, key)) {
        if (node_room(leaf->data) + node_value_len(leaf->data, slot) >= len) {
            node_replace(leaf->data, slot, value, len);
            return;
        }
        node_delete(leaf->data, slot);
    }
    insert_at(t, &path, slot, key, value, len);
}

void tree_put_now(struct tree *t, const struct tree_key *key, const void *value, uint32_t len)
{
    assert(len >= 1 && len <= ITEM_LEN_MAX);
    t->changes++;
    struct tree_node *leaf = tree_hint_find(t, key);
    if (PREDICT_TRUE(leaf && leaf->state == NODE_OPEN)) {
        uint32_t slot = node_lower_bound(leaf->data, key), room = node_room(leaf->data);
        if (node_is_at(leaf->data, slot, key)) {
            if (PREDICT_TRUE(room + node_value_len(leaf->data, slot) >= len)) {
                node_replace(leaf->data, slot, value, len);
                return;
            }
        } else if (PREDICT_TRUE(room >= SLOT_SIZE + len)) {
            node_insert(leaf->data, slot, key, value, len);
            return;
        }
    }
    put_slow(t, key, value, len);
}

/* ---- Deleting ---- */

/* Takes in the sibling at `slot` of the parent (the node itself is at path->slot). */
static bool take_in(struct tree *t, struct path *path, uint8_t level, bool above)
{
    struct tree_node *n = path->node[level], *parent = path->node[level + 1];
    uint32_t slot = path->slot[level + 1];
    if (above ? slot + 1 >= node_count(parent->data) : slot == 0)
        return false;
    uint32_t other_slot = above ? slot + 1 : slot - 1;
    struct tree_node *other = tree_resident(t, node_pointer(parent->data, other_slot));
    if (!other)
        return false;
    uint32_t together = node_used(n->data) + node_used(other->data);
    /* Nor may it take away the room that the preparation found for insertions that are still to come. */
    if (together > MERGE_LIMIT || together + t->room_promised > NODE_SPACE)
        return false;
    node_merge(n->data, other->data, above);
    node_drop(t, other);
    if (!above) { /* the lower slot's key, with this node's pointer */
        struct disk_node_pointer p = *node_pointer(parent->data, slot);
        node_replace(parent->data, other_slot, &p, POINTER_SIZE);
        path->slot[level + 1] = other_slot;
    }
    node_delete(parent->data, MAX(slot, other_slot));
    return true;
}

static void root_shrink(struct tree *t, struct tree_node *root)
{
    while (root && root->level > 0 && node_count(root->data) == 1) {
        t->root = *node_pointer(root->data, 0);
        node_drop(t, root);
        root = tree_resident(t, &t->root);
    }
}

/* After a deletion in the leaf of the path: empty and nearly empty nodes. */
static void shrink(struct tree *t, struct path *path)
{
    for (uint8_t level = 0;; level++) {
        struct tree_node *n = path->node[level];
        bool is_root = level == t->root.level;
        if (node_count(n->data) == 0) {
            node_drop(t, n);
            if (is_root) {
                t->root = (struct disk_node_pointer){.blocks = le32_make(0)};
                return;
            }
            node_delete(path->node[level + 1]->data, path->slot[level + 1]);
        } else if (is_root) {
            root_shrink(t, n);
            return;
        } else if (node_used(n->data) >= MERGE_BELOW) {
            return;
        } else if (!take_in(t, path, level, true) && !take_in(t, path, level, false)) {
            return;
        }
    }
}

int tree_delete_now(struct tree *t, const struct tree_key *key)
{
    if (tree_is_empty(t))
        return ERR_NOT_FOUND;
    struct tree_node *leaf = tree_hint_find(t, key);
    if (!leaf) {
        struct tree_place place;
        struct disk_node_pointer miss;
        bool resident = tree_descend(t, key, &place, &miss);
        assert(resident); /* T1 */
        leaf = place.leaf;
        tree_hint_set(t, leaf, place.at, place.right);
    }
    uint32_t slot = node_lower_bound(leaf->data, key);
    if (!node_is_at(leaf->data, slot, key))
        return ERR_NOT_FOUND;
    t->changes++;
    uint32_t item = SLOT_SIZE + node_value_len(leaf->data, slot);
    if (leaf->state == NODE_OPEN && node_used(leaf->data) - item >= MERGE_BELOW) {
        node_delete(leaf->data, slot);
        return 0;
    }
    tree_hint_drop(t);
    struct path path;
    leaf = path_own(t, key, false, &path);
    node_delete(leaf->data, slot);
    shrink(t, &path);
    return 0;
}
