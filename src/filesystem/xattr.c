/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended attributes. Each lies under a number made of its name's hash, in chunks; names of one hash take
 * the numbers after it (open addressing), and a number once taken in the middle of such a row stays marked.
 *
 * Namespaces as on Linux: user.* follows the permissions of the file and is for files and directories only;
 * trusted.* is root's; security.* is read by everybody and set by root; POSIX ACLs are the owner's and change
 * the mode with them.
 */
#include "filesystem/names_internal.h"
#include "runtime/checksum.h"

#include <stdlib.h>
#include <sys/stat.h>

#define XATTR_NUMBER_MASK ((UINT64_C(1) << 48) - 1)
#define HEAD_LEN          ((uint32_t)sizeof(struct disk_xattr))

int xattr_head_decode(const void *bytes, uint32_t len, struct xattr_head *ret)
{
    struct disk_xattr d;

    if (len < sizeof(d))
        return ERR_VOLUME_CORRUPT;
    memcpy(&d, bytes, sizeof(d));
    uint32_t value_len = le32_get(d.value_len), rest = len - HEAD_LEN;
    const char *name = (const char *)bytes + HEAD_LEN;
    if (d.name_len > rest || memchr(name, 0, d.name_len))
        return ERR_VOLUME_CORRUPT;
    rest -= d.name_len;
    if (value_len == XATTR_DELETED ? rest != 0
                                   : d.name_len == 0 || value_len > FS_XATTR_VALUE_MAX ||
                                         rest != MIN(value_len, ITEM_LEN_MAX - HEAD_LEN - d.name_len))
        return ERR_VOLUME_CORRUPT;
    *ret = (struct xattr_head){.value_len = value_len,
                               .name_len = d.name_len,
                               .name = name,
                               .value = (const uint8_t *)name + d.name_len,
                               .first_len = rest};
    return 0;
}

void xattr_name_init(const struct fs *fs, const char *bytes, uint32_t len, struct xattr_name *ret)
{
    uint64_t seed;

    memcpy(&seed, fs->hash_seed, sizeof(seed));
    *ret = (struct xattr_name){bytes, len, hash64(bytes, len, ~seed) & XATTR_NUMBER_MASK};
}

static uint32_t first_max(uint32_t name_len)
{
    return ITEM_LEN_MAX - HEAD_LEN - name_len;
}

uint32_t xattr_chunks(uint32_t name_len, uint32_t value_len)
{
    uint32_t first = MIN(value_len, first_max(name_len));

    return 1 + DIV_ROUND_UP(value_len - first, ITEM_LEN_MAX);
}

static bool head_is(const struct xattr_head *h, const struct xattr_name *n)
{
    return h->value_len != XATTR_DELETED && h->name_len == n->len && memcmp(h->name, n->bytes, n->len) == 0;
}

int xattr_find(struct change *c, uint64_t ino, const struct xattr_name *n, struct xattr_place *ret)
{
    struct xattr_place free_place = {0};
    struct xattr_head h;
    const void *bytes;
    uint32_t len;

    for (uint32_t i = 0; i < XATTR_PROBES_MAX; i++) {
        int r = change_get(c, xattr_key(ino, n->number + i, 0), &bytes, &len);
        if (r == ERR_NOT_FOUND) {
            *ret = free_place.old_chunks ? free_place : (struct xattr_place){.number = n->number + i};
            return 0;
        }
        if (!r)
            r = xattr_head_decode(bytes, len, &h);
        if (r)
            return r;
        if (head_is(&h, n)) {
            *ret = (struct xattr_place){.number = n->number + i,
                                        .exists = true,
                                        .value_len = h.value_len,
                                        .old_chunks = xattr_chunks(n->len, h.value_len)};
            return 0;
        }
        if (h.value_len == XATTR_DELETED && !free_place.old_chunks)
            free_place = (struct xattr_place){.number = n->number + i, .old_chunks = 1};
    }
    if (!free_place.old_chunks)
        return ERR_FS_DIR_FULL;
    *ret = free_place;
    return 0;
}

void xattr_want(struct change *c, uint64_t ino, uint64_t number, uint32_t name_len, uint32_t value_len,
                uint32_t old_chunks)
{
    struct tree_key first = xattr_key(ino, number, 0), last = xattr_key(ino, number, 255);
    uint32_t n = xattr_chunks(name_len, value_len), rest = value_len;

    change_want_range(c, &first, &last);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t part = MIN(rest, i == 0 ? first_max(name_len) : ITEM_LEN_MAX);
        change_will_put(c, i == 0 ? HEAD_LEN + name_len + part : part);
        rest -= part;
    }
    for (uint32_t i = n; i < old_chunks; i++)
        change_will_delete(c);
}

static void head_put(struct change *c, struct tree_key key, const struct xattr_name *n, uint32_t value_len,
                     const uint8_t *value, uint32_t part)
{
    uint8_t item[ITEM_LEN_MAX];
    struct disk_xattr d = {.value_len = le32_make(value_len), .name_len = (uint8_t)n->len};

    memcpy(item, &d, sizeof(d));
    memcpy(item + HEAD_LEN, n->bytes, n->len);
    if (part > 0)
        memcpy(item + HEAD_LEN + n->len, value, part);
    change_put(c, key, item, HEAD_LEN + n->len + part);
}

void xattr_put(struct change *c, uint64_t ino, const struct xattr_name *n, const struct xattr_place *at,
               const uint8_t *value, uint32_t len)
{
    uint32_t chunks = xattr_chunks(n->len, len), done = MIN(len, first_max(n->len));

    assert(n->len > 0 && n->len <= FS_XATTR_NAME_MAX && len <= FS_XATTR_VALUE_MAX);
    head_put(c, xattr_key(ino, at->number, 0), n, len, value, done);
    for (uint32_t i = 1; i < chunks; i++) {
        uint32_t part = MIN(len - done, ITEM_LEN_MAX);
        change_put(c, xattr_key(ino, at->number, i), value + done, part);
        done += part;
    }
    assert(done == len);
    for (uint32_t i = chunks; i < at->old_chunks; i++)
        change_delete(c, xattr_key(ino, at->number, i));
}

/* ---- Who may ---- */

enum space { SPACE_USER, SPACE_TRUSTED, SPACE_SECURITY, SPACE_ACL_ACCESS, SPACE_ACL_DEFAULT };

static bool has_prefix(const char *name, uint32_t len, const char *prefix)
{
    size_t n = strlen(prefix);

    return len > n && memcmp(name, prefix, n) == 0;
}

static bool name_equals(const char *name, uint32_t len, const char *other)
{
    return strlen(other) == len && memcmp(name, other, len) == 0;
}

static int space_of(const char *name, uint32_t len, enum space *ret)
{
    if (len == 0 || memchr(name, 0, len))
        return ERR_FS_INVALID;
    if (len > FS_XATTR_NAME_MAX)
        return ERR_FS_XATTR_RANGE;
    if (name_equals(name, len, acl_name(ACL_ACCESS)))
        *ret = SPACE_ACL_ACCESS;
    else if (name_equals(name, len, acl_name(ACL_DEFAULT)))
        *ret = SPACE_ACL_DEFAULT;
    else if (has_prefix(name, len, "user."))
        *ret = SPACE_USER;
    else if (has_prefix(name, len, "trusted."))
        *ret = SPACE_TRUSTED;
    else if (has_prefix(name, len, "security."))
        *ret = SPACE_SECURITY;
    else
        return ERR_FS_NOT_SUPPORTED;
    return 0;
}

static int may_read(const struct fs_cred *cred, enum space s)
{
    return s == SPACE_TRUSTED && cred->uid != 0 && !cred->trusted ? ERR_FS_NO_XATTR : 0;
}

static int may_set(struct fs *fs, struct change *c, const struct fs_cred *cred, enum space s,
                   const struct inode *n)
{
    switch (s) {
    case SPACE_USER:
        if (!S_ISREG(n->mode) && !S_ISDIR(n->mode))
            return ERR_FS_NOT_OWNER;
        if (S_ISDIR(n->mode) && (n->mode & S_ISVTX)) {
            int r = access_owner(cred, n);
            if (r)
                return r;
        }
        return access_check(fs, c, cred, n, FS_MAY_WRITE);
    case SPACE_TRUSTED:
    case SPACE_SECURITY:
        return cred->uid == 0 || cred->trusted ? 0 : ERR_FS_NOT_OWNER;
    case SPACE_ACL_ACCESS:
        return S_ISLNK(n->mode) ? ERR_FS_NOT_SUPPORTED : access_owner(cred, n);
    default:
        return S_ISLNK(n->mode) ? ERR_FS_NOT_SUPPORTED : access_owner(cred, n);
    }
}

/* ---- Setting and removing ---- */

struct xattr_op {
    struct fs *fs;
    const struct fs_request *rq;
    uint64_t ino;
    enum space space;
    struct xattr_name name;
    const uint8_t *value; /* NULL: remove */
    uint32_t len;
    enum fs_xattr_set how;
    struct acl acl; /* of a value that is one */
    bool drop;      /* a list that says no more than the mode is not kept; or it is to be removed */
    /* Learnt by the pass before. */
    bool placed;
    struct xattr_place at;
    bool row_goes_on; /* behind it: a removed one must leave its mark */
};

static int xattr_exists_check(const struct xattr_op *op, const struct xattr_place *at)
{
    if (!op->value)
        return at->exists || op->space >= SPACE_ACL_ACCESS ? 0 : ERR_FS_NO_XATTR;
    if (op->how == FS_XATTR_CREATE && at->exists)
        return ERR_FS_EXISTS;
    return op->how == FS_XATTR_REPLACE && !at->exists ? ERR_FS_NO_XATTR : 0;
}

/* What the head promises is there, so that it can be deleted. */
static int chunks_check(const struct xattr_op *op, struct change *c, const struct xattr_place *at)
{
    const void *bytes;
    uint32_t len;

    for (uint32_t i = 1; i < at->old_chunks; i++) {
        int r = change_get(c, xattr_key(op->ino, at->number, i), &bytes, &len);
        if (r)
            return r == ERR_NOT_FOUND ? ERR_VOLUME_CORRUPT : r;
    }
    return 0;
}

static int row_check(struct xattr_op *op, struct change *c, const struct xattr_place *at, bool *ret)
{
    const void *bytes;
    uint32_t len;
    int r = op->drop && at->exists ? change_get(c, xattr_key(op->ino, at->number + 1, 0), &bytes, &len)
                                   : ERR_NOT_FOUND;

    *ret = r == 0;
    return r == ERR_NOT_FOUND ? 0 : r;
}

static int xattr_plan(struct xattr_op *op, struct change *c, struct inode *n)
{
    struct xattr_place at;
    bool goes_on;
    int r = inode_get(op->fs, c, op->ino, n);

    if (!r)
        r = may_set(op->fs, c, &op->rq->cred, op->space, n);
    if (!r && op->space == SPACE_ACL_DEFAULT && op->value && !op->drop && !S_ISDIR(n->mode))
        r = ERR_FS_ACCESS;
    if (!r)
        r = xattr_find(c, op->ino, &op->name, &at);
    if (!r)
        r = xattr_exists_check(op, &at);
    if (!r)
        r = row_check(op, c, &at, &goes_on);
    if (r)
        return r;
    if (op->placed) /* else its other chunks are not even wanted */
        r = chunks_check(op, c, &at);
    if (r)
        return r;
    bool same = op->placed && op->at.number == at.number && op->at.exists == at.exists &&
                op->at.old_chunks >= at.old_chunks;
    op->placed = true;
    op->at = at;
    op->row_goes_on = goes_on;
    return same ? 0 : ERR_CHANGE_AGAIN; /* now it is known what to promise */
}

static void xattr_drop(struct xattr_op *op, struct change *c)
{
    if (!op->at.exists)
        return;
    uint32_t first = op->row_goes_on ? 1 : 0;
    if (op->row_goes_on)
        head_put(c, xattr_key(op->ino, op->at.number, 0), &op->name, XATTR_DELETED, NULL, 0);
    for (uint32_t i = first; i < op->at.old_chunks; i++)
        change_delete(c, xattr_key(op->ino, op->at.number, i));
}

static void acl_flags(const struct xattr_op *op, struct inode *n)
{
    uint32_t flag = op->space == SPACE_ACL_ACCESS ? INODE_ACL : INODE_ACL_DEFAULT;
    const struct fs_cred *cred = &op->rq->cred;

    if (op->space < SPACE_ACL_ACCESS)
        return;
    n->flags = op->drop ? n->flags & ~flag : n->flags | flag;
    if (op->space == SPACE_ACL_ACCESS && op->value) {
        n->mode = (n->mode & ~0777u) | acl_to_mode(&op->acl);
        if (!cred->trusted && cred->uid != 0 && !cred_in_group(cred, n->gid))
            n->mode &= ~(uint32_t)S_ISGID;
    }
}

static int xattr_instant(struct xattr_op *op, struct change *c)
{
    struct inode n;
    int r = xattr_plan(op, c, &n);

    if (r)
        return r;
    if (op->drop)
        xattr_drop(op, c);
    else
        xattr_put(c, op->ino, &op->name, &op->at, op->value, op->len);
    if (!op->drop)
        n.flags |= INODE_XATTR;
    acl_flags(op, &n);
    n.ctime_ns = fs_now_ns();
    inode_put(c, &n);
    notify_attr(op->fs, op->rq, op->ino);
    return 0;
}

static may_yield int xattr_run(struct xattr_op *op)
{
    struct change c;
    int r;

    change_init(&c, op->fs->volume);
    c.deletes = op->drop;
    do {
        change_clear(&c);
        inode_want(&c, op->ino);
        if (op->placed) {
            xattr_want(&c, op->ino, op->at.number, op->name.len, op->drop ? 0 : op->len,
                       op->at.old_chunks + 1);
        } else {
            change_want(&c, xattr_key(op->ino, op->name.number, 0));
        }
        r = change_begin(&c);
        if (!r)
            r = xattr_instant(op, &c);
        r = change_end(&c, r, fs_end_flags(op->rq));
    } while (r == ERR_CHANGE_AGAIN);
    return r;
}

/* The value of an ACL is checked before anything; an empty one removes it, as on Linux. */
static int xattr_value_check(struct xattr_op *op)
{
    op->drop = op->value == NULL;
    if (op->drop)
        return 0;
    if (op->len > FS_XATTR_VALUE_MAX)
        return ERR_FS_XATTR_TOO_BIG;
    if (op->space < SPACE_ACL_ACCESS)
        return 0;
    if (op->len <= sizeof(struct le32)) {
        op->value = NULL;
        op->drop = true;
        return 0;
    }
    int r = acl_decode(op->value, op->len, &op->acl);
    if (!r)
        op->drop = op->space == SPACE_ACL_ACCESS && acl_is_mode(&op->acl);
    return r;
}

int fs_xattr_set(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                 uint32_t name_len, const void *value, uint32_t len, enum fs_xattr_set how)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_XATTR);
    struct xattr_op op = {
        .fs = fs, .rq = rq, .ino = ino, .value = value ? value : "", .len = len, .how = how};
    int r = rq->read_only ? ERR_FS_READ_ONLY : space_of(name, name_len, &op.space);

    xattr_name_init(fs, name, name_len, &op.name);
    if (!r)
        r = xattr_value_check(&op);
    if (!r)
        r = xattr_run(&op);
    return fs_end(fs, rq, FS_OP_XATTR, began, ino, 0, r);
}

int fs_xattr_remove(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                    uint32_t name_len)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_XATTR);
    struct xattr_op op = {.fs = fs, .rq = rq, .ino = ino};
    int r = rq->read_only ? ERR_FS_READ_ONLY : space_of(name, name_len, &op.space);

    xattr_name_init(fs, name, name_len, &op.name);
    op.drop = true;
    if (!r)
        r = xattr_run(&op);
    return fs_end(fs, rq, FS_OP_XATTR, began, ino, 0, r);
}

/* ---- Reading ---- */

/* The chunks may change between two reads: the head tells, and is read again afterwards. */
static may_yield int value_read(struct fs *fs, uint64_t ino, const struct xattr_name *n, uint8_t *value,
                                uint32_t max, uint32_t *ret_len)
{
    uint8_t item[ITEM_LEN_MAX];
    struct xattr_head h;
    uint32_t len, i;
    int r = 0;

    for (i = 0; i < XATTR_PROBES_MAX; i++) {
        r = volume_item_get(fs->volume, xattr_key(ino, n->number + i, 0), item, sizeof(item), &len);
        if (!r)
            r = xattr_head_decode(item, len, &h);
        if (r || head_is(&h, n))
            break;
    }
    if (r)
        return r == ERR_NOT_FOUND ? ERR_FS_NO_XATTR : r;
    if (i == XATTR_PROBES_MAX)
        return ERR_FS_NO_XATTR;
    if (max > 0 && h.value_len > max)
        return ERR_FS_XATTR_RANGE;
    uint32_t total = h.value_len, done = h.first_len;
    if (max > 0 && done > 0)
        memcpy(value, h.value, done);
    for (uint32_t chunk = 1; max > 0 && done < total; chunk++, done += len) {
        r = volume_item_get(fs->volume, xattr_key(ino, n->number + i, chunk), item, sizeof(item), &len);
        if (!r && len != MIN(total - done, ITEM_LEN_MAX))
            r = ERR_NOT_FOUND;
        if (r)
            return r == ERR_NOT_FOUND ? ERR_CHANGE_AGAIN : r;
        memcpy(value + done, item, len);
    }
    *ret_len = total;
    return 0;
}

/* An inode whose change counter stayed was not changed meanwhile. */
static may_yield int value_of(struct fs *fs, const struct xattr_name *n, struct inode *before, uint8_t *value,
                              uint32_t max, uint32_t *ret_len)
{
    struct inode after;

    for (uint32_t tries = 0; tries < 16; tries++) {
        int r = value_read(fs, before->ino, n, value, max, ret_len);
        bool one_item = r == 0 && (max == 0 || *ret_len <= first_max(n->len));
        if ((r != 0 && r != ERR_CHANGE_AGAIN) || one_item)
            return r;
        int seen = inode_read(fs, before->ino, 0, &after);
        if (seen)
            return seen;
        if (r == 0 && after.change == before->change)
            return 0;
        if (r == ERR_CHANGE_AGAIN && after.change == before->change)
            return ERR_VOLUME_CORRUPT;
        *before = after;
    }
    return ERR_FS_NOT_SYNC;
}

int fs_xattr_get(struct fs *fs, const struct fs_request *rq, uint64_t ino, const char *name,
                 uint32_t name_len, void *value, uint32_t max, uint32_t *ret_len)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_XATTR);
    struct xattr_name n;
    struct inode inode;
    enum space space;
    uint32_t len = 0;
    int r = space_of(name, name_len, &space);

    if (!r)
        r = may_read(&rq->cred, space);
    if (!r)
        r = inode_read(fs, ino, 0, &inode);
    if (!r && space == SPACE_USER)
        r = S_ISREG(inode.mode) || S_ISDIR(inode.mode) ? access_read(fs, &rq->cred, &inode, FS_MAY_READ)
                                                       : ERR_FS_NO_XATTR;
    if (!r && !(inode.flags & INODE_XATTR))
        r = ERR_FS_NO_XATTR;
    if (!r) {
        xattr_name_init(fs, name, name_len, &n);
        r = value_of(fs, &n, &inode, value, max, &len);
    }
    int seen = volume_seen(fs->volume, &ino, 1);
    if (seen)
        r = seen;
    if (!r)
        *ret_len = len;
    return fs_end(fs, rq, FS_OP_XATTR, began, ino, 0, r);
}

int fs_xattr_list(struct fs *fs, const struct fs_request *rq, uint64_t ino, char *list, uint32_t max,
                  uint32_t *ret_len)
{
    uint64_t began = fs_begin(fs, rq, FS_OP_XATTR), number = 0;
    uint32_t total = 0;
    struct inode n;
    struct tree_cursor cursor;
    struct xattr_head h;
    int r = inode_read(fs, ino, 0, &n);
    bool more = !r && (n.flags & INODE_XATTR);

    while (!r && more) {
        r = volume_item_seek(fs->volume, xattr_key(ino, number, 0), SEEK_GE, &cursor);
        more = !r && cursor.key.object == ino && cursor.key.type == ITEM_XATTR;
        if (!more)
            break;
        number = (cursor.key.offset >> 8) + 1;
        if ((cursor.key.offset & 0xff) != 0)
            continue;
        r = xattr_head_decode(cursor.value, cursor.len, &h);
        if (r || h.value_len == XATTR_DELETED)
            continue;
        if (has_prefix(h.name, h.name_len, "trusted.") && rq->cred.uid != 0)
            continue;
        if (max > 0 && h.name_len + 1 > max - total) {
            r = ERR_FS_XATTR_RANGE;
            break;
        }
        if (max > 0) {
            memcpy(list + total, h.name, h.name_len);
            list[total + h.name_len] = 0;
        }
        total += h.name_len + 1;
    }
    if (r == ERR_NOT_FOUND)
        r = 0;
    if (!r)
        r = volume_seen(fs->volume, &ino, 1);
    if (!r)
        *ret_len = total;
    return fs_end(fs, rq, FS_OP_XATTR, began, ino, 0, r);
}
