/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading. The life of a read: the inode, the blocks (straight out of the cache's pages), then the inode once
 * more: if the file was cut or left the tree meanwhile, what was read may be of another time, and it is read
 * again. At last the wait until all that was seen is acknowledged (H3).
 */
#include "filesystem/fs_internal.h"

#include <sys/stat.h>

struct read_op {
    struct fs *fs;
    uint64_t ino, offset;
    uint32_t len;      /* what is left of it before the end of the file */
    uint64_t data_end; /* bytes from here on are zeroes, whatever lies there (F5) */
    struct page_vec *vec;
};

/* Room for zeroes behind what was read. */
static void add_zeroes(struct page_vec *v, uint32_t blocks)
{
    struct page_run *last = v->run_count ? &v->runs[v->run_count - 1] : NULL;

    if (blocks == 0)
        return;
    assert(v->blocks + blocks <= PAGE_VEC_MAX);
    v->blocks += blocks;
    if (last && !last->page)
        last->count += blocks;
    else
        v->runs[v->run_count++] = (struct page_run){.page = NULL, .count = blocks};
}

static may_yield int read_inline(struct read_op *op, const struct inode *n)
{
    struct page *page;
    uint32_t len = 0;
    int r = page_alloc_wait(1, DEADLINE_NEVER, &page);

    if (r)
        return r;
    r = volume_item_get(op->fs->volume, inline_key(op->ino), page->data, FS_INLINE_MAX, &len);
    if (r == ERR_NOT_FOUND) /* it has just left the tree */
        r = ERR_CHANGE_AGAIN;
    if (!r && len != n->size)
        r = ERR_CHANGE_AGAIN;
    if (r) {
        page_put(page, 1);
        return r;
    }
    memset(page->data + len, 0, BLOCK_SIZE - len);
    op->vec->run_count = op->vec->blocks = 1;
    op->vec->runs[0] = (struct page_run){page, 1};
    return 0;
}

static may_yield int read_blocks(struct read_op *op, const struct inode *n)
{
    uint64_t first = op->offset / BLOCK_SIZE, end = (op->offset + op->len - 1) / BLOCK_SIZE + 1;
    uint64_t data_end = end;
    int r = 0;

    if (n->flags & INODE_REAPING)
        data_end = MAX(first, MIN(end, n->reap_from / BLOCK_SIZE));
    op->data_end = data_end * BLOCK_SIZE;
    op->vec->run_count = op->vec->blocks = 0;
    if (data_end > first) {
        readahead_follow(op->fs, n, first, (uint32_t)(data_end - first));
        readahead_wait(op->fs, op->ino, first, (uint32_t)(data_end - first));
        r = volume_read(op->fs->volume, op->ino, first, (uint32_t)(data_end - first), op->vec);
    }
    if (!r)
        add_zeroes(op->vec, (uint32_t)(end - MAX(first, data_end)));
    return r;
}

/* The inode after the reading: was what we read of one file, and of it as it was since we looked first? */
static bool still_good(const struct read_op *op, const struct inode *n, const struct inode *now)
{
    if (now->change == n->change)
        return true;
    if ((n->flags | now->flags) & INODE_INLINE)
        return false;
    if (now->size < op->offset + op->len)
        return false;
    return !(now->flags & INODE_REAPING) || now->reap_from >= op->data_end;
}

/* Who may execute it may read it (the client's kernel does so on his behalf); its owner always may: he could
 * have opened it before it was made unreadable. */
static may_yield int check_access(struct fs *fs, const struct fs_cred *cred, const struct inode *n)
{
    if (cred->trusted || cred->uid == n->uid)
        return 0;
    int r = access_read(fs, cred, n, FS_MAY_READ);
    if (r == ERR_FS_ACCESS && access_read(fs, cred, n, FS_MAY_EXECUTE) == 0)
        r = 0;
    return r;
}

static may_yield int read_turn(struct read_op *op, const struct fs_request *rq, uint32_t len,
                               struct inode *ret)
{
    struct inode n;
    int r = inode_read(op->fs, op->ino, 0, &n);

    if (!r)
        r = check_regular(n.mode);
    if (!r)
        r = check_access(op->fs, &rq->cred, &n);
    if (r)
        return r;
    op->len = op->offset < n.size ? (uint32_t)MIN(len, n.size - op->offset) : 0;
    op->vec->run_count = op->vec->blocks = 0;
    if (op->len == 0) {
        *ret = n;
        return 0;
    }
    r = n.flags & INODE_INLINE ? read_inline(op, &n) : read_blocks(op, &n);
    if (r)
        return r;
    r = inode_read(op->fs, op->ino, 0, ret);
    if (!r && !still_good(op, &n, ret))
        r = ERR_CHANGE_AGAIN;
    if (r)
        page_vec_put(op->vec);
    return r;
}

static may_yield int read_all(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset,
                              uint32_t len, struct page_vec *ret, uint32_t *ret_len, bool *ret_eof,
                              struct fs_attr *ret_attr)
{
    struct read_op op = {.fs = fs, .ino = ino, .offset = offset, .vec = ret};
    struct inode n;
    int r;

    assert(len == 0 || len == fs_piece_len(offset, len));
    do
        r = read_turn(&op, rq, len, &n);
    while (r == ERR_CHANGE_AGAIN);
    int seen = volume_seen(fs->volume, &ino, 1); /* before a refusal, too */
    if (seen && !r)
        page_vec_put(ret);
    if (seen || r)
        return seen ? seen : r;
    if (op.len > 0)
        atime_note(fs, rq, &n);
    *ret_len = op.len;
    *ret_eof = offset >= n.size || offset + op.len >= n.size;
    if (ret_attr)
        inode_attr(&n, ret_attr);
    return 0;
}

int fs_read(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, uint32_t len,
            struct page_vec *ret, uint32_t *ret_len, bool *ret_eof, struct fs_attr *ret_attr)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_READ);
    int r = read_all(fs, rq, ino, offset, len, ret, ret_len, ret_eof, ret_attr);

    return fs_end(fs, rq, FS_OP_READ, began, ino, r ? 0 : *ret_len, r);
}
