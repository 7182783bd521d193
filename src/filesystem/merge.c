/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a file's blocks lie, and blocks that are changed in part.
 *
 * A change's instant cannot read from the drives, so what a block held is read before it; in the instant the
 * block's place is compared. Blocks are never overwritten, and a place that was freed and given away again
 * has another birth: the same place is the same content, and nobody's write in between is undone.
 */
#include "filesystem/fs_internal.h"

#include <sys/stat.h>

#define PIECE_EXTENTS 128u /* taken by one change: about 200 us */

struct tree_key data_key(uint64_t ino, uint64_t block)
{
    return (struct tree_key){ino, ITEM_EXTENT, block * BLOCK_SIZE};
}

int span_decode(const struct tree_cursor *c, struct span *ret)
{
    struct disk_extent d;

    if (c->key.type != ITEM_EXTENT || c->len < sizeof(d) || c->key.offset % BLOCK_SIZE)
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, c->value, sizeof(d));
    if (le32_get(d.blocks) == 0)
        return ERR_VOLUME_CORRUPT;
    *ret = (struct span){.start = c->key.offset / BLOCK_SIZE,
                         .blocks = le32_get(d.blocks),
                         .flags = d.flags,
                         .space = le32_get(d.space),
                         .block = le64_get(d.block),
                         .birth = le64_get(d.birth_physical)};
    return 0;
}

/* The place of a block, from the last extent that begins at it or before (r: how it was found). */
static int place_from(int r, const struct tree_cursor *c, uint64_t ino, uint64_t block, struct place *ret)
{
    struct span s;

    *ret = (struct place){0};
    if (r == ERR_NOT_FOUND)
        return 0;
    if (r || c->key.object != ino || c->key.type != ITEM_EXTENT)
        return r;
    r = span_decode(c, &s);
    if (r || block >= s.start + s.blocks)
        return r;
    assert(block >= s.start);
    bool data = !(s.flags & (EXTENT_ZERO | EXTENT_LOST));
    *ret = (struct place){.mapped = true,
                          .flags = s.flags,
                          .space = data ? s.space : 0,
                          .block = data ? s.block + (block - s.start) : 0,
                          .birth = data ? s.birth : 0};
    return 0;
}

int merge_read(struct fs *fs, uint64_t ino, uint64_t block, struct merge *ret)
{
    struct merge m = {.ino = ino, .block = block};
    struct tree_cursor c;
    int r = volume_item_seek(fs->volume, data_key(ino, block), SEEK_LE, &c);

    r = place_from(r, &c, ino, block, &m.place);
    if (!r && (m.place.flags & EXTENT_LOST))
        r = ERR_LOST_RANGE;
    if (!r && m.place.mapped && !(m.place.flags & EXTENT_ZERO)) {
        struct page_vec vec;
        r = volume_read(fs->volume, ino, block, 1, &vec);
        if (!r)
            m.old = vec.runs[0].page; /* its reference with it */
    }
    if (r)
        return r;
    *ret = m;
    return 0;
}

int merge_same(struct change *c, const struct merge *m)
{
    struct tree_cursor cursor;
    struct place now;
    int r = change_seek(c, data_key(m->ino, 0), data_key(m->ino, m->block), SEEK_LE, &cursor);

    r = place_from(r, &cursor, m->ino, m->block, &now);
    if (r)
        return r;
    const struct place *was = &m->place;
    if (now.mapped != was->mapped || now.flags != was->flags || now.space != was->space ||
        now.block != was->block || now.birth != was->birth)
        return ERR_CHANGE_AGAIN;
    return 0;
}

void merge_copy(const struct merge *m, uint8_t *to, uint32_t from, uint32_t len)
{
    assert(from + len <= BLOCK_SIZE);
    if (m->old)
        memcpy(to + from, m->old->data + from, len);
    else
        memset(to + from, 0, len);
}

void merge_done(struct merge *m)
{
    if (m->old)
        page_put(m->old, 1);
    m->old = NULL;
}

static uint64_t span_overlap(const struct span *s, uint64_t block, uint64_t end)
{
    uint64_t from = MAX(block, s->start), to = MIN(end, s->start + s->blocks);

    return from < to ? to - from : 0;
}

int extents_count(struct change *c, uint64_t ino, uint64_t block, uint64_t blocks, uint64_t *ret)
{
    struct tree_cursor cursor;
    struct span s;
    uint64_t n = 0, at = block, end = block + blocks;
    int r = change_seek(c, data_key(ino, 0), data_key(ino, block), SEEK_LE, &cursor);

    if (!r)
        r = span_decode(&cursor, &s);
    if (r && r != ERR_NOT_FOUND)
        return r;
    if (!r) {
        n = span_overlap(&s, block, end);
        at = MAX(block, s.start + s.blocks);
    }
    for (r = 0; at < end; at = s.start + s.blocks) {
        r = change_seek(c, data_key(ino, at), data_key(ino, end - 1), SEEK_GE, &cursor);
        if (!r)
            r = span_decode(&cursor, &s);
        if (r)
            break;
        n += span_overlap(&s, at, end);
    }
    if (r && r != ERR_NOT_FOUND)
        return r;
    *ret = n;
    return 0;
}

int extents_piece(struct fs *fs, uint64_t ino, uint64_t block, uint64_t *ret_end, bool *ret_any)
{
    struct tree_cursor c;
    uint32_t n = 0;
    int r = volume_item_seek(fs->volume, data_key(ino, block), SEEK_GE, &c);

    while (!r && c.key.object == ino && c.key.type == ITEM_EXTENT && n < PIECE_EXTENTS) {
        n++;
        r = tree_next(&c);
    }
    if (r && r != ERR_NOT_FOUND)
        return r;
    bool more = !r && c.key.object == ino && c.key.type == ITEM_EXTENT;
    *ret_end = more ? c.key.offset / BLOCK_SIZE : BLOCKS_END;
    *ret_any = n > 0;
    return 0;
}

int check_regular(uint32_t mode)
{
    if (S_ISDIR(mode))
        return ERR_FS_IS_DIRECTORY;
    return S_ISREG(mode) ? 0 : ERR_FS_INVALID;
}
