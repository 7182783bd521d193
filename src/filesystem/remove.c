/* SPDX-License-Identifier: Apache-2.0 */
/* Names go: unlink and rmdir. An inode that loses its last one goes with it or becomes an orphan (F4). */
#include "filesystem/names_internal.h"

#include <sys/stat.h>

struct remove_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint64_t dir;
    struct name name;
    bool directory;
    struct fs_wcc *wcc;
    /* As it looked before the instant. */
    uint64_t ino;
    uint32_t bucket_len;
    bool promised; /* its inode was there */
    bool last;     /* the only name */
    /* Of the reading phase. */
    struct bucket bucket;
    uint8_t slot;
    struct removal removal;
};

/* Looks at the name and its inode, and promises accordingly. Missing names are the instant's to report. */
static may_yield int remove_want(struct remove_op *op, struct change *c)
{
    struct inode hint;
    struct entry e;

    change_clear(c);
    inode_want(c, op->dir);
    reply_will_put(op->fs, c, op->rq);
    op->ino = 0;
    op->promised = op->last = false;
    int r = bucket_read(op->fs, op->dir, &op->name, &op->bucket);
    op->bucket_len = op->bucket.len;
    bucket_want(c, op->dir, &op->name, op->bucket_len, 1);
    if (r || !bucket_find(op->fs, &op->bucket, &op->name, &e))
        return r;
    op->ino = e.ino;
    r = inode_read(op->fs, e.ino, 0, &hint);
    if (r)
        return r == ERR_FS_STALE ? 0 : r;
    op->promised = true;
    inode_want(c, e.ino);
    op->last = S_ISDIR(hint.mode) || hint.nlink <= 1;
    if (op->last)
        remove_will(op->fs, c, &hint, &op->removal);
    if (S_ISDIR(hint.mode) && hint.quota == hint.ino)
        quota_drop_want(c, hint.ino);
    return 0;
}

static int kind_check(const struct remove_op *op, const struct inode *n)
{
    if (!op->directory)
        return S_ISDIR(n->mode) ? ERR_FS_IS_DIRECTORY : 0;
    if (!S_ISDIR(n->mode))
        return ERR_FS_NOT_DIRECTORY;
    return n->size > 0 ? ERR_FS_NOT_EMPTY : 0;
}

static int remove_check(struct remove_op *op, struct change *c, struct inode *dir, struct inode *n)
{
    struct entry e;
    int r = dir_get(op->fs, c, op->dir, dir, op->wcc);

    if (!r)
        r = access_check(op->fs, c, &op->rq->cred, dir, FS_MAY_EXECUTE);
    if (!r)
        r = bucket_get(c, op->dir, &op->name, &op->bucket);
    if (r)
        return r;
    if (!bucket_find(op->fs, &op->bucket, &op->name, &e))
        return ERR_FS_NOT_FOUND;
    if (e.ino != op->ino || op->bucket.len > op->bucket_len)
        return ERR_CHANGE_AGAIN; /* another one than the promises are for */
    op->slot = e.slot;
    r = inode_get(op->fs, c, e.ino, n);
    if (r == ERR_FS_STALE)
        r = ERR_VOLUME_CORRUPT; /* a name of nothing */
    if (!r && !op->promised)
        r = ERR_CHANGE_AGAIN;
    if (!r)
        r = access_check(op->fs, c, &op->rq->cred, dir, FS_MAY_WRITE | FS_MAY_EXECUTE);
    if (!r)
        r = access_sticky(&op->rq->cred, dir, n);
    if (!r)
        r = kind_check(op, n);
    if (!r && op->last != (op->directory || n->nlink <= 1))
        r = ERR_CHANGE_AGAIN;
    if (!r && op->last && op->directory)
        r = quota_drop_check(op->fs, c, n);
    if (!r && op->last)
        r = remove_plan(op->fs, c, n, &op->removal);
    return r;
}

static int remove_instant(struct remove_op *op, struct change *c)
{
    struct inode dir, n;
    int r = remove_check(op, c, &dir, &n);

    if (r)
        return r;
    int64_t now = fs_now_ns();
    bucket_remove(&op->bucket, op->slot);
    bucket_put(c, &op->bucket);
    dir.size -= MIN(dir.size, 1u);
    if (op->directory) {
        dir.subdirs -= MIN(dir.subdirs, 1u);
        dir.nlink = dir.subdirs + 2;
        quota_drop_apply(op->fs, c, &n);
        n.parent = 0;
        n.subdirs = 0;
    }
    dir_touch(&dir, now);
    inode_put(c, &dir);
    n.ctime_ns = now;
    n.nlink = op->last ? 0 : n.nlink - 1;
    if (op->last)
        remove_apply(op->fs, c, &n, &op->removal);
    else
        inode_put(c, &n);
    if (op->last && !open_is(op->fs, n.ino))
        locks_forget(op->fs, n.ino);
    reply_put(op->fs, c, op->rq, 0, n.ino);
    wcc_after(op->wcc, &dir);
    notify_name(op->fs, op->rq, FS_EVENT_NAME_REMOVED, op->dir, &op->name, n.ino);
    if (!op->last)
        notify_attr(op->fs, op->rq, n.ino);
    return 0;
}

static may_yield int remove_run(struct remove_op *op)
{
    struct change c;
    int r;

    change_init(&c, op->fs->volume);
    c.deletes = true;
    do {
        r = remove_want(op, &c);
        if (!r)
            r = change_begin(&c);
        if (!r)
            r = remove_instant(op, &c);
        r = change_end(&c, r, fs_end_flags(op->rq));
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

static may_yield int remove_name(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name,
                                 uint32_t len, bool directory, uint64_t *ret_ino, struct fs_wcc *ret_dir)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_REMOVE);
    struct remove_op op;
    int r = rq->read_only ? ERR_FS_READ_ONLY : name_init(fs, name, len, &op.name);

    if (!r && name_is_dot(name, len))
        r = directory ? ERR_FS_INVALID : ERR_FS_IS_DIRECTORY;
    if (!r && name_is_dotdot(name, len))
        r = directory ? ERR_FS_NOT_EMPTY : ERR_FS_IS_DIRECTORY;
    op.fs = fs;
    op.rq = rq;
    op.dir = dir;
    op.directory = directory;
    op.wcc = ret_dir;
    op.removal = (struct removal){0};
    if (ret_dir)
        *ret_dir = (struct fs_wcc){0};
    if (!r)
        r = remove_run(&op);
    if (!r && ret_ino)
        *ret_ino = op.ino;
    return fs_end(fs, rq, FS_OP_REMOVE, began, dir, 0, r);
}

int fs_unlink(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              uint64_t *ret_ino, struct fs_wcc *ret_dir)
{
    return remove_name(fs, rq, dir, name, len, false, ret_ino, ret_dir);
}

int fs_rmdir(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
             uint64_t *ret_ino, struct fs_wcc *ret_dir)
{
    return remove_name(fs, rq, dir, name, len, true, ret_ino, ret_dir);
}
