/* SPDX-License-Identifier: Apache-2.0 */
/* Extents in the head tree: decoding, and replacing a range of an object without a yield. */
#include "volume/volume_internal.h"

int extent_decode(const struct tree_key *key, const void *value, uint32_t len, struct extent *ret)
{
    struct disk_extent d;

    if (len < sizeof(d) || key->type != ITEM_EXTENT || key->offset % BLOCK_SIZE)
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, value, sizeof(d));
    uint32_t blocks = le32_get(d.blocks);
    uint64_t start = key->offset / BLOCK_SIZE;
    if (blocks == 0 || start + blocks > UINT64_MAX / BLOCK_SIZE || d.compression != COMPRESSION_NONE)
        return ERR_VOLUME_CORRUPT;
    if (d.flags & (EXTENT_ZERO | EXTENT_LOST)) {
        if (len != sizeof(d))
            return ERR_VOLUME_CORRUPT;
    } else if (d.checksum_type != CHECKSUM_CRC32C || d.checksum_width != 4 || blocks > EXTENT_BLOCKS_MAX ||
               le32_get(d.physical_blocks) != blocks || len != sizeof(d) + blocks * 4 ||
               le64_get(d.block) > UINT32_MAX - blocks || (d.flags & EXTENT_ENCRYPTED)) {
        return ERR_VOLUME_CORRUPT;
    }
    *ret = (struct extent){.object = key->object,
                           .start = start,
                           .blocks = blocks,
                           .space = le32_get(d.space),
                           .block = le64_get(d.block),
                           .birth = le64_get(d.birth_physical),
                           .logical = le64_get(d.birth_logical),
                           .flags = d.flags,
                           .sums = (const uint8_t *)value + sizeof(d)};
    return 0;
}

uint32_t extent_encode(const struct extent *e, uint8_t out[EXTENT_ITEM_MAX])
{
    bool data = !(e->flags & (EXTENT_ZERO | EXTENT_LOST));
    struct disk_extent d = {.blocks = le32_make(e->blocks),
                            .physical_blocks = le32_make(data ? e->blocks : 0),
                            .space = le32_make(e->space),
                            .checksum_type = data ? CHECKSUM_CRC32C : CHECKSUM_NONE,
                            .checksum_width = data ? 4 : 0,
                            .flags = e->flags,
                            .block = le64_make(e->block),
                            .birth_logical = le64_make(e->logical ? e->logical : e->birth),
                            .birth_physical = le64_make(e->birth)};

    assert(e->blocks > 0 && (!data || e->blocks <= EXTENT_BLOCKS_MAX));
    memcpy(out, &d, sizeof(d));
    if (!data)
        return sizeof(d);
    memcpy(out + sizeof(d), e->sums, (size_t)e->blocks * 4);
    return (uint32_t)sizeof(d) + e->blocks * 4;
}

void extent_put_now(struct volume *v, const struct extent *e)
{
    uint8_t item[EXTENT_ITEM_MAX];
    struct tree_key key = extent_key(e->object, e->start);

    tree_put_now(&v->head, &key, item, extent_encode(e, item));
    if (!(e->flags & (EXTENT_ZERO | EXTENT_LOST)))
        v->data_blocks += e->blocks;
}

/* The blocks [first, first+n) of the extent are not referenced any more. */
static void extent_free_part(struct volume *v, const struct extent *e, uint32_t first, uint32_t n)
{
    if (e->flags & (EXTENT_ZERO | EXTENT_LOST))
        return;
    if (e->flags & EXTENT_SHARED) { /* the commit finds out whether it was the last one */
        refs_drop(v, e->space, e->block + first, n);
        return;
    }
    space_free(v, v->txg, e->space, e->block + first, n);
    cache_remove_data(v->env.cache, (struct cache_key){v->cache_tag, e->space, e->block + first}, n);
}

/* Part of an extent as an extent of its own. */
static struct extent extent_part(const struct extent *e, uint32_t first, uint32_t n)
{
    struct extent p = *e;

    p.start += first;
    p.blocks = n;
    if (!(e->flags & (EXTENT_ZERO | EXTENT_LOST))) {
        p.block += first;
        p.sums += (size_t)first * 4;
    }
    return p;
}

/* Cuts [block, end) out of the extent on which the cursor stands. */
static int extent_cut_now(struct volume *v, const struct tree_cursor *c, uint64_t block, uint64_t end)
{
    uint8_t copy[EXTENT_ITEM_MAX];
    struct extent e;

    if (c->len > sizeof(copy))
        return ERR_VOLUME_CORRUPT;
    memcpy(copy, c->value, c->len);
    struct tree_key key = c->key;
    int r = extent_decode(&key, copy, c->len, &e);
    if (r)
        return r;
    uint64_t e_end = e.start + e.blocks;
    uint64_t from = MAX(block, e.start), to = MIN(end, e_end);
    if (from >= to)
        return 0;
    v->unmapped_blocks += to - from;
    if (!(e.flags & (EXTENT_ZERO | EXTENT_LOST))) {
        struct group *g = group_find(v->groups, e.space);
        if (!g || g->purpose != GROUP_DATA || e.block + e.blocks > g->blocks)
            return ERR_VOLUME_CORRUPT;
        v->data_blocks -= e.blocks;
    }
    extent_free_part(v, &e, (uint32_t)(from - e.start), (uint32_t)(to - from));
    if (from > e.start) {
        struct extent left = extent_part(&e, 0, (uint32_t)(from - e.start));
        extent_put_now(v, &left);
    } else {
        r = tree_delete_now(&v->head, &key);
        assert(r == 0);
    }
    if (to < e_end) {
        struct extent right = extent_part(&e, (uint32_t)(to - e.start), (uint32_t)(e_end - to));
        extent_put_now(v, &right);
    }
    return 0;
}

int extent_remove_now(struct volume *v, uint64_t object, uint64_t block, uint64_t blocks)
{
    struct tree_cursor c;
    struct tree_key key = extent_key(object, block), last = extent_key(object, block + blocks - 1);
    int r = tree_seek_now(&c, &v->head, &key, SEEK_LE);

    if (!r && c.key.object == object && c.key.type == ITEM_EXTENT) {
        r = extent_cut_now(v, &c, block, block + blocks);
        if (r)
            return r;
    } else if (r && r != ERR_NOT_FOUND) {
        return r;
    }
    for (;;) {
        r = tree_seek_now(&c, &v->head, &key, SEEK_GE);
        if (r == ERR_NOT_FOUND || (!r && tree_key_compare(&c.key, &last) > 0))
            return 0;
        if (r)
            return r;
        r = extent_cut_now(v, &c, block, block + blocks);
        if (r)
            return r;
    }
}

/* ---- Cloning ---- */

struct clone_part { /* of `from`, where it comes to lie in `to` */
    struct extent e;
    uint32_t sums_at;
};
struct clone_plan {
    uint32_t count, sums;
    struct clone_part parts[CLONE_EXTENTS_MAX];
    uint32_t sum[CLONE_BLOCKS_MAX];
};

/* The extent on which the cursor stands says from now on that it is shared (R2). */
static void extent_mark_shared_now(struct volume *v, const struct tree_cursor *c)
{
    uint8_t copy[EXTENT_ITEM_MAX];
    struct tree_key key = c->key;

    memcpy(copy, c->value, c->len);
    copy[offsetof(struct disk_extent, flags)] |= EXTENT_SHARED;
    tree_put_now(&v->head, &key, copy, c->len);
}

/* One extent of `from` goes into the plan, as far as it is in the range and there is room: c->blocks is cut
 * to what fits. */
static int clone_plan_extent(struct volume *v, struct clone_plan *p, struct clone *c,
                             const struct tree_cursor *at)
{
    struct extent e;
    int r = at->len > EXTENT_ITEM_MAX ? ERR_VOLUME_CORRUPT : extent_decode(&at->key, at->value, at->len, &e);

    if (r)
        return r;
    uint64_t from = MAX(c->from_block, e.start), to = MIN(c->from_block + c->blocks, e.start + e.blocks);
    if (from >= to)
        return 0;
    bool data = !(e.flags & (EXTENT_ZERO | EXTENT_LOST));
    if (p->count == CLONE_EXTENTS_MAX || (data && to - from > CLONE_BLOCKS_MAX - p->sums)) {
        c->blocks = from - c->from_block;
        return 0;
    }
    struct clone_part *part = &p->parts[p->count++];
    part->e = extent_part(&e, (uint32_t)(from - e.start), (uint32_t)(to - from));
    part->e.object = c->to;
    part->e.start = c->to_block + (from - c->from_block);
    part->e.logical = v->txg;
    part->sums_at = p->sums;
    if (!data)
        return 0;
    memcpy(&p->sum[p->sums], part->e.sums, (size_t)part->e.blocks * 4);
    p->sums += part->e.blocks;
    part->e.flags |= EXTENT_SHARED;
    if (!(e.flags & EXTENT_SHARED))
        extent_mark_shared_now(v, at);
    return 0;
}

static int clone_plan_make(struct volume *v, struct clone_plan *p, struct clone *c)
{
    struct tree_cursor at;
    struct tree_key key = extent_key(c->from, c->from_block);
    int r = tree_seek_now(&at, &v->head, &key, SEEK_LE);

    p->count = p->sums = 0;
    if (r == ERR_NOT_FOUND || (!r && (at.key.object != c->from || at.key.type != ITEM_EXTENT)))
        r = tree_seek_now(&at, &v->head, &key, SEEK_GE);
    for (; !r; r = tree_next_now(&at)) {
        if (at.key.object != c->from || at.key.type != ITEM_EXTENT ||
            at.key.offset / BLOCK_SIZE >= c->from_block + c->blocks)
            return 0;
        r = clone_plan_extent(v, p, c, &at);
        if (r)
            return r;
    }
    return r == ERR_NOT_FOUND ? 0 : r;
}

int extent_clone_now(struct volume *v, struct clone *c)
{
    struct clone_plan p;
    int r = clone_plan_make(v, &p, c);

    assert(c->blocks > 0);
    if (!r)
        r = extent_remove_now(v, c->to, c->to_block, c->blocks);
    if (r)
        return r;
    if (v->damage_count)
        damage_remove(v, c->to, c->to_block, c->blocks);
    c->new_blocks = 0;
    for (uint32_t i = 0; i < p.count; i++) {
        struct extent *e = &p.parts[i].e;
        e->sums = (const uint8_t *)&p.sum[p.parts[i].sums_at];
        extent_put_now(v, e);
        c->new_blocks += e->blocks;
        if (e->flags & EXTENT_LOST)
            damage_add(v, e->object, e->start, e->blocks);
        if (e->flags & (EXTENT_ZERO | EXTENT_LOST))
            continue;
        refs_add(v, e->space, e->block, e->blocks);
    }
    return 0;
}
