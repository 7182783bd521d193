/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing. The life of a write: the inode is looked at, and what the write leaves out of its first and last
 * block is filled in (from the block as it is now, or zeroes behind the end of the file); checksums; then a
 * change, in whose instant all that was assumed is looked at again: if somebody else was faster, once more
 * from the beginning. Data, size, times and quota are one record.
 *
 * Z  Bytes of the last block behind the end of the file are zeroes in the volume. So a file grows without
 *    touching its data, and a write that reaches the end needs no old block.
 *
 * Small files (FS_INLINE_MAX) live in an item beside their inode; the first write that makes them larger
 * moves the bytes into block 0 in the same change, or, when it does not touch block 0, in one of its own
 * before it.
 *
 * Nothing is kept back: unstable writes go to the drives' kernels with the next log batch, as those of block
 * devices do. COMMIT is a flush that all waiting clients share.
 */
#include "filesystem/names_internal.h"
#include "runtime/checksum.h"

#include <stdlib.h>
#include <sys/stat.h>

#define DURABLE_INLINE_BLOCKS 8u /* durable writes up to this travel in the log */
#define ROOM_WAIT_NS          (30 * NSEC_PER_SEC)

/* What is left out of an edge of the write. */
enum fill {
    FILL_NONE,   /* nothing is */
    FILL_ZERO,   /* it lies behind the end of the file */
    FILL_MERGE,  /* it is what the block holds */
    FILL_INLINE, /* it is what the inline item holds (block 0 of a file that is inline no more) */
};

struct write_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint64_t ino, offset;
    uint32_t len, flags;
    const struct page_vec *data; /* a page for each block from `first` on */

    /* An append elsewhere than foreseen: the data is moved within its blocks. */
    const struct page_vec *source;
    uint32_t source_at, source_left; /* where its bytes begin, and how many are not yet written */
    struct page_vec *own;

    /* The plan, made before the instant. */
    uint64_t first, end; /* block; byte behind the write */
    uint32_t blocks;
    bool in_tree; /* the file stays, or becomes, inline */
    bool from_inline;
    enum fill head_fill, tail_fill;
    struct merge head, tail;
    uint64_t quota;
    bool summed; /* all but the edges */
    bool told;   /* the reply stands in the tree, or is not wanted */

    /* What came of it. */
    uint32_t done; /* blocks, from `first` on */
    struct fs_wcc *wcc;

    uint32_t sums[PAGE_VEC_MAX];
};

static uint8_t *block_data(const struct page_vec *v, uint32_t block)
{
    uint32_t i = 0;

    while (block >= v->runs[i].count)
        block -= v->runs[i++].count;
    assert(v->runs[i].page != NULL);
    return page_at(v->runs[i].page, block)->data;
}

/* ---- The plan ---- */

static void op_merges_done(struct write_op *op)
{
    if (op->head_fill == FILL_MERGE)
        merge_done(&op->head);
    if (op->tail_fill == FILL_MERGE)
        merge_done(&op->tail);
    op->head_fill = op->tail_fill = FILL_NONE;
}

/* The bytes [from, to) of block `block` are not in the write: where do they come from? */
static enum fill fill_kind(const struct write_op *op, const struct inode *n, uint64_t block, uint64_t from,
                           uint64_t to)
{
    if (from == to)
        return FILL_NONE;
    if (from >= n->size)
        return FILL_ZERO;
    return n->flags & INODE_INLINE ? (assert(block == 0 && op->first == 0), FILL_INLINE) : FILL_MERGE;
}

static may_yield int plan_edges(struct write_op *op, const struct inode *n)
{
    uint64_t last = op->first + op->blocks - 1;
    int r = 0;

    op->head_fill = fill_kind(op, n, op->first, op->first * BLOCK_SIZE, op->offset);
    if (op->head_fill == FILL_MERGE) {
        r = merge_read(op->fs, op->ino, op->first, &op->head);
        if (r)
            op->head_fill = FILL_NONE;
    }
    if (r)
        return r;
    op->tail_fill = fill_kind(op, n, last, op->end, (last + 1) * BLOCK_SIZE);
    if (op->tail_fill == FILL_MERGE) {
        r = merge_read(op->fs, op->ino, last, &op->tail);
        if (r)
            op->tail_fill = FILL_NONE;
    }
    return r;
}

static void fill_edge(const struct write_op *op, enum fill kind, const struct merge *m, uint32_t i,
                      uint32_t from, uint32_t len)
{
    uint8_t *to = block_data(op->data, i);

    if (kind == FILL_ZERO)
        memset(to + from, 0, len);
    else if (kind == FILL_MERGE)
        merge_copy(m, to, from, len);
}

/* Fills in what the write leaves out, and computes the checksums that are not known yet. */
static void op_fill(struct write_op *op)
{
    uint32_t head = (uint32_t)(op->offset % BLOCK_SIZE), tail = (uint32_t)(op->end % BLOCK_SIZE), n = 0;
    const struct page_vec *v = op->data;

    if (head)
        fill_edge(op, op->head_fill, &op->head, 0, 0, head);
    if (tail)
        fill_edge(op, op->tail_fill, &op->tail, op->blocks - 1, tail, BLOCK_SIZE - tail);
    if (op->summed) {
        if (head)
            crc32c_blocks(block_data(v, 0), BLOCK_SIZE, &op->sums[0]);
        if (tail)
            crc32c_blocks(block_data(v, op->blocks - 1), BLOCK_SIZE, &op->sums[op->blocks - 1]);
        return;
    }
    for (uint32_t i = 0; i < v->run_count; i++) {
        crc32c_blocks(v->runs[i].page->data, (size_t)v->runs[i].count * BLOCK_SIZE, op->sums + n);
        n += v->runs[i].count;
    }
    assert(n == op->blocks);
    op->summed = true;
}

static void own_free(struct page_vec *own)
{
    if (own) {
        page_vec_put(own);
        free(own);
    }
}

/* An append whose end of file is not where the caller's pages are laid out for: moves the bytes. More than
 * fit the blocks of one change are appended by another one. */
static may_yield int op_move(struct write_op *op, uint64_t offset)
{
    uint32_t from = op->source_at, to = (uint32_t)(offset % BLOCK_SIZE);
    uint32_t len = fs_piece_len(offset, op->source_left);
    uint32_t blocks = (uint32_t)DIV_ROUND_UP(to + (uint64_t)len, BLOCK_SIZE);
    struct page_vec *own = calloc(1, sizeof(*own));
    struct page *page;

    if (!own)
        return ERR_NO_MEMORY;
    int r = page_alloc_wait(blocks, DEADLINE_NEVER, &page);
    if (r) {
        free(own);
        return r;
    }
    for (uint32_t at = 0; at < len;) { /* a run of pages is contiguous memory */
        uint32_t in = from + at, n = MIN(BLOCK_SIZE - in % BLOCK_SIZE, len - at);
        memcpy(page->data + to + at, block_data(op->source, in / BLOCK_SIZE) + in % BLOCK_SIZE, n);
        at += n;
    }
    *own = (struct page_vec){.run_count = 1, .blocks = blocks};
    own->runs[0] = (struct page_run){page, blocks};
    own_free(op->own);
    op->own = own;
    op->data = own;
    op->len = len;
    op->offset = offset;
    op->summed = false;
    return 0;
}

/* Looks at the file and makes the plan. ERR_CHANGE_AGAIN: something was in the way and is not any more. */
static may_yield int op_plan(struct write_op *op)
{
    struct inode n;
    int r = inode_read(op->fs, op->ino, 0, &n);

    if (!r)
        r = check_regular(n.mode);
    if (r)
        return r;
    if (op->flags & FS_WRITE_APPEND) {
        if (!op->data || n.size % BLOCK_SIZE != op->offset % BLOCK_SIZE)
            r = op_move(op, n.size);
        op->offset = n.size;
    }
    if (r)
        return r;
    if (op->offset > FS_SIZE_MAX - 1 || op->len > FS_SIZE_MAX - 1 - op->offset)
        return ERR_FS_TOO_BIG;
    op->end = op->offset + op->len;
    op->first = op->offset / BLOCK_SIZE;
    op->blocks = (uint32_t)((op->end - 1) / BLOCK_SIZE - op->first + 1);
    op->quota = n.quota;
    op->in_tree = inline_fits(&n, MAX(n.size, op->end));
    op->from_inline = !op->in_tree && (n.flags & INODE_INLINE);
    if (op->in_tree)
        return 0;
    if ((n.flags & INODE_REAPING) && (op->first + op->blocks) * BLOCK_SIZE > n.reap_from) {
        r = reap_wait(op->fs, op->ino, (op->first + op->blocks) * BLOCK_SIZE);
        return r ? r : ERR_CHANGE_AGAIN;
    }
    if (op->from_inline && op->first > 0) {
        r = inline_spill(op->fs, op->rq, op->ino);
        return r ? r : ERR_CHANGE_AGAIN;
    }
    r = plan_edges(op, &n);
    if (!r)
        op_fill(op);
    return r;
}

static void op_promise(struct write_op *op, struct change *c)
{
    inode_want(c, op->ino);
    if (op->quota)
        quota_want(op->fs, c, op->quota);
    if (op->in_tree || op->from_inline) {
        change_want(c, inline_key(op->ino));
        change_will_put(c, FS_INLINE_MAX);
    }
    if (!op->told)
        reply_will_put(op->fs, c, op->rq);
    if (!op->in_tree)
        change_will_write(c, op->ino, op->first, op->blocks,
                          op->rq->durable && op->blocks <= DURABLE_INLINE_BLOCKS);
}

/* ---- The instant ---- */

/* Is everything as the plan took it to be? */
static int plan_holds(struct write_op *op, struct change *c, const struct inode *n)
{
    uint64_t last = op->first + op->blocks - 1;
    bool from_inline = !op->in_tree && (n->flags & INODE_INLINE);

    if ((op->flags & FS_WRITE_APPEND) && n->size != op->offset)
        return ERR_CHANGE_AGAIN;
    if (n->quota != op->quota || op->in_tree != inline_fits(n, MAX(n->size, op->end)) ||
        from_inline != op->from_inline)
        return ERR_CHANGE_AGAIN;
    if (op->in_tree)
        return 0;
    if ((n->flags & INODE_REAPING) && (last + 1) * BLOCK_SIZE > n->reap_from)
        return ERR_CHANGE_AGAIN;
    if (op->head_fill != fill_kind(op, n, op->first, op->first * BLOCK_SIZE, op->offset) ||
        op->tail_fill != fill_kind(op, n, last, op->end, (last + 1) * BLOCK_SIZE))
        return ERR_CHANGE_AGAIN;
    int r = op->head_fill == FILL_MERGE ? merge_same(c, &op->head) : 0;
    if (!r && op->tail_fill == FILL_MERGE)
        r = merge_same(c, &op->tail);
    return r;
}

/* What a quota would have to bear. */
static int quota_allows(struct write_op *op, struct change *c, const struct inode *n)
{
    uint64_t held = 0;
    int64_t more;
    int r = 0;

    if (!op->quota)
        return 0;
    if (op->in_tree) {
        more = n->flags & INODE_INLINE ? 0 : BLOCK_SIZE;
    } else {
        r = extents_count(c, op->ino, op->first, op->blocks, &held);
        more = (int64_t)((op->blocks - held) * BLOCK_SIZE) - (op->from_inline ? (int64_t)BLOCK_SIZE : 0);
    }
    return r ? r : quota_check(op->fs, c, op->quota, more, 0);
}

static void write_in_tree(struct write_op *op, struct change *c, struct inode *n, uint8_t *old)
{
    uint64_t size = MAX(n->size, op->end);

    memcpy(old + op->offset, block_data(op->data, 0) + op->offset, op->len);
    change_put(c, inline_key(op->ino), old, (uint32_t)size);
    n->flags |= INODE_INLINE;
    n->size = size;
    op->done = op->blocks;
}

/* The part of block 0 that the write leaves out comes from the inline item, which goes. */
static void leave_tree(struct write_op *op, struct change *c, struct inode *n, const uint8_t *old)
{
    uint8_t *page = block_data(op->data, 0);
    uint32_t head = (uint32_t)op->offset, tail = (uint32_t)MIN(op->end, BLOCK_SIZE);

    memcpy(page, old, MIN(head, FS_INLINE_MAX));
    if (head > FS_INLINE_MAX)
        memset(page + FS_INLINE_MAX, 0, head - FS_INLINE_MAX);
    if (tail < FS_INLINE_MAX)
        memcpy(page + tail, old + tail, FS_INLINE_MAX - tail);
    tail = MAX(tail, FS_INLINE_MAX);
    if (op->blocks == 1)
        memset(page + tail, 0, BLOCK_SIZE - tail);
    crc32c_blocks(page, BLOCK_SIZE, &op->sums[0]);
    change_delete(c, inline_key(op->ino));
    n->flags &= ~INODE_INLINE;
}

static void write_blocks(struct write_op *op, struct change *c, struct inode *n)
{
    uint32_t done, freed;

    change_write(c, op->ino, op->first, op->data, 0, op->blocks, op->sums, &done, &freed);
    assert(done >= 1 && done <= op->blocks);
    inode_blocks(n, done, freed);
    op->done = done;
    n->size = MAX(n->size, MIN(op->end, (op->first + done) * BLOCK_SIZE));
}

static int write_instant(struct write_op *op, struct change *c)
{
    uint8_t old[FS_INLINE_MAX];
    struct inode n;
    uint32_t old_len;
    int r = inode_get(op->fs, c, op->ino, &n);

    if (!r)
        r = check_regular(n.mode);
    if (!r && !(op->flags & FS_WRITE_OPEN) && op->rq->cred.uid != n.uid)
        r = access_check(op->fs, c, &op->rq->cred, &n, FS_MAY_WRITE);
    if (!r)
        r = plan_holds(op, c, &n);
    if (!r && (op->in_tree || op->from_inline))
        r = inline_get(c, &n, old, &old_len);
    if (!r)
        r = quota_allows(op, c, &n);
    if (r)
        return r;
    uint64_t before = quota_bytes(&n);
    if (op->wcc && !op->wcc->has_before)
        wcc_before(op->wcc, &n);
    if (op->from_inline)
        leave_tree(op, c, &n, old);
    if (op->in_tree)
        write_in_tree(op, c, &n, old);
    else
        write_blocks(op, c, &n);
    (void)mode_kill_suid(&op->rq->cred, &n);
    n.mtime_ns = n.ctime_ns = fs_now_ns();
    if (op->quota)
        quota_charge(op->fs, c, op->quota, (int64_t)quota_bytes(&n) - (int64_t)before, 0);
    inode_put(c, &n);
    if (!op->told)
        reply_put(op->fs, c, op->rq, 0, op->offset);
    op->told = true; /* the changes for the rest must not move it */
    wcc_after(op->wcc, &n);
    struct fs_event e = {.kind = FS_EVENT_DATA, .ino = op->ino, .offset = op->offset, .len = op->len};
    notify(op->fs, op->rq, &e);
    return 0;
}

/* ---- The call ---- */

/* One change: as much of op as goes at once. */
static may_yield int op_turn(struct write_op *op, struct change *c)
{
    int r = op_plan(op);

    if (!r) {
        change_clear(c);
        op_promise(op, c);
        r = change_begin(c);
        if (!r)
            r = write_instant(op, c);
        r = change_end(c, r, fs_end_flags(op->rq));
    }
    op_merges_done(op);
    return r;
}

/* Nothing is left to write into, or of a quota: what was deleted already may be enough, but others may go on
 * deleting for ever. */
static may_yield bool wait_for_room(struct write_op *op, int err, uint64_t *until_ns)
{
    if (err != ERR_VOLUME_FULL && err != ERR_FS_QUOTA)
        return false;
    if (*until_ns == 0)
        *until_ns = reactor_now_ns() + ROOM_WAIT_NS;
    return reactor_now_ns() < *until_ns && reap_for_space(op->fs);
}

static may_yield int op_run(struct write_op *op, struct change *c)
{
    uint64_t until_ns = 0;
    int r;

    do
        r = op_turn(op, c);
    while (r == ERR_CHANGE_AGAIN || wait_for_room(op, r, &until_ns));
    return r;
}

/* Takes the first blocks, which are written, off what is left. */
static void op_advance(struct write_op *op, struct page_vec *rest)
{
    uint32_t skip = op->done, n = 0;
    uint64_t at = (op->first + op->done) * BLOCK_SIZE;
    const struct page_vec *v = op->data;

    for (uint32_t i = 0; i < v->run_count; i++) { /* v may be rest */
        struct page_run run = v->runs[i];
        uint32_t drop = MIN(skip, run.count);
        skip -= drop;
        if (drop < run.count)
            rest->runs[n++] = (struct page_run){page_at(run.page, drop), run.count - drop};
    }
    rest->run_count = n;
    rest->blocks = op->blocks - op->done;
    op->data = rest;
    op->len = (uint32_t)(op->end - at);
    op->offset = at;
    op->flags &= ~(uint32_t)FS_WRITE_APPEND; /* the rest goes where it began */
    op->summed = false;
}

/* Space was in pieces: changes of their own for the rest. Rare. */
static may_yield int op_rest(struct write_op *op, struct change *c)
{
    struct page_vec *rest = calloc(1, sizeof(*rest));
    int r = rest ? 0 : ERR_NO_MEMORY;

    while (!r && op->done < op->blocks) {
        op_advance(op, rest);
        r = op_run(op, c);
    }
    free(rest);
    return r;
}

static may_yield int write_all(struct write_op *op, uint64_t *ret_offset)
{
    const uint32_t flags = op->flags, at = op->source_at;
    struct change c;
    int r;

    change_init(&c, op->fs->volume);
    r = op_run(op, &c);
    uint64_t first = op->offset;
    for (;;) {
        uint32_t len = op->len;
        if (!r && op->done < op->blocks)
            r = op_rest(op, &c);
        if (r)
            return r;
        assert(len <= op->source_left);
        op->source_left -= len;
        if (op->source_left == 0)
            break;
        op->source_at += len; /* an append of more blocks than foreseen */
        op->data = NULL;
        op->flags = flags;
        r = op_run(op, &c);
    }
    assert(op->source_at >= at);
    *ret_offset = first;
    return 0;
}

static may_yield int write_nothing(struct fs *fs, const struct fs_request *rq, uint64_t ino,
                                   struct fs_wcc *wcc)
{
    struct inode n;
    int r = inode_read(fs, ino, 0, &n);

    if (!r)
        r = check_regular(n.mode);
    if (!r)
        r = volume_seen(fs->volume, &ino, 1);
    if (r)
        return r;
    (void)rq;
    wcc_before(wcc, &n);
    wcc_after(wcc, &n);
    return 0;
}

static may_yield int write_checked(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset,
                                   uint32_t len, const struct page_vec *data, uint32_t flags,
                                   uint64_t *ret_offset, struct fs_wcc *ret)
{
    if (rq->read_only)
        return ERR_FS_READ_ONLY;
    if (len == 0) {
        *ret_offset = offset;
        return write_nothing(fs, rq, ino, ret);
    }
    if (offset > FS_SIZE_MAX - 1 || len > FS_SIZE_MAX - 1 - offset)
        return ERR_FS_TOO_BIG;
    assert(len == fs_piece_len(offset, len));
    assert(data->blocks == (offset + len - 1) / BLOCK_SIZE - offset / BLOCK_SIZE + 1);
    struct write_op op;
    memset(&op, 0, offsetof(struct write_op, sums));
    op.fs = fs;
    op.rq = rq;
    op.ino = ino;
    op.offset = offset;
    op.len = len;
    op.flags = flags;
    op.data = op.source = data;
    op.source_at = (uint32_t)(offset % BLOCK_SIZE);
    op.source_left = len;
    op.wcc = ret;
    op.told = !(flags & FS_WRITE_APPEND); /* any other may be made twice */
    int r = write_all(&op, ret_offset);
    own_free(op.own);
    return r;
}

int fs_write(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t offset, uint32_t len,
             const struct page_vec *data, uint32_t flags, uint64_t *ret_offset, struct fs_wcc *ret)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_WRITE);

    if (ret)
        ret->has_before = ret->has_after = false;
    return fs_end(fs, rq, FS_OP_WRITE, began, ino, len,
                  write_checked(fs, rq, ino, offset, len, data, flags, ret_offset, ret));
}

int fs_commit(struct fs *fs, const struct fs_request *rq, uint64_t ino, struct fs_wcc *ret)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_COMMIT);
    struct inode n;
    int r = volume_flush(fs->volume);

    if (ret)
        ret->has_before = ret->has_after = false;
    if (!r)
        r = inode_read(fs, ino, 0, &n);
    if (!r)
        r = volume_seen(fs->volume, &ino, 1);
    if (!r) {
        wcc_before(ret, &n);
        wcc_after(ret, &n);
    }
    return fs_end(fs, rq, FS_OP_COMMIT, began, ino, 0, r);
}
