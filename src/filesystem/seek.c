/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SEEK_DATA and SEEK_HOLE. What was set aside by fallocate and never written is a hole, as with other file
 * systems; what is lost is data (that cannot be read).
 */
#include "filesystem/fs_internal.h"

#define WALK_YIELD 1024u /* extents */

struct walk {
    struct fs *fs;
    uint64_t ino;
    struct tree_cursor cursor;
    struct span span;
    uint32_t steps;
};

/* 1: it stands on an extent of the file. 0: there is none. Else an error. */
static int walk_look(struct walk *w, int r)
{
    if (r == ERR_NOT_FOUND || (!r && (w->cursor.key.object != w->ino || w->cursor.key.type != ITEM_EXTENT)))
        return 0;
    if (!r)
        r = span_decode(&w->cursor, &w->span);
    return r ? r : 1;
}

static may_yield int walk_next(struct walk *w)
{
    if (++w->steps % WALK_YIELD == 0)
        fiber_yield();
    return walk_look(w, tree_next(&w->cursor));
}

/* Onto the first extent that ends behind `block`. */
static may_yield int walk_start(struct walk *w, uint64_t block)
{
    int r = walk_look(w, volume_item_seek(w->fs->volume, data_key(w->ino, block), SEEK_LE, &w->cursor));

    if (r < 0 || (r == 1 && w->span.start + w->span.blocks > block))
        return r;
    return walk_look(w, volume_item_seek(w->fs->volume, data_key(w->ino, block), SEEK_GE, &w->cursor));
}

static bool is_hole(const struct span *s)
{
    return s->flags & EXTENT_ZERO;
}

/* First block of data from `block` on; BLOCKS_END: none. */
static may_yield int find_data(struct walk *w, uint64_t block, uint64_t *ret)
{
    int r = walk_start(w, block);

    while (r == 1 && is_hole(&w->span))
        r = walk_next(w);
    if (r < 0)
        return r;
    *ret = r ? MAX(block, w->span.start) : BLOCKS_END;
    return 0;
}

/* First block from `block` on that is none. */
static may_yield int find_hole(struct walk *w, uint64_t block, uint64_t *ret)
{
    int r = walk_start(w, block);

    while (r == 1 && !is_hole(&w->span) && w->span.start <= block) {
        block = w->span.start + w->span.blocks;
        r = walk_next(w);
    }
    if (r < 0)
        return r;
    *ret = block;
    return 0;
}

static may_yield int seek_blocks(struct fs *fs, const struct inode *n, uint64_t offset, bool hole,
                                 uint64_t *ret)
{
    struct walk w = {.fs = fs, .ino = n->ino};
    uint64_t block = offset / BLOCK_SIZE, found = 0;
    uint64_t end = n->flags & INODE_REAPING ? n->reap_from / BLOCK_SIZE : BLOCKS_END; /* F5 */
    int r = hole ? find_hole(&w, block, &found) : find_data(&w, block, &found);

    if (r)
        return r;
    if (found >= end)
        found = hole ? MAX(block, end) : BLOCKS_END;
    uint64_t at = MAX(offset, found * BLOCK_SIZE);
    if (at >= n->size) {
        if (!hole)
            return ERR_FS_NO_DATA;
        at = n->size;
    }
    *ret = at;
    return 0;
}

static may_yield int seek_any(struct fs *fs, uint64_t ino, uint64_t offset, bool hole, uint64_t *ret)
{
    struct inode n;
    uint64_t at = 0;
    int r = inode_read(fs, ino, 0, &n);

    if (!r)
        r = check_regular(n.mode);
    if (!r && offset >= n.size)
        r = ERR_FS_NO_DATA;
    if (!r && (n.flags & INODE_INLINE))
        at = hole ? n.size : offset;
    else if (!r)
        r = seek_blocks(fs, &n, offset, hole, &at);
    int seen = volume_seen(fs->volume, &ino, 1);
    if (!r)
        r = seen;
    if (r)
        return r;
    *ret = at;
    return 0;
}

int fs_seek(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, bool hole,
            uint64_t *ret_offset)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_READ);

    return fs_end(fs, rq, FS_OP_READ, began, ino, 0, seek_any(fs, ino, offset, hole, ret_offset));
}
