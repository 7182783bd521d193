/* SPDX-License-Identifier: Apache-2.0 */
/* Missing nodes and memory: what the tree waits for. */
#include "volume/tree_internal.h"

#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/world.h"

#include <stdalign.h>
#include <stdlib.h>

/* How long a node waits for memory before the operation fails. */
#define MEMORY_WAIT_NS (UINT64_C(20) * NSEC_PER_SEC)

/* One read under way; the fiber that began it and those that wait for it each have a reference. */
struct tree_read {
    struct list link; /* tree->reads */
    struct cache_key key;
    uint64_t birth;
    struct waitq done;
    bool finished;
    int err;
    uint32_t refs;
};

void tree_held_release(struct tree *t, struct tree_held *h)
{
    for (uint32_t i = 0; i < h->count; i++)
        cache_unpin(t->cache, &h->nodes[i]->entry);
    h->count = 0;
}

static struct tree_node *node_of_page(struct page *page)
{
    struct tree_node *n = aligned_alloc(alignof(struct tree_node), sizeof(*n));
    if (!n) {
        page_put(page, NODE_BLOCKS);
        return NULL;
    }
    memset(n, 0, sizeof(*n));
    n->entry.page = page;
    n->entry.pages = NODE_BLOCKS;
    n->data = page->data;
    list_init(&n->link);
    return n;
}

static int node_alloc(struct tree_node **ret)
{
    struct page *page;
    int err = page_alloc(NODE_BLOCKS, &page);
    if (err)
        return err;
    *ret = node_of_page(page);
    return *ret ? 0 : ERR_NO_MEMORY;
}

/* Waits with nothing of this tree pinned, so that two who wait do not wait for each other. */
static int may_yield node_alloc_wait(struct tree *t, struct tree_held *held, struct tree_node **ret)
{
    if (node_alloc(ret) == 0)
        return 0;
    if (held)
        tree_held_release(t, held);
    tree_prepared_release(t);
    tree_hint_drop(t);
    struct page *page;
    int err = page_alloc_wait(NODE_BLOCKS, reactor_now_ns() + MEMORY_WAIT_NS, &page);
    if (err)
        return err == ERR_TIMEOUT ? ERR_NO_MEMORY : err;
    *ret = node_of_page(page);
    return *ret ? 0 : ERR_NO_MEMORY;
}

void tree_node_free(struct tree_node *n)
{
    page_put(n->entry.page, NODE_BLOCKS);
    free(n);
}

/* Reads the node into memory of its own and hands that to the cache. */
static int may_yield read_node(struct tree *t, const struct disk_node_pointer *p, struct tree_held *held)
{
    struct tree_node *n;
    int err = node_alloc_wait(t, held, &n);
    if (err)
        return err;
    err = t->store->read(t->store->ctx, p, n->entry.page);
    if (!err) {
        char why[128];
        err = tree_node_check(n->data, p, &t->volume, why, sizeof(why));
        if (err)
            event_raise(LOG_ERROR_, "tree-node-damaged", "tree %u, node %u:%llu: %s", t->head,
                        le32_get(p->space), (unsigned long long)le64_get(p->block), why);
    }
    if (err) {
        tree_node_free(n);
        return err;
    }
    n->entry.key = pointer_cache_key(t, p);
    n->birth = le64_get(p->birth_logical);
    n->level = p->level;
    n->state = NODE_CLEAN;
    /* This tree cannot have changed or freed a node that it has not in memory. But another tree of the volume
     * that shares it may have read it too, or have freed it, so that its address got something new, which is
     * not to be replaced by what was here before. */
    struct cache_entry *e = cache_find(t->cache, n->entry.key);
    if (e && (e->dirty || e->pins > 0 ||
              (e->kind == CACHE_NODE && CONTAINER_OF(e, struct tree_node, entry)->birth >= n->birth))) {
        tree_node_free(n);
        return 0;
    }
    cache_add_node(t->cache, &n->entry, false);
    return 0;
}

static void read_put(struct tree_read *r)
{
    if (--r->refs == 0)
        free(r);
}

static int may_yield read_wait(struct tree_read *r)
{
    int err = 0;
    r->refs++;
    while (!r->finished && !err)
        err = waitq_wait(&r->done, DEADLINE_NEVER);
    if (!err)
        err = r->err == ERR_CANCELLED ? 0 : r->err; /* the reader was cancelled, not we */
    read_put(r);
    return err;
}

int tree_fetch(struct tree *t, const struct disk_node_pointer *p, struct tree_held *held)
{
    struct cache_key key = pointer_cache_key(t, p);
    uint64_t birth = le64_get(p->birth_logical);
    LIST_FOREACH (&t->reads, it) {
        struct tree_read *r = CONTAINER_OF(it, struct tree_read, link);
        if (r->key.block == key.block && r->key.space == key.space && r->birth == birth)
            return read_wait(r);
    }
    struct tree_read *r = malloc(sizeof(*r));
    if (!r)
        return ERR_NO_MEMORY;
    *r = (struct tree_read){.key = key, .birth = birth, .refs = 1};
    waitq_init(&r->done);
    list_append(&t->reads, &r->link);
    int err = read_node(t, p, held);
    list_remove(&r->link);
    r->err = err;
    r->finished = true;
    waitq_wake_all(&r->done);
    read_put(r);
    return err;
}

/* ---- Spare nodes ---- */

static void spare_push(struct tree *t, struct tree_node *n)
{
    n->state = NODE_SPARE;
    list_append(&t->spare, &n->link);
    t->spare_nodes++;
}

int tree_spare_add(struct tree *t)
{
    struct tree_node *n;
    int err = node_alloc(&n);
    if (!err)
        spare_push(t, n);
    return err;
}

int tree_spare_wait(struct tree *t)
{
    struct tree_node *n;
    int err = node_alloc_wait(t, NULL, &n);
    if (!err)
        spare_push(t, n);
    return err;
}

void tree_spare_trim(struct tree *t, uint32_t keep)
{
    while (t->spare_nodes > keep) {
        tree_node_free(CONTAINER_OF(list_pop(&t->spare), struct tree_node, link));
        t->spare_nodes--;
    }
}
