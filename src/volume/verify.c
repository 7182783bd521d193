/* SPDX-License-Identifier: Apache-2.0 */
#include "volume/verify.h"

#include "volume/bitmap.h"
#include "volume/volume_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct seen { /* of one group */
    uint32_t id, blocks;
    uint8_t *bits; /* referenced */
    uint32_t count;
    /* By block, NULL while there is none: how many shared extents name it, and the count in the pool tree. */
    uint32_t *shares, *counts;
};
struct check {
    struct volume *volume;
    struct volume_verify *report;
    struct seen *groups; /* ascending id */
    size_t group_count;
    bool in_head;
    uint64_t object, extent_end; /* in blocks: the extent before */
    uint64_t ref_items;
    int err; /* it could not look */
};

static void problem(struct check *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void problem(struct check *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    c->report->problems++;
    if (c->report->problem)
        c->report->problem(c->report->ctx, text);
}

static struct seen *seen_find(struct check *c, uint32_t id)
{
    size_t low = 0, high = c->group_count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (c->groups[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->group_count && c->groups[low].id == id ? &c->groups[low] : NULL;
}

/* One number for each block of a group, made when the first one is needed. */
static uint32_t *numbers(struct check *c, const struct seen *s, uint32_t **array)
{
    if (!*array) {
        *array = calloc(s->blocks, sizeof(**array));
        c->err = *array ? c->err : ERR_NO_MEMORY;
    }
    return *array;
}

/* In use by one more; a block that is not shared by one at most. */
static void reference_block(struct check *c, struct seen *s, uint32_t b, bool shared, const char *what)
{
    bool again = bitmap_get(s->bits, b);

    if (again && !(shared && s->shares && s->shares[b] > 0))
        problem(c, "block %u of group %u is referenced twice (%s)", b, s->id, what);
    if (shared && numbers(c, s, &s->shares))
        s->shares[b]++;
    bitmap_set_run(s->bits, b, 1);
    s->count += !again;
}

static void reference(struct check *c, uint32_t space, uint64_t block, uint32_t blocks,
                      enum group_purpose purpose, bool shared, const char *what)
{
    struct group *g = group_find(c->volume->groups, space);
    struct seen *s = g ? seen_find(c, space) : NULL;

    if (!s) {
        problem(c, "%s names group %u, which does not exist", what, space);
        return;
    }
    if (g->purpose != purpose) {
        problem(c, "%s lies in group %u, which is for something else", what, space);
        return;
    }
    if (block > s->blocks || blocks > s->blocks - block) {
        problem(c, "%s names blocks %llu+%u beyond the end of group %u", what, (unsigned long long)block,
                blocks, space);
        return;
    }
    for (uint32_t i = 0; i < blocks; i++)
        reference_block(c, s, (uint32_t)block + i, shared, what);
}

static void on_refcount(struct check *c, const struct tree_key *key, const void *value, uint32_t len)
{
    uint64_t blocks;
    uint32_t count;

    c->ref_items++;
    if (refs_decode(key, value, len, &blocks, &count)) {
        problem(c, "a reference count of space %llu at block %llu is malformed",
                (unsigned long long)key->object, (unsigned long long)key->offset);
        return;
    }
    struct seen *s = seen_find(c, (uint32_t)key->object);
    if (!s || key->offset + blocks > s->blocks) {
        problem(c, "a reference count names blocks %llu+%llu of group %llu, which does not have them",
                (unsigned long long)key->offset, (unsigned long long)blocks, (unsigned long long)key->object);
        return;
    }
    for (uint64_t b = key->offset; numbers(c, s, &s->counts) && b < key->offset + blocks; b++) {
        if (s->counts[b])
            problem(c, "two reference counts name block %llu of group %u", (unsigned long long)b, s->id);
        s->counts[b] = count;
    }
}

/* R1 and R2 of refs.c. */
static void compare_counts(struct check *c, const struct seen *s)
{
    uint32_t bad = 0, first = 0;

    for (uint32_t b = 0; (s->shares || s->counts) && b < s->blocks; b++) {
        uint32_t shares = s->shares ? s->shares[b] : 0, count = s->counts ? s->counts[b] : 0;
        if ((shares >= 2 ? shares : 0) == count)
            continue;
        first = bad++ ? first : b;
    }
    if (bad)
        problem(c, "group %u, blocks from %u on: the reference counts of %u blocks are wrong", s->id, first,
                bad);
}

static int on_node(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low)
{
    struct check *c = ctx;

    (void)low;
    c->report->nodes++;
    reference(c, le32_get(p->space), le64_get(p->block), NODE_BLOCKS, GROUP_TREE, false, "a tree node");
    return 0;
}

static int on_item(void *ctx, const struct tree_key *key, const void *value, uint32_t len)
{
    struct check *c = ctx;
    struct extent e;

    c->report->items++;
    if (!c->in_head) {
        if (key->type == ITEM_REFCOUNT)
            on_refcount(c, key, value, len);
        return 0;
    }
    if (key->type < ITEM_HEAD_FIRST)
        problem(c, "object %llu has an item of type %u, which is not a file's",
                (unsigned long long)key->object, key->type);
    c->report->inodes += key->type == ITEM_INODE;
    if (key->type != ITEM_EXTENT)
        return c->report->item ? c->report->item(c->report->ctx, key, value, len) : 0;
    c->report->extents++;
    if (extent_decode(key, value, len, &e)) {
        problem(c, "the extent of object %llu at byte %llu is malformed", (unsigned long long)key->object,
                (unsigned long long)key->offset);
        return 0;
    }
    if (c->object == e.object && e.start < c->extent_end)
        problem(c, "extents of object %llu overlap at byte %llu", (unsigned long long)e.object,
                (unsigned long long)key->offset);
    c->object = e.object;
    c->extent_end = e.start + e.blocks;
    if (volume_is_device(c->volume, e.object) && c->extent_end > c->volume->size_bytes / BLOCK_SIZE)
        problem(c, "an extent reaches beyond the end of the device");
    if (e.flags & (EXTENT_ZERO | EXTENT_LOST))
        return 0;
    c->report->data_blocks += e.blocks;
    reference(c, e.space, e.block, e.blocks, GROUP_DATA, e.flags & EXTENT_SHARED, "an extent");
    return 0;
}

static int on_bad(void *ctx, const struct disk_node_pointer *p, const struct tree_key *low,
                  const struct tree_key *high, int err)
{
    struct check *c = ctx;

    problem(c,
            "the tree node at group %u block %llu cannot be read (%s): objects %llu to %llu, bytes %llu to "
            "%llu are lost",
            le32_get(p->space), (unsigned long long)le64_get(p->block), error_text(err),
            (unsigned long long)low->object, (unsigned long long)high->object,
            (unsigned long long)low->offset, (unsigned long long)high->offset);
    return 0;
}

/* One chunk: alloc without defer is what the root references, no more and no less. */
static may_yield int compare_chunk(struct check *c, const struct seen *s, uint32_t first, uint8_t *buf)
{
    uint32_t blocks = MIN(SPACE_CHUNK_BLOCKS, s->blocks - first), bytes = DIV_ROUND_UP(blocks, 8u), len;
    struct tree_key key = {s->id, ITEM_SPACE, first};
    int r = tree_get(&c->volume->pool, &key, buf, ITEM_LEN_MAX, &len);

    if (r == ERR_NOT_FOUND) {
        memset(buf, 0, sizeof(struct disk_space_item) + 2 * bytes);
    } else if (r) {
        return r;
    } else if (len != sizeof(struct disk_space_item) + 2 * bytes) {
        problem(c, "the space item of group %u at block %u is malformed", s->id, first);
        return 0;
    }
    const uint8_t *alloc = buf + sizeof(struct disk_space_item), *defer = alloc + bytes;
    uint32_t leaked = 0, missing = 0;
    for (uint32_t i = 0; i < blocks; i++) {
        bool live = bitmap_get(alloc, i) && !bitmap_get(defer, i), used = bitmap_get(s->bits, first + i);
        leaked += live && !used;
        missing += !live && used;
    }
    if (leaked)
        problem(c, "group %u, blocks from %u on: %u blocks are marked used but nothing references them",
                s->id, first, leaked);
    if (missing)
        problem(c, "group %u, blocks from %u on: %u blocks are referenced but marked free", s->id, first,
                missing);
    return 0;
}

static may_yield int compare_all(struct check *c)
{
    uint8_t *buf = malloc(ITEM_LEN_MAX);
    int r = buf ? 0 : ERR_NO_MEMORY;

    for (size_t i = 0; !r && i < c->group_count; i++)
        for (uint32_t first = 0; !r && first < c->groups[i].blocks; first += SPACE_CHUNK_BLOCKS)
            r = compare_chunk(c, &c->groups[i], first, buf);
    free(buf);
    return r;
}

static int seen_make(struct check *c)
{
    size_t n = 0;

    for (struct group *g = group_next(c->volume->groups, NULL); g; g = group_next(c->volume->groups, g))
        n += g->purpose != GROUP_SYSTEM;
    c->groups = calloc(n + 1, sizeof(*c->groups));
    if (!c->groups)
        return ERR_NO_MEMORY;
    for (struct group *g = group_next(c->volume->groups, NULL); g; g = group_next(c->volume->groups, g)) {
        if (g->purpose == GROUP_SYSTEM)
            continue;
        struct seen *s = &c->groups[c->group_count++];
        *s = (struct seen){
            .id = g->id, .blocks = g->blocks, .bits = calloc(1, DIV_ROUND_UP(g->blocks, 8u) + 1)};
        if (!s->bits)
            return ERR_NO_MEMORY;
    }
    return 0;
}

int volume_verify(struct volume *v, struct volume_verify *r)
{
    struct check c = {.volume = v, .report = r};
    struct tree_walk ops = {.node = on_node, .item = on_item, .bad = on_bad, .ctx = &c};
    int err = volume_commit(v);

    if (!err)
        err = seen_make(&c);
    if (!err)
        err = tree_walk(&v->pool, &ops);
    c.in_head = true;
    if (!err)
        err = tree_walk(&v->head, &ops);
    if (!err)
        err = c.err;
    if (!err)
        err = compare_all(&c);
    for (size_t i = 0; !err && i < c.group_count; i++)
        compare_counts(&c, &c.groups[i]);
    if (!err && c.ref_items != v->space.ref_items)
        problem(&c, "the volume counts %llu items of references, but there are %llu",
                (unsigned long long)v->space.ref_items, (unsigned long long)c.ref_items);
    if (!err && r->data_blocks != v->data_blocks)
        problem(&c, "the head says that it has %llu data blocks, but it has %llu",
                (unsigned long long)v->data_blocks, (unsigned long long)r->data_blocks);
    if (!err && r->inodes != v->inodes)
        problem(&c, "the head says that it has %llu inodes, but it has %llu", (unsigned long long)v->inodes,
                (unsigned long long)r->inodes);
    if (!err && r->nodes != v->tree_nodes)
        problem(&c, "the volume counts %llu tree nodes, but there are %llu",
                (unsigned long long)v->tree_nodes, (unsigned long long)r->nodes);
    for (size_t i = 0; i < c.group_count; i++) {
        free(c.groups[i].bits);
        free(c.groups[i].shares);
        free(c.groups[i].counts);
    }
    free(c.groups);
    return err;
}
