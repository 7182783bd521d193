/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying whole blocks by sharing them. Both ends lie on borders of blocks; the last block may be cut short
 * by the source's end if nothing of the target lies behind it: then it is shared whole, since behind the end
 * there are zeroes (rule Z in write.c).
 *
 * A source whose bytes are in the tree has no blocks to share: the caller copies its bytes.
 */
#include "filesystem/fs_internal.h"

struct clone_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint64_t from, from_block, to, to_block, blocks;
    uint64_t end; /* bytes: where the target ends at least, when all is done */
    struct fs_wcc *wcc;
    uint64_t quota;
    uint64_t done; /* blocks */
};

static bool reaping(const struct inode *n, uint64_t end_block)
{
    return (n->flags & INODE_REAPING) && end_block * BLOCK_SIZE > n->reap_from;
}

/* ERR_CHANGE_AGAIN: something was in the way and is not any more. */
static may_yield int clone_plan(struct clone_op *op)
{
    uint64_t from_end, to_end;
    struct inode from, to;
    bool any;
    int r = inode_read(op->fs, op->from, 0, &from);

    if (!r)
        r = inode_read(op->fs, op->to, 0, &to);
    if (r)
        return r;
    if (reaping(&from, op->from_block + op->blocks))
        r = reap_wait(op->fs, op->from, (op->from_block + op->blocks) * BLOCK_SIZE);
    else if (reaping(&to, op->to_block + op->blocks))
        r = reap_wait(op->fs, op->to, (op->to_block + op->blocks) * BLOCK_SIZE);
    else if (to.flags & INODE_INLINE)
        r = inline_spill(op->fs, op->rq, op->to);
    else
        goto ready;
    return r ? r : ERR_CHANGE_AGAIN;

ready:
    if (from.flags & INODE_INLINE)
        return ERR_FS_NOT_SUPPORTED;
    op->quota = to.quota;
    r = extents_piece(op->fs, op->from, op->from_block, &from_end, &any);
    if (!r)
        r = extents_piece(op->fs, op->to, op->to_block, &to_end, &any);
    if (r)
        return r;
    op->blocks = MIN(op->blocks, MIN(from_end - op->from_block, to_end - op->to_block));
    return 0;
}

static int clone_look(struct clone_op *op, struct change *c, struct inode *to)
{
    uint64_t had = 0, gets = 0;
    struct inode from;
    int r = inode_get(op->fs, c, op->from, &from);

    if (!r)
        r = inode_get(op->fs, c, op->to, to);
    if (!r && (from.flags & INODE_INLINE || to->flags & INODE_INLINE || to->quota != op->quota ||
               reaping(&from, op->from_block + op->blocks) || reaping(to, op->to_block + op->blocks)))
        r = ERR_CHANGE_AGAIN;
    if (!r && DIV_ROUND_UP(from.size, BLOCK_SIZE) < op->from_block + op->blocks)
        r = ERR_FS_INVALID; /* it was cut meanwhile */
    /* A last block that is not the source's alone would show what is behind the end here; one behind whose
     * end the source was written meanwhile would leave bytes there that are no zeroes (rule Z). */
    if (!r && op->end % BLOCK_SIZE && op->end < (op->to_block + op->blocks) * BLOCK_SIZE &&
        (to->size > op->end ||
         from.size > op->from_block * BLOCK_SIZE + (op->end - op->to_block * BLOCK_SIZE)))
        r = ERR_FS_INVALID;
    if (!r)
        r = access_check(op->fs, c, &op->rq->cred, &from, FS_MAY_READ);
    if (!r)
        r = access_check(op->fs, c, &op->rq->cred, to, FS_MAY_WRITE);
    if (r || !op->quota)
        return r;
    r = extents_count(c, op->from, op->from_block, op->blocks, &gets);
    if (!r)
        r = extents_count(c, op->to, op->to_block, op->blocks, &had);
    return r ? r : quota_check(op->fs, c, op->quota, ((int64_t)gets - (int64_t)had) * (int64_t)BLOCK_SIZE, 0);
}

static int clone_instant(struct clone_op *op, struct change *c)
{
    uint64_t done, got, freed;
    struct inode n;
    int r = clone_look(op, c, &n);

    if (r)
        return r;
    uint64_t before = quota_bytes(&n);
    if (op->wcc && !op->wcc->has_before)
        wcc_before(op->wcc, &n);
    change_clone(c, op->from, op->from_block, op->to, op->to_block, op->blocks, &done, &got, &freed);
    assert(done >= 1 && done <= op->blocks);
    inode_blocks(&n, got, freed);
    n.size = MAX(n.size, MIN(op->end, (op->to_block + done) * BLOCK_SIZE));
    (void)mode_kill_suid(&op->rq->cred, &n);
    n.mtime_ns = n.ctime_ns = fs_now_ns();
    if (op->quota)
        quota_charge(op->fs, c, op->quota, (int64_t)quota_bytes(&n) - (int64_t)before, 0);
    inode_put(c, &n);
    wcc_after(op->wcc, &n);
    struct fs_event e = {
        .kind = FS_EVENT_DATA, .ino = op->to, .offset = op->to_block * BLOCK_SIZE, .len = done * BLOCK_SIZE};
    notify(op->fs, op->rq, &e);
    op->done = done;
    return 0;
}

static may_yield int clone_turn(struct clone_op *op, struct change *c)
{
    int r = clone_plan(op);

    if (r)
        return r;
    change_clear(c);
    inode_want(c, op->to);
    change_want(c, inode_key(op->from));
    if (op->quota)
        quota_want(op->fs, c, op->quota);
    change_will_clone(c, op->from, op->from_block, op->to, op->to_block, op->blocks);
    r = change_begin(c);
    if (!r)
        r = clone_instant(op, c);
    return change_end(c, r, fs_end_flags(op->rq));
}

int clone_blocks(struct fs *fs, const struct fs_request *rq, const struct fs_clone *what, struct fs_wcc *wcc,
                 uint64_t *ret_blocks)
{
    struct clone_op op = {.fs = fs, .rq = rq, .end = what->end, .wcc = wcc};
    uint64_t at = 0;
    struct change c;
    int r = 0;

    change_init(&c, fs->volume);
    op.from = what->from;
    op.to = what->to;
    while (!r && at < what->blocks) {
        op.from_block = what->from_block + at;
        op.to_block = what->to_block + at;
        op.blocks = what->blocks - at;
        op.done = 0;
        r = clone_turn(&op, &c);
        at += op.done;
        if (r == ERR_CHANGE_AGAIN)
            r = 0;
        else
            change_init(&c, fs->volume); /* the next piece wants other ranges */
    }
    *ret_blocks = at;
    return r;
}
