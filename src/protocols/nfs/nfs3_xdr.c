/* SPDX-License-Identifier: Apache-2.0 */
#include "protocols/nfs/nfs3.h"
#include "runtime/error.h"

#include <sys/stat.h>

/* ---- Errors ---- */

enum nfs3_status nfs3_status_of(int err)
{
    if (err == ERR_FS_NOT_SYNC)
        return NFS3ERR_NOT_SYNC;
    switch (error_errno(err)) {
    case 0:
        return NFS3_OK;
    case EPERM:
        return NFS3ERR_PERM;
    case ENOENT:
        return NFS3ERR_NOENT;
    case ENXIO:
        return NFS3ERR_NXIO;
    case EACCES:
        return NFS3ERR_ACCES;
    case EEXIST:
        return NFS3ERR_EXIST;
    case EXDEV:
        return NFS3ERR_XDEV;
    case ENODEV:
        return NFS3ERR_NODEV;
    case ENOTDIR:
        return NFS3ERR_NOTDIR;
    case EISDIR:
        return NFS3ERR_ISDIR;
    case EINVAL:
    case ELOOP:
        return NFS3ERR_INVAL;
    case EFBIG:
        return NFS3ERR_FBIG;
    case ENOSPC:
        return NFS3ERR_NOSPC;
    case EROFS:
        return NFS3ERR_ROFS;
    case EMLINK:
        return NFS3ERR_MLINK;
    case ENAMETOOLONG:
        return NFS3ERR_NAMETOOLONG;
    case ENOTEMPTY:
        return NFS3ERR_NOTEMPTY;
    case EDQUOT:
        return NFS3ERR_DQUOT;
    case ESTALE:
        return NFS3ERR_STALE;
    case EBADF:
        return NFS3ERR_BADHANDLE;
    case EOPNOTSUPP:
        return NFS3ERR_NOTSUPP;
    case EAGAIN: /* all that a moment later may go well: the client comes again by itself */
    case ENOMEM:
    case EBUSY:
    case ETIMEDOUT:
    case ECANCELED:
    case ESHUTDOWN:
        return NFS3ERR_JUKEBOX;
    default:
        return NFS3ERR_IO;
    }
}

bool nfs3_begin(struct nfs3_op *op, int err)
{
    op->status = nfs3_status_of(err);
    xdr_put_u32(op->out, op->status);
    return op->status == NFS3_OK;
}

/* ---- Attributes ---- */

static uint8_t *store32(uint8_t *p, uint32_t v)
{
    struct be32 b = be32_make(v);
    memcpy(p, &b, sizeof(b));
    return p + sizeof(b);
}

static uint8_t *store64(uint8_t *p, uint64_t v)
{
    struct be64 b = be64_make(v);
    memcpy(p, &b, sizeof(b));
    return p + sizeof(b);
}

/* Seconds are unsigned on the wire: what is before 1970 or after 2106 is that. */
static uint8_t *store_time(uint8_t *p, int64_t ns)
{
    uint64_t sec = ns > 0 ? (uint64_t)ns / NSEC_PER_SEC : 0, part = ns > 0 ? (uint64_t)ns % NSEC_PER_SEC : 0;
    if (sec > UINT32_MAX) {
        sec = UINT32_MAX;
        part = 0;
    }
    return store32(store32(p, (uint32_t)sec), (uint32_t)part);
}

static uint32_t type_of(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return NFS3_DIR;
    case S_IFBLK:
        return NFS3_BLK;
    case S_IFCHR:
        return NFS3_CHR;
    case S_IFLNK:
        return NFS3_LNK;
    case S_IFSOCK:
        return NFS3_SOCK;
    case S_IFIFO:
        return NFS3_FIFO;
    default:
        return NFS3_REG;
    }
}

void nfs3_put_attr(struct nfs3_op *op, const struct fs_attr *a)
{
    uint8_t *p = xdr_room(op->out, NFS3_ATTR_SIZE), *begin = p;
    if (p == NULL)
        return;
    p = store32(p, type_of(a->mode));
    p = store32(p, a->mode & 07777);
    p = store32(p, a->nlink);
    p = store32(p, a->uid);
    p = store32(p, a->gid);
    p = store64(p, a->size);
    p = store64(p, a->used_bytes);
    p = store32(p, a->rdev_major);
    p = store32(p, a->rdev_minor);
    p = store64(p, op->export->volume_tag);
    p = store64(p, a->ino);
    p = store_time(p, a->atime_ns);
    p = store_time(p, a->mtime_ns);
    p = store_time(p, a->ctime_ns);
    assert(p == begin + NFS3_ATTR_SIZE);
}

void nfs3_put_post(struct nfs3_op *op, const struct fs_attr *a)
{
    bool known = a != NULL && a->ino != 0;
    xdr_put_bool(op->out, known);
    if (known)
        nfs3_put_attr(op, a);
}

void nfs3_put_wcc(struct nfs3_op *op, const struct fs_wcc *w)
{
    xdr_put_bool(op->out, w->has_before);
    uint8_t *p = w->has_before ? xdr_room(op->out, 24) : NULL;
    if (p != NULL) {
        p = store64(p, w->before_size);
        p = store_time(p, w->before_mtime_ns);
        store_time(p, w->before_ctime_ns);
    }
    nfs3_put_post(op, w->has_after ? &w->after : NULL);
}

void nfs3_get_sattr(struct xdr *x, struct fs_setattr *ret)
{
    static const struct {
        uint32_t now, value;
    } times[2] = {{FS_SET_ATIME_NOW, FS_SET_ATIME}, {FS_SET_MTIME_NOW, FS_SET_MTIME}};
    *ret = (struct fs_setattr){.valid = 0};
    if (xdr_bool(x)) {
        ret->valid |= FS_SET_MODE;
        ret->mode = xdr_u32(x) & 07777;
    }
    if (xdr_bool(x)) {
        ret->valid |= FS_SET_UID;
        ret->uid = xdr_u32(x);
    }
    if (xdr_bool(x)) {
        ret->valid |= FS_SET_GID;
        ret->gid = xdr_u32(x);
    }
    if (xdr_bool(x)) {
        ret->valid |= FS_SET_SIZE;
        ret->size = xdr_u64(x);
    }
    for (int i = 0; i < 2; i++) {
        uint32_t how = xdr_enum(x, NFS3_CLIENT_TIME);
        if (how == NFS3_SERVER_TIME)
            ret->valid |= times[i].now;
        if (how != NFS3_CLIENT_TIME)
            continue;
        ret->valid |= times[i].value;
        int64_t t = nfs3_get_time(x);
        *(i == 0 ? &ret->atime_ns : &ret->mtime_ns) = t;
    }
}

int64_t nfs3_get_time(struct xdr *x)
{
    uint64_t sec = xdr_u32(x), ns = xdr_u32(x);
    if (ns >= NSEC_PER_SEC)
        xdr_fail(x);
    return (int64_t)(sec * NSEC_PER_SEC + ns);
}

/* ---- Handles and names ---- */

void nfs3_put_handle(struct nfs3_op *op, const struct fs_attr *a)
{
    struct nfs_handle h;
    nfs_export_handle(op->export, a->ino, a->generation, &h);
    xdr_put_opaque(op->out, &h, sizeof(h));
}

void nfs3_put_object(struct nfs3_op *op, const struct fs_attr *a)
{
    xdr_put_bool(op->out, a->ino != 0);
    if (a->ino != 0)
        nfs3_put_handle(op, a);
    nfs3_put_post(op, a);
}

int nfs3_get_handle(struct nfs3_op *op, uint64_t *ret_ino)
{
    uint32_t len;
    struct nfs_handle_fields f;
    const uint8_t *bytes = xdr_opaque(op->in, NFS3_HANDLE_MAX, &len);
    if (bytes == NULL)
        return ERR_FS_BAD_HANDLE;
    if (!nfs_handle_parse(bytes, len, &f))
        return ERR_FS_BAD_HANDLE;
    if (f.export_tag != op->export->tag || f.volume_tag != op->export->volume_tag)
        return ERR_FS_CROSS_QUOTA;
    if (!nfs_handle_verify(&op->export->key, bytes))
        return ERR_FS_BAD_HANDLE;
    *ret_ino = f.ino;
    return 0;
}

const char *nfs3_get_name(struct xdr *x, uint32_t *ret_len)
{
    return (const char *)xdr_opaque(x, NFS_CALL_IN_MAX, ret_len);
}

bool nfs3_name_is_dots(const char *name, uint32_t len)
{
    return len >= 1 && len <= 2 && name[0] == '.' && name[len - 1] == '.';
}

bool nfs3_is_owner(struct nfs3_op *op)
{
    struct fs_attr a;
    return fs_getattr(op->fs, &op->rq, op->ino, 0, &a) == 0 && a.uid == op->rq.cred.uid;
}
