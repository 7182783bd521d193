/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One scan-resistant cache per reactor for data blocks and tree nodes of all its volumes, keyed by where the
 * blocks lie. Copy on write makes it simple: what is at an address does not change while it is referenced.
 *
 * S3-FIFO: new entries enter a small queue (a tenth), those hit again while there move to the main queue, a
 * ghost queue remembers keys that left lately. Entries that are pinned, or dirty (not on the drives yet), are
 * never evicted.
 */
#ifndef ASHLAR_VOLUME_CACHE_H
#define ASHLAR_VOLUME_CACHE_H

#include "runtime/list.h"
#include "runtime/memory.h"

struct cache;

struct cache_key {
    uint32_t volume; /* cache_volume_tag() */
    uint32_t space;
    uint64_t block;
};

/* Embedded at the beginning of what is cached: a tree node, or some neighbouring data blocks. */
struct cache_entry {
    struct cache_key key;
    struct cache_entry *hash_next;
    struct list queue;
    struct page *page; /* of a node: the first of `pages` contiguous pages, each with one reference */
    uint16_t pages;    /* of data: how many of its blocks are there */
    uint8_t kind;
    uint8_t frequency;
    uint8_t place; /* queue it is in */
    bool dirty;
    uint16_t pins;
};

enum cache_kind { CACHE_DATA, CACHE_NODE };

/* Registers itself as the reactor's memory reclaim. evicted: called for CACHE_NODE entries as they leave
 * (frees the node's own memory; the pages are put by the cache); must not yield. */
int cache_new(void (*evicted_node)(struct cache_entry *e), struct cache **ret) MUST_CHECK;
void cache_free(struct cache *c);
uint32_t cache_volume_tag(struct cache *c); /* a new one for each volume that is opened */

/* ---- Data blocks ---- */

/* `count` neighbours from key on: each page that is there, with a reference for the caller, or NULL. Returns
 * how many there are. */
uint32_t cache_find_data(struct cache *c, struct cache_key key, uint32_t count, struct page **ret_pages);
/* `count` neighbours in contiguous pages; takes references of its own. Clean ones (read from a drive) do not
 * replace what is there; dirty ones do, and stay until cache_clean_data(). False: some were not added for
 * want of memory. */
bool cache_add_data(struct cache *c, struct cache_key key, struct page *page, uint32_t count, bool dirty);
/* They are on the drives now, where the cache still holds just these pages: a block that was freed, or
 * written anew elsewhere, meanwhile is left alone. */
void cache_clean_data(struct cache *c, struct cache_key key, struct page *page, uint32_t count);
/* Out with them: the blocks were freed. */
void cache_remove_data(struct cache *c, struct cache_key key, uint32_t count);

/* ---- Nodes ---- */

/* NULL: a miss. A hit raises its frequency. Borrowed until the next yield or allocation (which may reclaim):
 * pin it. */
struct cache_entry *cache_find(struct cache *c, struct cache_key key);
/* Asks the processor for what cache_find() will read: its first step, and then, when that has come, the rest.
 */
void cache_prefetch(const struct cache *c, struct cache_key key, bool rest);
/* Node: the entry is embedded in the caller's structure, page and pages set; takes over the references. */
void cache_add_node(struct cache *c, struct cache_entry *e, bool dirty);
/* Its content is on the drives now. */
void cache_clean(struct cache *c, struct cache_entry *e);
/* Out with it (its block was freed). A pinned node leaves when the last pin goes. */
void cache_remove(struct cache *c, struct cache_entry *e);
void cache_pin(struct cache_entry *e);
void cache_unpin(struct cache *c, struct cache_entry *e);

/* ---- All ---- */

/* Everything of a volume (it closes). No pins may be left. */
void cache_drop_volume(struct cache *c, uint32_t volume);
/* Evicts at least npages if it can; returns how many pages it let go. */
uint32_t cache_reclaim(struct cache *c, uint32_t npages);

struct cache_stats {
    uint64_t hits, misses, evictions;
    uint64_t pages, dirty_pages;
};
void cache_get_stats(const struct cache *c, struct cache_stats *ret);

#endif
