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
                            .birth_logical = le64_make(e->birth),
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
