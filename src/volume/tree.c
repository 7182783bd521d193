/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree: descents through what is in memory, the hint, lookups and cursors.
 *
 * Shape
 *  S1  all leaves have level 0; no node is empty; an empty tree has no root (root.blocks == 0);
 *  S2  a child's keys are >= its slot's key in the parent and < the next slot's key. The lowest child also
 * takes keys below its slot's key; putting one there first lowers the keys of the slots on the way down; S3
 * a node of the open txg is in the cache (dirty, never evicted), in tree->dirty, and so is its parent.
 *
 * Nodes are found through the cache by their address. Since an address can be freed and used again while a
 * fiber waits for a read of it, a node counts as the one that a parent names only if the birth is right too.
 *
 * Whatever must wait for a drive does so with nothing in hand, and then looks from the root again. What a
 * fiber found stays valid until it yields: a change is made by a fiber that does not yield, and eviction only
 * happens when pages are allocated, which the tree does only where it holds what it needs by pins.
 *
 * Files: tree_node.c (bytes of one node), tree.c, tree_read.c (missing nodes), tree_prepare.c and
 * tree_change.c (changes), tree_commit.c (sealing), tree_walk.c (checking and walking).
 */
#include "volume/tree_internal.h"

#include "runtime/error.h"

#include <stdlib.h>

void tree_init(struct tree *t, const struct node_store *store, struct cache *c, uint32_t volume_tag,
               struct uuid volume, uint32_t head, const struct disk_node_pointer *root, uint64_t txg)
{
    *t = (struct tree){
        .store = store,
        .cache = c,
        .volume_tag = volume_tag,
        .volume = volume,
        .head = head,
        .txg = txg,
    };
    if (root)
        t->root = *root;
    assert(tree_is_empty(t) || le64_get(t->root.birth_logical) < txg);
    list_init(&t->dirty);
    list_init(&t->spare);
    list_init(&t->reads);
}

void tree_done(struct tree *t)
{
    assert(list_empty(&t->reads));
    assert(t->sealed_nodes == 0);
    tree_hint_drop(t);
    tree_prepared_release(t);
    tree_spare_trim(t, 0);
    struct list *l;
    while ((l = list_pop(&t->dirty)) != NULL) {
        struct tree_node *n = CONTAINER_OF(l, struct tree_node, link);
        n->state = NODE_CLEAN;
        cache_remove(t->cache, &n->entry);
    }
    t->dirty_nodes = 0;
}

void tree_node_evicted(struct cache_entry *e)
{
    struct tree_node *n = CONTAINER_OF(e, struct tree_node, entry);
    assert(n->state == NODE_CLEAN);
    free(n);
}

struct tree_node *tree_resident(struct tree *t, const struct disk_node_pointer *p)
{
    struct cache_entry *e = cache_find(t->cache, pointer_cache_key(t, p));
    if (PREDICT_FALSE(!e || e->kind != CACHE_NODE))
        return NULL;
    struct tree_node *n = CONTAINER_OF(e, struct tree_node, entry);
    /* From the bytes, which are needed next, not from n, whose second half is not. */
    return PREDICT_TRUE(le64_get(node_header(n->data)->birth) == le64_get(p->birth_logical)) ? n : NULL;
}

bool tree_descend(struct tree *t, const struct tree_key *key, struct tree_place *ret,
                  struct disk_node_pointer *ret_miss)
{
    const struct disk_node_pointer *p = &t->root;
    struct tree_place place = {NULL, NULL, NULL, NULL};
    for (;;) {
        struct tree_node *n = tree_resident(t, p);
        if (PREDICT_FALSE(!n)) {
            *ret_miss = *p;
            return false;
        }
        if (node_header(n->data)->level == 0) {
            place.leaf = n;
            *ret = place;
            return true;
        }
        uint32_t slot = node_child_slot(n->data, key);
        place.at = node_slot(n->data, slot);
        if (slot > 0)
            place.left = place.at;
        if (slot + 1 < node_count(n->data))
            place.right = place.at + 1;
        p = (const struct disk_node_pointer *)(n->data + le16_get(place.at->offset));
    }
}

static inline struct tree_key slot_key(const struct disk_slot *s)
{
    return (struct tree_key){le64_get(s->key.object), s->key.type, le64_get(s->key.offset)};
}

void tree_hint_set(struct tree *t, struct tree_node *leaf, const struct disk_slot *at,
                   const struct disk_slot *right)
{
    if (leaf != t->hint) {
        cache_pin(&leaf->entry);
        if (t->hint)
            cache_unpin(t->cache, &t->hint->entry);
        t->hint = leaf;
    }
    t->hint_low = at ? slot_key(at) : TREE_KEY_MIN;
    t->hint_has_high = right != NULL;
    if (right)
        t->hint_high = slot_key(right);
}

void tree_hint_drop(struct tree *t)
{
    if (t->hint)
        cache_unpin(t->cache, &t->hint->entry);
    t->hint = NULL;
}

/* The leaf in which key belongs, by the hint or from the root; NULL: *ret_miss is not in memory. */
static inline struct tree_node *find_leaf(struct tree *t, const struct tree_key *key,
                                          struct disk_node_pointer *ret_miss)
{
    struct tree_node *leaf = tree_hint_find(t, key);
    if (leaf)
        return leaf;
    struct tree_place place;
    if (!tree_descend(t, key, &place, ret_miss))
        return NULL;
    tree_hint_set(t, place.leaf, place.at, place.right);
    return place.leaf;
}

int tree_get_now(struct tree *t, const struct tree_key *key, const void **ret_value, uint32_t *ret_len)
{
    struct disk_node_pointer miss;
    if (tree_is_empty(t))
        return ERR_NOT_FOUND;
    struct tree_node *leaf = find_leaf(t, key, &miss);
    if (PREDICT_FALSE(!leaf))
        return TREE_NOT_RESIDENT;
    uint32_t slot = node_lower_bound(leaf->data, key);
    if (!node_is_at(leaf->data, slot, key))
        return ERR_NOT_FOUND;
    *ret_value = node_value(leaf->data, slot);
    *ret_len = node_value_len(leaf->data, slot);
    return 0;
}

int tree_get(struct tree *t, const struct tree_key *key, void *buf, uint32_t max, uint32_t *ret_len)
{
    struct disk_node_pointer miss;
    while (!tree_is_empty(t)) {
        struct tree_node *leaf = find_leaf(t, key, &miss);
        if (PREDICT_FALSE(!leaf)) {
            int err = tree_fetch(t, &miss, NULL);
            if (err)
                return err;
            continue;
        }
        uint32_t slot = node_lower_bound(leaf->data, key);
        if (!node_is_at(leaf->data, slot, key))
            return ERR_NOT_FOUND;
        uint32_t len = node_value_len(leaf->data, slot);
        if (len > max)
            return ERR_INVALID;
        memcpy(buf, node_value(leaf->data, slot), len);
        *ret_len = len;
        return 0;
    }
    return ERR_NOT_FOUND;
}

/* ---- Cursors ---- */

static void cursor_set(struct tree_cursor *c, struct tree *t, struct tree_node *leaf, uint32_t slot)
{
    c->tree = t;
    c->key = node_key(leaf->data, slot);
    c->value = node_value(leaf->data, slot);
    c->len = node_value_len(leaf->data, slot);
    c->changes = t->changes;
    c->leaf = leaf;
    c->slot = slot;
}

/* The slot in this leaf; not below its count if there is none. */
static inline uint32_t seek_slot(const struct tree_node *leaf, const struct tree_key *key, enum tree_seek how)
{
    uint32_t slot = node_lower_bound(leaf->data, key);
    if (how == SEEK_LE && !node_is_at(leaf->data, slot, key))
        slot--; /* 0 wraps */
    return slot;
}

/* Seeks in what is in memory: 0, ERR_NOT_FOUND, or TREE_NOT_RESIDENT and the missing node. */
static int seek_resident(struct tree_cursor *c, struct tree *t, const struct tree_key *key,
                         enum tree_seek how, struct disk_node_pointer *ret_miss)
{
    struct tree_key at = *key;
    if (tree_is_empty(t))
        return ERR_NOT_FOUND;
    struct tree_node *leaf = tree_hint_find(t, &at);
    if (leaf) {
        uint32_t slot = seek_slot(leaf, &at, how);
        if (slot < node_count(leaf->data)) {
            cursor_set(c, t, leaf, slot);
            return 0;
        }
    }
    /* At most twice: leaves are not empty, so the next one over has what the first one lacks. */
    for (;;) {
        struct tree_place place;
        if (!tree_descend(t, &at, &place, ret_miss))
            return TREE_NOT_RESIDENT;
        tree_hint_set(t, place.leaf, place.at, place.right);
        uint32_t slot = seek_slot(place.leaf, &at, how);
        if (slot < node_count(place.leaf->data)) {
            cursor_set(c, t, place.leaf, slot);
            return 0;
        }
        if (how == SEEK_GE) {
            if (!place.right)
                return ERR_NOT_FOUND;
            at = slot_key(place.right);
        } else {
            if (!place.left)
                return ERR_NOT_FOUND;
            struct tree_key low = slot_key(place.left);
            bool has = key_prev(&low, &at);
            assert(has);
        }
    }
}

int tree_seek(struct tree_cursor *c, struct tree *t, const struct tree_key *key, enum tree_seek how)
{
    struct tree_key at = *key; /* may be the cursor's own */
    for (;;) {
        struct disk_node_pointer miss;
        int err = seek_resident(c, t, &at, how, &miss);
        if (err != TREE_NOT_RESIDENT)
            return err;
        err = tree_fetch(t, &miss, NULL);
        if (err)
            return err;
    }
}

int tree_seek_resident(struct tree_cursor *c, struct tree *t, const struct tree_key *key, enum tree_seek how)
{
    struct disk_node_pointer miss;
    return seek_resident(c, t, key, how, &miss);
}

int tree_seek_now(struct tree_cursor *c, struct tree *t, const struct tree_key *key, enum tree_seek how)
{
    int err = tree_seek_resident(c, t, key, how);
    return err == TREE_NOT_RESIDENT ? ERR_NOT_FOUND : err;
}

/* The cursor's leaf is still there and unchanged. It is known to be alive only as the hint, which is pinned;
 * the key tells it from another leaf that got the same memory. */
static bool cursor_is_good(const struct tree_cursor *c)
{
    const struct tree *t = c->tree;
    return c->leaf == t->hint && c->changes == t->changes && t->hint &&
           node_is_at(c->leaf->data, c->slot, &c->key);
}

int tree_next(struct tree_cursor *c)
{
    if (cursor_is_good(c) && c->slot + 1 < node_count(c->leaf->data)) {
        cursor_set(c, c->tree, c->leaf, c->slot + 1);
        return 0;
    }
    struct tree_key next;
    if (!key_next(&c->key, &next))
        return ERR_NOT_FOUND;
    return tree_seek(c, c->tree, &next, SEEK_GE);
}

int tree_next_now(struct tree_cursor *c)
{
    if (cursor_is_good(c) && c->slot + 1 < node_count(c->leaf->data)) {
        cursor_set(c, c->tree, c->leaf, c->slot + 1);
        return 0;
    }
    struct tree_key next;
    if (!key_next(&c->key, &next))
        return ERR_NOT_FOUND;
    return tree_seek_now(c, c->tree, &next, SEEK_GE);
}

int tree_prev(struct tree_cursor *c)
{
    if (cursor_is_good(c) && c->slot > 0) {
        cursor_set(c, c->tree, c->leaf, c->slot - 1);
        return 0;
    }
    struct tree_key prev;
    if (!key_prev(&c->key, &prev))
        return ERR_NOT_FOUND;
    return tree_seek(c, c->tree, &prev, SEEK_LE);
}

int tree_put(struct tree *t, const struct tree_key *key, const void *value, uint32_t len)
{
    int err = tree_prepare(t, key, key, 1, len, NULL);
    if (!err)
        tree_put_now(t, key, value, len);
    return err;
}

int tree_delete(struct tree *t, const struct tree_key *key)
{
    int err = tree_prepare(t, key, key, 0, 0, NULL);
    return err ? err : tree_delete_now(t, key);
}
