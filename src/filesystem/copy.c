/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying ranges within the file system, by bytes: pages of the source's cache, moved within their blocks
 * where the ends are not aligned alike. Holes of the source stay holes. One call copies a bounded part: who
 * wants more calls again.
 */
#include "filesystem/fs_internal.h"

#include <stdlib.h>

#define COPY_BYTES_MAX  (16 * MIB) /* of one call */
#define SHARE_BYTES_MAX (4 * GIB)

struct copy_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint64_t from, from_offset;
    uint64_t to, to_offset;
    uint64_t len, done;
    bool clone, bytes_only;
    uint64_t copied;             /* by bytes */
    uint64_t from_size, to_size; /* as they were when it began */
    struct fs_wcc *wcc;
    struct page_vec *in, *out;
};

static const uint8_t *byte_at(const struct page_vec *v, uint32_t at, uint32_t *ret_run)
{
    uint32_t block = at / BLOCK_SIZE, i = 0;

    *ret_run = BLOCK_SIZE - at % BLOCK_SIZE;
    while (block >= v->runs[i].count)
        block -= v->runs[i++].count;
    return v->runs[i].page ? page_at(v->runs[i].page, block)->data + at % BLOCK_SIZE : NULL;
}

static bool all_zeroes(const struct page_vec *v)
{
    for (uint32_t i = 0; i < v->run_count; i++)
        if (v->runs[i].page)
            return false;
    return true;
}

/* What was read lies in op->in from in_at on; to op->out for out_at. */
static may_yield int move(struct copy_op *op, uint32_t in_at, uint32_t out_at, uint32_t len)
{
    uint32_t blocks = (uint32_t)DIV_ROUND_UP((uint64_t)out_at + len, BLOCK_SIZE);
    struct page *page;
    int r = page_alloc_wait(blocks, DEADLINE_NEVER, &page);

    if (r)
        return r;
    for (uint32_t done = 0, n; done < len; done += n) {
        const uint8_t *bytes = byte_at(op->in, in_at + done, &n);
        n = MIN(n, len - done);
        if (bytes)
            memcpy(page->data + out_at + done, bytes, n);
        else
            memset(page->data + out_at + done, 0, n);
    }
    op->out->run_count = 1;
    op->out->blocks = blocks;
    op->out->runs[0] = (struct page_run){page, blocks};
    return 0;
}

static may_yield int extend(struct copy_op *op, uint64_t size)
{
    struct fs *fs = op->fs;
    struct truncate t;
    struct change c;
    struct inode n;
    int r;

    change_init(&c, fs->volume);
    do {
        change_clear(&c);
        inode_want(&c, op->to);
        r = truncate_prepare(&t, fs, &c, op->to, size);
        if (!r)
            r = change_begin(&c);
        if (!r)
            r = inode_get(fs, &c, op->to, &n);
        bool grows = !r && n.size < size;
        if (grows)
            r = truncate_plan(&t, fs, &c, &n);
        if (grows && !r) {
            truncate_apply(&t, fs, &c, &n);
            n.mtime_ns = n.ctime_ns = fs_now_ns();
            inode_put(&c, &n);
            wcc_after(op->wcc, &n);
        }
        r = change_end(&c, r, fs_end_flags(op->rq));
        truncate_done(&t);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

/* The piece is a hole there: it becomes one here. */
static may_yield int copy_hole(struct copy_op *op, uint64_t at, uint32_t len)
{
    struct fs_wcc wcc;
    int r = fs_allocate(op->fs, op->rq, op->to, FS_PUNCH_HOLE, at, len, &wcc);

    if (r)
        return r;
    if (op->wcc && !op->wcc->has_before) {
        *op->wcc = wcc;
    } else if (op->wcc) {
        op->wcc->has_after = wcc.has_after;
        op->wcc->after = wcc.after;
    }
    return wcc.after.size < at + len ? extend(op, at + len) : 0;
}

static may_yield int copy_bytes(struct copy_op *op, uint64_t at, uint32_t in_at, uint32_t len)
{
    struct fs_wcc wcc;
    uint64_t where;
    int r = move(op, in_at, (uint32_t)(at % BLOCK_SIZE), len);

    if (r)
        return r;
    r = fs_write(op->fs, op->rq, op->to, at, len, op->out, FS_WRITE_OPEN, &where, &wcc);
    page_vec_put(op->out);
    if (r)
        return r;
    if (op->wcc && !op->wcc->has_before) {
        *op->wcc = wcc;
    } else if (op->wcc) {
        op->wcc->has_after = true;
        op->wcc->after = wcc.after;
    }
    return 0;
}

/* Bytes of one piece; *ret_end: nothing is behind it. */
static may_yield int copy_some(struct copy_op *op, uint64_t most, bool *ret_end)
{
    uint64_t from = op->from_offset + op->done, to = op->to_offset + op->done;
    uint32_t len = fs_piece_len(from, MIN(most, op->len - op->done)), got;

    len = fs_piece_len(to, len);
    int r = fs_read(op->fs, op->rq, op->from, from, len, op->in, &got, ret_end, NULL);
    if (r || got == 0)
        return r;
    r = all_zeroes(op->in) ? copy_hole(op, to, got) : copy_bytes(op, to, (uint32_t)(from % BLOCK_SIZE), got);
    page_vec_put(op->in);
    if (!r)
        op->done += got;
    return r;
}

/* ---- By blocks ---- */

/* How many whole blocks, from here on, can be shared. */
static uint64_t blocks_here(const struct copy_op *op)
{
    uint64_t from = op->from_offset + op->done, to = op->to_offset + op->done, left = op->len - op->done;

    if (from % BLOCK_SIZE || to % BLOCK_SIZE)
        return 0;
    bool whole_end = from + left == op->from_size && to + left >= op->to_size;
    return whole_end ? DIV_ROUND_UP(left, BLOCK_SIZE) : left / BLOCK_SIZE;
}

static may_yield int share_some(struct copy_op *op, uint64_t blocks)
{
    struct fs_clone what = {.from = op->from,
                            .from_block = (op->from_offset + op->done) / BLOCK_SIZE,
                            .to = op->to,
                            .to_block = (op->to_offset + op->done) / BLOCK_SIZE,
                            .blocks = blocks,
                            .end = op->to_offset + op->len};
    uint64_t done = 0;
    int r = clone_blocks(op->fs, op->rq, &what, op->wcc, &done);

    op->done = MIN(op->len, op->done + done * BLOCK_SIZE);
    return r;
}

/* The best for what comes next. */
static may_yield int copy_piece(struct copy_op *op, bool *ret_end)
{
    uint64_t blocks = op->bytes_only ? 0 : blocks_here(op);
    uint64_t from = op->from_offset + op->done;

    if (blocks > 0) {
        int r = share_some(op, blocks);
        if (r != ERR_FS_NOT_SUPPORTED && r != ERR_FS_INVALID)
            return r;
        if (op->clone && r == ERR_FS_INVALID)
            return r;
        op->bytes_only = true; /* in the tree, or somebody changed it */
    }
    if (op->copied >= COPY_BYTES_MAX && !op->clone) {
        *ret_end = true;
        return 0;
    }
    /* Up to where sharing begins. */
    bool alike = from % BLOCK_SIZE == (op->to_offset + op->done) % BLOCK_SIZE;
    uint64_t before = op->done, most = PAGE_VEC_MAX * BLOCK_SIZE;
    if (alike && from % BLOCK_SIZE && !op->bytes_only)
        most = BLOCK_SIZE - from % BLOCK_SIZE;
    int r = copy_some(op, most, ret_end);
    op->copied += op->done - before;
    return r;
}

/* ---- The call ---- */

/* Rules of copy_file_range(2): both regular, no overlap within one file, nothing behind the largest size. Of
 * FICLONERANGE: whole blocks, or up to the source's end where the target's is not behind; length 0 is to the
 * source's end. */
static may_yield int copy_check(struct copy_op *op)
{
    struct inode from, to;
    int r = inode_read(op->fs, op->from, 0, &from);

    if (!r)
        r = inode_read(op->fs, op->to, 0, &to);
    if (!r)
        r = check_regular(from.mode);
    if (!r)
        r = check_regular(to.mode);
    if (r)
        return r;
    if (op->rq->read_only)
        return ERR_FS_READ_ONLY;
    uint64_t left = op->from_offset < from.size ? from.size - op->from_offset : 0;
    if (op->clone && op->len == 0)
        op->len = left;
    if (op->clone && (op->len > left || op->from_offset % BLOCK_SIZE || op->to_offset % BLOCK_SIZE))
        return ERR_FS_INVALID;
    op->len = MIN(op->len, op->clone ? left : MIN(left, SHARE_BYTES_MAX));
    if (op->to_offset > FS_SIZE_MAX - 1 || op->len > FS_SIZE_MAX - 1 - op->to_offset)
        return ERR_FS_TOO_BIG;
    if (op->from == op->to && op->from_offset < op->to_offset + op->len &&
        op->to_offset < op->from_offset + op->len)
        return ERR_FS_INVALID;
    op->from_size = from.size;
    op->to_size = to.size;
    if (op->clone && op->len % BLOCK_SIZE && (op->len < left || op->to_offset + op->len < to.size))
        return ERR_FS_INVALID;
    return 0;
}

static may_yield int copy_all(struct copy_op *op)
{
    bool end = false;
    int r = copy_check(op);

    if (r)
        return r;
    op->in = malloc(2 * sizeof(*op->in));
    if (!op->in)
        return ERR_NO_MEMORY;
    op->out = op->in + 1;
    while (!r && !end && op->done < op->len)
        r = copy_piece(op, &end);
    free(op->in);
    return op->done > 0 && !op->clone ? 0 : r; /* what was done counts */
}

int fs_copy_range(struct fs *fs, const struct fs_request *rq, uint64_t from, uint64_t from_offset,
                  uint64_t to, uint64_t to_offset, uint64_t len, bool clone, uint64_t *ret_len,
                  struct fs_wcc *ret)
{
    struct copy_op op = {.fs = fs,
                         .rq = rq,
                         .from = from,
                         .from_offset = from_offset,
                         .to = to,
                         .to_offset = to_offset,
                         .len = len,
                         .clone = clone,
                         .wcc = ret};
    uint64_t began = fs_begin(fs, rq, FS_OP_WRITE);

    if (ret)
        ret->has_before = ret->has_after = false;
    int r = copy_all(&op);
    if (!r)
        *ret_len = op.done;
    return fs_end(fs, rq, FS_OP_WRITE, began, to, r ? 0 : op.done, r);
}
