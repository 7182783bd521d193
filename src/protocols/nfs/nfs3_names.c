/* SPDX-License-Identifier: Apache-2.0 */
/* Procedures that make, remove and rename. Each is durable before its reply (rq.durable), and logged together
 * with its reply (rq.reply): when op->is_again, it was done by an earlier run of the server, and only the
 * answer is made anew. */
#include "protocols/nfs/nfs3.h"
#include "runtime/error.h"

#include <sys/stat.h>

/* ---- Answers ---- */

/* As far as it is known now: what was made may be gone again. */
static void attr_now(struct nfs3_op *op, uint64_t ino, struct fs_attr *ret) may_yield
{
    if (ino == 0 || fs_getattr(op->fs, &op->rq, ino, 0, ret) != 0)
        ret->ino = 0;
}

static void wcc_now(struct nfs3_op *op, uint64_t dir, struct fs_wcc *ret) may_yield
{
    attr_now(op, dir, &ret->after);
    ret->has_before = false;
    ret->has_after = ret->after.ino != 0;
}

/* diropres of what makes something. */
static int answer_made(struct nfs3_op *op, int err, const struct fs_attr *made, const struct fs_wcc *dir)
{
    if (nfs3_begin(op, err))
        nfs3_put_object(op, made);
    nfs3_put_wcc(op, dir);
    return RPC_SUCCESS;
}

/* ---- CREATE, MKDIR, SYMLINK, MKNOD ---- */

static int make(struct nfs3_op *op, const char *name, uint32_t len, struct fs_create *c) may_yield
{
    struct fs_attr made;
    struct fs_wcc dir = {.has_before = false};
    bool created;
    int err;
    made.ino = 0;
    if (op->is_again) {
        attr_now(op, op->again.ino, &made);
        wcc_now(op, op->ino, &dir);
        err = 0;
    } else if (nfs3_name_is_dots(name, len)) {
        err = ERR_FS_EXISTS;
    } else {
        err = fs_create(op->fs, &op->rq, op->ino, name, len, c, &made, &created, &dir);
    }
    return answer_made(op, err, &made, &dir);
}

static void default_mode(struct fs_create *c, uint32_t mode)
{
    if (!(c->attr.valid & FS_SET_MODE))
        c->attr.mode = mode;
    c->attr.valid |= FS_SET_MODE;
}

int nfs3_create(struct nfs3_op *op)
{
    static const enum fs_create_mode modes[] = {FS_CREATE_UNCHECKED, FS_CREATE_GUARDED, FS_CREATE_EXCLUSIVE};
    uint32_t len;
    const char *name = nfs3_get_name(op->in, &len);
    uint32_t how = xdr_enum(op->in, NFS3_EXCLUSIVE);
    struct fs_create c = {.type = FS_FILE, .how = modes[how]};
    if (how == NFS3_EXCLUSIVE) {
        c.verifier = xdr_u64(op->in);
        default_mode(&c, 0); /* the client sets attributes by the next call */
    } else {
        nfs3_get_sattr(op->in, &c.attr);
        default_mode(&c, 0644);
    }
    return op->in->bad ? RPC_GARBAGE_ARGUMENTS : make(op, name, len, &c);
}

int nfs3_mkdir(struct nfs3_op *op)
{
    uint32_t len;
    const char *name = nfs3_get_name(op->in, &len);
    struct fs_create c = {.type = FS_DIRECTORY, .how = FS_CREATE_GUARDED};
    nfs3_get_sattr(op->in, &c.attr);
    default_mode(&c, 0755);
    return op->in->bad ? RPC_GARBAGE_ARGUMENTS : make(op, name, len, &c);
}

int nfs3_symlink(struct nfs3_op *op)
{
    uint32_t len;
    const char *name = nfs3_get_name(op->in, &len);
    struct fs_create c = {.type = FS_SYMLINK, .how = FS_CREATE_GUARDED};
    struct fs_wcc dir = {.has_before = false};
    nfs3_get_sattr(op->in, &c.attr);
    default_mode(&c, 0777);
    c.target = (const char *)xdr_opaque(op->in, NFS_CALL_IN_MAX, &c.target_len);
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    if (c.target_len == 0 || c.target_len > FS_SYMLINK_MAX) {
        struct fs_attr none = {.ino = 0};
        return answer_made(op, c.target_len == 0 ? ERR_FS_BAD_NAME : ERR_FS_NAME_TOO_LONG, &none, &dir);
    }
    return make(op, name, len, &c);
}

int nfs3_mknod(struct nfs3_op *op)
{
    static const enum fs_type types[] = {
        [NFS3_BLK] = FS_BLOCK, [NFS3_CHR] = FS_CHAR, [NFS3_SOCK] = FS_SOCKET, [NFS3_FIFO] = FS_FIFO};
    uint32_t len;
    const char *name = nfs3_get_name(op->in, &len);
    uint32_t type = xdr_enum(op->in, NFS3_FIFO);
    struct fs_create c = {.how = FS_CREATE_GUARDED};
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    if (type < NFS3_BLK || type == NFS3_LNK) {
        struct fs_wcc dir = {.has_before = false};
        op->status = NFS3ERR_BADTYPE;
        xdr_put_u32(op->out, op->status);
        nfs3_put_wcc(op, &dir);
        return RPC_SUCCESS;
    }
    c.type = types[type];
    nfs3_get_sattr(op->in, &c.attr);
    default_mode(&c, 0644);
    if (type == NFS3_BLK || type == NFS3_CHR) {
        c.rdev_major = xdr_u32(op->in);
        c.rdev_minor = xdr_u32(op->in);
    }
    return op->in->bad ? RPC_GARBAGE_ARGUMENTS : make(op, name, len, &c);
}

/* ---- REMOVE, RMDIR ---- */

static int take_away(struct nfs3_op *op, bool directory) may_yield
{
    uint32_t len;
    uint64_t ino;
    struct fs_wcc dir = {.has_before = false};
    const char *name = nfs3_get_name(op->in, &len);
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    int err = 0;
    if (op->is_again)
        wcc_now(op, op->ino, &dir);
    else if (nfs3_name_is_dots(name, len))
        err = directory && len == 2 ? ERR_FS_EXISTS : ERR_FS_BAD_NAME; /* RFC 1813, 3.3.13 */
    else if (directory)
        err = fs_rmdir(op->fs, &op->rq, op->ino, name, len, &ino, &dir);
    else
        err = fs_unlink(op->fs, &op->rq, op->ino, name, len, &ino, &dir);
    nfs3_begin(op, err);
    nfs3_put_wcc(op, &dir);
    return RPC_SUCCESS;
}

int nfs3_remove(struct nfs3_op *op)
{
    return take_away(op, false);
}

int nfs3_rmdir(struct nfs3_op *op)
{
    return take_away(op, true);
}

/* ---- RENAME, LINK ---- */

int nfs3_rename(struct nfs3_op *op)
{
    uint32_t from_len, to_len;
    uint64_t to_dir = 0;
    struct fs_wcc from_wcc = {.has_before = false}, to_wcc = {.has_before = false};
    const char *from = nfs3_get_name(op->in, &from_len);
    int err = nfs3_get_handle(op, &to_dir);
    const char *to = nfs3_get_name(op->in, &to_len);
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    if (err == 0 && op->is_again) {
        wcc_now(op, op->ino, &from_wcc);
        wcc_now(op, to_dir, &to_wcc);
    } else if (err == 0 && (nfs3_name_is_dots(from, from_len) || nfs3_name_is_dots(to, to_len))) {
        err = ERR_FS_BAD_NAME;
    } else if (err == 0) {
        err = fs_rename(op->fs, &op->rq, op->ino, from, from_len, to_dir, to, to_len, 0, &from_wcc, &to_wcc);
    }
    nfs3_begin(op, err);
    nfs3_put_wcc(op, &from_wcc);
    nfs3_put_wcc(op, &to_wcc);
    return RPC_SUCCESS;
}

int nfs3_link(struct nfs3_op *op)
{
    uint32_t len;
    uint64_t dir = 0;
    struct fs_attr a;
    struct fs_wcc wcc = {.has_before = false};
    int err = nfs3_get_handle(op, &dir);
    const char *name = nfs3_get_name(op->in, &len);
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    a.ino = 0;
    if (err == 0 && op->is_again) {
        attr_now(op, op->ino, &a);
        wcc_now(op, dir, &wcc);
    } else if (err == 0 && nfs3_name_is_dots(name, len)) {
        err = ERR_FS_EXISTS;
    } else if (err == 0) {
        err = fs_link(op->fs, &op->rq, op->ino, dir, name, len, &a, &wcc);
    }
    nfs3_begin(op, err);
    nfs3_put_post(op, &a);
    nfs3_put_wcc(op, &wcc);
    return RPC_SUCCESS;
}
