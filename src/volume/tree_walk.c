/* SPDX-License-Identifier: Apache-2.0 */
/* Walking a whole tree, and checking what of it is in memory. */
#include "volume/tree_internal.h"

#include "runtime/error.h"

#include <stdlib.h>

/* ---- Walk ---- */

struct walk {
    struct tree *tree;
    const struct tree_walk *ops;
    struct tree_key at; /* everything below it is done */
    bool ended;
    struct { /* the node that was announced last, by level */
        bool valid;
        struct node_address address;
        uint64_t birth;
    } seen[TREE_LEVELS_MAX];
    uint8_t value[ITEM_LEN_MAX];
};

/* What one look from the root found, copied: a callback may yield. */
struct finding {
    enum { FOUND_NODE, FOUND_MISS, FOUND_ITEM, FOUND_NOTHING } kind;
    struct disk_node_pointer pointer;
    struct tree_key low, high; /* of the node */
    bool has_high;
    struct tree_key key;
    uint32_t len;
};

static bool walk_is_seen(struct walk *w, const struct disk_node_pointer *p)
{
    struct node_address a = {le32_get(p->space), le64_get(p->block)};
    uint64_t birth = le64_get(p->birth_logical);
    if (w->seen[p->level].valid && w->seen[p->level].address.space == a.space &&
        w->seen[p->level].address.block == a.block && w->seen[p->level].birth == birth)
        return true;
    w->seen[p->level].valid = true;
    w->seen[p->level].address = a;
    w->seen[p->level].birth = birth;
    return false;
}

/* Looks from the root for what comes at w->at: a node that was not announced, one that is missing, or an
 * item. */
static void walk_look(struct walk *w, struct finding *f)
{
    struct tree *t = w->tree;
    *f = (struct finding){.kind = FOUND_NOTHING, .low = TREE_KEY_MIN, .high = TREE_KEY_MAX};
    if (tree_is_empty(t))
        return;
    const struct disk_node_pointer *p = &t->root;
    for (;;) {
        f->pointer = *p;
        f->kind = FOUND_NODE;
        if (p->level >= TREE_LEVELS_MAX || !walk_is_seen(w, p))
            return;
        struct tree_node *n = tree_resident(t, p);
        f->kind = FOUND_MISS;
        if (!n)
            return;
        if (n->level == 0) {
            uint32_t slot = node_lower_bound(n->data, &w->at);
            f->kind = FOUND_NOTHING;
            if (slot == node_count(n->data))
                return;
            f->kind = FOUND_ITEM;
            f->key = node_key(n->data, slot);
            f->len = node_value_len(n->data, slot);
            memcpy(w->value, node_value(n->data, slot), f->len);
            return;
        }
        uint32_t slot = node_child_slot(n->data, &w->at);
        if (slot > 0)
            f->low = node_key(n->data, slot);
        if (slot + 1 < node_count(n->data)) {
            f->high = node_key(n->data, slot + 1);
            f->has_high = true;
        }
        p = node_pointer(n->data, slot);
    }
}

static void walk_skip(struct walk *w, const struct finding *f)
{
    if (f->has_high)
        w->at = f->high;
    else
        w->ended = true;
}

static int may_yield walk_step(struct walk *w)
{
    struct finding f;
    int err = 0;
    walk_look(w, &f);
    switch (f.kind) {
    case FOUND_NODE:
        if (f.pointer.level >= TREE_LEVELS_MAX) {
            walk_skip(w, &f);
            return w->ops->bad ? w->ops->bad(w->ops->ctx, &f.pointer, &f.low, &f.high, ERR_VOLUME_CORRUPT)
                               : 0;
        }
        return w->ops->node ? w->ops->node(w->ops->ctx, &f.pointer, &f.low) : 0;
    case FOUND_MISS:
        err = tree_fetch(w->tree, &f.pointer, NULL);
        if (!err)
            return 0;
        if (err == ERR_CANCELLED || err == ERR_NO_MEMORY)
            return err;
        walk_skip(w, &f);
        return w->ops->bad ? w->ops->bad(w->ops->ctx, &f.pointer, &f.low, &f.high, err) : 0;
    case FOUND_ITEM:
        if (!key_next(&f.key, &w->at))
            w->ended = true;
        return w->ops->item ? w->ops->item(w->ops->ctx, &f.key, w->value, f.len) : 0;
    case FOUND_NOTHING:
        walk_skip(w, &f);
        return 0;
    }
    return 0;
}

int tree_walk(struct tree *t, const struct tree_walk *ops)
{
    struct walk *w = calloc(1, sizeof(*w));
    if (!w)
        return ERR_NO_MEMORY;
    w->tree = t;
    w->ops = ops;
    w->at = TREE_KEY_MIN;
    int err = 0;
    while (!err && !w->ended)
        err = walk_step(w);
    free(w);
    return err;
}

/* ---- Check of what is in memory ---- */

struct check {
    struct tree *tree;
    uint32_t open; /* nodes of the open txg that were met */
};

static void check_node(struct check *c, const struct disk_node_pointer *p, struct tree_node *n,
                       const struct tree_key *low, const struct tree_key *high)
{
    char why[128];
    int err = tree_node_check(n->data, p, &c->tree->volume, why, sizeof(why));
    assert(err == 0);
    assert(n->birth == le64_get(p->birth_logical));
    assert(n->level == p->level && n->level == node_header(n->data)->level);
    assert(n->birth <= c->tree->txg);
    assert((n->birth == c->tree->txg) == (n->state == NODE_OPEN));
    assert(n->state == NODE_CLEAN || n->entry.dirty);
    c->open += n->state == NODE_OPEN;
    struct tree_key least = node_key(n->data, 0), greatest = node_key(n->data, node_count(n->data) - 1);
    assert(!low || !key_less(&least, low)); /* S2 */
    assert(!high || key_less(&greatest, high));
}

static void check_below(struct check *c, const struct disk_node_pointer *p, const struct tree_key *low,
                        const struct tree_key *high)
{
    struct tree_node *n = tree_resident(c->tree, p);
    if (!n) {
        assert(le64_get(p->birth_logical) < c->tree->txg); /* S3 */
        return;
    }
    check_node(c, p, n, low, high);
    for (uint32_t i = 0; n->level > 0 && i < node_count(n->data); i++) {
        struct tree_key from = node_key(n->data, i), to;
        bool last = i + 1 == node_count(n->data);
        if (!last)
            to = node_key(n->data, i + 1);
        const struct disk_node_pointer *child = node_pointer(n->data, i);
        /* Recursion is at most TREE_LEVELS_MAX deep. */
        assert(child->level + 1 == p->level && p->level < TREE_LEVELS_MAX);
        check_below(c, child, &from, last ? high : &to);
    }
}

void tree_check_memory(struct tree *t)
{
    struct check c = {.tree = t};
    if (!tree_is_empty(t))
        check_below(&c, &t->root, NULL, NULL);
    assert(c.open == t->dirty_nodes);
    uint32_t listed = 0, spare = 0;
    LIST_FOREACH (&t->dirty, it)
        listed++;
    LIST_FOREACH (&t->spare, it)
        spare++;
    assert(listed == t->dirty_nodes);
    assert(spare == t->spare_nodes);
    assert(!t->hint || t->hint->entry.pins > 0);
}
