/* SPDX-License-Identifier: Apache-2.0 */
/* Procedures about one object: attributes, access, names looked up, and what the file system is like. */
#include "protocols/nfs/nfs3.h"
#include "runtime/error.h"

#include <sys/stat.h>

#define DEPTH_MAX 4096u /* of directories, when their way up is followed */

int nfs3_getattr(struct nfs3_op *op)
{
    struct fs_attr a;
    if (nfs3_begin(op, fs_getattr(op->fs, &op->rq, op->ino, op->generation, &a)))
        nfs3_put_attr(op, &a);
    return RPC_SUCCESS;
}

int nfs3_setattr(struct nfs3_op *op)
{
    struct fs_setattr s;
    struct fs_wcc wcc = {.has_before = false};
    nfs3_get_sattr(op->in, &s);
    if (xdr_bool(op->in)) {
        s.valid |= FS_SET_GUARD;
        s.guard_ctime_ns = nfs3_get_time(op->in);
    }
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    int err;
    if (op->is_again) {
        err = fs_getattr(op->fs, &op->rq, op->ino, 0, &wcc.after);
        wcc.has_after = err == 0;
    } else {
        err = fs_setattr(op->fs, &op->rq, op->ino, &s, &wcc);
        if (err == ERR_FS_ACCESS && (s.valid & FS_SET_SIZE) && nfs3_is_owner(op)) {
            s.valid |= FS_SET_OPEN;
            err = fs_setattr(op->fs, &op->rq, op->ino, &s, &wcc);
        }
    }
    nfs3_begin(op, err);
    nfs3_put_wcc(op, &wcc);
    return RPC_SUCCESS;
}

/* ---- LOOKUP ---- */

/* ".." must not lead out of the export, not even from a directory that was moved out of it meanwhile. */
MUST_CHECK static int inside(struct nfs3_op *op, const struct fs_attr *found) may_yield
{
    struct fs_attr a = *found;
    if (op->export->root_ino == FS_INO_ROOT)
        return 0;
    for (uint32_t i = 0; i < DEPTH_MAX && a.ino != op->export->root_ino; i++) {
        if (a.ino == FS_INO_ROOT || a.parent == 0)
            return ERR_FS_STALE;
        int err = fs_getattr(op->fs, &op->rq, a.parent, 0, &a);
        if (err != 0)
            return err;
    }
    return a.ino == op->export->root_ino ? 0 : ERR_FS_STALE;
}

MUST_CHECK static int lookup(struct nfs3_op *op, const char *name, uint32_t len, struct fs_attr *a,
                             struct fs_attr *dir) may_yield
{
    bool up = len == 2 && name[0] == '.' && name[1] == '.';
    if (up && op->ino == op->export->root_ino) {
        int err = fs_getattr(op->fs, &op->rq, op->ino, 0, a);
        *dir = *a;
        return err;
    }
    int err = fs_lookup(op->fs, &op->rq, op->ino, name, len, a, dir);
    return err == 0 && up ? inside(op, a) : err;
}

int nfs3_lookup(struct nfs3_op *op)
{
    uint32_t len;
    struct fs_attr a, dir;
    const char *name = nfs3_get_name(op->in, &len);
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    a.ino = dir.ino = 0;
    int err = lookup(op, name, len, &a, &dir);
    if (nfs3_begin(op, err)) {
        nfs3_put_handle(op, &a);
        nfs3_put_post(op, &a);
    } else if (dir.ino == 0 && op->status == NFS3ERR_NOENT) {
        /* A client remembers that a name was not there for as long as the directory does not change. */
        err = fs_getattr(op->fs, &op->rq, op->ino, 0, &dir);
        if (err != 0)
            dir.ino = 0;
    }
    nfs3_put_post(op, &dir);
    return RPC_SUCCESS;
}

/* ---- ACCESS ---- */

struct access_bit {
    uint32_t nfs, fs; /* all of fs are needed */
};
static const struct access_bit directory_bits[] = {
    {NFS3_ACCESS_READ, FS_MAY_READ},
    {NFS3_ACCESS_LOOKUP, FS_MAY_EXECUTE},
    {NFS3_ACCESS_MODIFY, FS_MAY_WRITE | FS_MAY_EXECUTE},
    {NFS3_ACCESS_EXTEND, FS_MAY_WRITE | FS_MAY_EXECUTE},
    {NFS3_ACCESS_DELETE, FS_MAY_DELETE},
};
static const struct access_bit file_bits[] = {
    {NFS3_ACCESS_READ, FS_MAY_READ},
    {NFS3_ACCESS_MODIFY, FS_MAY_WRITE},
    {NFS3_ACCESS_EXTEND, FS_MAY_WRITE},
    {NFS3_ACCESS_EXECUTE, FS_MAY_EXECUTE},
};
#define ACCESS_CHANGES (NFS3_ACCESS_MODIFY | NFS3_ACCESS_EXTEND | NFS3_ACCESS_DELETE)

int nfs3_access(struct nfs3_op *op)
{
    uint32_t wanted = xdr_u32(op->in), granted, result = 0;
    struct fs_attr a;
    if (op->in->bad)
        return RPC_GARBAGE_ARGUMENTS;
    a.ino = 0;
    int err = fs_access(op->fs, &op->rq, op->ino, FS_MAY_READ | FS_MAY_WRITE | FS_MAY_EXECUTE | FS_MAY_DELETE,
                        &granted, &a);
    bool ok = nfs3_begin(op, err);
    nfs3_put_post(op, &a);
    if (!ok)
        return RPC_SUCCESS;
    bool directory = (a.mode & S_IFMT) == S_IFDIR;
    const struct access_bit *bits = directory ? directory_bits : file_bits;
    for (uint32_t i = 0; i < (directory ? ARRAY_SIZE(directory_bits) : ARRAY_SIZE(file_bits)); i++) {
        if ((wanted & bits[i].nfs) && (granted & bits[i].fs) == bits[i].fs)
            result |= bits[i].nfs;
    }
    if (op->export->read_only)
        result &= ~(uint32_t)ACCESS_CHANGES;
    xdr_put_u32(op->out, result);
    return RPC_SUCCESS;
}

int nfs3_readlink(struct nfs3_op *op)
{
    char target[FS_SYMLINK_MAX + 1];
    uint32_t len = 0;
    struct fs_attr a;
    a.ino = 0;
    int err = fs_readlink(op->fs, &op->rq, op->ino, target, &len, &a);
    if (err == 0 && !nfs_call_room(op->call, NFS3_ATTR_SIZE + 16 + len + 3)) {
        err = ERR_NO_MEMORY;
        a.ino = 0;
    }
    bool ok = nfs3_begin(op, err);
    nfs3_put_post(op, &a);
    if (ok)
        xdr_put_opaque(op->out, target, len);
    return RPC_SUCCESS;
}

/* ---- The file system ---- */

int nfs3_fsstat(struct nfs3_op *op)
{
    struct fs_statfs s;
    struct fs_attr a;
    a.ino = 0;
    bool ok = nfs3_begin(op, fs_statfs(op->fs, &op->rq, op->ino, &s, &a));
    nfs3_put_post(op, &a);
    if (!ok)
        return RPC_SUCCESS;
    xdr_put_u64(op->out, s.total_bytes);
    xdr_put_u64(op->out, s.free_bytes);
    xdr_put_u64(op->out, s.available_bytes);
    xdr_put_u64(op->out, s.total_inodes);
    xdr_put_u64(op->out, s.free_inodes);
    xdr_put_u64(op->out, s.available_inodes);
    xdr_put_u32(op->out, 0); /* invarsec: it may change at any time */
    return RPC_SUCCESS;
}

int nfs3_fsinfo(struct nfs3_op *op)
{
    struct fs_attr a;
    a.ino = 0;
    bool ok = nfs3_begin(op, fs_getattr(op->fs, &op->rq, op->ino, op->generation, &a));
    nfs3_put_post(op, &a);
    if (!ok)
        return RPC_SUCCESS;
    for (int i = 0; i < 2; i++) { /* reading, writing: most, preferred, multiple */
        xdr_put_u32(op->out, NFS_TRANSFER_MAX);
        xdr_put_u32(op->out, NFS_TRANSFER_MAX);
        xdr_put_u32(op->out, BLOCK_SIZE);
    }
    xdr_put_u32(op->out, NFS_DREADDIR);
    xdr_put_u64(op->out, FS_SIZE_MAX - 1);
    xdr_put_u32(op->out, 0); /* times: seconds, nanoseconds */
    xdr_put_u32(op->out, 1);
    xdr_put_u32(op->out, NFS3_FSF_LINK | NFS3_FSF_SYMLINK | NFS3_FSF_HOMOGENEOUS | NFS3_FSF_CANSETTIME);
    return RPC_SUCCESS;
}

int nfs3_pathconf(struct nfs3_op *op)
{
    struct fs_attr a;
    a.ino = 0;
    bool ok = nfs3_begin(op, fs_getattr(op->fs, &op->rq, op->ino, op->generation, &a));
    nfs3_put_post(op, &a);
    if (!ok)
        return RPC_SUCCESS;
    xdr_put_u32(op->out, FS_LINK_MAX);
    xdr_put_u32(op->out, FS_NAME_MAX);
    xdr_put_bool(op->out, true); /* too long names are refused, not cut */
    xdr_put_bool(op->out, true); /* only root gives files away */
    xdr_put_bool(op->out, fs_case_insensitive(op->fs));
    xdr_put_bool(op->out, true); /* case is kept */
    return RPC_SUCCESS;
}
