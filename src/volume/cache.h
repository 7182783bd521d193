/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One scan-resistant cache per reactor for data blocks and tree nodes of all its volumes, keyed by where the
 * blocks lie. Copy on write makes it simple: what is at an address does not change while it is referenced.
 *
 * S3-FIFO: new entries enter a small queue (a tenth), those hit again while there move to the main queue, a
 * ghost queue remembers keys that left lately. Entries that are pinned, or dirty (not on the drives yet), are
 * in no queue and are never evicted.
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

/* Embedded at the beginning of what is cached (struct tree_node), or plain for data blocks. */
struct cache_entry {
    struct cache_key key;
    struct cache_entry *hash_next;
    struct list queue;
    struct page *page; /* first of `pages` contiguous pages; the entry holds one reference of each */
    uint16_t pages;    /* 1 data, NODE_BLOCKS nodes */
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

/* NULL: a miss. A hit raises its frequency. Borrowed until the next yield or allocation (which may reclaim):
 * pin, or take a reference of the page. */
struct cache_entry *cache_find(struct cache *c, struct cache_key key);
/* Brings what is cached of up to CACHE_PREFETCH_MAX neighbours from key on close to the processor: before
 * looking each of them up. */
#define CACHE_PREFETCH_MAX 16u
void cache_prefetch(struct cache *c, struct cache_key key, uint32_t blocks);
/* Data block: takes its own reference of the page. Replaces an entry of the same key. dirty: stays until
 * cache_clean(). May fail silently for a clean block when there is no memory for the entry (it is a cache):
 * NULL. For dirty ones the caller must have checked. */
struct cache_entry *cache_add_data(struct cache *c, struct cache_key key, struct page *page, bool dirty);
/* Node: the entry is embedded in the caller's structure, page and pages set; takes over the references. */
void cache_add_node(struct cache *c, struct cache_entry *e, bool dirty);
void cache_mark_dirty(struct cache *c, struct cache_entry *e);
/* Its content is on the drives now. */
void cache_clean(struct cache *c, struct cache_entry *e);
/* The same for `count` neighbours from key on, where the cache still holds just these pages: a block that was
 * freed, or written anew elsewhere, meanwhile is left alone. */
void cache_clean_data(struct cache *c, struct cache_key key, struct page *page, uint32_t count);
/* Out with it (its block was freed). A pinned node leaves when the last pin goes. */
void cache_remove(struct cache *c, struct cache_entry *e);
void cache_remove_key(struct cache *c, struct cache_key key);
void cache_pin(struct cache_entry *e);
void cache_unpin(struct cache *c, struct cache_entry *e);
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
