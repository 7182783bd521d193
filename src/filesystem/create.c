/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New names: files of all types, directories, symbolic links; and hard links.
 *
 * A create is one change: directory, bucket, new inode, and what comes with it (target, ACLs, the number's
 * reserve, the quota, the reply). It guesses that the bucket is new and that there is no default ACL; where
 * that is wrong, the pass after knows better.
 */
#include "filesystem/names_internal.h"

#include <sys/stat.h>

struct create_op {
    struct fs *fs;
    const struct fs_request *rq;
    const struct fs_create *c;
    uint64_t dir;
    struct name name;
    uint64_t ino;
    uint32_t type; /* S_IF* */
    struct fs_wcc *wcc;
    /* Learnt by the pass before. */
    uint32_t bucket_len;
    uint32_t acl_len; /* of the directory's default ACL */
    uint64_t quota;
    /* Of the reading phase. */
    struct bucket bucket;
    struct ino_reserve reserve;
    bool has_default;
    bool opened;
    bool made;         /* its number is used, whatever the log says of it */
    uint64_t existing; /* ERR_FS_EXISTS: what the name is */
};

static uint32_t type_mode(enum fs_type type)
{
    static const uint32_t modes[] = {
        [FS_FILE] = S_IFREG,    [FS_DIRECTORY] = S_IFDIR, [FS_SYMLINK] = S_IFLNK, [FS_FIFO] = S_IFIFO,
        [FS_SOCKET] = S_IFSOCK, [FS_CHAR] = S_IFCHR,      [FS_BLOCK] = S_IFBLK};

    assert(type < ARRAY_SIZE(modes));
    return modes[type];
}

static uint64_t bytes_of(const struct create_op *op)
{
    return op->c->type == FS_SYMLINK ? BLOCK_SIZE : 0;
}

/* ---- Promises ---- */

static void create_want(struct create_op *op, struct change *c)
{
    const uint32_t acl_name_max = 32;

    change_clear(c);
    inode_want(c, op->dir);
    bucket_want(c, op->dir, &op->name, op->bucket_len, name_bytes(&op->name));
    inode_want(c, op->ino);
    ino_want(op->fs, c, op->ino);
    quota_want(op->fs, c, op->quota);
    reply_will_put(op->fs, c, op->rq);
    if (op->c->type == FS_SYMLINK) {
        change_want(c, (struct tree_key){op->ino, ITEM_INLINE, 0});
        change_will_put(c, op->c->target_len);
    }
    if (op->acl_len > 0) {
        struct tree_key first = xattr_key(op->ino, 0, 0), last = {op->ino, ITEM_XATTR, UINT64_MAX};
        change_want_range(c, &first, &last);
        change_will_put(c, (uint32_t)sizeof(struct disk_xattr) + acl_name_max + op->acl_len);
        change_will_put(c, (uint32_t)sizeof(struct disk_xattr) + acl_name_max + op->acl_len);
    }
}

/* ---- Reading ---- */

/* The default ACL of the directory rules instead of the umask. Large: only here is it on the stack. */
static int default_acl_check(struct create_op *op, struct change *c, const struct inode *dir)
{
    struct acl a;

    op->has_default = (dir->flags & INODE_ACL_DEFAULT) && op->c->type != FS_SYMLINK;
    if (!op->has_default)
        return 0;
    int r = acl_get(op->fs, c, dir->ino, ACL_DEFAULT, &a);
    if (r)
        return r;
    uint32_t len = (uint32_t)(sizeof(struct le32) + 8 * a.count);
    if (len > op->acl_len) {
        op->acl_len = len;
        return ERR_CHANGE_AGAIN;
    }
    return 0;
}

static int create_check(struct create_op *op, struct change *c, struct inode *dir)
{
    struct entry e;
    int r = dir_get(op->fs, c, op->dir, dir, op->wcc);

    if (!r)
        r = access_check(op->fs, c, &op->rq->cred, dir, FS_MAY_EXECUTE);
    if (!r)
        r = bucket_get(c, op->dir, &op->name, &op->bucket);
    if (r)
        return r;
    if (bucket_find(op->fs, &op->bucket, &op->name, &e)) {
        op->existing = e.ino;
        return ERR_FS_EXISTS;
    }
    if (op->bucket.len > op->bucket_len) {
        op->bucket_len = op->bucket.len;
        return ERR_CHANGE_AGAIN;
    }
    if (dir->quota != op->quota) {
        op->quota = dir->quota;
        return ERR_CHANGE_AGAIN;
    }
    r = access_check(op->fs, c, &op->rq->cred, dir, FS_MAY_WRITE | FS_MAY_EXECUTE);
    if (!r && op->c->type == FS_DIRECTORY && dir->subdirs >= FS_LINK_MAX - 2)
        r = ERR_FS_TOO_MANY_LINKS;
    if (!r)
        r = quota_check(op->fs, c, op->quota, (int64_t)bytes_of(op), 1);
    if (!r)
        r = default_acl_check(op, c, dir);
    if (!r)
        r = ino_check(op->fs, c, op->ino, &op->reserve);
    return r;
}

/* The last of the readings, since they change something beside the tree and the copy of the bucket. */
static int create_take(struct create_op *op, uint32_t generation, uint32_t mode)
{
    int r = bucket_add(&op->bucket, &op->name, op->ino, generation, mode);

    if (!r && op->c->open) {
        r = opens_add(op->fs, op->ino, 0);
        op->opened = !r;
    }
    return r;
}

/* ---- Changing ---- */

static void inode_begin(const struct create_op *op, const struct inode *dir, struct inode *n)
{
    const struct fs_setattr *s = &op->c->attr;
    const struct fs_cred *cred = &op->rq->cred;
    int64_t now = fs_now_ns();
    uint32_t mode = s->valid & FS_SET_MODE ? s->mode & 07777 : 0666;

    if (op->c->type == FS_SYMLINK)
        mode = 0777;
    else if (!op->has_default)
        mode &= ~op->c->umask | 07000;
    *n = (struct inode){.ino = op->ino,
                        .mode = op->type | mode,
                        .nlink = op->c->type == FS_DIRECTORY ? 2 : 1,
                        .uid = s->valid & FS_SET_UID ? s->uid : cred->uid,
                        .gid = s->valid & FS_SET_GID ? s->gid : cred->gid,
                        .atime_ns = s->valid & FS_SET_ATIME ? s->atime_ns : now,
                        .mtime_ns = s->valid & FS_SET_MTIME ? s->mtime_ns : now,
                        .ctime_ns = now,
                        .btime_ns = now,
                        .parent = op->dir,
                        .rdev_major = op->c->rdev_major,
                        .rdev_minor = op->c->rdev_minor,
                        .quota = op->quota,
                        .pattern = dir->pattern};
    do
        world_random(&n->generation, sizeof(n->generation));
    while (n->generation == 0);
    if ((dir->mode & S_ISGID) && !(s->valid & FS_SET_GID))
        n->gid = dir->gid;
    if ((dir->mode & S_ISGID) && op->c->type == FS_DIRECTORY)
        n->mode |= S_ISGID;
    else if (!cred->trusted && cred->uid != 0 && (n->mode & S_ISGID) && !cred_in_group(cred, n->gid))
        n->mode &= ~(uint32_t)S_ISGID;
    if (op->c->how == FS_CREATE_EXCLUSIVE && op->c->type == FS_FILE) {
        n->atime_ns = (int64_t)(op->c->verifier >> 32);
        n->mtime_ns = (int64_t)(op->c->verifier & UINT32_MAX);
    }
}

static void acl_put_new(struct create_op *op, struct change *c, enum acl_which which, const struct acl *a,
                        struct inode *n)
{
    uint8_t bytes[ACL_BYTES_MAX];
    struct xattr_name name;

    xattr_name_init(op->fs, acl_name(which), (uint32_t)strlen(acl_name(which)), &name);
    uint32_t len = acl_encode(a, bytes);
    assert(len <= op->acl_len);
    struct xattr_place at = {.number = name.number};
    xattr_put(c, n->ino, &name, &at, bytes, len);
    n->flags |= INODE_XATTR | (which == ACL_ACCESS ? INODE_ACL : INODE_ACL_DEFAULT);
}

static void acl_inherit_all(struct create_op *op, struct change *c, struct inode *n)
{
    struct acl a;
    uint32_t mode = n->mode;

    if (!op->has_default)
        return;
    int r = acl_get(op->fs, c, op->dir, ACL_DEFAULT, &a);
    assert(r == 0); /* it was read in this instant */
    if (op->c->type == FS_DIRECTORY)
        acl_put_new(op, c, ACL_DEFAULT, &a, n);
    acl_inherit(&a, &mode);
    n->mode = mode;
    if (!acl_is_mode(&a)) {
        /* The two names differ, and so do their numbers but by bad luck: then the second one is not kept, and
         * the mode alone counts, which allows no more. */
        struct xattr_name names[2];
        for (uint32_t i = 0; i < 2; i++)
            xattr_name_init(op->fs, acl_name(i), (uint32_t)strlen(acl_name(i)), &names[i]);
        if (names[0].number != names[1].number)
            acl_put_new(op, c, ACL_ACCESS, &a, n);
    }
}

static int create_instant(struct create_op *op, struct change *c, struct fs_attr *ret)
{
    struct inode dir, n;
    int r = create_check(op, c, &dir);

    if (r)
        return r;
    inode_begin(op, &dir, &n);
    r = create_take(op, n.generation, n.mode);
    if (r)
        return r;
    op->made = true;
    acl_inherit_all(op, c, &n);
    if (op->c->type == FS_SYMLINK) {
        change_put(c, (struct tree_key){op->ino, ITEM_INLINE, 0}, op->c->target, op->c->target_len);
        n.size = op->c->target_len;
        n.flags |= INODE_INLINE;
    }
    inode_put(c, &n);
    bucket_put(c, &op->bucket);
    dir.size++;
    if (op->c->type == FS_DIRECTORY)
        dir.nlink = ++dir.subdirs + 2;
    dir_touch(&dir, n.ctime_ns);
    inode_put(c, &dir);
    quota_charge(op->fs, c, op->quota, (int64_t)bytes_of(op), 1);
    ino_used(op->fs, c, op->ino, &op->reserve);
    reply_put(op->fs, c, op->rq, 0, op->ino);
    wcc_after(op->wcc, &dir);
    inode_attr(&n, ret);
    notify_name(op->fs, op->rq, FS_EVENT_NAME_ADDED, op->dir, &op->name, op->ino);
    return 0;
}

/* ---- The call ---- */

static int create_valid(const struct create_op *op, const char *name, uint32_t len)
{
    const struct fs_create *c = op->c;
    const struct fs_cred *cred = &op->rq->cred;
    bool device = c->type == FS_CHAR || c->type == FS_BLOCK;

    if (op->rq->read_only)
        return ERR_FS_READ_ONLY;
    if (name_is_dot(name, len) || name_is_dotdot(name, len))
        return ERR_FS_EXISTS;
    if (c->type == FS_SYMLINK && c->target_len == 0)
        return ERR_FS_NOT_FOUND;
    if (c->type == FS_SYMLINK && c->target_len > FS_SYMLINK_MAX)
        return ERR_FS_NAME_TOO_LONG;
    if (c->type == FS_SYMLINK && memchr(c->target, 0, c->target_len))
        return ERR_FS_INVALID;
    if (cred->trusted || cred->uid == 0)
        return 0;
    if (device || ((c->attr.valid & FS_SET_UID) && c->attr.uid != cred->uid) ||
        ((c->attr.valid & FS_SET_GID) && !cred_in_group(cred, c->attr.gid)))
        return ERR_FS_NOT_OWNER;
    return 0;
}

static may_yield int create_run(struct create_op *op, struct fs_attr *ret)
{
    struct change c;
    int r = quota_guess(op->fs, op->dir, &op->quota);

    if (r)
        return r;
    op->ino = ino_take(op->fs);
    change_init(&c, op->fs->volume);
    do {
        create_want(op, &c);
        r = change_begin(&c);
        if (!r)
            r = create_instant(op, &c, ret);
        r = change_end(&c, r, fs_end_flags(op->rq));
    } while (r == ERR_CHANGE_AGAIN);
    if (r && op->opened)
        fs_open_put(op->fs, op->ino, 0);
    if (r && !op->made && op->fs->next_ino == op->ino + 1)
        op->fs->next_ino = op->ino; /* nobody took another one since: it is as if it was never given away */
    return r;
}

/* The name exists: what that means for a file that is created unchecked, or once more by the same request. */
static may_yield int create_existing(struct create_op *op, struct fs_attr *ret)
{
    const struct fs_create *c = op->c;
    struct inode n;
    int r = 0;

    if (c->type != FS_FILE || c->how == FS_CREATE_GUARDED)
        return ERR_FS_EXISTS;
    if (c->open)
        r = opens_add(op->fs, op->existing, 0);
    if (r)
        return r;
    r = inode_read(op->fs, op->existing, 0, &n);
    if (!r && !S_ISREG(n.mode))
        r = ERR_FS_EXISTS;
    if (!r && c->how == FS_CREATE_EXCLUSIVE &&
        ((uint64_t)n.atime_ns != c->verifier >> 32 || (uint64_t)n.mtime_ns != (c->verifier & UINT32_MAX)))
        r = ERR_FS_EXISTS;
    if (!r && c->how == FS_CREATE_UNCHECKED && (c->attr.valid & FS_SET_SIZE))
        r = attr_set_size(op->fs, op->rq, op->existing, c->attr.size, false, ret);
    else if (!r)
        inode_attr(&n, ret);
    if (!r)
        r = volume_seen(op->fs->volume, &op->existing, 1);
    if (r && c->open)
        fs_open_put(op->fs, op->existing, 0);
    return r;
}

int fs_create(struct fs *fs, const struct fs_request *rq, uint64_t dir, const char *name, uint32_t len,
              const struct fs_create *c, struct fs_attr *ret, bool *ret_created, struct fs_wcc *ret_dir)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_CREATE);
    struct create_op op;
    bool created = true;

    memset(&op, 0, offsetof(struct create_op, bucket));
    op.fs = fs;
    op.rq = rq;
    op.c = c;
    op.dir = dir;
    op.type = type_mode(c->type);
    op.wcc = ret_dir;
    op.opened = op.made = false;
    if (ret_dir)
        *ret_dir = (struct fs_wcc){0};
    int r = create_valid(&op, name, len);
    if (!r)
        r = name_init(fs, name, len, &op.name);
    if (!r)
        r = create_run(&op, ret);
    if (!r && c->type == FS_FILE && (c->attr.valid & FS_SET_SIZE) && c->attr.size > 0) {
        r = attr_set_size(fs, rq, op.ino, c->attr.size, true, ret);
        if (r && op.opened)
            fs_open_put(fs, op.ino, 0);
    }
    if (r == ERR_FS_EXISTS && op.name.len > 0) {
        created = false;
        r = create_existing(&op, ret);
    }
    if (!r && ret_created)
        *ret_created = created;
    return fs_end(fs, rq, FS_OP_CREATE, began, dir, 0, r);
}
