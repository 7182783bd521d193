/* SPDX-License-Identifier: Apache-2.0 */
/* One more name for a file. */
#include "filesystem/names_internal.h"

#include <sys/stat.h>

struct link_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint64_t ino, dir;
    struct name name;
    struct fs_wcc *wcc;
    uint32_t bucket_len; /* learnt by the pass before */
    struct bucket bucket;
};

static int link_check(struct link_op *op, struct change *c, struct inode *n, struct inode *dir)
{
    struct entry e;
    int r = dir_get(op->fs, c, op->dir, dir, op->wcc);

    if (!r)
        r = inode_get(op->fs, c, op->ino, n);
    if (!r)
        r = access_check(op->fs, c, &op->rq->cred, dir, FS_MAY_EXECUTE);
    if (!r)
        r = bucket_get(c, op->dir, &op->name, &op->bucket);
    if (r)
        return r;
    if (bucket_find(op->fs, &op->bucket, &op->name, &e))
        return ERR_FS_EXISTS;
    if (op->bucket.len > op->bucket_len) {
        op->bucket_len = op->bucket.len;
        return ERR_CHANGE_AGAIN;
    }
    r = access_check(op->fs, c, &op->rq->cred, dir, FS_MAY_WRITE | FS_MAY_EXECUTE);
    if (r)
        return r;
    if (S_ISDIR(n->mode))
        return ERR_FS_NOT_OWNER;
    if (n->nlink == 0)
        return ERR_FS_NOT_FOUND; /* open, but without a name: it is on its way out */
    if (n->nlink >= FS_LINK_MAX)
        return ERR_FS_TOO_MANY_LINKS;
    if (n->quota != dir->quota)
        return ERR_FS_CROSS_QUOTA;
    return bucket_add(&op->bucket, &op->name, n->ino, n->generation, n->mode);
}

static int link_instant(struct link_op *op, struct change *c, struct fs_attr *ret)
{
    struct inode n, dir;
    int r = link_check(op, c, &n, &dir);

    if (r)
        return r;
    int64_t now = fs_now_ns();
    n.nlink++;
    n.ctime_ns = now;
    inode_put(c, &n);
    bucket_put(c, &op->bucket);
    dir.size++;
    dir_touch(&dir, now);
    inode_put(c, &dir);
    reply_put(op->fs, c, op->rq, 0, n.ino);
    wcc_after(op->wcc, &dir);
    inode_attr(&n, ret);
    notify_name(op->fs, op->rq, FS_EVENT_NAME_ADDED, op->dir, &op->name, n.ino);
    notify_attr(op->fs, op->rq, n.ino);
    return 0;
}

static may_yield int link_run(struct link_op *op, struct fs_attr *ret)
{
    struct change c;
    int r;

    change_init(&c, op->fs->volume);
    do {
        change_clear(&c);
        inode_want(&c, op->dir);
        inode_want(&c, op->ino);
        bucket_want(&c, op->dir, &op->name, op->bucket_len, name_bytes(&op->name));
        reply_will_put(op->fs, &c, op->rq);
        r = change_begin(&c);
        if (!r)
            r = link_instant(op, &c, ret);
        r = change_end(&c, r, fs_end_flags(op->rq));
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

int fs_link(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t dir, const char *name,
            uint32_t len, struct fs_attr *ret, struct fs_wcc *ret_dir)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_LINK);
    struct link_op op;
    int r = rq->read_only                                         ? ERR_FS_READ_ONLY
            : name_is_dot(name, len) || name_is_dotdot(name, len) ? ERR_FS_EXISTS
                                                                  : name_init(fs, name, len, &op.name);

    op.fs = fs;
    op.rq = rq;
    op.ino = ino;
    op.dir = dir;
    op.wcc = ret_dir;
    op.bucket_len = 0;
    if (ret_dir)
        *ret_dir = (struct fs_wcc){0};
    if (!r)
        r = link_run(&op, ret);
    return fs_end(fs, rq, FS_OP_LINK, began, dir, 0, r);
}
