/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy-on-write B-tree: variable-size items under (object, type, offset), in 16 KiB nodes.
 *
 * How changes and yields go together
 *  T1  a change happens without a yield: tree_prepare() makes resident what the change can touch and reserves
 *      memory and blocks; after it, until the caller yields, the *_now calls neither yield nor fail for lack
 * of anything. So a reader never sees half of an operation, and the tree needs no locks; T2  a node whose
 * birth is the tree's open txg is changed in place; any other one is first copied to a new address
 * (node_store.alloc), its old address freed (node_store.free), its parent changed: top down, so that a path
 * is copied once in a txg; T3  tree_close_txg() seals what the txg made: computes checksums from the leaves
 * up, takes the dirty nodes off and raises the open txg. It does not yield. Sealed nodes never change again.
 */
#ifndef ASHLAR_VOLUME_TREE_H
#define ASHLAR_VOLUME_TREE_H

#include "volume/cache.h"
#include "volume/format.h"

struct tree_key {
    uint64_t object;
    uint8_t type;
    uint64_t offset;
};
int tree_key_compare(const struct tree_key *a, const struct tree_key *b);
#define TREE_KEY_MIN ((struct tree_key){0, 0, 0})
#define TREE_KEY_MAX ((struct tree_key){UINT64_MAX, UINT8_MAX, UINT64_MAX})

struct node_address {
    uint32_t space;
    uint64_t block;
};

/* Where nodes come from and go to: the volume (tests: memory). */
struct node_store {
    /* A place for one node. Must not yield; reserve() was called with enough. */
    struct node_address (*alloc)(void *ctx, uint64_t txg);
    /* The place is not referenced any more by this tree from txg on. birth: of the node that lay there. */
    void (*free)(void *ctx, struct node_address a, uint64_t birth, uint64_t txg);
    /* Makes sure that the next n alloc() succeed until the caller yields. may_yield (all of store's are
     * called from fibers that may). ERR_VOLUME_FULL. */
    int (*reserve)(void *ctx, uint32_t n);
    /* Reads and verifies NODE_BLOCKS blocks into the pages. may_yield. ERR_NO_GOOD_COPY … */
    int (*read)(void *ctx, const struct disk_node_pointer *p, struct page *pages);
    void *ctx;
};

struct tree_node;              /* tree_internal.h */
#define TREE_RANGES_MAX   24u  /* of one preparation */
#define TREE_PREPARED_MAX 896u /* nodes of one preparation */

struct tree {
    const struct node_store *store;
    struct cache *cache;
    uint32_t volume_tag;
    struct uuid volume;
    uint32_t head;
    struct disk_node_pointer root; /* blocks == 0: empty. Its checksum is right only after tree_close_txg() */
    uint64_t txg;                  /* open: nodes of this birth may be changed */
    struct list dirty;             /* nodes of the open txg */
    uint32_t dirty_nodes;
    uint64_t changes; /* grows with every change: cursors revalidate */

    /* Private. */
    struct tree_node *hint; /* the leaf used last, pinned; holds keys hint_low <= key < hint_high */
    struct tree_key hint_low, hint_high;
    bool hint_has_high;
    uint32_t sealed_nodes; /* closed, tree_write_done() not yet called */
    struct list spare;     /* nodes to come: memory for what tree_prepare() promised */
    uint32_t spare_nodes;
    struct list reads;       /* nodes being read, so that each is read once */
    uint64_t prepares;       /* grows with every preparation */
    uint32_t room_promised;  /* bytes: what the last one's insertions may take in one leaf */
    uint32_t prepared_count; /* the last preparation's nodes, pinned: allocations of pages between it */
    struct tree_node *prepared[TREE_PREPARED_MAX]; /* and the changes cannot evict them */
};

/* root: of a committed txg, or NULL for an empty tree. txg: the open one. */
void tree_init(struct tree *t, const struct node_store *store, struct cache *c, uint32_t volume_tag,
               struct uuid volume, uint32_t head, const struct disk_node_pointer *root, uint64_t txg);
/* Forgets dirty nodes (a failed volume), drops nothing else from the cache. No fiber may be inside a call,
 * and every tree_write must have been given to tree_write_done(). */
void tree_done(struct tree *t);
/* For cache_new(): frees a node that leaves the cache. */
void tree_node_evicted(struct cache_entry *e);

/* ---- Reading; may yield for nodes that are not resident ---- */

/* Copies the value. ERR_NOT_FOUND; ERR_INVALID if max is too small; errors of the store. */
int tree_get(struct tree *t, const struct tree_key *key, void *buf, uint32_t max, uint32_t *ret_len)
    MUST_CHECK may_yield;

struct tree_cursor {
    struct tree *tree;
    struct tree_key key; /* of the item it stands on */
    const void *value;   /* borrowed until the next yield or change of the tree: copy */
    uint32_t len;
    uint64_t changes; /* tree->changes when value was found */
    struct tree_node *leaf;
    uint32_t slot;
};
enum tree_seek { SEEK_GE, SEEK_LE };
/* Onto the first item >= key or the last one <= key. ERR_NOT_FOUND if there is none. A cursor holds nothing;
 * it needs no release. */
int tree_seek(struct tree_cursor *c, struct tree *t, const struct tree_key *key, enum tree_seek how)
    MUST_CHECK may_yield;
/* The item after c->key (which may have been deleted meanwhile). ERR_NOT_FOUND at the end. */
int tree_next(struct tree_cursor *c) MUST_CHECK may_yield;
int tree_prev(struct tree_cursor *c) MUST_CHECK may_yield;

/* ---- Changing ---- */

/*
 * Prepares changes of items with keys in [first, last]: every leaf that can hold them, the item before first
 * and the one after last, and the paths to them, are resident; pages and addresses for `puts` insertions of
 * at most item_len bytes (<= ITEM_LEN_MAX) are reserved, and for copying all these nodes. Holds until the
 * caller yields. A wide range is prepared up to *ret_last <= last (at most 64 leaves at once); ret_last may
 * be NULL for ranges known to be small (then ERR_INVALID if it is not). Ask for no more than is needed: an
 * insertion that fits the leaf costs nothing here.
 * Replacing counts as an insertion. Inside the range any change is good; the two items beside it may be
 * replaced, not deleted. ERR_VOLUME_FULL, ERR_NO_MEMORY (after it waited for memory), errors of the store:
 * the tree is as it was.
 */
int tree_prepare(struct tree *t, const struct tree_key *first, const struct tree_key *last, uint32_t puts,
                 uint32_t item_len, struct tree_key *ret_last) MUST_CHECK may_yield;
/*
 * The same for changes in several ranges (1..TREE_RANGES_MAX; they may overlap): `puts` insertions anywhere
 * in them, of put_bytes bytes of values together. Each range gets its `covered` key, which is below `last`
 * only where the range has more than leaves_max leaves (1..TREE_LEAVES_MAX), and never below `first`.
 */
#define TREE_LEAVES_MAX 64u
struct tree_range {
    struct tree_key first, last;
    struct tree_key covered; /* out */
};
int tree_prepare_ranges(struct tree *t, struct tree_range *ranges, uint32_t count, uint32_t puts,
                        uint32_t put_bytes, uint32_t leaves_max) MUST_CHECK may_yield;
/* As tree_get(), in what is in memory; the value is borrowed until the next yield or change of the tree.
 * ERR_NOT_FOUND: it is not in the tree; TREE_NOT_RESIDENT: nobody can tell without reading a node. */
#define TREE_NOT_RESIDENT 1
int tree_get_now(struct tree *t, const struct tree_key *key, const void **ret_value, uint32_t *ret_len)
    MUST_CHECK;
/* The same for several keys, whose waits for memory overlap: for each its own result. */
#define TREE_LOOKUPS_MAX 24u
struct tree_lookup {
    struct tree_key key;
    int result; /* as tree_get_now() returns it */
    uint32_t len;
    const void *value;
};
void tree_get_many(struct tree *t, struct tree_lookup *lookups, uint32_t count);
/* As tree_seek(), in what is in memory. 0, ERR_NOT_FOUND, TREE_NOT_RESIDENT. */
int tree_seek_resident(struct tree_cursor *c, struct tree *t, const struct tree_key *key, enum tree_seek how)
    MUST_CHECK;
/* Inserts or replaces. len 1..ITEM_LEN_MAX. */
void tree_put_now(struct tree *t, const struct tree_key *key, const void *value, uint32_t len);
/* 0 or ERR_NOT_FOUND. */
int tree_delete_now(struct tree *t, const struct tree_key *key);
/* As tree_seek and tree_next, in what was prepared: never yield. ERR_NOT_FOUND at the end *or beyond what is
 * prepared*. */
int tree_seek_now(struct tree_cursor *c, struct tree *t, const struct tree_key *key, enum tree_seek how)
    MUST_CHECK;
int tree_next_now(struct tree_cursor *c) MUST_CHECK;
/* prepare and one change, for callers that do only one. */
int tree_put(struct tree *t, const struct tree_key *key, const void *value, uint32_t len)
    MUST_CHECK may_yield;
int tree_delete(struct tree *t, const struct tree_key *key) MUST_CHECK may_yield;

/* ---- Commit ---- */

/* A sealed node on its way to the drives. */
struct tree_write {
    struct list link;
    struct node_address address;
    struct page *page; /* NODE_BLOCKS pages */
    uint32_t crc;
    struct tree_node *node;
};
/* Seals the open txg: t->root is final, *ret_writes lists struct tree_write in ascending address order; then
 * opens next_txg. The nodes stay dirty in the cache until tree_write_done(). Does not yield; about 2 us a
 * node. */
void tree_close_txg(struct tree *t, uint64_t next_txg, struct list *ret_writes);
/* The node is on the drives (or was given up): clean, frees w. */
void tree_write_done(struct tree *t, struct tree_write *w);

/* ---- Checking and seeing ---- */

/* The node's own structure: magic, order of keys, bounds, overlaps; expect: how its parent names it. Writes a
 * sentence into why. 0 or ERR_VOLUME_CORRUPT. Never reads out of bounds: input is untrusted. */
int tree_node_check(const void *node, const struct disk_node_pointer *expect, const struct uuid *volume,
                    char *why, size_t why_size);
/* Walks the whole tree in key order: node() for every node (before its items; low: no key below it is in
 * there), item() for every item. A callback's non-zero result ends the walk with it. Unreadable nodes: bad(),
 * then goes on with the next sibling; they hold keys from low on, below high (TREE_KEY_MAX: to the end).
 * Callbacks may be NULL and may yield; `value` is a copy. In a tree that changes meanwhile, items keep their
 * order and none comes twice, but a node that was copied may come again as its copy. */
struct tree_walk {
    int (*node)(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low);
    int (*item)(void *ctx, const struct tree_key *key, const void *value, uint32_t len);
    int (*bad)(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low,
               const struct tree_key *high, int err);
    void *ctx;
};
int tree_walk(struct tree *t, const struct tree_walk *w) may_yield;
/* Re-verifies invariants of what is resident (asserts). For tests and the simulator. */
void tree_check_memory(struct tree *t);
/* Reads key and slot of an untrusted but checked node: for inspect. */
uint32_t tree_node_count(const void *node);
void tree_node_item(const void *node, uint32_t i, struct tree_key *ret_key, const void **ret_value,
                    uint32_t *ret_len);

#endif
