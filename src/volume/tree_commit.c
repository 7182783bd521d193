/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing a txg (T3). The children of the open txg are found by their birth in the parent's pointers, so no
 * node needs to know its parent: from the root down, each one's checksum is computed after those below it
 * were filled in.
 */
#include "volume/tree_internal.h"

#include "runtime/checksum.h"

/* Spare nodes that are kept from one txg to the next. */
#define SPARE_KEPT 8u

static struct tree_node *open_node(struct tree *t, const struct disk_node_pointer *p)
{
    if (le64_get(p->birth_logical) != t->txg)
        return NULL;
    struct tree_node *n = tree_resident(t, p);
    assert(n != NULL && n->state == NODE_OPEN); /* S3 */
    return n;
}

static void seal(struct tree *t, struct tree_node *n, struct disk_node_pointer *p, struct list *writes)
{
    uint32_t crc = crc32c(0, n->data, NODE_SIZE);
    struct le32 sum = le32_make(crc);
    memcpy(p->checksum, &sum, sizeof(sum));
    n->state = NODE_SEALED;
    list_remove(&n->link);
    t->dirty_nodes--;
    t->sealed_nodes++;
    cache_pin(&n->entry);
    n->write = (struct tree_write){
        .address = {n->entry.key.space, n->entry.key.block},
        .page = n->entry.page,
        .crc = crc,
        .node = n,
    };
    list_append(writes, &n->write.link);
}

/* Children before their parents, with a stack of one slot a level. */
static void seal_all(struct tree *t, struct list *writes)
{
    struct tree_node *node[TREE_LEVELS_MAX];
    uint32_t slot[TREE_LEVELS_MAX];
    struct tree_node *root = open_node(t, &t->root);
    if (!root)
        return;
    uint8_t top = root->level, level = top;
    node[level] = root;
    slot[level] = 0;
    for (;;) {
        struct tree_node *n = node[level];
        if (level > 0 && slot[level] < node_count(n->data)) {
            struct tree_node *child = open_node(t, node_pointer(n->data, slot[level]));
            if (!child) {
                slot[level]++;
            } else {
                level--;
                assert(child->level == level);
                node[level] = child;
                slot[level] = 0;
            }
            continue;
        }
        if (level == top) {
            seal(t, n, &t->root, writes);
            return;
        }
        level++;
        seal(t, n, node_pointer(node[level]->data, slot[level]), writes);
        slot[level]++;
    }
}

static bool write_less(struct list *a, struct list *b)
{
    const struct node_address x = CONTAINER_OF(a, struct tree_write, link)->address;
    const struct node_address y = CONTAINER_OF(b, struct tree_write, link)->address;
    return x.space != y.space ? x.space < y.space : x.block < y.block;
}

/* Merges two chains by next, ended by NULL. */
static struct list *chain_merge(struct list *a, struct list *b)
{
    struct list head, *tail = &head;
    while (a && b) {
        struct list **from = write_less(b, a) ? &b : &a;
        tail->next = *from;
        tail = *from;
        *from = (*from)->next;
    }
    tail->next = a ? a : b;
    return head.next;
}

/* Merge sort without memory: run i of `runs` has 2^i elements or none. */
static void sort_writes(struct list *writes)
{
    struct list *runs[32] = {NULL}, *chain = NULL;
    while (!list_empty(writes)) {
        struct list *run = list_pop(writes);
        run->next = NULL;
        uint32_t i = 0;
        for (; i + 1 < ARRAY_SIZE(runs) && runs[i]; i++) {
            run = chain_merge(runs[i], run);
            runs[i] = NULL;
        }
        runs[i] = run;
    }
    for (uint32_t i = 0; i < ARRAY_SIZE(runs); i++)
        chain = chain_merge(runs[i], chain);
    while (chain) {
        struct list *next = chain->next;
        list_append(writes, chain);
        chain = next;
    }
}

void tree_close_txg(struct tree *t, uint64_t next_txg, struct list *ret_writes)
{
    assert(next_txg > t->txg);
    list_init(ret_writes);
    seal_all(t, ret_writes);
    assert(list_empty(&t->dirty) && t->dirty_nodes == 0);
    sort_writes(ret_writes);
    t->txg = next_txg;
    tree_spare_trim(t, SPARE_KEPT);
}

void tree_write_done(struct tree *t, struct tree_write *w)
{
    struct tree_node *n = w->node;
    assert(n->state == NODE_SEALED && t->sealed_nodes > 0);
    list_remove(&w->link);
    n->state = NODE_CLEAN;
    t->sealed_nodes--;
    cache_clean(t->cache, &n->entry);
    cache_unpin(t->cache, &n->entry);
}
