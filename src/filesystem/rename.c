/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Renaming, over what is there or in exchange with it.
 *
 * No loop of directories can form: moves of directories between directories go one after the other
 * (rename_mutex), so nobody else changes a `parent`, and the walk from the new place up to the root, which
 * may be as long as a path, is true for as long as the mutex is held. A directory on that way cannot go
 * either: it has the next one in it.
 */
#include "filesystem/names_internal.h"

#include <sys/stat.h>

struct rename_side {
    uint64_t dir;
    struct name name;
    struct fs_wcc *wcc;
    /* As it looked before the instant. */
    uint64_t ino;  /* 0: no such name */
    bool promised; /* its inode was there */
    bool is_dir;
    uint32_t bucket_len;
    /* Of the reading phase. */
    struct inode *d; /* the directory; both may be one */
    struct inode n;
    struct bucket *b; /* both may be one */
    uint8_t slot;
    bool found;
    struct inode own_dir;
    struct bucket own_bucket;
};

struct rename_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint32_t flags;
    bool locked;
    bool last;    /* the target, as it looked before the instant, has no other name */
    bool removes; /* the target loses a name, its last one */
    struct removal removal;
    struct rename_side from, to;
};

static bool exchanges(const struct rename_op *op)
{
    return op->flags & FS_RENAME_EXCHANGE;
}

/* A directory gets another parent. */
static bool moves_directory(const struct rename_op *op)
{
    return op->from.dir != op->to.dir && (op->from.is_dir || (exchanges(op) && op->to.is_dir));
}

/* ---- Promises ---- */

static may_yield int side_want(struct rename_op *op, struct change *c, struct rename_side *s, uint32_t more,
                               bool removed)
{
    struct inode hint;
    struct entry e;
    int r = bucket_read(op->fs, s->dir, &s->name, &s->own_bucket);

    s->ino = 0;
    s->promised = s->is_dir = false;
    s->bucket_len = s->own_bucket.len;
    inode_want(c, s->dir);
    bucket_want(c, s->dir, &s->name, s->bucket_len, more);
    if (r || !bucket_find(op->fs, &s->own_bucket, &s->name, &e))
        return r;
    s->ino = e.ino;
    r = inode_read(op->fs, e.ino, 0, &hint);
    if (r)
        return r == ERR_FS_STALE ? 0 : r;
    s->promised = true;
    s->is_dir = S_ISDIR(hint.mode);
    inode_want(c, e.ino);
    if (!removed)
        return 0;
    op->last = s->is_dir || hint.nlink <= 1;
    if (op->last)
        remove_will(op->fs, c, &hint, &op->removal);
    if (s->is_dir && hint.quota == hint.ino)
        quota_drop_want(c, hint.ino);
    return 0;
}

static may_yield int rename_want(struct rename_op *op, struct change *c)
{
    uint32_t from_more = name_bytes(&op->from.name), to_more = name_bytes(&op->to.name);

    change_clear(c);
    /* The two buckets may be one: each promise bears both changes. */
    int r = side_want(op, c, &op->from, from_more + to_more, false);
    if (!r)
        r = side_want(op, c, &op->to, from_more + to_more, !exchanges(op));
    reply_will_put(op->fs, c, op->rq);
    return r;
}

/* ---- Loops ---- */

static may_yield int ancestor_check(struct fs *fs, uint64_t from, uint64_t never)
{
    uint64_t ino = from, left = volume_inode_count(fs->volume) + 16;
    struct inode n;

    while (left-- > 0) {
        if (ino == never)
            return ERR_FS_INVALID;
        if (ino == FS_INO_ROOT)
            return 0;
        int r = inode_read(fs, ino, 0, &n);
        if (r || n.parent == 0) /* on its way out: the instant will find that */
            return r == ERR_FS_STALE ? 0 : r;
        ino = n.parent;
    }
    return ERR_VOLUME_CORRUPT; /* there is a loop already */
}

static may_yield int loop_check(struct rename_op *op)
{
    int r = op->from.is_dir ? ancestor_check(op->fs, op->to.dir, op->from.ino) : 0;

    if (!r && exchanges(op) && op->to.is_dir)
        r = ancestor_check(op->fs, op->from.dir, op->to.ino);
    return r;
}

/* ---- Reading ---- */

static int side_dir(struct rename_op *op, struct change *c, struct rename_side *s)
{
    int r = dir_get(op->fs, c, s->dir, s->d, s->wcc);

    return r ? r : access_check(op->fs, c, &op->rq->cred, s->d, FS_MAY_EXECUTE);
}

static int side_find(struct rename_op *op, struct change *c, struct rename_side *s)
{
    struct entry e;

    s->found = bucket_find(op->fs, s->b, &s->name, &e);
    if ((s->found ? e.ino : 0) != s->ino || s->b->len > s->bucket_len)
        return ERR_CHANGE_AGAIN; /* another one than the promises are for */
    if (!s->found)
        return 0;
    s->slot = e.slot;
    int r = inode_get(op->fs, c, e.ino, &s->n);
    if (r == ERR_FS_STALE)
        return ERR_VOLUME_CORRUPT; /* a name of nothing */
    return !r && !s->promised ? ERR_CHANGE_AGAIN : r;
}

static int rename_read(struct rename_op *op, struct change *c)
{
    struct rename_side *from = &op->from, *to = &op->to;
    bool one_dir = from->dir == to->dir, one_bucket = one_dir && from->name.base == to->name.base;

    from->d = &from->own_dir;
    to->d = one_dir ? from->d : &to->own_dir;
    from->b = &from->own_bucket;
    to->b = one_bucket ? from->b : &to->own_bucket;
    int r = side_dir(op, c, from);
    if (!r)
        r = side_dir(op, c, to);
    if (!r)
        r = bucket_get(c, from->dir, &from->name, from->b);
    if (!r && !one_bucket)
        r = bucket_get(c, to->dir, &to->name, to->b);
    if (!r)
        r = side_find(op, c, from);
    if (!r)
        r = side_find(op, c, to);
    return r;
}

/* May the name of `s` be taken away, and another inode come under it? */
static int side_allowed(struct rename_op *op, struct change *c, const struct rename_side *s)
{
    const struct fs_cred *cred = &op->rq->cred;
    int r = access_check(op->fs, c, cred, s->d, FS_MAY_WRITE | FS_MAY_EXECUTE);

    if (!r && s->found)
        r = access_sticky(cred, s->d, &s->n);
    return r;
}

static int kinds_check(const struct rename_op *op)
{
    const struct rename_side *from = &op->from, *to = &op->to;

    if (!to->found || exchanges(op))
        return 0;
    if (S_ISDIR(from->n.mode) && !S_ISDIR(to->n.mode))
        return ERR_FS_NOT_DIRECTORY;
    if (!S_ISDIR(from->n.mode) && S_ISDIR(to->n.mode))
        return ERR_FS_IS_DIRECTORY;
    return S_ISDIR(to->n.mode) && to->n.size > 0 ? ERR_FS_NOT_EMPTY : 0;
}

/* A directory that gets another parent is changed itself: ".." */
static int moved_allowed(struct rename_op *op, struct change *c)
{
    const struct fs_cred *cred = &op->rq->cred;
    int r = 0;

    if (op->from.dir == op->to.dir)
        return 0;
    if (S_ISDIR(op->from.n.mode))
        r = access_check(op->fs, c, cred, &op->from.n, FS_MAY_WRITE);
    if (!r && exchanges(op) && S_ISDIR(op->to.n.mode))
        r = access_check(op->fs, c, cred, &op->to.n, FS_MAY_WRITE);
    if (!r && op->from.d->quota != op->to.d->quota)
        r = ERR_FS_CROSS_QUOTA;
    if (!r && S_ISDIR(op->from.n.mode) && op->to.d->subdirs >= FS_LINK_MAX - 2)
        r = ERR_FS_TOO_MANY_LINKS;
    return r;
}

/* 1: two names of one file, nothing is to be done. */
static int rename_check(struct rename_op *op, struct change *c)
{
    struct rename_side *from = &op->from, *to = &op->to;
    int r = rename_read(op, c);

    if (r)
        return r;
    if (!from->found)
        return ERR_FS_NOT_FOUND;
    bool same_name = to->found && to->b == from->b && to->slot == from->slot;
    bool same_bytes =
        from->name.len == to->name.len && memcmp(from->name.bytes, to->name.bytes, from->name.len) == 0;
    if (to->found && (!same_name || same_bytes) && (op->flags & FS_RENAME_NOREPLACE))
        return ERR_FS_EXISTS;
    if (!to->found && exchanges(op))
        return ERR_FS_NOT_FOUND;
    if (to->found && from->ino == to->ino && (!same_name || same_bytes))
        return 1;
    r = side_allowed(op, c, from);
    if (!r)
        r = side_allowed(op, c, to);
    if (!r)
        r = kinds_check(op);
    if (!r)
        r = moved_allowed(op, c);
    op->removes =
        !r && to->found && !same_name && !exchanges(op) && (S_ISDIR(to->n.mode) || to->n.nlink <= 1);
    if (op->removes && !op->last)
        return ERR_CHANGE_AGAIN;
    if (op->removes && S_ISDIR(to->n.mode))
        r = quota_drop_check(op->fs, c, &to->n);
    if (op->removes && !r)
        r = remove_plan(op->fs, c, &to->n, &op->removal);
    return r;
}

/* In the copies of the buckets, so that it may still fail. */
static int names_change(struct rename_op *op)
{
    struct rename_side *from = &op->from, *to = &op->to;
    const struct inode *n = &from->n;

    if (exchanges(op)) {
        bucket_replace(from->b, from->slot, to->n.ino, to->n.generation, to->n.mode);
        bucket_replace(to->b, to->slot, n->ino, n->generation, n->mode);
        return 0;
    }
    /* Where case does not count, the target's name may differ in it from the new one. */
    bool keeps_slot = to->found && !(op->fs->flags & FS_CASE_INSENSITIVE);
    if (keeps_slot)
        bucket_replace(to->b, to->slot, n->ino, n->generation, n->mode);
    bool same = to->found && to->b == from->b && to->slot == from->slot;
    bucket_remove(from->b, from->slot);
    if (to->found && !keeps_slot && !same)
        bucket_remove(to->b, to->slot);
    return keeps_slot ? 0 : bucket_add(to->b, &to->name, n->ino, n->generation, n->mode);
}

/* ---- Changing ---- */

static void count(struct inode *dir, int names, int subdirs)
{
    dir->size = names < 0 && dir->size == 0 ? 0 : dir->size + (uint64_t)(int64_t)names;
    dir->subdirs = subdirs < 0 && dir->subdirs == 0 ? 0 : dir->subdirs + (uint32_t)subdirs;
    dir->nlink = dir->subdirs + 2;
}

static void dirs_change(struct rename_op *op, int64_t now)
{
    struct rename_side *from = &op->from, *to = &op->to;
    int from_is_dir = S_ISDIR(from->n.mode) ? 1 : 0;
    int to_is_dir = to->found && S_ISDIR(to->n.mode) ? 1 : 0;
    bool same = to->found && to->ino == from->ino;

    count(from->d, exchanges(op) ? 0 : -1, -from_is_dir);
    count(to->d, exchanges(op) ? 0 : 1, from_is_dir);
    if (exchanges(op)) {
        count(to->d, 0, -to_is_dir);
        count(from->d, 0, to_is_dir);
    } else if (to->found && !same) {
        count(to->d, -1, -to_is_dir);
    }
    dir_touch(from->d, now);
    dir_touch(to->d, now);
}

static void target_change(struct rename_op *op, struct change *c, int64_t now)
{
    struct inode *n = &op->to.n;

    if (!op->to.found || op->to.ino == op->from.ino)
        return;
    n->ctime_ns = now;
    if (exchanges(op)) {
        n->parent = op->from.dir;
        inode_put(c, n);
        return;
    }
    if (!op->removes) {
        n->nlink--;
        inode_put(c, n);
        return;
    }
    if (S_ISDIR(n->mode)) {
        quota_drop_apply(op->fs, c, n);
        n->parent = 0;
        n->subdirs = 0;
    }
    n->nlink = 0;
    remove_apply(op->fs, c, n, &op->removal);
    if (!open_is(op->fs, n->ino))
        locks_forget(op->fs, n->ino);
}

static void rename_tell(struct rename_op *op)
{
    const struct rename_side *from = &op->from, *to = &op->to;

    notify_name(op->fs, op->rq, FS_EVENT_NAME_REMOVED, from->dir, &from->name, from->ino);
    if (to->found)
        notify_name(op->fs, op->rq, FS_EVENT_NAME_REMOVED, to->dir, &to->name, to->ino);
    notify_name(op->fs, op->rq, FS_EVENT_NAME_ADDED, to->dir, &to->name, from->ino);
    if (exchanges(op))
        notify_name(op->fs, op->rq, FS_EVENT_NAME_ADDED, from->dir, &from->name, to->ino);
}

static int rename_instant(struct rename_op *op, struct change *c)
{
    struct rename_side *from = &op->from, *to = &op->to;
    int r = rename_check(op, c);

    if (r == 1)
        return 0;
    if (!r)
        r = names_change(op);
    if (r)
        return r;
    int64_t now = fs_now_ns();
    dirs_change(op, now);
    bucket_put(c, from->b);
    if (to->b != from->b)
        bucket_put(c, to->b);
    target_change(op, c, now);
    from->n.parent = to->dir;
    from->n.ctime_ns = now;
    inode_put(c, &from->n);
    inode_put(c, from->d);
    if (to->d != from->d)
        inode_put(c, to->d);
    reply_put(op->fs, c, op->rq, 0, from->ino);
    wcc_after(from->wcc, from->d);
    wcc_after(to->wcc, to->d);
    rename_tell(op);
    return 0;
}

static may_yield int rename_run(struct rename_op *op)
{
    struct change c;
    int r;

    change_init(&c, op->fs->volume);
    do {
        r = rename_want(op, &c);
        if (!r && moves_directory(op) && !op->locked) {
            fmutex_lock(&op->fs->rename_mutex);
            op->locked = true;
            r = rename_want(op, &c); /* it may have waited long */
        }
        if (!r && moves_directory(op) && op->locked)
            r = loop_check(op);
        if (!r)
            r = change_begin(&c);
        if (!r)
            r = moves_directory(op) && !op->locked ? ERR_CHANGE_AGAIN : rename_instant(op, &c);
        r = change_end(&c, r, fs_end_flags(op->rq));
    } while (r == ERR_CHANGE_AGAIN);
    if (op->locked)
        fmutex_unlock(&op->fs->rename_mutex);
    return r;
}

static int side_init(const struct fs *fs, struct rename_side *s, uint64_t dir, const char *name, uint32_t len,
                     struct fs_wcc *wcc)
{
    s->dir = dir;
    s->wcc = wcc;
    s->bucket_len = 0;
    s->found = false;
    if (wcc)
        *wcc = (struct fs_wcc){0};
    if (name_is_dot(name, len) || name_is_dotdot(name, len))
        return ERR_FS_BAD_NAME;
    return name_init(fs, name, len, &s->name);
}

int fs_rename(struct fs *fs, const struct fs_request *rq, uint64_t from_dir, const char *from,
              uint32_t from_len, uint64_t to_dir, const char *to, uint32_t to_len, uint32_t flags,
              struct fs_wcc *ret_from, struct fs_wcc *ret_to)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_RENAME);
    struct rename_op op;

    op.fs = fs;
    op.rq = rq;
    op.flags = flags;
    op.locked = op.removes = op.last = false;
    op.removal = (struct removal){0};
    int r = side_init(fs, &op.from, from_dir, from, from_len, ret_from);
    int r2 = side_init(fs, &op.to, to_dir, to, to_len, ret_to);
    if (!r)
        r = r2;
    if (rq->read_only)
        r = ERR_FS_READ_ONLY;
    if (!r && (flags & FS_RENAME_NOREPLACE) && (flags & FS_RENAME_EXCHANGE))
        r = ERR_FS_INVALID;
    if (!r)
        r = rename_run(&op);
    return fs_end(fs, rq, FS_OP_RENAME, began, from_dir, 0, r);
}
