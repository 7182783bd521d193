/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes: reading and setting them.
 *
 * The rules for who may set what are POSIX's as Linux has them: modes, owners and explicit times are the
 * owner's; the times "now" also those of who may write; giving away is root's; a change of owner, and writing
 * by others, take setuid and setgid away.
 */
#include "filesystem/names_internal.h"

#include <sys/stat.h>

/* ---- Weak cache consistency ---- */

void wcc_before(struct fs_wcc *w, const struct inode *n)
{
    if (!w)
        return;
    w->has_before = true;
    w->before_size = n->size;
    w->before_mtime_ns = n->mtime_ns;
    w->before_ctime_ns = n->ctime_ns;
}

void wcc_after(struct fs_wcc *w, const struct inode *n)
{
    if (!w)
        return;
    w->has_after = true;
    inode_attr(n, &w->after);
}

int fs_getattr(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint32_t generation,
               struct fs_attr *ret)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_GETATTR);
    struct inode n;
    int r = inode_read(fs, ino, generation, &n);

    if (!r)
        r = volume_seen(fs->volume, &ino, 1);
    if (!r)
        inode_attr(&n, ret);
    return fs_end(fs, rq, FS_OP_GETATTR, began, ino, 0, r);
}

/* ---- Setting ---- */

#define SET_TIMES (FS_SET_ATIME | FS_SET_MTIME | FS_SET_ATIME_NOW | FS_SET_MTIME_NOW)

struct setattr_op {
    struct fs *fs;
    const struct fs_request *rq;
    const struct fs_setattr *s;
    uint64_t ino;
    struct fs_wcc *wcc;
    struct fs_attr *ret; /* or NULL */
    struct truncate cut;
    /* Learnt by an earlier pass. */
    uint64_t acl_number;
    uint32_t acl_len;
    /* Of the reading phase. */
    struct acl acl;
    struct xattr_place acl_place;
    bool has_acl;
};

static int owner_allowed(const struct fs_cred *cred, const struct inode *n, const struct fs_setattr *s)
{
    if (cred->trusted || cred->uid == 0)
        return 0;
    if ((s->valid & FS_SET_UID) && (cred->uid != n->uid || s->uid != n->uid))
        return ERR_FS_NOT_OWNER;
    if ((s->valid & FS_SET_GID) &&
        (cred->uid != n->uid || (s->gid != n->gid && !cred_in_group(cred, s->gid))))
        return ERR_FS_NOT_OWNER;
    return 0;
}

static int times_allowed(struct setattr_op *op, struct change *c, const struct inode *n)
{
    const struct fs_cred *cred = &op->rq->cred;

    if (access_owner(cred, n) == 0)
        return 0;
    if (op->s->valid & (FS_SET_ATIME | FS_SET_MTIME | FS_SET_CTIME))
        return ERR_FS_NOT_OWNER;
    return access_check(op->fs, c, cred, n, FS_MAY_WRITE);
}

static int size_allowed(struct setattr_op *op, struct change *c, const struct inode *n)
{
    if (S_ISDIR(n->mode))
        return ERR_FS_IS_DIRECTORY;
    if (!S_ISREG(n->mode))
        return ERR_FS_INVALID;
    if (op->s->size >= FS_SIZE_MAX)
        return ERR_FS_TOO_BIG;
    if (op->s->valid & FS_SET_OPEN)
        return 0;
    return access_check(op->fs, c, &op->rq->cred, n, FS_MAY_WRITE);
}

static int set_allowed(struct setattr_op *op, struct change *c, const struct inode *n)
{
    const struct fs_setattr *s = op->s;
    int r = 0;

    if ((s->valid & FS_SET_GUARD) && s->guard_ctime_ns != n->ctime_ns)
        return ERR_FS_NOT_SYNC;
    if (s->valid & FS_SET_MODE)
        r = access_owner(&op->rq->cred, n);
    if (!r)
        r = owner_allowed(&op->rq->cred, n, s);
    if (!r && (s->valid & (SET_TIMES | FS_SET_CTIME)))
        r = times_allowed(op, c, n);
    if (!r && (s->valid & FS_SET_SIZE))
        r = size_allowed(op, c, n);
    return r;
}

/* A new mode changes the access ACL, if there is one. */
static int acl_plan(struct setattr_op *op, struct change *c, const struct inode *n)
{
    struct xattr_name name;

    op->has_acl = (op->s->valid & FS_SET_MODE) && (n->flags & INODE_ACL);
    if (!op->has_acl)
        return 0;
    int r = acl_get(op->fs, c, n->ino, ACL_ACCESS, &op->acl);
    if (r)
        return r;
    xattr_name_init(op->fs, acl_name(ACL_ACCESS), (uint32_t)strlen(acl_name(ACL_ACCESS)), &name);
    r = xattr_find(c, n->ino, &name, &op->acl_place);
    if (r)
        return r;
    if (!op->acl_place.exists)
        return ERR_VOLUME_CORRUPT;
    if (op->acl_len != op->acl_place.value_len || op->acl_number != op->acl_place.number) {
        op->acl_len = op->acl_place.value_len;
        op->acl_number = op->acl_place.number;
        return ERR_CHANGE_AGAIN;
    }
    return 0;
}

static void acl_apply(struct setattr_op *op, struct change *c, const struct inode *n)
{
    struct xattr_name name;
    uint8_t bytes[ACL_BYTES_MAX];

    if (!op->has_acl)
        return;
    acl_set_mode(&op->acl, n->mode);
    uint32_t len = acl_encode(&op->acl, bytes);
    assert(len == op->acl_len);
    xattr_name_init(op->fs, acl_name(ACL_ACCESS), (uint32_t)strlen(acl_name(ACL_ACCESS)), &name);
    xattr_put(c, n->ino, &name, &op->acl_place, bytes, len);
}

static void mode_apply(const struct setattr_op *op, struct inode *n)
{
    const struct fs_setattr *s = op->s;
    const struct fs_cred *cred = &op->rq->cred;

    if (s->valid & FS_SET_UID)
        n->uid = s->uid;
    if (s->valid & FS_SET_GID)
        n->gid = s->gid;
    if (s->valid & FS_SET_MODE) {
        n->mode = (n->mode & S_IFMT) | (s->mode & 07777);
        if (!cred->trusted && cred->uid != 0 && !cred_in_group(cred, n->gid))
            n->mode &= ~(uint32_t)S_ISGID;
    } else if ((s->valid & (FS_SET_UID | FS_SET_GID)) && !S_ISDIR(n->mode)) {
        /* Whoever gives it away, root too. */
        n->mode &= ~(uint32_t)S_ISUID;
        if (n->mode & S_IXGRP)
            n->mode &= ~(uint32_t)S_ISGID;
    }
    if (s->valid & (FS_SET_SIZE | FS_SET_KILL_SUID))
        (void)mode_kill_suid(cred, n);
}

static void times_apply(const struct fs_setattr *s, struct inode *n)
{
    int64_t now = fs_now_ns();

    if (s->valid & FS_SET_SIZE)
        n->mtime_ns = now;
    if (s->valid & FS_SET_ATIME)
        n->atime_ns = s->atime_ns;
    if (s->valid & FS_SET_ATIME_NOW)
        n->atime_ns = now;
    if (s->valid & FS_SET_MTIME)
        n->mtime_ns = s->mtime_ns;
    if (s->valid & FS_SET_MTIME_NOW)
        n->mtime_ns = now;
    n->ctime_ns = s->valid & FS_SET_CTIME ? s->ctime_ns : now;
}

static int setattr_instant(struct setattr_op *op, struct change *c)
{
    struct fs *fs = op->fs;
    struct inode n;
    int r = inode_get(fs, c, op->ino, &n);

    if (r)
        return r;
    wcc_before(op->wcc, &n);
    wcc_after(op->wcc, &n);
    r = set_allowed(op, c, &n);
    if (!r)
        r = acl_plan(op, c, &n);
    if (!r && (op->s->valid & FS_SET_SIZE))
        r = truncate_plan(&op->cut, fs, c, &n);
    if (r)
        return r;
    if (op->s->valid & ~(uint32_t)(FS_SET_GUARD | FS_SET_OPEN)) {
        if (op->s->valid & FS_SET_SIZE)
            truncate_apply(&op->cut, fs, c, &n);
        mode_apply(op, &n);
        times_apply(op->s, &n);
        acl_apply(op, c, &n);
        inode_put(c, &n);
        reply_put(fs, c, op->rq, 0, n.ino);
        notify_attr(fs, op->rq, n.ino);
        if ((op->s->valid & FS_SET_SIZE) && !list_empty(&fs->watches))
            notify(fs, op->rq,
                   &(struct fs_event){.kind = FS_EVENT_DATA,
                                      .ino = n.ino,
                                      .offset = op->s->size,
                                      .len = FS_SIZE_MAX - op->s->size});
    }
    wcc_after(op->wcc, &n);
    if (op->ret)
        inode_attr(&n, op->ret);
    return 0;
}

static may_yield int setattr_run(struct setattr_op *op)
{
    bool size = op->s->valid & FS_SET_SIZE;
    struct change c;
    int r;

    change_init(&c, op->fs->volume);
    c.deletes = size && op->s->size == 0;
    do {
        change_clear(&c);
        op->cut = (struct truncate){0};
        inode_want(&c, op->ino);
        reply_will_put(op->fs, &c, op->rq);
        if (op->acl_len > 0)
            xattr_want(&c, op->ino, op->acl_number, (uint32_t)strlen(acl_name(ACL_ACCESS)), op->acl_len, 1);
        /* A file that cannot be cut is refused in the instant, by the rules. */
        r = size && op->s->size < FS_SIZE_MAX ? truncate_prepare(&op->cut, op->fs, &c, op->ino, op->s->size)
                                              : 0;
        if (!r)
            r = change_begin(&c);
        if (!r)
            r = setattr_instant(op, &c);
        r = change_end(&c, r, fs_end_flags(op->rq));
        if (size)
            truncate_done(&op->cut);
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

int fs_setattr(struct fs *fs, const struct fs_request *rq, uint64_t ino, const struct fs_setattr *s,
               struct fs_wcc *ret)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_SETATTR);
    struct setattr_op op = {.fs = fs, .rq = rq, .s = s, .ino = ino, .wcc = ret};

    if (ret)
        *ret = (struct fs_wcc){0};
    int r = rq->read_only ? ERR_FS_READ_ONLY : setattr_run(&op);
    return fs_end(fs, rq, FS_OP_SETATTR, began, ino, 0, r);
}

int attr_set_size(struct fs *fs, const struct fs_request *rq, uint64_t ino, uint64_t size, bool opened,
                  struct fs_attr *ret)
{
    struct fs_setattr s = {.valid = FS_SET_SIZE | (opened ? FS_SET_OPEN : 0), .size = size};
    struct setattr_op op = {.fs = fs, .rq = rq, .s = &s, .ino = ino, .ret = ret};

    return setattr_run(&op);
}
