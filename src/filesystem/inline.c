/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files in the tree: their bytes are one item beside the inode. It is as long as the file, and then the
 * inode says INODE_INLINE and there are no extents; a file with size 0 has neither.
 */
#include "filesystem/fs_internal.h"
#include "runtime/checksum.h"

int inline_get(struct change *c, const struct inode *n, uint8_t buf[FS_INLINE_MAX], uint32_t *ret_len)
{
    const void *value;
    uint32_t len = 0;

    if (n->flags & INODE_INLINE) {
        int r = change_get(c, inline_key(n->ino), &value, &len);
        if (r == ERR_NOT_FOUND || (!r && (len != n->size || len > FS_INLINE_MAX)))
            r = ERR_VOLUME_CORRUPT;
        if (r)
            return r;
        memcpy(buf, value, len);
    }
    memset(buf + len, 0, FS_INLINE_MAX - len);
    *ret_len = len;
    return 0;
}

/* ---- Out of the tree ---- */

static int spill_instant(struct fs *fs, struct change *c, uint64_t ino, struct page *page)
{
    struct page_vec vec = {.run_count = 1, .blocks = 1, .runs = {{page, 1}}};
    uint32_t len, sum, done, freed;
    struct inode n;
    int r = inode_get(fs, c, ino, &n);

    if (!r)
        r = inline_get(c, &n, page->data, &len);
    if (r || !(n.flags & INODE_INLINE))
        return r;
    memset(page->data + FS_INLINE_MAX, 0, BLOCK_SIZE - FS_INLINE_MAX);
    crc32c_blocks(page->data, BLOCK_SIZE, &sum);
    change_delete(c, inline_key(ino));
    change_write(c, ino, 0, &vec, 0, 1, &sum, &done, &freed);
    inode_blocks(&n, done, freed);
    n.flags &= ~INODE_INLINE;
    inode_put(c, &n);
    return 0;
}

int inline_spill(struct fs *fs, const struct fs_request *rq, uint64_t ino)
{
    struct change c;
    struct page *page;
    int r = page_alloc_wait(1, DEADLINE_NEVER, &page);

    if (r)
        return r;
    change_init(&c, fs->volume);
    do {
        change_clear(&c);
        inode_want(&c, ino);
        change_want(&c, inline_key(ino));
        change_will_delete(&c);
        change_will_write(&c, ino, 0, 1, rq->durable);
        r = change_begin(&c);
        if (!r)
            r = spill_instant(fs, &c, ino, page);
        r = change_end(&c, r, 0);
    } while (r == ERR_CHANGE_AGAIN);
    page_put(page, 1);
    return r;
}
