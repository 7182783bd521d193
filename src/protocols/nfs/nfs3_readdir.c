/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READDIR and READDIRPLUS. Entries are written into the reply as the file system walks the directory; the
 * first one that does not fit ends the reply and is the next one's first.
 *
 * Cookies are the file system's own and stay good whatever else changes, so the verifier says only of which
 * kind they are.
 */
#include "protocols/nfs/nfs3.h"
#include "runtime/error.h"

#include <sys/stat.h>

#define COOKIE_VERIFIER UINT64_C(0x617368646972) /* "ashdir": cookies of format version 1 */
#define END_SIZE        8u                       /* no entry follows; eof */
#define HANDLE_SIZE     (4u + (uint32_t)sizeof(struct nfs_handle))

struct listing {
    struct nfs3_op *op;
    bool plus;
    uint32_t dir_left; /* bytes of names, numbers and cookies that may still come */
    uint32_t limit;    /* length of out that must not be exceeded */
    uint32_t count;
};

/* Attributes and handle of an entry, where they may be told. */
static void put_plus(struct listing *l, const struct fs_dirent *e, bool up)
{
    struct nfs3_op *op = l->op;
    bool root = op->export->root_ino == FS_INO_ROOT;
    if (up && (op->ino == op->export->root_ino || !root)) { /* it may be outside of the export */
        xdr_put_bool(op->out, false);
        xdr_put_bool(op->out, false);
        return;
    }
    nfs3_put_post(op, e->attr);
    struct nfs_handle h;
    nfs_export_handle(op->export, e->ino, e->attr != NULL ? e->attr->generation : e->generation, &h);
    xdr_put_bool(op->out, true);
    xdr_put_opaque(op->out, &h, sizeof(h));
}

static bool emit(void *ctx, const struct fs_dirent *e)
{
    struct listing *l = ctx;
    struct nfs3_op *op = l->op;
    struct xdr_out *o = op->out;
    bool up = e->name_len == 2 && e->name[0] == '.' && e->name[1] == '.';
    uint32_t name = 4 + e->name_len + XDR_PAD(e->name_len);
    uint32_t dir_bytes = 4 + 8 + name + 8, bytes = dir_bytes;
    if (l->plus)
        bytes += 4 + NFS3_ATTR_SIZE + 4 + HANDLE_SIZE;
    if (bytes + END_SIZE > l->limit - o->len || (l->plus && dir_bytes > l->dir_left))
        return false;
    xdr_put_bool(o, true);
    xdr_put_u64(o, up && op->ino == op->export->root_ino ? op->ino : e->ino);
    xdr_put_opaque(o, e->name, e->name_len);
    xdr_put_u64(o, e->cookie);
    if (l->plus)
        put_plus(l, e, up);
    l->dir_left -= MIN(l->dir_left, dir_bytes);
    l->count++;
    return true;
}

static int list(struct nfs3_op *op, uint64_t cookie, uint64_t verifier, struct listing *l, uint32_t max)
    may_yield
{
    struct fs_attr dir;
    bool eof = false;
    struct xdr_out *o = op->out;
    int err = 0;
    dir.ino = 0;
    max = MIN(max, NFS_READDIR_MAX);
    uint32_t begin = o->len, head = 4 + 4 + NFS3_ATTR_SIZE + 8;
    if (cookie != 0 && verifier != COOKIE_VERIFIER && verifier != 0) {
        op->status = NFS3ERR_BAD_COOKIE;
    } else if (max < head + END_SIZE) {
        op->status = NFS3ERR_TOOSMALL;
    } else if (!nfs_call_room(op->call, max)) {
        op->status = NFS3ERR_JUKEBOX;
    } else {
        l->limit = o->len + max;
        o->len += head; /* filled in below */
        err = fs_readdir(op->fs, &op->rq, op->ino, cookie, l->plus, emit, l, &eof, &dir);
        op->status = nfs3_status_of(err);
        if (err == 0 && l->count == 0 && !eof)
            op->status = NFS3ERR_TOOSMALL;
    }
    uint32_t end = o->len;
    o->len = begin;
    xdr_put_u32(o, op->status);
    if (op->status != NFS3_OK) {
        nfs3_put_post(op, NULL);
        return RPC_SUCCESS;
    }
    assert(dir.ino != 0);
    nfs3_put_post(op, &dir);
    xdr_put_u64(o, COOKIE_VERIFIER);
    assert(o->len == begin + head);
    o->len = end;
    xdr_put_bool(o, false);
    xdr_put_bool(o, eof);
    return RPC_SUCCESS;
}

int nfs3_readdir(struct nfs3_op *op)
{
    struct listing l = {.op = op};
    uint64_t cookie = xdr_u64(op->in), verifier = xdr_u64(op->in);
    uint32_t count = xdr_u32(op->in);
    return op->in->bad ? RPC_GARBAGE_ARGUMENTS : list(op, cookie, verifier, &l, count);
}

int nfs3_readdirplus(struct nfs3_op *op)
{
    struct listing l = {.op = op, .plus = true};
    uint64_t cookie = xdr_u64(op->in), verifier = xdr_u64(op->in);
    l.dir_left = xdr_u32(op->in);
    uint32_t max = xdr_u32(op->in);
    return op->in->bad ? RPC_GARBAGE_ARGUMENTS : list(op, cookie, verifier, &l, max);
}
