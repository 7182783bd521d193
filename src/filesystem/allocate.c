/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fallocate: setting space aside, punching holes, zeroing ranges.
 *
 * What is set aside is EXTENT_ZERO: it reads as zeroes, counts as the file's (st_blocks, quota) and takes
 * nothing from the volume until it is written. Only holes become that; data stays.
 *
 * Punching and zeroing change whole blocks by unmapping and the blocks at the edges by a merge, as many in
 * one change as keep its instant short.
 */
#include "filesystem/fs_internal.h"
#include "runtime/checksum.h"

#define ZERO_BLOCKS_MAX (UINT64_C(1) << 30) /* of one change */
#define WALK_YIELD      1024u

struct edge {
    struct merge merge;
    struct page *page; /* its new content; NULL: it needs none */
    uint32_t sum;
};

struct range_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint64_t ino;
    bool allocate, zero, extend;
    uint64_t at, end; /* bytes that are left to do */
    struct fs_wcc *wcc;

    /* The plan of one change. */
    uint64_t quota;
    bool in_tree;
    bool clipped;         /* the file ends in the range: nothing behind it needs a merge */
    uint64_t first, last; /* whole blocks [first, last) */
    struct edge edges[2];
    uint32_t edge_count;
    bool last_piece;
};

static void edges_done(struct range_op *op)
{
    for (uint32_t i = 0; i < op->edge_count; i++) {
        merge_done(&op->edges[i].merge);
        if (op->edges[i].page)
            page_put(op->edges[i].page, 1);
    }
    op->edge_count = 0;
}

/* ---- The plan ---- */

/* Zeroes bytes [from, to) of a block, if there is anything else. */
static may_yield int edge_plan(struct range_op *op, uint64_t block, uint32_t from, uint32_t to)
{
    struct edge *e = &op->edges[op->edge_count];
    int r = merge_read(op->fs, op->ino, block, &e->merge);

    if (r)
        return r;
    e->page = NULL;
    op->edge_count++;
    if (!e->merge.old)
        return 0;
    r = page_alloc_wait(1, DEADLINE_NEVER, &e->page);
    if (r)
        return r;
    merge_copy(&e->merge, e->page->data, 0, BLOCK_SIZE);
    memset(e->page->data + from, 0, to - from);
    crc32c_blocks(e->page->data, BLOCK_SIZE, &e->sum);
    return 0;
}

/* Edges and whole blocks of a piece that is to be punched or zeroed. */
static may_yield int plan_zeroes(struct range_op *op, const struct inode *n)
{
    uint32_t head = (uint32_t)(op->at % BLOCK_SIZE), tail = (uint32_t)(op->end % BLOCK_SIZE);
    uint64_t piece;
    bool any;
    int r;

    if (op->end >= n->size) /* zeroes behind the end already (rule Z) */
        tail = 0;
    op->first = DIV_ROUND_UP(op->at, BLOCK_SIZE);
    op->last = tail ? op->end / BLOCK_SIZE : DIV_ROUND_UP(op->end, BLOCK_SIZE);
    op->last_piece = true;
    if (head && tail && op->first > op->last) /* within one block */
        return edge_plan(op, op->last, head, tail);
    if (op->first < op->last) {
        r = extents_piece(op->fs, op->ino, op->first, &piece, &any);
        if (r)
            return r;
        piece = MIN(piece, op->first + ZERO_BLOCKS_MAX);
        if (piece < op->last) {
            op->last = piece;
            op->last_piece = false;
        }
    }
    r = head ? edge_plan(op, op->at / BLOCK_SIZE, head, BLOCK_SIZE) : 0;
    if (!r && tail && op->last_piece)
        r = edge_plan(op, op->end / BLOCK_SIZE, 0, tail);
    return r;
}

/* The first hole of the range is the piece. */
static may_yield int plan_hole(struct range_op *op)
{
    uint64_t at = op->at / BLOCK_SIZE, end = DIV_ROUND_UP(op->end, BLOCK_SIZE), hole_end = end;
    struct tree_cursor c;
    struct span s;
    uint32_t steps = 0;
    int r = volume_item_seek(op->fs->volume, data_key(op->ino, at), SEEK_LE, &c);

    if (r == ERR_NOT_FOUND || (!r && (c.key.object != op->ino || c.key.type != ITEM_EXTENT)))
        r = volume_item_seek(op->fs->volume, data_key(op->ino, at), SEEK_GE, &c);
    while (!r && c.key.object == op->ino && c.key.type == ITEM_EXTENT) {
        r = span_decode(&c, &s);
        if (r)
            return r;
        if (s.start > at) {
            hole_end = MIN(end, s.start);
            break;
        }
        at = MAX(at, s.start + s.blocks);
        if (at >= end)
            break;
        if (++steps % WALK_YIELD == 0)
            fiber_yield();
        r = tree_next(&c);
    }
    if (r && r != ERR_NOT_FOUND)
        return r;
    op->first = MIN(at, end);
    op->last = MIN(MAX(hole_end, op->first), op->first + ZERO_BLOCKS_MAX);
    op->last_piece = op->last == end;
    return 0;
}

/* Looks at the file and makes the plan. ERR_CHANGE_AGAIN: something was in the way and is not any more. */
static may_yield int range_plan(struct range_op *op)
{
    struct inode n;
    int r = inode_read(op->fs, op->ino, 0, &n);

    if (!r)
        r = check_regular(n.mode);
    if (r)
        return r;
    op->quota = n.quota;
    op->first = op->last = 0;
    op->last_piece = true;
    uint64_t size = op->extend ? MAX(n.size, op->end) : n.size;
    op->in_tree =
        (n.flags & INODE_INLINE) && size <= FS_INLINE_MAX && (!op->allocate || op->end <= FS_INLINE_MAX);
    if (op->in_tree)
        return 0;
    if (n.flags & INODE_INLINE) {
        r = inline_spill(op->fs, op->rq, op->ino);
        return r ? r : ERR_CHANGE_AGAIN;
    }
    if ((n.flags & INODE_REAPING) && op->end > n.reap_from) {
        r = reap_wait(op->fs, op->ino, op->end);
        return r ? r : ERR_CHANGE_AGAIN;
    }
    op->clipped = op->end >= n.size;
    return op->allocate ? plan_hole(op) : plan_zeroes(op, &n);
}

static void range_promise(struct range_op *op, struct change *c)
{
    uint32_t writes = 0;

    inode_want(c, op->ino);
    if (op->quota)
        quota_want(op->fs, c, op->quota);
    if (op->in_tree) {
        change_want(c, inline_key(op->ino));
        change_will_put(c, FS_INLINE_MAX);
    }
    for (uint32_t i = 0; i < op->edge_count; i++)
        if (op->edges[i].page) {
            change_will_write(c, op->ino, op->edges[i].merge.block, 1, true);
            writes++;
        }
    if (op->first < op->last)
        change_will_unmap(c, op->ino, op->first, op->last - op->first);
    c->deletes = !op->zero && !writes;
}

/* ---- The instant ---- */

static int range_look(struct range_op *op, struct change *c, const struct inode *n)
{
    uint64_t size = op->extend ? MAX(n->size, op->end) : n->size, held = 0;
    int r = 0;

    if (n->quota != op->quota)
        return ERR_CHANGE_AGAIN;
    if (op->in_tree)
        return (n->flags & INODE_INLINE) && size <= FS_INLINE_MAX ? 0 : ERR_CHANGE_AGAIN;
    if ((n->flags & INODE_INLINE) || op->clipped != (op->end >= n->size) ||
        ((n->flags & INODE_REAPING) && op->end > n->reap_from))
        return ERR_CHANGE_AGAIN;
    for (uint32_t i = 0; i < op->edge_count && !r; i++)
        r = merge_same(c, &op->edges[i].merge);
    if (!r && op->zero && op->first < op->last)
        r = extents_count(c, op->ino, op->first, op->last - op->first, &held);
    if (!r && op->allocate && held > 0)
        return ERR_CHANGE_AGAIN; /* no hole any more */
    if (!r && op->quota) {
        uint64_t more = op->zero ? op->last - op->first - held : 0;
        r = quota_check(op->fs, c, op->quota, (int64_t)(more * BLOCK_SIZE), 0);
    }
    return r;
}

static void zero_in_tree(struct range_op *op, struct change *c, struct inode *n, uint8_t *old)
{
    uint64_t to = MIN(op->end, n->size);

    if (!op->allocate && op->at < to)
        memset(old + op->at, 0, to - op->at);
    if (op->extend)
        n->size = MAX(n->size, op->end);
    change_put(c, inline_key(op->ino), old, (uint32_t)n->size);
    op->at = op->end;
}

static void zero_blocks(struct range_op *op, struct change *c, struct inode *n)
{
    uint64_t done = 0, freed;

    for (uint32_t i = 0; i < op->edge_count; i++) {
        struct edge *e = &op->edges[i];
        struct page_vec vec;
        uint32_t one, old;
        if (!e->page)
            continue;
        vec.run_count = vec.blocks = 1;
        vec.runs[0] = (struct page_run){e->page, 1};
        change_write(c, op->ino, e->merge.block, &vec, 0, 1, &e->sum, &one, &old);
        inode_blocks(n, one, old);
    }
    if (op->first < op->last) {
        change_unmap(c, op->ino, op->first, op->last - op->first, op->zero, &done, &freed);
        inode_blocks(n, op->zero ? done : 0, freed);
    }
    bool whole = op->last_piece && (op->first >= op->last || op->first + done == op->last);
    op->at = whole ? op->end : MAX(op->at, (op->first + done) * BLOCK_SIZE);
    if (op->extend)
        n->size = MAX(n->size, MIN(op->at, op->end));
}

static int range_instant(struct range_op *op, struct change *c)
{
    uint8_t old[FS_INLINE_MAX];
    uint64_t began = op->at;
    struct inode n;
    uint32_t len;
    int r = inode_get(op->fs, c, op->ino, &n);

    if (!r)
        r = check_regular(n.mode);
    if (!r && op->rq->cred.uid != n.uid)
        r = access_check(op->fs, c, &op->rq->cred, &n, FS_MAY_WRITE);
    if (!r)
        r = range_look(op, c, &n);
    if (!r && op->in_tree)
        r = inline_get(c, &n, old, &len);
    if (r)
        return r;
    uint64_t before = quota_bytes(&n);
    if (op->wcc && !op->wcc->has_before)
        wcc_before(op->wcc, &n);
    if (op->in_tree)
        zero_in_tree(op, c, &n, old);
    else
        zero_blocks(op, c, &n);
    (void)mode_kill_suid(&op->rq->cred, &n);
    n.ctime_ns = fs_now_ns();
    if (!op->allocate)
        n.mtime_ns = n.ctime_ns;
    if (op->quota)
        quota_charge(op->fs, c, op->quota, (int64_t)quota_bytes(&n) - (int64_t)before, 0);
    inode_put(c, &n);
    wcc_after(op->wcc, &n);
    struct fs_event e = {.kind = FS_EVENT_DATA, .ino = op->ino, .offset = began, .len = op->end - began};
    notify(op->fs, op->rq, &e);
    return 0;
}

/* ---- The call ---- */

static may_yield int range_turn(struct range_op *op, struct change *c)
{
    int r = range_plan(op);

    if (!r) {
        change_clear(c);
        range_promise(op, c);
        r = change_begin(c);
        if (!r)
            r = range_instant(op, c);
        r = change_end(c, r, fs_end_flags(op->rq));
    }
    edges_done(op);
    return r;
}

/* Nothing is reserved for what is set aside; but who asks for more than there is learns it at once. */
static may_yield int room_for(struct fs *fs, uint64_t ino, uint64_t len)
{
    uint64_t free_blocks, total_blocks;
    struct inode n;
    int r = inode_read(fs, ino, 0, &n);

    if (r)
        return r;
    volume_space(fs->volume, &free_blocks, &total_blocks);
    (void)total_blocks;
    return len / BLOCK_SIZE > free_blocks + n.blocks ? ERR_VOLUME_FULL : 0;
}

static may_yield int allocate(struct fs *fs, const struct fs_request *rq, uint64_t ino,
                              enum fs_allocate_mode mode, uint64_t offset, uint64_t len, struct fs_wcc *wcc)
{
    struct range_op op = {.fs = fs,
                          .rq = rq,
                          .ino = ino,
                          .at = offset,
                          .end = offset + len,
                          .allocate = mode == FS_ALLOCATE || mode == FS_ALLOCATE_KEEP_SIZE,
                          .zero = mode != FS_PUNCH_HOLE,
                          .extend = mode == FS_ALLOCATE || mode == FS_ZERO_RANGE,
                          .wcc = wcc};
    struct change c;
    int r = 0;

    if (rq->read_only)
        return ERR_FS_READ_ONLY;
    if (len == 0)
        return ERR_FS_INVALID;
    if (offset > FS_SIZE_MAX - 1 || len > FS_SIZE_MAX - 1 - offset)
        return ERR_FS_TOO_BIG;
    if (op.allocate)
        r = room_for(fs, ino, len);
    change_init(&c, fs->volume);
    while (!r && op.at < op.end) {
        r = range_turn(&op, &c);
        if (r == ERR_CHANGE_AGAIN)
            r = 0;
        else
            change_init(&c, fs->volume); /* the next piece wants other ranges */
    }
    return r;
}

int fs_allocate(struct fs *fs, const struct fs_request *rq, uint64_t ino, enum fs_allocate_mode mode,
                uint64_t offset, uint64_t len, struct fs_wcc *ret)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_ALLOCATE);

    if (ret)
        ret->has_before = ret->has_after = false;
    return fs_end(fs, rq, FS_OP_ALLOCATE, began, ino, 0, allocate(fs, rq, ino, mode, offset, len, ret));
}
