/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preparation of changes (T1).
 *
 * One pass goes over the leaves of the ranges, without a yield, and pins every node that it meets, inner ones
 * too. If all were in memory, what the changes can need at worst is counted: a copy of each node met that the
 * open txg has not made yet, a root if deletions empty the tree before an insertion and, unless each leaf has
 * room for all the insertions, splits (split_need()).
 * Pages and addresses for so many nodes are reserved. If anything yielded meanwhile, the pass is made again.
 *
 * Why deletions need nothing: a leaf that they empty is taken out, and its keys then belong to the leaf
 * before it or behind it. Since all that it had was in the range, the items beside the range are in those, so
 * they are prepared too.
 */
#include "volume/tree_internal.h"

#include "runtime/error.h"

/* What a range of one key meets at most in a tree of so many levels: its path and those to the leaves beside
 * it. */
#define RANGE_NODES(levels) (3u * (levels))
static_assert(RANGE_NODES(TREE_LEVELS_MAX) * TREE_RANGES_MAX <= TREE_PREPARED_MAX, "room for every range");
/* What it takes to fill a node that was split or merged, in bytes and in children. */
#define REFILL_BYTES      4000u
#define REFILL_INSERTIONS 32u
static_assert(NODE_SPACE - (NODE_SPACE + 2 * ITEM_SPACE_MAX) / 2 >= REFILL_BYTES, "split");
static_assert(NODE_SPACE / 4 >= REFILL_BYTES, "merged");
static_assert(REFILL_INSERTIONS * (SLOT_SIZE + POINTER_SIZE) <= REFILL_BYTES, "children");

struct walker { /* a path, and where in its nodes it goes on */
    struct tree_node *node[TREE_LEVELS_MAX];
    uint32_t slot[TREE_LEVELS_MAX];
};

enum side { SIDE_KEY, SIDE_FIRST, SIDE_LAST };

struct pass {
    struct tree *tree;
    struct tree_range *ranges;
    uint32_t count;
    uint32_t puts;
    uint32_t room_wanted;     /* bytes that all of them take */
    uint32_t leaves_max;      /* of a range, the two beside it not counted */
    bool roomy;               /* every leaf has room_wanted */
    struct tree_range *range; /* where the pass is */
    uint32_t ranges_left;     /* behind it */
    struct disk_node_pointer miss;
};

void tree_prepared_release(struct tree *t)
{
    for (uint32_t i = 0; i < t->prepared_count; i++)
        cache_unpin(t->cache, &t->prepared[i]->entry);
    t->prepared_count = 0;
}

static void meet(struct pass *p, struct tree_node *n)
{
    struct tree *t = p->tree;
    if (n->met == t->prepares) /* ranges share nodes */
        return;
    assert(t->prepared_count < TREE_PREPARED_MAX);
    n->met = t->prepares;
    cache_pin(&n->entry);
    t->prepared[t->prepared_count++] = n;
    if (n->level == 0 && node_room(n->data) < p->room_wanted)
        p->roomy = false;
}

/* From the node that ptr names down to a leaf. False: one is missing. */
static bool walk_down(struct pass *p, struct walker *w, const struct disk_node_pointer *ptr, enum side side)
{
    for (;;) {
        struct tree_node *n = tree_resident(p->tree, ptr);
        if (!n) {
            p->miss = *ptr;
            return false;
        }
        meet(p, n);
        w->node[n->level] = n;
        if (n->level == 0)
            return true;
        uint32_t slot = 0;
        if (side == SIDE_KEY)
            slot = node_child_slot(n->data, &p->range->first);
        else if (side == SIDE_LAST)
            slot = node_count(n->data) - 1;
        w->slot[n->level] = slot;
        ptr = node_pointer(n->data, slot);
    }
}

/* The lowest level on which the path can go one slot on (or back); 0: nowhere. */
static uint8_t walk_turn(const struct tree *t, const struct walker *w, bool forward)
{
    for (uint8_t l = 1; l <= t->root.level; l++) {
        if (forward ? w->slot[l] + 1 < node_count(w->node[l]->data) : w->slot[l] > 0)
            return l;
    }
    return 0;
}

static bool walk_on(struct pass *p, struct walker *w, uint8_t level, bool forward)
{
    w->slot[level] += forward ? 1 : UINT32_MAX;
    const struct disk_node_pointer *ptr = node_pointer(w->node[level]->data, w->slot[level]);
    return walk_down(p, w, ptr, forward ? SIDE_FIRST : SIDE_LAST);
}

/* The leaves after the first one. False: one is missing. */
static bool walk_range(struct pass *p, struct walker *w)
{
    struct tree *t = p->tree;
    struct tree_range *r = p->range;
    const uint32_t levels = (uint32_t)t->root.level + 1;
    /* What the last step and the one for the item behind may still meet, and the ranges that are left. */
    const uint32_t margin = 2u * levels + p->ranges_left * RANGE_NODES(levels);
    for (uint32_t leaves = 1;; leaves++) {
        struct tree_node *leaf = w->node[0];
        struct tree_key greatest = node_key(leaf->data, node_count(leaf->data) - 1);
        if (key_less(&r->last, &greatest))
            return true;
        uint8_t level = walk_turn(t, w, true);
        if (level == 0)
            return true;
        struct tree_key next = node_key(w->node[level]->data, w->slot[level] + 1);
        bool end = key_less(&r->last, &next);
        if (!end && (leaves >= p->leaves_max || t->prepared_count + margin > TREE_PREPARED_MAX)) {
            bool has = key_prev(&next, &r->covered);
            assert(has);
            end = true;
        }
        if (!walk_on(p, w, level, true))
            return false;
        if (end)
            return true;
    }
}

/* The range's own leaf, the one before it where that is needed, and those behind it. */
static bool pass_range(struct pass *p)
{
    struct tree *t = p->tree;
    struct walker w;
    p->range->covered = p->range->last;
    if (!walk_down(p, &w, &t->root, SIDE_KEY))
        return false;
    uint8_t level = walk_turn(t, &w, true);
    const struct disk_slot *at = t->root.level > 0 ? node_slot(w.node[1]->data, w.slot[1]) : NULL;
    const struct disk_slot *right = level > 0 ? node_slot(w.node[level]->data, w.slot[level] + 1) : NULL;
    tree_hint_set(t, w.node[0], at, right);
    struct tree_key least = node_key(w.node[0]->data, 0);
    if (!key_less(&least, &p->range->first)) {
        struct walker back = w;
        level = walk_turn(t, &back, false);
        if (level > 0 && !walk_on(p, &back, level, false))
            return false;
    }
    return walk_range(p, &w);
}

/* Pins what the ranges touch in t->prepared. False: p->miss is missing. */
static bool pass_run(struct pass *p)
{
    struct tree *t = p->tree;
    tree_prepared_release(t);
    t->prepares++;
    p->roomy = true;
    if (tree_is_empty(t)) {
        p->roomy = false;
        for (uint32_t i = 0; i < p->count; i++)
            p->ranges[i].covered = p->ranges[i].last;
        return true;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        p->range = &p->ranges[i];
        p->ranges_left = p->count - 1 - i;
        if (!pass_range(p))
            return false;
    }
    return true;
}

/*
 * How many new nodes splits can need, where met[level] nodes were met.
 *
 * An insertion splits at most one node on each level. A node that was full when it was met is split at most
 * twice before something must fill its parts again: an append splits off itself alone and leaves the rest
 * full; any other split leaves parts with room for REFILL_BYTES.
 */
static uint32_t split_need(const struct pass *p, const uint32_t met[TREE_LEVELS_MAX + 1])
{
    const struct tree *t = p->tree;
    uint32_t levels = tree_is_empty(t) ? 1 : t->root.level + 1u;
    uint32_t need = MIN(p->puts, 2 * met[0] + p->room_wanted / REFILL_BYTES + 1);
    for (uint32_t level = 1; level <= levels; level++) /* the last one: a new root */
        need += MIN(p->puts, 2 * met[level] + p->puts / REFILL_INSERTIONS + 1);
    return need + p->puts / REFILL_INSERTIONS; /* and its splits */
}

/* How many new nodes the changes can need. */
static uint32_t pass_need(const struct pass *p)
{
    const struct tree *t = p->tree;
    uint32_t need = 0, met[TREE_LEVELS_MAX + 1] = {0};
    for (uint32_t i = 0; i < t->prepared_count; i++) {
        need += t->prepared[i]->state != NODE_OPEN;
        met[t->prepared[i]->level]++;
    }
    if (p->puts > 0)
        need++; /* deletions may empty the whole tree, and then an insertion begins a new root */
    return p->roomy ? need : need + split_need(p, met);
}

/* The same for prepared_already(). */
static uint32_t path_need(const struct pass *p)
{
    uint32_t met[TREE_LEVELS_MAX + 1];
    if (node_room(p->tree->hint->data) >= p->room_wanted)
        return 0;
    for (uint32_t level = 0; level < ARRAY_SIZE(met); level++)
        met[level] = 1;
    return split_need(p, met);
}

/* The common case: changes inside of one leaf that the open txg has already made. Its path is made too (S3),
 * and no item beside the range is in another leaf. */
static bool prepared_already(const struct tree *t, const struct tree_key *first, const struct tree_key *last)
{
    struct tree_node *leaf = tree_hint_find(t, first);
    if (!leaf || leaf->state != NODE_OPEN)
        return false;
    struct tree_key least = node_key(leaf->data, 0),
                    greatest = node_key(leaf->data, node_count(leaf->data) - 1);
    return key_less(&least, first) && key_less(last, &greatest);
}

/* Memory for `need` nodes; *ret_waited: it yielded. */
static int may_yield reserve_pages(struct tree *t, uint32_t need, bool *ret_waited)
{
    *ret_waited = false;
    while (t->spare_nodes < need) {
        if (tree_spare_add(t) == 0)
            continue;
        *ret_waited = true;
        int err = tree_spare_wait(t);
        if (err)
            return err;
    }
    return 0;
}

/* 0: reserved, and nothing happened since the pass; 1: look again; or an error. */
static int may_yield reserve(struct tree *t, uint32_t need)
{
    if (need == 0)
        return 0;
    bool waited;
    int err = reserve_pages(t, need, &waited);
    if (err || waited)
        return err ? err : 1;
    uint64_t prepares = t->prepares, changes = t->changes, txg = t->txg;
    err = t->store->reserve(t->store->ctx, need);
    if (err)
        return err;
    bool same = t->prepares == prepares && t->changes == changes && t->txg == txg && t->spare_nodes >= need;
    return same ? 0 : 1;
}

/* Keeps the pins of this pass while the missing node is read, so that the passes get somewhere when memory is
 * short; those of the pass before are given up. */
static void hold_pass(struct tree *t, struct tree_held *held)
{
    tree_held_release(t, held);
    memcpy(held->nodes, t->prepared, t->prepared_count * sizeof(held->nodes[0]));
    held->count = t->prepared_count;
    t->prepared_count = 0;
}

static int may_yield prepare_slow(struct pass *p)
{
    struct tree *t = p->tree;
    struct tree_held held;
    held.count = 0;
    int err;
    do {
        if (!pass_run(p)) {
            hold_pass(t, &held);
            err = tree_fetch(t, &p->miss, &held);
            if (err)
                break;
            err = 1;
            continue;
        }
        tree_held_release(t, &held);
        err = reserve(t, pass_need(p));
    } while (err > 0);
    tree_held_release(t, &held);
    return err;
}

int tree_prepare_ranges(struct tree *t, struct tree_range *ranges, uint32_t count, uint32_t puts,
                        uint32_t put_bytes, uint32_t leaves_max)
{
    assert(count >= 1 && count <= TREE_RANGES_MAX);
    assert(leaves_max >= 1 && leaves_max <= TREE_LEAVES_MAX);
    struct pass p = {.tree = t, .ranges = ranges, .count = count, .puts = puts, .leaves_max = leaves_max};
    if (__builtin_mul_overflow(puts, SLOT_SIZE, &p.room_wanted) ||
        __builtin_add_overflow(p.room_wanted, put_bytes, &p.room_wanted))
        return ERR_INVALID;
    for (uint32_t i = 0; i < count; i++)
        assert(!key_less(&ranges[i].last, &ranges[i].first));
    int err = 1;
    if (count == 1 && prepared_already(t, &ranges->first, &ranges->last)) {
        ranges->covered = ranges->last;
        err = reserve(t, path_need(&p));
    } else if (pass_run(&p)) {
        err = reserve(t, pass_need(&p));
    }
    if (err > 0)
        err = prepare_slow(&p);
    if (!err)
        t->room_promised = p.room_wanted;
    return err;
}

int tree_prepare(struct tree *t, const struct tree_key *first, const struct tree_key *last, uint32_t puts,
                 uint32_t item_len, struct tree_key *ret_last)
{
    assert(item_len <= ITEM_LEN_MAX);
    struct tree_range range = {.first = *first, .last = *last};
    uint32_t put_bytes;
    if (__builtin_mul_overflow(puts, item_len, &put_bytes))
        return ERR_INVALID;
    int err = tree_prepare_ranges(t, &range, 1, puts, put_bytes, TREE_LEAVES_MAX);
    if (err)
        return err;
    if (!ret_last)
        return key_equal(&range.covered, last) ? 0 : ERR_INVALID;
    *ret_last = range.covered;
    return 0;
}
