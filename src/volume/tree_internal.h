/* SPDX-License-Identifier: Apache-2.0 */
/* What the tree's own files share: nodes in memory, operations on a node's bytes, descents. */
#ifndef ASHLAR_VOLUME_TREE_INTERNAL_H
#define ASHLAR_VOLUME_TREE_INTERNAL_H

#include "volume/tree.h"

#include <stdalign.h>

/* More levels than any tree gets: every level but the top one was full once. */
#define TREE_LEVELS_MAX 12u
#define NODE_SPACE      (NODE_SIZE - (uint32_t)sizeof(struct disk_node_header)) /* slots and items */
#define SLOT_SIZE       ((uint32_t)sizeof(struct disk_slot))
#define ITEM_SPACE_MAX  (SLOT_SIZE + ITEM_LEN_MAX)
#define POINTER_SIZE    ((uint32_t)sizeof(struct disk_node_pointer))

/*
 *           tree_close_txg()          tree_write_done()
 *    OPEN ------------------> SEALED ------------------> CLEAN
 *      ^                        |                          |
 *      '------- a copy under another address (T2) ---------'
 */
enum node_state {
    NODE_CLEAN,  /* on the drives */
    NODE_OPEN,   /* made by the open txg: in tree->dirty, changed in place */
    NODE_SEALED, /* being written: pinned, never changes again */
    NODE_SPARE,  /* in tree->spare: memory for a node to come; not in the cache */
};

struct tree_node {
    /* One line of the processor's cache: all that a descent reads. */
    alignas(64) struct cache_entry entry; /* first: the cache knows only this */
    uint8_t *data;                        /* NODE_SIZE bytes: entry.page's */

    uint64_t birth;
    uint8_t level;
    uint8_t state;
    uint64_t met;     /* the last preparation that met it: tree->prepares */
    struct list link; /* OPEN: tree->dirty; SPARE: tree->spare */
    struct tree_write write;
};
static_assert(offsetof(struct tree_node, entry) == 0, "the cache frees nodes by their entry");
static_assert(offsetof(struct tree_node, birth) == 64, "a descent reads one line of a node");

/* ---- tree_node.c: the bytes of one node; what is passed must have passed tree_node_check() ---- */

static inline const struct disk_node_header *node_header(const uint8_t *data)
{
    return (const struct disk_node_header *)data;
}
static inline uint32_t node_count(const uint8_t *data)
{
    return le16_get(node_header(data)->count);
}
static inline const struct disk_slot *node_slot(const uint8_t *data, uint32_t i)
{
    return (const struct disk_slot *)(data + sizeof(struct disk_node_header)) + i;
}
static inline uint8_t *node_value(uint8_t *data, uint32_t i)
{
    return data + le16_get(node_slot(data, i)->offset);
}
static inline uint32_t node_value_len(const uint8_t *data, uint32_t i)
{
    return le16_get(node_slot(data, i)->len);
}
static inline struct tree_key node_key(const uint8_t *data, uint32_t i)
{
    const struct disk_key *k = &node_slot(data, i)->key;
    return (struct tree_key){le64_get(k->object), k->type, le64_get(k->offset)};
}
static inline struct disk_node_pointer *node_pointer(uint8_t *data, uint32_t i)
{
    return (struct disk_node_pointer *)node_value(data, i);
}
/* a < b, without branches, which in a search nobody can predict: the borrow of a subtraction of long numbers.
 */
static inline uint64_t key_less_bit(uint64_t object, uint8_t type, uint64_t offset, const struct tree_key *b)
{
    uint64_t borrow = offset < b->offset;
    borrow = (uint64_t)type < b->type + borrow;
    uint64_t same = object == b->object;
    borrow &= same;
    /* Otherwise gcc makes branches of it again. */
    __asm__("" : "+r"(borrow));
    return borrow | (object < b->object);
}
static inline bool key_less(const struct tree_key *a, const struct tree_key *b)
{
    return key_less_bit(a->object, a->type, a->offset, b) != 0;
}
static inline bool key_equal(const struct tree_key *a, const struct tree_key *b)
{
    return ((a->object ^ b->object) | (a->offset ^ b->offset) | (uint64_t)(a->type ^ b->type)) == 0;
}
/* Neighbours in the order of keys. The last key has no next, the first no previous one: false. */
bool key_next(const struct tree_key *k, struct tree_key *ret);
bool key_prev(const struct tree_key *k, struct tree_key *ret);

/* Free bytes, holes included. An insertion takes SLOT_SIZE + len. */
static inline uint32_t node_room(const uint8_t *data)
{
    const struct disk_node_header *h = node_header(data);
    return le16_get(h->items_start) + le16_get(h->free_bytes) - (uint32_t)sizeof(*h) -
           node_count(data) * SLOT_SIZE;
}
static inline uint32_t node_used(const uint8_t *data)
{
    return NODE_SPACE - node_room(data);
}
/* First slot with a key >= key; count if there is none. */
uint32_t node_lower_bound(const uint8_t *data, const struct tree_key *key);
/* The child in which key belongs: last slot <= key, or slot 0 (the lowest child also takes what is below). */
uint32_t node_child_slot(const uint8_t *data, const struct tree_key *key);
/* Whether slot holds exactly this key (slot may be count). */
static inline bool node_is_at(const uint8_t *data, uint32_t slot, const struct tree_key *key)
{
    if (slot >= node_count(data))
        return false;
    struct tree_key k = node_key(data, slot);
    return key_equal(&k, key);
}

/* An empty node (all zero but magic, version, level, items_start). */
void node_init(uint8_t *data, uint8_t level);
/* node_room() must be enough. */
void node_insert(uint8_t *data, uint32_t slot, const struct tree_key *key, const void *value, uint32_t len);
/* Another value of any length. node_room() + old length must be enough. */
void node_replace(uint8_t *data, uint32_t slot, const void *value, uint32_t len);
void node_delete(uint8_t *data, uint32_t slot);
void node_set_key(uint8_t *data, uint32_t slot, const struct tree_key *key);
/* Splits a full node and inserts the item that did not fit at `slot`: the upper part goes to `right`, an
 * empty node. Both have at least one item afterwards. */
void node_split(uint8_t *left, uint8_t *right, uint32_t slot, const struct tree_key *key, const void *value,
                uint32_t len);
/* All items of the other node into this one: they are all greater (above) or all less. Room must be enough.
 */
void node_merge(uint8_t *data, uint8_t *other, bool above);

/* ---- tree.c ---- */

static inline struct cache_key pointer_cache_key(const struct tree *t, const struct disk_node_pointer *p)
{
    return (struct cache_key){t->volume_tag, le32_get(p->space), le64_get(p->block)};
}
static inline bool tree_is_empty(const struct tree *t)
{
    return le32_get(t->root.blocks) == 0;
}
/* The node if it is in memory, or NULL. */
struct tree_node *tree_resident(struct tree *t, const struct disk_node_pointer *p);

/* Where a key belongs. */
struct tree_place {
    struct tree_node *leaf;
    const struct disk_slot *at;    /* leaf's slot in its parent; NULL: the root is the leaf */
    const struct disk_slot *left;  /* nearest slot on the path that has one before it; NULL: the first leaf */
    const struct disk_slot *right; /* key of the next leaf; NULL: the last leaf */
};
/* True, or the node that is missing in *ret_miss. The tree is not empty. */
bool tree_descend(struct tree *t, const struct tree_key *key, struct tree_place *ret,
                  struct disk_node_pointer *ret_miss);
/* The last leaf that was used, pinned: most lookups after each other hit the same one. */
void tree_hint_set(struct tree *t, struct tree_node *leaf, const struct disk_slot *at,
                   const struct disk_slot *right);
void tree_hint_drop(struct tree *t);
/* The hint's leaf if the key belongs there and the tree's upper levels need no change for it; or NULL. */
static inline struct tree_node *tree_hint_find(const struct tree *t, const struct tree_key *key)
{
    if (!t->hint || key_less(key, &t->hint_low) || (t->hint_has_high && !key_less(key, &t->hint_high)))
        return NULL;
    return t->hint;
}

/* ---- tree_read.c ---- */

/* Nodes that a fiber holds pinned. */
struct tree_held {
    uint32_t count;
    struct tree_node *nodes[TREE_PREPARED_MAX];
};
void tree_held_release(struct tree *t, struct tree_held *h);

/* Brings a missing node in, or waits for another fiber that does. 0: look again from the root. `held` (may be
 * NULL) is released if memory is short. */
int tree_fetch(struct tree *t, const struct disk_node_pointer *p, struct tree_held *held)
    MUST_CHECK may_yield;
/* One more spare node without waiting. ERR_NO_MEMORY. */
int tree_spare_add(struct tree *t) MUST_CHECK;
/* The same, but waits for memory. */
int tree_spare_wait(struct tree *t) MUST_CHECK may_yield;
void tree_spare_trim(struct tree *t, uint32_t keep);

/* Memory of a node that is not in the cache. */
void tree_node_free(struct tree_node *n);

/* ---- tree_prepare.c ---- */

/* Unpins what the last preparation held. */
void tree_prepared_release(struct tree *t);

#endif
