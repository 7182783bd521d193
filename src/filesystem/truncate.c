/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting and extending files.
 *
 * Extending touches no data: what lies behind the end of a file reads as zeroes (rule Z in write.c). Only a
 * file that is inline and becomes too large for that gets its bytes into block 0.
 *
 * Cutting through a block writes that block anew, with zeroes behind the end. The whole blocks behind go at
 * once where they are few; else the inode says from where on they are not the file's any more (INODE_REAPING,
 * reap_from), is on the list of orphans, and the reaper takes them (F5).
 */
#include "filesystem/fs_internal.h"
#include "runtime/checksum.h"

#define CUT_AT_ONCE_BLOCKS 1024u /* held by the file: 1.5 ms if each is an extent, mostly some us */

static uint64_t blocks_of(uint64_t size)
{
    return DIV_ROUND_UP(size, BLOCK_SIZE);
}

static bool is_inline(const struct inode *n)
{
    return n->flags & INODE_INLINE;
}

static bool cuts_blocks(const struct inode *n, uint64_t size)
{
    return size < n->size && n->blocks > 0 && !is_inline(n);
}

/* A cut through a block that may hold data. */
static bool cuts_through(const struct inode *n, uint64_t size)
{
    return cuts_blocks(n, size) && size % BLOCK_SIZE != 0 &&
           !((n->flags & INODE_REAPING) && size >= n->reap_from);
}

static bool cuts_at_once(const struct inode *n)
{
    return n->blocks <= CUT_AT_ONCE_BLOCKS && !(n->flags & INODE_REAPING);
}

static bool leaves_tree(const struct inode *n, uint64_t size)
{
    return is_inline(n) && size > FS_INLINE_MAX;
}

/* ---- Before the instant ---- */

/* The block that is cut through, with zeroes behind the end. A lost one stays as it is. */
static may_yield int tail_prepare(struct truncate *t, struct fs *fs)
{
    uint32_t keep = (uint32_t)(t->size % BLOCK_SIZE);
    int r = merge_read(fs, t->seen.ino, t->size / BLOCK_SIZE, &t->tail);

    if (r == ERR_LOST_RANGE)
        return 0;
    if (r)
        return r;
    t->has_tail = true;
    if (!t->tail.old)
        return 0;
    r = page_alloc_wait(1, DEADLINE_NEVER, &t->page);
    if (r)
        return r;
    merge_copy(&t->tail, t->page->data, 0, keep);
    memset(t->page->data + keep, 0, BLOCK_SIZE - keep);
    crc32c_blocks(t->page->data, BLOCK_SIZE, &t->sum);
    return 0;
}

static void promise(struct truncate *t, struct fs *fs, struct change *c)
{
    const struct inode *n = &t->seen;
    uint64_t first = blocks_of(t->size);

    if (n->quota)
        quota_want(fs, c, n->quota);
    if (is_inline(n)) {
        change_want(c, inline_key(n->ino));
        change_will_put(c, FS_INLINE_MAX);
        change_will_delete(c);
    }
    if (t->page)
        change_will_write(c, n->ino, t->size / BLOCK_SIZE * !is_inline(n), 1, true);
    if (t->size < n->size && !t->page)
        c->deletes = true;
    if (!cuts_blocks(n, t->size))
        return;
    orphan_will_put(c, n->ino);
    if (cuts_at_once(n) && first < BLOCKS_END)
        change_will_unmap(c, n->ino, first, BLOCKS_END - first);
}

int truncate_prepare(struct truncate *t, struct fs *fs, struct change *c, uint64_t ino, uint64_t size)
{
    *t = (struct truncate){.size = size};
    int r = inode_read(fs, ino, 0, &t->seen);
    if (!r && size >= FS_SIZE_MAX)
        r = ERR_FS_TOO_BIG;
    if (!r && leaves_tree(&t->seen, size))
        r = page_alloc_wait(1, DEADLINE_NEVER, &t->page);
    else if (!r && cuts_through(&t->seen, size))
        r = tail_prepare(t, fs);
    if (!r)
        promise(t, fs, c);
    return r;
}

void truncate_done(struct truncate *t)
{
    merge_done(&t->tail);
    if (t->page)
        page_put(t->page, 1);
    t->page = NULL;
}

/* ---- In it ---- */

int truncate_plan(struct truncate *t, struct fs *fs, struct change *c, const struct inode *n)
{
    const struct inode *seen = &t->seen;
    uint8_t old[FS_INLINE_MAX];
    uint32_t len;
    int r = 0;

    if (n->ino != seen->ino || n->size != seen->size || n->flags != seen->flags || n->quota != seen->quota ||
        n->blocks != seen->blocks || n->reap_from != seen->reap_from)
        return ERR_CHANGE_AGAIN;
    if (is_inline(n))
        r = inline_get(c, n, old, &len);
    if (!r && t->has_tail)
        r = merge_same(c, &t->tail);
    if (!r && n->quota)
        r = quota_check(fs, c, n->quota, 0, 0);
    return r;
}

static void apply_inline(struct truncate *t, struct change *c, struct inode *n)
{
    struct page_vec vec;
    uint8_t old[FS_INLINE_MAX];
    uint32_t len, done, freed;
    int r = inline_get(c, n, old, &len);

    assert(r == 0); /* truncate_plan() read it */
    if (t->size > 0 && t->size <= FS_INLINE_MAX) {
        if (t->size < len)
            memset(old + t->size, 0, len - t->size);
        change_put(c, inline_key(n->ino), old, (uint32_t)t->size);
        return;
    }
    n->flags &= ~INODE_INLINE;
    change_delete(c, inline_key(n->ino));
    if (t->size == 0)
        return;
    memcpy(t->page->data, old, FS_INLINE_MAX);
    memset(t->page->data + FS_INLINE_MAX, 0, BLOCK_SIZE - FS_INLINE_MAX);
    crc32c_blocks(t->page->data, BLOCK_SIZE, &t->sum);
    vec.run_count = vec.blocks = 1;
    vec.runs[0] = (struct page_run){t->page, 1};
    change_write(c, n->ino, 0, &vec, 0, 1, &t->sum, &done, &freed);
    inode_blocks(n, done, freed);
}

static void apply_tail(struct truncate *t, struct change *c, struct inode *n)
{
    struct page_vec vec;
    uint32_t done, freed;

    vec.run_count = vec.blocks = 1;
    vec.runs[0] = (struct page_run){t->page, 1};
    change_write(c, n->ino, t->size / BLOCK_SIZE, &vec, 0, 1, &t->sum, &done, &freed);
    inode_blocks(n, done, freed);
}

/* The whole blocks behind the end: all of them now, or what is left of them by the reaper. */
static void apply_cut(struct truncate *t, struct fs *fs, struct change *c, struct inode *n)
{
    uint64_t first = blocks_of(t->size), done, freed;

    if (first >= BLOCKS_END)
        return;
    if (cuts_at_once(n)) {
        change_unmap(c, n->ino, first, BLOCKS_END - first, false, &done, &freed);
        inode_blocks(n, 0, freed);
        first += done;
        if (first == BLOCKS_END)
            return;
    }
    if (!(n->flags & INODE_REAPING) || first * BLOCK_SIZE < n->reap_from)
        n->reap_from = first * BLOCK_SIZE;
    n->flags |= INODE_REAPING;
    orphan_put(c, n->ino, n->nlink == 0 ? ORPHAN_DELETE : ORPHAN_TRUNCATE);
    fs->reap_new = true;
    reaper_kick(fs);
}

void truncate_apply(struct truncate *t, struct fs *fs, struct change *c, struct inode *n)
{
    uint64_t before = quota_bytes(n);
    bool cuts = cuts_blocks(n, t->size);

    if (is_inline(n))
        apply_inline(t, c, n);
    else if (t->page)
        apply_tail(t, c, n);
    if (cuts)
        apply_cut(t, fs, c, n);
    n->size = t->size;
    if (n->quota)
        quota_charge(fs, c, n->quota, (int64_t)quota_bytes(n) - (int64_t)before, 0);
}
